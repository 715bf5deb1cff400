"""Rotary taken out of some layers: the model that comes out, and which models can say it."""

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.extension.recasting import recast, recast_config
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.live.attach import attach

TURNS = "rotary(base=500.0)"


def logits(model, length: int) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(length)[None] % 90).logits


def recast_as(name: str, layers: int) -> torch.nn.Module:
    model = tiny_llama.model(num_hidden_layers=layers, pad_token_id=None)
    loaded = Loaded(model, None, model.config, None)
    return recast(loaded, recast_config(name, loaded.said(), tiny_llama.TRAINED, 192)).model


@pytest.mark.parametrize(("name", "specs"), [("drope", "none"), ("swan", ("none", TURNS, TURNS, TURNS, "none"))])
def test_the_weights_are_the_same_and_some_layers_do_not_turn(name: str, specs) -> None:
    """What it computes is what posenc's own attention computes in the Llama, up to the window of SWAN."""
    found, model = recast_as(name, 5), tiny_llama.model(num_hidden_layers=5)
    plain = logits(model, 24)
    attach(model, specs)
    torch.testing.assert_close(logits(found, 24), logits(model, 24), rtol=0, atol=2e-5)
    assert (plain - logits(found, 24)).abs().max() > 1e-3
    further = (logits(found, 60) - logits(model, 60)).abs().amax(-1)[0]
    assert further[:24].max() < 2e-5 and (further[30:].min() > 1e-4 if name == "swan" else further.max() < 2e-5)


def test_what_does_not_turn_already_stays_so_in_swan() -> None:
    said = {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]}
    found = recast_config("swan", said, 8192, 16384)
    assert found["no_rope_layers"] == [1, 0, 1, 1] and found["sliding_window"] == 512
    assert found["layer_types"] == ["sliding_attention", "full_attention", *["sliding_attention"] * 2]
    assert found["pad_token_id"] == 128004 and recast_config("drope", said, 8192, 16384)["no_rope_layers"] == [0] * 4


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model_type": "gpt_neox"}, "as which a llama, a mistral, a smollm3 can be written, and this is a gpt_neox"),
        ({"model_type": "mistral", "sliding_window": 64}, "and this is a mistral with windows of its own"),
    ],
)
def test_a_model_that_no_config_can_say_is_refused(said, message: str) -> None:
    with pytest.raises(ValueError, match=f"drope takes rotary out of single layers.*{message}"):
        recast_config("drope", said, 96, 192)
