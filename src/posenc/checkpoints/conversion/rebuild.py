"""Rebuild a language model of transformers as a posenc model with the same weights."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from posenc.checkpoints.formats.load import load, require_transformers
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.model.config import PARTS_WITH_BIAS
from posenc.model.decoder import Decoder
from posenc.model.encoder_decoder import EncoderDecoder
from posenc.specs.presets import preset

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LLAMA = """
model.embed_tokens = embedding.token
model.layers.*.self_attn = stack.blocks.*.attention
model.layers.*.mlp = stack.blocks.*.feed_forward
model.layers.*.input_layernorm = stack.blocks.*.attention_norm
model.layers.*.post_attention_layernorm = stack.blocks.*.feed_forward_norm
model.norm = stack.final_norm
lm_head = output
"""
BRANCH_NORMS = (
    LLAMA.replace("feed_forward_norm", "attention_branch_norm")
    + """
model.layers.*.pre_feedforward_layernorm = stack.blocks.*.feed_forward_norm
model.layers.*.post_feedforward_layernorm = stack.blocks.*.feed_forward_branch_norm
"""
)
GPT2 = """
transformer.wte = embedding.token
transformer.wpe.weight = stack.encodings.0.table
transformer.h.*.ln_1 = stack.blocks.*.attention_norm
transformer.h.*.attn.c_attn = stack.blocks.*.attention.qkv_proj
transformer.h.*.attn.c_proj = stack.blocks.*.attention.o_proj
transformer.h.*.ln_2 = stack.blocks.*.feed_forward_norm
transformer.h.*.mlp.c_fc = stack.blocks.*.feed_forward.up_proj
transformer.h.*.mlp.c_proj = stack.blocks.*.feed_forward.down_proj
transformer.ln_f = stack.final_norm
lm_head = output
"""
FUSED_QKV = """
LAYERS.*.input_layernorm = stack.blocks.*.attention_norm
LAYERS.*.ATTENTION.query_key_value = stack.blocks.*.attention.qkv_proj
LAYERS.*.ATTENTION.dense = stack.blocks.*.attention.o_proj
LAYERS.*.post_attention_layernorm = stack.blocks.*.feed_forward_norm
LAYERS.*.mlp.dense_h_to_4h = stack.blocks.*.feed_forward.up_proj
LAYERS.*.mlp.dense_4h_to_h = stack.blocks.*.feed_forward.down_proj
lm_head = output
"""
NEOX = f"""
gpt_neox.embed_in = embedding.token
{FUSED_QKV.replace("LAYERS", "gpt_neox.layers").replace("ATTENTION", "attention")}
gpt_neox.final_layer_norm = stack.final_norm
embed_out = output
"""
BLOOM = f"""
transformer.word_embeddings = embedding.token
transformer.word_embeddings_layernorm = stack.embedding_norm
{FUSED_QKV.replace("LAYERS", "transformer.h").replace("ATTENTION", "self_attention")}
transformer.ln_f = stack.final_norm
"""
T5_STACK = """
STACK.block.*.layer.0.SelfAttention.relative_attention_bias.weight = STACK.encodings.0.table
STACK.block.*.layer.0.SelfAttention = STACK.blocks.*.attention
STACK.block.*.layer.0.layer_norm = STACK.blocks.*.attention_norm
STACK.block.*.layer.LAST.DenseReluDense = STACK.blocks.*.feed_forward
STACK.block.*.layer.LAST.layer_norm = STACK.blocks.*.feed_forward_norm
STACK.final_layer_norm = STACK.final_norm
"""
T5 = f"""
shared = embedding.token
{T5_STACK.replace("STACK", "encoder").replace("LAST", "1")}
{T5_STACK.replace("STACK", "decoder").replace("LAST", "2")}
decoder.block.*.layer.1.EncDecAttention = decoder.blocks.*.cross_attention
decoder.block.*.layer.1.layer_norm = decoder.blocks.*.cross_norm
lm_head = output
"""
"""Names in transformers = names in posenc; the rest of a name is the same in both. A * is the layer number."""

T5_MODULES = {".q.": ".q_proj.", ".k.": ".k_proj.", ".v.": ".v_proj.", ".o.": ".o_proj."}
T5_MODULES |= {".wi.": ".up_proj.", ".wi_0.": ".gate_proj.", ".wi_1.": ".up_proj.", ".wo.": ".down_proj."}
"""Names of modules of a T5 layer in transformers, and in posenc."""


class Family(NamedTuple):
    """The weight names and weight format of a model family.

    preset            the posenc preset, for the parts that a configuration does not name
    names             names in transformers and in posenc, a line each
    qkv_layout        a fused query, key and value: "rows" one after another, or "heads" interleaved by head
    is_transposed     whether matrices are [in, out]
    norms_around_one  whether a norm stores w of its factor 1 + w
    """

    preset: str
    names: str
    qkv_layout: str = ""
    is_transposed: bool = False
    norms_around_one: bool = False


FAMILIES = {
    "bloom": Family("bloom", BLOOM, "heads"),
    "exaone4": Family("exaone4", BRANCH_NORMS),
    "gemma": Family("gemma", LLAMA, norms_around_one=True),
    "gemma2": Family("gemma2", BRANCH_NORMS, norms_around_one=True),
    "gemma3_text": Family("gemma3", BRANCH_NORMS, norms_around_one=True),
    "gpt2": Family("gpt2", GPT2, "rows", is_transposed=True),
    "gpt_neox": Family("gpt_neox", NEOX, "heads"),
    "llama": Family("llama", LLAMA),
    "mistral": Family("mistral", LLAMA),
    "olmo2": Family("olmo2", BRANCH_NORMS),
    "qwen2": Family("qwen2", LLAMA),
    "qwen3": Family("qwen3", LLAMA),
    "smollm3": Family("smollm3", LLAMA),
    "t5": Family("t5", T5),
}
"""The families that `rebuild` knows, by model_type."""

ACTIVATIONS = {
    "gelu": ("gelu", "geglu"),
    "gelu_new": ("gelu_tanh", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
    "gelu_fast": ("gelu_tanh", "geglu_tanh"),
    "relu": ("relu", ""),
    "relu2": ("relu2", ""),
    "silu": ("", "swiglu"),
}
"""The feed-forward layer of each activation, plain and gated."""

CLOSE = 1e-3
"""Tolerance of logits in float32, as a share of the largest logit; half precision has a larger tolerance."""


def rebuild(source: "str | Path | PreTrainedModel") -> Decoder | EncoderDecoder:
    """Rebuild a language model as a posenc model in evaluation mode. Its weights are copied in their dtype.

    source  a checkpoint (a folder, a GGUF file, or owner/name of the hub), or a model of transformers with its
            language head

    Families: GPT-2, Llama (and SmolLM2), Mistral, Qwen 2 and 3, Gemma 1 to 3, OLMo 2, EXAONE 4, SmolLM3, GPT-NeoX,
    BLOOM, T5. Both models run on a few ids, and their logits are compared.

    Raises CannotRead for another family, for a model without its head, and for logits that differ, because the
    configuration has a feature that posenc lacks.
    Limit: Gemma's norms are 1 + w in float32; here 1 + w has the model's dtype, so rebuild them in float32.

    >>> model = rebuild("models/smollm2/model.gguf")  # doctest: +SKIP
    >>> model.generate(tokenizer("The capital", return_tensors="pt").input_ids, max_new_tokens=8)  # doctest: +SKIP
    """
    require_transformers()
    reference = load(source).model if isinstance(source, (str, Path)) else source
    config = reference.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise CannotRead(f"no table of names for '{config.model_type}'; there are: {', '.join(sorted(FAMILIES))}")
    if reference.get_output_embeddings() is None:
        raise CannotRead(f"{type(reference).__name__} has no language head; load the class whose name ends so")
    reading = configs.read(config.to_dict())
    weights = dict(renamed_weights(reference, family))
    options = {**preset(family.preset), **block_options(config, weights), **position_options(reading)}
    kind = EncoderDecoder if preset(family.preset).model == "encoder-decoder" else Decoder
    model = kind(**options).to(device=reference.device, dtype=reference.dtype).eval()
    model.load_state_dict(weights)
    check_logits(reference, model)
    return model


def renamed_weights(model: nn.Module, family: Family) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a transformers model under posenc's names, in posenc's format."""
    table = [line.split(" = ") for line in family.names.splitlines() if line]
    config: Any = model.config
    for name, weight in model.named_parameters():
        layer = re.search(r"\.(\d+)\.", name)
        plain = name if layer is None else re.sub(r"\.\d+\.", ".*.", name, count=1)
        places = [(old, new) for old, new in table if plain == old or plain.startswith(f"{old}.")]
        if not places:
            raise CannotRead(f"the weight {name} has no place in a posenc model")
        old, new = max(places, key=lambda place: len(place[0]))
        target = (new + plain.removeprefix(old)).replace("*", layer[1] if layer else "*")
        for old_part, new_part in T5_MODULES.items():
            target = target.replace(old_part, new_part)
        weight = weight.detach()
        if family.is_transposed and weight.dim() == 2 and "_proj" in target:
            weight = weight.T
        if family.norms_around_one and "norm" in target:
            weight = weight + 1
        if "qkv_proj" not in target:
            yield target, weight
        else:
            heads = (3,) if family.qkv_layout == "rows" else (config.num_attention_heads, 3)
            rows = weight.unflatten(0, (*heads, -1)).movedim(len(heads) - 1, 0)
            for part, weights in zip("qkv", rows, strict=True):
                yield target.replace("qkv_proj", f"{part}_proj"), weights.reshape(-1, *weight.shape[1:])
        if target == "embedding.token.weight" and getattr(config, "scale_decoder_outputs", False):
            yield "output.weight", weight * config.d_model**-0.5


