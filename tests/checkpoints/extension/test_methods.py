"""Methods by name, against transformers' own frequencies for the config that they write."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama
from tiers import rest_slow
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from posenc.catalogue import build, parse
from posenc.checkpoints.extension import changes, methods
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.config_json import with_positions
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.encoding.base import Shape
from posenc.schedules import SCHEDULES

SHAPE = Shape(576, 9, 64, 8192, True)
PLAIN = "rotary(base=100000.0)"


def reading(*specs: str, windows: tuple[int | None, ...] = (), **part: Any) -> Reading:
    layers = tuple(Layer(spec, 64, window) for spec, window in zip(specs, windows or [None] * len(specs), strict=True))
    fields = {"shape": SHAPE, "kv_heads": 3, "trained_length": 8192, **part}
    return Reading("transformers", "llama", (Part("", layers=layers, **fields),))


def config(**changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}, "max_position_embeddings": 8192}
    return tiny_llama.config(**{**sizes, **rope, **changes}).to_dict()


def method(name: str, factor: float = 2.0, source: Reading | None = None, **options: Any) -> methods.Method:
    source = source or reading(PLAIN, PLAIN)
    raw = options.pop("config", None) or config(num_hidden_layers=len(source.parts[0].layers))
    return methods.plan_methods(source, raw, factor, [name], **options).methods[-1]


def in_transformers(changes: dict[str, Any], length: int | None = None) -> tuple[torch.Tensor, float]:
    """Return the frequencies and the temperature that transformers computes for a config."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    llama_config = tiny_llama.config(**{**config(), **changes})
    kind = llama_config.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding(llama_config).inv_freq, 1.0
    return ROPE_INIT_FUNCTIONS[kind](llama_config, torch.device("cpu"), seq_len=length)


@pytest.mark.parametrize("factor", rest_slow([2.5, 2.0, 4.0], 1))
@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "llama3", "dynamic"])
def test_the_config_says_what_was_measured(name: str, factor: float) -> None:
    result = method(name, factor)
    target = round(8192 * factor)
    horizon = torch.tensor([target]) if name == "dynamic" else None
    actual, temperature = build(result.specs[0], SHAPE).spectrum(horizon)
    reference, scaling = in_transformers(dict(result.config), target)
    torch.testing.assert_close(actual.flatten(), reference.double(), rtol=2e-6, atol=0)
    assert float(temperature) == pytest.approx(scaling, rel=1e-6)
    # Dynamic scaling takes its trained length from there.
    assert result.config["max_position_embeddings"] == (8192 if name == "dynamic" else target)


def test_longrope_takes_searched_factors() -> None:
    factors = {"short_factor": [1.0] * 32, "long_factor": [1 + k / 8 for k in range(32)]}
    result = method("longrope", longrope=factors)
    for length in (8192, 16384):
        actual, temperature = build(result.specs[0], SHAPE).spectrum(torch.tensor([length]))
        reference, scaling = in_transformers(dict(result.config), length)
        torch.testing.assert_close(actual.flatten(), reference.double(), rtol=2e-6, atol=0)
        assert float(temperature) == pytest.approx(scaling, rel=1e-6)
    assert result.by_length


def test_ntk_is_a_larger_base() -> None:
    node = dict(parse(method("ntk").spec).options)
    assert node == {"base": pytest.approx(100_000 * 2 ** (64 / 62))}
    source = reading("rotary(base=100000.0, partial=0.5)", shape=replace(SHAPE, causal=True))
    raw = config(num_hidden_layers=1) | {"model_type": "stablelm", "partial_rotary_factor": 0.5}
    partial = method("ntk", source=source, config=raw)
    assert dict(parse(partial.spec).options)["base"] == pytest.approx(100_000 * 2 ** (32 / 30))


@pytest.mark.parametrize("factor", [2.0, 3.0, 4.0])
def test_the_groups_of_self_extend_end_where_training_saw_often(factor: float) -> None:
    result = method("self-extend", factor)
    encoding = build(result.spec, SHAPE)
    target = round(8192 * factor)
    m, n = encoding.formula_positions(target - 1, 0)
    assert encoding.window == 2048 and 8192 / 3 < m - n <= 2 / 3 * 8192
    assert result.config is None and "no config key" in result.why_not


