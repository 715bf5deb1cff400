"""Ledgers, detection of formats, and readings written as configs of transformers and read again."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_configs import PUBLISHED_CONFIGS

from posenc.checkpoints.formats import config_json
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.ledger import Ledger, show_value
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress
from posenc.encoding.base import Shape


def test_a_ledger_tells_what_was_read_and_what_was_left() -> None:
    keys = Ledger({"rope_theta": 5e5, "alibi": None, "rope_wonder": 1, "vocab_size": 3, "text_config": {"n_ctx": 8}})
    assert keys.number("rope_theta", "base {}") == 5e5
    assert keys.flag("alibi", "ALiBi: {}", False) is False
    assert keys.notes == {"rope_theta": "base 500000"}
    assert keys.unknown() == {"rope_wonder": 1, "text_config.n_ctx": 8}
    text_keys = keys.open("text_config")
    assert text_keys.whole("n_ctx", "{} tokens") == 8
    assert keys.notes["text_config.n_ctx"] == "8 tokens"
    assert keys.unknown() == {"rope_wonder": 1}


def test_within_rope_parameters_every_key_counts() -> None:
    keys = Ledger({"rope_scaling": {"factor": 2, "spice": 3}, "other": {"spice": 3}})
    keys.open("rope_scaling", position_only=True).number("factor", "{}")
    assert keys.unknown() == {"rope_scaling.spice": 3}
    # A nested dictionary that was not opened is searched too.
    assert Ledger({"rope_scaling": {"factor": 2}}).unknown() == {"rope_scaling.factor": 2}


def test_several_names_of_one_thing_contradict_each_other_only_where_they_differ() -> None:
    keys = Ledger({"type": "yarn", "rope_type": "yarn", "theta": 2})
    assert keys.first(("rope_type", "type"), "schedule {}", kind="word") == "yarn" and keys.contradictions == []
    keys = Ledger({"type": "linear", "rope_type": "yarn"}, "rope_scaling")
    assert keys.first(("rope_type", "type"), "schedule {}", kind="word") == "yarn"
    assert keys.contradictions == [
        "rope_scaling.rope_type is yarn and rope_scaling.type is linear; followed: rope_scaling.rope_type"
    ]
    assert keys.first(("absent", "missing"), "{}", 3) == 3


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("number", "8", "a.key must be a finite number, got '8'"),
        ("number", True, "must be a finite number, got True"),
        ("number", float("nan"), "must be a finite number, got nan"),
        ("whole", 8.5, "must be a whole number, got 8.5"),
        ("size", 0, "a.key must be 1 or more, got 0"),
        ("flag", 1, "must be true or false, got 1"),
        ("word", ["x"], r"must be a word, got \['x'\]"),
        ("numbers", [1, "x"], r"must be a list of numbers, got \[1, 'x'\]"),
        ("numbers", "12", "must be a list of numbers"),
        ("open", 3, "a.key must be a dictionary, got 3"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(method, value, message) -> None:
    keys = Ledger({"key": value}, "a")
    with pytest.raises(CannotRead, match=message):
        keys.open("key") if method == "open" else getattr(keys, method)("key", "{}")


def test_values_in_words() -> None:
    assert [show_value(x) for x in (True, None, 5e5, 0.25, 1e-5, "x")] == [
        "true",
        "nothing",
        "500000",
        "0.25",
        "1e-05",
        "x",
    ]
    assert show_value([1, 2.0]) == "[1, 2]" and show_value(list(range(9))) == "[0, 1, ..., 8] (9 entries)"
    assert show_value(float("inf")) == "inf"


@pytest.mark.parametrize(
    ("config", "format"),
    [
        ({"general.architecture": "llama"}, "gguf"),
        ({"dim": 8, "n_layers": 1, "n_heads": 1}, "meta"),
        ({"model_type": "llama"}, "transformers"),
        ({"hidden_size": 8, "rope_theta": 1e4}, "transformers"),
        (
            {"hidden_size": 8, "num_attention_heads": 1, "position_embedding_type": "absolute", "model_type": "bert"},
            "transformers",
        ),
        ({"model_type": "glm", "kv_channels": 4, "hidden_size": 8, "num_attention_heads": 2}, "transformers"),
    ],
)
def test_formats_are_told_by_their_keys(config, format) -> None:
    assert configs.detect(config) == format


def test_what_is_of_no_format_is_refused_with_what_was_expected() -> None:
    with pytest.raises(CannotRead, match=r"no format known has these keys: color, size; expected a config.json of"):
        configs.read({"color": 1, "size": 2})
    with pytest.raises(CannotRead, match="these keys: none"):
        configs.detect({})


@pytest.mark.parametrize(
    ("config", "stranger"),
    [
        ({"model": "m", "max-model-len": 4096}, "settings of vLLM"),
        ({"model_type": "llama", "hidden_size": 8, "hf_overrides": {}}, "settings of vLLM"),
        (
            {"hidden_size": 8, "num_layers": 1, "position_embedding_type": "rope", "max_position_embeddings": 8},
            "arguments of Megatron",
        ),
    ],
)
def test_settings_of_engines_are_named_and_not_read(config, stranger) -> None:
    """They share keys with a config and mean other things by them."""
    with pytest.raises(
        CannotRead, match=rf"look like {stranger}, which posenc does not read; expected a config\.json of"
    ):
        configs.read(config)


def reading(spec: str = "rotary", layers: int = 4, head_dim: int = 16, length: int = 4096, **changes: Any) -> Reading:
    part = Part("", Shape(4 * head_dim, 4, head_dim, length), (Layer(spec, head_dim),) * layers, 2, length)
    return Reading("transformers", "x", (replace(part, **changes),))


def test_differences_are_found_and_equal_specs_are_not() -> None:
    equal = reading("rotary(base=10_000.0, partial=1)")
    assert differences(reading(), equal) == []
    interleaved = reading("rotary(layout=interleaved)")
    assert differences(reading(), interleaved) != []
    assert differences(reading(layers=1), reading("rotary(base=5)", layers=1)) == ["layer 0 rotary and rotary(base=5)"]
    assert differences(reading(), reading(kv_heads=1)) == ["kv heads 2 and 1"]
    assert differences(reading(), reading(layers=3)) == ["4 layers and 3"]
    assert differences(reading(), reading(trained_length=7)) == ["trained length 4096 and 7"]
    assert differences(reading(), reading(embed="learned(max_len=9)")) == ["embed none and learned(max_len=9)"]
    windows = reading(layers=2)
    windows = replace(windows, parts=(replace(windows.parts[0], layers=(Layer("rotary", 16, 8, 0.5),) * 2),))
    assert differences(reading(layers=2), windows) == [
        "layer 0 window None and 8",
        "layer 0 scale None and 0.5",
        "layer 1 window None and 8",
        "layer 1 scale None and 0.5",
    ]


FACTORS = st.integers(1, 64) | st.floats(1, 64, allow_nan=False).map(lambda x: round(x, 3))
LENGTHS = st.integers(1024, 200_000)
LINEAR = st.builds(lambda f: f"linear(factor={f})", FACTORS)
LLAMA3 = st.builds(lambda f, n: f"llama3(factor={f}, trained_length={n})", FACTORS, st.just(8192))
YARN = st.builds(
    lambda f, n, fast, slow: f"yarn(factor={f}, trained_length={n}, beta_fast={fast}, beta_slow={slow})",
    *(FACTORS, LENGTHS, st.integers(16, 64), st.integers(1, 8)),
)
WITH_TEMPERATURE = st.builds(
    lambda f, n, t: f"yarn(factor={f}, trained_length={n}, attention_factor={t})",
    *(FACTORS, LENGTHS, st.sampled_from((0.5, 1.0, 1.25))),
)
LISTS = st.lists(st.integers(8, 400).map(lambda n: n / 8), min_size=8, max_size=8).map(tuple)
LONGROPE = st.builds(
    lambda short, long: f"longrope(factor=4, short_factor={short}, long_factor={long}, trained_length=1024)",
    LISTS,
    LISTS,
)
# With smaller ones YaRN's ramp lies outside of the pairs, and transformers' runs backwards, which no spec has.
BASES = st.integers(1_000, 10_000_000)

L31 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 32,
}


@pytest.fixture(scope="module")
def llama31() -> Reading:
    pytest.importorskip("transformers")
    return configs.read(L31)


def test_what_a_part_has_is_written_over_what_another_config_says(llama31) -> None:
    base = L31 | {"rope_theta": 3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "tie_word_embeddings": True}
    new_config = config_json.with_positions(base, llama31.parts[0])
    assert differences(llama31, config_json.read(new_config)) == []
    assert new_config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 500000,
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    }
    # The same in the spelling of transformers 4, in place of the old keys.
    rope = new_config["rope_parameters"]
    assert new_config["rope_scaling"] == {key: value for key, value in rope.items() if key != "rope_theta"}
    assert new_config["rope_theta"] == 500000 and new_config["tie_word_embeddings"] is True
    assert base["rope_theta"] == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": None},
            "rope_theta is 500000 and rope_parameters.rope_theta is 10000; followed: what transformers follows",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
            "rope_scaling.factor times original_max_position_embeddings is 32768 and max_position_embeddings is "
            "131072; followed: factor",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 16.0}},
            "rope_scaling.factor is 8 and rope_parameters says 16; followed: what transformers follows",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0}},
            "rope_scaling.rope_type is llama3 and rope_parameters says linear; followed: what transformers follows",
        ),
        ({"alibi": True}, "alibi is true and there are keys of rotary; an architecture has one of them"),
        (
            {"rope_scaling": {"rope_type": "default", "factor": 4.0}},
            "rope_scaling.factor is 4 and its type is default, which stretches nothing",
        ),
        (
            {"text_config": {"rotary_pct": 0.25, "partial_rotary_factor": 0.5}},
            "text_config.rotary_pct is 0.25 and text_config.partial_rotary_factor is 0.5; followed: what transformers "
            "follows",
        ),
    ],
)
def test_keys_of_transformers_that_contradict_each_other(change, sentence) -> None:
    assert sentence in list(config_json.contradictions_of(L31 | change))


def test_the_config_of_llama_3_1_contradicts_itself_in_nothing(llama31) -> None:
    assert list(config_json.contradictions_of(L31)) == [] and llama31.contradictions == ()


def test_lists_of_longrope_have_to_fit() -> None:
    rope = {"rope_type": "longrope", "factor": 2, "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}
    with pytest.raises(CannotRead, match=r"rope_scaling.long_factor must hold a number for each of the 8 pairs, got 7"):
        config_json.read(L31 | {"rope_scaling": rope})


def test_what_transformers_cannot_say_is_not_written() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CannotExpress, match=r"transformers has no rope_parameters for rotary\(schedule=ntk"):
        config_json.with_positions(L31, reading("rotary(schedule=ntk(factor=2))").parts[0])


@pytest.mark.slow
def test_schedules_go_through_transformers() -> None:
    pytest.importorskip("transformers")

    @given(BASES, st.none() | LINEAR | LLAMA3 | YARN | WITH_TEMPERATURE | LONGROPE)
    def comes_back(base: int, schedule: str | None) -> None:
        original = reading(f"rotary(base={base}{f', schedule={schedule}' if schedule else ''})")
        config = L31 | {"num_hidden_layers": len(original.parts[0].layers)}
        assert differences(original, config_json.read(config_json.with_positions(config, original.parts[0]))) == []

    comes_back()


WITHOUT_SCHEDULE: dict[str, dict[str, Any]] = {
    "GPT-J": {"model_type": "gptj", "n_embd": 4096, "n_layer": 4, "n_head": 16, "rotary_dim": 64, "n_positions": 2048},
    "BLOOM": {"model_type": "bloom", "hidden_size": 1024, "n_layer": 4, "n_head": 16, "seq_length": 2048},
    "T5's encoder": {"model_type": "t5", "architectures": ["T5EncoderModel"], "num_layers": 2, "n_positions": 512},
    "T5": {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_layers": 2, "num_heads": 8, "n_positions": 512},
    "GPT-2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 4, "n_head": 12, "n_positions": 1024},
}
"""Released models without a schedule."""

RELEASED_MODELS = WITHOUT_SCHEDULE | {
    name: PUBLISHED_CONFIGS[name] for name in ("Qwen2.5 with YaRN", "Phi-3", "Gemma 3", "DeepSeek-V3", "gpt-oss")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED_MODELS)
def test_released_models_are_written_and_read_again(name: str) -> None:
    pytest.importorskip("transformers")
    config = RELEASED_MODELS[name]
    original = configs.read(config)
    assert original.parts and set(original.unknown) <= {"initial_context_length"}
    for part in original.parts:
        config = config_json.with_positions(config, part)
    assert differences(original, config_json.read(config)) == []
