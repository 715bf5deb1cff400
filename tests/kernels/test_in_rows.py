"""Rules that read every pair give equal float64 results, a few queries at a time."""

import weakref

import pytest
import torch
from tiers import rest_slow

from posenc import masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.keys import Keys
from posenc.encodings.rules.path import PaTH
from posenc.encodings.rules.stick_breaking import StickBreaking
from posenc.kernels import bind
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.in_rows import attend_in_rows
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

SHAPE = Shape(dim=10, heads=3, head_dim=4, max_len=32)
RULES = [
    "shaw",
    "stick_breaking",
    "path",
    "dape(forgetting)",
    "rerope(rotary, window=4)",
    "path + forgetting + shaw(values=False)",
]
PADDED = Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1]]))
torch.manual_seed(2)
CASES = {
    "causal": (Positions.count(11), None, masks.causal()),
    "both ways": (Positions.count(11), None, masks.bidirectional()),
    "window": (Positions.count(11), None, masks.window(4)),
    "prefix": (Positions.count(11), None, masks.prefix(6)),
    "behind a cache": (Positions.count(4, 9), Positions.count(13), masks.causal()),
    "keys of a later start": (Positions.count(9, 2), Positions.count(6, 4), masks.causal()),
    "padding": (PADDED, None, masks.causal()),
    "packed": (Positions.packed([3, 1, 7]), None, masks.causal()),
    "given for each pair": (Positions.count(11), None, Mask(causal=True, tensor=torch.rand(2, 1, 11, 11) < 0.7)),
    "given for each key": (Positions.count(11), None, Mask(tensor=torch.randn(11, dtype=torch.float64))),
}


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(SIZES, "pairs_of_rules", 250)
    monkeypatch.setattr(PaTH, "queries_together", 1)


class Case:
    def __init__(self, spec: str, at: Positions, keys_at: Positions | None = None) -> None:
        torch.manual_seed(3)
        self.encoding: Encoding = build(spec, SHAPE).double()
        for parameter in self.encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.7)
        self.at, self.keys_at = at, at if keys_at is None else keys_at
        T, S, H, D = at.tokens, self.keys_at.tokens, SHAPE.heads, SHAPE.head_dim
        sizes = [(2, H, T, D), (2, 1, S, D), (2, 1, S, D), (2, T, SHAPE.dim), (2, S, SHAPE.dim)]
        self.inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
        self.leaves = [*self.inputs, *self.encoding.parameters()]

    def ask(self, attend, mask: Mask, name: str = "auto", **options):
        q, k, v, x, y = self.inputs
        memo = self.encoding.remember(y, self.keys_at)
        facts = self.encoding.remember(x, self.at)
        kernel = bind(name, self.encoding, scale=0.6, **options)
        return attend(self.encoding, q, self.at, Keys(k, v, self.keys_at, memo, facts), mask, kernel)

    def slopes(self, out, upstream):
        return torch.autograd.grad(out, self.leaves, upstream, allow_unused=True)


def at_once(encoding, *args):
    return encoding.attend(*args)


def check(actual, expected) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spec", rest_slow(RULES, 2))
def test_a_few_queries_at_a_time_give_what_all_give_at_once(spec, name):
    at, keys_at, mask = CASES[name]
    case = Case(spec, at, keys_at)
    expected, all_weights = case.ask(at_once, mask)
    actual, weights = case.ask(attend_in_rows, mask, "reference" if case.encoding.needs_weights else "auto")
    assert weights is None and all_weights is None, "unused weights would be stored for every block"
    upstream = torch.randn_like(expected)
    check([actual, *case.slopes(actual, upstream)], [expected, *case.slopes(expected, upstream)])
    with torch.no_grad():
        check([case.ask(attend_in_rows, mask)[0]], [expected])


@pytest.mark.parametrize("spec", RULES)
def test_the_weights_come_too_where_they_are_wanted(spec):
    case = Case(spec, Positions.count(11))
    check(*(case.ask(rule, masks.causal(), need_weights=True) for rule in (attend_in_rows, at_once)))


