"""Live transformers models with posenc's modules: equal numbers, known defects mended, and a full detach.

The oracle is transformers' own code on the same weights, except for its defects.
"""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from tiers import rest_slow  # noqa: E402
from tiny_models import call_with_cache, model_cache  # noqa: E402

from posenc import cli  # noqa: E402
from posenc.catalogue import build  # noqa: E402
from posenc.checkpoints import attach, detach  # noqa: E402
from posenc.checkpoints.formats.huggingface import read_live  # noqa: E402
from posenc.checkpoints.kinds.added.learned_table import LearnedTable  # noqa: E402
from posenc.checkpoints.kinds.calls import cache_argument  # noqa: E402
from posenc.checkpoints.kinds.distances.buckets import Buckets  # noqa: E402
from posenc.checkpoints.kinds.kind import Mismatch  # noqa: E402
from posenc.checkpoints.kinds.rotary.module import RotaryTable, compare_tables  # noqa: E402
from posenc.checkpoints.models.skeleton import bare_model_class  # noqa: E402
from posenc.encoding.base import Shape  # noqa: E402

TOKENS = {"vocab_size": 97, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 64}
ENCODER = TOKENS | WIDE | {"num_hidden_layers": 2}
DECODER = ENCODER | {"num_key_value_heads": 2}
GPT = TOKENS | {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
T5 = TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
LLAMA3 = YARN | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32,
}
EVERY_THIRD = ["sliding_attention", "sliding_attention", "full_attention"]

# name -> the model's class, its config's class, and the options of the config
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER),
    "vit": ("ViTModel", "ViTConfig", IMAGES | {"intermediate_size": 48}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER | {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER | {"rope_parameters": YARN}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", DECODER | {"head_dim": 16}),
    "mistral": ("MistralForCausalLM", "MistralConfig", DECODER | {"sliding_window": 5}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", DECODER | {"head_dim": 8, "sliding_window": 5}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        DECODER
        | {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": 5, "layer_types": EVERY_THIRD}
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            }
        },
    ),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        DECODER | {"original_max_position_embeddings": 32, "rope_parameters": LONGROPE},
    ),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", DECODER | {"num_hidden_layers": 4}),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        DECODER
        | {"num_hidden_layers": 4, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2}
        | {"attention_chunk_size": 8, "floor_scale": 4},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        DECODER
        | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
        | {"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
        | {"topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        DECODER
        | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
        | {"rope_parameters": YARN | {"rope_theta": 150_000.0, "truncate": False}},
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", DECODER),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER | {"rotary_pct": 0.5}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", GPT | {"rotary_dim": 4}),
    "bloom": ("BloomForCausalLM", "BloomConfig", TOKENS | {"hidden_size": 36, "n_layer": 2, "n_head": 6}),
    "mpt": ("MptForCausalLM", "MptConfig", TOKENS | {"d_model": 36, "n_layers": 2, "n_heads": 6, "max_seq_len": 24}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        T5 | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9},
    ),
    "qwen2_vl": (
        "Qwen2VLTextModel",
        "Qwen2VLTextConfig",
        DECODER | {"rope_parameters": HALF | {"partial_rotary_factor": 1.0, "mrope_section": [1, 1, 2]}},
    ),
    "qwen3_vl": (
        "Qwen3VLTextModel",
        "Qwen3VLTextConfig",
        DECODER
        | {"head_dim": 16, "rope_parameters": HALF | {"partial_rotary_factor": 1.0, "mrope_section": [4, 2, 2]}},
    ),
}
EXTRA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ENCODER),
    "opt": ("OPTForCausalLM", "OPTConfig", ENCODER | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", ENCODER),
    "falcon": ("FalconForCausalLM", "FalconConfig", ENCODER | {"alibi": False}),
    "glm": ("GlmForCausalLM", "GlmConfig", DECODER | {"head_dim": 8, "rope_parameters": HALF}),
}
# Encoders whose own code fails past the table before it reads it, or whose numbering of tokens is their own.
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert": ("AlbertForMaskedLM", "AlbertConfig", ENCODER | {"embedding_size": 16}),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", ENCODER | {"embedding_size": 16}),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        TOKENS | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64},
    ),
    "big_bird": ("BigBirdForMaskedLM", "BigBirdConfig", ENCODER | {"attention_type": "original_full"}),
    "layoutlm": ("LayoutLMForMaskedLM", "LayoutLMConfig", ENCODER),
    "fnet": ("FNetForMaskedLM", "FNetConfig", ENCODER),
    "yoso": ("YosoForMaskedLM", "YosoConfig", ENCODER | {"use_expectation": True}),
    "nystromformer": (
        "NystromformerForMaskedLM",
        "NystromformerConfig",
        ENCODER | {"segment_means_seq_len": 12, "num_landmarks": 12},
    ),
    "tapas": ("TapasForMaskedLM", "TapasConfig", ENCODER),
    "bert_decoder": ("BertLMHeadModel", "BertConfig", ENCODER | {"is_decoder": True}),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", ENCODER),
}

