"""Blocked attention has the readable kernel's values and gradients in float64, at all positions."""

import copy
import math
import sys
from contextlib import nullcontext

import pytest
import torch
from largest import LargestTensor
from tiers import rest_slow
from torch.utils._python_dispatch import TorchDispatchMode

from posenc import ALiBi, Attention, Kerple, LogGridBias, NoPE, Sandwich, Shaw, T5Bias, kernels, masks
from posenc.encoding.base import Encoding
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu import blocked, plan
from posenc.kernels.cpu.biases.distances import anti_diagonals, run_length
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

HEADS, WIDTH = 4, 6


def learned(encoding: Encoding) -> Encoding:
    torch.manual_seed(1)
    for parameter in encoding.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 1.0)
    return encoding.double()


ENCODINGS = {
    "none": NoPE(),
    "alibi": ALiBi(HEADS, learned=True),
    "t5": T5Bias(HEADS, buckets=8, max_distance=20, causal=False),
    "sum": ALiBi(HEADS) + Kerple(HEADS),
    "shaw": Shaw(WIDTH, max_distance=5, values=False),
    "fixed": Sandwich(HEADS, width=8),
}


def padding(*rows: tuple[int, int]) -> torch.Tensor:
    return torch.tensor([[1] * 41]).repeat(len(rows), 1).scatter(1, torch.tensor(rows), 0)


def shuffled_positions() -> Positions:
    at = Positions.count(41)
    there = torch.stack((torch.randperm(41, generator=torch.Generator().manual_seed(2)), torch.arange(41)))
    return Positions(at.coords[0][there], at.order[0][there])


LEFT_PADDING = torch.ones(2, 41).masked_fill(torch.arange(41) < torch.tensor([[17], [0]]), 0)
PLACES = {
    "counted": Positions.count(41),
    "later": Positions.count(41, start=7),
    "given as ids": Positions.of(torch.arange(3, 44)),
    "moved": Positions.count(41).with_coords(Positions.count(41).coords + 5),
    "padded left": Positions.padded(LEFT_PADDING),
    "padded right": Positions.padded(LEFT_PADDING.flip(1)),
    "padded inside": Positions.padded(padding((3, 20), (0, 33))),
    "nothing but padding": Positions.padded(LEFT_PADDING * torch.tensor([[0], [1]])),
    "packed": Positions.packed([11, 1, 22, 7]),
    "documents that return": Positions(
        Positions.count(41).coords, Positions.count(41).order, torch.tensor([[0] * 9 + [1] * 20 + [0] * 12])
    ),
    "shuffled": shuffled_positions(),
    "fractional": Positions.of(torch.linspace(-3, 17, 41, dtype=torch.float64)),
    "far apart": Positions.of(torch.arange(41) ** 3),
}
RULES = {
    "causal": masks.causal(),
    "both ways": masks.bidirectional(),
    "window": masks.window(6),
    "window both ways": masks.window(6, causal=False),
    "prefix": masks.prefix(13),
    "prefix and window": Mask(causal=True, prefix=13, window=9),
}
BLOCK_SIZES = {
    "whole": {"pairs_of_a_grid": 0},
    "small": {
        "rows": 7,
        "rows_backwards": 5,
        "pairs": 400,
        "pairs_backwards": 150,
        "narrowest": 3,
        "pairs_of_a_mask": 0,
        "pairs_of_a_grid": 0,
    },
}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch):
    """Return a function that limits the sizes of blocks, so that few tokens fill many blocks."""

    def set_to(size: str) -> None:
        for name, value in BLOCK_SIZES[size].items():
            monkeypatch.setattr(SIZES, name, value)

    return set_to


