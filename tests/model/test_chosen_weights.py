"""Chosen attention weights equal the matching parts of the reference kernel's matrix."""

import pytest
import torch
from torch import Tensor

from posenc import Attention, Block, Decoder, Encoder, EncoderDecoder, Mask, Positions, Shape, chosen_weights, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.catalogue import build, names
from posenc.model.attention import plain_rule

DIM, HEADS, TOKENS, BATCH = 24, 3, 9, 2


@pytest.fixture(autouse=True)
def few_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit blocks to two rows. Nine rows then give several blocks and a smaller last one."""
    monkeypatch.setattr("posenc.model.chosen_weights.LOGITS_AT_ONCE", 2 * BATCH * HEADS * TOKENS)


def layer_of(spec: str, **options) -> Attention:
    encoding = build(spec, Shape.of(DIM, HEADS, TOKENS + 4))
    layer = Attention(DIM, HEADS, encoding=encoding, **options).double()
    layer.has_warned = True  # suppresses the warning about encodings used under the other direction's mask
    assert layer.encoding is not None
    with torch.no_grad():
        for parameter in layer.encoding.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(batch: int = BATCH, length: int = TOKENS) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", [*names(), "rotary + alibi", "shaw + rotary", "on(alibi, heads=(0, 2))"])
def test_chosen_rows_and_heads_are_those_of_the_whole_matrix(spec: str) -> None:
    layer, x = layer_of(spec), tokens()
    assert layer.encoding is not None
    place = torch.arange(TOKENS)
    ids = (
        place if layer.encoding.axes < 2 else torch.stack([place % 4 + axis for axis in range(layer.encoding.axes)], -1)
    )
    at = Positions.count(TOKENS) if layer.encoding.axes < 2 else Positions.of(ids[None])
    at = at.with_horizon(TOKENS)
    out, whole = layer(x, positions=at, mask=masks.causal(), need_weights=True)
    actual, weights = chosen_weights(layer, x, positions=at, mask=masks.causal(), rows=(7, 0, -1, 3, 3), heads=(2, 0))
    close(actual, out)
    close(weights, whole[:, [2, 0]][:, :, [7, 0, 8, 3, 3]])
    close(chosen_weights(layer, x, positions=at, mask=masks.causal(), rows=slice(1, 8))[1], whole[:, :, 1:8])


BIAS = torch.randn(BATCH, 1, TOKENS, TOKENS, dtype=torch.float64)
SETTINGS = {
    "bidirectional": (Positions.count(TOKENS), masks.bidirectional()),
    "window": (Positions.count(TOKENS, start=5), masks.window(3)),
    "prefix": (Positions.count(TOKENS), masks.prefix(4)),
    "given": (Positions.count(TOKENS), Mask(causal=True, tensor=BIAS > 0)),
    "added": (Positions.count(TOKENS), Mask(causal=True, tensor=BIAS)),
    "given for all rows": (Positions.count(TOKENS), Mask(tensor=BIAS[:1, 0, :1] > 0)),
    "left padding": (Positions.padded(torch.tensor([[0] * 4 + [1] * 5, [1] * 9])), masks.causal()),
    "packed": (Positions.packed([4, 5]), masks.causal()),
    "fractions": (Positions.of(torch.linspace(0, 4, TOKENS, dtype=torch.float64)), masks.causal()),
}


@pytest.mark.parametrize("spec", ["shaw", "rotary + forgetting", "stick_breaking"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_mask_and_every_place_keeps_its_weights(spec: str, setting: str) -> None:
    at, mask = SETTINGS[setting]
    layer, x = layer_of(spec), tokens()
    _, whole = layer(x, positions=at, mask=mask, need_weights=True)
    for rows in (slice(2, 7), (8, 1), slice(None, None, -3), 4):
        numbers = list(range(TOKENS))
        index = [rows] if isinstance(rows, int) else numbers[rows] if isinstance(rows, slice) else list(rows)
        close(chosen_weights(layer, x, positions=at, mask=mask, rows=rows)[1], whole[:, :, index])


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(TOKENS + 2)])
def test_behind_a_cache_rows_are_those_of_the_call_and_keys_those_of_the_cache(make) -> None:
    layer, x = layer_of("rotary + alibi + forgetting"), tokens()
    caches = make(), make()
    for cache in caches:
        layer(x[:, :5], mask=masks.causal(), cache=cache)
    options = {"positions": Positions.count(4, 5), "mask": masks.causal()}
    _, whole = layer(x[:, 5:], cache=caches[0], need_weights=True, **options)
    _, weights = chosen_weights(layer, x[:, 5:], rows=(-1, 1), heads=1, cache=caches[1], **options)
    close(weights, whole[:, [1]][:, :, [3, 1]])


def test_in_cross_attention_and_with_shared_key_heads_too() -> None:
    layer = Attention(DIM, 6, kv_heads=2, encoding="alibi").double()
    x, memory = tokens(length=4), tokens(length=7)
    _, whole = layer(x, memory, need_weights=True)
    close(chosen_weights(layer, x, memory, rows=2, heads=slice(1, 4))[1], whole[:, 1:4, 2:3])


def test_a_row_that_sees_nothing_has_no_weights() -> None:
    at = Positions.padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))
    _, weights = chosen_weights(layer_of("alibi"), tokens(length=4), positions=at, mask="causal", rows=(0, 3))
    assert weights[0, :, 0].eq(0).all() and not weights[:, :, 1].eq(0).all(-1).any()


def test_gradients_flow_through_chosen_weights() -> None:
    layer, x = layer_of("t5_bias"), tokens()
    weights = chosen_weights(layer, x, mask=masks.causal(), rows=(2, 8), heads=1)[1]
    whole = layer(x, mask=masks.causal(), need_weights=True)[1][:, [1]][:, :, [2, 8]]
    upstream = torch.randn_like(weights)
    for actual, expected in zip(
        torch.autograd.grad(weights, list(layer.encoding.parameters()), upstream),
        torch.autograd.grad(whole, list(layer.encoding.parameters()), upstream),
        strict=True,
    ):
        assert expected.abs().max() > 0
        close(actual, expected)


def test_dropout_takes_part_in_the_output_and_not_in_chosen_weights() -> None:
    layer, x = layer_of("alibi", dropout=0.5), tokens()
    weights = chosen_weights(layer, x, mask=masks.causal(), rows=-1)[1]
    close(weights, layer.eval()(x, mask=masks.causal(), need_weights=True)[1][:, :, -1:])


def test_weights_of_half_precision_come_in_half_precision() -> None:
    layer, x = layer_of("alibi").bfloat16(), tokens().bfloat16()
    _, whole = layer(x, mask=masks.causal(), need_weights=True)
    weights = chosen_weights(layer, x, mask=masks.causal(), rows=slice(3, None))[1]
    assert weights.dtype == torch.bfloat16
    torch.testing.assert_close(weights, whole[:, :, 3:])


# Through models


def test_a_decoder_gives_the_weights_of_chosen_layers_in_the_order_asked_for() -> None:
    model = Decoder(vocab=11, dim=DIM, heads=HEADS, layers=4, encoding="rotary", window=(None, 3)).double().eval()
    ids = torch.randint(11, (BATCH, TOKENS))
    logits, whole = model(ids, need_weights=True)
    for only in (None, slice(-1, None)):
        actual, layer_weights = chosen_weights(model, ids, rows=-1, heads=(0, 2), layers=(-1, 1), only=only)
        close(actual, logits if only is None else logits[:, only])
        assert len(layer_weights) == 2
        for weights, layer in zip(layer_weights, (3, 1), strict=True):
            close(weights, whole[layer][:, [0, 2], -1:])
    # Here the last layer computes only these tokens, so nothing is left to select.
    actual, [first] = chosen_weights(model, ids, layers=0, only=slice(2, 5))
    close(actual, logits[:, 2:5])
    close(first, whole[0])


def test_an_encoder_an_encoder_decoder_and_a_block_pass_the_choice_on() -> None:
    source, target = torch.randint(11, (BATCH, TOKENS)), torch.randint(11, (BATCH, 5))
    encoder = Encoder(vocab=11, dim=DIM, heads=HEADS, layers=2, encoding="alibi").double().eval()
    whole = encoder(source, need_weights=True)[1]
    [last] = chosen_weights(encoder, source, layers=-1, rows=0)[1]
    close(last, whole[1][:, :, :1])
    model = EncoderDecoder(vocab=11, dim=DIM, heads=HEADS, layers=2).double().eval()
    whole = model(source, target, need_weights=True)[1]
    [of_layer] = chosen_weights(model, source, target, layers=1, heads=2, rows=(4, 0))[1]
    assert of_layer.keys() == {"self", "cross"}
    for name, weights in of_layer.items():
        close(weights, whole[1][name][:, [2]][:, :, [4, 0]])
    block = Block(DIM, HEADS, encoding="shaw").double().eval()
    x = tokens()
    close(chosen_weights(block, x, heads=0)[1], block(x, need_weights=True)[1][:, :1])


# Errors


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"rows": 9}, "no row 9: there are 9, from 0 to 8, or from -9 to -1"),
        ({"rows": (0, -10)}, "no row -10: there are 9"),
        ({"heads": 3}, "no head 3: there are 3, from 0 to 2, or from -3 to -1"),
        ({"rows": slice(9, None)}, r"rows=slice\(9, None, None\) holds none of the 9 rows; choose one at least"),
        ({"heads": ()}, r"heads=\(\) holds none of the 3 heads; choose one at least"),
        ({"layers": 0}, "layers are chosen in a model, and this is one layer; leave out layers=0"),
    ],
)
def test_what_does_not_exist_cannot_be_chosen(choice: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen_weights(layer_of("none"), tokens(), **choice)


def test_a_layer_that_does_not_exist_is_refused_by_the_model() -> None:
    model = Decoder(vocab=11, dim=DIM, heads=HEADS, layers=2)
    with pytest.raises(ValueError, match="no layer 2: there are 2, from 0 to 1, or from -2 to -1"):
        chosen_weights(model, torch.zeros(1, 2, dtype=torch.long), layers=2)


def test_only_modules_with_whole_attention_of_posenc_have_weights_to_choose() -> None:
    with pytest.raises(ValueError, match=r"of posenc's Attention, Block, .*, got Linear\(in_features"):
        chosen_weights(torch.nn.Linear(3, 3), torch.zeros(1, 3))
    layer, x = layer_of("none"), tokens()
    layer.rule = lambda *args: (args[0], None)
    with pytest.raises(ValueError, match="a model that is cut over ranks are on no rank; ask the whole model"):
        chosen_weights(layer, x)


def test_a_layer_is_as_it_was_behind_an_error_too() -> None:
    layer, x = layer_of("none"), tokens()
    with pytest.raises(ValueError, match="no row 9"):
        chosen_weights(layer, x, rows=9)
    assert layer.rule is plain_rule
    close(chosen_weights(layer, x)[1], layer(x, need_weights=True)[1])


def test_a_model_that_computes_its_blocks_again_gives_weights_with_gradients() -> None:
    model, ids = Decoder(11, DIM, HEADS, layers=2).double(), torch.randint(11, (BATCH, TOKENS))
    parameters = [model.embedding.token.weight, *model.stack.blocks[0].attention.q_proj.parameters()]

    def slopes() -> tuple[Tensor, ...]:
        logits, (weights,) = chosen_weights(model, ids, layers=1, rows=(2, 5))
        return torch.autograd.grad(logits.square().sum() + weights.square().sum(), parameters)

    expected = slopes()
    model.stack.activation_checkpointing = True
    torch.testing.assert_close(slopes(), expected, rtol=0, atol=1e-12)
    assert model.stack.activation_checkpointing