FIRST = "gpt2 bert vit llama mistral gemma3 phi3 deepseek_v3 cohere bloom mpt t5 qwen2_vl".split()
"""One of each kind."""

IDS = torch.randint(3, 97, (2, 12), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS).index_put((torch.tensor([0] * 4), torch.arange(4)), torch.tensor(0))
THREE_AXES = torch.stack([torch.arange(12), torch.arange(12) // 2, torch.arange(12) % 5])[:, None].expand(3, 2, 12)


def make(family: str, **options: Any) -> Any:
    """A tiny model of a family, with weights that make position matter."""
    model_class, config_class, sizes = (FAMILIES | EXTRA | ENCODERS)[family]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes | options)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return model


def outputs(model: nn.Module, **inputs: Any) -> Tensor:
    with torch.no_grad():
        out = model(**inputs)
    return out.logits if "logits" in out else out.last_hidden_state


def generate(model: Any, ids: Tensor = IDS, tokens: int = 4, **options: Any) -> Tensor:
    """Return the logits of tokens generated greedily with a cache."""
    out = model.generate(
        ids,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return torch.stack(out.logits)


def ways(family: str, model: Any) -> dict[str, Callable[[], Tensor]]:
    """Return calls of a model: plain, with a cache, left padded, packed; others for encoder-decoders and images."""
    if hasattr(model.config, "image_size"):
        image, wide = torch.randn(1, 3, 32, 32), torch.randn(1, 3, 32, 48)
        return {
            "plain": lambda: outputs(model, pixel_values=image),
            "larger": lambda: outputs(model, pixel_values=wide, interpolate_pos_encoding=True),
        }
    if model.config.is_encoder_decoder:
        decoder = {"decoder_input_ids": IDS[:, :7]}
        return {
            "plain": lambda: outputs(model, input_ids=IDS, **decoder),
            "padded": lambda: outputs(model, input_ids=IDS, attention_mask=MASK, **decoder),
            "cached": lambda: generate(model),
        }
    # Outputs at padding do not count.
    counts = {"position_ids": (MASK.cumsum(1) - 1).clamp(min=0)} if family not in ("bloom", "mpt") else {}
    if family == "roberta":
        counts = {"position_ids": torch.where(MASK == 1, MASK.cumsum(1), 0)}
    results = {
        "plain": lambda: outputs(model, input_ids=IDS),
        "padded": lambda: outputs(model, input_ids=IDS, attention_mask=MASK, **counts)[MASK == 1],
    }
    # Packed documents differ in length, and LongRoPE reads the length.
    if family not in ("bloom", "mpt", "phi3"):
        packed_inputs = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]])
        results["packed"] = lambda: outputs(model, input_ids=IDS[:1], position_ids=packed_inputs)
    if family.endswith("_vl"):
        results["three axes"] = lambda: outputs(model, input_ids=IDS, position_ids=THREE_AXES)
    if model.can_generate():
        results["cached"] = lambda: generate(model)
        results["cached, padded"] = lambda: generate(model, attention_mask=MASK)
    return results


def run(family: str, model: Any) -> dict[str, Tensor]:
    torch.manual_seed(2)
    return {way: call() for way, call in ways(family, model).items()}


def state_of(model: nn.Module) -> tuple[list, list, list, list]:
    """Return all that attach may change: modules, their attributes and hooks, and the names in the state dict."""
    modules = list(model.modules())
    attributes = [(name, id(value)) for module in modules for name, value in vars(module).items()]
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules]
    return modules, attributes, hooks, list(model.state_dict())


