"""Growing, static and rolling KV caches give the outputs of one forward pass."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from posenc import Attention, Cache, Decoder, Keys, Positions, masks
from posenc.cache import GrowingCache, LayerCache, SlotCache

DIM, HEADS, TOKENS, BATCH = 12, 3, 9, 2


@pytest.fixture
def layer() -> Attention:
    return Attention(DIM, HEADS, encoding="rotary + alibi").double()


def whole(layer: Attention, x: Tensor, at: Positions, mask) -> Tensor:
    return layer(x, positions=at, mask=mask)


def chunks(layer: Attention, x: Tensor, first: Positions, cuts: tuple[int, ...], cache: LayerCache, mask) -> Tensor:
    """Return the layer's outputs for tokens in chunks of these sizes; `first` places the first chunk."""
    out, at, begin = [], first, 0
    for size in cuts:
        at = at if begin == 0 else at.next(size)
        out.append(layer(x[:, begin : begin + size], positions=at, mask=mask, cache=cache))
        begin += size
    return torch.cat(out, 1)


CACHES = {"growing": GrowingCache, "static": lambda: SlotCache(TOKENS), "roomy": lambda: SlotCache(TOKENS + 4)}


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_a_packed_row_goes_on_with_its_last_document_alone(layer: Attention, make) -> None:
    x = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    actual = chunks(layer, x, Positions.packed([3, 2]), (5, 1, 3), make(), masks.causal())
    torch.testing.assert_close(
        actual[:, 3:], whole(layer, x[:, 3:], Positions.count(6), masks.causal()), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(4)])
def test_positions_of_one_row_and_of_many_go_into_one_cache(make) -> None:
    cache = make()
    k = torch.zeros(2, 1, 1, 2)
    cache.take_in(Keys(k, k, Positions.of(torch.tensor([[3], [4]]))))
    keys = cache.take_in(Keys(k, k, Positions.count(1, start=1)))
    assert keys.at.coords[:, :2, 0].tolist() == [[3, 1], [4, 1]]


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(2)])
def test_fractions_that_come_after_whole_coordinates_keep_their_value(make) -> None:
    cache = make()
    k = torch.zeros(1, 1, 1, 2)
    cache.take_in(Keys(k, k, Positions.count(1)))
    keys = cache.take_in(Keys(k, k, Positions.of(torch.tensor([1.5]), order=torch.tensor([[1]]))))
    assert keys.at.coords[0, :2, 0].tolist() == [0.0, 1.5]


def test_a_rolling_cache_keeps_the_newest_and_forgets_the_oldest() -> None:
    cache = SlotCache(3, rolling=True)
    k = torch.arange(5.0).view(1, 1, 5, 1)
    for t in range(5):
        keys = cache.take_in(Keys(k[:, :, t : t + 1], k[:, :, t : t + 1], Positions.count(1, start=t)))
    values = dict(zip(keys.at.order[0].tolist(), keys.k[0, 0, :, 0].tolist(), strict=True))
    assert {order: value for order, value in values.items() if order >= 0} == {2: 2.0, 3: 3.0, 4: 4.0}


def test_the_shapes_of_a_static_cache_never_change() -> None:
    cache = SlotCache(6)
    shapes = set()
    for t, size in ((0, 3), (3, 1), (4, 1), (5, 1)):
        k = torch.randn(2, 1, size, 4)
        keys = cache.take_in(Keys(k, k, Positions.count(size, start=t), {"fact": torch.ones(2, 1, size)}))
        shapes.add((keys.k.shape, keys.v.shape, keys.at.order.shape, keys.memo["fact"].shape))
    assert len(shapes) == 1


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(5)])
def test_what_encodings_remember_stays_beside_its_token(make) -> None:
    cache = make()
    fact = torch.randn(2, 3, 5, 2)
    k = torch.randn(2, 1, 5, 4)
    for begin, end in ((0, 3), (3, 5)):
        part = slice(begin, end)
        keys = cache.take_in(
            Keys(k[:, :, part], k[:, :, part], Positions.count(end - begin, begin), {"fact": fact[:, :, part]})
        )
    assert torch.equal(keys.memo["fact"][:, :, :5], fact) and torch.equal(keys.k[:, :, :5], k)


