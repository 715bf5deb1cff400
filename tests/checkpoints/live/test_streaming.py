"""A stream through a live model: its cache equals one of the first and the newest tokens alone."""

from itertools import islice

import pytest
import torch

pytest.importorskip("transformers")

from checkpoints.live.test_attach import make
from checkpoints.live.test_moving_keys import one_layer

from posenc.checkpoints import stream, streamed_losses
from posenc.checkpoints.live.streaming import Stream
from posenc.checkpoints.measures.perplexity import losses

TEXT = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3", "bloom"])
def test_each_token_sees_the_first_ones_and_the_newest(family: str) -> None:
    """In one layer a cached key depends on its token alone, so a pass over the cached tokens is an oracle."""
    model = one_layer(family)
    actual = streamed_losses(model, TEXT, sinks=2, window=6, slack=4)
    for place in range(1, len(TEXT)):
        # Pieces begin at 8, 12, 16, ...: the cache then has 2 + 6 tokens and the piece.
        begin = 0 if place < 9 else (place - 1) // 4 * 4
        visible = [*range(2), *range(begin - 6, place)] if begin else range(place)
        expected = losses(model, TEXT[[*visible, place]])[-1]
        assert float(actual[place - 1]) == pytest.approx(float(expected), abs=2e-4), place


def test_a_short_text_is_read_as_ever() -> None:
    model = make("llama")
    torch.testing.assert_close(streamed_losses(model, TEXT[:9], sinks=2, window=7), losses(model, TEXT[:9]))


def test_a_stream_goes_on_for_ever_in_bounded_memory() -> None:
    model = make("llama")
    reading = Stream(model, 2, 6, 4)
    bytes_held, largest = set(), 0
    for piece in reading.pieces(TEXT):
        reading.read(piece)
    for new in TEXT.repeat(3).split(1):
        reading.read(new)
        bytes_held.add(reading.tokens.bytes)
        largest = max(largest, int(reading.tokens.held.coords.max()))
    assert largest == 2 + 6 + 4 - 1
    assert max(bytes_held) <= 2 * 2 * 2 * 12 * 8 * 4 * 1.5
    assert len(list(islice(stream(model, TEXT, sinks=2, window=6, slack=4), 50))) == 50


def test_generated_ids_are_the_likeliest_behind_what_is_held() -> None:
    model = one_layer("llama")
    new_ids = list(stream(model, TEXT[:5], sinks=1, window=4, slack=1, max_new_tokens=12))
    ids = TEXT[:5].tolist()
    for new in new_ids:
        # The cache has one token too many before the oldest of the window goes.
        cached_ids = ids if len(ids) <= 6 else [ids[0], *ids[-5:]]
        with torch.no_grad():
            assert int(model(torch.tensor([cached_ids])).logits[0, -1].argmax()) == new
        ids.append(new)
    options = {"max_new_tokens": 6, "temperature": 1.0, "top_k": 5}
    samples = list(stream(model, TEXT[None, :5], seed=1, **options))
    assert samples == list(stream(model, TEXT[:5], seed=1, **options)) and len(samples) == 6
    assert samples != list(stream(model, TEXT[:5], seed=2, **options))


def test_what_cannot_be_streamed_is_refused() -> None:
    model = make("llama")
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel cannot read a stream: .*positions added"):
        stream(make("gpt2"), TEXT)
    with pytest.raises(ValueError, match=r"ids of one prompt, \[T\] or \[1, T\], got shape \[2, 3\]"):
        stream(model, TEXT[:6].view(2, 3))
    for options, message in (
        ({"sinks": -1}, "sinks must be"),
        ({"window": 0}, "window must be"),
        ({"slack": 0}, "slack must be"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
        ({"temperature": -1.0}, "temperature must be a finite number of 0 or more, got -1.0"),
        ({"top_k": 0}, "top_k must be"),
    ):
        with pytest.raises(ValueError, match=message):
            stream(model, TEXT, **options)
    with pytest.raises(ValueError, match="predictions take the ids"):
        streamed_losses(model, TEXT[:1])