@pytest.mark.parametrize("name", sorted({*SCHEDULES, "ntk-by-parts"} - {"longrope"}))
def test_every_schedule_of_the_catalogue_is_a_method_by_its_name(name: str) -> None:
    result = method(name)
    (rotary,) = {build(spec, SHAPE) for spec in set(result.specs)}
    if name == "ntk":
        assert rotary.base == pytest.approx(100_000 * 2 ** (64 / 62))
        return
    schedule = rotary.schedule
    assert schedule.spec_name == name.replace("-", "_") and getattr(schedule, "trained_length", 8192) == 8192
    first_line = type(schedule).__doc__.splitlines()[0].removesuffix(".")
    assert name in changes.DESCRIPTIONS or result.words.startswith(first_line)


def test_a_schedule_with_options_is_a_method_and_gets_the_factor_that_it_needs() -> None:
    def schedule(name: str) -> str:
        return method(name).spec.partition("schedule=")[2].removesuffix(")")

    assert schedule("yarn(beta_fast=64)") == "yarn(factor=2.0, trained_length=8192, beta_fast=64)"
    assert schedule("yarn(factor=3)") == "yarn(factor=3, trained_length=8192)"
    inner = "yarn(factor=2.0, trained_length=8192, beta_slow=2)"
    assert schedule("resonance(inner=yarn(beta_slow=2))") == f"resonance(inner={inner})"
    with pytest.raises(ValueError, match="yarn has no option 'beta'; it has: factor"):
        method("yarn(beta=3)")


def test_options_of_distance_maps_and_temperatures_go_before_the_usual_ones() -> None:
    assert method("rerope(window=100)").spec == f"rerope({PLAIN}, window=100)"
    assert method("self-extend(group=3)").spec == f"self_extend({PLAIN}, window=2048, group=3)"
    with pytest.raises(
        ValueError, match=r"rerope\(wind=3\): no option 'wind'; it has: window, leak; did you mean 'win"
    ):
        method("rerope(wind=3)")


@pytest.mark.parametrize(("name", "tau"), [("log-temperature", 14 / 13), ("step-temperature", 1 + 0.1 * math.log(2))])
def test_temperatures_leave_all_that_is_served_as_it_is(name: str, tau: float) -> None:
    result = method(name)
    rotary, temperature = build(result.spec, SHAPE).parts
    assert repr(rotary) == PLAIN and result.config is None and "no config key" in result.why_not
    assert [temperature.temperature(position) for position in (0, 100, 8191)] == [1, 1, 1]
    assert temperature.temperature(16383) == pytest.approx(tau, rel=1e-6)


def test_yarns_temperature_alone_keeps_every_frequency() -> None:
    actual, temperature = build(method("temperature").spec, SHAPE).spectrum()
    torch.testing.assert_close(actual.flatten(), 100_000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64))
    assert temperature == pytest.approx(0.1 * math.log(2) + 1)


def test_a_schedule_that_no_key_names_is_written_as_a_divisor_for_each_pair() -> None:
    result = method("ntk-mixed", 4.0)
    steps = torch.arange(1, 33, dtype=torch.float64)
    divisors = torch.exp(math.log(4) / 32**0.625 * steps**0.625)
    rope = result.config["rope_parameters"]
    for name in ("short_factor", "long_factor"):
        torch.testing.assert_close(torch.tensor(rope[name], dtype=torch.float64), divisors)
    assert rope["attention_factor"] == 1.0 and "LongRoPE's lists" in result.words and not result.by_length
    for length in (1, 40_000):
        reference, scaling = in_transformers(dict(result.config), length)
        plain = 100_000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        torch.testing.assert_close(reference.double(), plain / divisors, rtol=2e-6, atol=0)
        assert scaling == 1.0


def test_what_stands_still_or_follows_the_length_is_in_no_list() -> None:
    for name in ("clipped(pairs=4)", "dynamic_linear"):
        result = method(name)
        assert result.config is None and "transformers has no rope_parameters for rotary" in result.why_not


