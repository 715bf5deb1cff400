"""What transformers makes of a config, compared with a plan: each difference names the layer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.inspection import served_layers

pytest.importorskip("transformers")

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.models import nodes
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Reading

CONFIG = {
    "model_type": "mistral",
    **{"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 64},
    **{"intermediate_size": 16, "vocab_size": 32, "max_position_embeddings": 8192, "rope_theta": 1e4},
    **{"sliding_window": None},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def plan_of(*layers: Layer) -> Reading:
    reading = configs.read(CONFIG)
    return replace(reading, parts=(replace(reading.parts[0], layers=layers),))


@pytest.mark.parametrize(
    ("config", "layers", "sentence"),
    [
        (
            CONFIG | {"rope_theta": 1e5},
            ["rotary"] * 2,
            "layer 0 rotary and rotary(base=100000)",
        ),
        (CONFIG, ["rotary(partial=0.5)"] * 2, "layer 0 rotary(partial=0.5) and rotary"),
        (
            CONFIG | {"rope_scaling": YARN | {"attention_factor": 1.0}},
            ["rotary(schedule=yarn(factor=4, trained_length=2048))"] * 2,
            "trained_length=2048, attention_factor=1",
        ),
        (
            CONFIG,
            ["rotary", "rotary(base=20000)"],
            "layer 1 rotary(base=20000) and rotary",
        ),
        (
            CONFIG | {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
            ["rotary(schedule=dynamic_ntk(factor=2, trained_length=8192))"] * 2,
            "and rotary(schedule=dynamic_ntk(factor=3",
        ),
        (CONFIG | {"sliding_window": 16}, ["rotary"] * 2, "layer 0 window None and 16"),
        (CONFIG | {"rope_scaling": {"rope_type": "magic"}}, ["rotary"] * 2, "there is no schedule magic here"),
    ],
)
def test_what_is_served_and_not_planned_is_told(config: dict[str, Any], layers: list[str], sentence: str) -> None:
    sentences = served_layers.served_differences(config, plan_of(*(Layer(spec, 64) for spec in layers)))
    assert any(sentence in words for words in sentences), sentences


def test_a_model_that_cannot_be_built_is_held_by_its_keys(monkeypatch) -> None:
    def unbuildable(config: Any) -> Any:
        raise CannotRead("transformers cannot build it")

    plan = plan_of(*[Layer("rotary", 64)] * 2)
    huggingface.read_json_text.cache_clear()
    monkeypatch.setattr(nodes, "skeleton", unbuildable)
    lines = served_layers.served_differences(CONFIG, plan)
    assert any("transformers cannot build it; what is said of it rests on the keys alone" in line for line in lines)
    same_plan = replace(plan, not_covered=huggingface.read(CONFIG).not_covered)
    assert served_layers.served_differences(CONFIG, same_plan) == []
    lines = served_layers.served_differences(CONFIG | {"rope_theta": 5.0}, same_plan)
    assert lines[0] == "planned and served: layer 0 rotary and rotary(base=5)"
    huggingface.read_json_text.cache_clear()


def test_modules_that_hand_out_other_numbers_than_the_keys_are_not_what_was_planned(monkeypatch) -> None:
    from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

    def far(self: Any, x: Any, position_ids: Any) -> Any:
        return forward(self, x, position_ids + (position_ids > 100))

    forward, plan = MistralRotaryEmbedding.forward, plan_of(*[Layer("rotary", 64)] * 2)
    huggingface.read_json_text.cache_clear()
    monkeypatch.setattr(MistralRotaryEmbedding, "forward", far)
    lines = served_layers.served_differences(CONFIG, plan)
    huggingface.read_json_text.cache_clear()
    assert len(lines) == 1 and "rotary_emb.inv_freq (MistralRotaryEmbedding) hands out other numbers" in lines[0]
    assert "at position 129" in lines[0]


def test_a_tower_whose_module_holds_the_frequencies_of_one_axis_is_held_by_what_it_is_read_as() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    tower = {"model_type": "video_llama_3_vision", "patch_size": 14, **sizes}
    plan = configs.read(tower)
    assert plan.parts[0].layers[0].spec != "none" and served_layers.served_differences(tower, plan) == []


def test_a_plan_that_is_served_has_nothing_told_and_a_folder_is_held_to_it(tmp_path: Path) -> None:
    plan = plan_of(*[Layer("rotary", 64)] * 2)
    assert served_layers.served_differences(CONFIG, plan) == []
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    served_layers.check_written(tmp_path, plan)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"rope_scaling": YARN}))
    with pytest.raises(RuntimeError, match=r"says something else than planned: .*layer 0 rotary and rotary.*yarn"):
        served_layers.check_written(tmp_path, plan)