def test_a_full_static_cache_says_how_many_slots_it_needs() -> None:
    cache = SlotCache(4)
    k = torch.zeros(1, 1, 5, 2)
    with pytest.raises(
        ValueError, match="the token of order 4 has no slot in a cache of 4; make the cache with at least 5 slots"
    ):
        cache.take_in(Keys(k, k, Positions.count(5)))
    cache.take_in(Keys(k[:, :, :4], k[:, :, :4], Positions.count(4)))
    with pytest.raises(ValueError, match="the token of order 4 has no slot"):
        cache.take_in(Keys(k[:, :, :1], k[:, :, :1], Positions.of(torch.tensor([[4]]), order=torch.tensor([[4]]))))


def test_padding_takes_no_slot() -> None:
    k = torch.zeros(1, 1, 6, 2)
    keys = SlotCache(2).take_in(Keys(k, k, Positions.padded(torch.tensor([[0, 0, 0, 0, 1, 1]]))))
    assert keys.at.order.tolist() == [[0, 1, -1]]


def test_a_chunk_longer_than_a_rolling_cache_is_refused() -> None:
    k = torch.zeros(1, 1, 5, 2)
    with pytest.raises(
        ValueError, match=r"5 tokens came at once to a rolling cache of 3 slots; give it at least\s+window \+ chunk - 1"
    ):
        SlotCache(3, rolling=True).take_in(Keys(k, k, Positions.count(5)))


def test_caches_without_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="a cache needs at least one slot, got 0"):
        SlotCache(0)
    with pytest.raises(ValueError, match="a rolling cache needs a number of slots; give slots=window"):
        Cache(2, rolling=True)


def test_a_cache_is_of_the_kind_that_was_asked_for() -> None:
    assert [type(layer) for layer in Cache(2).layers] == [GrowingCache, GrowingCache]
    rolling = Cache(1, slots=5, rolling=True).layers[0]
    assert isinstance(rolling, SlotCache) and rolling.rolling and rolling.slots == 5


def test_a_growing_cache_knows_that_chunks_in_a_row_are_one_row() -> None:
    cache = GrowingCache()
    k = torch.zeros(1, 1, 3, 2)
    first = Positions.count(3)
    cache.take_in(Keys(k, k, first))
    keys = cache.take_in(Keys(k[:, :, :1], k[:, :, :1], first.next()))
    assert keys.at.contiguous and keys.at.extent == 4
    gap = cache.take_in(Keys(k[:, :, :1], k[:, :, :1], Positions.count(1, start=9)))
    assert not gap.at.contiguous


# Cropping, and choosing rows of the batch.


def alone(layer: Attention, x: Tensor, mask) -> Tensor:
    return layer(x, positions=Positions.count(x.shape[1]), mask=mask)


