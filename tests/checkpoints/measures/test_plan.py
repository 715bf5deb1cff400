"""The plan of a run: what fits, what would take less, and how it is said."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_llama
import torch

from posenc import cli
from posenc.checkpoints.extension import extend as module
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats import load
from posenc.checkpoints.measures import plan
from posenc.checkpoints.measures.plan import Way

LENGTHS = (96, 4000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config and nothing else."""
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny_llama.config(architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> load.Loaded:
    return load.without_weights(folder)


def test_a_config_alone_is_enough(folder: Path) -> None:
    for path in (folder, folder / "config.json"):
        found = load.without_weights(path, dtype="bfloat16")
        assert all(one.is_meta and one.dtype == torch.bfloat16 for one in found.model.parameters())
        assert type(found.model).__name__ == "LlamaForCausalLM" and found.tokenizer is None


def test_what_fits_leaves_room_for_what_is_not_counted(loaded: load.Loaded) -> None:
    total = plan.planned(loaded, LENGTHS, Way(), None)["rows"][-1]["total"]
    for more, fits in ((0, True), (-1, False)):
        found = plan.planned(loaded, LENGTHS, Way(), f"{(total + plan.BESIDE + more) / 10**6:.6f}MB")
        assert found["rows"][-1]["fits"] is fits and bool(found["advice"]) is not fits
        assert plan.table(found)[1][-1][-1] == ("yes" if fits else "no")


def test_what_takes_less_names_the_options_that_are_left() -> None:
    assert plan.smaller(Way()) == "Less is taken by --dtype bfloat16, a smaller --chunk, a smaller --factor."
    assert plan.smaller(Way("bfloat16", "cuda", batch=4)) == (
        "Less is taken by --batch 1, a smaller --chunk, --cache cpu, --device auto, a smaller --factor."
    )
    assert (
        plan.smaller(Way("bfloat16", "auto", cache="cpu")) == "Less is taken by a smaller --chunk, a smaller --factor."
    )


def test_where_a_device_is_full_it_is_said_what_would_help(loaded: load.Loaded) -> None:
    words = (
        r"yarn at 96: the device has no memory left .*Finished passes are kept. Less is taken by --dtype .*expandable"
    )
    with pytest.raises(RuntimeError, match=words):
        with plan.within_memory("yarn at 96", plan.planned(loaded, LENGTHS, Way(), None)):
            raise torch.OutOfMemoryError("out of memory")


def test_from_the_command_line_a_plan_runs_nothing(folder: Path, tmp_path: Path, capsys) -> None:
    asked = ["extend", str(folder), "--plan", "--out", str(tmp_path / "out")]
    # The card need not be there.
    assert cli.main([*asked, "--memory", "24GB", "--device", "cuda", "--dtype", "bfloat16"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "By plan 192 tokens take" in words and "it fits" in words and "within 25 % or 500 MiB" in words
    assert cli.main([*asked, "--memory", "1GB", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["length"] for row in found["rows"]] == [96, 144, 192] and "--dtype bfloat16" in found["advice"]
    assert not (tmp_path / "out").exists()


def test_layers_that_keep_a_state_are_told(tmp_path: Path) -> None:
    from transformers import Qwen3NextConfig

    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 2}
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64}
    Qwen3NextConfig(**sizes, **layers, architectures=["Qwen3NextForCausalLM"]).save_pretrained(tmp_path)
    found = plan.planned(load.without_weights(tmp_path), (100,), Way(), None)
    assert "what layers work in and the states of 1 layers" in plan.sentences(found)[1]


def test_scores_that_a_kernel_makes_are_told() -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(tiny_llama.config(attn_implementation="eager"))
    found = plan.planned(load.Loaded(model, None, model.config, Path()), (4096,), Way(batch=2), None)
    # Two texts, two heads, 1,024 queries, 4,096 keys, 4 bytes each.
    assert "and the scores that its attention makes (64.0 MiB and more at 4,096 tokens)" in plan.sentences(found)[1]


def test_encoders_have_plans_too(tmp_path: Path) -> None:
    from transformers import BertConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    BertConfig(**sizes, architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    found = module.foreseen(Settings(str(tmp_path), 2.0))
    assert [row["length"] for row in found["rows"]] == [512, 768, 1024] and found["rows"][-1]["cache"] == 0


def test_of_a_model_that_extend_refuses_lengths_have_a_plan(tmp_path: Path) -> None:
    from transformers import T5Config

    sizes = {"d_model": 32, "d_kv": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "vocab_size": 64}
    T5Config(**sizes, architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="extend takes a decoder that predicts text by itself, and 't5' is an encoder"):
        module.foreseen(Settings(str(tmp_path), 2.0))
    found = module.foreseen(Settings(str(tmp_path), 2.0, lengths=(512, 128)))
    # Of each token, and of as many encoded ones, in two layers: keys and values of two heads, in float32.
    assert [row["cache"] for row in found["rows"]] == [2 * length * 2 * 2 * 2 * 16 * 4 for length in (128, 512)]
    assert plan.sentences(found)[-1].startswith("It is no plan of a run, which is refused: ")


def test_a_plan_refuses_what_would_change_nothing(folder: Path) -> None:
    with pytest.raises(ValueError, match="--text would change nothing in a plan; leave it out"):
        module.foreseen(Settings(str(folder), 2.0, text=("a.txt",)))