def heads(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def both_kernels(encoding, at, keys_at, mask, *, kv_heads: int = 2, width: int = WIDTH, kernel: str = "blocked"):
    """Return the outputs and gradients of the readable and another kernel, for the same inputs."""
    torch.manual_seed(0)
    q, k, v = heads(2, HEADS, at.tokens, WIDTH), *(heads(2, kv_heads, keys_at.tokens, w) for w in (WIDTH, width))
    upstream, results = heads(2, HEADS, at.tokens, width), []
    bias = mask.tensor if mask.tensor is not None and mask.tensor.requires_grad else None
    for name in ("reference", kernel):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out, _ = kernels.bind(name, encoding, scale=0.4)(encoding, leaves[0], at, Keys(*leaves[1:], keys_at), mask)
        inputs = [*leaves, *encoding.parameters(), *([] if bias is None else [bias])]
        slopes = torch.autograd.grad(out, inputs, upstream, allow_unused=True)
        zero = [torch.zeros_like(leaf) for leaf in inputs]
        results.append([out, *(z if slope is None else slope for z, slope in zip(zero, slopes, strict=True))])
    return results


def check(results, case: str = "", tolerance: float = 1e-9) -> None:
    for index, (expected, actual) in enumerate(zip(*results, strict=True)):
        message = f"{case}, {'output' if not index else f'gradient {index}'}"
        torch.testing.assert_close(
            actual, expected, rtol=tolerance, atol=tolerance, msg=lambda m, message=message: f"{message}: {m}"
        )


EVERYWHERE = [(name, "small", place) for name in ENCODINGS for place in PLACES]
EVERYWHERE += [(name, "whole", place) for name in ("t5", "shaw") for place in PLACES]


def compare_at(name: str, size: str, place: str, rules: list[str], sizes) -> None:
    sizes(size)
    encoding, at = learned(ENCODINGS[name]), PLACES[place]
    for rule in rules:
        check(both_kernels(encoding, at, at, RULES[rule]), rule)


@pytest.mark.parametrize(("number", "case"), list(enumerate(EVERYWHERE)), ids=str)
def test_it_is_right_wherever_tokens_stand(number: int, case: tuple[str, str, str], sizes) -> None:
    # Each case takes one of the six rules: over 8 times 13 cases, each rule meets every layout and every encoding.
    compare_at(*case, [list(RULES)[number % 6]], sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "case"), list(enumerate(EVERYWHERE)), ids=str)
def test_it_is_right_wherever_tokens_stand_by_the_other_rules(number: int, case: tuple[str, str, str], sizes) -> None:
    compare_at(*case, [rule for place, rule in enumerate(RULES) if place != number % 6], sizes)


@pytest.mark.parametrize("name", rest_slow(["none", "t5", "shaw"], 2))
def test_queries_may_stand_elsewhere_than_keys(name: str, sizes) -> None:
    sizes("small")
    encoding, turn = learned(ENCODINGS[name]), int(name == "t5")
    packed = Positions.packed([11, 1, 22, 7])
    pairs = [
        (Positions.count(9, start=30), Positions.count(39)),  # a chunk behind a cache
        (Positions.count(9, start=3), Positions.count(41, start=20)),  # some queries see no key
        (Positions.count(30), Positions.count(8, start=25)),
        (packed.rows(slice(20, 41)), packed),
        (PLACES["padded left"].rows(slice(30, 41)), PLACES["padded left"]),
        (Positions.of(torch.arange(100, 109)), Positions.count(30)),
        (Positions.count(9).with_coords(Positions.count(9).coords + 4), Positions.count(30)),
        (Positions.count(24, start=17), PLACES["padded left"]),  # all rows share the queries, not the keys
        (Positions.of(torch.arange(9.0) + 20.5), Positions.of(torch.arange(30.0))),  # steps of one, but not counted
    ]
    for number, (at, keys_at) in enumerate(pairs, turn):
        for rule in list(RULES)[number % 2 :: 2]:
            check(both_kernels(encoding, at, keys_at, RULES[rule]), rule)


