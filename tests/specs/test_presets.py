"""Presets of released model families agree with transformers' configurations."""

import importlib

import pytest
import torch

from posenc import Decoder, Encoder, EncoderDecoder
from posenc.specs.presets import PRESETS, preset


@pytest.mark.parametrize("family", PRESETS)
def test_a_model_of_each_family_runs_and_decodes_through_a_cache(family: str) -> None:
    family_preset = preset(family)
    options = {"vocab": 7, "dim": 32, "heads": 2, "layers": 6, "max_len": 64, **family_preset}
    ids = torch.randint(7, (2, 9))
    if family_preset.model == "encoder":
        assert Encoder(**options)(ids).isfinite().all()
        return
    if family_preset.model == "encoder-decoder":
        assert EncoderDecoder(**options)(ids, ids).isfinite().all()
    model = Decoder(**options).double().eval()
    at_once, cache = model(ids), model.cache()
    in_pieces = torch.cat([model(ids[:, :5], cache=cache), model(ids[:, 5:], cache=cache)], 1)
    torch.testing.assert_close(in_pieces, at_once)


def test_every_fourth_layer_of_smollm3_has_no_position() -> None:
    model = Decoder(7, dim=32, heads=2, layers=8, **preset("smollm3"))
    assert [type(encoding).__name__ for encoding in model.stack.encoding_of] == (["Rotary"] * 3 + ["NoPE"]) * 2


def test_the_one_family_of_encoders_is_known_and_what_transformers_does_not_say_names_its_source() -> None:
    assert [family for family, family_preset in PRESETS.items() if family_preset.model == "encoder"] == ["bert"]
    sources = {family: family_preset.source for family, family_preset in PRESETS.items()}
    assert "arXiv:1706.03762" in sources["original"] and "arXiv:2407.21783" in sources["llama3"]
    assert "Llama 3.1" in sources["llama3.1"] and "Llama 3.2" in sources["llama3.2"] and "Gemma 3" in sources["gemma3"]
    assert sources["cohere2"] == "defaults of the configuration in transformers 5.23"


def test_an_unknown_family_is_refused_with_what_is_near() -> None:
    with pytest.raises(ValueError, match=r"no preset for 'SmolLM-3'; did you mean 'smollm3'\?"):
        preset("SmolLM-3")


@pytest.mark.parametrize(
    "family, module, name",
    [
        ("llama4", "llama4", "Llama4TextConfig"),
        ("smollm3", "smollm3", "SmolLM3Config"),
        ("cohere2", "cohere2", "Cohere2Config"),
        ("exaone4", "exaone4", "Exaone4Config"),
        ("gemma3", "gemma3", "Gemma3TextConfig"),
        ("gemma4", "gemma4", "Gemma4TextConfig"),
        ("gpt_oss", "gpt_oss", "GptOssConfig"),
        ("inkling", "inkling", "InklingTextConfig"),
    ],
)
def test_the_cycle_of_layers_is_that_of_the_released_configuration(family: str, module: str, name: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")
    module_of_family = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
    config = getattr(module_of_family, name)()
    family_preset = preset(family)
    layers = config.num_hidden_layers
    for layer in range(layers - 1):
        kind = config.layer_types[layer]
        specs = family_preset.encoding if isinstance(family_preset.encoding, tuple) else (family_preset.encoding,)
        windows = family_preset.window if isinstance(family_preset.window, tuple) else (family_preset.window,)
        window, spec = windows[layer % len(windows)], specs[layer % len(specs)]
        full = kind in ("full_attention", "hybrid")
        assert (window is None) == (full or family in ("llama4", "smollm3"))
        if getattr(config, "no_rope_layers", None):
            assert spec.startswith("rotary") == bool(config.no_rope_layers[layer])
        if family in ("cohere2", "exaone4"):
            assert (spec == "none") == full
        if family == "gemma4":
            assert spec.startswith("proportional") == full