def block_options(config: Any, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Return the options of the blocks, from the configuration and from the weights."""

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    has_gate = any("gate_proj" in name for name in weights)
    activation = first("dense_act_fn", "hidden_activation", "hidden_act", "activation_function") or "gelu_new"
    feed_forward = ACTIVATIONS.get(activation, ("", ""))[has_gate]
    if not feed_forward:
        raise CannotRead(f"no feed-forward layer with the activation '{activation}'{' and a gate' * has_gate}")
    bias = {part for part in PARTS_WITH_BIAS for name in weights if re.search(rf"(^|[._]){part}(\.\w+)?\.bias$", name)}
    shapes = {name.split("blocks.0.")[-1]: weight.shape for name, weight in weights.items()}
    options = {
        "vocab": shapes["embedding.token.weight"][0],
        "intermediate_size": shapes["feed_forward.up_proj.weight"][0],
        "feed_forward": feed_forward,
        "bias": tuple(part for part in PARTS_WITH_BIAS if part in bias),
        "norm_eps": first("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        "tie_output": "output.weight" not in weights,
    }
    for name, key in {
        "softcap": "attn_logit_softcapping",
        "output_softcap": "final_logit_softcapping",
        "parallel_residual": "use_parallel_residual",
    }.items():
        if hasattr(config, key):
            options[name] = getattr(config, key)
    if hasattr(config, "query_pre_attn_scalar"):
        options["scale"] = config.query_pre_attn_scalar**-0.5
    return options


def position_options(reading: Reading) -> dict[str, Any]:
    """Return sizes and encodings from a reading. Raises CannotRead for features without an option here."""
    part: Part = reading.parts[-1]
    if reading.not_covered or reading.unknown or not part.is_complete or any(layer.chunk for layer in part.layers):
        reasons = "; ".join([*reading.not_covered, *map(str, reading.unknown)]) or "its position code is not recognised"
        raise CannotRead(f"it does more than a posenc model of its family: {reasons}")
    specs = [layer.spec if part.embed == "none" else part.embed for layer in part.layers]
    return {
        "dim": part.shape.dim,
        "heads": part.shape.heads,
        "head_dim": part.shape.head_dim,
        "kv_heads": part.kv_heads,
        "layers": len(part.layers),
        "max_len": part.shape.max_len,
        "encoding": tuple(specs) if len(set(specs)) > 1 else specs[0],
        "window": tuple(layer.window for layer in part.layers),
    }


@torch.no_grad()
def check_logits(reference: "PreTrainedModel", model: Decoder | EncoderDecoder) -> None:
    """Raise CannotRead if the logits of two models differ for a few ids."""
    was_training = reference.training
    ids = torch.arange(16, device=reference.device)[None] * 7 % model.vocab
    targets = {"decoder_input_ids": ids} if isinstance(model, EncoderDecoder) else {}
    expected = reference.eval()(input_ids=ids, use_cache=False, **targets).logits.float()
    reference.train(was_training)
    logits = (model(ids, ids) if isinstance(model, EncoderDecoder) else model(ids)).float()
    error = float((logits - expected).abs().max() / expected.abs().max())
    if error > max(CLOSE, 32 * torch.finfo(reference.dtype).eps):
        raise CannotRead(
            f"rebuilt, its logits are off by {error:.2g} of the largest: its configuration has a feature that posenc's "
            f"models lack; run the model itself, with posenc.checkpoints.attach"
        )
