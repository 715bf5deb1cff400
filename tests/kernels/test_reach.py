"""Keys that weigh nothing are left out, and no others: against weights of every pair, and the readable kernel."""

import itertools
import math

import pytest
import torch
from tiers import rest_slow

from posenc import Encoding, Kerple, Shaw, T5Bias, build, kernels, masks
from posenc.chosen_heads import OnHeads
from posenc.encoding import Shape
from posenc.kernels import blocked, reach
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.plan import plan_for
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions

HEADS, WIDTH, TOKENS = 4, 6, 90
SCALE = 0.05
"""Small logits: then few tokens are enough for a bias to fall far below them."""


class Steep(Encoding):
    """A slope of its own for each head, and a hill that lifts distances from 20 to 25."""

    def __init__(self, slopes: tuple[float, ...] = (6.0, 3.0, 1.5, 0.1), hill: float = 0.0) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor(slopes))
        self.hill = hill

    def by_distance(self, delta: torch.Tensor) -> torch.Tensor:
        d = delta.to(self.slopes.dtype)
        lifted = self.hill * ((delta >= 20) & (delta <= 25))
        return lifted - self.slopes.view(-1, *(1,) * delta.dim()) * d.abs()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """Blocks so small that few tokens make many, every key left out that can be, and each query asked alone."""
    monkeypatch.setattr(reach, "WORTH", 0.0)
    monkeypatch.setattr(reach, "TOGETHER", 1)
    with SIZES.set_to(rows=7, rows_backwards=5, pairs_backwards=200, narrowest=3, pairs_of_a_call=10):
        yield


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)), dtype=torch.float64).to(dtype)


def forgetting(low: float, tokens: int = TOKENS, scatter: float = 0.5) -> tuple[Encoding, dict[str, torch.Tensor]]:
    encoding = build(f"forgetting(start={low}, std={scatter})", Shape.of(HEADS * WIDTH, HEADS, tokens)).double()
    return encoding, encoding.remember(drawn(2, tokens, HEADS * WIDTH), Positions.count(tokens))


def at_work(encoding, memo=None, *, offset=0, kv_heads=HEADS, mask=None, kernel="blocked", dtype=torch.float64):
    """The output and all gradients of one call."""
    at, keys_at = Positions.count(TOKENS - offset, offset), Positions.count(TOKENS)
    q = drawn(2, HEADS, TOKENS - offset, WIDTH, dtype=dtype).requires_grad_()
    k, v = (drawn(2, kv_heads, TOKENS, WIDTH + more, dtype=dtype).requires_grad_() for more in (0, 1))
    memo = {name: fact.detach().requires_grad_() for name, fact in (memo or {}).items()}
    keys = Keys(k, v, keys_at, memo, {name: fact[:, :, offset:] for name, fact in memo.items()})
    bound = kernels.bind(kernel, encoding, scale=SCALE)
    out, _ = encoding.attend(q, at, keys, masks.causal() if mask is None else mask, bound)
    wanted = [q, k, v, *memo.values(), *encoding.parameters()]
    slopes = torch.autograd.grad(out, wanted, drawn(*out.shape, dtype=dtype), allow_unused=True)
    return [out, *(x for x in slopes if x is not None)]


def asked(encoding, memo=None, *, offset=0, kv_heads=HEADS, mask=None, q=None, k=None, tokens=TOKENS):
    """How far back each key head looks."""
    at, keys_at = Positions.count(tokens - offset, offset), Positions.count(tokens)
    q = drawn(2, HEADS, tokens - offset, WIDTH) if q is None else q
    k = drawn(2, kv_heads, tokens, WIDTH) if k is None else k
    memo = memo or {}
    keys = Keys(k, k, keys_at, memo, {name: fact[:, :, offset:] for name, fact in memo.items()})
    return found_by(encoding, q, at, keys, mask)