@pytest.mark.parametrize(
    "family", rest_slow([*FIRST, *(name for name in FAMILIES | EXTRA if name not in FIRST)], len(FIRST))
)
def test_an_attached_model_gives_the_same_and_a_detached_one_is_as_before(family: str) -> None:
    model = make(family)
    # Some bare modules store results of their first call.
    bare = run(family, model)
    old_state = state_of(model)
    with attach(model) as attachment:
        assert attachment.replaced and not attachment.left
        assert list(model.state_dict()) == old_state[3]
        for way, value in run(family, model).items():
            torch.testing.assert_close(value, bare[way], rtol=1e-5, atol=1e-5)
    assert state_of(model) == old_state
    for way, value in run(family, model).items():
        assert value.equal(bare[way])


def test_documents_in_a_row_have_the_horizon_that_is_declared() -> None:
    model = make("phi3")
    inputs = {"input_ids": IDS[:1], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]])}
    bare = outputs(model, **inputs)
    with attach(model, horizon=32):
        torch.testing.assert_close(outputs(model, **inputs), bare, rtol=1e-5, atol=1e-5)


def test_no_other_model_of_the_class_notices() -> None:
    model, second_model = make("bloom"), make("bloom")
    old_state, methods = state_of(second_model), dict(vars(type(second_model.transformer)))
    attach(model)
    assert state_of(second_model) == old_state and dict(vars(type(second_model.transformer))) == methods


# Defects of the bare model


def test_positions_stay_exact_when_the_whole_model_is_cast() -> None:
    model, position = make("qwen3"), 3001
    exact = position * 10_000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    states = torch.zeros(1, 1, 32, dtype=torch.bfloat16)

    def error() -> float:
        cos, sin = model.model.rotary_emb(states, torch.tensor([[position]]))
        return max(float((cos[0, 0, :8] - exact.cos()).abs().max()), float((sin[0, 0, :8] - exact.sin()).abs().max()))

    model.bfloat16()
    assert error() > 0.1
    attach(model)
    assert error() < 2**-8
    detach(model)
    attach(make("qwen3")).model.bfloat16()
    assert error() > 0.1


def test_a_cast_before_or_after_attach_is_the_same() -> None:
    late_cast, early_cast = make("qwen3"), make("qwen3").bfloat16()
    attach(late_cast)
    attach(early_cast)
    assert outputs(late_cast.bfloat16(), input_ids=IDS).equal(outputs(early_cast, input_ids=IDS))


@pytest.mark.parametrize("family", ["gpt2", "bert", "biogpt", pytest.param("clip_text", marks=pytest.mark.slow)])
def test_left_padding_without_position_ids_gives_what_each_prompt_gives_alone(family: str) -> None:
    model = make(family)
    alone = outputs(model, input_ids=IDS[:1, 4:])[0]
    assert float((outputs(model, input_ids=IDS, attention_mask=MASK)[0, 4:] - alone).abs().max()) > 1e-2
    attach(model)
    actual = outputs(model, input_ids=IDS, attention_mask=MASK)
    torch.testing.assert_close(actual[0, 4:], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1], outputs(model, input_ids=IDS[1:])[0], rtol=1e-5, atol=1e-5)


def test_a_cache_continues_left_padding_without_position_ids() -> None:
    model = make("gpt2")
    attach(model)
    alone = outputs(model, input_ids=IDS[:1, 4:])[0, -3:]
    with torch.no_grad():
        cache = model_cache(model, IDS[:, :9], attention_mask=MASK[:, :9])
        chunk = call_with_cache(model, cache, IDS[:, 9:], attention_mask=MASK).logits
    torch.testing.assert_close(chunk[0], alone, rtol=1e-5, atol=1e-5)


def test_ids_that_are_given_are_kept_and_right_padding_changes_nothing() -> None:
    model = make("gpt2")
    right = MASK.flip(1)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "position_ids": torch.arange(12)[None] + 5}
    bare = outputs(model, **inputs), outputs(model, input_ids=IDS, attention_mask=right)
    attach(model)
    assert outputs(model, **inputs).equal(bare[0])
    assert outputs(model, input_ids=IDS, attention_mask=right).equal(bare[1])


