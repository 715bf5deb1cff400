"""A stick broken in blocks, from the nearest key: against the readable kernel in float64, values and gradients."""

import pytest
import torch
from kernels.test_in_rows import CASES, SHAPE, Case, same
from tiers import rest_slow
from torch.utils._python_dispatch import TorchDispatchMode

from posenc import Keys, Positions, kernels, masks
from posenc.catalogue import build
from posenc.kernels import nearest_first
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.in_rows import attend_in_rows
from posenc.masks import Mask

SPECS = [
    "stick_breaking",
    "stick_breaking(itself=True)",
    "stick_breaking + t5_bias(std=1.0)",
    "rotary + stick_breaking + shaw(values=False)",
    "stick_breaking + alibi(learned=True)",
    "stick_breaking + forgetting",
]
CAUSAL = masks.causal()
SMALL = {"rows": 4, "rows_backwards": 4, "narrowest": 3, "pairs_nearest": 40}
APART = {
    "shuffled": Positions.of(torch.arange(11)).changed(order=torch.randperm(11)[None]),
    "padding": CASES["padding"][0],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spec", rest_slow(SPECS, 4))
def test_it_is_right_wherever_tokens_stand(spec: str, name: str) -> None:
    at, keys_at, mask = CASES[name]
    case = Case(spec, at, keys_at)
    expected, _ = case.ask(attend_in_rows, mask, "reference")
    with SIZES.set_to(**SMALL):
        got, _ = case.ask(attend_in_rows, mask)
        upstream = torch.randn_like(expected)
        same([got, *case.slopes(got, upstream)], [expected, *case.slopes(expected, upstream)])


def asked(at: Positions, mask: Mask = CAUSAL, name: str = "auto", **options) -> tuple[str, ...]:
    seen: set[str] = set()
    encoding, q = build("stick_breaking", SHAPE), torch.randn(2, 3, at.tokens, 4)
    encoding.attend(q, at, Keys(q, q, at), mask, kernels.bind(name, encoding, scale=0.5, seen=seen, **options))
    return tuple(sorted(seen))


@pytest.mark.parametrize("name", ["causal", "both ways", "window", "prefix", "packed"])
def test_tokens_in_rows_are_served_in_blocks(name: str) -> None:
    at, _, mask = CASES[name]
    assert asked(at, mask) == ("blocked", "nearest first")


def test_all_others_are_served_from_all_pairs() -> None:
    for at in APART.values():
        assert asked(at) == ("reference",)
    at = Positions.count(11)
    assert asked(at, name="reference") == asked(at, weights=True) == asked(at, dropout=0.5) == ("reference",)
    with torch.device("meta"):
        assert asked(Positions.count(11)) == ("reference",)


class Largest(TorchDispatchMode):
    """The largest tensor that was made (bytes)."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return out


def called(T: int, logit: float, itself: bool = False, heads: int = 2, **options):
    """A call in which every key has this logit, and how many pieces it went through."""
    torch.manual_seed(4)
    encoding, at = build(f"stick_breaking(itself={itself})", SHAPE), Positions.count(T)
    q = torch.cat((torch.ones(1, heads, T, 1), torch.zeros(1, heads, T, 3)), -1)
    k = torch.cat((torch.full((1, heads, T, 1), logit), torch.randn(1, heads, T, 3)), -1)
    leaves = [x.to(**options).requires_grad_() for x in (q, k, torch.randn(1, heads, T, 4))]

    def call(name: str) -> torch.Tensor:
        kernel = kernels.bind(name, encoding, scale=1.0)
        return encoding.attend(leaves[0], at, Keys(*leaves[1:], at), CAUSAL, kernel)[0]

    return encoding, leaves, call


@pytest.mark.parametrize(("logit", "read"), [(-12.0, 36), (0.0, 15), (40.0, 15)])
def test_keys_of_which_nothing_is_left_are_not_read(logit: float, read: int, monkeypatch) -> None:
    pieces, of = [], nearest_first.NearestFirst.pieces

    def counted(self, *given):
        for piece in of(self, *given):
            pieces.append(piece)
            yield piece

    monkeypatch.setattr(nearest_first.NearestFirst, "pieces", counted)
    _, leaves, call = called(1024, logit)
    out = call("auto")
    assert len(pieces) == read
    expected = call("reference")
    upstream = torch.randn_like(out)
    for got, other in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (out, expected)), strict=True):
        torch.testing.assert_close(got, other, rtol=0, atol=2e-5)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)


def test_extreme_logits_give_finite_numbers() -> None:
    for logit in (-300.0, 90.0, 300.0):
        _, leaves, call = called(40, logit)
        out = call("auto")
        for x in (out, *torch.autograd.grad(out.sum(), leaves)):
            assert x.isfinite().all()
        nearest = torch.zeros_like(out) if logit < 0 else torch.nn.functional.pad(leaves[2], (0, 0, 1, 0))[:, :, :-1]
        torch.testing.assert_close(out, nearest, rtol=0, atol=1e-30)


@pytest.mark.parametrize("spec", SPECS)
def test_float32_stays_within_two_millionths(spec: str) -> None:
    case = Case(spec, Positions.count(700))
    expected, _ = case.ask(attend_in_rows, masks.causal(), "reference")
    case.given = [x.float() for x in case.given]
    case.encoding.float()
    got, _ = case.ask(attend_in_rows, masks.causal())
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)


def test_half_precision_is_off_by_rounding_only() -> None:
    _, leaves, call = called(300, -3.0, dtype=torch.bfloat16)
    out = call("auto")
    assert out.dtype == torch.bfloat16
    slopes = torch.autograd.grad(out.float().sum(), leaves)
    _, exact, again = called(300, -3.0, dtype=torch.float64)
    with torch.no_grad():
        for x, y in zip(exact, leaves, strict=True):
            x.copy_(y)
    expected = again("reference")
    for got, other in zip((out, *slopes), (expected, *torch.autograd.grad(expected.sum(), exact)), strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), other, rtol=8e-3, atol=8e-3)


def test_autocast_decides_the_dtype() -> None:
    _, leaves, call = called(40, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = call("auto")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), call("reference"), rtol=0, atol=4e-2)
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(out.float().sum(), leaves))


def test_no_tensor_grows_with_the_square_of_the_tokens() -> None:
    largest = []
    with SIZES.set_to(**SMALL | {"rows": 8, "rows_backwards": 8}):
        for T in (40, 80):
            _, leaves, call = called(T, -9.0)
            with Largest() as seen:
                torch.autograd.grad(call("auto").sum(), leaves)
            largest.append(seen.size)
    assert largest[1] <= leaves[0].nbytes and largest[1] <= 2.1 * largest[0]


def test_a_graph_may_be_gone_through_twice_but_not_by_gradients_of_gradients() -> None:
    _, leaves, call = called(9, 0.3)
    out = call("auto").sum()
    once = torch.autograd.grad(out, leaves, retain_graph=True)
    same(torch.autograd.grad(out, leaves, retain_graph=True), once)
    with pytest.raises(RuntimeError, match=r"no gradient of its gradient; use kernel='reference'"):
        torch.autograd.grad(out, leaves, create_graph=True)


def test_positions_that_were_changed_in_between_are_noticed() -> None:
    encoding, at = build("stick_breaking", SHAPE), Positions.packed([3, 6])
    q = torch.randn(1, 3, 9, 4, requires_grad=True)
    kernel = kernels.bind("auto", encoding, scale=1.0)
    out = encoding.attend(q, at, Keys(q, q, at), masks.causal(), kernel)[0]
    at.order.add_(1)
    with pytest.raises(RuntimeError, match="changed in place after the forward pass"):
        out.sum().backward()


def test_an_empty_batch_gives_nothing() -> None:
    encoding, at = build("stick_breaking", SHAPE), Positions.count(9)
    q = torch.randn(0, 3, 9, 4, requires_grad=True)
    kernel = kernels.bind("auto", encoding, scale=1.0)
    out = encoding.attend(q, at, Keys(q, q, at), masks.causal(), kernel)[0]
    assert out.shape == (0, 3, 9, 4)
    out.sum().backward()
