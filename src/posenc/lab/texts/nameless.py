"""Bytes in temporary files without a name: what is made of a text, and too large to be held in memory.

Nothing is put beside the user's files, nothing can grow stale, and nothing is left behind: such a file is gone when its
process ends, however that ends. The price is that each process makes its own.
"""

import os
import tempfile
import threading
import weakref

BLOCK = 1 << 18
"""How many bytes are held at once where a whole text is read."""


class Nameless:
    """A file of the system's temporary folder that only this object knows: written to its end, read from anywhere."""

    def __init__(self) -> None:
        self.size = 0
        self.file = tempfile.TemporaryFile(buffering=0)
        # It is closed with its last reader, of which there may be several.
        weakref.finalize(self, self.file.close)
        self.seeking = threading.Lock()

    def write(self, data: bytes) -> None:
        """Add to its end. Raises OSError, which names the temporary folder, where there is no room."""
        left = memoryview(data)
        try:
            self.file.seek(self.size)
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            raise OSError(
                error.errno,
                f"a text cannot be kept in the temporary folder '{tempfile.gettempdir()}': {error.strerror}; set "
                f"TMPDIR to a folder with room",
            ) from None
        self.size += len(data)

    def read(self, place: int, count: int) -> bytes:
        """`count` of its bytes from `place` on."""
        if hasattr(os, "pread"):
            return os.pread(self.file.fileno(), count, place)
        with self.seeking:  # on Windows
            self.file.seek(place)
            return self.file.read(count)