def test_rerope_and_dual_chunk_stay_within_the_trained_length() -> None:
    for name in ("rerope", "dual-chunk"):
        encoding = build(method(name, 8.0).spec, SHAPE)
        assert all(m - n < 8192 for m, n in (encoding.formula_positions(65_535, key) for key in (0, 99, 60_000)))


def test_all_leaves_out_what_does_not_apply_and_says_why() -> None:
    plan = methods.plan_methods(reading(PLAIN, PLAIN), config(), 2.0, ["all"])
    assert [m.name for m in plan.methods] == [name for name in methods.ALL_METHODS if name != "longrope"]
    assert list(plan.left_out) == ["longrope"]
    assert "searched for this very model" in plan.left_out["longrope"]
    assert (plan.trained_length, plan.target) == (8192, 16384)
    assert plan.methods[0].name == "none" and plan.methods[0].specs == (PLAIN, PLAIN)


def test_the_model_as_it_is_comes_first_and_once() -> None:
    plan = methods.plan_methods(reading(PLAIN, PLAIN), config(), 2.0, ["yarn", "none", "yarn", "ntk"])
    assert [m.name for m in plan.methods] == ["none", "yarn", "ntk"]


def test_only_what_depends_on_the_length_takes_passes_of_its_own() -> None:
    plan = methods.plan_methods(reading(PLAIN, PLAIN), config(), 2.0, ["all", "dynamic-yarn"])
    assert [m.name for m in plan.methods if m.by_length] == ["dynamic", "dynamic-yarn"]


# Models that are scaled already


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("linear(factor=4)", "linear", "linear(factor=8.0)"),
        ("yarn(factor=4, trained_length=2048)", "yarn", "yarn(factor=8.0, trained_length=2048)"),
        ("llama3(factor=8, trained_length=2048)", "llama3", "llama3(factor=16.0, trained_length=2048)"),
    ],
)
def test_a_scaled_model_is_stretched_further_by_its_own_kind(old: str, name: str, new: str) -> None:
    result = method(name, source=reading(f"rotary(base=100000.0, schedule={old})"))
    assert result.spec == f"rotary(base=100000.0, schedule={new})"
    reference, scaling = in_transformers(dict(result.config))
    actual, temperature = build(result.spec, SHAPE).spectrum()
    torch.testing.assert_close(actual, reference.double(), rtol=2e-6, atol=0)
    assert temperature == pytest.approx(scaling, rel=1e-6)