def test_mpt_goes_past_its_trained_length() -> None:
    model, longer = make("mpt"), make("mpt", max_seq_len=64)
    ids = torch.randint(3, 97, (1, 40))
    with pytest.raises(RuntimeError, match="must match the size"):
        outputs(model, input_ids=ids)
    attach(model)
    torch.testing.assert_close(outputs(model, input_ids=ids), outputs(longer, input_ids=ids), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(generate(model, ids[:, :22]), generate(longer, ids[:, :22]), rtol=1e-5, atol=1e-5)


def test_bloom_keeps_near_distances_in_bfloat16() -> None:
    model, ids = make("bloom"), torch.randint(3, 97, (1, 400))
    exact = outputs(model, input_ids=ids)

    def error() -> float:
        return float((outputs(model, input_ids=ids)[0, 300:] - exact[0, 300:]).abs().mean())

    model.bfloat16()
    bare = error()
    attach(model)
    assert error() < 0.7 * bare


def test_dynamic_scaling_with_a_cache_is_that_without() -> None:
    # One layer: a second one would read cached states of a shorter sequence.
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}}
    options = dynamic | {"max_position_embeddings": 16, "num_hidden_layers": 1}
    model, ids = make("llama", **options), IDS[:1]

    def both_logits() -> tuple[Tensor, Tensor]:
        sampling = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "output_logits": True}
        out = model.generate(ids, return_dict_in_generate=True, **sampling)
        # The bare model is right in its first pass: later passes keep the longest length.
        fresh = [make("llama", **options) for _ in range(9)]
        full = [outputs(bare, input_ids=out.sequences[:, : 12 + n])[0, -1] for n, bare in enumerate(fresh)]
        return torch.cat(out.logits), torch.stack(full)

    steps, full = both_logits()
    assert float((steps - full).abs().max()) > 1e-3
    attach(model)
    steps, full = both_logits()
    torch.testing.assert_close(steps, full, rtol=1e-5, atol=1e-5)


# Other encodings


def test_a_spec_that_is_asked_for_is_what_transformers_makes_of_the_same_config() -> None:
    model, target = make("llama"), make("llama", rope_parameters=YARN)
    bare = outputs(model, input_ids=IDS)
    attachment = attach(model, "rotary(schedule=yarn(factor=4, trained_length=16))")
    assert isinstance(model.model.rotary_emb, RotaryTable), attachment.replaced
    torch.testing.assert_close(outputs(model, input_ids=IDS), outputs(target, input_ids=IDS), rtol=1e-5, atol=1e-5)
    detach(model)
    assert outputs(model, input_ids=IDS).equal(bare)


def test_a_declared_horizon_is_one_spectrum_for_all_lengths() -> None:
    # At this length transformers computes its dynamic frequencies for it.
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = make("llama", max_position_embeddings=8, rope_parameters=dynamic)
    attach(model, horizon=12)
    assert isinstance(model.model.rotary_emb, RotaryTable)
    actual = outputs(model, input_ids=IDS), outputs(model, input_ids=IDS[:, :5])
    detach(model)
    torch.testing.assert_close(actual[0], outputs(model, input_ids=IDS), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1], actual[0][:, :5], rtol=1e-5, atol=1e-5)


def test_layers_that_do_not_turn_stay_so_only_when_the_specs_say_so() -> None:
    model = make("smollm3")
    bare = outputs(model, input_ids=IDS)
    with attach(model, ("rotary(base=2_000_000)",) * 3 + ("none",)):
        assert isinstance(model.model.rotary_emb, RotaryTable)
        torch.testing.assert_close(outputs(model, input_ids=IDS), bare, rtol=1e-5, atol=1e-5)
    with attach(model, "rotary(base=2_000_000)") as attachment:
        assert "unturned" in attachment.replaced["model.rotary_emb"]
        assert float((outputs(model, input_ids=IDS) - bare).abs().max()) > 1e-3


def test_another_number_of_pairs_is_honoured() -> None:
    model = make("qwen3")
    bare = outputs(model, input_ids=IDS)
    with attach(model, "rotary(partial=0.5)") as attachment:
        assert "unturned" in attachment.replaced["model.rotary_emb"]
        assert float((outputs(model, input_ids=IDS) - bare).abs().max()) > 1e-3


