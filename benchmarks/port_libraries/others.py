"""The ports of litgpt, torchtune, attn-gym and positional-encodings."""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from port_libraries.kinds import (
    DIM,
    HEADS,
    LENGTH,
    REACH,
    SIX_HEADS,
    WIDTH,
    Case,
    Port,
    additions,
    biases,
    by_products,
    files_of,
    in_pairs,
    interleaved_channels,
    rotations,
)


def litgpt(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = importlib.import_module("litgpt.model")

    def rotation(cos: Tensor, sin: Tensor) -> Any:
        width = cos.shape[-1]
        return lambda x, ids: torch.cat(
            (module.apply_rope(x[..., :width], cos[ids], sin[ids]), x[..., width:]), -1
        )  # as in CausalSelfAttention.forward

    def rope(family: str, width: int = WIDTH, base: int = 10_000, **options: float) -> Port:
        tables = module.build_rope_cache(REACH, width, base=base, extra_config=options or None)
        return Port(family, "build_rope_cache, apply_rope", rotations(rotation(*tables)))

    yield rope("rotary-half")
    cos, sin = module.build_rope_cache(REACH, WIDTH)
    apply = module.apply_rope_interleave
    pairs = rotations(lambda x, ids: interleaved_channels(apply(x, cos[ids], sin[ids])))
    yield Port("rotary-interleaved", "apply_rope_interleave", pairs, note="returns the channels in the half order")
    yield rope("rotary-partial", WIDTH // 2)
    yield rope("rotary-linear", factor=4.0)
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_seq_len": LENGTH}
    yield rope("rotary-llama3", base=500_000, **factors)
    options = {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_seq_len": LENGTH, "mscale": 1.0}
    port = rope("rotary-yarn", **options)
    tables = module.build_rope_cache(2, WIDTH, extra_config=options)
    frequencies = torch.atan2(tables[1][1], tables[0][1]).double()
    plain = 1e4 ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH).repeat(2)
    angles = torch.arange(REACH)[:, None] * (plain + plain / 4 - frequencies)
    size = tables[0][0, 0]
    port.variation = rotations(rotation((angles.cos() * size).float(), (angles.sin() * size).float()))
    port.reason = (
        "the ramp is inverted: theta_interpolation * (1 - ramp) + theta_extrapolation * ramp keeps the slow "
        "pairs and divides the fast ones; with the ramp turned round it passes"
    )
    port.note = "mscale=1 given: without it, cosines are not multiplied by 0.1 ln 4 + 1"
    yield port


def torchtune(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = files_of("torchtune", "modules.position_embeddings")
    names = ("models.qwen2._positional_embeddings", "models.llama3_1._position_embeddings")
    qwen, llama = (files_of("torchtune", name) for name in names)

    def rotation(layer: torch.nn.Module) -> Any:
        return lambda x, ids: layer(x.transpose(1, 2), input_pos=ids).transpose(1, 2)

    half = qwen.Qwen2RotaryPositionalEmbeddings(WIDTH, REACH, 10_000.0)
    yield Port("rotary-half", "Qwen2RotaryPositionalEmbeddings", rotations(rotation(half)))
    long, short = (module.RotaryPositionalEmbeddings(WIDTH, length) for length in (REACH, LENGTH))
    plain = rotations(rotation(long))
    yield Port("rotary-interleaved", "RotaryPositionalEmbeddings", plain)
    api = f"RotaryPositionalEmbeddings(max_seq_len={LENGTH})"
    reason = (
        'the docstring of max_seq_len says "if exceeded the cached freqs will be recomputed"; nothing in forward '
        f"does that; built for {REACH} positions it passes"
    )
    yield Port("rotary-interleaved", api, rotations(rotation(short)), ("beyond",), reason, plain)
    scaled_layer = llama.Llama3ScaledRoPE(WIDTH, REACH, 500_000, 8, old_context_len=LENGTH)
    note = "neighbouring channels are a pair"
    yield Port("rotary-llama3", "Llama3ScaledRoPE", rotations(in_pairs(rotation(scaled_layer))), note=note)

    def on_grid(x: Tensor, ids: Tensor) -> Tensor:
        side = int(ids.max()) + 1
        patches = module.VisionRotaryPositionalEmbeddings(1, side, 1, WIDTH // 2, 100)
        tokens = interleaved_channels(x).transpose(1, 2).split(1, 1)
        grids = [token.expand(-1, side * side + 1, -1, -1) for token in tokens]
        places = (ids[0] @ torch.tensor([1, side])).tolist()
        return torch.stack([patches(grid)[:, place] for grid, place in zip(grids, places, strict=True)], 2)

    def axial(case: Case) -> tuple[Tensor, Tensor]:
        return on_grid(case.inputs["q"], case.q_at), on_grid(case.inputs["k"], case.k_at)

    note = "q . k compared, because patches count from 1; x is the first axis; beyond needs 2049 x 2049 patches"
    api, cases = "VisionRotaryPositionalEmbeddings", ("counted", "ends", "decoded")
    yield Port("axial-rotary", api, by_products(axial), cases, note=note)


def attn_gym(weights: dict[str, Tensor]) -> Iterator[Port]:
    mods = importlib.import_module("attn_gym.mods")

    def by_score(mod: Any, heads: int = HEADS) -> Any:
        h, zero = torch.arange(heads)[:, None, None], torch.zeros(())
        return biases(lambda q_at, k_at: mod(zero, zero, h, q_at[:, None, :, None], k_at[:, None, None]))

    yield Port("alibi", "generate_alibi_bias", by_score(mods.generate_alibi_bias(HEADS)))
    reason = (
        "slopes are 2^(-8 (h + 1)/H) for every H; ALiBi takes those of the next lower power of 2, then every "
        "second one of the next higher: 4 heads of 4, then 2 of 8, pass"
    )
    four, eight = (by_score(mods.generate_alibi_bias(heads), heads) for heads in (4, 8))

    def slopes(case: Case) -> dict[str, Tensor]:
        return {"bias": torch.cat((four(case)["bias"], eight(case)["bias"][:, :3:2]), 1)}

    yield Port(SIX_HEADS, "generate_alibi_bias", by_score(mods.generate_alibi_bias(6), 6), (), reason, slopes)
    yield Port("sandwich", "generate_sandwich_bias", by_score(mods.generate_sandwich_bias(HEADS, REACH)))


def positional_encodings(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = importlib.import_module("positional_encodings.torch_encodings")
    table = module.PositionalEncoding1D(DIM)(torch.zeros(1, REACH, DIM))[0]
    yield Port("sinusoidal", "PositionalEncoding1D", additions(lambda x, ids: x + table[ids]))
