"""Content biases in blocks have the values and gradients of the whole matrix, in float64."""

import itertools
import math
from functools import cached_property

import pytest
import torch
from tiers import rest_slow

from posenc import masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.biases import total
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import dot_products, index_grids, look_up
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu import blocked
from posenc.kernels.cpu.bias_in_blocks import Block
from posenc.kernels.cpu.biases import BiasGradient
from posenc.kernels.cpu.biases.products import Columns
from posenc.tokens.positions import Positions

SHAPE = Shape(dim=10, heads=3, head_dim=4, max_len=64)
CAUSAL, BIDIRECTIONAL, WINDOW = masks.causal(), masks.bidirectional(), masks.window(6)
NEARBY = masks.window(4, causal=False)

PRODUCTS, LEVELS, PAIRS, DISTANCES = "products in a row", "levels in a row", "pairs", "distances in a row"
FACTORS, COUNTS = "factored", "counts in a row"
WAYS = {
    "shaw(values=False, max_distance=3)": (PRODUCTS,),
    "shaw(values=False, max_distance=3, mutual=True)": (PAIRS,),
    "transformer_xl": (PRODUCTS, PRODUCTS),
    "inkling(max_distance=5, rank=3)": (PRODUCTS,),
    "deberta(buckets=6, max_distance=9)": (PRODUCTS, PRODUCTS),
    "tupe": (FACTORS,),
    "forgetting": (LEVELS,),
    "fire(length=5)": (PAIRS,),
    "contextual(positions=4)": (COUNTS,),
    "fire + tupe": (FACTORS, DISTANCES),
    "transformer_xl(max_distance=2) + forgetting + alibi": (PRODUCTS, PRODUCTS, LEVELS, DISTANCES),
    "on(deberta(buckets=6, max_distance=9), heads=(0, 2)) + on(alibi, heads=(2, 1))": (PRODUCTS, PRODUCTS, DISTANCES),
    "inkling(max_distance=40, rank=3)": (PRODUCTS,),
    "transformer_xl(max_distance=4.5, layout=interleaved)": (PRODUCTS, PRODUCTS),
    "deberta(buckets=6, max_distance=9, terms=position_to_content)": (PRODUCTS,),
    "deberta(buckets=6, max_distance=9, mirror=False)": (PRODUCTS, PRODUCTS),
    "on(tupe, heads=(0, 2))": (FACTORS,),
    "on(shaw(values=False), heads=(0, 2))": (PRODUCTS,),
    "on(transformer_xl, heads=(1,)) + forgetting": (PRODUCTS, PRODUCTS, LEVELS),
}
"""Evaluation of each spec for contiguous tokens; the first twelve differ most."""


@pytest.fixture(autouse=True)
def small_sizes():
    """Lower two limits, so that tests have far keys and few queries at a time."""
    with SIZES.set_to(far=1, pairs_of_content=250):
        yield


def encoding_for(spec: str) -> Encoding:
    torch.manual_seed(3)
    encoding = build(spec, SHAPE).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return encoding


