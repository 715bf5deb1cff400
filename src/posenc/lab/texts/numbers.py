"""Whole numbers in temporary files without a name: a text, or its tokens, which may be too large for memory.

Nothing is put beside the user's files, nothing grows stale, and nothing is left behind: such a file is gone when its
process ends, however that ends. The price is that each process makes its own.
"""

import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BLOCK = 1 << 18
"""How many numbers are held at once where a whole text is read."""

CODES = {torch.uint8: "B", torch.uint16: "H", torch.uint32: "I"}


class Numbers:
    """Numbers of one kind in a file of the system's temporary folder: added at its end, read from anywhere.

    kind  torch.uint8, torch.uint16 or torch.uint32
    """

    def __init__(self, kind: torch.dtype = torch.uint8) -> None:
        self.kind, self.length = kind, 0
        self.file = tempfile.TemporaryFile(buffering=0)
        # The file is closed with its last reader, of which there may be several.
        weakref.finalize(self, self.file.close)
        self.seeking = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def write(self, numbers: bytes | Sequence[int]) -> None:
        """Add numbers. Raises OSError, which names the temporary folder, where there is no room."""
        added = array(CODES[self.kind], numbers)
        left = memoryview(added).cast("B")
        try:
            self.file.seek(self.length * self.kind.itemsize)
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            raise OSError(
                error.errno,
                f"a text cannot be kept in the temporary folder '{tempfile.gettempdir()}': {error.strerror}; set "
                f"TMPDIR to a folder with room",
            ) from None
        self.length += len(added)

    def read(self, place: int, count: int) -> bytes:
        """The bytes of `count` numbers from `place` on."""
        place, count = place * self.kind.itemsize, count * self.kind.itemsize
        if hasattr(os, "pread"):
            return os.pread(self.file.fileno(), count, place)
        with self.seeking:  # on Windows
            self.file.seek(place)
            return self.file.read(count)

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` numbers from each of the places [B] on: [B, length] of their kind."""
        read = b"".join(self.read(place, length) for place in start.tolist())
        return torch.frombuffer(bytearray(read), dtype=self.kind).view(-1, length)

    def blocks(self) -> Iterator[bytes]:
        """The bytes of all numbers, a block at a time."""
        for place in range(0, self.length, BLOCK):
            yield self.read(place, min(BLOCK, self.length - place))
