"""Count the work of the fast paths, so that machine load does not matter.

    python benchmarks/instructions.py            counts, and compares with counts.json; exit code 1 if a count grew
    python benchmarks/instructions.py --update   writes counts.json

valgrind's callgrind counts the instructions of the compiled rotation, for each instruction set. The cost of a call in
Python is counted as function calls and as operators that PyTorch runs.
"""

import argparse
import ctypes
import importlib.util
import itertools
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HOME = Path(__file__).resolve().parent.parent
COUNTS_FILE = Path(__file__).with_name("counts.json")
NATIVE = HOME / "src" / "posenc" / "kernels" / "rotation" / "native.py"

ROUTINES = ("_plain", "_avx2")
"""The suffixes of the function names, one for each instruction set."""

MARGIN = 0.02
"""The relative increase that is tolerated: reordered source lines change the same compiler's output this much."""
OTHER_COMPILER = 0.25
"""The tolerated increase if another compiler built the library."""


class Case(NamedTuple):
    """The sizes of a rotation: x [batch, heads, tokens, width] and the rotated pairs."""

    batch: int
    heads: int
    tokens: int
    width: int
    pairs: int
    type: int
    layout: int
    inverse: int = 0
    tokens_first: bool = False


FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)
HALF, INTERLEAVED = range(2)

CASES = {
    "prompt, float32, half": Case(1, 4, 256, 128, 64, FLOAT32, HALF),
    "prompt, float32, half, [B, T, H, D] in memory": Case(1, 4, 256, 128, 64, FLOAT32, HALF, tokens_first=True),
    "prompt, float32, interleaved": Case(1, 4, 256, 128, 64, FLOAT32, INTERLEAVED),
    "prompt, bfloat16, half": Case(1, 4, 256, 128, 64, BFLOAT16, HALF),
    "prompt, float16, half": Case(1, 4, 256, 128, 64, FLOAT16, HALF),
    "gradient, float32, half, a quarter of the head": Case(2, 3, 64, 64, 8, FLOAT32, HALF, inverse=1),
    "one token, float32, half": Case(1, 32, 1, 128, 64, FLOAT32, HALF),
    "one token, bfloat16, half": Case(1, 32, 1, 128, 64, BFLOAT16, HALF),
}