def test_another_layout_is_honoured() -> None:
    model = make("qwen3")
    bare = outputs(model, input_ids=IDS)
    with attach(model, "rotary(layout=interleaved)") as attachment:
        assert "unturned" in attachment.replaced["model.rotary_emb"]
        assert float((outputs(model, input_ids=IDS) - bare).abs().max()) > 1e-3


def test_slopes_that_are_asked_for_are_used() -> None:
    model = make("mpt")
    bare = outputs(model, input_ids=IDS)
    with attach(model, "alibi(bias_max=4)"):
        assert float((outputs(model, input_ids=IDS) - bare).abs().max()) > 1e-3
    with attach(model, "alibi(bias_max=8)"):
        torch.testing.assert_close(outputs(model, input_ids=IDS), bare, rtol=1e-5, atol=1e-5)


# Learned tables


def test_a_position_past_a_learned_table_is_an_error_that_says_so() -> None:
    model, ids = make("gpt2"), torch.randint(3, 97, (1, 80))
    attach(model)
    with pytest.raises(ValueError, match="position 79 is past the learned table of 64 rows"):
        outputs(model, input_ids=ids)


PAST = ["bert", "roberta", "yoso", "fnet", "albert", "electra", "distilbert", "big_bird", "layoutlm", "clip_text"]


@pytest.mark.parametrize("family", rest_slow(PAST, 4))
def test_a_position_past_the_table_is_named_before_anything_else_fails(family: str) -> None:
    model, rows = make(family), 63 if family == "roberta" else 64
    first = {"roberta": 1, "yoso": 2}.get(family, 0)
    longest, ids = IDS.repeat(1, 9)[:, :rows], IDS.repeat(1, 9)[:, : rows + 1]
    # Padding has no position in RoBERTa, so a padded text may be longer.
    with_padding = torch.cat((torch.zeros_like(IDS[:, :1]), longest), 1) if family == "roberta" else longest
    bare = outputs(model, input_ids=longest), outputs(model, input_ids=with_padding)
    attach(model)
    assert outputs(model, input_ids=longest).equal(bare[0]) and outputs(model, input_ids=with_padding).equal(bare[1])
    far = {"input_ids": ids[:, :1], "position_ids": torch.tensor([[rows + first]])}
    calls = [{"input_ids": ids}, {"inputs_embeds": torch.zeros(1, rows + 1, 32)}, far]
    for inputs in [*calls, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}][: 3 if family == "fnet" else 4]:
        with pytest.raises(ValueError, match=f"position {rows} is past the learned table of {rows} rows; posenc"):
            outputs(model, **inputs)


def test_the_longer_table_that_the_error_speaks_of_serves(tmp_path: Path) -> None:
    model, ids = make("bert"), IDS.repeat(1, 9)[:, :65]
    model.save_pretrained(tmp_path / "MODEL")
    attach(model)
    with pytest.raises(ValueError) as error:
        outputs(model, input_ids=ids)
    words = str(error.value).partition("; posenc ")[2].removesuffix(" writes a longer one").split()
    assert cli.main([str(tmp_path / word) if word.isupper() else word for word in words]) == 0
    longer = type(model).from_pretrained(tmp_path / "NEW").eval()
    attach(longer)
    assert outputs(longer, input_ids=ids).isfinite().all()


def test_behind_a_cache_and_behind_padding_positions_past_the_table_are_counted_too() -> None:
    model = make("bert_decoder")
    ids, mask = torch.cat((IDS[:1, :8] * 0, IDS[:1].repeat(1, 5)), 1), torch.arange(68)[None].ge(8).long()
    alone = outputs(model, input_ids=ids[:, 8:])
    attach(model)
    torch.testing.assert_close(outputs(model, input_ids=ids, attention_mask=mask)[:, 8:], alone, rtol=1e-5, atol=1e-5)
    with torch.no_grad(), pytest.raises(ValueError, match="position 64 is past the learned table of 64 rows"):
        call_with_cache(model, model_cache(model, ids[:, 8:]), ids[:, 8:13])