@pytest.mark.parametrize("mask", [masks.causal(), masks.bidirectional()], ids=["causal", "sees all"])
@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "none"])
@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_a_cache_that_was_cut_back_goes_on_as_if_the_rest_had_never_come(layer, make, grad: bool, mask) -> None:
    x, new = torch.randn(2, BATCH, TOKENS, DIM, dtype=torch.float64)
    cache = make()
    with torch.set_grad_enabled(grad):
        chunks(layer, x, Positions.count(3), (3, 1, 3), cache, mask)
        for length in (5, 9, 2):
            cache.crop(length)
        rest = [layer(new[:, t : t + 1], positions=Positions.count(1, t), mask=mask, cache=cache) for t in (2, 3)]
        whole = torch.cat((x[:, :2], new[:, 2:4]), 1)
        torch.testing.assert_close(rest[-1], alone(layer, whole, mask)[:, 3:], rtol=0, atol=1e-13)
        cache.crop(0)
        again = layer(new[:, :4], positions=Positions.count(4), mask=mask, cache=cache)
        torch.testing.assert_close(again, alone(layer, new[:, :4], mask), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_each_row_may_be_cut_back_to_a_number_of_its_own(layer: Attention, make) -> None:
    x, cache = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64), make()
    with torch.no_grad():
        chunks(layer, x, Positions.count(6), (6,), cache, masks.causal())
        cache.crop(torch.tensor([2, 5]))
        later = Positions.of(torch.tensor([[2, 3], [5, 6]]), order=torch.tensor([[2, 3], [5, 6]]))
        actual = layer(x[:, 7:9], positions=later, mask=masks.causal(), cache=cache)
        for row, length in ((0, 2), (1, 5)):
            whole = torch.cat((x[row : row + 1, :length], x[row : row + 1, 7:9]), 1)
            torch.testing.assert_close(
                actual[row : row + 1], alone(layer, whole, masks.causal())[:, length:], rtol=0, atol=1e-13
            )


@pytest.mark.parametrize("rows", [[1, 0], [1, 1], [0], [1, 0, 1]], ids=str)
@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_rows_that_were_chosen_go_on_as_if_they_had_been_these_from_the_start(layer, make, rows: list[int]) -> None:
    x, cache = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64), make()
    padding = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        at = Positions.padded(padding)
        layer(x[:, :4], positions=at, mask=masks.causal(), cache=cache)
        layer(x[:, 4:5], positions=at.next(), mask=masks.causal(), cache=cache)
        index = torch.tensor(rows)
        cache.rows(index)
        next_at = Positions.padded(padding[index]).next(3).rows(slice(1, 3))
        new = torch.randn(len(rows), 2, DIM, dtype=torch.float64)
        actual = layer(new, positions=next_at, mask=masks.causal(), cache=cache)
        for place, row in enumerate(rows):
            first = 1 - row
            whole = torch.cat((x[row : row + 1, first:5], new[place : place + 1]), 1)
            expected = alone(layer, whole, masks.causal())[:, -2:]
            torch.testing.assert_close(actual[place : place + 1], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("slots", [None, 12])
def test_a_model_goes_back_and_chooses_rows_and_goes_on_by_itself(slots: int | None) -> None:
    model = Decoder(50, 24, 3, 2, encoding="rotary + alibi").double().eval()
    ids = torch.randint(50, (2, TOKENS))
    with torch.no_grad():
        cache = model.cache(slots=slots)
        model(ids[:, :6], padding=torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]), cache=cache)
        model(ids[:, 6:8], cache=cache)
        cache.crop(torch.tensor([3, 7]))
        cache.rows(torch.tensor([1, 0, 1]))
        new = torch.randint(50, (3, 2))
        actual = torch.cat([model(new[:, t : t + 1], cache=cache) for t in (0, 1)], 1)
        for place, prefix in enumerate((ids[1:, :7], ids[:1, 2:5], ids[1:, :7])):
            whole = model(torch.cat((prefix, new[place : place + 1]), 1))
            torch.testing.assert_close(actual[place : place + 1], whole[:, -2:], rtol=0, atol=1e-12)
        cache.crop(0)
        torch.testing.assert_close(model(new, cache=cache), model(new), rtol=0, atol=1e-12)