@pytest.mark.parametrize("name", rest_slow(["alibi", "shaw", "none"], 2))
@pytest.mark.parametrize("place", rest_slow(["padded inside", "packed", "counted"], 1))
def test_given_masks_count_and_learn(name: str, place: str, sizes) -> None:
    sizes("small")
    torch.manual_seed(4)
    encoding, at = learned(ENCODINGS[name]), PLACES[place]
    visible = torch.rand(2, 1, 41, 41) < 0.5
    visible[0, :, 5:9] = False
    bias = torch.randn(1, HEADS, 41, 41).double()
    masks_given = (
        visible,
        visible[0, 0],
        torch.where(visible, bias, -math.inf),
        bias[:, :, :1].clone().requires_grad_(),
        bias[0, 0, :, :1].clone().requires_grad_(),
        bias.clone().requires_grad_(),
    )
    for number, tensor in enumerate(masks_given, len(name) + len(place)):
        rule = Mask(causal=True, window=9, tensor=tensor) if number % 2 else Mask(tensor=tensor)
        check(both_kernels(encoding, at, at, rule), str(list(tensor.shape)))


def test_no_weight_of_the_backward_pass_is_too_small_for_a_normal_number(monkeypatch) -> None:
    powers: list[torch.Tensor] = []
    exp2_ = torch.Tensor.exp2_
    monkeypatch.setattr(torch.Tensor, "exp2_", lambda x: powers.append(exp2_(x).clone()) or x)
    at = Positions.count(600)
    q, k = (torch.randn(1, HEADS, 600, WIDTH, requires_grad=True) for _ in range(2))
    encoding = ALiBi(HEADS)
    kernels.bind("blocked", encoding, scale=1.0)(encoding, q, at, Keys(k, k, at), masks.causal())[0].sum().backward()
    least = torch.cat([weights.flatten() for weights in powers])
    assert 0 < least[least > 0].min() < 1e-20 and least[least > 0].min() > 1e-25 and bool((least == 0).any())


def cells(*places: tuple[int, ...]) -> Positions:
    return Positions.of(torch.tensor(places)[None])


CELLS = {
    "grid": Positions.grid(4, 5),
    "one column": Positions.grid(20, 1),
    "three axes": Positions.grid(2, 3, 4),
    "with gaps": cells((0, 0), (0, 1), (0, 3), (2, 1), (2, 2), (5, 5)),
    "rows of their own": Positions(
        torch.stack((Positions.grid(3, 4).coords[0], Positions.grid(4, 3).coords[0])), torch.arange(12).expand(2, 12)
    ),
}


@pytest.mark.parametrize("rule", ["both ways", "causal", "window both ways"])
@pytest.mark.parametrize("size", rest_slow(["small", "whole"], 1))
@pytest.mark.parametrize("place", CELLS)
def test_a_grid_has_a_bias_of_all_axes(place: str, size: str, rule: str, sizes) -> None:
    sizes(size)
    at = CELLS[place]
    encoding = learned(LogGridBias(HEADS, window=5, axes=at.axes))
    q = heads(2, HEADS, at.tokens, WIDTH)
    expected = ("blocked", "distances looked up")
    assert kernels.served_by(encoding, q, at, Keys(q, q, at), RULES[rule]) == expected
    check(both_kernels(encoding, at, at, RULES[rule]))


@pytest.mark.parametrize(
    ("numbers", "run"),
    [(range(5), 5), (range(128), 64), (range(67), 1), ([0, 1, 5, 6, 9, 10], 2), ([0, 1, 2, 9], 1), ([3, 3], 1)],
    ids=str,
)
def test_runs_of_keys_are_as_long_as_divides_all(numbers, run: int) -> None:
    assert run_length(torch.tensor([list(numbers)])) == run


def test_queries_of_one_grid_meet_keys_of_another() -> None:
    check(both_kernels(learned(LogGridBias(HEADS)), Positions.grid(3, 2), Positions.grid(4, 6), masks.bidirectional()))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("width", [3, 6, 9])
def test_heads_may_be_shared_and_values_of_another_width(kv_heads: int, width: int, sizes) -> None:
    sizes("small")
    at = Positions.count(41)
    check(both_kernels(learned(ENCODINGS["alibi"]), at, at, masks.causal(), kv_heads=kv_heads, width=width))


