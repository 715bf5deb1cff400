"""Configs that name posenc's schedules and encodings, against formulas in scalars, attached models and plain ones."""

import copy
import importlib.metadata
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tiny_llama
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

import posenc  # noqa: E402
from posenc import build, plugins  # noqa: E402
from posenc.checkpoints import attach, inspect  # noqa: E402
from posenc.foreign import CannotRead  # noqa: E402
from posenc.schedules import SCHEDULES, Schedule  # noqa: E402

HORIZON = 4096
SHORT = {"rope_theta": 500.0}
YARN = {"rope_type": "posenc:yarn", "factor": 4.0, "trained_length": 24, **SHORT}
DYNAMIC = "rotary(base=500.0, schedule=dynamic_ntk(factor=2, trained_length=8))"
NAMED = [
    "alibi",
    "sandwich",
    "rerope(rotary(base=500.0), window=4)",
    "self_extend(rotary(base=500.0), window=4, group=3)",
    "stick_breaking",
    "alibi + log_temperature(trained_length=4)",
    "on(alibi, heads=(1,))",
    "xpos",
    DYNAMIC,
]


@pytest.fixture
def registered():
    with posenc.register(*NAMED) as registration:
        yield registration


def attention(spec: str) -> dict[str, Any]:
    return {"rope_type": "posenc:attention", "encoding": spec, **SHORT}


def registries() -> list[dict[str, Any]]:
    return [
        dict(one)
        for one in (ROPE_INIT_FUNCTIONS, AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping)
    ]


