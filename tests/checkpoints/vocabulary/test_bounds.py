"""Impossible sizes are refused by their key, before any loop, allocation or model depends on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.inspection import configs
from posenc.checkpoints.inspection.inspect import inspect
from posenc.checkpoints.models import rotations, skeleton
from posenc.checkpoints.vocabulary.bounds import check_bounds
from posenc.checkpoints.vocabulary.ledger import show_value
from posenc.checkpoints.vocabulary.reading import CannotRead

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PARAMS: dict[str, Any] = {"dim": 64, "n_layers": 2, "n_heads": 4}


@pytest.mark.parametrize("sound", [LLAMA, LLAMA | {"model_type": "nonesuch"}, PARAMS], ids=["llama", "unknown", "meta"])
@pytest.mark.parametrize("value", [10**8, 1e9, 1e29, 10**39, -5, True, "8", 1e308, 0.5, float("nan"), [10**9], {}])
@pytest.mark.parametrize("size", ["layers", "width", "heads"])
def test_a_size_that_no_model_has_is_refused_by_its_key(sound, value, size) -> None:
    names = {"layers": ("num_hidden_layers", "n_layers"), "width": ("hidden_size", "dim")}
    key = next(name for name in names.get(size, ("num_attention_heads", "n_heads")) if name in sound)
    with pytest.raises(CannotRead) as error:
        configs.read(sound | {key: value})
    assert key in str(error.value) or "transformers cannot read it" in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: expected a whole number from -1 to 1,000, got 100000000"),
        ({"head_dim": 10**9}, "head_dim: expected a whole number from -1 to 65,536, got 1000000000"),
        (
            {"hidden_size": 1 << 20},
            "the model: channels of a head: expected a whole number from 1 to 65,536, got 262144",
        ),
        ({"head_dim": 1e29}, "head_dim: expected a whole number"),
        ({"max_position_embeddings": 1e29}, "max_position_embeddings: expected a whole number"),
        (
            {"max_position_embeddings": 10**400},
            "max_position_embeddings: expected .*, got a number of more",
        ),
        ({"num_local_experts": 10**8}, "num_local_experts: expected at most 65,536, got 100000000"),
        ({"encoder_layers": 10**8}, "encoder_layers: expected at most 1,000, got 100000000"),
        ({"vision_config": {"depth": 10**8}}, r"vision_config\.depth: expected a whole number from -1 to 1,000"),
        ({"layers": [{"num_heads": 10**9}]}, r"layers\.num_heads: expected a whole number"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor is a share of a head, from 0 to 1, got 1e"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"x" * 300: 1}, "a key has 300 letters"),
        ({"relative_attention_max_distance": 10**9}, "relative_attention_max_distance: expected at most 1,048,576"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": "x"}}, "transformers"),
        ({"rope_scaling": [1, 2]}, "this llama configuration: transformers cannot read it .*; compare its keys with"),
    ],
)
def test_what_is_beyond_all_bounds_is_named(change, message) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CannotRead, match=message):
        configs.read(LLAMA | change)


def test_a_config_that_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 10**9}))
    with pytest.raises(CannotRead, match=r"config\.json: num_hidden_layers: expected a whole number from -1 to 1,000"):
        inspect(tmp_path)


def test_what_is_within_bounds_is_taken() -> None:
    check_bounds(LLAMA | {"max_position_embeddings": 1e6, "n_positions": -1, "num_heads": [2, 4], "depths": [2, 18]})
    check_bounds({"hidden_size": None, "eos_token_id": 1 << 40, "label2id": {f"class {n}": n for n in range(21_000)}})
    with pytest.raises(CannotRead, match="more than 100,000 keys, which is no configuration"):
        check_bounds({str(n): n for n in range(100_001)})


def test_a_model_of_too_many_tensors_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(skeleton, "MAX_TENSORS", 10)
    reading = configs.read(LLAMA | {"vocab_size": 11})
    assert any("it has more than 10 tensors" in sentence for sentence in reading.not_covered)


def test_heads_too_wide_to_be_measured_are_read_by_their_keys_and_said() -> None:
    pytest.importorskip("transformers")
    reading = configs.read(LLAMA | {"vocab_size": 11, "head_dim": 4096})
    assert reading.parts[0].shape.head_dim == 4096
    assert any("a head has 4,096 channels; the turns of at most 1,024 are" in s for s in reading.not_covered)


@pytest.mark.parametrize(("heads", "head_dim"), [(16, 256), pytest.param(2, 1024, marks=pytest.mark.slow)])
def test_wide_heads_are_measured_a_few_channels_at_a_time(heads: int, head_dim: int) -> None:
    pytest.importorskip("transformers")
    config = LLAMA | {"model_type": "gemma", "hidden_size": 64, "num_attention_heads": heads, "head_dim": head_dim}
    reading = configs.read(config | {"num_key_value_heads": heads, "num_hidden_layers": 4, "vocab_size": 19})
    assert {layer.spec for layer in reading.parts[0].layers} == {"rotary"} and not reading.not_covered


def test_what_is_too_large_to_be_turned_is_read_by_the_keys_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(rotations, "LARGE", 20)
    # A unique size, because readings are cached.
    reading = configs.read(LLAMA | {"vocab_size": 17})
    assert {layer.spec for layer in reading.parts[0].layers} == {"rotary"}
    assert any("tensors of more than 20 numbers" in sentence for sentence in reading.not_covered)


def test_a_text_of_any_length_is_said_in_short() -> None:
    reading = configs.read(LLAMA | {"model_type": "m" * 5000, "rope_wonder": "w" * 5000})
    assert len(reading.architecture) <= 80 and len(show_value(reading.unknown["rope_wonder"])) <= 200


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("learned(max_len=1000000000000)", "posenc_encoding: numbers of learned.*: expected a whole number from 0 to"),
        ("rotary(base=1e400)", "posenc_encoding cannot be: rotary: base"),
        ("nonesuch", "posenc_encoding cannot be: .*nonesuch"),
        ("rotary(" * 200, "is no spec"),
    ],
)
def test_a_spec_in_a_config_that_cannot_be_built_is_refused(mark, message) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CannotRead, match=message):
        configs.read(LLAMA | {"vocab_size": 11, "posenc_encoding": mark})


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_never_chooses_the_code_that_computes(key) -> None:
    pytest.importorskip("transformers")
    reading = configs.read(LLAMA | {"vocab_size": 11, key: "evil/kernel"})
    assert reading.parts[0].layers[0].spec == "rotary" and not reading.not_covered
