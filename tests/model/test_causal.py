"""Causal layers, blocks and models see no later token, whatever other options are set."""

import re
import warnings

import pytest
import torch
from torch import Tensor

from posenc import Attention, Block, Decoder, Encoder, EncoderDecoder, Encoding, Positions, T5Bias, masks
from posenc.cache import GrowingCache, SlotCache

X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(3))
CHANGED_X = torch.cat((X[:, :5], 7 - 3 * X[:, 5:]), 1)
SPECS = ("none", "rotary", "alibi", "t5_bias", "shaw", "forgetting", "rotary + alibi")
TRIL = torch.ones(9, 9, dtype=torch.bool).tril()
MASKS = {
    "nothing": None,
    "a word": "causal",
    "a window": masks.window(3),
    "a window both ways": masks.window(3, causal=False),
    "a tensor": torch.ones(9, 9, dtype=torch.bool),
    "numbers": torch.zeros(9, 9),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("make", [Attention, Block])
def test_no_output_of_a_causal_layer_depends_on_a_later_token(make, spec: str, mask) -> None:
    layer = make(16, 4, encoding=spec, causal=True).eval()
    assert torch.allclose(layer(X, mask=mask)[:, :5], layer(CHANGED_X, mask=mask)[:, :5], atol=1e-6)
    both_ways = make(16, 4, encoding=spec).eval()
    assert not torch.allclose(both_ways(X)[:, :5], both_ways(CHANGED_X)[:, :5], atol=1e-3)


def test_a_causal_layer_without_a_mask_is_one_under_a_causal_mask() -> None:
    layer = Attention(16, 4, encoding="rotary", causal=True)
    expected = layer(X)
    for inputs in ((X, X), (X, X, X)):
        assert torch.equal(layer(*inputs), expected)
    assert torch.equal(layer(X, mask=masks.causal()), expected)
    visible = (torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.7) | torch.eye(9).bool()
    torch.testing.assert_close(layer(X, mask=visible), layer(X, mask=visible & TRIL))
    assert not torch.equal(layer(X, mask=masks.prefix(4))[:, 0], expected[:, 0])


def test_attention_to_another_sequence_is_never_causal() -> None:
    layer, memory = Attention(16, 4, causal=True), CHANGED_X[:, 3:]
    out = layer(X, memory)
    later = torch.cat((memory[:, :-1], memory[:, -1:] + 1), 1)
    assert not torch.allclose(layer(X, later)[:, 0], out[:, 0])
    model = EncoderDecoder(11, 16, 4, 1).eval()
    source, target = torch.randint(11, (1, 6)), torch.randint(11, (1, 4))
    [weights] = model(source, target, need_weights=True)[1]
    assert bool((weights["cross"] > 0).all()) and not weights["self"].triu(1).any()


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(12)])
def test_a_cache_and_a_window_agree_with_it(make) -> None:
    layer = Attention(16, 4, encoding="t5_bias", causal=True).double()
    x, cache = X.double(), make()
    for mask in (None, masks.window(3, causal=False)):
        cache, steps = make(), []
        for t in range(9):
            steps.append(layer(x[:, t : t + 1], mask=mask, cache=cache))
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, mask=mask))


def test_a_bidirectional_mask_in_a_causal_layer_is_refused_with_what_to_build() -> None:
    for layer in (Attention(16, 4, causal=True), Block(16, 4, causal=True)):
        for mask in ("bidirectional", masks.bidirectional()):
            with pytest.raises(ValueError, match="this layer is causal; leave the mask out, or build an Encoder"):
                layer(X, mask=mask)
    ids = torch.randint(11, (1, 5))
    with pytest.raises(ValueError, match="build an Encoder"):
        Decoder(11, 16, 4, 1)(ids, mask="bidirectional")
    assert Encoder(11, 16, 4, 1)(ids, mask="bidirectional").shape == (1, 5, 16)
    assert Attention(16, 4, causal=False)(X, mask="bidirectional").shape == X.shape


class OneWay(Encoding):
    """An encoding without effect that only has a `causal` attribute."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal


def warnings_of(layer, *args, **kwargs) -> list[str]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        layer(*args, **kwargs), layer(*args, **kwargs)
    return [str(warning.message) for warning in records]


@pytest.mark.parametrize(
    ("layer", "mask", "words"),
    [
        (lambda: Attention(16, 4, encoding="t5_bias"), "causal", "hides the future; .* with causal=True"),
        (lambda: Attention(16, 4, encoding="t5_bias"), TRIL, "hides the future"),
        (lambda: Attention(16, 4, encoding=T5Bias(4)), None, "lets tokens see the future; .* with causal=False"),
        (lambda: Attention(16, 4, encoding=T5Bias(4)), masks.prefix(3), "lets tokens see the future"),
        (lambda: Attention(16, 4, encoding=T5Bias(4) + OneWay(False)), "causal", "OneWay.* hides the future"),
        (lambda: Attention(16, 4, encoding="rotary + t5_bias", causal=True), masks.prefix(3), "lets tokens see"),
        (lambda: Block(16, 4, encoding=OneWay(True)), None, "OneWay.* lets tokens see the future"),
        (lambda: Attention(16, 4, encoding="t5_bias", causal=True), None, None),
        (lambda: Attention(16, 4, encoding="t5_bias"), None, None),
        (lambda: Attention(16, 4, encoding=T5Bias(4)), TRIL, None),
        (lambda: Attention(16, 4, encoding="alibi"), "causal", None),
    ],
)
def test_an_encoding_for_the_other_direction_is_told_of_once(layer, mask, words: str | None) -> None:
    messages = warnings_of(layer(), X, mask=mask)
    if words is None:
        assert messages == []
    else:
        [message] = messages
        assert re.search(words, message)


def test_a_model_tells_of_it_once_too() -> None:
    ids = torch.randint(11, (1, 9))
    assert warnings_of(Decoder(11, 16, 4, 2, encoding="t5_bias"), ids) == []
    assert warnings_of(Encoder(11, 16, 4, 2, encoding="t5_bias"), ids) == []
    [message] = warnings_of(Encoder(11, 16, 4, 2, encoding="t5_bias"), ids, mask="causal")
    assert "hides the future" in message


IDS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])


@pytest.mark.parametrize("subject", ["attention", "model"])
def test_ids_that_begin_again_are_told_of_once_and_packed_ones_are_not(subject: str) -> None:
    layer, x = (Attention(16, 4), X) if subject == "attention" else (Decoder(11, 16, 4, 2), torch.randint(11, (1, 9)))
    [message] = warnings_of(layer, x, positions=IDS)
    assert "Positions.packed(lengths)" in message
    quiet: list[Positions | Tensor] = [Positions.packed([4, 5]), torch.arange(9), torch.tensor([[0] * 3 + [*range(6)]])]
    for at in (*quiet, IDS.double(), torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8])):
        assert warnings_of(layer, x, positions=at) == []