def ids(rows: int = 2, tokens: int = 12) -> Tensor:
    return torch.randint(1, 90, (rows, tokens), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    mask = torch.ones_like(ids())
    mask[0, :5] = 0
    return mask


def generated(model: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
    mask = torch.ones_like(ids()) if mask is None else mask
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | options
    return model.generate(ids(), attention_mask=mask, **settings)


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    assert float((got - want).abs().max()) <= tolerance


def as_keys(schedule: Schedule) -> dict[str, Any]:
    """The options of a schedule as JSON has them."""
    keys: dict[str, Any] = {one.name: getattr(schedule, one.name) for one in fields(schedule)}
    inner = {name: repr(value) for name, value in keys.items() if isinstance(value, Schedule)}
    lists = {name: list(value) for name, value in keys.items() if isinstance(value, tuple)}
    return {name: value for name, value in (keys | inner | lists).items() if value is not None}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rope_type_gives_the_frequencies_and_the_temperature_of_its_schedule(name, registered):
    schedule = SCHEDULES.read(SCHEDULES[name].example).with_trained_length(64)
    plain = [500.0 ** (-2 * k / 6) for k in range(3)]
    horizon = HORIZON if schedule.by_horizon else None
    frequencies, temperature = schedule.formula(plain, base=500.0, width=6, horizon=horizon)
    assert frequencies != plain or temperature != 1
    said = {"rope_type": f"posenc:{name}", **SHORT, **as_keys(schedule)} | ({"horizon": horizon} if horizon else {})
    rotary = LlamaRotaryEmbedding(tiny_llama.config(head_dim=6, rope_parameters=said))
    for turn in range(2):
        close(rotary.inv_freq, torch.tensor(frequencies), 1e-7)
        assert rotary.attention_scaling == pytest.approx(temperature, rel=1e-7)
        # transformers asks again once a sequence is long, where the name of a type has "dynamic" in it.
        rotary(torch.zeros(1), torch.arange(200 * (turn + 1))[None])


def test_the_trained_length_is_the_configs_and_the_share_of_a_head_too(registered):
    said = {"rope_type": "posenc:ntk_by_parts", "factor": 4.0, "partial_rotary_factor": 0.5, **SHORT}
    rotary = LlamaRotaryEmbedding(tiny_llama.config(rope_parameters=said))
    schedule = SCHEDULES.read(f"ntk_by_parts(factor=4, trained_length={tiny_llama.TRAINED})")
    wanted, _ = schedule.formula([500.0 ** (-k / 4) for k in range(4)], base=500.0, width=8)
    close(rotary.inv_freq, torch.tensor(wanted), 1e-7)


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
        said = {"rope_type": "posenc:halved", "factor": 2.0, **SHORT}
        plain, halved = (LlamaRotaryEmbedding(tiny_llama.config(**given)) for given in ({}, {"rope_parameters": said}))
    close(halved.inv_freq, plain.inv_freq / 2, 1e-7)


@pytest.mark.parametrize("said", [YARN, *map(attention, NAMED)], ids=lambda said: said.get("encoding", "yarn"))
@torch.inference_mode()
def test_a_saved_config_alone_selects_what_attach_puts_in(said, registered, tmp_path: Path):
    plain, mask = tiny_llama.model(), padding()
    named = tiny_llama.model(rope_parameters=said)
    named.load_state_dict(plain.state_dict())
    named.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.rope_parameters == said
    spec = said.get("encoding", "rotary(base=500.0, schedule=yarn(factor=4.0, trained_length=24))")
    before = plain(ids()).logits
    with attach(plain, spec):
        assert float((plain(ids()).logits - before).abs().max()) > 1e-3
        close(loaded(ids()).logits, plain(ids()).logits)
        close(loaded(ids(), attention_mask=mask).logits[mask > 0], plain(ids(), attention_mask=mask).logits[mask > 0])
        for given in (None, mask):
            assert torch.equal(generated(loaded, given), generated(plain, given))
        assert torch.equal(generated(loaded, mask, num_beams=3), generated(plain, mask, num_beams=3))
        fixed = generated(loaded, mask, cache_implementation="static", disable_compile=True)
        assert torch.equal(fixed, generated(plain, mask))


@torch.inference_mode()
def test_attention_by_name_is_what_the_config_says_by_its_rope_type(registered):
    off = {"rope_type": "posenc:none", **SHORT}
    one = tiny_llama.model(rope_parameters=off, attn_implementation="posenc:alibi")
    other = tiny_llama.model(rope_parameters=attention("alibi"))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(ids()).logits, other(ids()).logits)


def alibi_by_hand(heads: int, tokens: int) -> Tensor:
    """-slope |m - n| with the paper's slopes 2^(-8 h / heads), h = 1, 2, ..., for a power of two of heads."""
    rows = [[[-(2 ** (-8 * h / heads)) * abs(m - n) for n in range(tokens)] for m in range(tokens)] for h in (1, 2)]
    return torch.tensor(rows)[None]


@torch.inference_mode()
def test_biases_stand_beside_the_rotary_that_a_model_has(registered):
    model, bias = tiny_llama.model(), alibi_by_hand(2, 12)
    future = torch.ones(12, 12).triu(1).bool()
    by_hand = model(ids(), attention_mask=bias.masked_fill(future, -torch.inf)).logits
    model.set_attn_implementation("posenc:alibi")
    close(model(ids()).logits, by_hand)


@torch.inference_mode()
def test_an_encoder_without_rotary_takes_biases_by_name(registered):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    config.initializer_range = 0.2
    model, mask = transformers.BertModel(config).eval(), padding()
    plain, bias = model(ids()).last_hidden_state, alibi_by_hand(2, 12)
    by_hand = model(ids(), attention_mask=bias.expand(2, -1, -1, -1)).last_hidden_state
    bias = bias.masked_fill(mask[:, None, None] == 0, -torch.inf)
    padded = model(ids(), attention_mask=bias).last_hidden_state
    model.set_attn_implementation("posenc:alibi")
    assert float((by_hand - plain).abs().max()) > 1e-2
    close(model(ids()).last_hidden_state, by_hand)
    close(model(ids(), attention_mask=mask).last_hidden_state[mask > 0], padded[mask > 0])


@torch.inference_mode()
def test_windows_and_their_caches_are_the_models_own(registered):
    sizes = tiny_llama.config().to_diff_dict() | {"sliding_window": 5, "model_type": "mistral"}
    plain = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**sizes)).eval()
    named = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**sizes | {"rope_parameters": attention("alibi")})
    ).eval()
    named.load_state_dict(plain.state_dict())
    whole = named(ids()).logits
    with attach(plain, "alibi"):
        close(whole, plain(ids()).logits)
        for mask in (None, padding()):
            assert torch.equal(generated(named, mask), generated(plain, mask))
        hole = torch.ones_like(ids())
        hole[1, 4:9] = 0
        close(named(ids(), attention_mask=hole).logits[hole > 0], plain(ids(), attention_mask=hole).logits[hole > 0])
    cache = transformers.DynamicCache(config=named.config)
    steps = [named(part, past_key_values=cache).logits for part in ids().split([7, 1, 1, 3], 1)]
    close(torch.cat(steps, 1), whole)