def test_any_strides_will_do() -> None:
    at, encoding = Positions.count(41), ALiBi(HEADS)
    q, k, v = (heads(41, WIDTH, HEADS, 2).permute(3, 2, 0, 1) for _ in range(3))
    expected, actual = (
        kernels.bind(name, encoding, scale=1.0)(encoding, q, at, Keys(k, v, at), masks.causal())[0]
        for name in ("reference", "blocked")
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["alibi", "t5", "shaw"])
def test_lower_precision_is_off_by_rounding_only(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    at, encoding = Positions.count(300), learned(ENCODINGS[name])
    q, k, v, upstream = (heads(1, HEADS, 300, 8 if name != "shaw" else WIDTH).to(dtype) for _ in range(4))
    results = []
    for cast in (torch.float64, dtype):
        leaves = [x.to(cast).requires_grad_() for x in (q, k, v)]
        encoding = encoding.to(cast if name == "shaw" else torch.float64)
        kernel = "reference" if cast == torch.float64 else "blocked"
        out, _ = kernels.bind(kernel, encoding, scale=0.4)(
            encoding, leaves[0], at, Keys(*leaves[1:], at), masks.causal()
        )
        assert out.dtype == cast
        results.append([out, *torch.autograd.grad(out, leaves, upstream.to(cast))])
    for expected, actual in zip(*results, strict=True):
        error = (actual.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("encoding", rest_slow([ALiBi(2), T5Bias(2, std=1.0), Sandwich(2)], 2), ids=str)
def test_float32_stays_within_two_millionths(encoding: Encoding) -> None:
    torch.manual_seed(0)
    T = 1500
    at = Positions.count(T)
    q, k, v = (torch.randn(1, 2, T, 64) for _ in range(3))
    out, _ = kernels.bind("blocked", encoding, scale=0.125)(encoding, q, at, Keys(k, v, at), masks.causal())
    q, k, v = q.double(), k.double(), v.double()
    exact, _ = kernels.bind("reference", encoding, scale=0.125)(encoding, q, at, Keys(k, v, at), masks.causal())
    assert (out - exact).abs().max() < 2e-6


@pytest.mark.parametrize("place", ["counted", "padded inside"])
@pytest.mark.parametrize("name", ["none", "alibi", "t5", "shaw", "fixed"])
def test_gradients_in_float32_stay_within_three_millionths(name: str, place: str, sizes) -> None:
    sizes("small")
    torch.manual_seed(0)
    encoding, at = learned(ENCODINGS[name]).double(), PLACES[place]
    q, k, v, upstream = (heads(2, HEADS, at.tokens, WIDTH).float() for _ in range(4))
    gradients = []
    for dtype in (torch.float64, torch.float32):
        # Both copies are rounded to float32 first, so that their parameters are equal.
        twin = copy.deepcopy(encoding).float().to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        kernel = "reference" if dtype == torch.float64 else "blocked"
        out, _ = kernels.bind(kernel, twin, scale=0.4)(twin, leaves[0], at, Keys(*leaves[1:], at), masks.window(30))
        gradients.append(torch.autograd.grad(out, [*leaves, *twin.parameters()], upstream.to(dtype)))
    for number, (expected, actual) in enumerate(zip(*gradients, strict=True)):
        error = float((actual.double() - expected).norm() / expected.norm())
        assert error < 3e-6, f"gradient {number} is off by {error:.2g}"


# Planned blocks


@pytest.mark.parametrize("narrow", [False, True])
def test_a_bias_that_many_rows_share_has_its_gradient_in_bfloat16(narrow: bool, monkeypatch) -> None:
    if narrow:  # keys of a block come in several pieces
        monkeypatch.setattr(SIZES, "pairs_backwards", 1)
        monkeypatch.setattr(SIZES, "narrowest", 64)
    gradients = {}
    x = torch.randn(1, 300, 32, generator=torch.Generator().manual_seed(1)) + 3.0
    slopes = torch.randn(1, 300, 32, generator=torch.Generator().manual_seed(2))
    for kernel, dtype in (("reference", torch.float64), ("blocked", torch.bfloat16)):
        torch.manual_seed(0)
        layer = Attention(32, 2, encoding="mlp_bias", kernel=kernel).to(dtype)
        (layer(x.to(dtype), mask="causal").double() * slopes).sum().backward()
        gradients[kernel] = [p.grad.double() for p in layer.encoding.parameters()]
    for expected, actual in zip(gradients["reference"], gradients["blocked"], strict=True):
        # A term that all logits share has a gradient of 0, so that its error is rounding.
        if expected.norm() > 1e-9:
            assert (actual - expected).norm() < 0.04 * expected.norm()


def pairs(at: Positions, mask: Mask, places: bool = True) -> tuple[int, int]:
    """Return the number of pairs in the blocks, and of visible pairs."""
    work = plan.plan_for(at, at, mask, len(at.order), HEADS, by_coords=places)
    return sum(math.prod(block.size) for block in work.blocks(8)), int(mask.allowed(at, at).sum())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_every_pair_that_sees_is_in_one_block(place: str, rule: str) -> None:
    at, mask = PLACES[place], RULES[rule]
    for places in (True, False):
        work = plan.plan_for(at, at, mask, 2, HEADS, by_coords=places)
        counts, visible = torch.zeros(2, 41, 41, dtype=torch.long), mask.allowed(at, at)[:, 0].expand(2, -1, -1)
        for block in work.blocks(7):
            counts[block] += 1
            if work.runs is not None and not mask.prefix:
                assert work.open(block) == bool(visible[block].all())
        assert counts.max() <= 1
        assert counts[visible].all()


def test_what_nobody_sees_is_left_out() -> None:
    causal, full = masks.causal(), masks.bidirectional()
    assert pairs(Positions.count(64), causal) == (64 * 36, 64 * 65 // 2)
    assert pairs(Positions.count(64), masks.window(8))[0] == 8 * 8 + 7 * 8 * 15
    assert pairs(Positions.packed([16] * 4), full) == (4 * 256, 4 * 256)
    assert pairs(Positions.padded(torch.ones(1, 64).index_fill(1, torch.arange(48), 0)), full) == (256, 256)
    # Documents of one token each do not pay for a call of their own.
    assert plan.plan_for(Positions.packed([1] * 9), Positions.packed([1] * 9), full, 1, 1, by_coords=True).runs is None


@pytest.mark.parametrize("name", rest_slow(["alibi", "shaw", "t5", "none"], 2))
def test_no_tensor_grows_with_the_square_of_the_tokens(name: str, sizes) -> None:
    sizes("small")
    encoding, largest = learned(ENCODINGS[name]), []
    for T in (80, 160):
        at = Positions.count(T)
        leaves = [heads(1, HEADS, T, WIDTH).requires_grad_() for _ in range(3)]
        with LargestTensor() as meter:
            out, _ = kernels.bind("blocked", encoding, scale=1.0)(
                encoding, leaves[0], at, Keys(*leaves[1:], at), masks.window(20)
            )
            torch.autograd.grad(out.sum(), [*leaves, *encoding.parameters()])
        largest.append(meter.size)
    assert largest[1] <= (6 if name == "shaw" else 4) * leaves[0].nbytes and largest[1] <= 2.1 * largest[0]


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("counted", "distances in a row"),
        ("packed", "distances in a row"),
        ("padded left", "distances in a row"),
        ("padded inside", "distances looked up"),
        ("shuffled", "distances looked up"),
        ("fractional", "pairs"),
        ("far apart", "pairs"),
    ],
)
def test_a_vector_is_enough_wherever_distances_are_whole_and_few(place: str, kind: str) -> None:
    at, encoding, q = PLACES[place], ALiBi(HEADS), heads(2, HEADS, 41, WIDTH)
    with SIZES.set_to(pairs_of_a_grid=0):
        assert kernels.served_by(encoding, q, at, Keys(q, q, at), masks.causal()) == ("blocked", kind)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3), (4, 4)])
