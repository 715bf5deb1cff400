"""Moved cached keys: mutants fail, errors stay small, and any sequence of operations equals plain decoding."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tiers import rest_slow
from torch import Tensor

import posenc.cache.layer
import posenc.encodings.rotations.rotary
from posenc import Attention, Decoder, masks
from posenc.cache import Cache, GrowingCache, LayerCache, SlotCache
from posenc.cache.operations import drop_positions
from posenc.encodings.rotations import Rotations, cos_sin, displacement, quotient
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.testing.promises.moves import a_moved_key_is_the_key_of_its_new_place, close_gaps
from posenc.tokens.positions import Positions

DIM, HEADS = 24, 3
YARN = "rotary(base=100, schedule=yarn(factor=4, trained_length=8))"


def temperature_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def scale_twice(self, k, old_at, new_at):
        return self.by_table(k, self.table(displacement(old_at, new_at), rotation_dtype(k), k.device))

    monkeypatch.setattr(Rotations, "moved", scale_twice)


def wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rotations.moved
    monkeypatch.setattr(Rotations, "moved", lambda self, k, old_at, new_at: right(self, k, new_at, old_at))


def half_for_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    def rotate_halves(self, k, old_at, new_at):
        cos, sin = quotient(self.table, old_at, new_at, k).unbind(0)
        return rotate_pairs(k, cos, sin, "half")

    monkeypatch.setattr(Rotations, "moved", rotate_halves)


def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rotations.moved

    def move_further(self, k, old_at, new_at):
        further = new_at.coords + (new_at.coords != old_at.coords).to(new_at.coords.dtype)
        return right(self, k, old_at, new_at.with_coords(further))

    monkeypatch.setattr(Rotations, "moved", move_further)


def stale_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(at, places, batch, *, renumber, rows):
        order = drop_positions(at, places, batch, renumber=False, rows=rows).order
        return drop_positions(at, places, batch, renumber=renumber, rows=rows).with_facts(order=order)

    monkeypatch.setattr(posenc.cache.layer, "drop_positions", stale)


def table_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LayerCache.rotated_keys

    def stale_keys(self, keys, encoding):
        if self.current_k is not None and self.current_k[1].shape == keys.k.shape:
            return replace(keys, k=self.current_k[1], turned=None)
        return right(self, keys, encoding)

    monkeypatch.setattr(LayerCache, "rotated_keys", stale_keys)


@pytest.mark.parametrize(
    ("spec", "mutant"),
    [
        (YARN, temperature_twice),
        ("rotary", wrong_sign),
        ("rotary(layout='interleaved')", half_for_interleaved),
        ("rotary", off_by_one),
        ("none", stale_order),
        ("rotary", table_from_before),
    ],
)
def test_the_promise_finds_keys_that_were_moved_wrongly(spec: str, mutant: Callable, monkeypatch) -> None:
    a_moved_key_is_the_key_of_its_new_place(spec)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError), match=r"tokens behind|cannot come behind"):
        a_moved_key_is_the_key_of_its_new_place(spec)


def layer_of(spec: str, dtype: torch.dtype = torch.float64) -> Attention:
    torch.manual_seed(3)
    return Attention(DIM, heads=HEADS, encoding=spec, max_len=64, causal=True).to(dtype).eval()


def keys_of(layer: Attention, x: Tensor, at: Positions, cache: LayerCache) -> Tensor:
    with torch.no_grad():
        layer(x, positions=at, mask=masks.causal(), cache=cache)
    assert cache.keys is not None and layer.encoding is not None
    return cache.rotated_keys(cache.keys, layer.encoding).k


ROTATING = (YARN, "rotary", "rotary(layout='interleaved')", "xpos", "polar", "fourier_rotary", "learned_rotary")


@pytest.mark.parametrize("spec", rest_slow(ROTATING, 1))
@pytest.mark.parametrize("dtype", rest_slow([torch.float32, torch.bfloat16], 1))
def test_a_thousand_moves_leave_no_trace(spec: str, dtype: torch.dtype) -> None:
    bound = 1e-6 if dtype == torch.float32 else 2**-8
    layer, x = layer_of(spec, dtype), torch.randn(1, 6, DIM, dtype=dtype)
    encoding, cache, place, rng = layer.encoding, GrowingCache(), 0, random.Random(0)
    once = keys_of(layer, x, Positions.count(6), cache)
    assert encoding is not None
    with torch.no_grad():
        for _ in range(1000):
            target = rng.randrange(40)
            cache.move(by=target - place)
            place = target
            cache.rotated_keys(cache.keys, encoding)
        cache.move(to=37)
        keys = cache.rotated_keys(cache.keys, encoding).k
        there = keys_of(layer, x, Positions.count(6, 37), GrowingCache())
        of_once = copy.deepcopy(encoding).double().moved(once.double(), Positions.count(6), Positions.count(6, 37))
    # The rotated key is rounded once. A key computed at the target is rounded too, which makes two roundings.
    for expected, limit in ((of_once, bound), (there.double(), bound if dtype == torch.float32 else 3 * bound)):
        error = (keys.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert float(error.max()) < limit


class NonlinearRotary(Rotations):
    """Rotates by angles that are not linear in the position, and scales too."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim, self.layout = head_dim, "half"

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        place = at.axis(self).double()[:, None, :, None] * torch.arange(1, self.head_dim // 2 + 1)
        return cos_sin(place.sqrt(), 1 + place / 9, dtype, device)


def test_keys_move_by_the_table_that_turned_them() -> None:
    assert NonlinearRotary(4).moves == "exact"
    a_moved_key_is_the_key_of_its_new_place(NonlinearRotary)


def test_gradients_go_through_a_move() -> None:
    layer, x = layer_of("learned_rotary"), torch.randn(1, 4, DIM, dtype=torch.float64, requires_grad=True)
    new, gradients = torch.randn(1, 1, DIM, dtype=torch.float64), []
    for moves in (True, False):
        cache = GrowingCache()
        layer(x, positions=Positions.count(4, 0 if moves else 5), mask=masks.causal(), cache=cache)
        if moves:
            cache.move(by=5)
        out = layer(new, positions=9, mask=masks.causal(), cache=cache)
        gradients.append(torch.autograd.grad(out.sum(), [x, layer.encoding.shift]))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


SPECS = (
    "rotary",
    YARN,
    "rotary(layout='interleaved')",
    "alibi",
    "t5_bias",
    "shaw",
    "xpos",
    "polar",
    "rerope(rotary, window=3)",
    "rotary + forgetting",
    "rotary + alibi",
    "contextual",
    "path",
    "fourier_rotary",
    "on(rotary, heads=(0, 2))",
    "tupe",
    "rotary(schedule=dynamic_ntk(trained_length=64))",
    "deberta",
    "none",
    "selective_rotary",
    # One part rotates keys at attention, and another does not.
    "rotary(schedule=dynamic_ntk(trained_length=6)) + alibi",
)

OPERATIONS = "extend", "extend", "crop", "evict", "evict in place", "drop", "move", "move to", "rows", "splice", "fork"


@pytest.mark.parametrize("seed", rest_slow(range(200), 44))
def test_any_operations_in_any_order_equal_plain_decoding(seed: int) -> None:
    """Run random operations. A row is a list of (vector, place), and each fork has its own rows."""
    rng, layer = random.Random(seed), layer_of(SPECS[seed % len(SPECS)])
    make = GrowingCache if seed % 3 else lambda: SlotCache(64)
    torch.manual_seed(seed)
    batch = 3 if seed // len(SPECS) % 2 else 1
    Row = list[tuple[Tensor, int]]
    caches: list[tuple[LayerCache, list[Row]]] = [(make(), [[] for _ in range(batch)])]

    def forward(rows: list[Row], cache: LayerCache | None) -> Tensor:
        places = [[place for _, place in row] for row in rows]
        alike = all(row == places[0] for row in places) and rng.random() < 0.7
        order = torch.tensor(places[:1] if alike else places)
        positions = Positions(order[..., None], order, unit_step=True, extent=64).with_horizon(64)
        x = torch.stack([torch.stack([x for x, _ in row]) for row in rows])
        with torch.no_grad():
            return layer(x, positions=positions, mask="causal", cache=cache)

    def new_tokens(number: int, first: list[int]) -> list[Row]:
        return [[(torch.randn(DIM, dtype=torch.float64), start + n) for n in range(number)] for start in first]

    def extend(cache: LayerCache, rows: list[Row], number: int, case: str) -> list[Row]:
        new = new_tokens(number, [max((place for _, place in row), default=-1) + 1 for row in rows])
        actual = forward(new, cache)
        rows = [[*row, *tokens] for row, tokens in zip(rows, new, strict=True)]
        expected = torch.cat([forward([row], None)[:, -number:] for row in rows])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10, msg=f"{case}, {SPECS[seed % len(SPECS)]}")
        return rows

    act = "extend"
    for _ in range(12):
        index = rng.randrange(len(caches))
        cache, rows = caches[index]
        first, last = ([end(place for _, place in row) for row in rows] if rows[0] else [] for end in (min, max))
        subset = None if batch == 1 or rng.random() < 0.5 else sorted(rng.sample(range(batch), rng.randint(1, 2)))
        indices = range(batch) if subset is None else subset
        previous, act = act, rng.choice(OPERATIONS)
        if not rows[0] or (act == "extend" and max(last) < 50):
            rows = extend(cache, rows, rng.randint(1, 4), f"after {previous}")
        elif act == "crop":
            limits = [rng.randint(a + 1, b + 1) for a, b in zip(first, last, strict=True)]
            limits = limits if len({*limits}) > 1 or max(first) >= limits[0] else [max(limits)] * batch
            cache.crop(limits[0] if len({*limits}) == 1 else torch.tensor(limits))
            rows = [[at for at in row if at[1] < limit] for row, limit in zip(rows, limits, strict=True)]
        elif act in ("evict", "evict in place"):
            keep = [[place for _, place in row if rng.random() < 0.7] or [row[0][1]] for row in rows]
            selection = torch.tensor([[place in places for place in range(max(last) + 1)] for places in keep])
            cache.evict(keep[0] if batch == 1 else selection, renumber=act == "evict", rows=subset)
            for b in indices:
                rows[b] = close_gaps(rows[b], keep[b]) if act == "evict" else [at for at in rows[b] if at[1] in keep[b]]
        elif act == "drop":
            begin = rng.randint(0, max(last))
            span = range(begin, rng.randint(begin, max(last)) + 1)
            if all(any(at[1] not in span for at in rows[b]) for b in indices):
                cache.drop(span, rows=subset)
                for b in indices:
                    rows[b] = close_gaps(rows[b], [place for _, place in rows[b] if place not in span])
        elif act == "move":
            far = rng.randint(-min(first[b] for b in indices), max(0, 50 - max(last)))
            cache.move(by=far, rows=subset)
            for b in indices:
                rows[b] = [(x, place + far) for x, place in rows[b]]
        elif act == "move to" and len({*map(len, rows)}) == 1 and (length := len(rows[0])) < 40:
            order = torch.tensor([[start + n for n in range(length)] for start in rng.choices(range(9), k=batch)])
            cache.move(to=Positions(order[..., None], order, unit_step=True, extent=64))
            rows = [
                [(x, n) for (x, _), n in zip(row, numbers, strict=True)]
                for row, numbers in zip(rows, order.tolist(), strict=True)
            ]
        elif act == "rows":
            selection = rng.choices(range(batch), k=batch)
            cache.rows(torch.tensor(selection))
            rows = [list(rows[b]) for b in selection]
        elif act == "splice" and max(last) < 45 and all(b == len(row) - 1 for b, row in zip(last, rows, strict=True)):
            part, place = make(), rng.randint(0, min(map(len, rows)))
            new = new_tokens(rng.randint(1, 4), [rng.randint(0, 9)] * batch)
            forward(new, part)
            cache.splice(part, place)
            rows = [[*row[:place], *entries, *row[place:]] for row, entries in zip(rows, new, strict=True)]
            rows = [[(x, count) for count, (x, _) in enumerate(row)] for row in rows]
        elif act == "fork" and len(caches) < 3:
            cache, twin = cache.fork(2)
            caches.append((twin, [list(row) for row in rows]))
        caches[index] = cache, rows
    for cache, rows in caches:
        extend(cache, rows, 2, f"at the end, after {act}")