class Case:
    """Queries and keys of an encoding, with their memo; every leaf requires a gradient."""

    def __init__(self, spec: str, at: Positions, keys_at: Positions, batch: int = 2, kv_heads: int = 3) -> None:
        self.encoding, self.at, self.keys_at = encoding_for(spec), at, keys_at
        torch.manual_seed(5)
        H, D = SHAPE.heads, SHAPE.head_dim

        def leaf(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

        self.q, self.k = leaf(batch, H, at.tokens, D), leaf(batch, kv_heads, keys_at.tokens, D)
        self.x, self.y = leaf(batch, at.tokens, SHAPE.dim), leaf(batch, keys_at.tokens, SHAPE.dim)
        self.leaves = [self.q, self.k, self.x, self.y, *self.encoding.parameters()]

    def keys(self) -> Keys:
        facts = self.encoding.remember(self.x, self.at)
        memo = self.encoding.remember(self.y, self.keys_at)
        return Keys(self.k, self.k, self.keys_at, memo, facts)

    def dense(self) -> torch.Tensor:
        bias = total(self.encoding.biases(self.q, self.at, self.keys()), torch.float64)
        assert bias is not None
        return bias.expand(len(self.q), SHAPE.heads, self.at.tokens, self.keys_at.tokens)

    @cached_property
    def whole(self) -> torch.Tensor:
        with torch.no_grad():
            return self.dense()

    def in_blocks(self, mask):
        """Return the bias in blocks, and the plan of blocks."""
        keys = self.keys()
        return blocked.plan_biases(self.encoding.biases(self.q, self.at, keys), self.q, self.at, keys, mask)


def blocks_of(plan, rows: int, by_row: bool = False):
    """Yield a plan's blocks of `rows` queries, split by rows of the batch if `by_row`."""
    for block in plan.blocks(rows):
        step = 1 if by_row else block.batch.stop - block.batch.start
        for first in range(block.batch.start, block.batch.stop, step):
            yield block._replace(batch=slice(first, first + step))


def flip_rows(x: torch.Tensor) -> torch.Tensor:
    return x.flip(2)


CONTIGUOUS = {
    "itself": (Positions.count(13), Positions.count(13), (CAUSAL, BIDIRECTIONAL, WINDOW, NEARBY)),
    "a short last block": (Positions.count(18), Positions.count(18), (CAUSAL,)),
    "behind a cache": (Positions.count(5, 12), Positions.count(17), (CAUSAL, WINDOW)),
    "before the last keys": (Positions.count(5, 3), Positions.count(19), (CAUSAL, BIDIRECTIONAL)),
    "one query": (Positions.count(1, 5), Positions.count(6), (CAUSAL,)),
    "few keys": (Positions.count(9), Positions.count(4), (BIDIRECTIONAL,)),
    "keys of a later start": (Positions.count(9, 4), Positions.count(8, 6), (CAUSAL, WINDOW)),
}


def scattered_cases():
    torch.manual_seed(11)
    padded = Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1, 1, 0]]))
    yield "padding", padded, padded
    packed = Positions.packed([4, 1, 5])
    yield "packing", packed, packed
    yield "fractional", Positions.of(torch.rand(2, 8) * 9), Positions.of(torch.rand(2, 11) * 9)
    permuted_at = Positions.of(torch.randperm(9))
    yield "one place for all rows of queries", Positions.of(torch.rand(8) * 9), Positions.of(torch.rand(2, 11) * 9)
    yield "shuffled", permuted_at, permuted_at


def values_of(bias, plan, case: Case, rows: int, in_parts: bool, by_row: bool = False) -> torch.Tensor:
    out = torch.full((len(case.q), SHAPE.heads, case.at.tokens, case.keys_at.tokens), math.nan, dtype=torch.float64)
    for block in blocks_of(plan, rows, by_row):
        if not in_parts:
            for first in range(block.keys.start, block.keys.stop, 5):
                keys = slice(first, min(first + 5, block.keys.stop))
                values = bias.block(block._replace(keys=keys))
                there = out[block.batch, :, block.rows, keys]
                there.copy_(flip_rows(values.expand(there.shape)))
            continue
        stop = block.keys.start
        for part in bias.parts(block):
            assert part.keys.start == stop and part.keys.stop > stop, "each part must begin where the last one ended"
            stop = part.keys.stop
            values = out.new_zeros(out[block.batch, :, block.rows, part.keys].shape)
            values += 0 if part.bias is None else part.bias
            values += 0 if part.shift is None else part.shift[..., None]
            out[block.batch, :, block.rows, part.keys] = flip_rows(values)
        assert stop == block.keys.stop, "the parts must hold every key"
    return out


def same_values(actual: torch.Tensor, case: Case, mask, masked: bool) -> None:
    visible = mask.allowed(case.at, case.keys_at).expand(actual.shape)
    assert not bool(actual[visible].isnan().any()), "every visible key must be in a block"
    # The softmax ignores a term that all keys of a head share.
    difference = (actual - case.whole).where(visible, torch.nan).flatten(2)
    offset = difference.nanmedian(-1, keepdim=True).values.nanmean(0)
    assert float((difference - offset).abs().nan_to_num().max()) < 1e-11
    if masked:
        in_block = ~actual.isnan()
        assert bool((actual[in_block & ~visible] == -math.inf).all()), "masked keys must be -inf"


