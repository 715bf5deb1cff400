"""Published configs, converted and extended: what transformers 5 and 4 make of them.

Version 4 is tested if the environment variable POSENC_TRANSFORMERS_4 names a Python that has it.
"""

import os
import sys
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from published_configs import LATENT, MOE, PUBLISHED_CONFIGS, installed_rotaries, small
from tiers import rest_slow

from posenc.checkpoints.extension import methods
from posenc.checkpoints.formats.config_json import contradictions_of, with_positions
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.inspection.served_layers import served_differences
from posenc.checkpoints.kinds.rotary.old_keys import OLD, old_key_notes, with_old_keys
from posenc.checkpoints.vocabulary.reading import Part
from posenc.checkpoints.vocabulary.specs import encodings_by_layer

METHODS = {
    **{"Llama 3.1": "llama3", "Llama 3.2": "llama3", "Qwen2.5 with YaRN": "yarn", "gpt-oss": "yarn"},
    **{"Gemma 3": "linear", "SmolLM3": "yarn", "Mistral 0.3": "dynamic", "Qwen2-VL": "yarn", "Qwen3-VL": "yarn"},
    **{"Pythia": "yarn", "Falcon": "linear", "Phi-2": "ntk", "OLMo 3": "yarn"},
}
"""The method that stretches each; the others are only converted."""


def convert_config(name: str) -> tuple[dict[str, Any], Part]:
    reading = configs.read(PUBLISHED_CONFIGS[name])
    part = next(part for part in reading.parts if any("rotary" in layer.spec for layer in part.layers[:1]))
    return with_positions(PUBLISHED_CONFIGS[name], part), part


def extend_config(name: str) -> tuple[dict[str, Any], Part]:
    reading = configs.read(PUBLISHED_CONFIGS[name])
    method = methods.plan_methods(reading, PUBLISHED_CONFIGS[name], 2.0, [METHODS[name]]).methods[-1]
    assert method.config is not None and method.planned_reading is not None, method.why_not
    return method.config, methods.causal_part(method.planned_reading, method.config)


CONFIGS = {name: (convert_config, name) for name in PUBLISHED_CONFIGS} | {
    f"{name}, {method}": (extend_config, name) for name, method in METHODS.items()
}


FIRST = ["Llama 3.1", "Phi-3", "Qwen3-VL", "Pythia", "Gemma 3, linear", "gpt-oss, yarn", "OLMo 3, yarn"]


@cache
def written_config(words: str) -> tuple[dict[str, Any], Part]:
    make, name = CONFIGS[words]
    return make(name)