@pytest.mark.parametrize("slots", [None, 40])
@pytest.mark.parametrize("spec", ["rotary", YARN, "rotary + alibi", ("rotary", "none")])
def test_a_document_that_was_computed_elsewhere_serves_a_model_where_it_is_put(spec, slots) -> None:
    """All keys of a model, moved together, equal its tokens' keys at the new positions."""
    torch.manual_seed(0)
    model = Decoder(19, 24, 3, 2, encoding=spec, max_len=64).double().eval()
    document, question = torch.randint(19, (1, 7)), torch.randint(19, (1, 3))
    with torch.no_grad():
        cache = model.cache(slots=slots)
        model(document, cache=cache)
        cache.move(by=9)
        actual = model(question, cache=cache)
        there = model.cache()
        model(document, positions=Positions.count(7, 9), cache=there)
        expected = model(question, cache=there)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def test_rows_of_a_batch_are_changed_each_for_itself() -> None:
    layer, x = layer_of("rotary + alibi"), torch.randn(3, 8, DIM, dtype=torch.float64)
    keep = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1], [1] * 8, [1, 1, 1, 1, 1, 0, 0, 0]]).bool()
    new = torch.randn(3, 2, DIM, dtype=torch.float64)
    for make in (GrowingCache, lambda: SlotCache(12)):
        cache = make()
        with torch.no_grad():
            layer(x, mask="causal", cache=cache)
            cache.evict(keep, rows=[0, 2])
            cache.drop(slice(0, 2), rows=1)
            cache.move(by=1, rows=torch.tensor([2]))
            actual = layer(new, mask="causal", cache=cache)
            for row, orders, start in ((0, [0, 1, 4, 5, 6, 7], 0), (1, [2, 3, 4, 5, 6, 7], 0), (2, [0, 1, 2, 3, 4], 1)):
                alone = torch.cat((x[row, orders], new[row]))[None]
                expected = layer(alone, positions=Positions.count(len(orders) + 2, start), mask="causal")[0, -2:]
                torch.testing.assert_close(actual[row], expected, rtol=0, atol=1e-12)