@pytest.mark.parametrize("slots", [None, 12])
def test_one_row_becomes_several_that_go_their_own_ways(slots: int | None) -> None:
    model = Decoder(50, 24, 3, 2, encoding="rotary + alibi").double().eval()
    ids, new = torch.randint(50, (1, 5)), torch.randint(50, (2, 2))
    with torch.no_grad():
        cache = model.cache(slots=slots)
        model(ids, cache=cache)
        cache.rows(torch.tensor([0, 0]))
        cache.crop(torch.tensor([3, 5]))
        actual = torch.cat([model(new[:, t : t + 1], cache=cache) for t in (0, 1)], 1)
        for row, prefix in enumerate((ids[:, :3], ids)):
            whole = model(torch.cat((prefix, new[row : row + 1]), 1))
            torch.testing.assert_close(actual[row : row + 1], whole[:, -2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "slots", [{}, {"slots": 9}, {"slots": 3, "rolling": True}], ids=["growing", "static", "rolling"]
)
def test_a_copy_of_a_cache_and_what_it_was_made_from_go_their_own_ways(duplicate, slots) -> None:
    model = Decoder(50, 24, 3, 2, encoding="rotary + alibi").double().eval()
    ids, mask = torch.randint(50, (1, TOKENS)), masks.window(3)
    with torch.no_grad():
        cache = model.cache(**slots)
        model(ids[:, :3], cache=cache, mask=mask)
        twin = duplicate(cache)
        for t in range(3, 6):
            model(ids[:, t + 3 : t + 4], cache=twin, mask=mask)
        for t in range(3, 6):
            last = model(ids[:, t : t + 1], cache=cache, mask=mask)
        torch.testing.assert_close(last, model(ids[:, :6], mask=mask)[:, 5:], rtol=0, atol=1e-12)
        last, whole = model(ids[:, :1], cache=twin, mask=mask), torch.cat((ids[:, :3], ids[:, 6:9], ids[:, :1]), 1)
        torch.testing.assert_close(last, model(whole, mask=mask)[:, 6:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("slots", [None, 12])
def test_rows_that_get_padding_alone_go_on_where_they_were(slots: int | None) -> None:
    model = Decoder(50, 24, 3, 2, encoding="rotary + alibi").double().eval()
    ids = torch.randint(50, (2, TOKENS))
    order = torch.tensor([[-1, -1], [4, 5]])
    with torch.no_grad():
        # The prompt has padding on the right; then the first row gets a chunk of padding alone.
        cache = model.cache(slots=slots)
        model(ids[:, :5], padding=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]), cache=cache)
        model(ids[:, 5:7], positions=Positions(order.clamp(min=0)[..., None], order, unit_step=True), cache=cache)
        actual = model(ids[:, 7:], cache=cache)
        first, second = torch.cat((ids[:1, :3], ids[:1, 7:]), 1), torch.cat((ids[1:, :4], ids[1:, 5:]), 1)
        torch.testing.assert_close(actual[:1], model(first)[:, -2:], rtol=0, atol=1e-12)
        torch.testing.assert_close(actual[1:], model(second)[:, -2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(5)])
def test_keys_of_an_earlier_step_cannot_be_put_back(make) -> None:
    cache, k = make(), torch.zeros(1, 1, 2, 3)
    earlier = cache.take_in(Keys(k, k, Positions.count(2)))
    with pytest.raises(AttributeError):
        cache.keys = earlier


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(5)])
def test_rows_that_are_chosen_take_their_lengths_along_and_another_batch_is_refused(make) -> None:
    cache, k = make(), torch.zeros(2, 1, 2, 3)
    cache.take_in(Keys(k, k, Positions.count(2).with_horizon(torch.tensor([4, 7]))))
    cache.rows(torch.tensor([1, 1, 0]))
    assert cache.keys.at.horizon.flatten().tolist() == [7, 7, 4]
    with pytest.raises(ValueError, match="holds keys of 3 rows and 1 heads, got new ones of 2 and 1; start a new"):
        cache.take_in(Keys(k, k, Positions.count(2, 2)))