def test_anti_diagonals_are_summed(n: int, m: int) -> None:
    x = torch.zeros(2, 3, n, m + n, dtype=torch.float64)[..., :m]
    x.copy_(heads(2, 3, n, m))
    expected = torch.zeros(2, 3, n + m - 1, dtype=torch.float64)
    for r in range(n):
        for j in range(m):
            expected[:, :, r + j] += x[:, :, r, j]
    torch.testing.assert_close(anti_diagonals(x), expected)


# Use by layers


def test_attention_over_some_keys_each_is_merged_into_attention_over_all() -> None:
    logits, values = torch.randn(2, 3, 4, 9, dtype=torch.float64), torch.randn(2, 3, 9, 5, dtype=torch.float64)
    logits[0, 0, 1, :5] = -math.inf  # this query sees none of the first keys
    logits[1, 1, 2] = -math.inf  # this query sees no key at all
    parts = []
    for span in (slice(0, 5), slice(5, 7), slice(7, 9)):
        part = logits[..., span].softmax(-1).nan_to_num() @ values[:, :, span]
        parts.append((part, logits[..., span].logsumexp(-1)))
    out, sums = blocked.merge_parts(parts)
    torch.testing.assert_close(out, logits.softmax(-1).nan_to_num() @ values, rtol=0, atol=1e-14)
    total = logits.exp().sum(-1)
    torch.testing.assert_close(sums, total.log(), rtol=0, atol=1e-14)  # without keys: -inf