@pytest.mark.parametrize(
    ("old", "name", "message"),
    [
        (
            "llama3(factor=8, trained_length=2048)",
            "yarn",
            "already scaled by llama3.* yarn on top of that has no publ.*; --replace puts",
        ),
        ("yarn(factor=8, trained_length=2048)", "ntk", "already scaled by yarn"),
        ("linear(factor=8)", "dynamic", "already scaled by linear"),
        ("yarn(factor=8, trained_length=2048, attention_factor=1.3)", "yarn", r"temperature of its own \(attention_f"),
    ],
)
def test_two_kinds_on_top_of_each_other_are_refused(old: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method(name, source=reading(f"rotary(base=100000.0, schedule={old})"))


def test_another_schedule_takes_the_place_of_one_by_its_length_before_any_scaling() -> None:
    """From 2,048 tokens linear and yarn by 4 serve 8,192, so twice that is a factor of 8."""
    yarn, linear = "yarn(factor=4, trained_length=2048)", "linear(factor=4)"
    pairs = [(yarn, "llama3"), (yarn, "linear"), (yarn, "dynamic"), (linear, "yarn"), (linear, "part_ntk")]
    for old, name in pairs:
        result = method(name, source=reading(f"rotary(base=100000.0, schedule={old})"), replace=True)
        schedule = build(result.specs[0], SHAPE).schedule
        assert schedule.factor == 8 and getattr(schedule, "trained_length", 2048) == 2048
        assert result.config["max_position_embeddings"] == (2048 if name == "dynamic" else 16384)
    result = method("ntk", source=reading(f"rotary(base=100000.0, schedule={yarn})"), replace=True)
    assert build(result.spec, SHAPE).base == pytest.approx(100_000 * 8 ** (64 / 62))


def test_the_same_kind_in_place_of_itself_keeps_its_ramp_and_takes_the_temperature_of_the_rule() -> None:
    old = "yarn(factor=4, trained_length=2048, beta_fast=16, attention_factor=1.3)"
    result = method("yarn", source=reading(f"rotary(base=100000.0, schedule={old})"), replace=True)
    assert result.spec == "rotary(base=100000.0, schedule=yarn(factor=8.0, trained_length=2048, beta_fast=16))"


def test_what_stands_around_a_schedule_takes_that_of_the_model_in() -> None:
    result = method("resonance", source=reading("rotary(base=100000.0, schedule=linear(factor=4))"))
    assert result.spec == "rotary(base=100000.0, schedule=resonance(inner=linear(factor=4)))"
    again = method("linear", source=reading(result.spec), replace=True)
    assert again.spec == "rotary(base=100000.0, schedule=linear(factor=8.0))"


def test_a_temperature_that_the_rule_gives_anyway_follows_the_factor() -> None:
    old = f"yarn(factor=4, trained_length=2048, attention_factor={0.1 * math.log(4) + 1})"
    assert "yarn(factor=8.0, trained_length=2048)" in method("yarn", source=reading(f"rotary(schedule={old})")).spec


def test_nothing_to_replace_and_nothing_to_put_there_are_errors() -> None:
    with pytest.raises(
        ValueError, match="--replace: the model's frequencies are not scaled, so there is nothing to re"
    ):
        method("yarn", replace=True)
    with pytest.raises(ValueError, match=r"in place of linear\(factor=4\), and rerope gives none; leave it out"):
        method("rerope", source=reading("rotary(schedule=linear(factor=4))"), replace=True)


def test_distances_of_a_scaled_model_can_be_changed() -> None:
    old = "rotary(base=100000.0, schedule=linear(factor=4))"
    assert method("rerope", source=reading(old)).spec == f"rerope({old}, window=2048)"


# Layers that differ


def test_layers_that_see_less_than_the_trained_length_and_those_without_position_stay() -> None:
    source = reading("rotary(base=20000.0)", PLAIN, "none", windows=(512, None, None))
    result = method("rerope", source=source)
    assert result.specs == ("rotary(base=20000.0)", f"rerope({PLAIN}, window=2048)", "none")


def test_layers_whose_chunks_are_within_the_trained_length_stay() -> None:
    source = reading(PLAIN, PLAIN, PLAIN)
    layers = tuple(replace(source.parts[0].layers[0], chunk=chunk) for chunk in (8192, 8193, None))
    result = method("rerope", source=replace(source, parts=(replace(source.parts[0], layers=layers),)))
    assert result.specs == (PLAIN, *2 * [f"rerope({PLAIN}, window=2048)"])


def test_kinds_of_layers_have_places_of_their_own_in_a_config() -> None:
    raw = {key: value for key, value in config().items() if key != "rope_parameters"} | {"model_type": "gemma3_text"}
    raw |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512}
    raw |= {"rope_theta": 100_000.0, "rope_local_base_freq": 10_000.0, "query_pre_attn_scalar": 64}
    result = method("yarn", source=reading("rotary(base=10000.0)", PLAIN, windows=(512, None)), config=raw)
    new = result.config["rope_parameters"]
    assert new["sliding_attention"]["rope_type"] == "default"
    assert new["sliding_attention"]["rope_theta"] == 10_000.0
    assert new["full_attention"]["rope_type"] == "yarn" and new["full_attention"]["factor"] == 2.0
    assert (result.config["rope_theta"], result.config["rope_local_base_freq"]) == (100_000, 10_000)
    assert result.config["rope_scaling"]["factor"] == 2.0


def test_layers_that_differ_without_such_places_have_no_config() -> None:
    result = method("yarn", source=reading("rotary(base=10000.0)", PLAIN, windows=(512, None)))
    assert result.config is None and "llama has no place of its own for layer 1, rotary(base=1" in result.why_not


