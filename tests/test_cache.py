"""KV caches: growing, static and rolling ones hold the same truth in other storage."""

import pytest
import torch
from torch import Tensor

from posenc import Attention, Cache, Keys, Positions, masks
from posenc.cache import GrowingCache, LayerCache, SlotCache

DIM, HEADS, TOKENS, BATCH = 12, 3, 9, 2


@pytest.fixture
def layer() -> Attention:
    return Attention(DIM, HEADS, encoding="rotary + alibi").double()


def whole(layer: Attention, x: Tensor, at: Positions, mask) -> Tensor:
    return layer(x, positions=at, mask=mask)


def chunks(layer: Attention, x: Tensor, first: Positions, cuts: tuple[int, ...], cache: LayerCache, mask) -> Tensor:
    """The layer's outputs when the tokens come in chunks of the given sizes; `first` places the first chunk."""
    out, at, begin = [], first, 0
    for size in cuts:
        at = at if begin == 0 else at.next(size)
        out.append(layer(x[:, begin : begin + size], positions=at, mask=mask, cache=cache))
        begin += size
    return torch.cat(out, 1)


CACHES = {"growing": GrowingCache, "static": lambda: SlotCache(TOKENS), "roomy": lambda: SlotCache(TOKENS + 4)}


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("cuts", [(9,), (1,) * 9, (4, 1, 1, 3), (2, 7)])
def test_a_cache_changes_nothing_however_the_tokens_are_cut(layer: Attention, make, cuts: tuple[int, ...]) -> None:
    x = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    expected = whole(layer, x, Positions.count(TOKENS), masks.causal())
    got = chunks(layer, x, Positions.count(cuts[0]), cuts, make(), masks.causal())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_left_padding_in_the_first_chunk_changes_nothing(layer: Attention, make) -> None:
    x = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    got = chunks(layer, x, Positions.padded(padding), (4, 1, 1, 3), make(), masks.causal())
    alone = whole(layer, x[:1, 2:], Positions.count(TOKENS - 2), masks.causal())
    torch.testing.assert_close(got[:1, 2:], alone, rtol=0, atol=1e-13)
    torch.testing.assert_close(
        got[1:], whole(layer, x[1:], Positions.count(TOKENS), masks.causal()), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_a_packed_row_goes_on_with_its_last_document_alone(layer: Attention, make) -> None:
    x = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    got = chunks(layer, x, Positions.packed([3, 2]), (5, 1, 3), make(), masks.causal())
    torch.testing.assert_close(
        got[:, 3:], whole(layer, x[:, 3:], Positions.count(6), masks.causal()), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_documents_may_come_only_with_a_later_chunk(layer: Attention, make) -> None:
    x = torch.randn(1, 5, DIM, dtype=torch.float64)
    cache = make()
    layer(x[:, :3], positions=Positions.count(3), mask=masks.causal(), cache=cache)
    order = torch.tensor([[3, 4]])
    later = Positions(torch.tensor([[[0], [1]]]), order, document=torch.ones_like(order))
    got = layer(x[:, 3:], positions=later, mask=masks.causal(), cache=cache)
    torch.testing.assert_close(got, whole(layer, x[:, 3:], Positions.count(2), masks.causal()), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_ids_given_for_a_later_chunk_come_after_what_the_cache_holds(layer: Attention, make) -> None:
    x = torch.randn(BATCH, 6, DIM, dtype=torch.float64)
    ids = torch.tensor([[0, 2, 4, 6, 8, 10], [1, 2, 3, 4, 5, 6]])
    cache = make()
    expected = layer(x, positions=ids, mask=masks.causal())
    first = layer(x[:, :4], positions=ids[:, :4], mask=masks.causal(), cache=cache)
    later = [layer(x[:, t : t + 1], positions=ids[:, t : t + 1], mask=masks.causal(), cache=cache) for t in (4, 5)]
    torch.testing.assert_close(torch.cat([first, *later], 1), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(4)])
def test_positions_of_one_row_and_of_many_go_into_one_cache(make) -> None:
    cache = make()
    k = torch.zeros(2, 1, 1, 2)
    cache.extend(Keys(k, k, Positions.of(torch.tensor([[3], [4]]))))
    keys = cache.extend(Keys(k, k, Positions.count(1, start=1)))
    assert keys.at.coords[:, :2, 0].tolist() == [[3, 1], [4, 1]]


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(2)])
def test_fractions_that_come_after_whole_coordinates_keep_their_value(make) -> None:
    cache = make()
    k = torch.zeros(1, 1, 1, 2)
    cache.extend(Keys(k, k, Positions.count(1)))
    keys = cache.extend(Keys(k, k, Positions.of(torch.tensor([1.5]), order=torch.tensor([[1]]))))
    assert keys.at.coords[0, :2, 0].tolist() == [0.0, 1.5]


