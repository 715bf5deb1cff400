"""Checkpoints converted: the same model in another form, the source as it was, and nothing written that is wrong."""

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
from posenc.checkpoints.conversion.convert import Request, convert
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a tiny model of transformers, its weights all random: norms too, which begin as ones."""
    root = tmp_path_factory.mktemp("models")
    transformers.logging.disable_progress_bar()

    def make(model_type: str, causal: bool = True, **changes: Any) -> Path:
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

    return make


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


def refusal(folder: Path, out: Path, **asked: Any) -> str:
    base = asked.pop("base", None)
    with pytest.raises(ValueError) as caught:
        convert(folder, out, Request(**asked), base=base)
    assert not out.exists() and not list(out.parent.glob(".*"))
    return str(caught.value)


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
def test_there_and_back_and_the_same_logits_in_between(model_type: str, changes: dict, made, tmp_path: Path) -> None:
    source = made(model_type, **changes)
    before = state(source)
    own = {"cohere": "interleaved", "nanochat": "swapped"}.get(model_type, "half")
    other = "interleaved" if own == "half" else "half"
    there = convert(source, tmp_path / "there", Request(layout=other), shard_bytes=9000)
    back = convert(there.folder, tmp_path / "back", Request(layout=own))
    original, returned, between = open_tensors(source), open_tensors(back.folder), open_tensors(there.folder)
    assert set(original) == set(returned) == set(between)
    assert len(list(there.folder.glob("*.safetensors"))) > 1
    assert all(
        returned[name].equal(original[name]) and returned.dtype(name) == original.dtype(name) for name in original
    )
    # And what transformers 4 knows it by.
    assert config(back.folder).items() >= config(source).items() and state(source) == before
    assert config(back.folder)["rope_theta"] == config(source)["rope_parameters"]["rope_theta"]
    assert there.done[0].startswith(f"rearranged from {own} to {other}: 2 ")
    expected, turned = logits(load(source)), load(there.folder)
    # transformers knows nothing of the other layout: loaded as it is, it is another model.
    assert (logits(turned) - expected).abs().max() > 1e-3
    assert module.MARK in there.notes[0] and f"layout is {other}" not in there.notes[0]
    attach(turned)
    torch.testing.assert_close(logits(turned), expected, atol=1e-5, rtol=1e-5)


def test_where_a_key_of_transformers_can_say_it_that_one_is_changed(made, tmp_path: Path) -> None:
    source = made("deepseek_v3", **LATENT)
    done = convert(source, tmp_path / "half", Request(layout="half"))
    assert config(done.folder)["rope_interleave"] is False and module.MARK not in config(done.folder)
    assert done.notes == ()
    torch.testing.assert_close(logits(load(done.folder)), logits(load(source)), atol=1e-5, rtol=1e-5)
    # And the key alone, without the weights, makes another model.
    (tmp_path / "half" / "model.safetensors").unlink()
    safetensors.torch.save_file(dict(open_tensors(source)), tmp_path / "half" / "model.safetensors", {"format": "pt"})
    assert (logits(load(done.folder)) - logits(load(source))).abs().max() > 1e-3


def test_the_layout_that_is_there_already_is_an_error_and_can_be_overruled(made, tmp_path: Path) -> None:
    source = made("llama")
    words = refusal(source, tmp_path / "new", layout="half")
    assert (
        words
        == "queries and keys are half already, by the config; if the weights are not, say so with stored='interleaved'"
    )
    assert "leaves nothing to convert" in refusal(source, tmp_path / "new", layout="half", stored="half")
    there = convert(source, tmp_path / "there", Request(layout="interleaved"))
    (there.folder / "config.json").write_text((source / "config.json").read_text())
    mended = convert(there.folder, tmp_path / "mended", Request(layout="half", stored="interleaved"))
    torch.testing.assert_close(logits(load(mended.folder)), logits(load(source)))
    assert config(mended.folder).items() >= config(source).items()


def test_weights_that_look_otherwise_than_the_config_says_stop_the_conversion(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = module.measure_layout.Evidence("interleaved", 0.5, 0.9, 72)
    monkeypatch.setattr(module.measure_layout, "of_weights", lambda reading, tensors: evidence)
    words = refusal(made("llama"), tmp_path / "new", layout="interleaved")
    assert words == (
        "the config says that queries and keys are half, but the weights look interleaved (ratio +0.50, 90% of 72 "
        "heads); say which it is with stored='interleaved' or stored='half'"
    )
    convert(made("llama"), tmp_path / "new", Request(layout="interleaved", stored="half"))


def test_an_adapter_goes_with_the_rearranged_model(made, tmp_path: Path) -> None:
    source = made("llama")
    adapter = tmp_path / "lora"
    adapter.mkdir()
    place = "base_model.model.model.layers.{}.self_attn.{}.lora_{}.weight"
    rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    # Without keys in its second layer, as adapters often are.
    adapted = [(i, leaf) for i in (0, 1) for leaf in rows if (i, leaf) != (1, "k_proj")]
    lora = {place.format(i, leaf, "A"): torch.randn(3, 32) for i, leaf in adapted}
    lora |= {place.format(i, leaf, "B"): torch.randn(rows[leaf], 3) for i, leaf in adapted}
    safetensors.torch.save_file(lora, adapter / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "base_model_name_or_path": "somebody/llama"}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    assert "its model is not at hand ('somebody/llama')" in refusal(adapter, tmp_path / "new", layout="interleaved")
    asked = Request(layout="interleaved")
    done = convert(adapter, tmp_path / "new", asked, base=source)
    assert sorted(file.name for file in done.folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert "goes with a model whose encoding is rotary(layout='interleaved')" in done.notes[0]
    model = open_tensors(convert(source, tmp_path / "model", asked).folder)
    before, after = open_tensors(source), open_tensors(done.folder)

    def merged(weights: Any, factors: Any, i: int, leaf: str) -> Tensor:
        update = factors[place.format(i, leaf, "B")] @ factors[place.format(i, leaf, "A")]
        return weights[f"model.layers.{i}.self_attn.{leaf}.weight"] + update

    # Merged and then converted is converted and then merged, to the bit.
    folder = tmp_path / "merged"
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    added = {f"model.layers.{i}.self_attn.{leaf}.weight": merged(before, lora, i, leaf) for i, leaf in adapted}
    both = dict(before) | added
    safetensors.torch.save_file(both, folder / "model.safetensors", {"format": "pt"})
    expected = open_tensors(convert(folder, tmp_path / "expected", asked).folder)
    for i, leaf in adapted:
        assert merged(model, after, i, leaf).equal(expected[f"model.layers.{i}.self_attn.{leaf}.weight"])
    (adapter / "adapter_config.json").write_text(json.dumps(said | {"peft_type": "LOHA"}))
    assert "an adapter of the kind 'LOHA'; posenc converts LORA" in refusal(
        adapter, tmp_path / "x", layout="half", base=source
    )
    (adapter / "adapter_config.json").write_text(json.dumps(said))
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
    model_type: str, changes: dict, offset: int, tables: int, made, tmp_path: Path
) -> None:
    source = made(model_type, causal=False, **changes)
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    before = state(source)
    done = convert(source, tmp_path / "new", Request(max_length=31))
    assert done.done[0].startswith(f"resized from 16 to 31 positions (linear): {tables} ")
    assert json.loads((done.folder / "tokenizer_config.json").read_text()) == {"model_max_length": 31}
    original, new = open_tensors(source), open_tensors(done.folder)
    (name,) = (name for name in original if new.shape(name) != original.shape(name))
    old, table = original[name], new[name]
    # Twice as many less one: every second row is an old one, and the others are the means of their neighbours.
    assert table.shape == (offset + 31, 32) and table[:offset].equal(old[:offset])
    torch.testing.assert_close(table[offset::2], old[offset:])
    torch.testing.assert_close(table[offset + 1 :: 2], (old[offset:-1] + old[offset + 1 :]) / 2)
    with torch.no_grad():
        assert load(done.folder, causal=False)(torch.arange(31)[None] + 3)[0].shape == (1, 31, 32)
    assert state(source) == before


def test_an_encoder_and_a_decoder_of_one_length_grow_once(made, tmp_path: Path) -> None:
    shape = {"d_model": 32, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16}
    shape |= {
        f"{end}_{what}": n for end in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 4))
    }
    source = made("bart", causal=False, **shape)
    # 18 is also the number of rows before: two stand before the first position.
    done = convert(source, tmp_path / "new", Request(max_length=18))
    assert done.done[0].count(": 1 ") == 1 and config(done.folder)["max_position_embeddings"] == 18
    with torch.no_grad():
        assert load(done.folder, causal=False)(torch.arange(18)[None] + 3)[0].shape == (1, 18, 32)


@pytest.mark.slow
def test_numbers_of_an_encoder_and_a_decoder_under_other_keys_follow(made, tmp_path: Path) -> None:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
        "max_position_embeddings": 16,
        "num_hidden_layers": None,
    }
    done = convert(made("prophetnet", causal=False, **sizes), tmp_path / "a", Request(max_length=31))
    # Rows 0 and 1 are those up to padding.
    assert "1 encoder.position_embeddings" in done.done[0] and config(done.folder)["max_position_embeddings"] == 33
    halves = {f"{end}_{what}": 1 for end in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    lengths = {"max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 16, "attention_window": 4}
    led = made("led", causal=False, d_model=32, encoder_ffn_dim=24, decoder_ffn_dim=24, **halves, **lengths)
    done = convert(led, tmp_path / "b", Request(max_length=20))
    assert {config(done.folder)[key] for key in lengths if "max" in key} == {20}
    with torch.no_grad():
        assert load(done.folder, causal=False)(torch.arange(20)[None] + 3)[0].shape == (1, 20, 32)


def test_what_grows_with_a_table_by_no_known_rule_is_refused_before_anything_is_written(made, tmp_path: Path) -> None:
    said = refusal(made("ibert", causal=False), tmp_path / "new", max_length=20)
    assert "embeddings.position_embeddings.weight_integer grows with it, and posenc does not know by which rule" in said


def test_buffers_that_count_positions_follow(made, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(made("bert", causal=False), folder)
    shards = {name: tensor for name, tensor in open_tensors(folder).items()}
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    shards["embeddings.position_ids"] = torch.arange(16)[None]
    safetensors.torch.save_file(shards, folder / "model.safetensors", {"format": "pt"})
    done = convert(folder, tmp_path / "new", Request(max_length=20, interpolate="cubic"))
    assert open_tensors(done.folder)["embeddings.position_ids"].equal(torch.arange(20)[None])


@pytest.mark.parametrize("model_type", ["dinov2", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_grid_of_another_size_is_what_the_model_interpolates_to(model_type: str, made, tmp_path: Path) -> None:
    source = made(model_type, causal=False, image_size=24, patch_size=8)
    done = convert(source, tmp_path / "new", Request(grid=(5, 5)))
    assert config(done.folder)["image_size"] == 40
    image = torch.randn(1, 3, 40, 40)
    how = {"interpolate_pos_encoding": True} if model_type == "vit" else {}
    with torch.no_grad():
        expected, found = load(source, causal=False)(image, **how)[0], load(done.folder, causal=False)(image)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_grid_that_is_not_square_is_written_where_the_model_takes_it(made, tmp_path: Path) -> None:
    source = made("vit", causal=False, image_size=24, patch_size=8)
    done = convert(source, tmp_path / "new", Request(grid=(5, 2)))
    assert config(done.folder)["image_size"] == [40, 16] and "for one of a square grid" in done.notes[0]
    image = torch.randn(1, 3, 40, 16)
    with torch.no_grad():
        expected = load(source, causal=False)(image, interpolate_pos_encoding=True)[0]
        torch.testing.assert_close(load(done.folder, causal=False)(image)[0], expected, atol=1e-5, rtol=1e-5)


def test_without_a_request_the_spelling_that_is_missing_is_written(made, tmp_path: Path) -> None:
    source = made("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    said = json.loads((source / "config.json").read_text())
    assert "rope_theta" not in said and "rope_scaling" not in said
    done = convert(source, tmp_path / "new", Request())
    assert "rotary is said in both spellings, of transformers 4 and 5" in done.done
    new = config(done.folder)
    assert (new["rope_theta"], new["rope_scaling"]) == (5e5, {"rope_type": "linear", "factor": 2.0})
    assert new["rope_parameters"] == said["rope_parameters"]
    assert "nothing to convert; say what to change" in refusal(done.folder, tmp_path / "newer")


def test_requests_that_do_not_fit_the_checkpoint_are_refused(made, tmp_path: Path) -> None:
    llama, bert, vit = made("llama"), made("bert", causal=False), made("vit", causal=False, image_size=24, patch_size=8)
    new = tmp_path / "new"
    assert "nothing to convert; say what to change" in refusal(bert, new)
    assert "a rotary model is extended with `posenc extend`" in refusal(llama, new, max_length=64)
    assert "has no learned grid to resize" in refusal(bert, new, grid=(4, 4))
    assert "the table has 16 positions already" in refusal(bert, new, max_length=16)
    assert "the grid has 3 x 3 cells already" in refusal(vit, new, grid=(3, 3))
    assert "has 2 axes, got (3,)" in refusal(vit, new, grid=(3,))
    assert "a table has 1 row or more" in refusal(bert, new, max_length=0)
    assert "no layer of this checkpoint is known to turn" in refusal(bert, new, layout="half")
    beside = Path(shutil.copytree(llama, tmp_path / "beside"))
    file = max(beside.glob("*.safetensors"))
    more = {"model.layers.1.self_attn.indexer.weight": torch.zeros(8, 8)}
    safetensors.torch.save_file(safetensors.torch.load_file(file) | more, file, metadata={"format": "pt"})
    index = json.loads((beside / "model.safetensors.index.json").read_text())
    index["weight_map"] |= dict.fromkeys(more, file.name)
    (beside / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "whether position turns it; nothing was converted" in refusal(beside, new, layout="interleaved")
    for asked, words in (
        ({"layout": "neox"}, "layout must be one of half, interleaved, swapped, got 'neox'"),
        ({"stored": "half"}, "stored says which layout the weights have, and needs the layout that they should get"),
        ({"max_length": 4, "interpolate": "spline"}, "interpolate must be one of linear, cubic, nearest, got 'spline'"),
        ({"interpolate": "linear", "layout": "half"}, "interpolate says how a table is resized, and needs max_length"),
    ):
        with pytest.raises(ValueError, match=words):
            Request(**asked)


# GGUF


def gguf_of(source: Path, path: Path) -> Path:
    """A GGUF file of a tiny llama, as llama.cpp's converter writes it."""
    import gguf

    said, tensors = config(source), open_tensors(source)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(said["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(said["rms_norm_eps"])
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


def test_a_gguf_becomes_a_folder_that_transformers_loads(made, tmp_path: Path) -> None:
    source = made("llama")
    tensors, file = open_tensors(source), gguf_of(source, tmp_path / "model.gguf")
    before = file.read_bytes()
    done = convert(file, tmp_path / "new", Request())
    new = open_tensors(done.folder)
    assert set(new) == set(tensors) and all(new[name].equal(tensors[name]) for name in tensors)
    assert done.done == (f"dequantised and renamed from GGUF: {len(new)} tensors",)
    assert config(done.folder)["dtype"] == "float32"
    torch.testing.assert_close(logits(load(done.folder)), logits(load(source)))
    kept = convert(file, tmp_path / "interleaved", Request(layout="interleaved"))
    stored = open_tensors(file)["blk.1.attn_k.weight"]
    assert open_tensors(kept.folder)["model.layers.1.self_attn.k_proj.weight"].equal(stored)
    assert file.read_bytes() == before


# Bad input and crashes


def test_targets_that_exist_or_lie_in_the_source_are_refused_before_anything_is_read(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_source", lambda *given: pytest.fail("the source was read"))
    source = made("llama")
    with pytest.raises(ValueError, match="exists; nothing was written"):
        convert(source, tmp_path, Request(layout="interleaved"))
    for inside in (source / "new", source / "deeper" / "new", tmp_path / "link" / "new"):
        if not (tmp_path / "link").exists():
            (tmp_path / "link").symlink_to(source)
        with pytest.raises(ValueError, match=r"lies inside .*, which is never written to; choose another folder"):
            convert(source, inside, Request(layout="interleaved"))


def test_an_error_in_the_middle_leaves_the_source_and_nothing_else(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made("llama")
    before, read = state(source), 0

    def fail(*given: Any, **how: Any) -> Tensor:
        nonlocal read
        read += 1
        if read == 3:
            raise RuntimeError("the power went")
        return rearranged(*given, **how)

    rearranged = module.layouts.rearranged
    monkeypatch.setattr(module.layouts, "rearranged", fail)
    with pytest.raises(RuntimeError, match="the power went"):
        convert(source, tmp_path / "new", Request(layout="interleaved"), shard_bytes=2000)
    assert list(tmp_path.iterdir()) == [] and state(source) == before


def test_configs_that_are_missing_broken_or_marked_wrongly_are_refused(made, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(made("llama"), folder)
    said, file = config(folder), folder / "config.json"
    file.write_text(json.dumps(said | {module.MARK: ["rotary"] * 3}))
    assert "must be a spec, or one for each of 2 layers" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.write_text("{")
    assert "config.json: it is no whole JSON" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.unlink()
    assert "has no config.json" in refusal(folder, tmp_path / "new", layout="interleaved")
    file.write_text(json.dumps(said | {"num_attention_heads": 8}))
    with pytest.raises(CannotRead, match="which does not fit 8 query heads"):
        convert(folder, tmp_path / "new", Request(layout="interleaved"))


# The command


def run(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[int, str, str]:
    code = cli.main(["convert", *map(str, given)])
    return (code, *capsys.readouterr())


def test_the_command_says_what_it_did_to_how_many_tensors(made, tmp_path: Path, capsys) -> None:
    source = made("llama")
    code, out, err = run(capsys, source, "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 0 and err == ""
    assert "rearranged from half to interleaved: 2 model.layers.*.self_attn.k_proj.weight, 2 model.layers.*" in out
    assert "copied as they are: 17 of 21 tensors" in out and f"Checkpoint: {tmp_path / 'new'}" in out
    code, out, err = run(capsys, source, "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 2 and out == "" and "exists; nothing was written" in err
    code, out, err = run(
        capsys,
        made("vit", causal=False, image_size=24, patch_size=8),
        "--out",
        tmp_path / "v",
        "--grid",
        4,
        4,
        "--json",
    )
    assert code == 0 and json.loads(out)["done"][0].startswith("resized from 3 x 3 to 4 x 4 (cubic): 1 ")


# What does not go along


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "config.json", "model.safetensors"])
def test_what_a_link_outside_the_folder_points_to_is_not_copied(name: str, made, tmp_path: Path) -> None:
    folder, secret = tmp_path / "source", tmp_path / "secret"
    shutil.copytree(made("llama"), folder)
    (folder / name).exists() and shutil.move(folder / name, secret)
    secret.exists() or secret.write_text("root:x:0:0")
    (folder / name).symlink_to(secret)
    words = refusal(folder, tmp_path / "new", layout="interleaved")
    assert f"{folder / name}: it is a link to '{secret}', outside its folder; put the file itself there" in words


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_the_links_of_a_hubs_cache_are_copied_as_files(made, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "main", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(made("llama"), blobs)
    (blobs / "README.md").write_text("words")
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    done = convert(snapshot, tmp_path / "new", Request(layout="interleaved"))
    assert (done.folder / "README.md").read_text() == "words" and not any(f.is_symlink() for f in done.folder.iterdir())


def test_code_and_the_keys_that_name_it_stay_behind_and_are_told(made, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(made("llama"), folder)
    nested = {"text_config": {"_attn_implementation": "evil/kernel", "kept": [{"auto_map": {}, "also": 1}]}}
    named = {"auto_map": {"AutoConfig": "evil.X"}, "attn_implementation": "evil/kernel", "custom_pipelines": {"a": 1}}
    (folder / "config.json").write_text(json.dumps(config(folder) | named | nested))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": ["evil.T", None], "model_max_length": 9}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5}))
    (folder / "vocab.txt").write_text("a\nb\n")
    for name, data in (("evil.py", b""), ("evil.so", b""), ("innocent.txt", b"\x7fELF"), ("more.json", b"\x80\x04")):
        (folder / name).write_bytes(data)
    done = convert(folder, tmp_path / "new", Request(layout="interleaved"))
    written = config(done.folder)
    assert written["text_config"] == {"kept": [{"also": 1}]} and not named.keys() & written.keys()
    assert json.loads((done.folder / "tokenizer_config.json").read_text()) == {"model_max_length": 9}
    assert json.loads((done.folder / "generation_config.json").read_text()) == {"temperature": 0.5}
    here = {file.name for file in done.folder.iterdir()}
    assert "vocab.txt" in here and not here & {"evil.py", "evil.so", "innocent.txt", "more.json"}
    told = "\n".join(done.notes)
    assert "evil.py was left out: it is code, which posenc neither runs nor hands on." in told
    assert "_attn_implementation, attn_implementation, auto_map, custom_pipelines was left out of config.json" in told
    assert "auto_map was left out of tokenizer_config.json: a config never chooses code." in told


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_to_end_is_one_sentence_and_leaves_nothing(made, tmp_path: Path, monkeypatch, capsys) -> None:
    put = store.put
    monkeypatch.setattr(store, "put", lambda *given: (put(*given), os.kill(os.getpid(), signal.SIGTERM)))
    code, out, err = run(capsys, made("llama"), "--out", tmp_path / "new", "--layout", "interleaved")
    assert code == 143 and out == "" and err.startswith("posenc: ended by SIGTERM; ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# The config of what is written


def test_the_config_says_rotary_in_both_spellings_whichever_the_source_had(made, tmp_path: Path) -> None:
    source = shutil.copytree(made("llama"), tmp_path / "source")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    said = config(source) | {"rope_theta": 500.0, "rope_scaling": scaling, "own": [1]}
    del said["rope_parameters"]
    (source / "config.json").write_text(json.dumps(said))
    done = convert(source, tmp_path / "new", Request(layout="interleaved"))
    now, ramp = config(done.folder), {"beta_fast": 32.0, "beta_slow": 1.0}
    assert now["rope_parameters"] == scaling | ramp | {"rope_theta": 500.0}
    assert now["rope_scaling"] == scaling | ramp and now["rope_theta"] == 500.0
    assert {key for key in now if now[key] != said.get(key)} == {module.MARK, "rope_parameters", "rope_scaling"}
    assert len(done.notes) == 1 and module.MARK in done.notes[0]


def test_what_older_keys_have_no_words_for_is_a_note(made, tmp_path: Path) -> None:
    source = shutil.copytree(made("olmo2"), tmp_path / "source")
    said = config(source)
    said["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    (source / "config.json").write_text(json.dumps(said))
    _, note = convert(source, tmp_path / "new", Request(layout="interleaved")).notes
    assert note.startswith("Only programs that know rope_parameters read this rightly: ") and "refuses" in note


def test_a_folder_that_says_something_else_is_taken_away(made, tmp_path: Path, monkeypatch) -> None:
    write = module.write_folder

    def otherwise(out: Path, config: dict[str, Any], *given: Any, **named: Any) -> Path:
        return write(out, config | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, *given, **named)

    monkeypatch.setattr(module, "write_folder", otherwise)
    with pytest.raises(RuntimeError, match=r"what was written says something else than planned: .*layer 0 rotary"):
        convert(made("deepseek_v3", **LATENT), tmp_path / "new", Request(layout="half"))
    assert not (tmp_path / "new").exists()


def test_a_folder_has_its_name_only_when_it_was_checked(made, tmp_path: Path, monkeypatch) -> None:
    def interrupted(folder: Path, planned: Any) -> None:
        assert (folder / "model.safetensors").exists() and folder.name != "new"
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check_written", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(made("llama"), tmp_path / "new", Request(layout="interleaved"))
    assert not list(tmp_path.iterdir())


def test_where_both_spellings_would_be_served_otherwise_the_config_stays_and_that_is_told(
    made, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "with_positions", lambda config, part: config | {"rope_scaling": {"type": "magic"}})
    source = made("llama")
    done = convert(source, tmp_path / "new", Request(layout="interleaved"))
    assert config(done.folder) == config(source) | {module.MARK: "rotary(layout='interleaved')"}
    assert done.notes[0].startswith(
        "The config says its rotary as it did, in one spelling: in both, transformers would"
    )
