"""Tokens after a cache follow the cached ones, however their positions are given."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import Attention, Decoder, Positions, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.tokens.masks import Mask

WINDOW, LONGEST, CHUNKS, SLOTS = 4, 5, 4, 64
SPECS = ("rotary", "alibi", "sinusoidal", "t5_bias", "forgetting", "alibi + learned", "rerope(rotary, window=3)")
MASKS = {"causal": masks.causal(), "window": masks.window(WINDOW)}
CACHES = {"growing": {}, "static": {"slots": SLOTS}, "rolling": {"slots": WINDOW + LONGEST - 1, "rolling": True}}


@dataclass
class History:
    """The tokens' positions as the documentation defines them, one token at a time."""

    coords: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    document: list[int] = field(default_factory=list)

    def take(self, coords: list[float], first: int, document: list[int] | None) -> None:
        newest = max(self.document, default=0)
        self.document += [self.document[-1] if self.document else 0] * len(coords) if document is None else [
            newest + 1 + number for number in document
        ]  # fmt: skip
        self.order += range(first, first + len(coords))
        self.coords += coords

    def positions(self) -> Positions:
        order = torch.tensor([self.order])
        return Positions(torch.tensor([self.coords])[..., None], order, torch.tensor([self.document]))


def ids(history: History, tokens: int, shift: int) -> tuple[torch.Tensor, list[float], int, None]:
    coords = torch.arange(tokens) * 2 + shift
    return coords, coords.tolist(), max(history.order, default=-1) + 1, None


def ids_of_rows(history: History, tokens: int, shift: int):
    coords, *facts = ids(history, tokens, shift)
    return coords.expand(2, -1), *facts


def positions_of(history: History, tokens: int, shift: int):
    coords, *facts = ids(history, tokens, shift)
    return Positions.of(coords[None]), *facts


def on_a_line(history: History, tokens: int, shift: int):
    return Positions.grid(tokens), [*range(tokens)], max(history.order, default=-1) + 1, None


def packed(history: History, tokens: int, shift: int):
    lengths = [1, tokens - 1] if tokens > 1 else [1]
    cells = [(number, coord) for number, length in enumerate(lengths) for coord in range(length)]
    first = max(history.order, default=-1) + 1
    return Positions.packed(lengths), [coord for _, coord in cells], first, [number for number, _ in cells]


def counting_positions(history: History, tokens: int, shift: int):
    start = max(history.order, default=-1) + 1 + shift % 3
    return Positions.count(tokens, start), [*range(start, start + tokens)], start, None


def start_number(history: History, tokens: int, shift: int):
    at, *facts = counting_positions(history, tokens, shift)
    return at.start, *facts


def with_an_order(history: History, tokens: int, shift: int):
    position_ids, coords, first, _ = ids(history, tokens, shift)
    order = torch.arange(first, first + tokens)[None]
    return Positions.of(position_ids, order=order), coords, first, None


WAYS = (ids, ids_of_rows, positions_of, on_a_line, packed, counting_positions, start_number, with_an_order)
A_CHUNK = st.tuples(st.sampled_from(WAYS), st.integers(1, LONGEST), st.integers(0, 9))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    chunks=st.lists(A_CHUNK, min_size=2, max_size=CHUNKS),
    spec=st.sampled_from(SPECS),
    mask=st.sampled_from(sorted(MASKS)),
    cache=st.sampled_from(sorted(CACHES)),
)
def test_chunks_behind_a_cache_are_one_pass(
    chunks: list[tuple[Callable, int, int]], spec: str, mask: str, cache: str
) -> None:
    torch.manual_seed(0)
    model = Decoder(vocab=9, dim=12, layers=2, heads=3, encoding=spec, max_len=SLOTS).double().eval()
    tokens = torch.randint(0, 9, (2, sum(size for _, size, _ in chunks)))
    rule: Mask = MASKS["window" if cache == "rolling" else mask]
    model_cache, history, out = model.cache(**CACHES[cache]), History(), []
    for way, size, shift in chunks:
        begin = len(history.order)
        at, coords, first, document = way(history, size, shift)
        history.take(coords, first, document)
        out.append(model(tokens[:, begin : begin + size], positions=at, mask=rule, cache=model_cache))
    whole = model(tokens, positions=history.positions(), mask=rule)
    torch.testing.assert_close(torch.cat(out, 1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(SLOTS)], ids=["growing", "static"])
def test_a_layer_goes_on_where_its_cache_ends(make) -> None:
    layer, x, cache = Attention(12, 3, encoding="rotary").double(), torch.randn(2, 6, 12).double(), make()
    whole = layer(x, mask="causal")
    first = layer(x[:, :4], positions=Positions.count(4), mask="causal", cache=cache)
    later = [layer(x[:, t : t + 1], mask="causal", cache=cache) for t in (4, 5)]
    torch.testing.assert_close(torch.cat([first, *later], 1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "at",
    [
        Positions.count(2),
        Positions.count(2, 3),
        Positions.padded(torch.tensor([[0, 1], [1, 1]])),
        Positions.of(torch.tensor([7, 8]), order=torch.tensor([[4, 3]])),
        0,
    ],
    ids=["from 0", "one again", "padded", "one too early", "a number"],
)
@pytest.mark.parametrize("slots", [None, SLOTS])
@torch.no_grad()
def test_an_order_that_contradicts_the_cache_is_refused(at: Positions | int, slots: int | None) -> None:
    model = Decoder(vocab=9, dim=12, layers=2, heads=3, encoding="rotary", max_len=SLOTS).eval()
    cache, tokens = model.cache(slots=slots), torch.zeros(2, 6, dtype=torch.long)
    model(tokens[:, :4], cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds tokens up to order 3, and a token of order \d cannot come"):
        model(tokens[:, 4:], positions=at, cache=cache)
    assert cache.held is not None and int(cache.held.order.max()) == 3, "a refusal must leave the cache unchanged"
    # The calls that the message recommends work.
    expected = model(tokens)[:, 4:]
    for remedy in (4, torch.tensor([4, 5]), Positions.of(torch.tensor([4, 5]))):
        torch.testing.assert_close(model(tokens[:, 4:], positions=remedy, cache=deepcopy(cache)), expected)


def test_what_comes_behind_an_image_may_be_said_by_positions_of() -> None:
    """`Positions.next` refuses several axes, and recommends `Positions.of`."""
    with pytest.raises(ValueError, match=r"give the next ones with Positions\.of"):
        Positions.grid(2, 2).next()
    layer = Attention(12, 3, encoding="axial_rotary").double()
    x, cache = torch.randn(1, 6, 12).double(), GrowingCache()
    text = torch.tensor([[[2, 2], [3, 3]]])
    coords = torch.cat([Positions.grid(2, 2).coords, text], 1)
    whole = layer(x, positions=Positions(coords, torch.arange(6)[None]), mask="causal")
    layer(x[:, :4], positions=Positions.grid(2, 2), mask="causal", cache=cache)
    later = layer(x[:, 4:], positions=Positions.of(text), mask="causal", cache=cache)
    torch.testing.assert_close(later, whole[:, 4:], rtol=0, atol=1e-12)