def test_gaps_close_within_each_document() -> None:
    cache, k = GrowingCache(), torch.zeros(1, 1, 9, 2)
    cache.take_in(posenc.Keys(k, k, Positions.packed([4, 5])))
    cache.drop([1, 2, 5])
    at = cache.held
    assert at is not None and at.order.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert at.coords[0, :, 0].tolist() == [0, 1, 0, 1, 2, 3] and at.document.tolist() == [[0, 0, 1, 1, 1, 1]]


def test_gaps_close_by_the_steps_that_were_there() -> None:
    cache, k = GrowingCache(), torch.zeros(1, 1, 5, 2)
    cache.take_in(posenc.Keys(k, k, Positions.of(torch.tensor([0.0, 0.5, 2.0, 2.5, 6.0]))))
    cache.drop([1, 2])
    assert cache.held is not None and cache.held.coords[0, :, 0].tolist() == [0.0, 0.5, 4.0]


def test_what_is_moved_once_is_turned_once(monkeypatch) -> None:
    layer, lengths = layer_of("rotary"), []
    right = Rotations.moved
    monkeypatch.setattr(Rotations, "moved", lambda self, k, *at: lengths.append(k.shape[2]) or right(self, k, *at))
    for make in (GrowingCache, lambda: SlotCache(30)):
        cache = make()
        with torch.no_grad():
            layer(torch.randn(1, 8, DIM, dtype=torch.float64), mask="causal", cache=cache)
            cache.drop(slice(2, 4))
            for _ in range(5):
                layer(torch.randn(1, 1, DIM, dtype=torch.float64), mask="causal", cache=cache)
        assert len(lengths) == 1
        lengths.clear()


