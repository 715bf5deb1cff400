"""Readings of random configs, compared layer by layer with the rotary (RoPE) that transformers runs."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiers import rest_slow

from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 16}
ONE_KV_HEAD = {"num_key_value_heads": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 32, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
KINDS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": ONE_KV_HEAD,
    "mistral": ONE_KV_HEAD | {"head_dim": 16},
    "qwen2": ONE_KV_HEAD,
    "qwen3": ONE_KV_HEAD | {"head_dim": 48},
    "phi3": ONE_KV_HEAD | {"pad_token_id": 0},
    "phi": {},
    "stablelm": ONE_KV_HEAD,
    "gpt_neox": {},
    "glm": ONE_KV_HEAD | {"head_dim": 32, "pad_token_id": 0},
    "nemotron": ONE_KV_HEAD,
    "cohere": ONE_KV_HEAD,
    "persimmon": {},
    "gpt_oss": ONE_KV_HEAD | KINDS | {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1},
    "olmo3": ONE_KV_HEAD | KINDS | {"pad_token_id": 0},
    "gemma3_text": ONE_KV_HEAD | KINDS | {"head_dim": 32},
    "modernbert": {"layer_types": KINDS["layer_types"], "pad_token_id": 0, "cls_token_id": 0, "sep_token_id": 0},
    "deepseek_v3": LATENT | EXPERTS | {"num_key_value_heads": 2, "moe_intermediate_size": 8},
}
"""Architectures with rotary in the whole head, in a share of it, by layer type, or in latent attention."""

PARTIAL = ("phi3", "phi", "stablelm", "gpt_neox", "glm", "nemotron", "persimmon")
"""Architectures that can rotate a share of each head."""

ROPE_BY_LAYER = ("gemma3_text", "modernbert")


def schedule(random: random.Random, kind: str, pairs: int) -> dict[str, Any]:
    """Return random parameters of a schedule; optional ones may be missing, None, or zero."""

    def maybe(chance: float, *values: Any) -> Any:
        return random.choice(values) if random.random() < chance else ...

    rope: dict[str, Any] = {}
    if kind != "default":
        rope["factor"] = maybe(1.0, 1, 2.0, 4, 7.5)
    if kind == "yarn":
        rope |= {"beta_fast": maybe(0.4, 16, 48.0, None, 0), "beta_slow": maybe(0.4, 2, 0.5, None, 0)}
        rope |= {"mscale": maybe(0.3, 1.0, 0.7, 0, None), "mscale_all_dim": maybe(0.3, 1.0, 0.5, 0, None)}
        rope |= {"attention_factor": maybe(0.3, 1.5, None, 0.5), "truncate": maybe(0.3, True, False)}
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            rope[name] = [round(random.uniform(1, 9), 2) for _ in range(pairs)]
        rope |= {"attention_factor": maybe(0.3, 1.5, None), "factor": maybe(0.6, 2.0, 4, None)}
    if kind == "llama3":
        rope |= {"low_freq_factor": random.choice((1, 0.5, 2.0)), "high_freq_factor": random.choice((4, 8.0))}
    return {name: value for name, value in rope.items() if value is not ...}


def config_of(seed: int) -> dict[str, Any]:
    """Return a random configuration: an architecture and a schedule, with keys in places where files have them."""
    rng = random.Random(seed)
    model_type = rng.choice(list(ARCHITECTURES))
    config = {"model_type": model_type, **SIZES, **copy.deepcopy(ARCHITECTURES[model_type])}
    config["max_position_embeddings"] = rng.choice((64, 256, 4096))
    share = rng.choice((0.5, 0.25)) if rng.random() < (0.6 if model_type in PARTIAL else 0.1) else None
    head_dim = config.get("qk_rope_head_dim") or config.get("head_dim") or 32
    usual = {"phi": 0.5, "stablelm": 0.25, "gpt_neox": 0.25, "glm": 0.5, "nemotron": 0.5, "persimmon": 0.5}
    rope: dict[str, Any] = {}
    place = rng.choice(("inside", "outside", "both", "differing", "nowhere"))
    if place != "nowhere":
        put(config, rope, place, "rope_theta", rng.choice((500.0, 1e6, 10_000)), rng.choice((77.0, 20_000)))
    place = rng.choice(("inside", "outside", "both", "differing"))
    if share is not None:
        put(config, rope, place, "partial_rotary_factor", share, 0.75 - share)
    width = int(head_dim * (rope.get("partial_rotary_factor", share) or usual.get(model_type, 1)))
    kind = rng.choice(("default", "linear", "dynamic", "yarn", "longrope", "llama3"))
    rope |= schedule(rng, kind, width // 2)
    place = rng.choice(("inside", "outside", "both", "differing", "nowhere"))
    if place != "nowhere" and (kind != "default" or rng.random() < 0.2):
        put(config, rope, place, "original_max_position_embeddings", rng.choice((16, 32, 100)), rng.choice((48, 64)))
    if kind != "default" or rng.random() < 0.7:
        for name in rng.choice((("type",), ("rope_type",), ("rope_type", "type"))):
            rope[name] = kind
    key = rng.choice(("rope_scaling", "rope_parameters"))
    if model_type in ROPE_BY_LAYER and rng.random() < 0.6:
        plain = {"rope_type": "default", "rope_theta": 300.0}
        first, second = rng.sample((rope, plain), 2)
        config["rope_parameters"] = {"full_attention": first, "sliding_attention": second}
    else:
        config[key] = rope or None
    return config


def put(config: dict[str, Any], rope: dict[str, Any], place: str, key: str, value: Any, second_value: Any) -> None:
    """Put a key into the dictionary of rotary, beside it, or into both, equal or not."""
    if place != "outside":
        rope[key] = value
    if place != "inside":
        config[key] = second_value if place == "differing" else value


def as_it_runs(config: dict[str, Any], tokens: int) -> list[tuple[torch.Tensor, float]]:
    """Return the frequencies (radians per position, fastest first) and temperature of transformers' layers."""
    torch.manual_seed(0)
    hf_config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[config["model_type"]].from_dict(
        copy.deepcopy(config)
    )
    hf_config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(hf_config).eval()
    turns: dict[int, tuple[torch.Tensor, float]] = {}

    def record(module: Any, args: Any, kwargs: Any) -> None:
        cos, sin = (x.double() for x in kwargs["position_embeddings"])
        warm = float((cos[0, 1] ** 2 + sin[0, 1] ** 2).sqrt().mean())
        angles = torch.atan2(sin[0, 1], cos[0, 1]).sort(descending=True).values
        # Some modules return each angle twice, once for each channel of its pair.
        twice = angles.numel() % 2 == 0 and torch.equal(angles[::2], angles[1::2])
        turns[module.layer_idx] = (angles[::2] if twice else angles, warm)

    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int) and type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(record, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=torch.ones(1, tokens, dtype=torch.long))
    return [turns[layer] for layer in sorted(turns)]


