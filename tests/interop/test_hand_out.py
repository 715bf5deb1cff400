"""Exported values give our logits under each target's published formula, or are refused."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import write_hand_outs
from tiers import rest_slow
from torch import Tensor
from write_hand_outs import SHAPE, SPECS, TOKENS, build_all, positions_of

import posenc
from posenc import Attention, Encoding, Positions, Shape, hand_out, hand_outs, masks
from posenc.encodings.rotations import Rotations
from posenc.hand_outs import TARGETS

H, D, SCALE = SHAPE.heads, SHAPE.head_dim, SHAPE.head_dim**-0.5
BATCH = 2


def heads(seed: int, tokens: int = TOKENS) -> Tensor:
    """Return queries or keys [B, H, T, D] that are exact in float32."""
    return torch.randn(BATCH, H, tokens, D, generator=torch.Generator().manual_seed(seed))


def our_logits(encoding: Encoding, q: Tensor, k: Tensor, at: Positions, mask: Any = "causal") -> Tensor:
    """Return posenc's float64 logits [B, H, T, T] minus their log-sum-exp; -inf where masked."""
    attention = Attention(2 * H * D, heads=H, head_dim=D, encoding=encoding, kernel="reference", dtype=torch.float64)
    # t5_bias is used under causal and bidirectional masks.
    attention.has_warned = True
    with torch.no_grad():
        # The first half of each token holds its queries, the second its keys.
        for layer, half in ((attention.q_proj, 0), (attention.k_proj, 1)):
            layer.weight.zero_()[:, half * H * D : (half + 1) * H * D].fill_diagonal_(1.0)
            if layer.bias is not None:
                layer.bias.zero_()
        tokens = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k)], -1)
        return attention(tokens.double(), positions=at, mask=mask, need_weights=True)[1].log()


def causal(logits: Tensor) -> Tensor:
    return logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -math.inf)


def products(q: Tensor, k: Tensor, scale: float = SCALE) -> Tensor:
    return scale * (q @ k.transpose(-1, -2))


