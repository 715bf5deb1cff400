"""The contract catches wrong encodings: each mutant has one likely mistake, listed with the promise that catches it.

A correct encoding of a difficult kind, forgetting attention, keeps every promise.
"""

import itertools
import math
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import testing
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, ByDistance, Pairs
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.encoding.score_mods import ScoreMod
from posenc.encodings.rotations.rotary import Rotary
from posenc.kernels.cpu.biases.distances import DistancesInRow
from posenc.kernels.rotation.rotate_pairs import rotate_pairs
from posenc.testing import PROMISES, TOKENS, Subject, check, describe
from posenc.testing.contract import SENTENCES
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once


class Slope(Encoding):
    """Subtract a twentieth of the distance from each logit: correct, and the base of most mutants.

    Source: none, 2024.
    """

    source = "made for this test, 2024"

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be 1 or more, got {heads}")
        self.heads = heads

    def by_distance(self, delta: Tensor) -> Tensor:
        return (-0.05 * delta.abs().double()).expand(self.heads, *delta.shape)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        return super().formula_logit(q, k, m, n, head, scale) - 0.05 * abs(m - n)


class Turn(Encoding):
    """Rotate all pairs of channels by the position: correct, and the base of the other mutants."""

    source = "made for this test, 2024"

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return at.coords[:, None, :, :1].double().expand(-1, -1, -1, x.shape[-1] // 2)

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        angle = self.angle(x, at)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        return rotate_pairs(x, angle.cos().to(dtype), angle.sin().to(dtype), "half")

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        half = len(q) // 2
        pairs = (complex(q[p], q[p + half]) * complex(k[p], -k[p + half]) for p in range(half))
        return scale * math.fsum((pair * complex(math.cos(m - n), math.sin(m - n))).real for pair in pairs)


class BiasByTensorLength(Slope):
    """Divides the distance by the number of keys in the tensor."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta) / delta.shape[-1]


class AnglesInTheInputsDtype(Turn):
    """Computes the angle in the dtype of the heads; bfloat16 cannot count past 256."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at).to(x.dtype)


class BackwardsInHalfPrecision(Turn):
    """Returns the right numbers, with a gradient of the wrong sign in half precision."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        rotated = super().turn(x, at, side)
        return 2 * rotated.detach() - rotated if x.dtype.itemsize == 2 else rotated


class AnglesByMatrixProduct(Turn):
    """Caches with the positions an angle that a matrix product computes in half precision under autocast."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return self.once(self.product, at, x.shape[-1] // 2, x.dtype)

    def product(self, at: Positions, pairs: int, dtype: torch.dtype) -> Tensor:
        coords = at.coords[:, None, :, :1]
        if dtype == torch.float64:
            return 0.37 * coords.double().expand(-1, -1, -1, pairs)
        return (coords.float() @ torch.full((1, pairs), 0.37)).double()


class KeyByHand(Turn):
    """Caches its angles with the positions, under a key that lacks an option."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        if not rate > 0:
            raise ValueError(f"rate must be above 0, got {rate}")
        self.rate = rate

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return once(at, (type(self), x.shape[-1]), lambda: self.rate * super(KeyByHand, self).angle(x, at))


class LongestSoFar(Turn):
    """Scales positions by the longest sequence so far, like a dynamic schedule with state."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 30

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        self.longest = max(self.longest, at.tokens)
        return super().angle(x, at) * 30 / self.longest


class PositionByIndex(Turn):
    """Counts the tokens of the tensor, instead of reading their positions."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return torch.arange(x.shape[2]).double()[None, None, :, None].expand(1, 1, -1, x.shape[-1] // 2)


class AddsByOrder(Encoding):
    """Adds by the order in the row, which does not restart with each packed document."""

    source = "made for this test, 2024"

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + at.order[..., None].double().sin().to(x.dtype)


class LeaksTheFuture(Turn):
    """Subtracts from keys their mean over all tokens of the call."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        return super().turn(x - x.mean(2, keepdim=True) if side == "key" else x, at, side)


class CentreOfTheTensor(Turn):
    """Scales queries by the distance from the tensor's middle, as a published rotary layer does for xPos."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        rotated = super().turn(x, at, side)
        return rotated * 1.1 ** ((at.coords - at.tokens // 2)[:, None] / 5).to(x.dtype) if side == "query" else rotated


class LearnsTwiceAsFast(Slope):
    """A learned slope with twice its true gradient."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.rate = nn.Parameter(torch.full((heads,), 0.1))

    def by_distance(self, delta: Tensor) -> Tensor:
        rate = 2 * self.rate - self.rate.detach()
        return -rate.view(-1, *(1,) * delta.dim()) * delta.abs()


class DeafParameter(Slope):
    """Detaches its parameter."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.weight = nn.Parameter(torch.ones(heads))

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta) * self.weight.detach().view(-1, *(1,) * delta.dim())


class WrongFrequency(Rotary):
    """Computes the exponent over the whole head, not its pairs; the formula is the paper's."""

    def spectrum(self, *arguments: Any, **options: Any) -> tuple[Tensor, Any]:
        plain, temperature = super().spectrum(*arguments, **options)
        return plain.sqrt(), temperature


class WrongClamp(Slope):
    """Clips the distance, unlike the formula, beyond the length of a short test."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta.clamp(-40, 40))


class InvertedSign(Slope):
    """States the bias twice, once with query and key exchanged, so that its kernels disagree."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta.clamp(min=0))

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        class TransposedBias(ByDistance):
            def dense(self, dtype: torch.dtype) -> Tensor:
                reverse = ByDistance(self.encoding, self.keys_at, self.at, self.heads)
                return reverse.dense(dtype).transpose(-1, -2)

        return [TransposedBias(self, at, keys.at, None if q is None else q.shape[1])]


class ForgetsAnOption(Slope):
    """Stores its option with another value, so that its spec builds another encoding."""

    def __init__(self, heads: int, rate: float = 1.0) -> None:
        super().__init__(heads)
        self.rate = rate / 2

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta) * self.rate