def differences(reading: Reading, config: dict[str, Any]) -> Iterator[str]:
    """Yield differences of frequencies and temperatures between reading and modules, at two lengths."""
    (part,) = reading.parts
    for tokens in (4, 60):
        ran = as_it_runs(config, tokens)
        if len(ran) != len(part.layers):
            yield f"{len(ran)} layers ran, and {len(part.layers)} were read"
        for layer, (frequencies, warm) in enumerate(ran):
            encoding: Any = part.encoding(layer)
            if not hasattr(encoding, "spectrum"):
                yield f"layer {layer}: {encoding}"
                continue
            length = torch.tensor([tokens])
            freqs, temperature = encoding.spectrum(length) if encoding.turns_when_attending else encoding.spectrum()
            freqs = freqs.flatten().double().sort(descending=True).values
            if freqs.shape != frequencies.shape or not torch.allclose(freqs, frequencies, rtol=1e-4, atol=1e-9):
                yield f"{tokens} tokens, layer {layer}: {part.layers[layer].spec} turns by {freqs}, not {frequencies}"
            if abs(float(torch.as_tensor(temperature).flatten()[0]) - warm) > 1e-5 * warm:
                yield f"{tokens} tokens, layer {layer}: {part.layers[layer].spec} has {temperature}, not {warm}"


