"""Converted checkpoints compute the same model, the source does not change, and errors write no files."""

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from posenc import cli
from posenc.checkpoints import attach
from posenc.checkpoints.conversion import convert as module
from posenc.checkpoints.conversion.convert import ConversionRequest, convert
from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.lab import store

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 1}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 8, "head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1}
LATENT |= {"topk_group": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a tiny model of transformers, whose weights, norms too, are random."""
    root = tmp_path_factory.mktemp("models")
    transformers.logging.disable_progress_bar()

    def build(model_type: str, causal: bool = True, **changes: Any) -> Path:
        key = json.dumps([model_type, causal, changes], sort_keys=True, default=str)
        folder = root / f"{model_type}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        if not folder.exists():
            kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
            with torch.random.fork_rng():
                torch.manual_seed(1)
                sizes = {key: value for key, value in (SMALL | changes).items() if value is not None}
                model = kind.from_config(transformers.AutoConfig.for_model(model_type, **sizes))
                for parameter in model.parameters():
                    torch.nn.init.normal_(parameter, std=0.3)
                model.save_pretrained(folder, max_shard_size="20KB")
        return folder

    return build


def load(folder: Path, causal: bool = True) -> Any:
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    return kind.from_pretrained(folder, local_files_only=True).eval()


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def state(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        f.name: (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in sorted(folder.iterdir())
    }


@torch.no_grad()
def logits(model: Any, tokens: int = 12) -> Tensor:
    return model(torch.arange(tokens)[None] % 40).logits


def refusal(folder: Path, target: Path, **options: Any) -> str:
    base = options.pop("base", None)
    with pytest.raises(ValueError) as error:
        convert(folder, target, ConversionRequest(**options), base=base)
    assert not target.exists() and not list(target.parent.glob(".*"))
    return str(error.value)


# Layouts


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        pytest.param("llama", {}, marks=pytest.mark.slow),
        pytest.param("qwen2", {}, marks=pytest.mark.slow),
        pytest.param("qwen3", {"head_dim": 8}, marks=pytest.mark.slow),
        pytest.param("phi3", {}, marks=pytest.mark.slow),
        ("gpt_neox", {"rotary_pct": 0.5, "num_key_value_heads": None}),
        ("phi", {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
        ("cohere", {"use_qk_norm": True}),
        ("nanochat", {}),
        pytest.param("olmo2", {}, marks=pytest.mark.slow),
    ],
)
def test_there_and_back_and_the_same_logits_in_between(model_type: str, changes: dict, tiny, tmp_path: Path) -> None:
    source = tiny(model_type, **changes)
    old_state = state(source)
    own_layout = {"cohere": "interleaved", "nanochat": "swapped"}.get(model_type, "half")
    new_layout = "interleaved" if own_layout == "half" else "half"
    there = convert(source, tmp_path / "there", ConversionRequest(layout=new_layout), shard_bytes=9000)
    back = convert(there.folder, tmp_path / "back", ConversionRequest(layout=own_layout))
    original, final, halfway = open_tensors(source), open_tensors(back.folder), open_tensors(there.folder)
    assert set(original) == set(final) == set(halfway)
    assert len(list(there.folder.glob("*.safetensors"))) > 1
    assert all(final[name].equal(original[name]) and final.dtype(name) == original.dtype(name) for name in original)
    # With the keys of transformers 4 beside it.
    assert config(back.folder).items() >= config(source).items() and state(source) == old_state
    assert config(back.folder)["rope_theta"] == config(source)["rope_parameters"]["rope_theta"]
    assert there.changes[0].startswith(f"rearranged from {own_layout} to {new_layout}: 2 ")
    expected, model = logits(load(source)), load(there.folder)
    # transformers does not know the other layout, so without attach it computes another model.
    assert (logits(model) - expected).abs().max() > 1e-3
    assert module.MARK in there.notes[0] and f"layout is {new_layout}" not in there.notes[0]
    attach(model)
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_where_a_key_of_transformers_can_say_it_that_one_is_changed(tiny, tmp_path: Path) -> None:
    source = tiny("deepseek_v3", **LATENT)
    result = convert(source, tmp_path / "half", ConversionRequest(layout="half"))
    assert config(result.folder)["rope_interleave"] is False and module.MARK not in config(result.folder)
    assert result.notes == ()
    torch.testing.assert_close(logits(load(result.folder)), logits(load(source)), atol=1e-5, rtol=1e-5)
    # The key alone, without the weights, gives another model.
    (tmp_path / "half" / "model.safetensors").unlink()
    safetensors.torch.save_file(dict(open_tensors(source)), tmp_path / "half" / "model.safetensors", {"format": "pt"})
    assert (logits(load(result.folder)) - logits(load(source))).abs().max() > 1e-3


def test_the_layout_that_is_there_already_is_an_error_and_can_be_overruled(tiny, tmp_path: Path) -> None:
    source = tiny("llama")
    message = (
        "queries and keys are half already, by the config; if the weights are not, say so with stored='interleaved'"
    )
    assert refusal(source, tmp_path / "new", layout="half") == message
    assert "leaves nothing to convert" in refusal(source, tmp_path / "new", layout="half", stored="half")
    there = convert(source, tmp_path / "there", ConversionRequest(layout="interleaved"))
    (there.folder / "config.json").write_text((source / "config.json").read_text())
    result = convert(there.folder, tmp_path / "mended", ConversionRequest(layout="half", stored="interleaved"))
    torch.testing.assert_close(logits(load(result.folder)), logits(load(source)))
    assert config(result.folder).items() >= config(source).items()


def test_weights_that_look_otherwise_than_the_config_says_stop_the_conversion(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = module.measure_layout.Evidence("interleaved", 0.5, 0.9, 72)
    monkeypatch.setattr(module.measure_layout, "layout_evidence", lambda reading, tensors: evidence)
    message = refusal(tiny("llama"), tmp_path / "new", layout="interleaved")
    assert message == (
        "the config says that queries and keys are half, but the weights look interleaved (ratio +0.50, 90% of 72 "
        "heads); say which it is with stored='interleaved' or stored='half'"
    )
    convert(tiny("llama"), tmp_path / "new", ConversionRequest(layout="interleaved", stored="half"))


def test_an_adapter_goes_with_the_rearranged_model(tiny, tmp_path: Path) -> None:
    source = tiny("llama")
    adapter = tmp_path / "lora"
    adapter.mkdir()
    place = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
    rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    # Without keys in its second layer, as adapters often are.
    places = [(i, leaf) for i in (0, 1) for leaf in rows if (i, leaf) != (1, "k_proj")]
    lora = {place.format(i, leaf, "A"): torch.randn(3, 32) for i, leaf in places}
    lora |= {place.format(i, leaf, "B"): torch.randn(rows[leaf], 3) for i, leaf in places}
    safetensors.torch.save_file(lora, adapter / "adapter_model.safetensors")
    adapter_config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "base_model_name_or_path": "user/llama"}
    (adapter / "adapter_config.json").write_text(json.dumps(adapter_config))
    assert "its model is not at hand ('user/llama')" in refusal(adapter, tmp_path / "new", layout="interleaved")
    request = ConversionRequest(layout="interleaved")
    result = convert(adapter, tmp_path / "new", request, base=source)
    assert sorted(file.name for file in result.folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert "goes with a model whose encoding is rotary(layout='interleaved')" in result.notes[0]
    model = open_tensors(convert(source, tmp_path / "model", request).folder)
    source_weights, new_factors = open_tensors(source), open_tensors(result.folder)

    def merge(weights: Any, factors: Any, i: int, leaf: str) -> Tensor:
        update = factors[place.format(i, leaf, "B")] @ factors[place.format(i, leaf, "A")]
        return weights[f"model.layers.{i}.self_attn.{leaf}.weight"] + update

    # Merging commutes with conversion, bit for bit.
    folder = tmp_path / "merged"
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    merged_weights = {
        f"model.layers.{i}.self_attn.{leaf}.weight": merge(source_weights, lora, i, leaf) for i, leaf in places
    }
    all_weights = dict(source_weights) | merged_weights
    safetensors.torch.save_file(all_weights, folder / "model.safetensors", {"format": "pt"})
    expected = open_tensors(convert(folder, tmp_path / "expected", request).folder)
    for i, leaf in places:
        assert merge(model, new_factors, i, leaf).equal(expected[f"model.layers.{i}.self_attn.{leaf}.weight"])
    (adapter / "adapter_config.json").write_text(json.dumps(adapter_config | {"peft_type": "LOHA"}))
    assert "an adapter of the kind 'LOHA'; posenc converts LORA" in refusal(
        adapter, tmp_path / "x", layout="half", base=source
    )
    (adapter / "adapter_config.json").write_text(json.dumps(adapter_config))
    assert "of an adapter only the layout" in refusal(adapter, tmp_path / "x", max_length=31, base=source)


# Tables


@pytest.mark.parametrize(
    ("model_type", "changes", "offset", "tables"),
    [
        ("gpt2", GPT2, 0, 1),
        pytest.param("bert", {}, 0, 1, marks=pytest.mark.slow),
        ("roberta", {"max_position_embeddings": 18}, 2, 1),
        pytest.param("opt", {"ffn_dim": 24, "word_embed_proj_dim": 32}, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_table_of_positions_grows_and_the_model_runs_on_it(
    model_type: str, changes: dict, offset: int, tables: int, tiny, tmp_path: Path
) -> None:
    source = tiny(model_type, causal=False, **changes)
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    old_state = state(source)
    result = convert(source, tmp_path / "new", ConversionRequest(max_length=31))
    assert result.changes[0].startswith(f"resized from 16 to 31 positions (linear): {tables} ")
    assert json.loads((result.folder / "tokenizer_config.json").read_text()) == {"model_max_length": 31}
    original, new = open_tensors(source), open_tensors(result.folder)
    (name,) = (name for name in original if new.shape(name) != original.shape(name))
    old, table = original[name], new[name]
    # Twice as many less one: every second row is an old one, and the others are the means of their neighbours.
    assert table.shape == (offset + 31, 32) and table[:offset].equal(old[:offset])
    torch.testing.assert_close(table[offset::2], old[offset:])
    torch.testing.assert_close(table[offset + 1 :: 2], (old[offset:-1] + old[offset + 1 :]) / 2)
    with torch.no_grad():
        assert load(result.folder, causal=False)(torch.arange(31)[None] + 3)[0].shape == (1, 31, 32)
    assert state(source) == old_state


def test_an_encoder_and_a_decoder_of_one_length_grow_once(tiny, tmp_path: Path) -> None:
    shape = {"d_model": 32, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16}
    shape |= {f"{end}_{key}": n for end in ("encoder", "decoder") for key, n in (("layers", 1), ("attention_heads", 4))}
    source = tiny("bart", causal=False, **shape)
    # 18 is also the old number of rows: two precede the first position.
    result = convert(source, tmp_path / "new", ConversionRequest(max_length=18))
    assert result.changes[0].count(": 1 ") == 1 and config(result.folder)["max_position_embeddings"] == 18
    with torch.no_grad():
        assert load(result.folder, causal=False)(torch.arange(18)[None] + 3)[0].shape == (1, 18, 32)


@pytest.mark.slow
def test_numbers_of_an_encoder_and_a_decoder_under_other_keys_follow(tiny, tmp_path: Path) -> None:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "max_position_embeddings": 16,
        "num_hidden_layers": None,
    }
    result = convert(tiny("prophetnet", causal=False, **sizes), tmp_path / "a", ConversionRequest(max_length=31))
    # Rows 0 and 1 are those up to padding.
    assert "1 encoder.position_embeddings" in result.changes[0]
    assert config(result.folder)["max_position_embeddings"] == 33
    halves = {f"{end}_{size}": 1 for end in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    lengths = {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 16, "attention_window": 4}
    led_model = tiny("led", causal=False, d_model=32, encoder_ffn_dim=24, decoder_ffn_dim=24, **halves, **lengths)
    result = convert(led_model, tmp_path / "b", ConversionRequest(max_length=20))
    assert {config(result.folder)[key] for key in lengths if "max" in key} == {20}
    with torch.no_grad():
        assert load(result.folder, causal=False)(torch.arange(20)[None] + 3)[0].shape == (1, 20, 32)


def test_what_grows_with_a_table_by_no_known_rule_is_refused_before_anything_is_written(tiny, tmp_path: Path) -> None:
    message = refusal(tiny("ibert", causal=False), tmp_path / "new", max_length=20)
    assert "position_embeddings.weight_integer grows with it, and posenc does not know by which rule" in message


def test_buffers_that_count_positions_follow(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(tiny("bert", causal=False), folder)
    shards = {name: tensor for name, tensor in open_tensors(folder).items()}
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    shards["embeddings.position_ids"] = torch.arange(16)[None]
    safetensors.torch.save_file(shards, folder / "model.safetensors", {"format": "pt"})
    result = convert(folder, tmp_path / "new", ConversionRequest(max_length=20, interpolate="cubic"))
    assert open_tensors(result.folder)["embeddings.position_ids"].equal(torch.arange(20)[None])


@pytest.mark.parametrize("model_type", ["dinov2", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_grid_of_another_size_is_what_the_model_interpolates_to(model_type: str, tiny, tmp_path: Path) -> None:
    source = tiny(model_type, causal=False, image_size=24, patch_size=8)
    result = convert(source, tmp_path / "new", ConversionRequest(grid=(5, 5)))
    assert config(result.folder)["image_size"] == 40
    image = torch.randn(1, 3, 40, 40)
    how = {"interpolate_pos_encoding": True} if model_type == "vit" else {}
    with torch.no_grad():
        expected, actual = load(source, causal=False)(image, **how)[0], load(result.folder, causal=False)(image)[0]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_grid_that_is_not_square_is_written_where_the_model_takes_it(tiny, tmp_path: Path) -> None:
    source = tiny("vit", causal=False, image_size=24, patch_size=8)
    result = convert(source, tmp_path / "new", ConversionRequest(grid=(5, 2)))
    assert config(result.folder)["image_size"] == [40, 16] and "assume that the grid is square" in result.notes[0]
    image = torch.randn(1, 3, 40, 16)
    with torch.no_grad():
        expected = load(source, causal=False)(image, interpolate_pos_encoding=True)[0]
        torch.testing.assert_close(load(result.folder, causal=False)(image)[0], expected, atol=1e-5, rtol=1e-5)


def test_without_a_request_the_spelling_that_is_missing_is_written(tiny, tmp_path: Path) -> None:
    source = tiny("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    old_config = json.loads((source / "config.json").read_text())
    assert "rope_theta" not in old_config and "rope_scaling" not in old_config
    result = convert(source, tmp_path / "new", ConversionRequest())
    assert "rotary has the keys of transformers 4 and 5" in result.changes
    new = config(result.folder)
    assert (new["rope_theta"], new["rope_scaling"]) == (5e5, {"rope_type": "linear", "factor": 2.0})
    assert new["rope_parameters"] == old_config["rope_parameters"]
    assert "nothing to convert; say what to change" in refusal(result.folder, tmp_path / "newer")


def test_requests_that_do_not_fit_the_checkpoint_are_refused(tiny, tmp_path: Path) -> None:
    llama, bert, vit = tiny("llama"), tiny("bert", causal=False), tiny("vit", causal=False, image_size=24, patch_size=8)
    new = tmp_path / "new"
    assert "nothing to convert; say what to change" in refusal(bert, new)
    assert "a rotary model is extended with `posenc extend`" in refusal(llama, new, max_length=64)
    assert "has no learned grid to resize" in refusal(bert, new, grid=(4, 4))
    assert "the table has 16 positions already" in refusal(bert, new, max_length=16)
    assert "the grid has 3 x 3 cells already" in refusal(vit, new, grid=(3, 3))
    assert "has 2 axes, got (3,)" in refusal(vit, new, grid=(3,))
    assert "a table has 1 row or more" in refusal(bert, new, max_length=0)
    assert "no layer of this checkpoint is known to turn" in refusal(bert, new, layout="half")
    with_indexer = Path(shutil.copytree(llama, tmp_path / "beside"))
    file = max(with_indexer.glob("*.safetensors"))
    indexer = {"model.layers.1.self_attn.indexer.weight": torch.zeros(8, 8)}
    safetensors.torch.save_file(safetensors.torch.load_file(file) | indexer, file, metadata={"format": "pt"})
    index = json.loads((with_indexer / "model.safetensors.index.json").read_text())
    index["weight_map"] |= dict.fromkeys(indexer, file.name)
    (with_indexer / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "whether position turns it; nothing was converted" in refusal(with_indexer, new, layout="interleaved")
    for options, words in (
        ({"layout": "neox"}, "layout must be one of half, interleaved, swapped, got 'neox'"),
        ({"stored": "half"}, "stored says which layout the weights have, and needs the layout that they should get"),
        ({"max_length": 4, "interpolate": "spline"}, "interpolate must be one of linear, cubic, nearest, got 'spline'"),
        ({"interpolate": "linear", "layout": "half"}, "interpolate says how a table is resized, and needs max_length"),
    ):
        with pytest.raises(ValueError, match=words):
            ConversionRequest(**options)


# GGUF


def gguf_of(source: Path, path: Path) -> Path:
    """A GGUF file of a tiny llama, as llama.cpp's converter writes it."""
    import gguf

    llama_config, tensors = config(source), open_tensors(source)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(llama_config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(llama_config["rms_norm_eps"])
    writer.add_vocab_size(40)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp's own permutation, written out: rows of one pair side by side.
            heads = 4 if "q_proj" in name else 2
            tensor = tensor.reshape(heads, 2, -1, 32).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_becomes_a_folder_that_transformers_loads(tiny, tmp_path: Path) -> None:
    source = tiny("llama")
    tensors, file = open_tensors(source), gguf_of(source, tmp_path / "model.gguf")
    old_bytes = file.read_bytes()
    result = convert(file, tmp_path / "new", ConversionRequest())
    new = open_tensors(result.folder)
    assert set(new) == set(tensors) and all(new[name].equal(tensors[name]) for name in tensors)
    assert result.changes == (f"dequantised and renamed from GGUF: {len(new)} tensors",)
    assert config(result.folder)["dtype"] == "float32"
    torch.testing.assert_close(logits(load(result.folder)), logits(load(source)))
    interleaved = convert(file, tmp_path / "interleaved", ConversionRequest(layout="interleaved"))
    key_weight = open_tensors(file)["blk.1.attn_k.weight"]
    assert open_tensors(interleaved.folder)["model.layers.1.self_attn.k_proj.weight"].equal(key_weight)
    assert file.read_bytes() == old_bytes


# Bad input and crashes


def test_targets_that_exist_or_lie_in_the_source_are_refused_before_anything_is_read(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_source", lambda *args: pytest.fail("the source was read"))
    source = tiny("llama")
    with pytest.raises(ValueError, match="exists; nothing was written"):
        convert(source, tmp_path, ConversionRequest(layout="interleaved"))
    for target in (source / "new", source / "deeper" / "new", tmp_path / "link" / "new"):
        if not (tmp_path / "link").exists():
            (tmp_path / "link").symlink_to(source)
        with pytest.raises(ValueError, match=r"lies inside .*, which is never written to; choose another folder"):
            convert(source, target, ConversionRequest(layout="interleaved"))


def test_an_error_in_the_middle_leaves_the_source_and_nothing_else(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny("llama")
    old_state, calls = state(source), 0

    def fail(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("the power went")
        return rearrange(*args, **kwargs)

    rearrange = module.layouts.rearrange
    monkeypatch.setattr(module.layouts, "rearrange", fail)
    with pytest.raises(RuntimeError, match="the power went"):
        convert(source, tmp_path / "new", ConversionRequest(layout="interleaved"), shard_bytes=2000)
    assert list(tmp_path.iterdir()) == [] and state(source) == old_state


def test_configs_that_are_missing_broken_or_marked_wrongly_are_refused(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(tiny("llama"), folder)
    llama_config, file = config(folder), folder / "config.json"
    file.write_text(json.dumps(llama_config | {module.MARK: ["rotary"] * 3}))
    assert "must be a spec, or one for each of 2 layers" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.write_text("{")
    assert "config.json: it is no whole JSON" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.unlink()
    assert "has no config.json" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.write_text(json.dumps(llama_config | {"num_attention_heads": 8}))
    with pytest.raises(CannotRead, match="which does not fit 8 query heads"):
        convert(folder, tmp_path / "new", ConversionRequest(layout="interleaved"))


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["convert", *map(str, arguments)])
    return (code, *capsys.readouterr())


def test_the_command_says_what_it_did_to_how_many_tensors(tiny, tmp_path: Path, capsys) -> None:
    source = tiny("llama")
    code, out, err = run(capsys, source, "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 0 and err == ""
    assert "rearranged from half to interleaved: 2 model.layers.*.self_attn.k_proj.weight, 2 model.layers.*" in out
    assert "copied as they are: 17 of 21 tensors" in out and f"Checkpoint: {tmp_path / 'new'}" in out
    code, out, err = run(capsys, source, "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 2 and out == "" and "exists; nothing was written" in err
    code, out, err = run(
        capsys,
        tiny("vit", causal=False, image_size=24, patch_size=8),
        "--out",
        tmp_path / "v",
        "--grid",
        4,
        4,
        "--json",
    )
    assert code == 0 and json.loads(out)["done"][0].startswith("resized from 3 x 3 to 4 x 4 (cubic): 1 ")


# Files that are not copied


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "config.json", "model.safetensors"])
def test_what_a_link_outside_the_folder_points_to_is_not_copied(name: str, tiny, tmp_path: Path) -> None:
    folder, secret = tmp_path / "source", tmp_path / "secret"
    shutil.copytree(tiny("llama"), folder)
    (folder / name).exists() and shutil.move(folder / name, secret)
    secret.exists() or secret.write_text("root:x:0:0")
    (folder / name).symlink_to(secret)
    words = refusal(folder, tmp_path / "new", layout="interleaved")
    assert f"{folder / name}: it is a link to '{secret}', outside its folder; put the file itself there" in words


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_the_links_of_a_hubs_cache_are_copied_as_files(tiny, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "main", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(tiny("llama"), blobs)
    (blobs / "README.md").write_text("words")
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    result = convert(snapshot, tmp_path / "new", ConversionRequest(layout="interleaved"))
    assert (result.folder / "README.md").read_text() == "words"
    assert not any(file.is_symlink() for file in result.folder.iterdir())


def test_code_and_the_keys_that_name_it_stay_behind_and_are_told(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(tiny("llama"), folder)
    inner_code = {"text_config": {"_attn_implementation": "evil/kernel", "kept": [{"auto_map": {}, "also": 1}]}}
    code = {"auto_map": {"AutoConfig": "evil.X"}, "attn_implementation": "evil/kernel", "custom_pipelines": {"a": 1}}
    (folder / "config.json").write_text(json.dumps(config(folder) | code | inner_code))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": ["evil.T", None], "model_max_length": 9}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5}))
    (folder / "vocab.txt").write_text("a\nb\n")
    for name, data in (("evil.py", b""), ("evil.so", b""), ("innocent.txt", b"\x7fELF"), ("more.json", b"\x80\x04")):
        (folder / name).write_bytes(data)
    result = convert(folder, tmp_path / "new", ConversionRequest(layout="interleaved"))
    new_config = config(result.folder)
    assert new_config["text_config"] == {"kept": [{"also": 1}]} and not code.keys() & new_config.keys()
    assert json.loads((result.folder / "tokenizer_config.json").read_text()) == {"model_max_length": 9}
    assert json.loads((result.folder / "generation_config.json").read_text()) == {"temperature": 0.5}
    files = {file.name for file in result.folder.iterdir()}
    assert "vocab.txt" in files and not files & {"evil.py", "evil.so", "innocent.txt", "more.json"}
    notes = "\n".join(result.notes)
    assert "evil.py was left out: it is code, which posenc neither runs nor hands on." in notes
    assert "_attn_implementation, attn_implementation, auto_map, custom_pipelines was left out of config.json" in notes
    assert "auto_map was left out of tokenizer_config.json: a config never chooses code." in notes


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_to_end_is_one_sentence_and_leaves_nothing(tiny, tmp_path: Path, monkeypatch, capsys) -> None:
    put = store.put
    monkeypatch.setattr(store, "put", lambda *args: (put(*args), os.kill(os.getpid(), signal.SIGTERM)))
    code, out, err = run(capsys, tiny("llama"), "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 143 and out == "" and err.startswith("posenc: ended by SIGTERM; ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# The written config


def test_the_config_says_rotary_in_both_spellings_whichever_the_source_had(tiny, tmp_path: Path) -> None:
    source = shutil.copytree(tiny("llama"), tmp_path / "source")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    old = config(source) | {"rope_theta": 500.0, "rope_scaling": scaling, "own": [1]}
    del old["rope_parameters"]
    (source / "config.json").write_text(json.dumps(old))
    result = convert(source, tmp_path / "new", ConversionRequest(layout="interleaved"))
    new, ramp = config(result.folder), {"beta_fast": 32.0, "beta_slow": 1.0}
    assert new["rope_parameters"] == scaling | ramp | {"rope_theta": 500.0}
    assert new["rope_scaling"] == scaling | ramp and new["rope_theta"] == 500.0
    assert {key for key in new if new[key] != old.get(key)} == {
        module.MARK,
        "rope_parameters",
        "rope_scaling",
    }
    assert len(result.notes) == 1 and module.MARK in result.notes[0]


def test_what_older_keys_have_no_words_for_is_a_note(tiny, tmp_path: Path) -> None:
    source = shutil.copytree(tiny("olmo2"), tmp_path / "source")
    olmo_config = config(source)
    olmo_config["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    (source / "config.json").write_text(json.dumps(olmo_config))
    _, note = convert(source, tmp_path / "new", ConversionRequest(layout="interleaved")).notes
    assert note.startswith("Only programs that know rope_parameters read this rightly: ") and "refuses" in note


def test_a_folder_that_says_something_else_is_taken_away(tiny, tmp_path: Path, monkeypatch) -> None:
    write = module.write_folder

    def write_other(target: Path, config: dict[str, Any], *args: Any, **kwargs: Any) -> Path:
        return write(target, config | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, *args, **kwargs)

    monkeypatch.setattr(module, "write_folder", write_other)
    with pytest.raises(RuntimeError, match=r"what was written says something else than planned: .*layer 0 rotary"):
        convert(tiny("deepseek_v3", **LATENT), tmp_path / "new", ConversionRequest(layout="half"))
    assert not (tmp_path / "new").exists()


def test_a_folder_has_its_name_only_when_it_was_checked(tiny, tmp_path: Path, monkeypatch) -> None:
    def interrupt(folder: Path, reading: Any) -> None:
        assert (folder / "model.safetensors").exists() and folder.name != "new"
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check_written", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(tiny("llama"), tmp_path / "new", ConversionRequest(layout="interleaved"))
    assert not list(tmp_path.iterdir())


def test_where_both_spellings_would_be_served_otherwise_the_config_stays_and_that_is_told(
    tiny, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "with_positions", lambda config, part: config | {"rope_scaling": {"type": "magic"}})
    source = tiny("llama")
    result = convert(source, tmp_path / "new", ConversionRequest(layout="interleaved"))
    assert config(result.folder) == config(source) | {module.MARK: "rotary(layout='interleaved')"}
    assert result.notes[0].startswith(
        "The config says its rotary as it did, in one spelling: in both, transformers would"
    )
