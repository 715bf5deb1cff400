"""Unnamed temporary files for data that is derived from a text and too large for memory.

No cache lies beside the user's files, can become stale, or is left behind: the system deletes such a file when its
process ends, however it ends. The price is that each process makes its own.
"""

import os
import tempfile
import threading
import weakref

BLOCK = 1 << 18
"""The block size (bytes) where a whole text is read."""


class ScratchFile:
    """An unnamed file of the system's temporary folder: appended to, and read at any place."""

    def __init__(self) -> None:
        self.size = 0
        self.file = tempfile.TemporaryFile(buffering=0)
        # Closed with its last reader, of which there may be several.
        weakref.finalize(self, self.file.close)
        self.seeking = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append data. Raises OSError, which names the temporary folder, where there is no room."""
        remaining = memoryview(data)
        try:
            self.file.seek(self.size)
            while remaining:
                remaining = remaining[self.file.write(remaining) :]
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