class HidesAnOption(Slope):
    """Stores its option under another name, so that it has no spec."""

    def __init__(self, heads: int, rate: float = 1.0) -> None:
        super().__init__(heads)
        self._rate = rate


class ChangesItsInput(Turn):
    """Rotates queries in place."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        with torch.no_grad():
            return x.copy_(super().turn(x, at, side)) if side == "query" else super().turn(x, at, side)


class DrawsAtRandom(Slope):
    """Draws from the global random state."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta) + 0 * torch.rand(())


class TableAsState(Turn):
    """Stores its frequencies in a buffer, which casts round and `to_empty` leaves empty."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.tensor(1.0 / 3, dtype=torch.float64), persistent=False)

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at) * self.frequency.double()


class LongestOfTheBatch(Turn):
    """Scales all rows by the largest position of the batch."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at) / (1 + at.coords.amax())


class KeysByHead(Turn):
    """Rotates keys by their head's number, as if keys had as many heads as queries."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        factor = torch.arange(1, x.shape[1] + 1, device=x.device)[None, :, None, None]
        angle = self.angle(x, at) * factor
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        return rotate_pairs(x, angle.cos().to(dtype), angle.sin().to(dtype), "half")


class LooksAtTheData(Turn):
    """Reads a Python number from a tensor in the middle of the graph."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at) * (1 if at.coords.max().item() < 1e9 else 2)


class FrequenciesAnywhere(Turn):
    """Creates its frequencies on the default device."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at) * torch.ones(x.shape[-1] // 2).to(x.device)


class ReadsTheFirstRow(Turn):
    """Reads the first row of a batch for all rows."""

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return super().angle(x, at) * torch.ones_like(x[0, 0, 0, 0])


class CompilesForEveryLength(Slope):
    """Iterates over the tokens in Python."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return torch.stack([super(CompilesForEveryLength, self).by_distance(row) for row in delta.unbind(-1)], -1)


class AcceptsAnything(Encoding):
    """Accepts embeddings of any width and any rate."""

    source = "made for this test, 2024"

    def __init__(self, dim: int, rate: float = 1.0) -> None:
        super().__init__()
        self.dim, self.rate = dim, rate

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + self.rate * at.coords[..., :1].to(x.dtype)


class WithoutASource(Turn):
    """Names no source."""

    source = ""


