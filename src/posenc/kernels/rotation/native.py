"""The compiled kernels: a shared library beside this file, loaded when it is first needed, or why there is none.

hatch_build.py compiles it when the package is installed, where there is a C compiler. The environment variable
POSENC_NATIVE=0 leaves it aside.
"""

import ctypes
import functools
import os
import struct
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).with_name("libposenc.so")
"""What hatch_build.py compiles where there is a C compiler."""

INTERFACE = 2
"""The interface that this code calls; a library that was compiled for another is not used."""

INSTRUCTION_SETS = ("plain C", "AVX2", "AVX-512")
"""The sets of routines in the library, in its own order."""

AVX2 = INSTRUCTION_SETS.index("AVX2")

ENOUGH_FOR_AVX512 = 1 << 15
"""From how many channels on AVX-512 pays: some processors lower their clock for it, for all that comes soon after."""

TURNED_OFF = os.environ.get("POSENC_NATIVE", "1") == "0"
"""Whether POSENC_NATIVE=0 asked for PyTorch's own operators."""

PRESENT = LIBRARY.exists() and not TURNED_OFF
"""Whether there is a library to load: what a graph is compiled for, before anything is loaded."""


class Rotation(ctypes.Structure):
    """What the library reads of one rotation, besides the addresses; sizes and strides in elements."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "width", "pairs")),
        *((name, ctypes.c_int64 * 3) for name in ("x", "out", "table")),
        *((name, ctypes.c_int64) for name in ("type", "layout", "inverse", "set")),
    )


class RotationOfBoth(ctypes.Structure):
    """What the library reads of the rotation of queries and keys by one table."""

    _fields_ = (("q", Rotation), ("k", Rotation), ("to_sin", ctypes.c_int64))


BOTH = struct.Struct("@5Pq").pack
"""The addresses of q, of what it becomes, of k, of what that becomes and of the table, and a number of threads.

As bytes, since ctypes takes as long for each argument of a call as for one token's rotation of four heads.
"""


class Native(NamedTuple):
    """The library and the largest set of routines that this processor has, or why it is not used."""

    library: ctypes.CDLL | None
    instruction_set: int = 0
    why_not: str | None = None


@functools.cache
def load() -> Native:
    """The library, loaded by the first call."""
    if TURNED_OFF:
        return Native(None, why_not="POSENC_NATIVE=0 turns it off")
    if not LIBRARY.exists():
        return Native(None, why_not="it was not compiled: no C compiler was found when posenc was installed")
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.posenc_interface.restype = ctypes.c_int64
        found = library.posenc_interface()
    except (OSError, AttributeError) as error:
        return Native(None, why_not=f"it cannot be loaded ({error}); install posenc again")
    if found != INTERFACE:
        return Native(None, why_not=f"it has interface {found}, and {INTERFACE} is needed; install posenc again")
    # Addresses as whole numbers: each typed pointer would cost a check in every call.
    library.posenc_rotate.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64]
    library.posenc_rotate_both.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.posenc_rotate.restype = library.posenc_rotate_both.restype = None
    library.posenc_best_set.restype = library.posenc_has_threads.restype = ctypes.c_int64
    return Native(library, library.posenc_best_set())


def status() -> str:
    """How the compiled code runs, or why it does not, in one line."""
    found = load()
    if found.library is None:
        return f"PyTorch's own operators: no compiled code, {found.why_not}"
    threads = "as many threads as PyTorch" if found.library.posenc_has_threads() else "one thread: built without OpenMP"
    return f"compiled code: {INSTRUCTION_SETS[found.instruction_set]}, {threads}"
