"""What the fast paths do, counted without a clock, so that a machine under any load can hold them.

    python benchmarks/instructions.py            counts, and compares with counts.json; exit code 1 where more is done
    python benchmarks/instructions.py --update   writes counts.json

Two things are counted: the instructions of the compiled rotation, for each set of routines, by valgrind's callgrind;
and what a call costs in Python: the calls of functions, and the operators that PyTorch runs.
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
"""How the names of the routines of a set end."""

MARGIN = 0.02
"""How much more may be done before it counts: what the same compiler makes of another order of lines."""
OTHER_COMPILER = 0.25
"""The same where another compiler made the library."""


class Case(NamedTuple):
    """One rotation: x [batch, heads, tokens, width] of which so many pairs turn, tables for all heads alike."""

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
    """The module that loads the library, without the package around it: torch under valgrind takes minutes."""
    spec = importlib.util.spec_from_file_location("native", NATIVE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_not() -> str | None:
    """Why instructions cannot be counted here, or None."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    reason = native().load().why_not
    return None if reason is None else f"there is no compiled rotation: {reason}"


def rotate_all() -> None:
    """Run every case once with every set of routines."""
    module = native()
    library, best, _ = module.load()
    for function in range(best + 1):
        for case in CASES.values():
            rotate(module, library, case, function)


def rotate(module: Any, library: Any, case: Case, function: int) -> None:
    """One case in place, by one thread."""
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
    """Memory of zeros whose address is a whole number of cache lines: elsewhere loops would begin otherwise."""
    memory = ctypes.create_string_buffer(size + 64)
    address = ctypes.addressof(memory)
    aligned = ctypes.c_void_p(address + -address % 64)
    aligned.memory = memory  # type: ignore[attr-defined]  # kept as long as its address
    return aligned


def instructions() -> dict[str, int]:
    """Function of the library -> its instructions while every case runs once with every set of routines.

    Raises RuntimeError, with what valgrind said, when it fails.
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
    """Function -> instructions of its own, for one library in callgrind's format; what has no name is "the walk"."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    here, function, of_a_call = "", "", False

    def name_of_line(word: str, kind: str) -> str:
        # A name is written once, behind its number.
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
            # The line behind a call is the cost of what was called.
            if not of_a_call and here.endswith(library):
                known = function if function.endswith(ROUTINES) else "the walk"
                counts[known] = counts.get(known, 0) + int(line.split()[-1])
            of_a_call = False
    return dict(sorted(counts.items()))


def compiler() -> str:
    """The compiler that made the library, as it has signed it."""
    version = re.search(rb"(?:GCC: \([^)]*\)|clang version) [\d.]+", native().LIBRARY.read_bytes())
    return version.group().decode() if version else "unknown"


def calls() -> dict[str, int]:
    """What cases cost in Python: calls of functions, in Python or C, and the operators that PyTorch runs."""
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
    """Calls of functions within a call, after two that fill what is kept."""
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
    # Switching it off is a call too.
    return count - 1


def operators(call: Callable[[], Any]) -> int:
    """PyTorch's operators within a call, those included that others are made of."""
    from torch.autograd.profiler import profile

    call(), call()
    # Without Kineto: it writes to the terminal.
    with profile(use_kineto=False) as counts:
        call()
    return sum(event.name.startswith(("aten::", "posenc::")) for event in counts.function_events)


def python_versions() -> str:
    import torch

    return f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"


def increases(counts: dict[str, int], old_counts: dict[str, int], margin: float) -> list[str]:
    """What is done more often than it was, in sentences; what has no kept count yet is one too."""
    lines = []
    for name, count in counts.items():
        old = old_counts.get(name)
        if old is None:
            lines.append(f"{name}: {count:,}, and no count is kept; run again with --update")
        elif count > old * (1 + margin):
            lines.append(f"{name}: {count:,}, {count / old - 1:.1%} more than the {old:,} that are kept")
    return lines


def compare() -> tuple[list[str], list[str]]:
    """(what is done more often than counts.json has it, what could not be compared and why)."""
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
    """Write what is counted now. Raises RuntimeError where instructions cannot be counted."""
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
    print("\n".join([*worse, *(f"not compared: {line}" for line in left_out)]) or "nothing is done more often")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
