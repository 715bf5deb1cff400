"""What an import costs beyond that of torch: CPU seconds of fresh processes that take turns."""

import statistics
from collections.abc import Iterator

from posenc.bench import apart, peers
from posenc.bench.measure import FEWEST, Goal, Row, judged

OURS = {"import posenc": "import posenc", "import posenc, make a Rotary": "import posenc; posenc.Rotary(64)"}
THEIRS = {
    "rotary-embedding-torch": "import rotary_embedding_torch",
    "positional-encodings": "import positional_encodings.torch_encodings",
    "x-transformers": "import x_transformers",
    "transformers": "import transformers.models.llama.modeling_llama",
}
TORCH = "torch itself"
WANTED = Goal(0.05, of="s")


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """A row for each import, of the shortest rounds: what disturbs an import only ever makes it longer."""
    asked, absent = dict(OURS), {}
    if with_peers:
        installed = peers.versions()
        absent = {name: f"{name} is not installed" for name in THEIRS if name not in installed}
        asked |= {name: code for name, code in THEIRS.items() if name in installed and shapes == "full"}
    taken: dict[str, list[float]] = {TORCH: [], **{name: [] for name in asked}}
    # The first round fills the disk's cache and writes compiled files.
    for turn in range(1 + FEWEST):
        for name, code in asked.items():
            torch, beyond = apart.run(CODE.format(code))
            if turn:
                taken[name].append(beyond)
                taken[TORCH].append(torch)
    for name, own in taken.items():
        low, _, high = statistics.quantiles(own, n=4, method="inclusive")
        kind = "limit" if name == TORCH else "posenc" if name in OURS else "peer"
        verdicts = (judged(WANTED, min(own)),) if name == "import posenc" else ()
        about = ("startup", "import", name, kind, "s of CPU", threads)
        yield Row(*about, min(own), low, high, statistics.median(own), len(own), verdicts=verdicts)
    for name, reason in absent.items():
        yield Row("startup", "import", name, "peer", "", threads, note=reason)


CODE = """
import time
start = time.process_time()
import torch
before = time.process_time()
{}
print([before - start, time.process_time() - before])
"""
"""Prints what torch took, and what came beyond it."""