@pytest.mark.parametrize("family", ["nystromformer", "yoso", "tapas", "fnet"])
@pytest.mark.parametrize("mask", [MASK, MASK.flip(1)], ids=["left", "right"])
def test_models_that_number_tokens_by_themselves_go_on_so(family: str, mask: Tensor) -> None:
    model, inputs = make(family), {"input_ids": torch.where(mask == 1, IDS, 0), "attention_mask": mask}
    if family == "tapas":
        # Positions restart in each cell of a table.
        cells = torch.arange(12)[:, None] // 3 * torch.tensor([0, 1, 1, 0, 0, 0, 0])
        inputs["token_type_ids"] = cells.expand(2, 12, 7)
    bare = outputs(model, **inputs)
    attach(model)
    assert outputs(model, **inputs).equal(bare)


def test_a_learned_table_is_squeezed_to_a_declared_horizon() -> None:
    model, ids = make("gpt2"), torch.randint(3, 97, (1, 127))
    with pytest.raises(ValueError, match="declare it with horizon="):
        attach(model, "learned(overrun=interpolate)")
    attach(model, "learned(overrun=interpolate)", horizon=127)
    table = model.transformer.wpe.weight.detach()
    rows = model.transformer.wpe(torch.arange(127)[None])[0]
    torch.testing.assert_close(rows[::2], table)
    torch.testing.assert_close(rows[1::2], (table[1:] + table[:-1]) / 2)
    assert outputs(model, input_ids=ids).isfinite().all()


@pytest.mark.slow
def test_roberta_and_opt_count_from_the_row_behind_their_padding() -> None:
    for family, path in (
        ("roberta", "roberta.embeddings.position_embeddings"),
        ("opt", "model.decoder.embed_positions"),
    ):
        model = make(family)
        alone = outputs(model, input_ids=IDS[:1, 4:])[0]
        assert path in attach(model).replaced
        actual = outputs(model, input_ids=IDS, attention_mask=MASK)
        torch.testing.assert_close(actual[0, 4:], alone, rtol=1e-5, atol=1e-5)


def test_learned_tables_train_as_before() -> None:
    model, image, weights = make("vit"), torch.randn(1, 3, 32, 48), torch.randn(1, 25, 32)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        (model(pixel_values=image, interpolate_pos_encoding=True).last_hidden_state * weights).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    bare = gradients()
    attach(model)
    assert model.embeddings.position_embeddings.grad is not None
    for actual, expected in zip(gradients(), bare, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_table_that_was_loaded_meanwhile_stays() -> None:
    model, source = make("gpt2"), make("gpt2")
    nn.init.normal_(source.transformer.wpe.weight)
    attach(model)
    model.load_state_dict(source.state_dict(), assign=True)
    assert outputs(model, input_ids=IDS).equal(outputs(source, input_ids=IDS))
    detach(model)
    assert outputs(model, input_ids=IDS).equal(outputs(source, input_ids=IDS))


@pytest.mark.parametrize("name", ["molmo2_vision", "seggpt"])
def test_tables_that_are_read_whole_or_resampled_by_code_of_their_own_stay_the_same(name: str) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes["patch_size"] = 4
    options: dict[str, Any] = {
        "molmo2_vision": {"num_key_value_heads": 2, "head_dim": 8, "image_size": [8, 8], "num_position_embeddings": 4},
        "seggpt": {
            **{"image_size": [16, 8], "pretrain_image_size": 16, "decoder_hidden_size": 8, "merge_index": 0},
            "intermediate_hidden_state_indices": [0, 1],
        },
    }[name]
    torch.manual_seed(0)
    try:
        config = transformers.AutoConfig.for_model(name, **sizes | options)
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} does not know it")
    model = bare_model_class(config)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    image = torch.randn(1, 3, 8, 8)
    inputs = {"pixel_values": torch.randn(1, 4, 48)}
    inputs = (
        {"pixel_values": image, "prompt_pixel_values": image, "prompt_masks": image} if name == "seggpt" else inputs
    )
    expected = model(**inputs).last_hidden_state
    assert attach(model).replaced
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


# Copies, files, compilation


@pytest.mark.parametrize("family", rest_slow(["llama", "bloom", "vit", "gptj", "t5"], 3))
def test_a_copy_is_attached_to_itself(family: str) -> None:
    model = make(family)
    bare = run(family, model)["plain"]
    attach(model)
    attached_logits = run(family, model)["plain"]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert run(family, twin)["plain"].equal(attached_logits)
        detach(twin)
        assert run(family, twin)["plain"].equal(bare)
        with pytest.raises(ValueError, match="nothing is attached"):
            detach(twin)
    assert run(family, model)["plain"].equal(attached_logits)


