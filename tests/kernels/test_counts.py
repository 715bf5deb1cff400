"""In blocks, biases by gate counts have the readable kernel's values and gradients in float64."""

import pytest
import torch
from kernels.test_in_rows import CASES, SHAPE, Case, check
from largest import LargestTensor
from tiers import rest_slow

from posenc import Keys, Positions, kernels, masks
from posenc.catalogue import build
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.biases import counts
from posenc.kernels.in_rows import attend_in_rows

SPECS = [
    "contextual(positions=4)",
    "rotary + contextual(positions=3) + forgetting",
    "contextual(positions=4) + stick_breaking",
    "contextual(positions=4, divided=False) + alibi",
    "rerope(rotary, window=4) + contextual(positions=4)",
    "on(contextual(positions=4), heads=(0, 2))",
]
SMALL = {"rows": 5, "rows_backwards": 4, "rows_counted": 3, "narrowest": 2, "far": 2, "pairs_backwards": 60}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spec", rest_slow(SPECS, 3))
def test_it_is_right_wherever_tokens_stand(spec: str, name: str) -> None:
    at, keys_at, mask = CASES[name]
    case = Case(spec, at, keys_at)
    expected, _ = case.ask(attend_in_rows, mask, "reference")
    with SIZES.set_to(**SMALL):
        actual, _ = case.ask(attend_in_rows, mask)
        upstream = torch.randn_like(expected)
        right = case.slopes(expected, upstream)
        if name == "causal":  # The backward pass may run twice.
            check(torch.autograd.grad(actual, case.leaves, upstream, allow_unused=True, retain_graph=True), right)
        check([actual, *case.slopes(actual, upstream)], [expected, *right])


@pytest.mark.parametrize(("spec", "at", "way"), [
    ("contextual", Positions.count(11), "counts in a row"),
    ("contextual", CASES["padding"][0], "pairs"),
    ("on(contextual, heads=(0, 2))", Positions.count(11), "counts in a row"),
])  # fmt: skip
def test_who_serves_is_decided_by_what_is_known_of_the_tokens(spec: str, at: Positions, way: str) -> None:
    q = torch.zeros(2, SHAPE.heads, 11, SHAPE.head_dim)
    with SIZES.set_to(pairs_of_a_grid=0):
        assert kernels.served_by(build(spec, SHAPE), q, at, Keys(q, q, at), masks.causal()) == ("blocked", way)


@pytest.mark.parametrize(("logit", "number"), [(-9.0, 36), (9.0, 15)])
def test_keys_behind_the_end_of_the_table_are_not_counted(logit: float, number: int, monkeypatch) -> None:
    counted_chunks, chunks = [], counts.CountsInRow.chunks

    def watch(self, *args):
        for chunk in chunks(self, *args):
            counted_chunks.append(chunk)
            yield chunk

    monkeypatch.setattr(counts.CountsInRow, "chunks", watch)
    torch.manual_seed(5)
    encoding, at = build("contextual(positions=64)", SHAPE), Positions.count(1024)
    torch.nn.init.normal_(encoding.table)
    q = torch.cat((torch.ones(1, 3, 1024, 1), torch.randn(1, 3, 1024, 3) / 4), -1)
    k = torch.cat((torch.full((1, 3, 1024, 1), 2 * logit), torch.randn(1, 3, 1024, 3)), -1)
    v = torch.randn(1, 3, 1024, 4)

    def attend(name: str) -> torch.Tensor:
        kernel = kernels.bind(name, encoding, scale=0.5)
        return encoding.attend(q, at, Keys(k, v, at), masks.causal(), kernel)[0]

    with torch.no_grad(), SIZES.set_to(rows_counted=128):
        out = attend("auto")
        assert len(counted_chunks) == number
        torch.testing.assert_close(out, attend("reference"), rtol=0, atol=4e-6)


def test_no_tensor_grows_with_the_square_of_the_tokens() -> None:
    largest = []
    for T in (200, 400):
        case = Case("contextual(positions=4)", Positions.count(T))
        with SIZES.set_to(rows=20, rows_backwards=20, rows_counted=10, narrowest=20), LargestTensor() as meter:
            out, _ = case.ask(attend_in_rows, masks.causal())
            case.slopes(out, torch.ones_like(out))
        largest.append(meter.size)
    assert largest[1] <= 2.1 * largest[0]