def test_a_graph_may_be_gone_through_twice() -> None:
    attention = Attention(12, 4, encoding="t5_bias(std=1.0)", kernel="blocked", causal=True).double()
    x = heads(1, 9, 12)
    out = attention(x, mask=masks.causal()).sum()
    table = attention.encoding.table
    once = torch.autograd.grad(out, table, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(out, table)[0], once, rtol=0, atol=0)


def test_what_was_changed_in_between_is_noticed() -> None:
    q, k, v = (torch.randn(1, 4, 9, 3, requires_grad=True) * 1 for _ in range(3))
    at, encoding = Positions.count(9), ALiBi(4, learned=True)
    out, _ = kernels.bind("blocked", encoding, scale=1.0)(encoding, q, at, Keys(k, v, at), masks.causal())
    k.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_of_gradients_are_refused() -> None:
    attention, x = Attention(12, 4, encoding="alibi", kernel="blocked"), torch.randn(1, 9, 12, requires_grad=True)
    out = attention(x, mask=masks.causal()).sum()
    with pytest.raises(RuntimeError, match=r"no gradient of its gradient; use kernel='reference'"):
        torch.autograd.grad(out, x, create_graph=True)


def test_autocast_decides_the_dtype_forwards_and_backwards() -> None:
    attention, x = Attention(12, 4, encoding="t5_bias(std=1.0)", kernel="blocked", causal=True), torch.randn(2, 9, 12)
    q = torch.randn(1, 4, 9, 3, requires_grad=True)
    at, encoding = Positions.count(9), attention.encoding
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = kernels.bind("blocked", encoding, scale=1.0)(encoding, q, at, Keys(q, q, at), masks.causal())
        assert out.dtype == torch.bfloat16
        out.float().sum().backward()
        attention(x, mask=masks.causal()).float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"need_weights": True}, "attention in blocks returns no attention weights; use kernel='reference' or 'auto'"),
        ({"dropout": 0.1}, "attention in blocks has no dropout, got 0.1; use kernel='sdpa' or 'auto', or dropout=0"),
        ({"q": torch.empty(1, 1, 1, 1, device="meta")}, "is for the CPU, got queries on 'meta'; use kernel='sdpa'"),
    ],
)
def test_what_it_cannot_do_it_says(options: dict, words: str) -> None:
    assert words in str(kernels.why_not("blocked", NoPE(), **options))
    with pytest.raises(ValueError, match=r"kernel 'blocked' cannot do this: .*attention in blocks"):
        kernels.choose("blocked", NoPE(), **options)
    assert kernels.choose("auto", NoPE(), **options) != "blocked"


