"""GGUF files written here from tiny transformers models: what is loaded back computes the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from posenc.checkpoints.files import gguf_model  # noqa: E402
from posenc.checkpoints.files.load import load  # noqa: E402
from posenc.checkpoints.files.tensors import GGUFTensors, open_tensors  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' names -> llama.cpp's."""


def tiny(kind: str, **options: Any) -> Any:
    """A small model with random weights, biases and norms included."""
    given = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    given |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    made = getattr(transformers, f"{kind}ForCausalLM")
    model = made(made.config_class(**given | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write(model: Any, path: Path, leave_out: str = "", more: dict[str, Any] | None = None) -> Path:
    """A GGUF file of a model, as llama.cpp's converter lays it out."""
    config = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (more or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key.format(arch=arch), value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            # llama.cpp's permute: (half, pair) -> (pair, half) within each head.
            split = tensor.numpy().reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = torch.from_numpy(split.swapaxes(1, 2).reshape(tensor.shape).copy())
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        name = name.replace("model.layers.", "blk.")
        if name != leave_out:
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def opened(path: Path) -> GGUFTensors:
    found = open_tensors(path)
    assert isinstance(found, GGUFTensors)
    return found


YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 32}
YARN_SAID = {
    "{arch}.rope.scaling.type": "yarn",
    "{arch}.rope.scaling.factor": 2.0,
    "{arch}.rope.scaling.original_context_length": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LINEAR_SAID = {"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "options", "more"),
    [
        ("Llama", {"tie_word_embeddings": True}, {}),
        ("Llama", {"rope_parameters": YARN}, YARN_SAID),
        ("Llama", {"rope_parameters": LINEAR, "attention_bias": True}, LINEAR_SAID),
        ("Llama", {"head_dim": 4}, {}),
        ("Qwen2", {}, {}),
        ("Qwen3", {"tie_word_embeddings": True}, {}),
    ],
)
def test_the_loaded_model_computes_what_the_written_one_does(kind, options, more, tmp_path: Path) -> None:
    model = tiny(kind, **options)
    ids = torch.randint(0, 32, (2, 40))
    loaded = load(write(model, tmp_path / "model.gguf", more=more))
    assert type(loaded.model) is type(model) and loaded.tokenizer is None and not loaded.model.training
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, model(ids).logits, atol=1e-6)
    half = load(tmp_path / "model.gguf", dtype="bfloat16")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}


def test_numbers_come_as_they_were_meant(tmp_path: Path) -> None:
    found = gguf_model.config(opened(write(tiny("Llama"), tmp_path / "m.gguf", more={"{arch}.vocab_size": 32})))
    assert found["rms_norm_eps"] == 1e-5 and found["vocab_size"] == 32
    assert found["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert found["architectures"] == ["LlamaForCausalLM"] and found["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"{arch}.expert_count": 8}, r"says llama.expert_count, which posenc does not read in a GGUF file yet"),
        ({"{arch}.rope.scaling.type": "longrope"}, r"llama.rope.scaling.type is 'longrope'; expected none, linear or"),
        ({"{arch}.rope.scaling.type": "yarn"}, r"rope.scaling.type is 'yarn', but there is no rope.scaling.factor"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match=message):
        load(write(tiny("Llama"), tmp_path / "m.gguf", more=more))


@pytest.mark.parametrize("key", ["{arch}.rope.scaling.factor", "{arch}.rope.scale_linear"])
def test_a_factor_without_a_type_is_linear_as_in_llama_cpp(key: str, tmp_path: Path) -> None:
    found = gguf_model.config(opened(write(tiny("Llama"), tmp_path / "m.gguf", more={key: 4.0})))
    assert found["rope_parameters"] == LINEAR
    found = gguf_model.config(
        opened(write(tiny("Llama"), tmp_path / "n.gguf", more={key: 4.0, "{arch}.rope.scaling.type": "none"}))
    )
    assert found["rope_parameters"]["rope_type"] == "default"


def test_partial_rotary_is_refused(tmp_path: Path) -> None:
    model = tiny("Llama")
    path = write(model, tmp_path / "m.gguf")
    data = path.read_bytes()
    key = b"llama.rope.dimension_count"
    place = data.index(key) + len(key) + 4
    path.write_bytes(data[:place] + (4).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(CannotRead, match=r"llama.rope.dimension_count is 4 where a head has 8 channels"):
        load(path)


def test_another_architecture_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CannotRead, match=r"holds a 'mamba'; posenc loads GGUF files of llama, qwen2, qwen3"):
        load(tmp_path / "m.gguf")


def test_a_missing_tensor_and_one_too_many_are_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match=r"lacks blk.1.ffn_up.weight, which is model.layers.1.mlp.up_proj.weight in"):
        load(write(tiny("Llama"), tmp_path / "a.gguf", leave_out="blk.1.ffn_up.weight"))
    model = tiny("Llama")
    model.model.layers[0].register_buffer("extra", torch.zeros(8))
    with pytest.raises(CannotRead, match=r"holds blk.0.extra, which LlamaForCausalLM has no place for"):
        load(write(model, tmp_path / "b.gguf"))


def test_frequencies_of_its_own_are_refused(tmp_path: Path) -> None:
    model = tiny("Llama")
    model.register_buffer("rope_freqs", torch.ones(4))
    with pytest.raises(CannotRead, match=r"divides its frequencies by numbers of its own"):
        load(write(model, tmp_path / "m.gguf"))


def test_a_shape_that_contradicts_the_numbers_is_named(tmp_path: Path) -> None:
    model = tiny("Llama")
    model.model.norm.weight = torch.nn.Parameter(torch.ones(16))
    with pytest.raises(
        CannotRead, match=r"output_norm.weight has the shape \[16\], but by .* model.norm.weight has \[32\]"
    ):
        load(write(model, tmp_path / "m.gguf"))