class Forgetting(Encoding):
    """Multiply the attention of a query to a key by all forget gates between the two.

    logit(i, j) = scale * q_i . k_j + sum of log f_l over the tokens l with j < l <= i in order, f = sigmoid(x W + b)

    Source: Lin et al. 2025, arXiv:2503.02130, section 3.
    """

    source = "Lin et al. 2025, arXiv:2503.02130, section 3"

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim < 1 or heads < 1:
            raise ValueError(f"dim and heads must be 1 or more, got {dim} and {heads}")
        self.gate = nn.Linear(dim, heads)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            gate = F.linear(x.to(dtype), self.gate.weight.to(dtype), self.gate.bias.to(dtype))
        return {"log_forget": F.logsigmoid(gate).transpose(1, 2)}

    def visible_keys(self, at: Positions, keys_at: Positions) -> Tensor:
        """Return a mask [B or 1, T, S] of the keys up to each token, in its document."""
        order = keys_at.order[:, None, :]
        earlier = (order <= at.order[:, :, None]) & (order >= 0)
        same_document = True if at.document is None else keys_at.document[:, None, :] == at.document[:, :, None]
        return earlier & same_document

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        return [Pairs(self.score_mod, q, at, keys)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        forget = keys.memo["log_forget"][:, :, None, :]
        visible = (self.visible_keys(x, keys.at)[:, None].to(forget.dtype) for x in (at, keys.at))
        total, key_total = ((forget * mask).sum(-1) for mask in visible)
        # The query's total cancels in the softmax; it keeps the bias of near keys small enough for bfloat16.
        return lambda score, b, h, i, j: score + (total[b, h, i] - key_total[b, h, j]).to(score.dtype)


class ForgettingByIndex(Forgetting):
    """Uses a prefix sum over the tensor, ignoring padding and a token's position in a cache.

    Packing does not catch it: earlier documents add the same to all keys of a document, which cancels.
    """

    def visible_keys(self, at: Positions, keys_at: Positions) -> Tensor:
        return torch.ones(1, at.tokens, keys_at.tokens, dtype=torch.bool).tril(keys_at.tokens - at.tokens)


class ForgettingInTheCall(Forgetting):
    """Uses a prefix sum over the tokens of each call, which restarts with every chunk."""

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        return {name: fact.cumsum(-1) for name, fact in super().remember(x, at).items()}

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        total = keys.memo["log_forget"]
        return lambda score, b, h, i, j: score - total[b, h, j].to(score.dtype)


class RotatesTwice(Rotary):
    """Moves a key by rotating it to its new position, as if it were unrotated."""

    def moved(self, k, old_at, new_at):
        return self.rotated(k, new_at)


class WithoutHeads(Slope):
    """Returns one number for each distance, without an axis for heads."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta)[0]


class GivesNothing(Slope):
    """Forgets to return its bias."""

    def by_distance(self, delta: Tensor) -> Tensor:
        super().by_distance(delta)  # type: ignore[invalid-return-type]


class AddsInDouble(Encoding):
    """Adds its positions in double precision for every input dtype."""

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + at.coords.double()


class WidensQueries(Turn):
    """Widens queries, but not keys."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        rotated = super().turn(x, at, side)
        return torch.cat((rotated, x), -1) if side == "query" else rotated


class WithAHole(Slope):
    """Returns NaN for distance 0."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distance(delta).masked_fill(delta == 0, math.nan)


class Misspelt(Slope):
    """Calls a misspelt method of its parent."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return super().by_distence(delta)  # type: ignore[unresolved-attribute]


CASES = [
    (WithoutHeads, testing.a_forward_pass_works, "gave shape [9] for distances [9] and 3 heads, expected shape [3, 9]"),
    (GivesNothing, testing.a_forward_pass_works, "by_distance of GivesNothing gave NoneType for distances [9]"),
    (AddsInDouble, testing.a_forward_pass_works, "gave torch.float64 for torch.float32; give the dtype that came in"),
    (
        WidensQueries,
        testing.a_forward_pass_works,
        "turn of WidensQueries, of keys, gave shape [2, 3, 9, 6] for heads [2, 3, 9, 6]",
    ),
    (WithAHole, testing.a_forward_pass_works, "attention, causal, gives NaN or inf in 270 numbers"),
    (BiasByTensorLength, testing.a_cache_changes_nothing, "growing cache"),
    (BiasByTensorLength, testing.the_future_is_invisible, "only the first"),
    (AnglesInTheInputsDtype, testing.half_precision_stays_near_double, "bfloat16"),
    (BackwardsInHalfPrecision, testing.half_precision_stays_near_double, "at a cosine of -"),
    (AnglesByMatrixProduct, testing.casts_and_copies_change_nothing, "under autocast"),
    (KeyByHand, testing.others_of_its_kind_change_nothing, "rate=0.67 in torch.float32, after others"),
    (LongestSoFar, testing.the_order_of_calls_changes_nothing, "after calls"),
    (PositionByIndex, testing.a_cache_changes_nothing, "growing cache"),
    (PositionByIndex, testing.left_padding_changes_nothing, "padded batch"),
    (PositionByIndex, testing.packing_changes_nothing, "cache"),
    (AddsByOrder, testing.packing_changes_nothing, "document 1"),
    (LeaksTheFuture, testing.the_future_is_invisible, "were changed"),
    (CentreOfTheTensor, testing.a_cache_changes_nothing, "growing cache"),
    (CentreOfTheTensor, testing.the_future_is_invisible, "only the first"),
    (LearnsTwiceAsFast, testing.gradients_are_those_of_small_steps, "gradient of 0.rate"),
    (DeafParameter, testing.every_parameter_learns, "no gradient reaches 0.weight"),
    (WrongFrequency, testing.says_what_the_paper_says, "against the formula"),
    (WrongClamp, testing.says_what_the_paper_says, "far"),
    (InvertedSign, testing.evaluators_and_kernels_agree, "the dense bias against its closure"),
    (ForgetsAnOption, testing.the_spec_round_trips, "builds"),
    (HidesAnOption, testing.the_spec_round_trips, "has no attribute 'rate'"),
    (ChangesItsInput, testing.nothing_given_is_changed, "q was changed in place"),
    (DrawsAtRandom, testing.nothing_given_is_changed, "random state"),
    (TableAsState, testing.casts_and_copies_change_nothing, "meta"),
    (LongestOfTheBatch, testing.a_neighbour_in_the_batch_changes_nothing, "beside other rows"),
    (KeysByHead, testing.grouped_query_heads_agree, "3 heads on 1 key heads"),
    (LooksAtTheData, testing.compiles_to_one_graph, ""),
    pytest.param(CompilesForEveryLength, testing.compiles_to_one_graph, "3 graphs", marks=pytest.mark.slow),
    (LooksAtTheData, testing.every_way_of_running_is_served, "max()"),
    (FrequenciesAnywhere, testing.every_way_of_running_is_served, "meta"),
    (ReadsTheFirstRow, testing.every_way_of_running_is_served, "index 0 is out of bounds"),
    (AcceptsAnything, testing.bad_arguments_get_a_clear_error, "AcceptsAnything(dim=0) was accepted"),
    (WithoutASource, testing.has_a_source, "WithoutASource.source"),
    (ForgettingByIndex, testing.the_future_is_invisible, "in another place"),
    (ForgettingByIndex, testing.a_cache_changes_nothing, "rolling cache"),
    (ForgettingByIndex, testing.left_padding_changes_nothing, "padded batch"),
    (RotatesTwice, testing.a_moved_key_is_the_key_of_its_new_place, "tokens behind crop, growing cache, moved"),
    (ForgettingInTheCall, testing.a_cache_changes_nothing, "growing cache"),
]


@pytest.mark.parametrize("mutant, promise, message", CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_encoding_is_caught(mutant, promise, message: str) -> None:
    (verdict,) = check(mutant, [promise])
    assert (verdict.kept, verdict.word) == (False, "broken")
    assert message in verdict.message


def test_facts_are_remembered_of_tokens_and_where_they_are_alone() -> None:
    with pytest.raises(ValueError, match=r"^Old has remember\(self, x, at, project\), expected remember\(self, x"):

        class Old(Slope):
            def remember(self, x, at, project):
                return {}


@pytest.mark.parametrize("promises", [None, ["has_a_source", "a_cache_changes_nothing"]])
def test_where_no_forward_pass_works_that_is_the_one_verdict(promises) -> None:
    (verdict,) = check(WithoutHeads, promises)
    assert (verdict.promise, verdict.word) == ("a_forward_pass_works", "broken")


def test_advice_begins_with_the_line_of_ones_own_that_raised() -> None:
    (verdict,) = check(Misspelt)
    line = Misspelt.by_distance.__code__.co_firstlineno + 1
    place = f"by_distance, line {line} of test_wrong_encodings.py"
    assert verdict.advice == f"look at {place}; {testing.ADVICE['a_forward_pass_works']}"


def test_advice_where_an_encoding_refuses_is_to_serve_or_to_say_why_not() -> None:
    class Refuses(Slope):
        """Accepts the distances of contiguous tokens only."""

        def by_distance(self, delta: Tensor) -> Tensor:
            if delta.dim() == 1 or delta.shape[-1] == TOKENS:
                return super().by_distance(delta)
            raise ValueError("only tokens in a row")

    (verdict,) = check(Refuses, ["left_padding_changes_nothing"])
    line = Refuses.by_distance.__code__.co_firstlineno + 3
    assert verdict.message == "ValueError: only tokens in a row"
    assert verdict.advice == (
        f"serve what by_distance, line {line} of test_wrong_encodings.py, refuses; "
        f"or say why not in `gaps`, under left_padding_changes_nothing"
    )


def test_advice_where_numbers_differ_is_that_of_the_promise() -> None:
    (verdict,) = check(PositionByIndex, ["a_cache_changes_nothing"])
    assert verdict.advice == testing.ADVICE["a_cache_changes_nothing"]
    assert set(testing.ADVICE) == {testing.promise_name(promise) for promise in PROMISES}


class Slopes(Slope):
    """Multiplies by slopes in single precision; a scalar distance does not promote the product."""

    def by_distance(self, delta: Tensor) -> Tensor:
        slopes = torch.tensor([0.3] * self.heads, dtype=torch.float32, device=delta.device)
        return -slopes.view(-1, *(1,) * delta.dim()) * delta.abs().double()

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        return Encoding.formula_logit(self, q, k, m, n, head, scale) - 0.3 * abs(m - n)


class Half(Encoding):
    """Rotates pairs of channels, has no formula, and creates its frequencies on the default device."""

    def turn(self, x: Tensor, at: Positions, side: str) -> Tensor:
        angle = at.coords[:, None, :, :1] * torch.arange(x.shape[-1] // 2).double()
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Waves(Encoding):
    """Adds sines whose frequencies are on the default device."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rates = torch.ones(dim)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + torch.sin(at.coords[..., :1] * self.rates.to(x.device)).to(x.dtype)


SINGLE = r"got -?[\d.]+, expected -?\d\.\d{9,}; float32 inside by_distance$"
NO_FORMULA, ELSEWHERE = "opens {}, and no formula_... method says what it does", 'make constants with device="cpu"'
FORMULA, CASTS, RUNS = "says_what_the_paper_says", "casts_and_copies_change_nothing", "every_way_of_running_is_served"


@pytest.mark.parametrize(
    ("encoding", "promise", "message", "advice"),
    [
        (Slopes, "evaluators_and_kernels_agree", SINGLE, "where float64 or whole numbers come in, compute in float64"),
        (Half, FORMULA, NO_FORMULA.format("turn"), r"write formula_query\(self, q, position, head=0\), and formula_"),
        (Half, RUNS, "on device meta", rf"look at turn, line \d+ of test_wrong_encodings.py; {ELSEWHERE}"),
        (Waves, FORMULA, NO_FORMULA.format("embed"), r"write formula_added\(self, position, channel\): what "),
        (Waves, CASTS, "Cannot copy out of meta tensor; no data!", rf"look at embed, line \d+ of .*; {ELSEWHERE}"),
    ],
)
def test_what_a_user_meets_first_is_told_with_its_cause(encoding, promise: str, message: str, advice: str) -> None:
    (verdict,) = check(encoding, [promise])
    assert verdict.word == "broken" and re.search(message, verdict.message), verdict.message
    assert re.match(advice, verdict.advice), verdict.advice


@pytest.mark.parametrize(
    ("actual", "expected", "ending"),
    [
        (1.0, 2.0, "got 1, expected 2"),
        (1.0, 1.0 + 2**-30, "got 1, expected 1.0000000009313226"),
        (torch.tensor(0.5), 0.5 + 2**-30, "got 0.5 (torch.float32), expected 0.50000000093132257 (torch.float64)"),
        (torch.tensor(1, dtype=torch.int64), 2.5, "got 1 (torch.int64), expected 2.5 (torch.float64)"),
    ],
)
def test_two_numbers_that_differ_are_printed_differently(actual, expected: float, ending: str) -> None:
    actual = torch.as_tensor(actual, dtype=getattr(actual, "dtype", torch.float64))
    with pytest.raises(AssertionError) as error:
        testing.agree(actual, torch.tensor(expected, dtype=torch.float64), "x", 1e-12)
    assert str(error.value).endswith(ending)


def test_a_bias_without_an_axis_for_heads_is_told_from_one_for_other_heads() -> None:
    heads = torch.zeros(1, 3, 5, 6)
    axes = r"WithoutHeads gave a bias of shape \[9\], expected \[3, ...\]: an axis of 3 heads, then those of the dist"
    with pytest.raises(ValueError, match=axes):
        WithoutHeads(3).bias(5, q=heads)
    with pytest.raises(ValueError, match="Slope is built for 2 heads, got 3; build it with heads=3"):
        Slope(2).bias(5, q=heads)


def test_a_verdict_comes_as_soon_as_it_is_known() -> None:
    promises = []

    @contextmanager
    def note_promise(promise: str) -> Generator[None]:
        promises.append(promise)
        yield

    verdicts = testing.verdicts(Slope, ["has_a_source", "every_parameter_learns"], note_promise)
    assert next(verdicts).promise == "has_a_source" and promises == ["a_forward_pass_works", "has_a_source"]
    assert [verdict.word for verdict in verdicts] == ["no meaning"] and promises[-1] == "every_parameter_learns"


@pytest.mark.parametrize("spec", ["alibi(learned=True)", "kerple"])
def test_gradients_of_distances_the_wrong_way_round_in_half_precision_are_caught(
    monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    take_slopes = DistancesInRow.take_slopes

    def reverse_slopes(self: DistancesInRow, block, upstream: Tensor, *sums: Tensor) -> None:
        old_sums = [total.clone() for total in sums]
        take_slopes(self, block, upstream, *sums)
        # Gradients of half precision are in float32, and their reference in float64.
        if upstream.dtype == torch.float32:
            for old, total in zip(old_sums, sums, strict=True):
                total.copy_(2 * old - total)

    monkeypatch.setattr(DistancesInRow, "take_slopes", reverse_slopes)
    (verdict,) = check(spec, [testing.half_precision_stays_near_double])
    assert verdict.word == "broken" and "at a cosine of -" in verdict.message


def test_every_promise_has_been_seen_broken() -> None:
    assert {getattr(case, "values", case)[1] for case in CASES} == set(PROMISES)


def test_every_function_that_is_made_a_promise_is_checked() -> None:
    assert {testing.promise_name(promise) for promise in PROMISES} == set(SENTENCES)
    assert all(getattr(testing, name) in PROMISES for name in SENTENCES)


# Graphs of all three are compiled by --all: every run compiles encodings of their kinds, and the file below. The other
# slow promises are checked for one of the three in every run.
SLOW = dict.fromkeys(
    (testing.evaluators_and_kernels_agree, testing.every_way_of_running_is_served, testing.a_cache_changes_nothing),
    (Turn, Forgetting),
) | {testing.compiles_to_one_graph: (Slope, Turn, Forgetting)}
RIGHT_CASES = [
    pytest.param(promise, right, marks=[pytest.mark.slow] * (right in SLOW.get(promise, ())))
    for promise, right in itertools.product(PROMISES, (Slope, Turn, Forgetting))
]


@pytest.mark.parametrize(("promise", "right"), RIGHT_CASES)
def test_a_right_encoding_of_ones_own_keeps_every_promise(promise, right) -> None:
    promise(right)


@pytest.mark.slow
def test_forgetting_beside_another_encoding_keeps_every_promise() -> None:
    def forgetting_and_rotary(shape):
        return Forgetting(shape.dim, shape.heads) + Rotary(shape.head_dim)

    verdicts = check(forgetting_and_rotary, [p for p in PROMISES if p is not testing.compiles_to_one_graph])
    assert [v.word for v in verdicts if v.word not in ("kept", "no meaning")] == [], describe(verdicts)


class Honest(PositionByIndex):
    """Declares its gaps."""

    gaps: ClassVar = {"a_cache_changes_nothing": "it counts the tokens of the tensor", "has_a_source": "it has none"}


def test_a_declared_gap_must_be_one() -> None:
    known_gap, stale_gap = check(Honest, ["a_cache_changes_nothing", "has_a_source"])
    assert (known_gap.word, known_gap.good, known_gap.gap) == ("known gap", True, "it counts the tokens of the tensor")
    assert (stale_gap.word, stale_gap.good) == ("stale gap", False)
    with pytest.raises(AssertionError, match="delete it from `gaps`"):
        testing.has_a_source(Honest)
    with pytest.raises(testing.KnownGap, match="counts the tokens"):
        testing.a_cache_changes_nothing(Honest)


def test_a_gap_that_what_is_around_an_encoding_closes_is_no_stale_one() -> None:
    (gap,) = check("mixed_rotary", ["a_cache_changes_nothing"])
    assert gap.word == "known gap"
    (verdict,) = check("on(mixed_rotary, heads=(0, 2))", ["a_cache_changes_nothing"])
    assert verdict.word == "kept", verdict


def test_a_gap_in_no_promise_is_an_error() -> None:
    class Elsewhere(Turn):
        """Declares a gap in an unknown promise."""

        gaps: ClassVar = {"packing": "a reason"}

    with pytest.raises(ValueError, match=r"'packing', which is no promise; there are: .*says_what_the_paper_says"):
        check(Elsewhere)


def test_what_has_no_meaning_is_said() -> None:
    (verdict,) = check("none", ["every_parameter_learns"])
    assert (verdict.kept, verdict.word, verdict.message) == (None, "no meaning", "none has no parameters")


def test_a_table_of_verdicts_names_what_is_broken() -> None:
    table = describe(check(WithoutASource, ["has_a_source", "every_parameter_learns"]))
    assert table.splitlines()[:2] == ["WithoutASource", "  broken      has a source"]
    assert table.splitlines()[-1] == "2 promises: 1 broken, 1 no meaning"


@pytest.mark.parametrize("source", [Turn(), 3, ()])
def test_a_subject_is_something_to_build(source) -> None:
    with pytest.raises(ValueError, match="a subject"):
        Subject(source)


def test_an_unknown_promise_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no promise named 'caching'; .*posenc check SPEC has all$"):
        check("alibi", ["caching"])


@pytest.mark.slow
def test_a_right_encoding_from_a_file_of_its_own_keeps_every_promise(tmp_path: Path) -> None:
    """Compilation and the spec find it through the module that the path was loaded as."""
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from posenc import Encoding\n"
        "class Mine(Encoding):\n"
        '    """Take from each logit the square root of the distance."""\n'
        '    source = "This test, 2026"\n'
        "    def __init__(self, heads: int, strength: float = 1.0) -> None:\n"
        "        super().__init__()\n"
        "        if not heads >= 1 or not strength > 0:\n"
        '            raise ValueError(f"heads: 1 or more, strength: above 0, got heads={heads}, strength={strength}")\n'
        "        self.heads, self.strength = heads, strength\n"
        "    def by_distance(self, delta):\n"
        "        root = delta.abs().to(torch.promote_types(delta.dtype, torch.float32)).sqrt()\n"
        "        return -self.strength * root.expand(self.heads, *delta.shape)\n"
        "    def formula_logit(self, q, k, m, n, head, scale):\n"
        "        return super().formula_logit(q, k, m, n, head, scale) - self.strength * abs(m - n) ** 0.5\n"
    )
    verdicts = testing.check(f"{tmp_path / 'mine.py'}:Mine(strength=2.0)")
    assert [verdict.message for verdict in verdicts if not verdict.good] == []