def of_flash_attention(hand_out_of: Any, q: Tensor, k: Tensor) -> Tensor:
    """Reimplement flash-attention's apply_rotary_emb_torch, x cos + rotate_half(x) sin, and attention_ref."""

    def apply(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        width = 2 * cos.shape[-1]
        head, rest = x[..., :width], x[..., width:]
        if interleaved:
            cos, sin = (table.repeat_interleave(2, -1) for table in (cos, sin))
            half = torch.stack((-head[..., 1::2], head[..., ::2]), -1).flatten(-2)
        else:
            cos, sin = (table.repeat(1, 2) for table in (cos, sin))
            half = torch.cat((-head[..., width // 2 :], head[..., : width // 2]), -1)
        return torch.cat((head * cos[:, None] + half * sin[:, None], rest), -1)

    if hand_out_of.apply_rotary_emb is not None:
        q, k = (apply(x.transpose(1, 2), **hand_out_of.apply_rotary_emb).transpose(1, 2) for x in (q, k))
    return flash_logits(q, k, **hand_out_of.flash_attn_func)


def flash_logits(
    q: Tensor, k: Tensor, causal: bool, window_size: tuple[int, int], alibi_slopes: Tensor | None = None
) -> Tensor:
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    logits = products(q, k)
    if alibi_slopes is not None:
        assert alibi_slopes.dtype == torch.float32 and alibi_slopes.shape == (H,)
        logits = logits - alibi_slopes[:, None, None] * (i - j).abs()
    left, right = window_size
    hidden = (j > i) if causal else torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    hidden = hidden | (j < i - left) if left >= 0 else hidden
    hidden = hidden | (j > i + right) if right >= 0 else hidden
    return logits.masked_fill(hidden, -math.inf)


def of_flex_attention(target: Any, q: Tensor, k: Tensor) -> Tensor:
    """Call the closures with scalars for one token pair under vmap, as FlexAttention does."""
    if target.turn is not None:
        q, k = target.turn(q, k)
    logits, call = products(q, k), target.flex_attention
    at = torch.cartesian_prod(*(torch.arange(n) for n in logits.shape)).unbind(1)
    flat = logits.flatten() if call["score_mod"] is None else torch.vmap(call["score_mod"])(logits.flatten(), *at)
    visible = torch.vmap(call["block_mask"].mask_mod)(*at)
    return flat.masked_fill(~visible, -math.inf).view_as(logits)


def of_liger(target: Any, q: Tensor, k: Tensor) -> Tensor:
    """Return [x1, x2] * [cos, cos] + [-x2, x1] * [sin, sin]. Like the kernel, it reads the tables' left half."""
    cos, sin = (target.liger_rotary_pos_emb[name] for name in ("cos", "sin"))
    assert cos.shape[-1] == sin.shape[-1] == D and cos.dim() == 3
    # Hugging Face's function takes the same tables but also reads their right half.
    assert all(table[..., : D // 2].equal(table[..., D // 2 :]) for table in (cos, sin))
    cos, sin = cos[:, None, :, : D // 2], sin[:, None, :, : D // 2]

    def rotate(x: Tensor) -> Tensor:
        x1, x2 = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)

    return causal(products(rotate(q), rotate(k)))


def of_transformer_engine(target: Any, q: Tensor, k: Tensor) -> Tensor:
    """Reimplement _apply_rotary_pos_emb_base. t [s, b, h, d] cos(freqs) + rotated t sin(freqs), freqs [s, 1, 1, d2]."""
    freqs, interleaved = (target.apply_rotary_pos_emb[name] for name in ("freqs", "interleaved"))
    assert freqs.dtype == torch.float32 and freqs.shape[:3] == (q.shape[2], 1, 1)

    def rotate(x: Tensor) -> Tensor:
        t = x.permute(2, 0, 1, 3)
        t, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
        if interleaved:
            rotated = torch.stack((-t[..., 1::2], t[..., ::2]), -1).reshape(t.shape)
        else:
            first, second = t.chunk(2, -1)
            rotated = torch.cat((-second, first), -1)
        return torch.cat((t * freqs.cos() + rotated * freqs.sin(), rest), -1).permute(1, 2, 0, 3)

    return causal(products(rotate(q), rotate(k), target.DotProductAttention["softmax_scale"]))


def looked_up(x: Tensor, positions: Tensor, cache: Tensor, head_size: int, neox: bool) -> Tensor:
    """Reimplement vLLM's RotaryEmbedding.forward_native on [tokens, heads * head_size]. FlashInfer is compatible."""
    width = cache.shape[-1]
    cos, sin = (half[:, None] for half in cache[positions.long()].split(width // 2, -1))
    split = x.view(len(positions), -1, head_size)
    head, rest = split[..., :width], split[..., width:]
    x1, x2 = head.chunk(2, -1) if neox else (head[..., ::2], head[..., 1::2])
    o1, o2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    out = torch.cat((o1, o2), -1) if neox else torch.stack((o1, o2), -1).flatten(-2)
    return torch.cat((out, rest), -1).reshape(x.shape)


def in_one_row(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(-1, H * D)  # [B T, H D]


def in_rows(x: Tensor, tokens: int) -> Tensor:
    return x.view(BATCH, tokens, H, D).transpose(1, 2)


def of_flashinfer(target: Any, q: Tensor, k: Tensor) -> Tensor:
    call = target.apply_rope_with_cos_sin_cache
    assert call["cos_sin_cache"].dtype == torch.float32, "FlashInfer refuses any other dtype"
    positions = call["positions"] if len(call["positions"]) > q.shape[2] else call["positions"].repeat(BATCH)
    q, k = (
        in_rows(
            looked_up(in_one_row(x), positions, call["cos_sin_cache"], call["head_size"], call["is_neox"]), q.shape[2]
        )
        for x in (q, k)
    )
    return causal(products(q, k))


def of_vllm(target: Any, q: Tensor, k: Tensor) -> Tensor:
    layer, slopes = target.RotaryEmbedding, target.Attention["alibi_slopes"]
    if layer is not None:
        assert layer["cos_sin_cache"].shape == (layer["max_position_embeddings"], layer["rotary_dim"])
        assert layer["cos_sin_cache"].dtype == layer["dtype"]
        positions = target.forward["positions"]
        positions = positions if len(positions) > q.shape[2] else positions.repeat(BATCH)
        q, k = (
            in_rows(
                looked_up(in_one_row(x), positions, layer["cos_sin_cache"], layer["head_size"], layer["is_neox_style"]),
                q.shape[2],
            )
            for x in (q, k)
        )
    logits = products(q, k)
    if slopes is not None:
        # vLLM's kernels add slope (j - i), for keys up to the query.
        distance = torch.arange(q.shape[2]) - torch.arange(q.shape[2])[:, None]
        logits = logits + torch.tensor(slopes)[:, None, None] * distance
    return causal(logits)


def of_mlx(target: Any, q: Tensor, k: Tensor) -> Tensor:
    """Reimplement mlx.core.fast.rope's fallback: theta = (t + offset) scale / freqs, in float32."""
    dims, traditional, base, scale, offset, freqs = (
        target.rope[name] for name in ("dims", "traditional", "base", "scale", "offset", "freqs")
    )
    assert base is None and freqs.shape == (dims // 2,) and freqs.dtype == torch.float32
    theta = ((torch.arange(q.shape[2], dtype=torch.float32) + offset) * scale)[:, None] * freqs.reciprocal()
    cos, sin = theta.cos(), theta.sin()

    def rotate(x: Tensor) -> Tensor:
        x1, x2 = (x[..., :dims:2], x[..., 1:dims:2]) if traditional else (x[..., : dims // 2], x[..., dims // 2 : dims])
        outs = x1 * cos - x2 * sin, x1 * sin + x2 * cos
        out = torch.stack(outs, -1).flatten(-2) if traditional else torch.cat(outs, -1)
        return torch.cat((out, x[..., dims:]), -1)

    return causal(products(rotate(q), rotate(k), target.scaled_dot_product_attention["scale"]))


def of_onnx(target: Any, q: Tensor, k: Tensor) -> Tensor:
    """Follow the operator's description with caches at position_ids. real = cos x1 - sin x2, imag = sin x1 + cos x2."""
    call = target.RotaryEmbedding
    width = call["rotary_embedding_dim"] or D
    cos, sin = (call[name][call["position_ids"]][:, None] for name in ("cos_cache", "sin_cache"))
    assert cos.shape[-1] == width // 2

    def rotate_half_of(x: Tensor) -> Tensor:
        rotate, rest = x[..., :width], x[..., width:]
        x1, x2 = (rotate[..., ::2], rotate[..., 1::2]) if call["interleaved"] else rotate.chunk(2, -1)
        real, imag = cos * x1 - sin * x2, sin * x1 + cos * x2
        out = (
            torch.stack((real, imag), -1).reshape(rotate.shape) if call["interleaved"] else torch.cat((real, imag), -1)
        )
        return torch.cat((out, rest), -1)

    return causal(products(rotate_half_of(q), rotate_half_of(k)))


FORMULAS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "flash_attention": of_flash_attention,
    "flashinfer": of_flashinfer,
    "flex_attention": of_flex_attention,
    "liger": of_liger,
    "mlx": of_mlx,
    "onnx": of_onnx,
    "transformer_engine": of_transformer_engine,
    "vllm": of_vllm,
}

WITH_TABLES = {
    "rotary",
    "rotary(base=500_000)",
    "rotary, linear",
    "rotary, ntk",
    "rotary, llama3",
    "rotary, yarn",
    "rotary, dynamic_ntk",
    "rotary, longrope",
    "proportional_rotary",
}
SOME_CHANNELS = {"rotary(partial=0.25)", "rotary(layout=interleaved)"}
WARM = {"rotary(partial=0.5), yarn"}
SEVERAL_AXES = {"multimodal_rotary", "axial_rotary"}
SLOPES = {"alibi", "alibi(form=falcon)", "on(alibi, heads=0)", "rotary + alibi", "none"}
OTHERWISE = {"xpos", "on(rotary, heads=0)", "rotary + log_temperature", "t5_bias", "kerple"}
TARGET_SUPPORT = {
    "flash_attention": WITH_TABLES | SOME_CHANNELS | WARM | SEVERAL_AXES | SLOPES,
    "flashinfer": WITH_TABLES | SOME_CHANNELS | WARM,
    "flex_attention": WITH_TABLES | SOME_CHANNELS | WARM | SEVERAL_AXES | SLOPES | OTHERWISE,
    "liger": WITH_TABLES | SEVERAL_AXES,
    "mlx": WITH_TABLES | SOME_CHANNELS,
    "onnx": WITH_TABLES | SOME_CHANNELS | WARM,
    "transformer_engine": WITH_TABLES | SOME_CHANNELS | SEVERAL_AXES,
    "vllm": WITH_TABLES | SOME_CHANNELS | WARM | SLOPES,
}
"""The specs that each target can express. It must refuse all others of SPECS."""


def agree(actual: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    """Assert that logits agree in float32 up to a constant per row."""
    assert actual.dtype == torch.float32
    actual = actual.double().log_softmax(-1)
    assert actual.isneginf().equal(expected.isneginf())
    visible = ~expected.isneginf()
    torch.testing.assert_close(actual[visible], expected[visible], rtol=1e-6, atol=atol)


def test_every_target_has_a_formula_and_is_named_after_its_file() -> None:
    assert set(TARGETS) == set(FORMULAS) == set(TARGET_SUPPORT)
    assert hand_outs.FlashAttention is TARGETS["flash_attention"] and "FlashAttention" in dir(hand_outs)


@pytest.mark.parametrize(("target", "name"), [(target, name) for target in FORMULAS for name in SPECS])
def test_a_target_has_our_logits_or_refuses(target: str, name: str) -> None:
    at, encoding = positions_of(name), build_all(name)
    if name not in TARGET_SUPPORT[target]:
        with pytest.raises(ValueError, match=rf"^{TARGETS[target].title} {TARGETS[target].takes}, got .+: .+; .+"):
            hand_out(encoding, to=target, shape=SHAPE, positions=at)
        return
    result = hand_out(encoding, to=target, shape=SHAPE, positions=at)
    q, k = heads(1), heads(2)
    agree(FORMULAS[target](result, q, k), our_logits(encoding, q, k, at))


def test_the_guide_has_the_table() -> None:
    text = write_hand_outs.GUIDE.read_text(encoding="utf-8").partition(write_hand_outs.BEGIN)[2]
    assert text.partition(write_hand_outs.END)[0].strip() == write_hand_outs.table().strip(), write_hand_outs.COMMAND


POSITIONS = {
    "further on": lambda: Positions.count(TOKENS, 5),
    "ids in any order": lambda: Positions.of(torch.randperm(40, generator=torch.Generator().manual_seed(0))[:TOKENS]),
    "packed": lambda: Positions.packed([10, 14]),
    "fractions": lambda: Positions.of(torch.arange(TOKENS) / 4),
    "rows of their own": lambda: Positions.of(torch.arange(2 * TOKENS).view(2, TOKENS)),
}
PER_TOKEN, BY_ID = {"flex_attention", "liger", "transformer_engine", "flash_attention"}, {"flashinfer", "onnx", "vllm"}
PLACES = {
    "further on": set(FORMULAS),
    "ids in any order": PER_TOKEN | BY_ID,
    "packed": {"flex_attention"},
    "fractions": PER_TOKEN,
    "rows of their own": BY_ID | {"liger", "flex_attention"},
}
"""The targets that support such positions. Packed documents need one that accepts a mask."""


@pytest.mark.parametrize(("place", "target"), [(place, target) for place in PLACES for target in sorted(PLACES[place])])
def test_tokens_may_stand_anywhere(place: str, target: str) -> None:
    at, encoding = POSITIONS[place](), build_all("rotary")
    result = hand_out(encoding, to=target, shape=SHAPE, positions=at)
    q, k = heads(3), heads(4)
    agree(FORMULAS[target](result, q, k), our_logits(encoding, q, k, at), atol=5e-6 if target == "mlx" else 1e-6)


@pytest.mark.parametrize("name", ["alibi", "t5_bias", "rotary"])
@pytest.mark.parametrize(
    "mask", [masks.window(5), masks.window(5, causal=False), masks.bidirectional(), masks.prefix(7)]
)
def test_masks_are_handed_out_with_the_bias(name: str, mask: masks.Mask) -> None:
    at, encoding = Positions.count(TOKENS), build_all(name)
    q, k = heads(5), heads(6)
    for target in ["flex_attention"] + ["flash_attention"] * (name != "t5_bias" and not mask.prefix):
        result = hand_out(encoding, to=target, shape=SHAPE, positions=at, mask=mask)
        if target == "flex_attention" and result.flex_attention["block_mask"] is None:
            result.flex_attention["block_mask"] = Everybody
        agree(FORMULAS[target](result, q, k), our_logits(encoding, q, k, at, mask))


class Everybody:
    """The mask that FlexAttention uses by default: all pairs."""

    @staticmethod
    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(b, dtype=torch.bool)


@pytest.mark.parametrize("name", rest_slow(["t5_bias", "rotary + alibi"], 1))
def test_flex_attention_itself_takes_what_is_handed_out(name: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    encoding = build_all(name)
    result = hand_out(encoding, to="flex_attention", shape=SHAPE)
    q, k = heads(7, SHAPE.max_len), heads(8, SHAPE.max_len)
    expected = our_logits(encoding, q, k, Positions.count(SHAPE.max_len))
    if result.turn is not None:
        q, k = result.turn(q, k)
    # With one-hot values the output equals the weights.
    values = torch.eye(SHAPE.max_len).expand(BATCH, H, -1, -1).contiguous()
    weights = flex_attention(q, k, values, **result.flex_attention)
    torch.testing.assert_close(weights.double(), expected.exp(), rtol=0, atol=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="posenc[onnx] is not installed")
@pytest.mark.parametrize("name", ["rotary", "rotary(partial=0.25)", "rotary(layout=interleaved)", "rotary, yarn"])
def test_the_operator_of_onnx_itself_takes_what_is_handed_out(name: str) -> None:
    from onnx.reference.ops.op_rotary_embedding import rotary_embedding

    at, encoding = positions_of(name), build_all(name)
    arguments = hand_out(encoding, to="onnx", shape=SHAPE, positions=at).RotaryEmbedding
    arguments = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in arguments.items()}
    q, k = heads(9), heads(10)
    whole = [torch.from_numpy(rotary_embedding(x.numpy(), **arguments)) for x in (q, k)]
    agree(causal(products(*whole)), our_logits(encoding, q, k, at))
    flat = q.transpose(1, 2).flatten(2)
    assert torch.from_numpy(rotary_embedding(flat.numpy(), **arguments)).equal(whole[0].transpose(1, 2).flatten(2))


def test_tables_are_rounded_once() -> None:
    """cos and sin at a large position agree with Python's in float64."""
    far = 1_000_003
    for dtype in (torch.float32, torch.bfloat16):
        result = hand_out("rotary", to="flash_attention", shape=SHAPE, positions=torch.tensor([far]), dtype=dtype)
        expected = [math.cos(far * 10_000 ** (-2 * pair / D)) for pair in range(D // 2)]
        assert result.apply_rotary_emb["cos"][0].equal(torch.tensor(expected, dtype=torch.float64).to(dtype))


def test_slopes_are_those_of_the_heads_and_of_what_was_learned() -> None:
    learned = build_all("alibi")
    shape = Shape(dim=48, heads=3, head_dim=16, max_len=16)
    slopes_at_first = hand_out(learned, to="vllm", shape=shape).Attention["alibi_slopes"]
    assert slopes_at_first == [2.0**-4, 2.0**-8, 2.0**-2]
    encoding = posenc.build("alibi(learned=True)", shape)
    with torch.no_grad():
        encoding.log_slopes.copy_(torch.tensor([0.5, 0.25, 2.0]).log())
    slopes = hand_out(encoding, to="flash_attention", shape=shape).flash_attn_func["alibi_slopes"]
    torch.testing.assert_close(slopes, torch.tensor([0.5, 0.25, 2.0]))
    assert not slopes.requires_grad


def refuses(spec: str | Encoding, to: str, message: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        hand_out(spec, to=to, shape=options.pop("shape", SHAPE), **options)


def test_refusals_say_what_came_and_what_to_do() -> None:
    table = "FlashAttention turns queries and keys by one table, and subtracts a slope times the distance, got "
    refuses(
        "t5_bias", "flash_attention", table + r"t5_bias\(causal=True\): it adds another function .*'flex_attention'$"
    )
    refuses("alibi(form=asymmetric)", "flash_attention", "it adds another function of the distance")
    refuses("xpos", "flash_attention", r"xpos: it turns by other rules than one table .*; turn them before by q, k = ")
    refuses("rotary + xpos", "flash_attention", "rotary and xpos turn by other rules")
    refuses(
        "rotary + alibi", "liger", r"Liger turns whole heads in the half layout, got .*alibi biases logits; hand out "
    )
    refuses("rotary(layout=interleaved)", "liger", "it pairs neighbouring channels; reorder .*--layout half")
    refuses("rotary(partial=0.25)", "liger", "it turns 4 of 16 channels; take to='flash_attention'")
    refuses("sinusoidal + rotary", "mlx", "sinusoidal adds to the embeddings; call it on them, and hand out the rest")
    refuses("fire", "flex_attention", r"it biases logits by more than a distance; run it in posenc.Attention\(")
    refuses("path", "vllm", "it replaces the attention rule; run it in posenc.Attention$")
    refuses("none", "onnx", "nothing turns; leave the call out")
    warm = "rotary(partial=0.5, schedule=yarn(factor=4))"
    refuses(warm, "mlx", "the 8 channels that turn are multiplied by a temperature of 1.13863, and the other 8 are not")
    refuses(warm, "transformer_engine", "take a target with tables of cosines and sines, such as flash_attention$")


def test_positions_that_a_target_cannot_say_are_refused() -> None:
    fractions, rows = POSITIONS["fractions"](), POSITIONS["rows of their own"]()
    refuses(
        "rotary",
        "vllm",
        "asked for by whole positions on one axis, and these have fractions; take a target with",
        positions=fractions,
    )
    refuses(
        "rotary", "mlx", r"positions are counted up by one .*; give positions=Positions.count\(", positions=fractions
    )
    refuses("rotary", "mlx", "in every row alike, and these are others", positions=rows)
    refuses("alibi", "flash_attention", "positions are counted up by one", positions=fractions)
    refuses(
        "rotary", "flash_attention", "the 2 rows of the batch have positions or horizons of their own", positions=rows
    )
    refuses(
        "rotary", "flash_attention", "padding or several documents, .*; hand out each", positions=POSITIONS["packed"]()
    )
    padded = Positions.padded(torch.tensor([[0, 1, 1]]))
    refuses("rotary", "flash_attention", "padding or several documents", positions=padded)
    refuses("axial_rotary", "onnx", "axial_rotary reads 2 axes, got positions with 1 axis")
    refuses("grid_bias", "flex_attention", "grid_bias reads 2 axes, got positions with 1 axis")


def test_a_horizon_has_to_be_declared_beyond_the_trained_length() -> None:
    spec = "rotary(schedule=dynamic_ntk(factor=4))"
    for target in FORMULAS:
        refuses(spec, target, "declare it with positions.with_horizon", positions=40)
    two_horizons = Positions.count(4).with_horizon(torch.tensor([20, 30]))
    for target in ("vllm", "flashinfer", "onnx"):
        refuses(spec, target, "each row of the batch declares a horizon of its own", positions=two_horizons)
    for target in ("flash_attention", "transformer_engine", "mlx"):
        refuses(spec, target, "the 2 rows of the batch have positions or horizons of their own", positions=two_horizons)


def test_what_a_target_does_not_take_is_refused() -> None:
    refuses("rotary", "flash", "no target named 'flash'; there are: flash_attention, ")
    refuses(
        "rotary", "liger", "Liger is handed what turns queries and keys, and no mask; give the mask to", mask="causal"
    )
    refuses("rotary", "flashinfer", "FlashInfer takes tables in float32, got torch.bfloat16", dtype=torch.bfloat16)
    refuses("rotary", "flash_attention", "dtype must be a floating dtype", dtype=torch.int32)
    refuses("rotary", "flash_attention", "an encoding is built for a Shape, got 16", shape=16)
    refuses(
        "rotary",
        "flash_attention",
        "the mask has a prefix, and no more than a window is taken",
        mask=masks.prefix(3),
    )
    visible = torch.ones(16, 16, dtype=torch.bool)
    refuses("rotary", "flash_attention", "the mask has a tensor of its own, .*; take to='flex_attention'", mask=visible)
    refuses(posenc.Rotary(32), "vllm", "rotary is built for heads of 32 channels, got 16; build it with head_dim=16")
    refuses(posenc.ALiBi(2), "vllm", "2 heads")


class Bent(Rotations):
    """A custom rotation with angles nonlinear in the position, or with scaled pairs."""

    layout = "half"

    def __init__(self, power: float = 1.0, fading: float = 0.0) -> None:
        super().__init__()
        self.head_dim, self.power, self.fading = D, power, fading

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        pair = torch.arange(D // 2, dtype=torch.float64, device=device)
        angle = at.axis(self)[:, None, :, None].double() ** self.power / (pair + 1)
        return (torch.stack((angle.cos(), angle.sin())) / (1 + self.fading * pair)).to(dtype)


@pytest.mark.parametrize("encoding", [Bent(), Bent(power=0.5), Bent(fading=0.1)])
def test_a_rotation_of_ones_own_is_expressed_or_refused(encoding: Rotations) -> None:
    at, q, k = Positions.count(TOKENS), heads(11), heads(12)
    expected = our_logits(encoding, q, k, at)
    tables = set(FORMULAS) - {"mlx", "transformer_engine"}
    for target in tables if encoding.power != 1 or encoding.fading else FORMULAS:
        agree(FORMULAS[target](hand_out(encoding, to=target, shape=SHAPE, positions=at), q, k), expected)
    if encoding.power != 1:
        refuses(encoding, "mlx", "the angle of a pair is no multiple of the position; take a target with tables")
    if encoding.fading:
        refuses(encoding, "transformer_engine", "pairs are stretched by different factors; take a target with tables")


class Past(Encoding):
    """A custom bias with a slope for the past and zero for the future."""

    def by_distance(self, delta: Tensor) -> Tensor:
        return -0.5 * delta.clamp(min=0).expand(H, *delta.shape)


def test_slopes_are_asked_for_at_the_distances_that_a_mask_lets_meet() -> None:
    arguments = hand_out(Past(), to="flash_attention", shape=SHAPE).flash_attn_func
    assert arguments["alibi_slopes"].tolist() == [0.5] * H
    refuses(Past(), "flash_attention", "it adds another function of the distance", mask="bidirectional")


def test_masks_are_written_as_flash_attention_writes_them() -> None:
    def mask_arguments(mask: masks.MaskLike, shape: Shape = SHAPE) -> dict[str, Any]:
        return hand_out("rotary", to="flash_attention", shape=shape, mask=mask).flash_attn_func

    assert mask_arguments(masks.window(5)) == {"causal": True, "window_size": (4, 0)}
    assert mask_arguments(masks.window(5, causal=False)) == {"causal": False, "window_size": (4, 4)}
    assert mask_arguments("bidirectional") == {"causal": False, "window_size": (-1, -1)}
    assert mask_arguments(None) == mask_arguments("causal") == {"causal": True, "window_size": (-1, -1)}
    encoder = Shape(dim=48, heads=3, head_dim=16, max_len=16, causal=False)
    assert mask_arguments(None, encoder)["causal"] is False
    assert hand_out("rotary", to="flex_attention", shape=encoder).flex_attention["block_mask"] is None


def test_a_cache_goes_as_far_as_the_model_and_says_where_tokens_are() -> None:
    """Logits do not depend on the first token's position, but exported values do."""
    assert hand_out("rotary", to="mlx", shape=SHAPE, positions=Positions.count(3, 5)).rope["offset"] == 5
    for far, rows in ((7, SHAPE.max_len), (40, 41)):
        result = hand_out("rotary", to="vllm", shape=SHAPE, positions=torch.tensor([3, far]), dtype=torch.bfloat16)
        assert result.forward["positions"].tolist() == [3, far]
        assert result.RotaryEmbedding["cos_sin_cache"].shape == (rows, D)
        assert result.RotaryEmbedding["cos_sin_cache"].dtype == torch.bfloat16
        assert result.RotaryEmbedding["cos_sin_cache"][1, 0] == torch.tensor(math.cos(1), dtype=torch.bfloat16)