def test_what_stands_beside_rotary_stays_beside_it() -> None:
    result = method("rerope", source=reading(f"{PLAIN} + log_temperature(trained_length=8192)"))
    assert result.spec == f"rerope({PLAIN}, window=2048) + log_temperature(trained_length=8192)"


def test_older_names_follow_and_inner_configs_are_changed_where_they_lie() -> None:
    text = {key: value for key, value in config().items() if key != "rope_parameters"}
    text |= {"rope_theta": 100_000.0, "rope_scaling": None}
    raw = {"model_type": "llava", "text_config": text, "rope_theta": 100_000.0, "tie_word_embeddings": True}
    raw |= {"max_position_embeddings": 8192, "rope_scaling": {"type": "linear", "factor": 3.0}}
    raw["vision_config"] = {"model_type": "clip_vision_model", "hidden_size": 16, "num_hidden_layers": 3}
    raw["vision_config"] |= {"num_attention_heads": 2, "intermediate_size": 16, "image_size": 8, "patch_size": 4}
    result = method("yarn", source=huggingface.read(raw), config=raw)
    text_config = result.config["text_config"]
    assert text_config["rope_parameters"]["factor"] == text_config["rope_scaling"]["factor"] == 2.0
    # Some files repeat the keys in the outer config, where they would now differ.
    assert "rope_scaling" not in result.config and "rope_theta" not in result.config
    assert result.config["max_position_embeddings"] == text_config["max_position_embeddings"] == 16384
    assert result.config["model_type"] == "llava" and raw["text_config"]["rope_scaling"] is None


def test_a_schedule_said_by_an_older_key_is_not_left_beside_the_new_one() -> None:
    """transformers follows `rope_scaling` before `rope_parameters`."""
    old = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    for kind in ("rope_type", "type"):
        scaling = {key: value for key, value in old.items() if key != "rope_type"} | {kind: "yarn"}
        raw = config() | {"rope_parameters": None, "rope_theta": 100_000.0, "rope_scaling": scaling}
        result = method("yarn", source=huggingface.read(raw), config=raw)
        assert result.spec == "rotary(base=100000, schedule=yarn(factor=8.0, trained_length=2048))"
        reference, scaling = in_transformers(dict(result.config))
        actual, temperature = build(result.spec, SHAPE).spectrum()
        torch.testing.assert_close(actual, reference.double(), rtol=2e-6, atol=0)
        assert temperature == pytest.approx(scaling, rel=1e-6)


def test_a_config_of_which_another_model_would_be_made_is_an_error_before_anything_is_measured(monkeypatch) -> None:
    def stale(raw: dict[str, Any], part: Part) -> dict[str, Any]:
        return with_positions(raw, part) | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}

    monkeypatch.setattr(methods, "with_positions", stale)
    with pytest.raises(
        ValueError, match=r"yarn cannot be written so that transformers serves what is planned: planned"
    ):
        method("yarn")
    plan = methods.plan_methods(reading(PLAIN, PLAIN), config(), 2.0, ["all"])
    assert "yarn cannot be written" in plan.left_out["yarn"] and "yarn" not in [item.name for item in plan.methods]


