"""The estimated memory of a pass, against the tensors of models that have read a text."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_llama
import torch
import transformers

from posenc import cli
from posenc.checkpoints.extension.extend import memory_plan
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats.load import hollow_model
from posenc.checkpoints.kinds.calls import cache_argument
from posenc.checkpoints.measures import memory
from posenc.checkpoints.measures.perplexity import PrefixCache, predictions

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
GQA = SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 8}
LAYERS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 33}


def memory_of(model: Any, length: int, dtype: torch.dtype = torch.float32, **options: Any) -> memory.Memory:
    return memory.pass_memory(model, length, dtype=dtype, **options)


def cached_bytes(model: Any, length: int) -> int:
    """Return the bytes of keys and values in a model's cache after a text of a length."""
    output = getattr(model(input_ids=torch.arange(length)[None] % 60, use_cache=True), cache_argument(model))
    tensors = [getattr(layer, name, None) for layer in output.layers for name in ("keys", "values")]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", GQA),
        ("GPT2", {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}),
        ("Mistral", GQA | {"sliding_window": 33}),
        ("Gemma3", GQA | LAYERS),
        ("DeepseekV3", SMALL | LATENT | EXPERTS | {"num_key_value_heads": 2}),
        ("Falcon", SMALL | {"multi_query": True, "new_decoder_architecture": False}),
        (
            "Qwen3Next",
            GQA | {"layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1},
        ),
    ],
)
@torch.no_grad()
def test_the_cache_is_as_large_as_that_of_a_model_that_has_read_a_text(name: str, options: dict[str, Any]) -> None:
    kind = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM"))
    config = kind.config_class(**options) if name != "Gemma3" else transformers.Gemma3TextConfig(**options)
    model = kind(config).eval()
    memory_sizes = memory_of(model, 200)
    # A window keeps one token less than it sees.
    assert memory_sizes.cache == pytest.approx(cached_bytes(model, 200), rel=0.04)
    assert memory_sizes.weights == 4 * sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


@torch.no_grad()
def test_the_keys_of_an_encoded_text_are_kept_too() -> None:
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 2, "vocab_size": 64}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes)).eval()
    ids = torch.arange(50)[None] + 4
    output = getattr(model(input_ids=ids, decoder_input_ids=ids, use_cache=True), cache_argument(model))
    layers = (layer for cache in (output.self_attention_cache, output.cross_attention_cache) for layer in cache.layers)
    assert memory_of(model, 50).cache == sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def test_logits_are_those_of_a_chunk() -> None:
    model = tiny_llama.model()
    (logits, _), *_ = predictions(model, torch.arange(90), 50, None, PrefixCache())
    assert memory_of(model, 90, chunk=50).logits == logits.nbytes
    # The last token predicts nothing.
    assert memory_of(model, 20, chunk=50).logits == 19 * logits.nbytes // 50


def test_a_dtype_and_a_cache_elsewhere_are_factors() -> None:
    model = hollow_model(transformers.AutoModelForCausalLM, tiny_llama.config(num_hidden_layers=5))
    plain, half = memory_of(model, 200, chunk=50), memory_of(model, 200, torch.bfloat16, chunk=50)
    assert (2 * half.weights, 2 * half.cache, 2 * half.logits) == (plain.weights, plain.cache, plain.logits)
    elsewhere = memory_of(model, 200, chunk=50, cache="cpu")
    assert elsewhere.cache * 5 == plain.cache * 2 and plain.total == plain.weights + plain.cache + plain.logits


def test_encoders_keep_nothing_and_predict_the_whole_text() -> None:
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))
    assert (memory_of(masked, 100).cache, memory_of(masked, 100).logits) == (0, 100 * 64 * 4)
    assert memory_of(masked.bert, 100).total == memory_of(masked.bert, 200).total == memory_of(masked.bert, 100).weights


def test_from_the_command_line_a_plan_is_of_a_config_alone_and_runs_nothing(tmp_path: Path, capsys) -> None:
    tiny_llama.config(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "model")
    # The GPU need not exist.
    command = ["extend", str(tmp_path / "model"), "--plan", "--device", "cuda", "--out", str(tmp_path / "out")]
    assert cli.main(command) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "By plan 192 tokens take" in words and "within 25 % or 500 MiB" in words
    assert cli.main([*command, "--dtype", "bfloat16", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["length"] for row in plan["rows"]] == [96, 144, 192] and plan["way"]["dtype"] == "bfloat16"
    assert not (tmp_path / "out").exists()
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 48}
    tiny_llama.config(architectures=["LlamaForCausalLM"], rope_parameters=yarn).save_pretrained(tmp_path / "model")
    assert cli.main([*command, "--replace", "--method", "linear"]) == 0


def test_encoders_have_plans_too_and_what_a_config_does_not_tell_is_said(tmp_path: Path) -> None:
    transformers.BertConfig(**SMALL, architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    plan = memory_plan(Settings(str(tmp_path), 2.0))
    assert [row["length"] for row in plan["rows"]] == [512, 768, 1024] and plan["rows"][-1]["cache"] == 0
    assert "layers work in and keys and values, of which its config tells nothing" in memory.plan_sentences(plan)[1]
    assert memory.cache_sizes(transformers.PreTrainedConfig()) == []


DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "pad_token_id": 0},
    "biogpt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 2},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2, "max_position_embeddings": 2048},
}


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_have_a_plan(kind: str, tmp_path: Path, capsys) -> None:
    config = transformers.AutoConfig.for_model(kind, **DECODERS[kind])
    config.architectures = [transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.save_pretrained(tmp_path)
    assert cli.main(["extend", str(tmp_path), "--plan", "--json"]) == 0
    longest = json.loads(capsys.readouterr().out)["rows"][-1]
    # Keys and values of two layers, 32 numbers each, in float32.
    assert longest["length"] in (2048, 4096) and longest["cache"] <= 2 * 2 * 32 * 4 * longest["length"]


def test_of_a_model_that_extend_refuses_nothing_is_planned(tmp_path: Path, capsys) -> None:
    sizes = {**DECODERS["bloom"], "max_position_embeddings": None}
    transformers.BloomConfig(**sizes, architectures=["BloomForCausalLM"]).save_pretrained(tmp_path)
    assert cli.main(["extend", str(tmp_path), "--plan", "--lengths", "64"]) == 2
    assert "neither the config nor a table says how long a text" in capsys.readouterr().err
    assert cli.main(["extend", str(tmp_path), "--plan", "--factor", "0.5"]) == 2


def test_where_a_device_is_full_it_is_said_what_would_help() -> None:
    words = (
        r"yarn at 96: the device has no memory left .*Finished passes are kept. Less is taken by --dtype .*expandable"
    )
    with pytest.raises(RuntimeError, match=words), memory.explain_out_of_memory("yarn at 96"):
        raise torch.OutOfMemoryError("out of memory")
