"""Peak memory of the attention weights of chosen rows of a long sequence."""

import json
import sys
from collections.abc import Iterator

import torch

from posenc import chosen_weights, masks
from posenc.model.attention import Attention
from posenc_bench import subprocesses
from posenc_bench.measure import Row

TOKENS, DIM, HEADS = 16384, 512, 8
SPECS = {"quick": ("alibi",), "full": ("rotary", "alibi", "t5_bias", "shaw(values=False)", "forgetting", "fire")}

QUESTIONS = {"64 rows": slice(-64, None), "64 rows far apart": slice(0, None, TOKENS // 64)}
"""The rows whose weights are requested with a layer's output, in all heads."""


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """Yield a row for each encoding and question, each from a separate process."""
    for question in QUESTIONS:
        for spec in SPECS[shapes]:
            columns = ("weights", f"T {TOKENS}: {question}", spec, "posenc", "MiB beyond layer and input", threads)
            if not subprocesses.can_see_peaks():
                yield Row(*columns, note=subprocesses.WHY_NOT)
                continue
            try:
                peak = subprocesses.run(CODE, spec, question, threads=threads)
            except RuntimeError as error:
                yield Row(*columns, note=str(error))
                continue
            yield Row(*columns, peak, peak, peak, rounds=1, facts={"tokens": TOKENS})


CODE = "from posenc_bench.cases import weights; weights.in_a_process_of_its_own()"


@torch.no_grad()
def in_a_process_of_its_own() -> None:
    """Print the peak memory of the spec and question named on the command line."""
    spec, question = sys.argv[1], QUESTIONS[sys.argv[2]]
    torch.set_num_threads(1)
    layer = Attention(DIM, HEADS, encoding=spec, max_len=TOKENS, causal=True).eval()
    x = torch.randn(1, TOKENS, DIM)
    layer(x[:, :64], mask=masks.causal())
    print(json.dumps(subprocesses.peak_of(lambda: chosen_weights(layer, x, mask=masks.causal(), rows=question))))