def test_what_is_left_in_place_is_never_turned(monkeypatch) -> None:
    monkeypatch.setattr(Rotations, "moved", None)
    layer, cache = layer_of("rotary"), GrowingCache()
    with torch.no_grad():
        layer(torch.randn(1, 8, DIM, dtype=torch.float64), mask="causal", cache=cache)
        cache.evict([0, 5, 6, 7], renumber=False)
        cache.crop(7)
        cache.move(by=2), cache.move(by=-2)
        layer(torch.randn(1, 1, DIM, dtype=torch.float64), mask="causal", cache=cache)


def test_kept_tokens_in_a_row_are_served_as_such() -> None:
    cache, k = GrowingCache(), torch.zeros(2, 1, 9, 2)
    cache.take_in(posenc.Keys(k, k, Positions.count(9)))
    cache.evict([0, 1, 7, 8])
    assert cache.held is not None and cache.held.start == 0 and cache.held.tokens == 4


def test_forks_share_what_they_hold_and_go_their_own_ways() -> None:
    layer, x = layer_of("rotary"), torch.randn(1, 6, DIM, dtype=torch.float64)
    with torch.no_grad():
        for make in (GrowingCache, lambda: SlotCache(12)):
            cache = make()
            layer(x, mask="causal", cache=cache)
            left, right = cache.fork(2)
            assert left.keys.k.data_ptr() == right.keys.k.data_ptr() == cache.keys.k.data_ptr()
            extra = torch.randn(2, 1, 1, DIM, dtype=torch.float64)
            outputs = [layer(new, mask="causal", cache=twin) for new, twin in zip(extra, (left, right), strict=True)]
            for new, out in zip(extra, outputs, strict=True):
                torch.testing.assert_close(
                    out, layer(torch.cat((x, new), 1), mask="causal")[:, -1:], rtol=0, atol=1e-12
                )


