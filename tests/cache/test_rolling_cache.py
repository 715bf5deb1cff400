"""A rolling cache holds all keys that its mask shows, or refuses and stays unchanged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import Attention, Cache, Decoder, Positions, masks
from posenc.cache import SlotCache
from posenc.tokens.masks import Mask

SIZES = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2}
IDS = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))


def decode(model: Decoder, cuts: list[int], cache: Cache, mask: Mask | None = None) -> torch.Tensor:
    """Return the logits of tokens in chunks of these sizes."""
    out, begin = [], 0
    for size in cuts:
        out.append(model(IDS[:, begin : begin + size], cache=cache, mask=mask))
        begin += size
    return torch.cat(out, 1)


@pytest.mark.parametrize("window", [None, (4, None), (None, 4)])
@torch.no_grad()
def test_a_layer_without_a_window_is_refused(window) -> None:
    model = Decoder(**SIZES, window=window).eval()
    with pytest.raises(ValueError, match=r"rolling cache of 8 slots forgets .* no window; give mask=masks.window"):
        model(IDS[:, :1], cache=model.cache(slots=8, rolling=True))


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.prefix(2), torch.ones(1, 9, dtype=torch.bool)])
def test_attention_whose_mask_has_no_window_is_refused(mask) -> None:
    layer, x = Attention(16, 2, encoding="rotary"), torch.randn(1, 1, 16)
    with pytest.raises(ValueError, match="the mask has no window"):
        layer(x, mask=mask, cache=SlotCache(8, rolling=True))


@pytest.mark.parametrize("window", [9, (4, 9)])
@torch.no_grad()
def test_fewer_slots_than_the_window_are_refused(window) -> None:
    model = Decoder(**SIZES, window=window).eval()
    cache = model.cache(slots=8, rolling=True)
    with pytest.raises(ValueError, match=r"8 slots cannot hold a window of 9 tokens; .*window \+ chunk - 1"):
        model(IDS[:, :1], cache=cache)
    assert cache.layers[0].keys is None  # also in the layer whose window fits
    model(IDS[:, :1], cache=cache, mask=masks.window(8))


@torch.no_grad()
def test_a_chunk_that_would_write_over_what_its_first_tokens_see_is_refused_and_changes_nothing() -> None:
    model = Decoder(**SIZES, window=4).double().eval()
    cache = model.cache(slots=6, rolling=True)
    expected = model(IDS)
    decode(model, [5], cache)
    with pytest.raises(ValueError, match=r"chunk of 4 .* window of 4 needs 7 slots for it, got 6; .* at most 3"):
        model(IDS[:, 5:9], cache=cache)
    later = [model(IDS[:, begin : begin + 3], cache=cache) for begin in (5, 8, 11)]
    torch.testing.assert_close(torch.cat(later, 1), expected[:, 5:14], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="7 tokens came at once to a rolling cache of 6 slots"):
        model(IDS[:, :7], cache=cache)


@given(
    st.integers(1, 7),
    st.integers(1, 10),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.lists(st.integers(0, 6), min_size=2, max_size=2),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@torch.no_grad()
def test_whatever_is_not_refused_is_right(window: int, slots: int, cuts: list[int], padding: list[int]) -> None:
    layer = Attention(8, 2, encoding="rotary + alibi").double()
    real = torch.arange(cuts[0]) >= torch.tensor(padding)[:, None].clamp(max=cuts[0] - 1)
    x = torch.randn(2, sum(cuts), 8, dtype=torch.float64)
    at = Positions.padded(torch.cat((real, torch.ones(2, sum(cuts) - cuts[0], dtype=torch.bool)), 1))
    expected = layer(x, positions=at, mask=masks.window(window))
    cache, begin = SlotCache(slots, rolling=True), 0
    for size in cuts:
        chunk = slice(begin, begin + size)
        try:
            actual = layer(x[:, chunk], positions=at.rows(chunk), mask=masks.window(window), cache=cache)
        except ValueError as error:
            assert "rolling cache" in str(error)
            length = begin and int(at.order[:, :begin].max()) + 1
            assert slots < window + size - 1 and (slots < window or size > slots or length + size > slots)
            return
        torch.testing.assert_close(actual, expected[:, chunk], rtol=0, atol=1e-12)
        begin += size


@torch.no_grad()
def test_a_static_cache_that_is_full_refuses_in_every_row_and_is_as_it_was() -> None:
    model = Decoder(**SIZES).double().eval()
    cache = model.cache(slots=6)
    padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    model(IDS[:, :4], padding=padding, cache=cache)
    with pytest.raises(ValueError, match=r"the token of order 6 has no slot in a cache of 6; .* at least 7 slots"):
        model(IDS[:, 4:7], cache=cache)
    actual = model(IDS[:, 4:6], cache=cache)
    torch.testing.assert_close(actual[1:], model(IDS[1:, :6])[:, 4:], rtol=0, atol=1e-12)


def test_the_cache_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the cache is for 3 layers, and this model has 2; make it with model.cache"):
        Decoder(**SIZES)(IDS, cache=Cache(3))