def slopes_of(case: Case, outputs, upstreams) -> list[torch.Tensor]:
    slopes = torch.autograd.grad(outputs, case.leaves, upstreams, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, case.leaves, strict=True)]


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with as many zeros after each row as there are rows."""
    return torch.nn.functional.pad(x, (0, x.shape[2]))[..., : x.shape[3]]


def same_gradients(case: Case, mask, rows: int, by_row: bool = False) -> None:
    torch.manual_seed(7)
    dense, visible = case.dense(), mask.allowed(case.at, case.keys_at)
    upstream = torch.randn_like(dense).masked_fill(~visible, 0.0)
    expected = slopes_of(case, [dense], [upstream])
    bias, plan = case.in_blocks(mask)
    gradient = BiasGradient(bias)
    for block in blocks_of(plan, rows, by_row):
        # A kernel's backward pass adds a few keys at a time, wherever the forward pass cut its blocks.
        for first in range(block.keys.start, block.keys.stop, 5):
            keys = slice(first, min(first + 5, block.keys.stop))
            piece = pad_rows(flip_rows(upstream[block.batch, :, block.rows, keys]))
            with torch.no_grad():
                gradient.add(block._replace(keys=keys), piece)
            piece.fill_(math.nan)
    ends = [(i, t) for i, t in zip(bias.inputs, gradient.total(), strict=True) if t is not None and i.requires_grad]
    assert all(i.shape == t.shape and i.dtype == t.dtype for i, t in ends)
    actual = slopes_of(case, [i for i, _ in ends], [t for _, t in ends])
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", rest_slow(WAYS, 12))
def test_blocks_of_tokens_in_a_row_are_those_of_the_matrix(spec):
    for name, (at, keys_at, rules) in CONTIGUOUS.items():
        case = Case(spec, at, keys_at)
        for mask in rules:
            bias, plan = case.in_blocks(mask)
            expected = WAYS[spec] if mask.causal else tuple(PAIRS if way == LEVELS else way for way in WAYS[spec])
            assert sorted(bias.names) == sorted(expected), f"{spec}, {name}: {bias.names}"
            assert bias.hides_masked
            with torch.no_grad():
                for in_parts in (False, True):
                    same_values(values_of(bias, plan, case, 4, in_parts), case, mask, True)


@pytest.mark.parametrize("spec", rest_slow(WAYS, 12))
def test_gradients_of_tokens_in_a_row_are_those_of_the_matrix(spec):
    for name in ("itself", "behind a cache"):
        at, keys_at, rules = CONTIGUOUS[name]
        for mask in rules[:2]:
            same_gradients(Case(spec, at, keys_at), mask, rows=4)


@pytest.mark.parametrize("spec", rest_slow(WAYS, 12))
def test_padding_packing_and_odd_positions_are_evaluated_on_each_block(spec):
    for number, (_, at, keys_at) in enumerate(scattered_cases(), len(spec)):
        case = Case(spec, at, keys_at)
        bias, plan = case.in_blocks(CAUSAL)
        assert set(bias.names) <= {PAIRS, FACTORS, DISTANCES, "distances looked up"}
        with torch.no_grad():
            same_values(values_of(bias, plan, case, 4, True, by_row=True), case, CAUSAL, False)
        same_gradients(case, CAUSAL, rows=4, by_row=number % 2 == 0)


@pytest.mark.parametrize("spec", [spec for spec in WAYS if "+" not in spec and "on(" not in spec])
def test_rows_of_a_batch_and_shared_key_heads_may_go_one_by_one(spec):
    case = Case(spec, Positions.count(9), Positions.count(9), batch=3, kv_heads=1)
    bias, plan = case.in_blocks(CAUSAL)
    with torch.no_grad():
        same_values(values_of(bias, plan, case, 4, True, by_row=True), case, CAUSAL, True)
    same_gradients(case, CAUSAL, rows=4, by_row=True)


@pytest.mark.parametrize("spec", ["forgetting", "fire(length=5)", "shaw(values=False, max_distance=3, mutual=True)"])
def test_gradients_go_to_the_parameters_that_were_used_whatever_stands_there_now(spec):
    case = Case(spec, Positions.count(7), Positions.count(7))
    parameters = {name: p.detach().clone().requires_grad_() for name, p in case.encoding.named_parameters()}
    case.leaves = [case.q, case.k, *parameters.values()]

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = case.encoding

        def forward(self, ask):
            return ask()

    def ask(call):
        return torch.func.functional_call(Wrapper(), {f"encoding.{name}": p for name, p in parameters.items()}, (call,))

    with torch.no_grad():
        for parameter in case.encoding.parameters():
            parameter += torch.randn_like(parameter)
    visible = CAUSAL.allowed(case.at, case.keys_at)
    dense = ask(case.dense)
    upstream = torch.randn_like(dense).masked_fill(~visible, 0.0)
    expected = slopes_of(case, [dense], [upstream])
    bias, plan = ask(lambda: case.in_blocks(CAUSAL))
    gradient = BiasGradient(bias)
    for block in plan.blocks(3):
        with torch.no_grad():
            gradient.add(block, flip_rows(upstream[block.batch, :, block.rows, block.keys]))
    ends = [(i, t) for i, t in zip(bias.inputs, gradient.total(), strict=True) if t is not None and i.requires_grad]
    for left, right in zip(slopes_of(case, [i for i, _ in ends], [t for _, t in ends]), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", [-4.0, 0.0, 3.0, 8.0], ids=["closed", "half", "open", "wide open"])
def test_sums_of_gates_are_as_exact_far_away_as_near(start):
    """Float32 weights are within 2e-6 of float64 weights, for gate sums of 8 or 16,000."""
    T, H = 4096, 2
    torch.manual_seed(1)
    gates = torch.nn.functional.logsigmoid(torch.randn(1, H, T) + start)
    q = torch.zeros(1, H, T, 4)
    encoding = build("forgetting", Shape(dim=8, heads=H, head_dim=4, max_len=T))
    at = Positions.count(T)
    keys = Keys(q, q, at, {"forgetting": gates}, {})
    bias, _ = blocked.plan_biases(encoding.biases(q, at, keys), q, at, keys, CAUSAL)
    assert bias.names == (LEVELS,)
    sums = gates.double().cumsum(-1)
    with torch.no_grad():
        for first in (64, 2048, T - 64):
            rows = slice(first, first + 64)
            logits = torch.cat(
                [
                    (0 if part.bias is None else part.bias.double())
                    + (0 if part.shift is None else part.shift.double()[..., None])
                    for part in bias.parts(Block(slice(0, 1), rows, slice(0, rows.stop)))
                ],
                -1,
            ).flip(2)
            exact = (sums[..., rows, None] - sums[:, :, None, : rows.stop]).masked_fill(logits == -math.inf, -math.inf)
            assert logits.dtype == torch.float64 and float((logits.softmax(-1) - exact.softmax(-1)).abs().max()) < 2e-6
            weighty = exact > -20
            assert float((logits - exact)[weighty].abs().max()) < 4e-6, "logits above -20 must agree"


def test_look_ups_and_products_on_grids_are_those_of_single_pairs():
    torch.manual_seed(4)
    B, H, T, S, C = 2, 3, 4, 5, 6
    b, h, i, j = index_grids(torch.zeros(B, H, T, S))
    of_queries, of_keys = torch.randn(B, H, T, C), torch.randn(B, H, S, C)
    column = torch.randint(C, (B, 1, T, S))
    cases = [
        lambda *at: look_up(of_queries, *at[:3], column[at[0], 0, at[2], at[3]]),
        lambda *at: look_up(of_keys, at[0], at[1], at[3], column[at[0], 0, at[2], at[3]]),
        lambda *at: look_up(of_queries[0, :, 0], at[1], column[0, 0, at[2], at[3]]),
        lambda *at: dot_products(of_queries, of_keys, *at),
        lambda *at: dot_products(of_queries[:1], of_keys[:, :1], *at),
    ]
    for ask in cases:
        whole = ask(b, h, i, j).expand(B, H, T, S)
        for place in itertools.product(range(B), range(H), range(T), range(S)):
            alone = ask(*(torch.tensor(n) for n in place))
            torch.testing.assert_close(whole[place], alone)


def test_values_of_few_pairs_are_not_computed_again_in_the_backward_pass(monkeypatch):
    case = Case("deberta(buckets=6, max_distance=9)", Positions.count(14), Positions.count(14))
    biases, args = case.encoding.biases(case.q, case.at, case.keys()), (case.q, case.at, case.keys(), BIDIRECTIONAL)
    with SIZES.set_to(far=99):
        out, _ = blocked.attend(biases, *args, scale=0.5, dropout=0.0, need_weights=False)
    monkeypatch.setattr(Columns, "block", None)
    assert slopes_of(case, [out], [torch.ones_like(out)])
