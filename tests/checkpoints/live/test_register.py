"""Configs that name posenc's schedules, against formulas in scalars, attached models and plain ones."""

import importlib.metadata
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from transformers import LlamaForCausalLM  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

import posenc  # noqa: E402
from posenc import build  # noqa: E402
from posenc.checkpoints import attach, inspect  # noqa: E402
from posenc.foreign import CannotRead  # noqa: E402
from posenc.schedules import SCHEDULES, Schedule  # noqa: E402
from posenc.specs import plugins  # noqa: E402

HORIZON = 4096
SHORT = {"rope_theta": 500.0}
YARN = {"rope_type": "posenc:yarn", "factor": 4.0, "trained_length": 24, **SHORT}
NO_ROPE = {"rope_type": "posenc:none", **SHORT}


@pytest.fixture
def registration():
    with posenc.register() as registration:
        yield registration


def ids(rows: int = 2, tokens: int = 12) -> Tensor:
    return torch.randint(1, 90, (rows, tokens), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    mask = torch.ones_like(ids())
    mask[0, :5] = 0
    return mask


def generated_ids(model: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
    mask = torch.ones_like(ids()) if mask is None else mask
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | options
    return model.generate(ids(), attention_mask=mask, **settings)


def agree(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert float((actual - expected).abs().max()) <= tolerance


def as_keys(schedule: Schedule) -> dict[str, Any]:
    """Return the options of a schedule as JSON values."""
    keys: dict[str, Any] = {option.name: getattr(schedule, option.name) for option in fields(schedule)}
    inner = {name: repr(value) for name, value in keys.items() if isinstance(value, Schedule)}
    lists = {name: list(value) for name, value in keys.items() if isinstance(value, tuple)}
    return {name: value for name, value in (keys | inner | lists).items() if value is not None}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rope_type_gives_the_frequencies_and_the_temperature_of_its_schedule(name, registration):
    schedule = SCHEDULES.read(SCHEDULES[name].example).with_trained_length(64)
    plain = [500.0 ** (-2 * k / 6) for k in range(3)]
    horizon = HORIZON if schedule.by_horizon else None
    frequencies, temperature = schedule.formula(plain, base=500.0, width=6, horizon=horizon)
    assert frequencies != plain or temperature != 1
    rope = {"rope_type": f"posenc:{name}", **SHORT, **as_keys(schedule)} | ({"horizon": horizon} if horizon else {})
    rotary = LlamaRotaryEmbedding(tiny_llama.config(head_dim=6, rope_parameters=rope))
    for turn in range(2):
        agree(rotary.inv_freq, torch.tensor(frequencies), 1e-7)
        assert rotary.attention_scaling == pytest.approx(temperature, rel=1e-7)
        # For long sequences transformers recomputes the types with "dynamic" in their name.
        rotary(torch.zeros(1), torch.arange(200 * (turn + 1))[None])


def test_the_trained_length_is_the_configs_and_the_share_of_a_head_too(registration):
    rope = {"rope_type": "posenc:ntk_by_parts", "factor": 4.0, "partial_rotary_factor": 0.5, **SHORT}
    rotary = LlamaRotaryEmbedding(tiny_llama.config(rope_parameters=rope))
    schedule = SCHEDULES.read(f"ntk_by_parts(factor=4, trained_length={tiny_llama.TRAINED_LENGTH})")
    expected, _ = schedule.formula([500.0 ** (-k / 4) for k in range(4)], base=500.0, width=8)
    agree(rotary.inv_freq, torch.tensor(expected), 1e-7)


def test_a_plugged_in_schedule_has_a_rope_type(monkeypatch, tmp_path):
    text = "from posenc.schedules.linear import Linear\nclass Halved(Linear):\n    pass\n"
    (tmp_path / "halved_schedule.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    point = importlib.metadata.EntryPoint("halved", "halved_schedule:Halved", "posenc.schedules")
    monkeypatch.setattr(
        plugins, "plugins_in", lambda group: {"halved": plugins.Plugin("halved", "a package 1.0", (point,))}
    )
    with posenc.register() as registration:
        assert "posenc:halved" in registration.rope_types
        rope = {"rope_type": "posenc:halved", "factor": 2.0, **SHORT}
        plain, slow = (LlamaRotaryEmbedding(tiny_llama.config(**keys)) for keys in ({}, {"rope_parameters": rope}))
    agree(slow.inv_freq, plain.inv_freq / 2, 1e-7)


@torch.inference_mode()
def test_a_saved_config_alone_selects_what_attach_puts_in(registration, tmp_path: Path):
    plain, mask = tiny_llama.model(), padding()
    source = tiny_llama.model(rope_parameters=YARN)
    source.load_state_dict(plain.state_dict())
    source.save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert model.config.rope_parameters == YARN
    old_logits = plain(ids()).logits
    with attach(plain, "rotary(base=500.0, schedule=yarn(factor=4.0, trained_length=24))"):
        assert float((plain(ids()).logits - old_logits).abs().max()) > 1e-3
        agree(model(ids()).logits, plain(ids()).logits)
        agree(model(ids(), attention_mask=mask).logits[mask > 0], plain(ids(), attention_mask=mask).logits[mask > 0])
        for attention_mask in (None, mask):
            assert torch.equal(generated_ids(model, attention_mask), generated_ids(plain, attention_mask))


@torch.inference_mode()
def test_a_config_may_turn_nothing(registration):
    plain, model = tiny_llama.model(), tiny_llama.model(rope_parameters=NO_ROPE)
    model.load_state_dict(plain.state_dict())
    with attach(plain, "none"):
        agree(model(ids()).logits, plain(ids()).logits)


@torch.inference_mode()
def test_layers_of_a_type_of_their_own_turn_by_their_own_parameters(registration):
    plain = {"rope_type": "default", "rope_theta": 500.0}
    sizes = tiny_llama.config().to_diff_dict() | {"model_type": "gemma3_text", "sliding_window": 64}
    sizes |= {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16}

    def model(full: dict[str, Any]) -> Any:
        rope = {"rope_parameters": {"sliding_attention": plain, "full_attention": full}}
        config = transformers.AutoConfig.for_model(**sizes | rope)
        return transformers.AutoModelForCausalLM.from_config(config).eval()

    rotary = model(plain)
    for rope, spec in ((NO_ROPE, "none"), (YARN, "rotary(base=500.0, schedule=yarn(factor=4.0, trained_length=24))")):
        actual = model(rope)
        actual.load_state_dict(rotary.state_dict())
        with attach(rotary, ("rotary(base=500.0)", spec)):
            agree(actual(ids()).logits, rotary(ids()).logits)


@torch.inference_mode()
def test_models_that_name_nothing_compute_what_they_did_to_the_bit():
    def outputs() -> list[Tensor]:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, **SHORT}
        models = [tiny_llama.model(), tiny_llama.model(rope_parameters=yarn)]
        return [model(ids(), attention_mask=padding()).logits for model in (*models, old_model)]

    old_model = tiny_llama.model()
    old_outputs = outputs()
    with posenc.register():
        new_outputs = outputs()
    for old, new, last in zip(old_outputs, new_outputs, outputs(), strict=True):
        assert torch.equal(old, new) and torch.equal(old, last)


def test_undone_the_registry_is_as_before_and_a_second_call_is_harmless():
    old_functions = dict(ROPE_INIT_FUNCTIONS)
    first = posenc.register()
    new_functions = dict(ROPE_INIT_FUNCTIONS)
    assert new_functions != old_functions and new_functions["linear"] is old_functions["linear"]
    with posenc.register() as second:
        assert not second.rope_types
    assert new_functions == ROPE_INIT_FUNCTIONS
    first.undo(), first.undo()
    assert old_functions == ROPE_INIT_FUNCTIONS
    with pytest.raises(KeyError, match="posenc:yarn"):
        tiny_llama.model(rope_parameters=YARN)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (YARN | {"fractor": 2}, "a key 'fractor' that nothing reads; .* it takes: factor, trained_length, .*'factor'"),
        (YARN | {"factor": 0.5}, "yarn: factor must be 1 or more"),
        (
            YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
            r"multiplies the scale of attention by .* no rope_type can",
        ),
        (YARN | {"horizon": 99}, "posenc:yarn does not depend on a horizon; leave it out"),
        (
            {"rope_type": "posenc:dynamic_ntk", "factor": 2.0, **SHORT},
            'declare the length of all sequences as "horizon": 32768',
        ),
        ({"rope_type": "posenc:resonance", "inner": "mine.py:Mine(factor=2)", **SHORT}, "code from the file"),
        (NO_ROPE | {"factor": 2.0}, "a key 'factor' that nothing reads; .* takes: nothing"),
    ],
)
def test_what_cannot_be_expressed_is_refused_when_the_model_is_built(rope, message, registration):
    with pytest.raises((ValueError, CannotRead), match=message):
        tiny_llama.model(rope_parameters=rope)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_config_that_names_a_schedule_of_ours_is_read_as_such(name, tmp_path: Path):
    schedule = SCHEDULES.read(SCHEDULES[name].example).with_trained_length(64)
    rope = {"rope_type": f"posenc:{name}", **SHORT, **as_keys(schedule), "horizon": HORIZON}
    rope = rope if schedule.by_horizon else {key: value for key, value in rope.items() if key != "horizon"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(tiny_llama.config(head_dim=6).to_dict() | {"rope_parameters": rope}), encoding="utf-8")
    if schedule.by_horizon:
        with pytest.raises(CannotRead, match="all sequences are computed as if they were"):
            inspect(file)
        return
    spec = inspect(file).parts[0].layers[0].spec
    rotary = build(spec, posenc.Shape(dim=24, heads=4, head_dim=6, max_len=64))
    plain = [500.0 ** (-2 * k / 6) for k in range(3)]
    frequencies, temperature = schedule.formula(plain, base=500.0, width=6)
    actual, factor = rotary.spectrum()
    agree(actual.flatten(), torch.tensor(frequencies, dtype=torch.float64), 1e-9)
    assert factor == pytest.approx(temperature, rel=1e-9)


def test_an_attention_of_ours_in_a_config_is_not_passed_over(registration, tmp_path: Path):
    rope = {"rope_type": "posenc:attention", "encoding": "rotary + alibi", **SHORT}
    file, plain = tmp_path / "config.json", tiny_llama.config().to_dict()
    file.write_text(json.dumps(plain | {"rope_parameters": rope}), encoding="utf-8")
    with pytest.raises(CannotRead, match=r"posenc:attention is no schedule of .* attach\(model, 'rotary \+ alibi'\)"):
        inspect(file)
    with pytest.raises(KeyError, match="posenc:attention"):
        tiny_llama.model(rope_parameters=rope)
    with pytest.raises(ValueError, match='attn_implementation="posenc:alibi"` is not supported'):
        tiny_llama.model(attn_implementation="posenc:alibi")