def fill(spec: str = "rotary", slots: int | None = None, rolling: bool = False) -> Cache:
    torch.manual_seed(0)
    model = Decoder(9, 24, 3, 1, encoding=spec, max_len=32, window=8 if rolling else None).eval()
    cache = model.cache(slots=slots, rolling=rolling)
    with torch.no_grad():
        model(torch.randint(9, (2, 8)), cache=cache)
    return cache


REFUSALS: dict[str, Callable[[], object]] = {
    r"give by=a number of places, or to=a place or Positions": lambda: fill().move(),
    r"a token would come to order -1, before the first place, 0; move it by less": lambda: fill().move(by=-1),
    r"two tokens of a row would have order 5; make room first, or forget what is there": lambda: fill().move(3, to=5),
    r"got 3 positions for the 2 tokens that move; give one for each": lambda: fill().move(
        slice(0, 2), to=Positions.count(3)
    ),
    r"the tokens have 1 axes, got positions with 2; give as many": lambda: fill().move(to=Positions.grid(2, 4)),
    r"the cache holds tokens of order 0 to 7, got a tensor": lambda: fill().evict(torch.tensor([9])),
    r"the cache holds 8 tokens, got a boolean for 3; give one for each": lambda: fill().evict(torch.ones(3).bool()),
    r"select tokens by a slice, by numbers from 0 to 7, or by a boolean for each": lambda: fill().evict("all"),
    r"choose rows of the batch by numbers from 0 to 1, of shape \[rows\], got \[2\]": lambda: fill().drop(0, rows=[2]),
    r"the cache holds 8 tokens, and nothing can be put at 9": lambda: fill().splice(fill(), 9),
    r"splice takes the cache of the same model, got <posenc.cache.growing_cache": lambda: fill().splice(
        GrowingCache(), 0
    ),
    r"renumber must be True or False": lambda: fill().evict([0], renumber=1),
    r"the number of caches must be a whole number of 1 or more, got 0": lambda: fill().fork(0),
    r"the token of order 14 has no slot in a cache of 10": lambda: fill(slots=10).move(by=7),
    r"a rolling cache of 10 slots holds as many adjacent tokens, and these span 12": lambda: fill(
        slots=10, rolling=True
    ).move(slice(4, None), by=4),
    r"tokens would stand elsewhere, and their keys were made of embeddings with positions added; leave them where they "
    r"are, as evict\(keep, renumber=False\) and crop do, or feed the tokens again": lambda: fill("learned").move(by=1),
    r"tokens would stand elsewhere, and their keys were turned in a way": lambda: fill("rotary + xpos").drop(0),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_cannot_be_done_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSALS[words]()


def test_gaps_on_several_axes_are_not_closed() -> None:
    cache, k = GrowingCache(), torch.zeros(1, 1, 4, 2)
    cache.take_in(posenc.Keys(k, k, Positions.grid(2, 2)))
    with pytest.raises(ValueError, match=r"gaps close along one axis, and these tokens have 2; give renumber=False"):
        cache.drop(1)
    with pytest.raises(ValueError, match=r"a number moves tokens along one axis, and these have 2; give their places"):
        cache.move(by=1)
    packed = GrowingCache()
    packed.take_in(posenc.Keys(k, k, Positions.packed([2, 2])))
    with pytest.raises(ValueError, match="only tokens of one document that count up by one can be spliced"):
        packed.splice(cache, 0)


def test_a_refused_move_changes_nothing() -> None:
    cache = fill("learned")
    state = [layer.keys for layer in cache.layers], cache.held
    with pytest.raises(ValueError):
        cache.drop(3)
    assert ([layer.keys for layer in cache.layers], cache.held) == state


def test_bytes_are_those_of_the_memory_that_is_held() -> None:
    cache = fill("forgetting").layers[0]
    assert cache.keys is not None
    k, v, gates = cache.keys.k, cache.keys.v, cache.keys.memo["forgetting"]
    assert cache.bytes == k.nbytes + v.nbytes + gates.nbytes == 2 * 3 * 8 * (8 + 8 + 1) * 4
    assert fill(slots=20).bytes == 2 * 3 * 21 * 16 * 4
    assert GrowingCache().bytes == SlotCache(3).bytes == 0


@pytest.mark.parametrize("kind", [{}, {"slots": 20}, {"slots": 12, "rolling": True}])
@pytest.mark.parametrize("spec", ["rotary + alibi", "forgetting", YARN])
def test_a_cache_goes_on_from_its_file(spec: str, kind: dict, tmp_path) -> None:
    torch.manual_seed(0)
    model = Decoder(9, 24, 3, 2, encoding=spec, max_len=32, window=8).double().eval()
    ids, new, file = torch.randint(9, (2, 8)), torch.randint(9, (2, 3)), tmp_path / "cache.safetensors"
    with torch.no_grad():
        cache = model.cache(**kind)
        model(ids, padding=torch.tensor([[0, 0] + [1] * 6, [1] * 8]), cache=cache)
        if not kind.get("rolling"):
            cache.drop([1, 2])
        cache.save(file)
        twin = Cache.load(file)
        assert type(twin.layers[0]) is type(cache.layers[0]) and twin.bytes <= cache.bytes
        torch.testing.assert_close(model(new, cache=twin), model(new, cache=cache), rtol=0, atol=1e-12)


def test_a_cache_that_was_written_over_does_not_go_back() -> None:
    torch.manual_seed(0)
    model = Decoder(9, 24, 3, 1, encoding="rotary", window=4).eval()
    with torch.no_grad():
        rolling = model.cache(slots=6, rolling=True)
        for _ in range(4):
            model(torch.zeros(1, 2, dtype=torch.long), cache=rolling)
        with pytest.raises(ValueError, match="a rolling cache of 6 slots has overwritten its oldest tokens"):
            rolling.crop(5)


@pytest.mark.parametrize("slots", [None, 12])
@pytest.mark.parametrize("spec", ["rotary", "alibi"])
def test_rows_that_shared_one_place_may_get_places_of_their_own(spec: str, slots: int | None) -> None:
    model = Decoder(9, 24, 3, 2, encoding=spec).eval().double()
    cache, ids, start = model.cache(slots=slots), torch.ones(3, 5, dtype=torch.long), [[0, 1, 5], [0, 1, 3], [1, 2, 4]]
    places = torch.cat((torch.tensor(start), torch.full((3, 1), 7)), 1)
    with torch.no_grad():
        model(ids[:, :3], cache=cache)
        cache.move(to=Positions.of(places[:, :3]))
        actual = model(ids[:, :1], cache=cache, positions=Positions.of(places[:, 3:]))
        expected = model(ids[:, :4], positions=Positions.of(places))
    torch.testing.assert_close(actual, expected[:, -1:], rtol=0, atol=1e-12)
