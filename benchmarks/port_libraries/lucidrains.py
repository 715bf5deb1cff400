"""The ports of x-transformers and rotary-embedding-torch."""

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
    by_pairs,
    by_products,
    by_row,
    in_pairs,
    interleaved_channels,
    rotations,
)


def x_transformers(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = importlib.import_module("x_transformers.x_transformers")

    def rope(family: str, width: int = WIDTH, **options: float) -> Port:
        rotary = module.RotaryEmbedding(width, **options)
        rotate = in_pairs(lambda x, ids: module.apply_rotary_pos_emb(x, rotary(ids)[0]), width)
        return Port(family, "RotaryEmbedding", rotations(rotate), note="neighbouring channels are a pair")

    rotary = module.RotaryEmbedding(WIDTH)
    plain = rotations(lambda x, ids: module.apply_rotary_pos_emb(x, rotary(ids)[0]))
    yield Port("rotary-interleaved", "RotaryEmbedding", plain)
    yield rope("rotary-partial", WIDTH // 2)
    yield rope("rotary-linear", interpolation_factor=4.0)
    yield rope("rotary-ntk", base_rescale_factor=4.0)
    xpos_layer = module.RotaryEmbedding(WIDTH, use_xpos=True)

    def xpos(case: Case) -> tuple[Tensor, Tensor]:
        angles, sizes = xpos_layer(case.k_at)
        q, k = (interleaved_channels(case.inputs[x]) for x in "qk")
        return module.apply_rotary_pos_emb(q, angles, sizes), module.apply_rotary_pos_emb(k, angles, 1 / sizes)

    note = "q . k compared, because the centre is half of the largest position of the call"
    yield Port("xpos", "RotaryEmbedding(use_xpos=True)", by_products(xpos), note=note)
    for family, heads in (("alibi", HEADS), (SIX_HEADS, 6)):
        slopes = module.AlibiPositionalBias(heads)
        yield Port(family, "AlibiPositionalBias", biases(slopes.forward_custom_pos))
    buckets = module.RelativePositionBias(1, causal=True, heads=HEADS)
    buckets.relative_attention_bias.weight.copy_(weights["t5-bias"])
    note = "with scale=1; x-transformers multiplies it by sqrt(head_dim)"
    yield Port("t5-bias", "RelativePositionBias", by_pairs(buckets(REACH, REACH)), note=note)
    scaled_layer = module.ScaledSinusoidalEmbedding(DIM)
    scaled_layer.scale.fill_(1.0)

    def sines(x: Tensor, ids: Tensor) -> Tensor:
        starts = ids.shape[1] - 1 - ids[:, -1]  # tokens of padding
        options = {"pos": ids[0]} if ids[0].equal(ids[1]) else {"seq_start_pos": starts}
        return x + interleaved_channels(scaled_layer(x, **options), DIM)

    rows = by_row(lambda x, ids: x + interleaved_channels(scaled_layer(x, pos=ids), DIM))
    reason = (
        "forward computes einsum('i, j -> i j', pos, ...), and seq_start_pos gives pos a second axis; "
        "row by row it passes"
    )
    note = "scale set to 1; sines first"
    yield Port("sinusoidal", "ScaledSinusoidalEmbedding", additions(sines), (), reason, additions(rows), note)
    learned = module.AbsolutePositionalEmbedding(DIM, LENGTH)
    learned.emb.weight.copy_(weights["learned"] * DIM**0.5)
    rows = additions(lambda x, ids: x + learned(x, pos=ids))
    yield Port("learned", "AbsolutePositionalEmbedding", rows, note="its rows are multiplied by dim^(-1/2)")


def rotary_embedding_torch(weights: dict[str, Tensor]) -> Iterator[Port]:
    module = importlib.import_module("rotary_embedding_torch")

    def rotation(width: int = WIDTH, **options: float) -> Any:
        rotary = module.RotaryEmbedding(width, **options)
        return lambda x, ids: module.apply_rotary_emb(rotary(ids)[:, None], x)

    api, note = "RotaryEmbedding", "neighbouring channels are a pair"
    yield Port("rotary-interleaved", api, rotations(rotation()))
    yield Port("rotary-partial", api, rotations(in_pairs(rotation(8), 8)), note=note)
    linear = module.RotaryEmbedding(WIDTH, interpolate_factor=4.0)

    def token_by_token(x: Tensor, ids: Tensor) -> Tensor:
        tokens = [linear.rotate_queries_or_keys(x[:, :, n : n + 1], offset=int(place)) for n, place in enumerate(ids)]
        return torch.cat(tokens, 2)

    with_offset = rotations(in_pairs(by_row(token_by_token)))
    yield Port("rotary-linear", "rotate_queries_or_keys(offset)", with_offset, note=note)
    yield Port("rotary-ntk", api, rotations(in_pairs(rotation(theta_rescale_factor=4.0))), note=note)
    xpos_layer = module.RotaryEmbedding(WIDTH, use_xpos=True)

    def xpos(case: Case) -> tuple[Tensor, Tensor]:
        q, k = (interleaved_channels(case.inputs[x]) for x in "qk")
        name = "rotate_queries_and_keys" if q.shape == k.shape else "rotate_queries_with_cached_keys"
        return getattr(xpos_layer, name)(q, k)

    def xpos_of_keys(case: Case) -> tuple[Tensor, Tensor]:
        q, k = (interleaved_channels(case.inputs[x]) for x in "qk")
        tokens, scale = k.shape[2] - q.shape[2], xpos_layer.get_scale(xpos_layer.get_seq_pos(k.shape[2]))
        q = xpos_layer.rotate_queries_or_keys(q, scale=scale[tokens:], offset=tokens)
        return q, xpos_layer.rotate_queries_or_keys(k, scale=1 / scale)

    reason = (
        "rotate_queries_with_cached_keys takes half the number of queries as the centre of queries, and half the "
        "number of keys as that of keys; with get_scale(seq)[-q_len:] for get_scale(seq[-q_len:]) it passes"
    )
    api, cases, note = "rotate_queries_with_cached_keys", ("counted", "decoded"), "q . k compared; no position ids"
    yield Port("xpos", api, by_products(xpos), cases, reason, by_products(xpos_of_keys), note)
    freqs = module.RotaryEmbedding(8, theta=100).get_axial_freqs(REACH, REACH // 2 + 1)
    axial = in_pairs(lambda x, ids: module.apply_rotary_emb(freqs[ids[..., 0], ids[..., 1]][:, None], x))
    yield Port("axial-rotary", "get_axial_freqs", rotations(axial), note="neighbouring channels are a pair")