@pytest.mark.parametrize(("window", "cuts"), [(3, (1,) * 9), (3, (2, 2, 2, 2, 1)), (4, (1, 3, 3, 2))])
def test_a_rolling_cache_of_window_and_chunk_serves_a_window_mask(
    layer: Attention, window: int, cuts: tuple[int, ...]
) -> None:
    x = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    expected = whole(layer, x, Positions.count(TOKENS), masks.window(window))
    cache = SlotCache(window + max(cuts) - 1, rolling=True)
    got = chunks(layer, x, Positions.count(cuts[0]), cuts, cache, masks.window(window))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


def test_a_rolling_cache_keeps_the_newest_and_forgets_the_oldest() -> None:
    cache = SlotCache(3, rolling=True)
    k = torch.arange(5.0).view(1, 1, 5, 1)
    for t in range(5):
        keys = cache.extend(Keys(k[:, :, t : t + 1], k[:, :, t : t + 1], Positions.count(1, start=t)))
    held = dict(zip(keys.at.order[0].tolist(), keys.k[0, 0, :, 0].tolist(), strict=True))
    assert {order: value for order, value in held.items() if order >= 0} == {2: 2.0, 3: 3.0, 4: 4.0}


def test_the_shapes_of_a_static_cache_never_change() -> None:
    cache = SlotCache(6)
    shapes = set()
    for t, size in ((0, 3), (3, 1), (4, 1), (5, 1)):
        k = torch.randn(2, 1, size, 4)
        keys = cache.extend(Keys(k, k, Positions.count(size, start=t), {"fact": torch.ones(2, 1, size)}))
        shapes.add((keys.k.shape, keys.v.shape, keys.at.order.shape, keys.memo["fact"].shape))
    assert len(shapes) == 1


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(5)])
def test_what_encodings_remember_stays_beside_its_token(make) -> None:
    cache = make()
    fact = torch.randn(2, 3, 5, 2)
    k = torch.randn(2, 1, 5, 4)
    for begin, end in ((0, 3), (3, 5)):
        part = slice(begin, end)
        keys = cache.extend(
            Keys(k[:, :, part], k[:, :, part], Positions.count(end - begin, begin), {"fact": fact[:, :, part]})
        )
    assert torch.equal(keys.memo["fact"][:, :, :5], fact) and torch.equal(keys.k[:, :, :5], k)


def test_a_full_static_cache_says_how_many_slots_it_needs() -> None:
    cache = SlotCache(4)
    k = torch.zeros(1, 1, 5, 2)
    with pytest.raises(
        ValueError, match="the token of order 4 has no slot in a cache of 4; make the cache with at least 5 slots"
    ):
        cache.extend(Keys(k, k, Positions.count(5)))
    cache.extend(Keys(k[:, :, :4], k[:, :, :4], Positions.count(4)))
    with pytest.raises(ValueError, match="the token of order 4 has no slot"):
        cache.extend(Keys(k[:, :, :1], k[:, :, :1], Positions.of(torch.tensor([[4]]), order=torch.tensor([[4]]))))


def test_padding_takes_no_slot() -> None:
    k = torch.zeros(1, 1, 6, 2)
    keys = SlotCache(2).extend(Keys(k, k, Positions.padded(torch.tensor([[0, 0, 0, 0, 1, 1]]))))
    assert keys.at.order.tolist() == [[0, 1, -1]]


def test_a_chunk_longer_than_a_rolling_cache_is_refused() -> None:
    k = torch.zeros(1, 1, 5, 2)
    with pytest.raises(
        ValueError, match=r"5 tokens came at once to a rolling cache of 3 slots; give it at least\s+window \+ chunk - 1"
    ):
        SlotCache(3, rolling=True).extend(Keys(k, k, Positions.count(5)))


def test_caches_without_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="a cache needs at least one slot, got 0"):
        SlotCache(0)
    with pytest.raises(ValueError, match="a rolling cache needs a number of slots; give slots=window"):
        Cache(2, rolling=True)


def test_a_cache_is_of_the_kind_that_was_asked_for() -> None:
    assert [type(layer) for layer in Cache(2).layers] == [GrowingCache, GrowingCache]
    rolling = Cache(1, slots=5, rolling=True).layers[0]
    assert isinstance(rolling, SlotCache) and rolling.rolling and rolling.slots == 5


def test_the_next_positions_follow_the_last_ones() -> None:
    cache = Cache(1)
    assert cache.next(2).order.tolist() == [[0, 1]]
    cache.at = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    assert cache.next(2).order.tolist() == [[2, 3], [3, 4]]


def test_a_growing_cache_knows_that_chunks_in_a_row_are_one_row() -> None:
    cache = GrowingCache()
    k = torch.zeros(1, 1, 3, 2)
    first = Positions.count(3)
    cache.extend(Keys(k, k, first))
    keys = cache.extend(Keys(k[:, :, :1], k[:, :, :1], first.next()))
    assert keys.at.contiguous and keys.at.extent == 4
    gap = cache.extend(Keys(k[:, :, :1], k[:, :, :1], Positions.count(1, start=9)))
    assert not gap.at.contiguous
