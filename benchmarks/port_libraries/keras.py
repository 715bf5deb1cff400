"""The ports of keras-hub."""

import importlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from port_libraries.kinds import (
    DIM,
    HEADS,
    LENGTH,
    REACH,
    SIX_HEADS,
    STRETCH,
    WIDTH,
    Case,
    Port,
    additions,
    by_keys,
    by_pairs,
    in_pairs,
    rotations,
)


def keras_hub(weights: dict[str, Tensor]) -> Iterator[Port]:
    library = importlib.import_module("keras_hub")

    def source(name: str) -> ModuleType:
        return importlib.import_module(f"keras_hub.src.models.{name}")

    def heads_last(rotate: Any) -> Any:
        return rotations(lambda x, ids: rotate(x.transpose(1, 2), ids).transpose(1, 2))

    def rope(family: str, **options: Any) -> Port:
        layer = library.layers.RotaryEmbedding(**options)
        return Port(family, "RotaryEmbedding", heads_last(lambda x, ids: layer(x, positions=ids)))

    yield rope("rotary-half")
    yield (linear := rope("rotary-linear", scaling_factor=4.0))
    llama = source("llama.llama_rotary_embedding").LlamaRotaryEmbedding
    unscaled_layer = llama(position_scaling_factor=4.0)
    reason = (
        "_get_inverse_freq reads frequency_adjustment_factor alone; position_scaling_factor is kept and not used; "
        "RotaryEmbedding(scaling_factor=4) passes"
    )
    api, plain = "LlamaRotaryEmbedding", heads_last(lambda x, ids: unscaled_layer(x, positions=ids))
    yield Port("rotary-linear", api, plain, (), reason, linear.outputs)
    port = rope("rotary-dynamic-ntk", rope_type="dynamic", scaling_factor=STRETCH)
    port.variation = rope("", max_wavelength=1e4 * STRETCH ** (WIDTH / (WIDTH - 2))).outputs
    port.reason = (
        "every frequency is divided by s^(d/(d - 2)); NTK multiplies the base by that, which leaves the first "
        "frequency and divides the last by s; with the base multiplied it passes"
    )
    port.note = f"scaling_factor={STRETCH:.3f}, what NTK's factor 2 makes at {REACH} tokens"
    yield port
    yarn = {"rope_type": "yarn", "scaling_factor": 4.0, "original_max_position_embeddings": LENGTH}
    yield rope("rotary-yarn", **yarn)
    factors = {"frequency_adjustment_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled_layer = llama(500_000, pretraining_sequence_length=LENGTH, **factors)
    yield Port("rotary-llama3", api, heads_last(lambda x, ids: scaled_layer(x, positions=ids)))
    yield neox_port(source("gpt_neo_x.gpt_neo_x_attention").GPTNeoXAttention, library.layers.RotaryEmbedding())
    gemma = source("gemma4.gemma4_attention")
    layer = gemma.Gemma4TextAttention(WIDTH, HEADS, HEADS, rope_partial_rotary_factor=0.25)
    layer.build((None, None, DIM))
    proportional = heads_last(lambda x, ids: layer._apply_rope(x, 0, ids))
    yield Port("proportional-rotary", "Gemma4TextAttention", proportional)
    embed, flux = source("flux.flux_layers").EmbedND(100, [8, 8]), source("flux.flux_maths").ApplyRoPE()
    axial = in_pairs(lambda x, ids: flux(x, x, embed(ids.float()))[0])
    yield Port("axial-rotary", "flux: EmbedND, ApplyRoPE", rotations(axial), note="neighbouring channels are a pair")
    for family, heads in (("alibi", HEADS), (SIX_HEADS, 6)):
        table = library.layers.AlibiBias()(torch.zeros(1, heads, 1, REACH))[0, :, 0]
        yield Port(family, "AlibiBias", by_keys(table))
    t5 = source("t5.t5_multi_head_attention").T5MultiHeadAttention(True, DIM, 8, HEADS, 0.0, True)
    t5.relative_attention_bias.assign(weights["t5-bias"])
    yield Port("t5-bias", "T5MultiHeadAttention.compute_bias", by_pairs(t5.compute_bias(REACH, REACH)[0]))
    sines = library.layers.SinePositionEncoding()
    yield Port("sinusoidal", "SinePositionEncoding", additions(lambda x, ids: x + sines(x, positions=ids)))
    learned = library.layers.PositionEmbedding(LENGTH)
    learned.build((None, None, DIM))
    learned.position_embeddings.assign(weights["learned"])
    yield Port("learned", "PositionEmbedding", additions(lambda x, ids: x + learned(x, positions=ids)))


def neox_port(attention: Any, rotary: Any) -> Port:
    """Return the port of Keras' GPT-NeoX attention, called with stand-ins for its projections and its product."""

    def outputs(case: Case, knows_start: bool = False) -> dict[str, Tensor]:
        q, k = (case.inputs[x].transpose(1, 2) for x in "qk")
        start, heads_in_product = k.shape[1] - q.shape[1], {}

        def record(query: Tensor, key: Tensor, **options: Any) -> Tensor:
            heads_in_product.update(q=query.transpose(1, 2), k=key.transpose(1, 2))
            return query

        def rotate(x: Tensor) -> Tensor:
            return rotary(x, start_index=start) if knows_start and x.shape[1] == q.shape[1] else rotary(x)

        parts = {"_qkv_dense": lambda x: x, "_output_dense": lambda x: x, "_compute_attention": record}
        numbers = {"attn_head_size": WIDTH, "rotary_dim": WIDTH // 2, "hidden_dim": HEADS * WIDTH}
        layer = SimpleNamespace(rotary_embedding_layer=rotate, **parts, **numbers)
        options = {"cache": torch.stack((k, k), 1), "cache_update_index": start} if start else {}
        attention.call(layer, torch.cat((q, k[:, start:], q), -1), **options)
        return heads_in_product

    reason = (
        "call rotates the query with self.rotary_embedding_layer(query_rot), at position 0 when it is decoded with "
        "a cache; with start_index=cache_update_index it passes"
    )
    api, note, cases = "GPTNeoXAttention.call", "no position ids", ("counted", "decoded")
    return Port("rotary-partial", api, outputs, cases, reason, lambda case: outputs(case, True), note)