@torch.inference_mode()
def test_layers_of_a_type_of_their_own_attend_by_their_own_parameters(registered):
    plain = {"rope_type": "default", "rope_theta": 500.0}
    sizes = tiny_llama.config().to_diff_dict() | {"model_type": "gemma3_text", "sliding_window": 64}
    sizes |= {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16}

    def model(full: dict[str, Any]) -> Any:
        said = {"rope_parameters": {"sliding_attention": plain, "full_attention": full}}
        config = transformers.AutoConfig.for_model(**sizes | said)
        return transformers.AutoModelForCausalLM.from_config(config).eval()

    rotary, named, off = model(plain), model(attention("alibi")), model({"rope_type": "posenc:none", **SHORT})
    named.load_state_dict(rotary.state_dict()), off.load_state_dict(rotary.state_dict())
    with attach(rotary, ("rotary(base=500.0)", "alibi")):
        close(named(ids()).logits, rotary(ids()).logits)
    assert float((named(ids()).logits - off(ids()).logits).abs().max()) > 1e-3


@torch.inference_mode()
def test_packed_documents_count_their_own_positions(registered):
    model = tiny_llama.model(rope_parameters=attention("alibi + log_temperature(trained_length=2)"))
    at = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    packed = model(ids(1), position_ids=at, use_cache=False).logits
    close(packed[:, 5:], model(ids(1)[:, 5:]).logits)


@torch.inference_mode()
def test_models_that_name_nothing_compute_what_they_did_to_the_bit():
    def outputs() -> list[Tensor]:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, **SHORT}
        models = [tiny_llama.model(), tiny_llama.model(rope_parameters=yarn)]
        return [model(ids(), attention_mask=padding()).logits for model in (*models, kept)]

    kept = tiny_llama.model()
    before = outputs()
    with posenc.register():
        during = outputs()
    for old, new, last in zip(before, during, outputs(), strict=True):
        assert torch.equal(old, new) and torch.equal(old, last)


def test_undone_the_registries_are_as_before_and_a_second_call_is_harmless():
    before = registries()
    first = posenc.register()
    known = registries()
    assert known != before and known[0]["linear"] is before[0]["linear"]
    with posenc.register() as second:
        assert not second.rope_types and not second.attentions
        # A key of its own is added, and only that.
        with posenc.register("alibi + rotary"):
            assert registries()[1].keys() - known[1].keys() == {"posenc:alibi + rotary"}
    assert registries() == known
    first.undo(), first.undo()
    assert registries() == before
    with pytest.raises(KeyError, match="posenc:yarn"):
        tiny_llama.model(rope_parameters=YARN)


@pytest.mark.parametrize(
    ("said", "message"),
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
        ({"rope_type": "posenc:none", "factor": 2.0, **SHORT}, "a key 'factor' that nothing reads; .* takes: nothing"),
        ({"rope_type": "posenc:attention", **SHORT}, 'the spec of an encoding, such as "encoding": "alibi", got'),
        (attention("mine.py:Mine"), "code from the file"),
        (attention("t5_bias"), r"t5_bias\(.*has parameters, and .* no place to keep them; attach\(model"),
        (attention("sinusoidal"), "sinusoidal opens embed, which reads or changes the states between layers"),
        (attention("axial_rotary"), "axial_rotary reads 2 axes, and the tokens of Llama have one"),
        (attention("alibby"), "no encoding named 'alibby'.*alibi"),
    ],
)
def test_what_cannot_be_expressed_is_refused_when_the_model_is_built(said, message, registered):
    with pytest.raises((ValueError, CannotRead), match=message):
        tiny_llama.model(rope_parameters=said)


def test_what_is_turned_already_is_not_turned_again(registered):
    message = 'rotary.* turns queries and keys, which the rotary module of Llama has turned .* "posenc:none"'
    with pytest.raises(ValueError, match=message):
        tiny_llama.model(rope_parameters=YARN, attn_implementation="posenc:rotary")
    # transformers' own rope types are built without asking anybody: it is said at the first pass.
    model = tiny_llama.model(attn_implementation=f"posenc:{NAMED[2]}")
    with pytest.raises(ValueError, match=message):
        model(ids())