def test_what_attends_through_posenc_is_not_copied() -> None:
    model = make("qwen3")
    attach(model, "rerope(rotary, window=8)")
    with pytest.raises(TypeError, match="detach it, copy it, and attach both"):
        copy.deepcopy(model)


def test_a_saved_model_is_the_bare_one(tmp_path) -> None:
    model = make("gpt2")
    bare = outputs(model, input_ids=IDS)
    attach(model)
    model.save_pretrained(tmp_path)
    assert outputs(type(model).from_pretrained(tmp_path).eval(), input_ids=IDS).equal(bare)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # BLOOM's own activation makes torch warn
@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_an_attached_model_compiles_into_one_graph(family: str) -> None:
    model = make(family)
    attach(model)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "use_cache": False}
    torch._dynamo.reset()
    graph = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(outputs(graph, **inputs), outputs(model, **inputs), rtol=1e-5, atol=1e-5)


# Errors


def test_what_the_modules_do_is_followed_where_the_config_says_something_else() -> None:
    model = make("qwen3")
    bare = outputs(model, input_ids=IDS)
    model.config.rope_parameters["rope_theta"] = 20_000.0
    reading, _ = read_live(model)
    assert any(
        "the keys say rotary(base=20000), and the modules turn by rotary" in sentence
        for sentence in reading.contradictions
    )
    assert attach(model).replaced == {"model.rotary_emb": "rotary"}
    torch.testing.assert_close(outputs(model, input_ids=IDS), bare, rtol=1e-5, atol=1e-5)


def test_as_many_channels_turn_as_in_the_modules() -> None:
    model = make("gpt_neox")
    bare = outputs(model, input_ids=IDS)
    share = model.config.rope_parameters["partial_rotary_factor"]
    model.config.rope_parameters["partial_rotary_factor"] = share / 2
    attach(model)
    torch.testing.assert_close(outputs(model, input_ids=IDS), bare, rtol=1e-5, atol=1e-5)


def test_buckets_are_those_of_each_stack() -> None:
    model = make("t5")
    model.decoder.block[0].layer[0].SelfAttention.relative_attention_max_distance = 30
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS}
    bare = outputs(model, **inputs)
    assert "max_distance=30" in attach(model).replaced["decoder.block.0.layer.0.SelfAttention"]
    torch.testing.assert_close(outputs(model, **inputs), bare, rtol=1e-5, atol=1e-5)


def test_what_was_replaced_before_a_mistake_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("t5")
    old_state = state_of(model)
    fill = Buckets.fill

    def failing(self: Buckets, *args: Any, **kwargs: Any) -> Any:
        if self.path.startswith("decoder"):
            raise RuntimeError("out of order")
        return fill(self, *args, **kwargs)

    monkeypatch.setattr(Buckets, "fill", failing)
    with pytest.raises(RuntimeError, match="out of order"):
        attach(model)
    assert state_of(model) == old_state


def test_a_piece_that_differs_is_left_with_the_reason_and_the_others_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make("t5")
    old_state = state_of(model)
    fill = Buckets.fill

    def failing(self: Buckets, *args: Any, **kwargs: Any) -> Any:
        if self.path.startswith(where):
            raise Mismatch("as if it were another")
        return fill(self, *args, **kwargs)

    monkeypatch.setattr(Buckets, "fill", failing)
    where = "decoder"
    attachment = attach(model)
    assert [path.partition(".")[0] for path in attachment.replaced] == ["encoder"]
    assert list(attachment.left.values()) == ["as if it were another"]
    detach(model)
    where = ""
    with pytest.raises(ValueError, match="could be replaced: as if it were another; as if it were another"):
        attach(model)
    assert state_of(model) == old_state


def test_buckets_that_are_not_the_same_are_found() -> None:
    model = make("t5")
    reading, pieces = read_live(model)
    piece = next(kind for kind in pieces if isinstance(kind, Buckets))
    encoding = build("t5_bias(buckets=8, max_distance=30, causal=False)", reading.parts[0].shape)
    with pytest.raises(Mismatch, match=r"SelfAttention and t5_bias\(.*\) put \d+ distances into other buckets"):
        piece.fill(model, [encoding], None, exact=True)