@pytest.mark.parametrize("slots", [None, 9])
def test_another_batch_behind_a_padded_prompt_is_refused(slots: int | None) -> None:
    model = Decoder(vocab=5, dim=8, heads=2, layers=1)
    cache, ids = model.cache(slots=slots), torch.zeros(3, 2).long()
    with torch.no_grad():
        model(ids[:2], padding=torch.tensor([[0, 1], [1, 1]]), cache=cache)
        with pytest.raises(ValueError, match="positions of 2 rows for a batch of 3; start a new cache"):
            model(ids, cache=cache)


def test_a_copy_of_a_rolling_cache_rolls_on() -> None:
    cache, k = SlotCache(3, rolling=True), torch.arange(4.0).view(1, 1, 4, 1)
    cache.take_in(Keys(k[:, :, :3], k[:, :, :3], Positions.count(3)))
    twin = copy.copy(cache)
    keys = twin.take_in(Keys(k[:, :, 3:], k[:, :, 3:], Positions.count(1, 3)))
    assert keys.at.order[0, :3].tolist() == [3, 1, 2]
    assert cache.keys is not None and cache.keys.at.order[0, :3].tolist() == [0, 1, 2]


def test_what_no_cache_can_do_is_refused() -> None:
    k = torch.zeros(2, 1, 5, 2)
    rolling = SlotCache(3, rolling=True)
    for cache in (GrowingCache(), SlotCache(9), rolling):
        cache.take_in(Keys(k[:, :, :3], k[:, :, :3], Positions.count(3)))
        for wrong in (-1, torch.tensor([1, 2, 3]), torch.tensor([0.5]), "3", None):
            with pytest.raises(ValueError, match="crop to 0 or more tokens, one number or one for each of 2"):
                cache.crop(wrong)
        for rows in ([2], [0, 2], [-1], []):
            with pytest.raises(ValueError, match="choose rows of the batch by numbers from 0 to 1"):
                cache.rows(torch.tensor(rows, dtype=torch.long))
    # No slot is overwritten yet; the next token overwrites the oldest.
    rolling.crop(2)
    rolling.take_in(Keys(k[:, :, :3], k[:, :, :3], Positions.count(3, 2)))
    rolling.crop(9)
    just_over = SlotCache(3, rolling=True)
    just_over.take_in(Keys(k[:, :, :2], k[:, :, :2], Positions.count(2)))
    just_over.take_in(Keys(k[:, :, :2], k[:, :, :2], Positions.count(2, 2)))
    with pytest.raises(ValueError, match="has overwritten its oldest tokens"):
        just_over.crop(2)
    with pytest.raises(ValueError, match="a rolling cache of 3 slots has overwritten its oldest tokens, and cannot"):
        rolling.crop(4)


@pytest.mark.parametrize("cache", [GrowingCache, lambda: SlotCache(TOKENS), lambda: SlotCache(TOKENS, rolling=True)])
def test_a_prefix_in_pieces_is_refused_and_one_in_the_first_chunk_of_each_row_is_right(layer, cache) -> None:
    x, mask = torch.randn(2, TOKENS, DIM, dtype=torch.float64), replace(masks.prefix(3), window=TOKENS)
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])  # the second row begins with the second chunk
    at, layer_cache = Positions.padded(real), cache()
    expected, parts = layer(x, positions=at, mask=mask), (slice(0, 4), slice(4, 8), slice(8, 9))
    actual = torch.cat([layer(x[:, part], positions=at.rows(part), mask=mask, cache=layer_cache) for part in parts], 1)
    torch.testing.assert_close(actual[real], expected[real], rtol=0, atol=1e-12)
    for first in (Positions.count(2), at.rows(slice(0, 2))):
        layer_cache = cache()
        layer(x[:, :2], positions=first, mask=mask, cache=layer_cache)
        keys = layer_cache.keys
        with pytest.raises(
            ValueError, match=r"a prefix of 3 tokens came in pieces, .* give all of it in the first chunk"
        ):
            layer(x[:, 2:4], positions=first.next(2), mask=mask, cache=layer_cache)
        assert layer_cache.keys is keys
