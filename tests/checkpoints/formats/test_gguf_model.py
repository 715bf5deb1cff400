"""GGUF files of tiny models, written as by llama.cpp: transformers loads the same, or the file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from tiers import rest_slow  # noqa: E402

from posenc.checkpoints.conversion.convert import ConversionRequest, convert  # noqa: E402
from posenc.checkpoints.files.tensors import open_tensors  # noqa: E402
from posenc.checkpoints.formats.gguf import model as gguf_model  # noqa: E402
from posenc.checkpoints.formats.load import load, quietly, without_weights  # noqa: E402
from posenc.checkpoints.inspection.inspect import inspect  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

LLAMA_3: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA_3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 32}
YARN_SAID = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32}
HEADS_ALIKE = {"num_key_value_heads": 4}
PLAIN_NORM = {"attention.layer_norm_epsilon": 1e-5}
WIDE = PLAIN_NORM | {"feed_forward_length": 128}
T5 = {"num_decoder_layers": 2, "d_ff": 48, "d_kv": 16, "feed_forward_proj": "gated-gelu", "pad_token_id": 0}
T5_SAID: dict[str, Any] = {"attention.key_length": 16, "attention.relative_buckets_count": 32}
T5_SAID |= {"attention.layer_norm_epsilon": 1e-6, "attention.head_count_kv": None, "decoder_start_token_id": 0}

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {"tie_word_embeddings": True}, {}),
    "llama, YaRN": ("llama", "llama", {"rope_parameters": YARN}, YARN_SAID),
    "llama, 3.1": ("llama", "llama", {"rope_parameters": LLAMA_3}, {}),
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "gpt2": ("gpt2", "gpt2", HEADS_ALIKE, WIDE),
    "starcoder2": ("starcoder2", "starcoder2", {}, PLAIN_NORM),
    "stablelm": ("stablelm", "stablelm", {"partial_rotary_factor": 0.25}, PLAIN_NORM | {"rope.dimension_count": 2}),
    "nemotron": ("nemotron", "nemotron", {"partial_rotary_factor": 0.5}, {"rope.dimension_count": 4, **PLAIN_NORM}),
    "lfm2": (
        "lfm2",
        "lfm2",
        {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        {"attention.head_count_kv": [0, 2, 0, 2], "attention.layer_norm_rms_epsilon": 1e-5, "shortconv.l_cache": 3},
    ),
    "t5encoder": ("t5", "t5encoder", T5, T5_SAID),
}
"""Cases: transformers' model_type, the architecture, the config, and further keys of the file."""

WITH_CORRECTIONS = {"llama, YaRN", "llama, 3.1", "gpt2"}
"""Cases whose positions transformers reads wrongly."""