def found_by(encoding, q, at, keys, mask=None):
    mask = masks.causal() if mask is None else mask
    bias, plan = blocked.how(encoding.biases(q, at, keys), q, at, keys, mask)
    return reach.windows(bias, q, keys.k, plan, SCALE)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs PyTorch's kernel is given, from now on."""
    seen, fused = [], blocked.fused

    def see(q, k, *given, **options):
        seen.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return fused(q, k, *given, **options)

    monkeypatch.setattr(blocked, "fused", see)
    return seen


CASES = {
    "slopes": (Steep().double(), {}),
    "a hill": (Steep(hill=40.0).double(), {}),
    "some heads": (OnHeads(Steep((6.0, 3.0)).double(), heads=(0, 2), of=HEADS), {}),
    "gates that forget": forgetting(-6.0),
    "gates that hardly forget": forgetting(4.0),
    "slopes and gates": (Steep().double() + forgetting(-2.0)[0], forgetting(-2.0)[1]),
    "a hill and gates": (Steep((0.0, 0.0, 0.1, 0.1), hill=110.0).double() + forgetting(-6.0)[0], forgetting(-6.0)[1]),
    "nothing that falls": (T5Bias(HEADS).double() + Kerple(HEADS).double(), {}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("offset", rest_slow([31, 0], 1))
@pytest.mark.parametrize(("kv_heads", "call"), [(HEADS, 10), (HEADS, 10**6), (2, 10)])
def test_what_is_left_out_changes_nothing(name: str, offset: int, kv_heads: int, call: int) -> None:
    encoding, memo = CASES[name]
    given = {"offset": offset, "kv_heads": kv_heads}
    with SIZES.set_to(pairs_of_a_call=call):
        found = at_work(encoding, memo, **given)
    for got, right in zip(found, at_work(encoding, memo, **given, kernel="reference"), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nor_in_other_dtypes(dtype: torch.dtype) -> None:
    # What is computed in float32 leaves out keys of 2^-46.
    encoding = Steep().to(dtype)
    for got, right in zip(at_work(encoding, dtype=dtype), at_work(encoding.double(), kernel="reference"), strict=True):
        tolerance = 1e-5 if dtype is torch.float32 else 0.1
        torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("offset", [0, 31])
def test_no_key_beyond_the_reach_has_a_weight(name: str, offset: int) -> None:
    encoding, memo = CASES[name]
    found = asked(encoding, memo, offset=offset)
    if name in ("nothing that falls", "gates that hardly forget"):
        assert found is None
        return
    assert found is not None and any(window < TOKENS for window in found)
    q, k = drawn(2, HEADS, TOKENS - offset, WIDTH), drawn(2, HEADS, TOKENS, WIDTH)
    at, keys_at = Positions.count(TOKENS - offset, offset), Positions.count(TOKENS)
    keys = Keys(k, k, keys_at, memo, {fact: x[:, :, offset:] for fact, x in memo.items()})
    logits = SCALE * q @ k.transpose(-1, -2)
    for bias in encoding.biases(q, at, keys):
        logits = logits + bias.dense(torch.float64)
    distance = (torch.arange(offset, TOKENS)[:, None] - torch.arange(TOKENS)).expand_as(logits)
    weights = (logits.masked_fill(distance < 0, -math.inf)).softmax(-1)
    beyond = distance >= torch.tensor(found)[:, None, None]
    assert weights[beyond].max() <= torch.finfo(torch.float64).eps ** 2


@pytest.mark.parametrize(("slopes", "hill"), [((6.0, 3.0, 1.5, 0.1), 0.0), ((6.0, 4.0, 2.0, 1.0), 60.0)])
def test_heads_look_as_far_back_as_the_formula_says(slopes: tuple[float, ...], hill: float) -> None:
    q, k = drawn(2, HEADS, TOKENS, WIDTH), drawn(2, HEADS, TOKENS, WIDTH)
    expected = []
    for head, slope in enumerate(slopes):
        largest = SCALE * q[:, head].norm(dim=-1).max().item() * k[:, head].norm(dim=-1).max().item()
        least = -2 * math.log(torch.finfo(torch.float64).eps) + 2 * largest
        falls = [slope * d - hill * (20 <= d <= 25) for d in range(TOKENS)]
        expected.append(max(d for d in range(TOKENS) if falls[d] < least) + 1)
    assert asked(Steep(slopes, hill).double()) == expected


@pytest.mark.parametrize("offset", [0, 31])
def test_gates_say_how_far_back_a_head_looks(offset: int) -> None:
    encoding, memo = forgetting(-3.0)
    # The first tokens are hardly forgotten, which later queries do not meet.
    memo = {"forgetting": memo["forgetting"].detach() * (0.2 + torch.arange(TOKENS) / TOKENS)}
    q, k = drawn(2, HEADS, TOKENS - offset, WIDTH), drawn(2, HEADS, TOKENS, WIDTH)
    gates, expected = memo["forgetting"], []
    for head in range(HEADS):
        largest = SCALE * q[:, head].norm(dim=-1).max() * k[:, head].norm(dim=-1).max()
        least, longest = -2 * math.log(torch.finfo(torch.float64).eps) + 2 * largest, 0
        for b, i in itertools.product(range(2), range(offset, TOKENS)):
            for j in range(i + 1):
                if -gates[b, head, j + 1 : i + 1].sum() < least:
                    longest = max(longest, i - j + 1)
                    break
        expected.append(longest)
    assert asked(encoding, memo, offset=offset) == expected


def test_heads_that_share_keys_look_as_far_back_as_the_farthest() -> None:
    apart = asked(Steep().double(), q=drawn(2, HEADS, TOKENS, WIDTH), k=torch.ones(2, HEADS, TOKENS, WIDTH).double())
    together = asked(Steep().double(), k=torch.ones(2, 2, TOKENS, WIDTH).double(), kv_heads=2)
    assert apart is not None and together is not None
    # The largest query of the two counts for both.
    assert all(window >= max(pair) for window, pair in zip(together, (apart[:2], apart[2:]), strict=True))


@pytest.mark.parametrize(
    "given",
    [
        {"mask": masks.bidirectional()},
        {"mask": masks.prefix(5)},
        {"mask": Mask(causal=True, given=torch.ones(TOKENS, TOKENS, dtype=torch.bool))},
        {"q": drawn(2, HEADS, TOKENS, WIDTH).fill_(math.nan)},
        {"k": drawn(2, HEADS, TOKENS, WIDTH).fill_(math.inf)},
        {"tokens": 14},
    ],
    ids=["bidirectional", "prefix", "given", "nan", "inf", "short"],
)
def test_where_that_cannot_be_known_every_key_is_looked_at(given: dict) -> None:
    assert asked(Steep().double()) is not None
    assert asked(Steep().double(), **given) is None


def test_other_biases_beside_it_could_bring_back_what_has_fallen() -> None:
    at, q = Positions.count(TOKENS), drawn(2, HEADS, TOKENS, WIDTH)
    encoding = Steep().double() + Shaw(WIDTH, values=False).double()
    assert found_by(encoding, q, at, Keys(q, q, at)) is None
    _, memo = forgetting(-6.0)
    rising = {"forgetting": memo["forgetting"].detach().clone()}
    rising["forgetting"][1, 2, 50] = 0.5
    assert asked(forgetting(-6.0)[0], rising) is None


def test_positions_elsewhere_are_not_a_row() -> None:
    at = Positions.padded(torch.ones(2, TOKENS).masked_fill(torch.arange(TOKENS) < 3, 0))
    q = drawn(2, HEADS, TOKENS, WIDTH)
    assert found_by(Steep().double(), q, at, Keys(q, q, at)) is None
    at, later = Positions.count(TOKENS), Positions.count(TOKENS, 5)
    assert found_by(Steep().double(), q, at, Keys(q, q, at)) is not None
    assert found_by(Steep().double(), q, later, Keys(q, q, at)) is None


def test_where_few_keys_would_be_left_out_none_are(monkeypatch: pytest.MonkeyPatch) -> None:
    every = HEADS * reach.pairs(TOKENS, 0, TOKENS)
    windows = asked(Steep().double())
    left_out = 1 - sum(reach.pairs(TOKENS, 0, window) for window in windows) / every
    monkeypatch.setattr(reach, "WORTH", left_out - 0.01)
    assert asked(Steep().double()) == windows
    monkeypatch.setattr(reach, "WORTH", left_out + 0.01)
    assert asked(Steep().double()) is None


def test_all_tokens_say_how_large_logits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of them are asked first, and a large one may come behind."""
    monkeypatch.setattr(reach, "SAMPLE", 5)
    q = drawn(2, HEADS, TOKENS, WIDTH)
    few = asked(Steep().double(), q=q)
    q[0, 0, -1] *= 30
    assert asked(Steep().double(), q=q)[0] > few[0]


def test_queries_that_are_asked_together_look_back_far_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, memo = forgetting(-3.0)
    alone = asked(encoding, memo)
    monkeypatch.setattr(reach, "TOGETHER", 8)
    together = asked(encoding, memo)
    assert all(one <= many < one + 8 for one, many in zip(alone, together, strict=True))


def test_fewer_pairs_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, found = counted(monkeypatch), []
    for encoding in (
        Steep((0.1,) * 4).double(),
        Steep((6.0,) * 4).double(),
        Steep().double(),
        CASES["gates that forget"],
    ):
        seen.clear()
        at_work(*(encoding if isinstance(encoding, tuple) else (encoding,)))
        found.append(sum(seen))
    every, few, mixed, gates = found
    assert few < every / 2 and few < mixed < every and gates < every / 2


def test_a_head_among_others_is_given_no_bias_beyond_its_own_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class See:
        @staticmethod
        def apply(call, v, ways, *inputs):
            given.append((inputs[-1], call.bias.forms[-1].distances))
            return differentiable.apply(call, v, ways, *inputs)

    differentiable = blocked.Differentiable
    monkeypatch.setattr(blocked, "Differentiable", See)
    with SIZES.set_to(pairs_of_a_call=10**6):
        at_work(Steep().double())
    ((values, distances),), windows = given, asked(Steep().double())
    distances = torch.tensor([*distances])
    assert values.isinf().equal(distances >= torch.tensor(windows)[:, None])


def test_pairs_are_counted_as_the_plan_has_them() -> None:
    for offset, window in itertools.product((0, 31), (1, 5, 40, 90)):
        at, keys_at = Positions.count(TOKENS - offset, offset), Positions.count(TOKENS)
        plan = plan_for(at, keys_at, masks.causal().within(window), 1, 1, by_coords=True)
        met = sum(n * m for _, n, m in (block.size for block in plan.blocks()))
        # A block reaches back to the first key of its first query, which may be before the first of all.
        assert met <= reach.pairs(TOKENS - offset, offset, window) <= met + 7 * TOKENS


def test_heads_are_together_where_that_costs_less() -> None:
    def of(*windows: int, call: int) -> list[tuple[int, int, list[int]]]:
        with SIZES.set_to(pairs_of_a_call=call):
            return [(g.heads.start, g.heads.stop, g.windows) for g in reach.together(windows, 1, 90, 90, 1)]

    assert of(5, 5, 80, 90, call=0) == [(0, 2, [5, 5]), (2, 3, [80]), (3, 4, [90])]
    assert of(5, 5, 80, 90, call=20) == [(0, 2, [5, 5]), (2, 4, [80, 90])]
    assert of(5, 5, 80, 90, call=10**6) == [(0, 4, [5, 5, 80, 90])]
    assert of(90, 5, 90, call=0) == [(0, 1, [90]), (1, 2, [5]), (2, 3, [90])]