def test_what_does_not_say_where_tokens_stand_is_refused(registered):
    model = tiny_llama.model(rope_parameters=attention("alibi"))
    with pytest.raises(ValueError, match=r"not told where its tokens stand.*a mask of shape \[1, 1, 12, 12\]"):
        model(ids(), attention_mask=torch.zeros(1, 1, 12, 12))
    with pytest.raises(ValueError, match="attention_mask must cover the 0 tokens in the cache and the 12 new ones"):
        model(ids(), attention_mask=torch.ones(2, 7))
    cache = transformers.DynamicCache(config=model.config)
    model(ids(), past_key_values=cache)
    with pytest.raises(ValueError, match="elsewhere than the padding mask counts, and the cache does not remember"):
        model(ids(tokens=1), past_key_values=cache, position_ids=torch.tensor([[40]]))
    rule = AttentionMaskInterface()["posenc:alibi"]
    placed = rule(
        config=model.config, q_length=3, kv_length=3, mask_function=transformers.masking_utils.causal_mask_function
    )
    attend, layer = AttentionInterface()["posenc:alibi"], model.model.layers[0].self_attn
    with pytest.raises(ValueError, match=r"position_ids have one axis here.*\[3, 1, 3\]"):
        attend(layer, *torch.zeros(3, 1, 2, 3, 16), placed, position_ids=torch.zeros(3, 1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="attends to 4 keys where its mask is for 3"):
        attend(layer, *torch.zeros(3, 1, 2, 4, 16), placed)


def test_documents_in_a_row_have_no_horizon_of_their_own(registered):
    model = tiny_llama.model(rope_parameters=attention(DYNAMIC))
    with pytest.raises(ValueError, match="several documents in a row have one horizon only when it is declared"):
        model(ids(1), position_ids=torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]]), use_cache=False)


def test_encoder_decoders_and_compiled_models_are_refused(registered):
    config = transformers.BartConfig(
        vocab_size=99, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, attn_implementation="posenc:alibi",
    )  # fmt: skip
    with pytest.raises(ValueError, match="BartConfig is of a model that attends to an encoder too"):
        transformers.BartModel(config)(ids())
    model = tiny_llama.model(rope_parameters=attention("alibi"))
    with pytest.raises(Exception, match="cannot be compiled here; run the model as it is"):
        torch.compile(model, backend="eager", fullgraph=True)(ids())
    torch._dynamo.reset()


def test_a_misspelt_spec_is_refused_when_it_is_registered():
    with pytest.raises(ValueError, match="no encoding named 'alibby'"):
        posenc.register("alibby")


def test_a_model_that_names_its_attention_is_copied_and_trained_like_any_other(registered):
    model = tiny_llama.model(rope_parameters=attention("alibi"))
    twin = copy.deepcopy(model)
    model(ids(), labels=ids()).loss.backward()
    gradient = model.model.layers[0].self_attn.k_proj.weight.grad
    assert gradient is not None and math.isfinite(float(gradient.norm())) and float(gradient.norm()) > 0
    assert torch.equal(twin(ids()).logits, model(ids()).logits)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_config_that_names_a_schedule_of_ours_is_read_as_such(name, tmp_path: Path):
    schedule = SCHEDULES.read(SCHEDULES[name].example).with_trained_length(64)
    said = {"rope_type": f"posenc:{name}", **SHORT, **as_keys(schedule), "horizon": HORIZON}
    said = said if schedule.by_horizon else {key: value for key, value in said.items() if key != "horizon"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(tiny_llama.config(head_dim=6).to_dict() | {"rope_parameters": said}), encoding="utf-8")
    if schedule.by_horizon:
        with pytest.raises(CannotRead, match="all sequences are computed as if they were"):
            inspect(file)
        return
    spec = inspect(file).parts[0].layers[0].spec
    made = build(spec, posenc.Shape(dim=24, heads=4, head_dim=6, max_len=64))
    plain = [500.0 ** (-2 * k / 6) for k in range(3)]
    frequencies, temperature = schedule.formula(plain, base=500.0, width=6)
    got, multiplied = made.spectrum()
    close(got.flatten(), torch.tensor(frequencies, dtype=torch.float64), 1e-9)
    assert multiplied == pytest.approx(temperature, rel=1e-9)


def test_a_config_whose_attention_is_ours_says_so(tmp_path: Path):
    file = tmp_path / "config.json"
    said = tiny_llama.config().to_dict() | {"rope_parameters": attention("rotary + alibi")}
    file.write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(CannotRead, match=r"posenc:attention is no schedule; attention goes through rotary \+ alibi"):
        inspect(file)