@pytest.fixture(scope="module", params=("installed", "POSENC_TRANSFORMERS_4"))
def both_rotaries(request, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Return the rotaries that a transformers makes of every config, in a separate process."""
    python = sys.executable if request.param == "installed" else os.environ.get(request.param)
    if not python:
        pytest.skip(f"{request.param} names no Python with transformers 4")
    configs, parts = zip(*map(written_config, CONFIGS), strict=True)
    folder = tmp_path_factory.mktemp("written")
    tables = installed_rotaries(python, folder, configs, [lengths_of(part) for part in parts])
    return dict(zip(CONFIGS, tables, strict=True))


def lengths_of(part: Part) -> list[int]:
    longest = part.shape.max_len
    return [1, longest, 2 * longest]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_both_transformers_serve_what_is_written(name: str, both_rotaries) -> None:
    part = written_config(name)[1]
    assert "error" not in both_rotaries[name], both_rotaries[name]
    for index, encodings in enumerate(encodings_by_layer(part)):
        rotary: Any = next((encoding for encoding in encodings.values() if hasattr(encoding, "schedule")), None)
        if rotary is None:
            continue
        for length in lengths_of(part):
            at = both_rotaries[name][str(length)][index]
            freqs, warm = rotary.spectrum(torch.tensor([length])) if rotary.turns_when_attending else rotary.spectrum()
            frequencies = torch.tensor(at["frequencies"], dtype=torch.float64).sort(descending=True).values
            torch.testing.assert_close(freqs.flatten().sort(descending=True).values, frequencies, rtol=1e-5, atol=0)
            assert float(torch.as_tensor(warm).flatten()[0]) == pytest.approx(at["temperature"], rel=1e-5)


ONLY_IN_5 = {
    # The share counts the channels of a head that turn, in latent attention.
    "Mistral 4": small(
        *("mistral4", 64, 1048576),
        **{"head_dim": 128, "rope_interleave": True, "n_shared_experts": 1, "first_k_dense_replace": 2},
        **LATENT | {"qk_nope_head_dim": 64},
        **MOE,
        rope_parameters={"type": "yarn", "factor": 128.0, "original_max_position_embeddings": 8192}
        | {"mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        | {"beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1},
    ),
    # Some layers have no rotary, and a key for that.
    "Beam": small(
        *("beam", 64, 8192),
        **{"head_dim": 64, "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]},
        rope_parameters={"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    ),
}


@pytest.mark.parametrize("name", ONLY_IN_5)
def test_what_only_transformers_5_knows_is_written_so_that_it_serves_it(name: str) -> None:
    reading = configs.read(ONLY_IN_5[name])
    new_config = with_positions(ONLY_IN_5[name], reading.parts[0])
    assert new_config["rope_theta"] == 1e4 and served_differences(new_config, reading) == []


CHANGED_KEYS = {"rope_parameters", "head_dim", "max_position_embeddings", "original_max_position_embeddings"}


@pytest.mark.parametrize("name", rest_slow([*FIRST, *(name for name in CONFIGS if name not in FIRST)], len(FIRST)))
def test_no_key_contradicts_another_and_all_else_stays(name: str) -> None:
    config, source = written_config(name)[0], PUBLISHED_CONFIGS[CONFIGS[name][1]]
    assert not list(old_key_notes(config))
    # Authors may choose a factor other than the ratio of the two lengths.
    assert [words for words in contradictions_of(config) if "followed: factor" not in words] == []
    new, old = (keys.get("text_config", keys) for keys in (config, source))
    ropes = [rope for rope in new["rope_parameters"].values() if isinstance(rope, dict)]
    bases = {rope["rope_theta"] for rope in ropes or [new["rope_parameters"]]}
    assert {new[key] for key in OLD if "theta" in key or "base" in key if key in new} == bases
    left = CHANGED_KEYS | set(OLD)
    assert {key: value for key, value in new.items() if key not in left} == {
        key: value for key, value in old.items() if key not in left
    }
    assert list(old) == [key for key in new if key in old]


def test_layers_that_share_one_place_in_the_config_are_stretched_together() -> None:
    config, part = written_config("gpt-oss, yarn")
    assert [layer.window for layer in part.layers] == [128, None] and len({layer.spec for layer in part.layers}) == 1
    assert config["rope_scaling"]["factor"] == config["rope_parameters"]["factor"] == 64
    # Gemma 3 has separate keys for layers with a window, and they stay.
    assert written_config("Gemma 3, linear")[0]["rope_scaling"]["factor"] == 16
    assert written_config("Gemma 3, linear")[0]["rope_parameters"]["sliding_attention"]["rope_type"] == "default"


LINEAR, PLAIN = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}, {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("model_type", "rope", "old", "left"),
    [
        ("llama", LINEAR, {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ""),
        ("olmo2", LINEAR, {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, ""),
        ("gpt_neox", PLAIN | {"partial_rotary_factor": 0.5}, {"rotary_emb_base": 1e4, "rotary_pct": 0.5}, ""),
        (
            "nemotron",
            LINEAR,
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "passes over",
        ),
        ("olmo2", LINEAR | {"rope_type": "yarn"}, {"rope_theta": 5e5}, "refuses or passes over"),
        ("phi3", LINEAR, {"rope_theta": 5e5}, "refuses or passes over"),
        ("llama4_text", LINEAR, {"rope_theta": 5e5}, "refuses or passes over"),
        ("gemma4_text", LINEAR | {"rope_type": "proportional"}, {"rope_theta": 5e5}, "refuses or passes over"),
        ("llama", {"full_attention": LINEAR, "sliding_attention": PLAIN}, {}, "they were left out"),
        ("gemma3_text", {"full_attention": PLAIN, "sliding_attention": LINEAR}, {}, "they were left out"),
        ("olmo3", {"full_attention": LINEAR, "sliding_attention": PLAIN}, {}, "they were left out"),
        ("llama", {"full_attention": PLAIN, "sliding_attention": PLAIN}, {"rope_theta": 1e4}, ""),
        ("llama", {"rope_type": "linear", "factor": 2.0}, {"rope_theta": 3.0, "rope_scaling": None}, ""),
    ],
)
def test_what_older_keys_have_no_words_for_is_told(model_type: str, rope: Any, old: dict[str, Any], left: str) -> None:
    config = {"model_type": model_type, "rope_theta": 3.0, "rope_scaling": None, "rope_parameters": rope, "other": 1}
    new_config = with_old_keys(config)
    assert {key: value for key, value in new_config.items() if key in OLD}.items() >= old.items()
    assert new_config["other"] == 1 and (old or not {*new_config} & {*OLD})
    sentences = list(old_key_notes({"text_config": new_config}))
    assert [left in sentence for sentence in sentences] == ([True] if left else [])
    if left:
        assert sentences[0].startswith("Only programs that know text_config.rope_parameters read this rightly: the old")