@pytest.mark.parametrize("spec", ["stick_breaking", "stick_breaking + alibi"])
def test_no_more_pairs_are_in_hand_than_were_asked_for(monkeypatch, spec):
    sizes = []
    case = Case(spec, Positions.count(11))
    nearest_first = StickBreaking.nearest_first

    def watch(self, q, at, keys, *rest):
        sizes.append((q.shape[2], keys.k.shape[2]))
        return nearest_first(self, q, at, keys, *rest)

    monkeypatch.setattr(StickBreaking, "nearest_first", watch)
    case.ask(attend_in_rows, masks.causal(), "reference")
    assert sizes == [(3, 3), (3, 6), (3, 9), (2, 11)], "queries, and the keys up to the last query"
    sizes.clear()
    case.ask(attend_in_rows, masks.causal(), need_weights=True)
    assert sizes == [(3, 11)] * 3 + [(2, 11)], "weights are as wide as the keys"


@pytest.mark.parametrize(("spec", "sizes"), [("path", [5, 5, 1]), ("path + forgetting", [5, 5, 1])])
def test_queries_for_which_all_keys_are_gone_through_come_together(monkeypatch, spec, sizes):
    monkeypatch.setattr(PaTH, "queries_together", 5)
    rows, path_loss = [], PaTH.path_loss

    def watch(self, q, *rest):
        rows.append(q.shape[2])
        return path_loss(self, q, *rest)

    monkeypatch.setattr(PaTH, "path_loss", watch)
    case = Case(spec, Positions.count(11))
    with torch.no_grad():
        case.ask(attend_in_rows, masks.causal())
    assert rows == sizes


def test_training_holds_the_numbers_of_all_pairs_of_no_block(monkeypatch):
    logits, path_loss = [], PaTH.path_loss

    def watch(self, *args):
        loss = path_loss(self, *args)
        logits.append(weakref.ref(loss.untyped_storage()))
        return loss

    monkeypatch.setattr(PaTH, "path_loss", watch)
    case = Case("path", Positions.count(11))
    out, _ = case.ask(attend_in_rows, masks.causal())
    assert out.requires_grad and len(logits) > 1 and not any(storage() for storage in logits)


@pytest.mark.parametrize("spec", ["alibi", "shaw", "alibi + shaw"])
def test_an_encoding_that_reads_no_pairs_and_needs_no_weights_is_asked_once(monkeypatch, spec):
    case = Case(spec, Positions.count(11))
    assert not case.encoding.queries_together
    calls = []
    attend = type(case.encoding).attend
    monkeypatch.setattr(type(case.encoding), "attend", lambda self, *args: calls.append(1) or attend(self, *args))
    case.ask(attend_in_rows, masks.causal())
    assert calls == [1]


def test_dropout_is_the_same_on_the_way_back():
    case = Case("stick_breaking", Positions.count(11))
    torch.manual_seed(0)
    out, _ = case.ask(attend_in_rows, masks.causal(), dropout=0.4)
    upstream = torch.randn_like(out)
    v = case.inputs[2]
    (slope,) = torch.autograd.grad(out, v, upstream)
    # The output is linear in the values, for the weights that were not dropped.
    torch.testing.assert_close((slope * v).sum(), (out * upstream).sum())


def test_gradients_are_those_of_the_parameters_that_were_used():
    case = Case("shaw", Positions.count(11))
    parameters = {name: p.detach().clone().requires_grad_() for name, p in case.encoding.named_parameters()}
    case.leaves = [*case.inputs[:3], *parameters.values()]
    with torch.no_grad():
        for parameter in case.encoding.parameters():
            parameter += torch.randn_like(parameter)

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = case.encoding

        def forward(self, attend):
            return case.ask(attend, masks.causal())[0]

    actual, expected = (
        torch.func.functional_call(Wrapper(), {f"encoding.{name}": p for name, p in parameters.items()}, (attend,))
        for attend in (attend_in_rows, at_once)
    )
    upstream = torch.randn_like(expected)
    check([actual, *case.slopes(actual, upstream)], [expected, *case.slopes(expected, upstream)])
