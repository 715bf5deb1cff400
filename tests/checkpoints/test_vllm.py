"""vLLM's own types of rope, held to its formulas written out here; the rest is transformers' config."""

import json
import math
from dataclasses import replace

import pytest

from posenc.checkpoints import config_json, configs, vllm
from posenc.checkpoints.configs import CannotWrite
from posenc.checkpoints.reading import CannotRead, Layer, Part, Reading
from posenc.encoding import Shape

BASE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' part of the config without transformers: plain rotary, with its base and the keys it was given."""

    def read(given: dict) -> Reading:
        rope = given.get("rope_parameters") or {}
        base = rope.get("rope_theta", given.get("rope_theta", 10_000))
        said = {key: str(value) for key, value in rope.items()}
        shape = Shape(64, 4, 16, given["max_position_embeddings"])
        spec = configs.rotary_spec(head_dim=16, base=base)
        return Reading("transformers", "llama", (Part("", shape, (Layer(spec, 16),) * 2, 4, shape.max_len),), said)

    monkeypatch.setattr(config_json, "read", read)


def schedule(rope: dict, **config):
    given = BASE | config | {"rope_parameters": {"rope_theta": 5e5, **rope}}
    return configs.read(given, "vllm").parts[0].encoding(0)


def test_ntk_is_the_fixed_one_and_mixed_b_spreads_it() -> None:
    fixed = schedule({"rope_type": "ntk", "factor": 4.0})
    # ntk_scaling_rope.py: base * factor, and every frequency divided by factor^(2/r).
    expected = [(5e5 * 4) ** (-2 * k / 16) / 4 ** (2 / 16) for k in range(8)]
    assert fixed.frequencies.tolist() == pytest.approx(expected, rel=1e-12)
    mixed = schedule({"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.625})
    a = math.log(4) / 8**0.625
    expected = [5e5 ** (-2 * k / 16) / math.exp(a * (k + 1) ** 0.625) for k in range(8)]
    assert mixed.frequencies.tolist() == pytest.approx(expected, rel=1e-12)


def test_dynamic_with_alpha_is_one_larger_base() -> None:
    with_alpha = {"max_model_len": 8192, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}
    reading = configs.read(BASE | with_alpha)
    expected = [(1e4 * 1000 ** (16 / 14)) ** (-2 * k / 16) for k in range(8)]
    assert reading.parts[0].encoding(0).frequencies.tolist() == pytest.approx(expected, rel=1e-12)
    assert reading.unknown == {}


@pytest.mark.parametrize(("all_dim", "temperature"), [(0.0, 1.260804), (0.707, 1.0)])
def test_deepseek_yarn_counts_each_mscale_for_itself(all_dim, temperature) -> None:
    rope = {"rope_type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 4096}
    found = schedule(rope | {"mscale": 0.707, "mscale_all_dim": all_dim}).schedule
    assert found.temperature == pytest.approx(temperature, abs=1e-6)
    assert (found.factor, found.trained_length, found.beta_fast) == (40, 4096, 32)


def test_yarn_with_keys_that_only_vllm_reads() -> None:
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
    assert schedule(rope | {"attn_factor": 0.5}).schedule.temperature == pytest.approx(0.5 * 1.207944, abs=1e-6)
    assert schedule(rope | {"attn_factor": 0.5, "apply_yarn_scaling": False}).schedule.temperature == 0.5
    assert schedule(rope | {"extrapolation_factor": 1}).schedule.temperature == pytest.approx(1.207944, abs=1e-6)
    assert schedule(rope | {"attn_factor": 1, "truncate": False}).schedule.truncate is False


def test_overrides_take_the_place_of_what_the_config_says() -> None:
    overrides = {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}, "max_position_embeddings": 8192}
    for given in (overrides, json.dumps(overrides)):
        arguments = {"model": "m", "--hf-overrides": given, "hf_config": BASE | {"rope_theta": 7e4}}
        reading = configs.read(arguments)
        assert reading.format == "vllm"
        assert (reading.parts[0].trained_length, reading.parts[0].encoding(0).base) == (8192, 70000)
        assert str(reading.parts[0].encoding(0).schedule) == "ntk_fixed(factor=2)"
        assert reading.understood["hf_overrides.max_position_embeddings"] == "in place of 4096"


def test_an_override_of_rope_keeps_the_base_that_it_leaves_out() -> None:
    config = BASE | {"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}
    override = {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}
    reading = configs.read({"hf_config": config, "hf_overrides": override})
    assert reading.parts[0].encoding(0).base == 70000


def test_serving_past_the_trained_length_is_said() -> None:
    def besides(longest) -> tuple[str, ...]:
        return configs.read(BASE | {"max_model_len": longest}).parts[0].besides

    assert besides("8k") == ("served up to 8k tokens, past its trained length of 4096",)
    assert besides(4096) == besides("4K") == besides("4.05k") == ()
    with pytest.raises(CannotRead, match="max_model_len must be a number of tokens, such as 32768 or 32k, got 'auto'"):
        besides("auto")


def test_where_vllm_computes_something_else_than_transformers_is_said() -> None:
    dynamic = configs.read(BASE | {"max_model_len": 1, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    assert dynamic.not_covered == (
        "dynamic NTK as vLLM has it: one table for all lengths, not one that follows each sequence",
    )
    longrope = configs.read(BASE | {"max_model_len": 1, "rope_scaling": {"type": "su", "factor": 2.0}})
    assert "one list for all sequences, chosen by max_model_len" in longrope.not_covered[0]


def test_keys_of_rope_that_are_left_over_are_named() -> None:
    reading = configs.read(BASE | {"rope_scaling": {"rope_type": "ntk", "factor": 2.0, "spice": 3}})
    assert reading.unknown == {"rope_parameters.spice": 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "path/to/model", "max_model_len": 4096}, "without the config of path/to/model that they change"),
        (BASE | {"hf_overrides": "{rope"}, "hf_overrides must be a dictionary, or one as JSON"),
        (BASE | {"hf_overrides": [1]}, r"hf_overrides must be a dictionary, got \[1\]"),
        (BASE | {"rope_scaling": {"rope_type": "xdrope", "alpha": 2}}, "vLLM's rope type 'xdrope' has no spec here"),
        (BASE | {"rope_scaling": {"rope_type": "ntk"}}, "rope_parameters.factor is missing"),
        (BASE | {"rope_scaling": {"rope_type": "ntk", "factor": 0.5}}, "rope_parameters cannot be: ntk_fixed: factor"),
        (
            BASE
            | {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 2,
                    "original_max_position_embeddings": 64,
                    "extrapolation_factor": 0.5,
                }
            },
            "extrapolation_factor must be 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(given, message) -> None:
    with pytest.raises(CannotRead, match=message):
        configs.read(given, "vllm")


@pytest.mark.parametrize(
    ("written", "parameters"),
    [
        ("ntk(factor=3)", {"rope_type": "dynamic", "alpha": 3}),
        ("ntk_fixed(factor=3)", {"rope_type": "ntk", "factor": 3}),
        ("ntk_mixed(factor=3, power=0.5)", {"rope_type": "ntk", "factor": 3, "mixed_b": 0.5}),
        (
            "yarn(factor=40, trained_length=4096, mscale=0.707, mscale_all_dim=0, mscale_rule=apart)",
            {
                "rope_type": "deepseek_yarn",
                "factor": 40,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 0.707,
                "mscale_all_dim": 0,
            },
        ),
    ],
)
def test_its_own_types_are_written_and_read_again(written, parameters) -> None:
    pytest.importorskip("transformers")
    part = Part("", Shape(64, 4, 16, 4096), (Layer(f"rotary(base=500, schedule={written})", 16),) * 2, 4, 4096)
    reading = Reading("vllm", "llama", (part,))
    out = vllm.write(reading)
    assert out["rope_parameters"] == {"rope_theta": 500, **parameters}
    assert configs.differences(reading, configs.read(out, "vllm")) == []


def test_what_it_cannot_say_is_not_written() -> None:
    spec = "rotary(schedule=yarn(factor=2, trained_length=64, attention_factor=2.0, mscale_rule=apart))"
    part = Part("", Shape(64, 4, 16, 4096), (Layer(spec, 16),) * 2, 4, 4096)
    pytest.importorskip("transformers")
    with pytest.raises(CannotWrite, match="vLLM has no parameters for the schedule yarn"):
        vllm.write(Reading("vllm", "llama", (part,)))
    two = (replace(part, layers=(Layer("rotary(schedule=ntk(factor=2))", 16), Layer("rotary(base=5)", 16))),)
    with pytest.raises(CannotWrite, match="vLLM has one rotary for all layers"):
        vllm.write(Reading("vllm", "llama", two))