def test_deepseeks_yarn_changes_the_scale_of_the_logits_too_which_is_done_while_measuring() -> None:
    yarn = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0}
    latent = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 32, "v_head_dim": 8, "qk_nope_head_dim": 8}
    latent |= {"num_key_value_heads": 9, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    raw = config() | latent | {"model_type": "deepseek_v3", "moe_intermediate_size": 8, "first_k_dense_replace": 2}
    raw |= {"rope_parameters": None, "rope_scaling": yarn | {"mscale_all_dim": 1.0}, "rope_theta": 10_000.0}
    raw |= {"max_position_embeddings": 163_840, "head_dim": 32}
    result = method("yarn", source=huggingface.read(raw), config=raw)
    growth = (0.1 * math.log(80) + 1) / (0.1 * math.log(40) + 1)
    assert result.scales == pytest.approx([growth**2] * 2) and result.config["rope_scaling"]["factor"] == 80
    model = model_from(result.config)
    with methods.scale_logits(model, (2.0, 1.0)):
        assert [layer.self_attn.scaling for layer in model.layers] == pytest.approx([2 * scale(80), scale(80)])
    assert [layer.self_attn.scaling for layer in model.layers] == pytest.approx([scale(80)] * 2)


def scale(factor: float) -> float:
    """Return the scale of DeepSeek's logits, with 8 + 32 channels of a head."""
    return 40**-0.5 * (0.1 * math.log(factor) + 1) ** 2


def model_from(raw: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(**raw))


def test_an_architecture_without_keys_of_rotary_has_no_config() -> None:
    raw = {"model_type": "gptj", "n_embd": 64, "n_layer": 2, "n_head": 2, "rotary_dim": 16, "n_positions": 2048}
    result = method("linear", source=huggingface.read(raw), config=raw)
    assert result.config is None
    assert "gptj has no keys for the base or a schedule of rotary; attach it" in result.why_not


# Errors


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, math.nan, math.inf])
def test_a_factor_that_stretches_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=f"must be above 1, got {factor:g}"):
        Settings("model", factor)


def test_unknown_and_missing_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no method named 'yarm'; did you mean 'yarn'\\? posenc extend --help has all"):
        method("yarm")
    with pytest.raises(ValueError, match="name at least one method"):
        methods.plan_methods(reading(PLAIN), config(), 2.0, [])


def test_a_method_by_name_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"longrope takes factors.*--longrope-factors"):
        method("longrope")
    with pytest.raises(ValueError, match=r"yarn stretches rotary encodings, and no layer.*has: alibi"):
        method("yarn", source=reading("alibi"))


def test_an_encoder_with_a_decoder_is_refused() -> None:
    raw = {"model_type": "t5", "d_model": 32, "d_kv": 16, "num_layers": 2, "num_heads": 2, "n_positions": 512}
    with pytest.raises(
        CannotRead, match="a decoder that predicts text by itself, and 't5' is an encoder with a decoder"
    ):
        methods.plan_methods(huggingface.read(raw), raw, 2.0, ["rerope"])


def test_a_model_without_a_length_or_a_causal_stack_is_refused() -> None:
    with pytest.raises(CannotRead, match="how long a text the model was trained on"):
        method("yarn", source=reading(PLAIN, trained_length=None))
    with pytest.raises(CannotRead, match=r"one causal stack.*'llama' has 0"):
        method("yarn", source=reading(PLAIN, shape=replace(SHAPE, causal=False)))


def test_searched_factors_are_read_from_json(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    for name, content in (("plain", factors), ("config", {"rope_scaling": {"type": "longrope", **factors}})):
        (tmp_path / name).write_text(json.dumps(content))
        assert methods.read_factors(tmp_path / name) == factors
    (tmp_path / "bad").write_text("{")
    (tmp_path / "other").write_text("[1]")
    (tmp_path / "half").write_text('{"short_factor": [1.0]}')
    for name, message in (
        ("none", "none: there is no such file"),
        ("bad", "bad: it is no whole JSON"),
        ("other", r"other: expected a dictionary, got \[1\]"),
        ("half", "half: the field long_factor is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.read_factors(tmp_path / name)


def test_what_a_model_attends_to_by_code_of_its_own_is_left_out_or_refused_by_name() -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64, "attn_layer_indices": [1]}
    small |= {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8}
    model = transformers.AutoModelForCausalLM.from_config(transformers.BambaConfig(**small))
    config = model.config.to_dict()
    read = huggingface.read(config)
    plan = methods.attachable_plan(model, methods.plan_methods(read, config, 2, ["all"]), ["all"])
    assert {"none", "yarn", "linear"} <= {item.name for item in plan.methods}
    assert "rerope" not in {item.name for item in plan.methods}
    assert plan.left_out["rerope"].startswith("BambaModel attends by code of its own")
    two_methods = methods.plan_methods(read, config, 2, ["yarn", "rerope"])
    with pytest.raises(
        ValueError, match=r"rerope cannot be put into this model: BambaModel attends by code of its own"
    ):
        methods.attachable_plan(model, two_methods, ["yarn,rerope"])
