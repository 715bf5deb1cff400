"""The ports of transformers, timm and diffusers."""

import importlib
import math
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from port_libraries.kinds import (
    DIM,
    HEADS,
    LENGTH,
    REACH,
    SIX_HEADS,
    WIDTH,
    Port,
    additions,
    by_keys,
    by_pairs,
    by_row,
    files_of,
    in_pairs,
    interleaved_channels,
    rotations,
)


def transformers(weights: dict[str, Tensor]) -> Iterator[Port]:
    def model(name: str) -> ModuleType:
        return importlib.import_module(f"transformers.models.{name}.modeling_{name}")

    def config(**parameters: Any) -> SimpleNamespace:
        parameters = {"rope_type": "default", "rope_theta": 1e4} | parameters
        numbers = {"max_position_embeddings": LENGTH, "head_dim": WIDTH, "hidden_size": HEADS * WIDTH}
        numbers |= {"num_attention_heads": HEADS, "standardize_rope_params": lambda: None}
        return SimpleNamespace(rope_parameters=parameters, **numbers)

    def rope(family: str, name: str, prefix: str, note: str = "", **parameters: Any) -> Port:
        module, longest = model(name), parameters.pop("longest", None)
        rotary = getattr(module, f"{prefix}RotaryEmbedding")(config(**parameters))

        def rotate(x: Tensor, ids: Tensor) -> Tensor:
            if ids.dim() == 3:
                ids = ids.movedim(-1, 0)
            if longest:
                x, ids = torch.cat((x, x[:, :, :1]), 2), torch.cat((ids, torch.full_like(ids[:, :1], longest)), 1)
            cos, sin = rotary(x, ids)
            y = module.apply_rotary_pos_emb(x, x, cos, sin)[0]
            return y[:, :, :-1] if longest else y

        return Port(family, f"{prefix}RotaryEmbedding", rotations(rotate), note=note)

    yield rope("rotary-half", "llama", "Llama")
    yield rope("rotary-interleaved", "cohere", "Cohere")
    yield rope("rotary-swapped", "nanochat", "NanoChat")
    yield rope("rotary-partial", "gpt_neox", "GPTNeoX", partial_rotary_factor=0.5)
    yield rope("rotary-linear", "llama", "Llama", rope_type="linear", factor=4.0)
    yield rope("rotary-ntk", "hunyuan_v1_dense", "HunYuanDenseV1", "alpha=4", rope_type="dynamic", alpha=4.0)
    note = "frequencies follow the largest position of a call, so each call also holds a token at 4 L"
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "longest": REACH - 1}
    yield rope("rotary-dynamic-ntk", "llama", "Llama", note, **dynamic)
    original = {"original_max_position_embeddings": LENGTH}
    yield rope("rotary-yarn", "llama", "Llama", rope_type="yarn", factor=4.0, **original)
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
    yield rope("rotary-llama3", "llama", "Llama", rope_type="llama3", **factors, **original)
    yield rope("multimodal-rotary", "qwen2_vl", "Qwen2VL", mrope_section=[2, 3, 3])

    gemma = model("gemma4")
    layer = config(full={"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25})
    layer.layer_types, layer.per_layer_config = ["full"], {"full": layer}
    proportional = gemma.Gemma4TextRotaryEmbedding(layer)
    turn = rotations(lambda x, ids: gemma.apply_rotary_pos_emb(x, *proportional(x, ids, "full")))
    yield Port("proportional-rotary", "Gemma4TextRotaryEmbedding", turn)

    qwen = model("qwen2_vl")
    axial = qwen.Qwen2VLVisionRotaryEmbedding(config(rope_type="axial", rope_theta=100.0))

    def patches(x: Tensor, ids: Tensor) -> Tensor:
        x = x[0].transpose(0, 1)
        return qwen.apply_rotary_pos_emb_vision(x, x, *axial(x, ids))[0].transpose(0, 1)[None]

    yield Port("axial-rotary", "Qwen2VLVisionRotaryEmbedding", rotations(by_row(patches)))
    for family, heads in (("alibi", HEADS), (SIX_HEADS, 6)):
        mask = torch.ones(1, REACH)
        bloom = model("bloom").build_alibi_tensor(mask, heads, torch.float32)
        yield Port(family, "bloom: build_alibi_tensor", by_keys(bloom.view(heads, REACH)))
        mpt = model("mpt").build_mpt_alibi_tensor(heads, REACH)
        yield Port(family, "mpt: build_mpt_alibi_tensor", by_keys(mpt.view(heads, REACH)))
    falcon = model("falcon").build_alibi_tensor(mask.long(), HEADS, torch.float32).view(HEADS, REACH)
    with mock.patch.object(Tensor, "bfloat16", lambda tensor: tensor):
        exact = model("falcon").build_alibi_tensor(mask.long(), HEADS, torch.float32).view(HEADS, REACH)
    reason = (
        "slopes[..., None].bfloat16() * arange_tensor is a bfloat16 product in every dtype: 511/4 becomes 128; "
        "without .bfloat16() it passes"
    )
    api, note = "falcon: build_alibi_tensor", "before Falcon divides it by sqrt(head_dim)"
    yield Port("alibi", api, by_keys(falcon), (), reason, by_keys(exact), note)
    t5 = model("t5")
    t5_config = importlib.import_module("transformers").T5Config
    layer = t5.T5Attention(t5_config(d_model=DIM, d_kv=8, num_heads=HEADS, is_decoder=True), True, layer_idx=0)
    layer.relative_attention_bias.weight.copy_(weights["t5-bias"])
    yield Port("t5-bias", "T5Attention.compute_bias", by_pairs(layer.compute_bias(REACH, REACH)[0]))
    table = torch.empty(REACH, DIM)
    model("distilbert").create_sinusoidal_embeddings(REACH, DIM, table)
    yield Port("sinusoidal", "distilbert: create_sinusoidal_embeddings", additions(lambda x, ids: x + table[ids]))
    marian = model("marian").MarianSinusoidalPositionalEmbedding(REACH, DIM)
    marian.weight.copy_(marian.create_weight())
    sines = additions(lambda x, ids: x + interleaved_channels(marian(ids.shape, position_ids=ids), DIM))
    yield Port("sinusoidal", "MarianSinusoidalPositionalEmbedding", sines, note="sines first")
    opt = model("opt").OPTLearnedPositionalEmbedding(LENGTH, DIM)
    opt.weight[2:] = weights["learned"]
    rows = additions(lambda x, ids: x + opt(None, position_ids=ids))
    yield Port("learned", "OPTLearnedPositionalEmbedding", rows, note="its table has two more rows at the front")


def timm(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = files_of("timm", "layers.pos_embed_sincos")

    def rope(family: str, half: bool, sizes: list[int], base: float, **options: Any) -> Port:
        dim = 2 * WIDTH if len(sizes) == 1 else WIDTH  # a quarter of it is the number of pairs on each axis
        sin, cos = module.build_rotary_pos_embed(
            sizes, dim=dim, temperature=base, in_pixels=False, rotate_half=half, **options
        )
        scale = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))])

        def rotate(x: Tensor, ids: Tensor) -> Tensor:
            places = (ids if len(sizes) == 1 else (ids * scale).sum(-1))[:, None]
            return module.apply_rot_embed(x, sin[places], cos[places], half=half)

        return Port(family, "build_rotary_pos_embed", rotations(rotate))

    yield rope("rotary-half", True, [REACH], 1e4)
    yield rope("rotary-interleaved", False, [REACH], 1e4)
    yield rope("rotary-linear", True, [4 * LENGTH + 4], 1e4, ref_feat_shape=[LENGTH + 1])
    yield rope("axial-rotary", True, [REACH, REACH // 2 + 1], 100.0)
    table = interleaved_channels(module.build_sincos2d_pos_embed([REACH], 2 * DIM, interleave_sin_cos=True), DIM)
    yield Port("sinusoidal", "build_sincos2d_pos_embed", additions(lambda x, ids: x + table[ids]), note="with one axis")


def diffusers(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = importlib.import_module("diffusers.models.embeddings")

    def rope(family: str, half: bool = True, note: str = "", **options: float) -> Port:
        def rotate(x: Tensor, ids: Tensor) -> Tensor:
            waves = module.get_1d_rotary_pos_embed(
                WIDTH, ids, use_real=True, repeat_interleave_real=not half, **options
            )
            return module.apply_rotary_emb(x, waves, use_real_unbind_dim=-2 if half else -1)

        return Port(family, "get_1d_rotary_pos_embed", rotations(by_row(rotate)), note=note)

    yield rope("rotary-half")
    yield rope("rotary-interleaved", half=False)
    yield rope("rotary-linear", linear_factor=4.0)
    note = "ntk_factor multiplies the base itself: a factor s of the context is ntk_factor = s^(d/(d - 2))"
    yield rope("rotary-ntk", note=note, ntk_factor=4.0 ** (WIDTH / (WIDTH - 2)))
    flux = importlib.import_module("diffusers.models.transformers.transformer_flux").FluxPosEmbed(100, [8, 8])
    axial = by_row(lambda x, ids: module.apply_rotary_emb(x, flux(ids)))
    yield Port("axial-rotary", "FluxPosEmbed", rotations(in_pairs(axial)), note="neighbouring channels are a pair")
    encode = module.get_1d_sincos_pos_embed_from_grid
    sines = additions(lambda x, ids: x + interleaved_channels(encode(DIM, ids.double()).view(*ids.shape, DIM), DIM))
    yield Port("sinusoidal", "get_1d_sincos_pos_embed_from_grid", sines, note="sines first")
    table = module.SinusoidalPositionalEmbedding(DIM, REACH)(torch.zeros(1, REACH, DIM))[0]
    yield Port("sinusoidal", "SinusoidalPositionalEmbedding", additions(lambda x, ids: x + table[ids]))
