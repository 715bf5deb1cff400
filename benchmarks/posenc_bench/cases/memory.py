"""Peak memory beyond the inputs, including the output and every gradient."""

import json
import sys
from collections.abc import Iterator

import torch

from posenc_bench import peers, subprocesses
from posenc_bench.cases import attention
from posenc_bench.cases.attention import PLAIN
from posenc_bench.measure import Row

QUICK = ("alibi", "t5_bias", "shaw(max_distance=64, values=False)")
OF_A_PEER = "x-transformers: alibi"
BY_HAND = ("alibi by hand, matrix made in each call", "alibi as attn_mask made in each call", OF_A_PEER)
FORWARD = {"quick": (4096,), "full": (2048, 4096, 8192)}
BACKWARD = {"quick": (2048,), "full": (1024, 2048)}


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """Yield a row for each encoding and length; each encoding runs in a separate process."""
    cases = [(T, False) for T in FORWARD[shapes]] + [(T, True) for T in BACKWARD[shapes]]
    if not subprocesses.can_see_peaks():
        yield Row("memory", "all", "all", "posenc", "MiB", threads, note=subprocesses.WHY_NOT)
        return
    specs = QUICK if shapes == "quick" else attention.SPECS
    usual = BY_HAND[:1] if shapes == "quick" else [name for name in BY_HAND if with_peers or name != OF_A_PEER]
    for name in (PLAIN, *specs, *usual):
        try:
            peaks = subprocesses.run(CODE, name, json.dumps(cases), threads=threads)
        except RuntimeError as error:
            yield Row("memory", "all", name, "posenc" if name in specs else "peer", "MiB", threads, note=str(error))
            continue
        kind = "limit" if name == PLAIN else "posenc" if name in specs else "peer" if name == OF_A_PEER else "naive"
        subject = "alibi" if name in BY_HAND else name
        for (tokens, backward), peak in zip(cases, peaks, strict=True):
            passes = "forward and backward" if backward else "forward"
            facts = {"tokens": tokens, "pass": passes}
            columns = ("memory", f"T {tokens}: {passes}", name, kind, "MiB beyond the inputs", threads)
            yield Row(*columns, peak, peak, peak, rounds=1, facts=facts, subject=subject)


CODE = "from posenc_bench.cases import memory; memory.in_a_process_of_its_own()"


def in_a_process_of_its_own() -> None:
    """Print the peak memory of the candidate and cases named on the command line."""
    name, cases = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    # The first call loads code and fills the libraries' internal buffers.
    for backward in (False, True):
        peak(name, 64, backward)
    print(json.dumps([peak(name, tokens, backward) for tokens, backward in cases]))


def peak(name: str, tokens: int, backward: bool) -> float:
    with torch.set_grad_enabled(backward):
        group = attention.causal(tokens, backward, name == OF_A_PEER, only=name)
        if name in group.absent:
            raise peers.AbsentPeer(group.absent[name])
        call = next(candidate.call for candidate in group.candidates if candidate.name == name)
        return subprocesses.peak_of(call)
