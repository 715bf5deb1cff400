"""Loading from local folders: the right class, no random weights, no code run, and clear refusals."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from posenc.checkpoints.formats.load import load, quietly, read_config  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

MODELS = Path(__file__).parents[2] / "models"
"""Where examples/real_models.py puts models."""

SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 32}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, tie_word_embeddings=True)
    with quietly():
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def llama_copy(llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama, tmp_path / "copy")


def change(folder: Path, **keys: Any) -> None:
    """Set keys of the config; None removes a key."""
    config = json.loads((folder / "config.json").read_text()) | keys
    text = json.dumps({key: value for key, value in config.items() if value is not None})
    (folder / "config.json").write_text(text)


IDS = torch.randint(0, 32, (1, 20), generator=torch.Generator().manual_seed(1))


def test_a_folder_gives_the_class_that_its_config_names(llama: Path) -> None:
    checkpoint = load(llama)
    reference = transformers.LlamaForCausalLM.from_pretrained(llama)
    assert type(checkpoint.model) is transformers.LlamaForCausalLM and checkpoint.path == llama
    assert not checkpoint.model.training and checkpoint.tokenizer is None
    with torch.no_grad():
        assert torch.equal(checkpoint.model(IDS).logits, reference(IDS).logits)
    assert load(str(llama), dtype="bfloat16").model.dtype == torch.bfloat16
    assert load(llama, dtype=torch.float64).model.dtype == torch.float64


def test_the_dtype_is_that_of_the_config_where_none_is_asked_for(llama_copy: Path) -> None:
    change(llama_copy, dtype="bfloat16")
    assert load(llama_copy).model.dtype == torch.bfloat16


def test_without_a_named_class_it_is_the_bare_model(llama_copy: Path) -> None:
    change(llama_copy, architectures=None)
    checkpoint = load(llama_copy)
    assert type(checkpoint.model) is transformers.LlamaModel


def test_tensors_without_a_place_are_left_out(llama_copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = llama_copy / "model.safetensors"
    save_file(load_file(file) | {"value_head.weight": torch.zeros(2)}, file, {"format": "pt"})
    assert "value_head.weight" not in load(llama_copy).model.state_dict()


@pytest.mark.parametrize("dtype", ["float31", "int8", "nn", torch.int8])
def test_a_dtype_that_is_none_is_refused(dtype: Any, llama: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype must be float32, bfloat16, float16 or float64, got '"):
        load(llama, dtype=dtype)


def test_nothing_there_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CannotRead, match=r"^there is no file or folder 'smollm2'; give the folder of .* as owner/name$"
    ):
        load("smollm2")


def test_code_that_a_checkpoint_brings_is_never_run(llama_copy: Path) -> None:
    trap = "raise SystemExit('code of the checkpoint was run')"
    for file in ("configuration_own.py", "modeling_own.py"):
        (llama_copy / file).write_text(trap)
    auto_map = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    change(llama_copy, model_type="own", architectures=["OwnForCausalLM"], auto_map=auto_map)
    with pytest.raises(
        CannotRead, match=r"config.json: transformers cannot read it \(ValueError: .* a newer transformers may know"
    ):
        load(llama_copy)
    change(llama_copy, model_type="llama")
    with pytest.raises(CannotRead, match=r"architectures: 'OwnForCausalLM' is no model class .* is never run"):
        load(llama_copy)
    change(llama_copy, architectures=["LlamaForCausalLM"])
    assert type(load(llama_copy).model) is transformers.LlamaForCausalLM


def test_a_class_that_is_no_model_is_refused(llama_copy: Path) -> None:
    change(llama_copy, architectures=["AutoTokenizer"])
    with pytest.raises(CannotRead, match=r"'AutoTokenizer' is no model class of transformers"):
        load(llama_copy)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("architectures", [["X"]], "config.json: architectures[0]: expected str, got ['X']"),
        ("architectures", [{}], "config.json: architectures[0]: expected str, got {}"),
        ("architectures", "LlamaForCausalLM", "config.json: architectures: expected nothing or a list of str"),
        ("architectures", ["PreTrainedModel"], "config.json: architectures: PreTrainedModel is no model with"),
        ("architectures", ["BertModel"], "config.json: architectures: BertModel is no model with a LlamaC"),
        ("architectures", ["x" * 19_000], "is no model class of transformers"),
        ("architectures", ["x" * 100_000], "it has 100,000 letters, and at most 20,000 are read"),
        ("quantization_config", 3, "config.json: quantization_config: its weights are quantised"),
        ("quantization_config", "x", "config.json: quantization_config: its weights are quantised"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "use the weights that it was made from, or"),
        ("quantization_config", {"load_in_4bit": True}, "config.json: quantization_config: its weights are quantised"),
        ("dtype", "float7", "config.json: dtype: dtype must be float32, bfloat16, float16 or float64, got 'float7'"),
        ("torch_dtype", "int8", "config.json: torch_dtype: dtype must be float32"),
        ("dtype", 3, "config.json: dtype: expected nothing or str or dict, got 3"),
        ("dtype", {"": "x"}, "transformers cannot read it"),
        ("model_type", ["llama"], "config.json: model_type: expected str, got ['llama']"),
        ("model_type", None, "config.json: the field model_type is missing"),
        ("hidden_size", "x", "hidden_size: expected a whole number"),
        ("hidden_act", "evil", "transformers cannot read it (KeyError: "),
        ("num_attention_heads", 3, "transformers cannot read it"),
    ],
)  # fmt: skip
def test_a_config_that_no_model_can_be_made_from_is_refused_by_its_key(llama_copy: Path, key, value, words) -> None:
    change(llama_copy, **{key: value})
    with pytest.raises(CannotRead) as error:
        load(llama_copy)
    assert words in str(error.value) and len(str(error.value)) < 900


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 10**8, "num_hidden_layers: expected a whole number from -1 to 1,000, got 100000000"),
        ("num_hidden_layers", 10**30, "num_hidden_layers: expected a whole number from -1 to 1,000"),
        ("hidden_size", 10**7, "by it the model has 1,310,000,000 parameters, and the tensors have 2,096"),
        ("head_dim", 60_000, "by it the model has 5,761,328 parameters"),
        ("vocab_size", 10**12, "by it the model has 16,000,000,001,"),
        ("intermediate_size", 10**18, "intermediate_size: expected at most 16,777,216"),
    ],
)
def test_no_model_is_made_that_is_far_larger_than_its_files(llama_copy: Path, key: str, value: int, words: str) -> None:
    change(llama_copy, **{key: value})
    with pytest.raises(CannotRead) as error:
        load(llama_copy)
    assert words in str(error.value) and "config.json: " in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_implementation", "kernels-community/x"),
        ("_attn_implementation", "flash_attention_2"),
        ("attn_implementation", {"": "a/b"}),
        ("experts_implementation", "a/b"),
        ("attn_implementation", 3),
    ],
)
def test_a_config_never_chooses_the_code_that_attends(llama_copy: Path, key: str, value: Any, monkeypatch) -> None:
    hub = importlib.import_module("transformers.integrations.hub_kernels")
    monkeypatch.setattr(hub, "get_kernel", lambda *args, **kwargs: pytest.fail("a kernel was asked for"))
    change(llama_copy, **{key: value})
    checkpoint = load(llama_copy)
    assert checkpoint.config._attn_implementation == "sdpa"
    assert key not in (checkpoint.save_huggingface(llama_copy.parent / "new") / "config.json").read_text()
    change(llama_copy, **{key: None}, model_type="llava", text_config={"model_type": "llama", key: value})
    config = read_config(llama_copy)
    assert type(config.text_config) is transformers.LlamaConfig
    assert config._attn_implementation is None and config.text_config._attn_implementation is None
    assert config._experts_implementation is None and config.text_config._experts_implementation is None


def test_files_beside_a_model_choose_no_code(llama_copy: Path) -> None:
    (llama_copy / "custom_generate").mkdir()
    (llama_copy / "custom_generate" / "generate.py").write_text("raise SystemExit('it was run')")
    (llama_copy / "tokenizer.json").write_text(TOKENIZER)
    tokenizer_config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (llama_copy / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (llama_copy / "own.py").write_text("raise SystemExit('it was run')")
    generation = {"custom_generate": "evil/repo", "trust_remote_code": True, "max_new_tokens": 1}
    (llama_copy / "generation_config.json").write_text(json.dumps(generation))
    with pytest.raises(CannotRead, match="tokenizer: transformers cannot read it"):
        load(llama_copy)
    (llama_copy / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    checkpoint = load(llama_copy)
    checkpoint.model.generate(IDS, do_sample=False)
    new = checkpoint.save_huggingface(llama_copy.parent / "new")
    assert json.loads((new / "generation_config.json").read_text()) == {"max_new_tokens": 1}
    assert not list(new.glob("**/*.py"))


WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
TOKENIZER = json.dumps({"version": "1.0", "added_tokens": [], "model": WORDS})


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "additional_chat_templates/a.jinja"])
def test_a_link_out_of_the_folder_is_not_followed(llama_copy: Path, name: str) -> None:
    secret = llama_copy.parent / "outside"
    secret.write_text("secret")
    (llama_copy / name).parent.mkdir(exist_ok=True)
    (llama_copy / name).unlink(missing_ok=True)
    (llama_copy / name).symlink_to(secret)
    with pytest.raises(CannotRead, match=r"it is a link to .*outside', outside its folder; put the file itself there"):
        load(llama_copy)


def test_an_adapter_beside_a_model_is_not_put_into_it_in_silence(llama_copy: Path) -> None:
    (llama_copy / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    with pytest.raises(CannotRead, match="an adapter lies beside the model; load the model from a folder alone"):
        load(llama_copy)


def test_a_tensor_that_is_missing_is_an_error_and_not_random(llama_copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = llama_copy / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CannotRead, match=r"lacks model.norm.weight \(of 1\), which LlamaForCausalLM needs"):
        load(llama_copy)


def test_a_shape_that_the_config_contradicts_is_an_error(llama_copy: Path) -> None:
    change(llama_copy, vocab_size=33)
    with pytest.raises(CannotRead, match=r"model.embed_tokens.weight: .*\[32, 16\].*\[33, 16\]"):
        load(llama_copy)


def test_pickles_a_missing_config_and_a_lone_file_are_refused(llama_copy: Path) -> None:
    with pytest.raises(CannotRead, match=r"holds tensors and no config; give the folder with config.json"):
        load(llama_copy / "model.safetensors")
    (llama_copy / "config.json").rename(llama_copy / "kept.json")
    with pytest.raises(CannotRead, match=r"has no config.json; without it the tensors are of no known model"):
        load(llama_copy)
    (llama_copy / "kept.json").rename(llama_copy / "config.json")
    (llama_copy / "model.safetensors").rename(llama_copy / "pytorch_model.bin")
    with pytest.raises(CannotRead, match=r"pytorch_model.bin is a pickle"):
        load(llama_copy)


def test_a_broken_tokenizer_is_an_error_in_words(llama_copy: Path) -> None:
    (llama_copy / "tokenizer.json").write_text("{")
    with pytest.raises(CannotRead, match=r"copy: tokenizer: transformers cannot read it .*; mend or remove its files"):
        load(llama_copy)


def test_without_transformers_the_extra_is_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        CannotRead, match=r"loading a model needs transformers; install it with `pip install 'posenc\[hf"
    ):
        load(llama)


def test_what_is_saved_loads_as_the_same_model(llama: Path, tmp_path: Path) -> None:
    checkpoint = load(llama)
    folder = checkpoint.save_huggingface(tmp_path / "saved")
    again = load(folder)
    with torch.no_grad():
        assert torch.equal(again.model(IDS).logits, checkpoint.model(IDS).logits)
    names = set(__import__("safetensors").safe_open(folder / "model.safetensors", "pt").keys())
    assert "lm_head.weight" not in names and "model.embed_tokens.weight" in names
    with pytest.raises(ValueError, match="exists; nothing was written"):
        checkpoint.save_huggingface(folder)


def test_the_settings_of_transformers_are_as_before(llama: Path) -> None:
    from transformers.utils import logging

    settings = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(llama)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == settings


@pytest.mark.slow
@pytest.mark.skipif(not (MODELS / "smollm2").is_dir(), reason="run `python examples/real_models.py smollm2` first")
def test_smollm2_reads_the_language_reference_as_well_as_it_was_measured_to(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    checkpoint = load(MODELS / "smollm2", dtype="bfloat16")
    assert checkpoint.config.rope_parameters == {"rope_type": "default", "rope_theta": 1e5}
    ids = checkpoint.tokenizer("\n\n".join(topics.values()), return_tensors="pt", verbose=False)["input_ids"]
    assert ids.shape == (1, 112_955)
    ids = ids[:, 2000 : 2000 + 1024]
    with torch.inference_mode():
        logits = checkpoint.model(ids).logits[0, :-1].float()
    # 16.64 in the original measurement, whose weights were read by other code.
    assert torch.nn.functional.cross_entropy(logits, ids[0, 1:]).exp() == pytest.approx(16.64, rel=0.01)
    folder = checkpoint.save_huggingface(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.inference_mode():
        assert torch.equal(again(ids[:, :64]).logits, checkpoint.model(ids[:, :64]).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer("def f(x): return 1984").input_ids == checkpoint.tokenizer("def f(x): return 1984").input_ids
    assert "<|im_start|>assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )


@pytest.mark.slow
@pytest.mark.skipif(not (MODELS / "minilm").is_dir(), reason="run `python examples/real_models.py minilm` first")
def test_minilm_without_positions_cannot_tell_who_bit_whom() -> None:
    checkpoint = load(MODELS / "minilm")

    def similarity() -> float:
        tokens = checkpoint.tokenizer(["The dog bit the man.", "The man bit the dog."], return_tensors="pt")
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(checkpoint.model(**tokens).last_hidden_state.mean(1), dim=-1)
        return float(vectors[0] @ vectors[1])

    assert similarity() < 0.995
    table = checkpoint.model.embeddings.position_embeddings.weight
    with torch.no_grad():
        table.copy_(table.mean(0).expand_as(table))
    assert similarity() == pytest.approx(1, abs=1e-5)
