"""The compiled kernels, a shared library beside this file, or the reason why there is none. It loads on first use.

hatch_build.py compiles it at installation if there is a C compiler. POSENC_NATIVE=0 in the environment disables it.
"""

import ctypes
import functools
import os
import struct
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).with_name("libposenc.so")
"""The output of hatch_build.py."""

INTERFACE = 2
"""The version of the interface; a library of another version is not used."""

INSTRUCTION_SETS = ("plain C", "AVX2", "AVX-512")
"""The instruction sets of the library, in its order."""

AVX2 = INSTRUCTION_SETS.index("AVX2")

MIN_CHANNELS_FOR_AVX512 = 1 << 15
"""Minimum channels for AVX-512: some processors lower their clock for it, also for the code that follows."""

TURNED_OFF = os.environ.get("POSENC_NATIVE", "1") == "0"
"""Whether POSENC_NATIVE=0 disables the library."""

PRESENT = LIBRARY.exists() and not TURNED_OFF
"""Whether there is a library to load; a compiled graph depends on it before the library is loaded."""


class Rotation(ctypes.Structure):
    """The arguments of one rotation, except addresses; sizes and strides in elements."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "width", "pairs")),
        *((name, ctypes.c_int64 * 3) for name in ("x", "out", "table")),
        *((name, ctypes.c_int64) for name in ("type", "layout", "inverse", "set")),
    )


class RotationOfBoth(ctypes.Structure):
    """The arguments of the rotation of queries and keys by one table."""

    _fields_ = (("q", Rotation), ("k", Rotation), ("to_sin", ctypes.c_int64))


pack = struct.Struct("@5Pq").pack
"""Packs the addresses of q, its output, k, its output and the table, and a number of threads.

As bytes, since each ctypes argument costs as much time as the rotation of one token's four heads.
"""


class Native(NamedTuple):
    """The library and the largest instruction set of this processor, or the reason why it is not used."""

    library: ctypes.CDLL | None
    instruction_set: int = 0
    why_not: str | None = None


@functools.cache
def load() -> Native:
    """Return the library, loaded by the first call."""
    if TURNED_OFF:
        return Native(None, why_not="POSENC_NATIVE=0 turns it off")
    if not LIBRARY.exists():
        return Native(None, why_not="it was not compiled: no C compiler was found when posenc was installed")
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.posenc_interface.restype = ctypes.c_int64
        interface = library.posenc_interface()
    except (OSError, AttributeError) as error:
        return Native(None, why_not=f"it cannot be loaded ({error}); install posenc again")
    if interface != INTERFACE:
        return Native(None, why_not=f"it has interface {interface}, and {INTERFACE} is needed; install posenc again")
    # Addresses as integers: typed pointers would cost a check in every call.
    library.posenc_rotate.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64]
    library.posenc_rotate_both.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.posenc_rotate.restype = library.posenc_rotate_both.restype = None
    library.posenc_best_set.restype = library.posenc_has_threads.restype = ctypes.c_int64
    return Native(library, library.posenc_best_set())


def status() -> str:
    """Return one line on how the compiled code runs, or why it does not."""
    code = load()
    if code.library is None:
        return f"PyTorch's own operators: no compiled code, {code.why_not}"
    threads = "as many threads as PyTorch" if code.library.posenc_has_threads() else "one thread: built without OpenMP"
    return f"compiled code: {INSTRUCTION_SETS[code.instruction_set]}, {threads}"