@pytest.mark.parametrize("set_before", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_numbers_below_the_normal_ones_are_0_within_a_call_and_as_they_were_behind_it(
    monkeypatch, set_before: bool, fails: bool
) -> None:
    if not torch.set_flush_denormal(set_before):
        pytest.skip("this processor cannot flush denormal numbers")

    def are_0() -> bool:
        return sys.float_info.min / 2 == 0.0

    flags, original = [], blocked.fused_block

    def watch(*args, **options):
        flags.append(are_0())
        if fails:
            raise RuntimeError("no memory")
        return original(*args, **options)

    monkeypatch.setattr(blocked, "fused_block", watch)
    attention = Attention(12, 4, encoding="alibi", kernel="blocked")
    try:
        with pytest.raises(RuntimeError, match="no memory") if fails else nullcontext():
            attention(torch.randn(1, 5, 12), mask=masks.causal())
        assert are_0() == set_before and flags == [True]
    finally:
        torch.set_flush_denormal(False)


def test_torch_func_is_served_by_another_kernel() -> None:
    attention, x = Attention(12, 4, encoding="alibi").double(), heads(1, 5, 12)

    def loss(x: torch.Tensor) -> torch.Tensor:
        assert "torch.func and forward-mode differentiation cannot transform attention in blocks" in str(
            kernels.why_not("blocked", NoPE())
        )
        return attention(x, mask=masks.causal()).square().sum()

    expected = torch.autograd.functional.jacobian(loss_of(attention), x)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)


def loss_of(attention: Attention):
    return lambda x: attention(x, mask=masks.causal()).square().sum()


@pytest.mark.parametrize("width", [4, 9])
@pytest.mark.parametrize("mask", [masks.causal(), masks.bidirectional(), masks.window(6)])
def test_keys_and_values_of_different_widths_need_no_matrix_either(width: int, mask: Mask) -> None:
    at = Positions.count(41)
    check(both_kernels(NoPE(), at, at, mask, width=width, kernel="auto"))
    q, k, v = heads(1, 2, 41, WIDTH), heads(1, 2, 41, WIDTH), heads(1, 2, 41, width)
    operators = []

    class See(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            operators.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), See():
        kernels.bind("sdpa", NoPE(), scale=0.4)(NoPE(), q, at, Keys(k, v, at), mask)
    assert any("flash" in name for name in operators) and not any("softmax" in name for name in operators)


@pytest.mark.parametrize(
    ("encoding", "at", "mask"),
    [
        (NoPE(), Positions.count(9), masks.causal()),
        (NoPE(), Positions.count(9), masks.bidirectional()),
        (ALiBi(HEADS), Positions.count(1, 8), masks.causal()),
        (NoPE(), Positions.count(9).rows(slice(5, None)), masks.causal()),
    ],
    ids=["plain causal", "everything operators", "one query", "the last few"],
)
def test_one_fused_call_is_chosen_where_it_needs_no_matrix_and_no_named_kernel_is_replaced(
    encoding, at: Positions, mask: Mask, monkeypatch
) -> None:
    q = heads(1, HEADS, at.tokens, WIDTH)
    keys_at = at if at.tokens == 9 else Positions.count(9)
    k = heads(1, HEADS, keys_at.tokens, WIDTH)
    keys = Keys(k, k, keys_at)
    assert kernels.served_by(encoding, q, at, keys, mask) == ("sdpa",)
    assert kernels.served_by(encoding, q, at, keys, mask, name="blocked")[0] == "blocked"
    outs = {name: kernels.bind(name, encoding, scale=1.0)(encoding, q, at, keys, mask)[0] for name in kernels.AUTO}
    same_outs = [torch.testing.assert_close(out, outs["reference"], rtol=0, atol=1e-12) for out in outs.values()]
    assert len(same_outs) == 3
    monkeypatch.setattr(kernels.sdpa, "attend", None)
    kernels.bind("blocked", encoding, scale=1.0)(encoding, q, at, keys, mask)


def test_the_last_of_many_tokens_are_attended_to_in_blocks(sizes) -> None:
    at, tail = Positions.count(9), Positions.count(9).rows(slice(5, None))
    for causal, kernel in ((masks.causal(), "sdpa"), (masks.window(8), "blocked")):
        q, k = heads(1, HEADS, 4, WIDTH), heads(1, HEADS, 9, WIDTH)
        assert kernels.served_by(NoPE(), q, tail, Keys(k, k, at), causal)[0] == kernel
    sizes("small")
    assert kernels.served_by(NoPE(), q, tail, Keys(k, k, at), masks.causal())[0] == "blocked"
    check(both_kernels(NoPE(), tail, at, masks.causal(), kernel="sdpa"))