def outcome(config: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome of a configuration, and why.

    "equal"    the reading rotates as the modules do
    "said"     it does not, or the modules cannot be run, and the reading reports something
    "refused"  it is not read, and transformers builds and runs it; "neither" where transformers does not either
    "silent"   it differs from the modules, and reports nothing
    """
    try:
        reading = configs.read(config)
    except CannotRead as error:
        try:
            as_it_runs(config, 4)
        except Exception:
            return "neither", str(error)
        return "refused", str(error)
    words = [*reading.contradictions, *map(str, reading.unknown), *reading.not_covered]
    try:
        fault = next(differences(reading, config), "")
    except Exception as error:
        return ("said" if reading.not_covered else "silent"), f"it cannot be run ({error!r:.200}), and is read: {words}"
    if not fault:
        return "equal", ""
    return ("said" if words else "silent"), f"{fault}; {words}"


def check_configs(seeds: range, share: float) -> None:
    """No difference is silent, and a `share` of the configurations has none."""
    outcomes = {seed: outcome(config_of(seed)) for seed in seeds}
    silent = {seed: why for seed, (verdict, why) in outcomes.items() if verdict == "silent"}
    assert not silent
    unequal = {seed: reason for seed, reason in outcomes.items() if reason[0] != "equal"}
    assert len(unequal) <= (1 - share) * len(seeds), unequal


@pytest.mark.slow
def test_random_configs_turn_as_their_modules_do() -> None:
    check_configs(range(40), 0.8)


@pytest.mark.slow
def test_many_random_configs_turn_as_their_modules_do() -> None:
    check_configs(range(40, 500), 0.8)


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("rope_keys", [{}, {"original_max_position_embeddings": 4}], ids=["outside", "both"])
@pytest.mark.parametrize("rope", [LLAMA3, {"rope_type": "yarn", "factor": 4.0}], ids=["llama3", "yarn"])
@pytest.mark.parametrize("model_type", rest_slow(["llama", "stablelm", "cohere", "deepseek_v3"], 1))
def test_the_trained_length_beside_the_dictionary_goes_before_the_one_inside(model_type, rope, rope_keys) -> None:
    config = {"model_type": model_type, **SIZES, **ARCHITECTURES[model_type], "max_position_embeddings": 4096}
    config |= {"rope_theta": 500.0, "original_max_position_embeddings": 32, "rope_scaling": rope | rope_keys}
    assert outcome(config) == ("equal", "")


def test_it_does_so_for_an_architecture_that_transformers_does_not_know() -> None:
    config = SIZES | {"model_type": "nonesuch", "max_position_embeddings": 4096, "original_max_position_embeddings": 32}
    reading = configs.read(config | {"rope_scaling": LLAMA3})
    assert "trained_length=32" in reading.parts[0].layers[0].spec
    # Dictionaries for layer types have their own.
    rope = {"full_attention": LLAMA3 | {"original_max_position_embeddings": 64}}
    reading = configs.read(config | {"rope_parameters": rope, "layer_types": ["full_attention"] * 2})
    assert "trained_length=64" in reading.parts[0].layers[0].spec


def test_a_share_that_the_modules_do_not_ask_for_is_contradicted() -> None:
    """Llama's plain rotary rotates the whole head, whatever partial_rotary_factor is; its schedules use it."""
    reading = configs.read({"model_type": "llama", **SIZES, "partial_rotary_factor": 0.5})
    assert reading.parts[0].layers[0].spec == "rotary"
    assert reading.contradictions == (
        "the keys say that 16 of 32 channels of a head turn, and in the modules 32 do; followed: the modules",
    )


def test_heads_of_another_width_in_some_layers_contradict_nothing() -> None:
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    config = SIZES | ONE_KV_HEAD | KINDS | {"head_dim": 16, "global_head_dim": 32, "rope_parameters": rope}
    config |= {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 16}
    # The last layer of such a model has no window.
    config |= {"layer_types": ["sliding_attention", "full_attention"]}
    reading = configs.read({"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], **config})
    assert not reading.contradictions and not reading.not_covered
    layers = [(layer.spec, layer.head_dim) for layer in reading.parts[0].layers]
    assert layers == [("rotary", 16), ("proportional_rotary(base=1000000)", 32)]
    # Layers with shared keys get a view of the mask.
    config |= {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    with_shared_keys = configs.read({"model_type": "gemma4_text", **config, "num_kv_shared_layers": 2})
    assert not with_shared_keys.contradictions and not with_shared_keys.not_covered
    assert [(at.spec, at.head_dim) for at in with_shared_keys.parts[0].layers] == layers * 2
    assert [(at.window, at.scale) for at in with_shared_keys.parts[0].layers] == [(8, 1.0), (None, 1.0)] * 2


def test_lists_of_longrope_are_held_to_the_share_that_the_architecture_turns() -> None:
    rope = {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.5] * 4, "long_factor": [2.5] * 4}
    config = {"model_type": "gpt_neox", **SIZES, "max_position_embeddings": 64, "rope_theta": 500.0}
    # Without a key a quarter of 32 channels rotates.
    assert outcome(config | {"rope_scaling": rope}) == ("equal", "")