def tiny(model_type: str, arch: str = "", **options: Any) -> Any:
    """Return a small model with random weights that + 1 and - 1 do not round."""
    kind = transformers.AutoModelForTextEncoding if arch == "t5encoder" else transformers.AutoModelForCausalLM
    with quietly():
        model = kind.from_config(transformers.AutoConfig.for_model(model_type, **SIZES | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(((parameter + torch.randn_like(parameter) * 0.2) * 256).round() / 256)
    return model


def stored_tensor(name: str, tensor: Tensor, arch: str, config: Any) -> Tensor:
    """Return a tensor as llama.cpp's converter writes it: LlamaModel.permute, NemotronModel, GPT2Model, LFM2Model."""
    for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if arch == "llama" and part in name:
            # (head, half, pair) -> (head, pair, half).
            heads_apart = tensor.reshape(getattr(config, heads), 2, -1, *tensor.shape[1:])
            tensor = heads_apart.transpose(1, 2).reshape(tensor.shape)
    if arch == "nemotron" and name.endswith("norm.weight"):
        tensor = tensor + 1
    if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        tensor = tensor.T
    return tensor.squeeze() if "conv.conv" in name else tensor


def llama3_divisors(rope: dict[str, Any], width: int) -> Tensor:
    """Return rope_freqs of LlamaModel.generate_extra_tensors."""
    wavelength = 2 * torch.pi * rope["rope_theta"] ** (torch.arange(0, width, 2) / width)
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    smooth = ((length / wavelength - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / rope["factor"] + smooth)


def write(model: Any, path: Path, arch: str = "llama", leave_out: str = "", extra: str = "", **keys: Any) -> Path:
    """Write a GGUF file of a model; `keys` replace or add entries, two underscores for a dot, None for no entry.

    extra  the name of a further tensor
    """
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    usual = {"block_count": config.num_hidden_layers, "context_length": 64, "embedding_length": 32}
    usual |= {"feed_forward_length": 48, "attention.head_count": 4, "rope.freq_base": rope.get("rope_theta")}
    usual |= {"attention.head_count_kv": config.to_dict().get("num_key_value_heads")}
    usual |= {"attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None), "vocab_size": 40}
    if arch == "llama":
        usual["rope.dimension_count"] = 8
    entries = {f"{arch}.{key}": value for key, value in usual.items()} | {"tokenizer.ggml.tokens": list("x" * 40)}
    for key, value in keys.items():
        key = key.replace("__", ".")
        entries[key if key.startswith("tokenizer.") else f"{arch}.{key}"] = value
    writer = gguf.GGUFWriter(path, arch)
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in entries.items():
        if value is not None:
            kinds.get(type(value), writer.add_array)(key, value)
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 4)
    tied_names = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name, tensor in model.state_dict().items():
        stored_name = names.get_name(name, (".weight", ".bias")) or name
        if stored_name != leave_out and name not in tied_names | {"encoder.embed_tokens.weight"}:
            writer.add_tensor(stored_name, stored_tensor(name, tensor, arch, config).contiguous().numpy())
    if extra:
        writer.add_tensor(extra, torch.ones(8).numpy())
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, 8).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_case(case: str, path: Path, **changes: Any) -> tuple[Any, Path]:
    """Return the model of a case, and its file with some keys changed."""
    model_type, arch, options, keys = CASES[case]
    model = tiny(model_type, arch, **options)
    return model, write(model, path, arch, **keys | changes)


def compute_the_same(model: Any, second_model: Any) -> bool:
    """Whether two models have the same outputs, bit by bit."""
    ids = torch.randint(0, 40, (2, 30))
    with torch.no_grad():
        return type(model) is type(second_model) and torch.equal(model(ids)[0], second_model(ids)[0])


FIRST = ["llama", "llama, 3.1", "gpt2", "nemotron", "stablelm", "t5encoder"]


@pytest.mark.parametrize("case", rest_slow([*FIRST, *(case for case in CASES if case not in FIRST)], len(FIRST)))
def test_the_loaded_model_computes_what_the_written_one_does(case: str, tmp_path: Path) -> None:
    model, path = write_case(case, tmp_path / "model.gguf")
    checkpoint = load(path)
    assert compute_the_same(checkpoint.model, model) and checkpoint.tokenizer is None and checkpoint.path == path
    assert not checkpoint.model.training and getattr(checkpoint.model.config, "quantization_config", None) is None
    corrections = [
        note for note in checkpoint.notes if note.startswith("transformers reads other positions out of this file: ")
    ]
    assert len(corrections) == len(checkpoint.notes) == (case in WITH_CORRECTIONS)


def test_no_bar_is_drawn_while_a_file_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = write_case("llama", tmp_path / "model.gguf")
    capsys.readouterr()
    load(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("case", rest_slow(["llama, 3.1", "gpt2", "stablelm"], 2))
def test_the_folder_that_it_becomes_computes_the_same(case: str, tmp_path: Path) -> None:
    model, path = write_case(case, tmp_path / "model.gguf")
    new = convert(path, tmp_path / "new", ConversionRequest())
    assert compute_the_same(load(new.folder).model, model) and len(new.notes) == (case in WITH_CORRECTIONS)
    assert new.changes == (f"dequantised and renamed from GGUF: {len(open_tensors(new.folder))} tensors",)
    config = load(new.folder).config_keys()
    assert "quantization_config" not in config and config.get("rms_norm_eps", 1e-6) == 1e-6


def test_shapes_alone_are_had_of_a_file_and_of_the_folder_that_holds_it(tmp_path: Path) -> None:
    write_case("llama", tmp_path / "tiny.gguf")
    for path in (tmp_path, tmp_path / "tiny.gguf"):
        checkpoint = without_weights(path)
        assert type(checkpoint.model).__name__ == "LlamaForCausalLM" and checkpoint.model.dtype == torch.float32
        assert checkpoint.path == tmp_path / "tiny.gguf" and all(p.is_meta for p in checkpoint.model.parameters())


def test_another_dtype_is_that_of_the_whole_model_and_refused_where_it_is_too_narrow(tmp_path: Path) -> None:
    model, path = write_case("llama", tmp_path / "m.gguf")
    checkpoint = load(path, dtype="bfloat16")
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.bfloat16}
    assert load(path, dtype="float16").model.model.norm.weight.equal(model.model.norm.weight.half())
    with torch.no_grad():
        model.model.norm.weight.fill_(1e5)
    with pytest.raises(ValueError, match=r"norm.weight has numbers beyond 65504, where torch.float16 ends"):
        load(write(model, tmp_path / "n.gguf"), dtype="float16")


def test_an_architecture_that_transformers_does_not_load_is_inspected_all_the_same(tmp_path: Path) -> None:
    path = write(tiny("olmo2"), tmp_path / "m.gguf", "olmo2")
    with pytest.raises(
        CannotRead, match=r"architecture olmo2 is not supported yet.*`posenc inspect` reads its positions"
    ):
        load(path)
    assert inspect(path).parts[0].layers[0].spec == "rotary"


MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("model_type", "arch", "options", "keys", "message"),
    [
        (
            "phi3",
            "phi3",
            {"sliding_window": 8, "pad_token_id": 0},
            {"attention.sliding_window": 8},
            "layer 0 window 8 and",
        ),
        ("llama", "llama", {}, {"rope.dimension_count": 4}, r"head dim 8 and 4.* \(in the file, and in transformers\)"),
        (
            "llama",
            "llama",
            {},
            {"attention.sliding_window": 8},
            "it leaves open llama.attention.sliding_window: no key",
        ),
        (
            "llama",
            "llama",
            {},
            {"rope.scaling.wonder": 2.0},
            "it says llama.rope.scaling.wonder, which posenc does not",
        ),
        (
            "llama",
            "llama",
            {"attention_bias": True},
            {},
            r"hold [\d,]+ numbers, and the LlamaForCausalLM .* left out, or",
        ),
        ("mixtral", "llama", MOE, {"expert_count": 4, "expert_used_count": 2}, "that transformers makes of it has"),
        ("llama", "llama", {}, {"block_count": 900}, "by its keys queries alone are made with .*; it may be truncated"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    model_type: str, arch: str, options: Any, keys: Any, message: str, tmp_path: Path
) -> None:
    path = write(tiny(model_type, **options), tmp_path / "m.gguf", arch, **keys)
    for read in (load, without_weights):
        with pytest.raises(CannotRead, match=message):
            read(path)


def test_a_missing_tensor_one_too_many_and_one_of_another_shape_are_refused(tmp_path: Path) -> None:
    model = tiny("llama")
    for change in ({"leave_out": "blk.1.ffn_up.weight"}, {"extra": "blk.1.wonder.weight"}):
        with pytest.raises(CannotRead, match="some would be left out, or be random; `posenc inspect` reads"):
            load(write(model, tmp_path / "a.gguf", **change))
    attention = model.model.layers[0].self_attn
    attention.v_proj = torch.nn.Linear(16, 32, bias=False)
    with pytest.raises(CannotRead, match=r"has no tensor that fits model.layers.0.self_attn.v_proj.weight of Llama"):
        load(write(model, tmp_path / "b.gguf"))


def test_nothing_that_lies_beside_a_file_or_where_one_stands_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    model, path = write_case("llama", tmp_path / "m.gguf")
    here = tmp_path / "here"
    here.mkdir()
    write(tiny("llama"), here / "m.gguf")
    monkeypatch.chdir(here)
    for name in ("adapter_config.json", "generation_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text('{"base_model_name_or_path": "team/other", "auto_map": {"AutoTokenizer": "x.X"}}')
    assert compute_the_same(load(path).model, model)


def test_a_model_for_which_transformers_would_fetch_code_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gguf_model, "find_spec", lambda name: json.__spec__)
    with pytest.raises(
        CannotRead, match="transformers runs code from a hub where the package kernels is installed; un"
    ):
        load(write_case("lfm2", tmp_path / "m.gguf")[1])
    assert load(write_case("llama", tmp_path / "n.gguf")[1]).model is not None


PIECES = ["<unk>", "<s>", "</s>", "\u2581", *"abcdefghijklmnopqrstuvwxyz", "th", "the", "\u2581the", "er", "\u2581th"]
PIECES += [f"<{number}>" for number in range(40 - len(PIECES))]
SENTENCES: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": PIECES}
SENTENCES |= {"tokenizer.ggml.scores": [-float(number) for number in range(40)], "tokenizer.ggml.bos_token_id": 1}
SENTENCES |= {"tokenizer.ggml.token_type": [2, 3, 3, *[1] * 32, *[5] * 5], "tokenizer.ggml.unknown_token_id": 0}


def test_the_tokenizer_of_a_file_goes_along_into_the_folder(tmp_path: Path) -> None:
    path = write(tiny("llama"), tmp_path / "m.gguf", **SENTENCES)
    ids = load(path).tokenizer("the other")["input_ids"]
    assert [PIECES[index] for index in ids] == ["<s>", "\u2581the", "\u2581", "o", "the", "r"]
    assert load(convert(path, tmp_path / "new", ConversionRequest()).folder).tokenizer("the other")["input_ids"] == ids


BYTES: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [chr(97 + n) for n in range(40)]}
BYTES |= {"tokenizer.ggml.merges": []}


def test_a_tokenizer_that_is_not_made_is_said_and_the_model_is_loaded_without_it(tmp_path: Path) -> None:
    for keys in ({"tokenizer.ggml.model": "rwkv"}, BYTES | {"tokenizer.ggml.merges": ["a a"]}):
        checkpoint = load(write(tiny("qwen2"), tmp_path / "m.gguf", "qwen2", **keys))
        assert checkpoint.tokenizer is None and checkpoint.notes[0].startswith(
            "It comes without a tokenizer: transformers cannot"
        )


def test_spaces_before_a_digit_are_a_word_of_their_own_where_the_file_says_so(tmp_path: Path) -> None:
    from tokenizers import pre_tokenizers

    # The pre-tokenizer in SmolLM2's tokenizer.json.
    digits = pre_tokenizers.Digits(individual_digits=True)
    expected_pieces = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    keys = {"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.merges": ["a b"]}
    keys["tokenizer.ggml.tokens"] = [*BYTES["tokenizer.ggml.tokens"][:39], "ab"]
    path = write(tiny("llama"), tmp_path / "m.gguf", **BYTES | keys)
    for checkpoint in (load(path), load(convert(path, tmp_path / "new", ConversionRequest()).folder)):
        assert checkpoint.notes == ()
        cut = checkpoint.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
        for text in ("print(2,)\n   2 1\n   >>> f", "it's 10 x 3.14 a2b\n\n", "x ١٢ y"):
            assert cut(text) == expected_pieces.pre_tokenize_str(text)


def test_words_that_transformers_has_no_rule_for_are_said(tmp_path: Path) -> None:
    for cut, notes in (("gpt-2", 0), ("qwen2", 0), ("wonder", 1)):
        keys = BYTES | {"tokenizer.ggml.pre": cut, "tokenizer.ggml.merges": ["a b"]}
        keys["tokenizer.ggml.tokens"] = [*BYTES["tokenizer.ggml.tokens"][:39], "ab"]
        checkpoint = load(write(tiny("qwen2"), tmp_path / "m.gguf", "qwen2", **keys))
        assert checkpoint.tokenizer("abc")["input_ids"] == [39, 2] and len(checkpoint.notes) == notes
    assert checkpoint.notes[0].startswith(
        "Words are cut as GPT-2 cuts them: the file says 'wonder', for which transformers"
    )