def test_blocked_by_name_says_what_it_cannot_do_in_a_graph(monkeypatch) -> None:
    q, at = heads(1, HEADS, 9, WIDTH), Positions.count(9)
    keys = Keys(q, q, at)
    shaw = Shaw(WIDTH, values=False).double()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match=r"kernel 'blocked' cannot do this: in a graph that is being compiled, .*auto"):
        kernels.bind("blocked", shaw, scale=1.0)(shaw, q, at, keys, masks.causal())
    assert kernels.served_by(shaw, q, at, keys, masks.causal()) == ("sdpa",)
    with pytest.raises(ValueError, match="no attention in blocks of an empty batch"):
        kernels.bind("blocked", NoPE(), scale=1.0)(NoPE(), q[:0], at, Keys(q[:0], q[:0], at), masks.causal())


# In a compiled graph


@pytest.mark.parametrize(
    "case",
    rest_slow([(True, -3, True), (False, -3, False), (True, 0, False), (False, 4, True)], 2),
)
def test_the_operator_is_what_it_says_to_the_compiler(case: tuple[bool, int, bool]) -> None:
    values, offset, gives_sums = case
    q, k, v = (heads(2, h, n, 4).requires_grad_() for h, n in ((2, 5), (1, 9), (1, 9)))
    vector = heads(2, 13).requires_grad_() if values else None
    torch.library.opcheck(blocked.attend_in_a_row, (q, k, v, vector, offset, True, 6, 0.5, gives_sums))


THREES = PLACES["counted"].with_coords(3 * PLACES["counted"].coords)


@pytest.mark.parametrize("at", rest_slow([*(PLACES[place] for place in ("padded left", "later", "packed")), THREES], 2))
@pytest.mark.parametrize("name", ["none", "alibi"])
def test_what_a_graph_holds_is_right_under_every_mask(name: str, at: Positions, sizes, monkeypatch) -> None:
    sizes("small")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    encoding = learned(ENCODINGS[name])
    for rule, mask in RULES.items():
        check(both_kernels(encoding, at, at, mask, kernel="auto"), rule)
        check(both_kernels(encoding, at, at.rows(slice(0, 30)), mask, kernel="auto"), f"{rule}, fewer keys")
        check(both_kernels(encoding, at.rows(slice(11, None)), at, mask, kernel="auto"), f"{rule}, fewer queries")


@pytest.mark.parametrize(
    "mask", rest_slow([masks.causal(), masks.window(4, causal=False)], 1), ids=["causal", "window"]
)
@pytest.mark.parametrize("spec", ["alibi(learned=True)", "none"])
def test_a_compiled_layer_uses_the_operator(spec: str, mask: Mask) -> None:
    attention = Attention(12, 4, encoding=spec).double()
    graphs = []

    def look(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    torch._dynamo.reset()
    compiled_layer = torch.compile(attention, backend=look, fullgraph=True)
    x = heads(1, 11, 12)
    torch.testing.assert_close(compiled_layer(x, mask=mask), attention(x, mask=mask), rtol=0, atol=1e-12)
    in_blocks = spec != "none" or mask.window is not None
    assert len(graphs) == 1 and ("attend_in_a_row" in graphs[0]) == in_blocks
    torch._dynamo.reset()


def test_sizes_within_sizes_are_those_around_them_again() -> None:
    rows = SIZES.rows
    with SIZES.set_to(rows=7):
        with SIZES.set_to(rows=5, pairs=9):
            assert (SIZES.rows, SIZES.pairs) == (5, 9)
        assert SIZES.rows == 7 and SIZES.pairs > 9
    assert SIZES.rows == rows


def test_an_empty_batch_on_several_axes_is_an_empty_batch():
    attention = Attention(16, heads=2, encoding=LogGridBias(2, axes=2), kernel="blocked")
    nowhere = Positions(torch.zeros(0, 9, 2, dtype=torch.long), torch.zeros(0, 9, dtype=torch.long))
    assert attention(torch.empty(0, 9, 16), positions=nowhere).shape == (0, 9, 16)