def native() -> Any:
    """Import the loader module without its package. Importing torch under valgrind takes minutes."""
    spec = importlib.util.spec_from_file_location("native", NATIVE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_not() -> str | None:
    """Return why instructions cannot be counted here, or None."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    reason = native().load().why_not
    return None if reason is None else f"there is no compiled rotation: {reason}"


def rotate_all() -> None:
    """Run every case once with every instruction set."""
    module = native()
    library, best, _ = module.load()
    for function in range(best + 1):
        for case in CASES.values():
            rotate(module, library, case, function)


def rotate(module: Any, library: Any, case: Case, function: int) -> None:
    """Rotate one case in place, with one thread."""
    size = 4 if case.type == FLOAT32 else 8 if case.type == FLOAT64 else 2
    number = 8 if case.type in (FLOAT32, FLOAT64) else 4
    rotation = module.Rotation(case.batch, case.heads, case.tokens, case.width, case.pairs)
    row, head = (case.heads * case.width, case.width) if case.tokens_first else (case.width, case.tokens * case.width)
    rotation.x[:] = rotation.out[:] = case.heads * case.tokens * case.width, head, row
    rotation.table[:] = 0, 0, case.pairs
    rotation.type, rotation.layout, rotation.inverse, rotation.set = case.type, case.layout, case.inverse, function
    x = aligned_address(case.batch * case.heads * case.tokens * case.width * size)
    cos, sin = (aligned_address(case.tokens * case.pairs * number) for _ in range(2))
    library.posenc_rotate(ctypes.byref(rotation), x, x, cos, sin, 1)


def aligned_address(size: int) -> ctypes.c_void_p:
    """Return zeroed memory aligned to a cache line, since alignment changes where the loops begin."""
    memory = ctypes.create_string_buffer(size + 64)
    address = ctypes.addressof(memory)
    aligned = ctypes.c_void_p(address + -address % 64)
    aligned.memory = memory  # type: ignore[attr-defined]  # keeps the memory alive as long as its address
    return aligned


def instructions() -> dict[str, int]:
    """Return each library function's instruction count over all cases and instruction sets.

    Raises RuntimeError with valgrind's output when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"]
        command += [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--rotate-all"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"valgrind failed: {' '.join(result.stderr.split()[-40:])}")
        return calls_of_functions(output.read_text(encoding="utf-8"), native().LIBRARY.name)


def calls_of_functions(profile: str, library: str) -> dict[str, int]:
    """Parse callgrind's output into self instructions per library function; unnamed ones are "the walk"."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    here, function, of_a_call = "", "", False

    def name_of_line(word: str, kind: str) -> str:
        # A name is written only once, after its number; later lines give the number alone.
        number, _, name = word.partition(" ")
        return names.setdefault(kind + number, name)

    for line in profile.splitlines():
        key, arguments, word = line.partition("=")
        if key in ("ob", "cob", "fn", "cfn"):
            name = name_of_line(word, key[-2:])
            here = name if key == "ob" else here
            function = name if key == "fn" else function
        elif key == "calls" and arguments:
            of_a_call = True
        elif re.match(r"[-+*\d]", line):
            # The line after a call is the cost of the called function.
            if not of_a_call and here.endswith(library):
                known = function if function.endswith(ROUTINES) else "the walk"
                counts[known] = counts.get(known, 0) + int(line.split()[-1])
            of_a_call = False
    return dict(sorted(counts.items()))


def compiler() -> str:
    """Return the compiler's signature in the library."""
    version = re.search(rb"(?:GCC: \([^)]*\)|clang version) [\d.]+", native().LIBRARY.read_bytes())
    return version.group().decode() if version else "unknown"


def calls() -> dict[str, int]:
    """Count the function calls (Python or C) and the PyTorch operators of each case."""
    import torch

    counts = {}
    with torch.no_grad():
        for name, call in in_python():
            counts[f"{name}: calls of functions"] = python_calls(call)
            counts[f"{name}: operators"] = operators(call)
    return counts


def in_python() -> list[tuple[str, Callable[[], Any]]]:
    import torch

    import posenc
    from posenc import Positions, kernels, masks
    from posenc.cache import SlotCache
    from posenc.encoding.keys import Keys

    torch.manual_seed(0)
    rope, alibi = posenc.Rotary(64), posenc.ALiBi(4)
    q, k = torch.randn(1, 4, 1, 64), torch.randn(1, 2, 1, 64)
    long = torch.randn(1, 4, 300, 64)
    layer, cache = posenc.Attention(64, 4, encoding="rotary(base=500)").eval(), SlotCache(64)
    x = torch.randn(1, 1, 64)

    def attend_with_bias() -> Any:
        at = Positions.count(300)
        kernel = kernels.bind("auto", alibi, scale=0.125)
        return alibi.attend(long, at, Keys(long, long, at), masks.causal(), kernel)

    place = itertools.count()

    return [
        ("rotary, one token", lambda: rope(q, k, offset=40)),
        ("rotary, a prompt", lambda: rope.turn_both(long, long, *2 * (Positions.count(300),))),
        ("attention with alibi, 300 tokens", attend_with_bias),
        (
            "a layer with rotary and a static cache, one token",
            lambda: layer(x, positions=Positions.count(1, next(place)), cache=cache, mask=masks.causal()),
        ),
    ]


def python_calls(call: Callable[[], Any]) -> int:
    """Count the function calls within a call, after two calls that fill the caches."""
    count = 0

    def see(frame: Any, event: str, kind: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    call(), call()
    old_profile = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(old_profile)
    # Switching the profiler off is itself counted as a call.
    return count - 1


def operators(call: Callable[[], Any]) -> int:
    """Count the PyTorch operators within a call, including nested ones."""
    from torch.autograd.profiler import profile

    call(), call()
    # Kineto is not used because it writes to the terminal.
    with profile(use_kineto=False) as counts:
        call()
    return sum(event.name.startswith(("aten::", "posenc::")) for event in counts.function_events)


def python_versions() -> str:
    import torch

    return f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"


def increases(counts: dict[str, int], old_counts: dict[str, int], margin: float) -> list[str]:
    """Return a sentence for each count that grew or has no stored count yet."""
    lines = []
    for name, count in counts.items():
        old = old_counts.get(name)
        if old is None:
            lines.append(f"{name}: {count:,}, and no count is kept; run again with --update")
        elif count > old * (1 + margin):
            lines.append(f"{name}: {count:,}, {count / old - 1:.1%} more than the {old:,} that are kept")
    return lines


def compare() -> tuple[list[str], list[str]]:
    """Return (counts above those in counts.json, what could not be compared and why)."""
    old_counts, worse, left_out = json.loads(COUNTS_FILE.read_text(encoding="utf-8")), [], []
    reason = why_not()
    if reason is None:
        margin = MARGIN if compiler() == old_counts["compiler"] else OTHER_COMPILER
        worse += increases(instructions(), old_counts["instructions"], margin)
    else:
        left_out.append(f"instructions: {reason}")
    if python_versions() == old_counts["python"]:
        worse += increases(calls(), old_counts["calls"], MARGIN)
    else:
        left_out.append(f"calls: counted with {old_counts['python']}, this is {python_versions()}")
    return worse, left_out


def update() -> None:
    """Write the current counts to counts.json. Raises RuntimeError if instructions cannot be counted."""
    if (reason := why_not()) is not None:
        raise RuntimeError(f"nothing is written: {reason}")
    counts = {"compiler": compiler(), "instructions": instructions(), "python": python_versions(), "calls": calls()}
    COUNTS_FILE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write counts.json")
    parser.add_argument("--rotate-all", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rotate_all:
        rotate_all()
        return 0
    if arguments.update:
        update()
        print(f"written: {COUNTS_FILE.relative_to(HOME)}")
        return 0
    worse, left_out = compare()
    print("\n".join([*worse, *(f"not compared: {line}" for line in left_out)]) or "no count has grown")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