def test_rows_that_are_not_the_same_are_found() -> None:
    model = make("gpt2")
    piece = next(kind for kind in read_live(model)[1] if isinstance(kind, LearnedTable))
    wide = piece.size[-1]
    with pytest.raises(Mismatch, match=r"transformer.wpe and sinusoidal differ: the row of position \d+ is off by"):
        piece.fill(model, [build("sinusoidal", Shape(wide, 4, wide // 4, 64))], None, exact=True)


def test_one_pair_that_is_slightly_off_is_found() -> None:
    rotary = build("rotary", Shape(32, 4, 16, 64))
    coords = torch.tensor([0, 1, 100, 30_000])[None, :, None]
    angles = coords * rotary.frequencies
    compare_tables("here", rotary, (angles.cos().float(), angles.sin().float()), coords, None, exact=True)
    angles[..., 6] *= 1.0001
    with pytest.raises(Mismatch, match="at position 30000 pair 6"):
        compare_tables("here", rotary, (angles.cos().float(), angles.sin().float()), coords, None, exact=True)


@pytest.mark.parametrize(
    ("family", "encoding", "message"),
    [
        ("gpt2", "rotary", "transformer.wpe is a table of positions, .* such as learned; got rotary"),
        ("bloom", "rotary", "transformer is ALiBi, .* such as alibi; got rotary"),
        ("falcon", ("rotary", "none"), "code of its own"),
    ],
)
def test_an_encoding_that_has_no_place_is_refused(family: str, encoding: Any, message: str) -> None:
    model = make(family)
    old_state = state_of(model)
    with pytest.raises(ValueError, match=message):
        attach(model, encoding)
    assert state_of(model) == old_state


def test_mistakes_are_named() -> None:
    model = make("qwen3")
    with pytest.raises(ValueError, match="nothing is attached to this Qwen3ForCausalLM"):
        detach(model)
    with pytest.raises(ValueError, match="horizon must be 1 token or more, got 0"):
        attach(model, horizon=0)
    attach(model.model)
    with pytest.raises(ValueError, match="attached to this Qwen3ForCausalLM already; detach"):
        attach(model)
    with pytest.raises(ValueError, match="nothing is attached to this Qwen3ForCausalLM; it is attached to its 'model'"):
        detach(model)
    with pytest.raises(TypeError, match="takes a transformers model, got Linear"):
        attach(nn.Linear(2, 2))
    blind = nn.Linear(2, 2)
    blind.config = model.config
    with pytest.raises(ValueError, match="Linear has no piece of position code that is recognised"):
        attach(blind)


SHARED_KV = {
    **DECODER,
    **{"num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3},
    **{
        "head_dim": 8,
        "sliding_window": 5,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": TOKENS["vocab_size"],
    },
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
"""Models whose last layers share keys, as in Gemma 3n and Gemma 4."""


@pytest.mark.parametrize("kind", rest_slow(["gemma4_text", "gemma3n_text"], 1))
@pytest.mark.parametrize("unturned_keys", [False, True], ids=["in tables", "on unturned keys"])
def test_layers_that_attend_to_keys_of_others_and_wider_heads_in_some_get_what_was_asked(
    kind: str, unturned_keys: bool
):
    wide = {"global_head_dim": 16} if kind == "gemma4_text" else {"laurel_rank": 4, "activation_sparsity_pattern": None}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SHARED_KV | wide)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.randint(3, config.vocab_size, (2, 20))
    specs = ("rotary", "rotary(base=1000000)")
    if unturned_keys:
        # Within its window it is plain rotary.
        specs = tuple(f"rerope({spec}, window=512)" for spec in specs)

    def outcomes() -> list[torch.Tensor]:
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], **{(name := cache_argument(model)): getattr(first, name)})
        # With the last token alone, layers without own keys get no other.
        whole, last = model(ids).logits, model(ids, logits_to_keep=1).logits
        steps = model.generate(
            ids[:, :10], max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        return [whole, torch.cat((first.logits, rest.logits), 1), last, torch.stack(steps.logits)]

    with torch.no_grad():
        expected = outcomes()
        attach(model, specs)
        for actual, want in zip(outcomes(), expected, strict=True):
            torch.testing.assert_close(actual, want, rtol=1e-4, atol=2e-4)
