"""Rotary layouts of weights: an exact permutation of the right rows, and a clear error for other tensors."""

import math

import pytest
import torch
from torch import Tensor

from posenc.checkpoints.conversion import measure_layout
from posenc.checkpoints.conversion.layouts import (
    Channels,
    channel_order,
    layout_of,
    rearrange,
    rotated_tensors,
    with_layout,
)
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.encoding.base import Shape
from posenc.encodings.rotations.rotary import Rotary

HEADS, KV, WIDTH, DIM = 4, 2, 8, 24


def reading(spec: str = "rotary", *, layers: int = 1, head_dim: int = WIDTH, name: str = "", **changes) -> Reading:
    part = Part(name, Shape(DIM, HEADS, head_dim, 64), (Layer(spec, head_dim),) * layers, KV, **changes)
    return Reading("transformers", "LlamaForCausalLM", (part,))


def weights(**rows: int | tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors of one layer: leaf -> rows, or the whole shape."""
    shapes = {name.replace("__", "."): (n, DIM) if isinstance(n, int) else n for name, n in rows.items()}
    plain = {f"{name}.weight" if "." not in name else name: shape for name, shape in shapes.items()}
    return {f"model.layers.0.self_attn.{name}": torch.randn(*shape) for name, shape in plain.items()}


LLAMA = {"q_proj": HEADS * WIDTH, "k_proj": KV * WIDTH, "v_proj": KV * WIDTH, "o_proj": (DIM, HEADS * WIDTH)}


def starts(channels: dict[str, Channels]) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix("model.layers.0.self_attn."): where.starts for name, where in channels.items()}


# The permutation


@pytest.mark.parametrize("width", [2, 4, 10, 64])
def test_the_order_is_that_of_the_pairs_and_its_own_way_back(width: int) -> None:
    half = width // 2
    interleaved = channel_order(width, "half", "interleaved").tolist()
    assert interleaved == [channel for pair in range(half) for channel in (pair, pair + half)]
    back = channel_order(width, "interleaved", "half")
    assert torch.tensor(interleaved)[back].tolist() == list(range(width))
    assert channel_order(width, "half", "swapped").tolist() == [*range(half, width), *range(half)]


@pytest.mark.parametrize("new_layout", ["interleaved", "swapped"])
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_logits_under_the_other_rotary_are_what_they_were(partial: float, new_layout: str) -> None:
    spec = f"rotary(partial={partial})"
    stored_tensors = {name: tensor.double() for name, tensor in weights(**LLAMA).items()}
    channels = rotated_tensors(reading(spec), stored_tensors)
    new_weights = {
        n: rearrange(t, channels[n], "half", new_layout) if n in channels else t for n, t in stored_tensors.items()
    }
    x = torch.randn(1, 7, DIM, dtype=torch.float64)

    def logits(layout: str, tensors: dict[str, Tensor]) -> Tensor:
        q, k = (x @ tensors[f"model.layers.0.self_attn.{name}.weight"].T for name in ("q_proj", "k_proj"))
        q, k = (heads.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for heads in (q, k))
        q, k = Rotary(WIDTH, layout=layout, partial=partial)(q, k.repeat_interleave(HEADS // KV, 1))
        return q @ k.mT

    expected = logits("half", stored_tensors)
    torch.testing.assert_close(logits(new_layout, new_weights), expected)
    # Without the conversion it is another model.
    assert (logits(new_layout, stored_tensors) - expected).abs().max() > 0.1


def test_there_and_back_gives_every_bit_and_leaves_the_rest_alone() -> None:
    tensors = weights(**LLAMA, q_proj__bias=(HEADS * WIDTH,))
    rotated = rotated_tensors(reading("rotary(partial=0.5)"), tensors)
    assert set(starts(rotated)) == {"q_proj.weight", "k_proj.weight", "q_proj.bias"}
    for name, where in rotated.items():
        there = rearrange(tensors[name].bfloat16(), where, "half", "interleaved")
        assert rearrange(there, where, "interleaved", "half").equal(tensors[name].bfloat16())
        rest_channels = tensors[name].unflatten(0, (-1, WIDTH))[:, WIDTH // 2 :].bfloat16()
        assert there.unflatten(0, (-1, WIDTH))[:, WIDTH // 2 :].equal(rest_channels)
        assert not there.equal(tensors[name].bfloat16())


# Which tensors


def test_each_kind_of_projection_turns_where_its_heads_start() -> None:
    q, k = range(0, 32, 8), range(0, 16, 8)
    cases: list[tuple[str, dict, dict]] = [
        ("rotary", LLAMA, {"q_proj.weight": q, "k_proj.weight": k}),
        ("rotary", {"wq": 32, "wk": 16, "wv": 16, "wo": (DIM, 32)}, {"wq.weight": q, "wk.weight": k}),
        ("rotary", {"qkv_proj": 64, "o_proj": (DIM, 32)}, {"qkv_proj.weight": range(0, 48, 8)}),
        # Groups of two queries, a key and a value.
        ("rotary", {"query_key_value": 64, "dense": (DIM, 32)}, {"query_key_value.weight": (0, 8, 16, 32, 40, 48)}),
        ("rotary", LLAMA | {"q_norm": (8,), "k_norm": (8,)}, {"q_norm.weight": (0,), "k_norm.weight": (0,)}),
        ("rotary", LLAMA | {"q_norm": (32,), "k_norm": (16,)}, {"q_norm.weight": q, "k_norm.weight": k}),
        ("rotary", LLAMA | {"q_norm": (4, 8), "k_norm": (2, 8)}, {"q_norm.weight": (0,), "k_norm.weight": (0,)}),
    ]
    for spec, rows, expected in cases:
        actual = starts(rotated_tensors(reading(spec), weights(**rows)))
        assert {name: actual[name] for name in expected} == {name: tuple(at) for name, at in expected.items()}
        assert not {"v_proj.weight", "o_proj.weight", "wv.weight", "wo.weight", "dense.weight"} & set(actual)
    table = rotated_tensors(reading(), weights(**LLAMA, q_norm=(4, 8), k_norm=(2, 8)))
    assert table["model.layers.0.self_attn.q_norm.weight"].axis == 1


def test_grouped_heads_of_neox_each_have_query_key_value() -> None:
    part = Part("", Shape(DIM, HEADS, WIDTH, 64), (Layer("rotary(partial=0.25)", WIDTH),), HEADS)
    actual = rotated_tensors(Reading("transformers", "gpt_neox", (part,)), weights(query_key_value=96, dense=(DIM, 32)))
    (where,) = actual.values()
    assert where.width == 2 and where.starts == (0, 8, 24, 32, 48, 56, 72, 80)


@pytest.mark.parametrize("query", ["q_proj", "q_b_proj"])
def test_of_latent_attention_the_last_channels_of_queries_and_of_the_one_key_turn(query: str) -> None:
    # Queries have 6 channels without position and 8 with; the latent has 10, followed by the rotated key.
    rows = {
        query: 4 * 14,
        "kv_a_proj_with_mqa": 18,
        "kv_b_proj": (48, 10),
        "kv_a_layernorm": (10,),
        "o_proj": (DIM, 24),
    }
    rows |= {"q_a_proj": 12, "q_a_layernorm": (12,)} if query == "q_b_proj" else {}
    actual = starts(rotated_tensors(reading(), weights(**rows)))
    assert actual == {f"{query}.weight": (6, 20, 34, 48), "kv_a_proj_with_mqa.weight": (10,)}


def test_of_an_adapter_the_rows_of_b_and_the_magnitudes_turn() -> None:
    rows = {
        "q_proj__lora_A__weight": (3, DIM),
        "q_proj__lora_B__weight": (32, 3),
        "q_proj__lora_magnitude_vector": (32,),
        "v_proj__lora_B__weight": (16, 3),
    }
    lora = {name.replace("model.", "base_model.model.model."): tensor for name, tensor in weights(**rows).items()}
    rotated = rotated_tensors(reading(), lora, adapter=True)
    ends = {name.split("q_proj.")[1] for name in rotated}
    assert ends == {"lora_B.weight", "lora_magnitude_vector"}
    # The adapter's update has the order of the rearranged weight.
    b = next(name for name in rotated if "lora_B" in name)
    a = lora[b.replace("lora_B", "lora_A")]
    whole = Channels(0, rotated[b].starts, WIDTH)
    product = rearrange(lora[b], rotated[b], "half", "interleaved") @ a
    torch.testing.assert_close(product, rearrange(lora[b] @ a, whole, "half", "interleaved"))


def test_layers_without_rotary_and_other_parts_are_left_alone() -> None:
    text = reading("rotary", name="text_config").parts[0]
    text = Part("text_config", text.shape, (Layer("rotary", 8), Layer("none", 8)), KV)
    vision = Part("vision_config", Shape(DIM, 2, 12, 16), (Layer("none", 12),), 2)
    llava = Reading("transformers", "llava", (text, vision))
    tensors = {f"model.language_model.layers.{i}.self_attn.{n}.weight": t for i in (0, 1) for n, t in (
        ("q_proj", torch.randn(32, DIM)), ("k_proj", torch.randn(16, DIM)))}  # fmt: skip
    tensors["model.vision_tower.layers.0.self_attn.q_proj.weight"] = torch.randn(24, DIM)
    assert {name.split(".")[3] for name in rotated_tensors(llava, tensors)} == {"0"}


def test_buffers_of_masks_and_frequencies_do_not_disturb() -> None:
    tensors = weights(**LLAMA) | {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.self_attn.masked_bias": torch.ones(()),
    }
    assert len(rotated_tensors(reading(), tensors)) == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (LLAMA | {"q_proj": 31}, r"q_proj\.weight has the shape \[31, 24\], which does not fit 4 query heads with 8"),
        (LLAMA | {"q_proj": 64}, r"q_proj\.weight has the shape \[64, 24\], which does not fit 4 query heads"),
        (LLAMA | {"k_proj": 24}, r"k_proj\.weight has the shape \[24, 24\], which does not fit 4 query heads"),
        ({"qkv_proj": 32}, r"qkv_proj\.weight has the shape \[32, 24\], which does not fit"),
        (LLAMA | {"q_norm": (7,)}, r"q_norm\.weight has the shape \[7\], which does not fit"),
        ({"q_proj": 32, "v_proj": 16}, r"self_attn has q_proj, v_proj; expected projections of both queries and keys"),
        (LLAMA | {"indexer": 8}, r"indexer\.weight stands beside queries and keys, and posenc does not know"),
        ({"kernel": 8}, "layer 0 turns queries and keys .rotary., and none of its tensors has a name"),
        (
            LLAMA | {"q_proj__weight_scale": (32, 1)},
            r"q_proj\.weight_scale .float32. belongs to weights that are quant",
        ),
        (LLAMA | {"q_proj__qweight": (32, 1)}, "quantised or packed"),
    ],
)
def test_what_is_not_recognised_is_an_error_and_not_passed_over(rows: dict, words: str) -> None:
    with pytest.raises(CannotRead, match=words):
        rotated_tensors(reading(), weights(**rows))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights_are_refused_with_the_reason(dtype: torch.dtype) -> None:
    tensors = weights(**LLAMA)
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, DIM).to(dtype)
    with pytest.raises(CannotRead, match="blocks and scales do not follow single channels; convert the unquantised"):
        rotated_tensors(reading(), tensors)


def test_several_attentions_of_a_layer_and_layers_too_many_are_errors() -> None:
    tensors = weights(**LLAMA)
    two_attentions = tensors | {name.replace("self_attn", "cross_attn"): tensor for name, tensor in tensors.items()}
    with pytest.raises(CannotRead, match="layer 0 has several attentions"):
        rotated_tensors(reading(), two_attentions)
    two_layers = tensors | {name.replace("layers.0", "layers.7"): tensor for name, tensor in tensors.items()}
    with pytest.raises(CannotRead, match=r"layers\.7\..* is of layer 7, and by the config there are 1"):
        rotated_tensors(reading(), two_layers)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rotary + shaw", "reads channels of queries or keys itself; its layout cannot change"),
        ("axial_rotary(axes=2, layout='half_by_axis')", "pairs its channels as 'half_by_axis'"),
        ("rotary + rotary(base=500)", "turns pairs in 2 ways"),
    ],
)
def test_encodings_whose_layout_is_more_than_an_order_are_refused(spec: str, words: str) -> None:
    with pytest.raises(CannotRead, match=words):
        rotated_tensors(reading(spec), weights(**LLAMA))


@pytest.mark.parametrize(
    "spec",
    [
        "rotary(partial=0.5, schedule=dynamic_ntk(factor=2, trained_length=16))",
        "proportional_rotary(partial=0.5)",
        "multimodal_rotary(sections=(2, 1, 1))",
        "image_rotary",
        "rotary + log_temperature(trained_length=64)",
        "rerope(rotary, window=8)",
    ],
)
def test_every_rotary_of_one_order_is_converted(spec: str) -> None:
    rotated = rotated_tensors(reading(spec), weights(**LLAMA))
    assert {where.width for where in rotated.values()} == {4 if spec.startswith("rotary(partial") else 8}


def test_a_reading_follows_its_weights_into_the_other_layout() -> None:
    source = reading("rotary(base=500, schedule=yarn(factor=4.0, trained_length=64))", layers=2)
    target = with_layout(source, "interleaved")
    assert layout_of(source) == "half" and layout_of(target) == "interleaved"
    assert with_layout(target, "half") == source or layout_of(with_layout(target, "half")) == "half"
    assert layout_of(reading("alibi")) is None and with_layout(reading("alibi"), "half") == reading("alibi")
    with pytest.raises(ValueError, match="layout must be one of half, interleaved, swapped, got 'neox'"):
        with_layout(source, "neox")
    mixed_part = Part("", Shape(DIM, 4, 8, 64), (Layer("rotary", 8), Layer("rotary(layout='interleaved')", 8)), KV)
    with pytest.raises(CannotRead, match="in several layouts: half, interleaved"):
        layout_of(Reading("transformers", "x", (mixed_part,)))


# Evidence in the weights


def paired_weights(layers: int = 6) -> dict[str, Tensor]:
    """Weights in layout "half" as after training: queries are keys rotated by an angle of their head and pair."""
    tensors = {}
    for number in range(layers):
        key = torch.randn(KV, 1, 2, WIDTH // 2, DIM).expand(KV, HEADS // KV, 2, WIDTH // 2, DIM)
        angle = torch.rand(KV, HEADS // KV, WIDTH // 2, 1) * 2 + 0.5
        a, b = key.unbind(2)
        query = torch.stack((angle.cos() * a - angle.sin() * b, angle.cos() * b + angle.sin() * a), 2)
        place = f"model.layers.{number}.self_attn"
        tensors[f"{place}.q_proj.weight"] = (query + 0.3 * torch.randn(query.shape)).reshape(-1, DIM)
        tensors[f"{place}.k_proj.weight"] = key[:, 0].reshape(-1, DIM)
    return tensors


def test_the_ratio_is_the_formula_that_is_written_there() -> None:
    q, k = torch.randn(2, 6, 5, dtype=torch.float64), torch.randn(1, 6, 5, dtype=torch.float64)

    def similarity(head: int, a: int, b: int) -> float:
        return abs(torch.cosine_similarity(q[head, a], k[0, b], dim=0).item())

    for head, actual in enumerate(measure_layout.ratios(q, k).tolist()):
        interleaved_sum = sum(similarity(head, 2 * p, 2 * p + 1) + similarity(head, 2 * p + 1, 2 * p) for p in range(3))
        half_sum = sum(similarity(head, p, p + 3) + similarity(head, p + 3, p) for p in range(3))
        assert actual == pytest.approx(math.log(interleaved_sum / half_sum))


def test_weights_whose_pairs_were_turned_into_one_another_give_their_layout_away() -> None:
    tensors, source = paired_weights(), reading(layers=6)
    half = measure_layout.layout_evidence(source, tensors)
    assert half.layout == "half" and half.ratio < -0.15 and half.heads == 24
    rotated = rotated_tensors(source, tensors)
    interleaved = {name: rearrange(tensor, rotated[name], "half", "interleaved") for name, tensor in tensors.items()}
    assert measure_layout.layout_evidence(source, interleaved).layout == "interleaved"
    assert "the weights look half" in str(half)


def test_fused_projections_give_the_same_evidence() -> None:
    tensors, source = paired_weights(), reading(layers=6)
    stacks, by_group = {}, {}
    for number in range(6):
        q, k = (tensors[f"model.layers.{number}.self_attn.{leaf}_proj.weight"] for leaf in "qk")
        v = torch.randn_like(k)
        stacks[f"model.layers.{number}.self_attn.qkv_proj.weight"] = torch.cat((q, k, v))
        groups = (t.unflatten(0, (KV, -1)) for t in (q, k, v))
        by_group[f"model.layers.{number}.self_attn.query_key_value.weight"] = torch.cat((*groups,), 1).flatten(0, 1)
    apart = measure_layout.layout_evidence(source, tensors)
    assert measure_layout.layout_evidence(source, stacks) == apart
    assert measure_layout.layout_evidence(source, by_group) == apart


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.3, 0.2, 0.4, 0.1], "interleaved"),
        ([-0.3, -0.2, -0.4, -0.1], "half"),
        ([0.1, 0.1, 0.1, 0.1], None),
        ([5.0, -0.1, -0.1, -0.1], None),
    ],
)
def test_a_verdict_needs_a_clear_mean_and_most_of_the_heads(
    ratios: list[float], verdict: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_layout, "ratios", lambda queries, keys: torch.tensor(ratios))
    assert measure_layout.layout_evidence(reading(), weights(**LLAMA)).layout == verdict


def test_random_weights_and_latent_attention_give_no_verdict() -> None:
    source = reading(layers=8)
    random = {name: torch.randn_like(tensor) for name, tensor in paired_weights(8).items()}
    evidence = measure_layout.layout_evidence(source, random)
    assert evidence.layout is None and "do not say which layout" in str(evidence)
    latent = weights(q_proj=56, kv_a_proj_with_mqa=18)
    assert measure_layout.layout_evidence(reading(), latent) == measure_layout.Evidence(None, 0.0, 0.0, 0)
    with pytest.raises(CannotRead, match="no layer of this checkpoint turns queries and keys"):
        measure_layout.layout_evidence(reading("alibi"), random)
