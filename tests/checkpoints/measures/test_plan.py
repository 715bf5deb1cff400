"""The plan of a run: what fits, what would help, how long it takes, and how it is said."""

import json
from dataclasses import replace
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
from posenc.checkpoints.measures import memory, plan
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


def needed(loaded: load.Loaded, length: int = LENGTHS[-1], **way: Any) -> int:
    how = Way(**way)
    model = load.hollow_model(type(loaded.model), loaded.config, load.dtype_of(how.dtype))
    return memory.of_pass(model, length, chunk=how.chunk, batch=how.batch, cache=how.cache).total + plan.BESIDE


def said_of(loaded: load.Loaded, room: int, **way: Any) -> str:
    found = plan.planned(loaded, LENGTHS, Way(**way), f"{room / 10**6:.6f}MB")
    assert found["memory"] == room and found["rows"][-1]["fits"] is (not found["advice"])
    return found["advice"]


def test_a_config_alone_is_enough(folder: Path) -> None:
    for path in (folder, folder / "config.json"):
        found = load.without_weights(path, dtype="bfloat16")
        assert all(one.is_meta and one.dtype == torch.bfloat16 for one in found.model.parameters())
        assert type(found.model).__name__ == "LlamaForCausalLM" and found.tokenizer is None


def test_the_fewest_changes_that_make_it_fit_are_named(loaded: load.Loaded) -> None:
    assert said_of(loaded, needed(loaded)) == ""
    assert said_of(loaded, needed(loaded) - 1).startswith("With --chunk 256 4,000 tokens take ")
    assert "With --batch 1 4,000" in said_of(loaded, needed(loaded, batch=8) - 1, batch=8)
    both = said_of(loaded, needed(loaded, dtype="bfloat16", chunk=64))
    assert both.startswith("With --dtype bfloat16 --chunk 64 4,000")


def test_keys_elsewhere_are_told_with_the_memory_that_they_take_there(loaded: load.Loaded) -> None:
    deep = load.hollow_model(type(loaded.model), tiny_llama.config(num_hidden_layers=5))
    five = replace(loaded, model=deep, config=deep.config)
    way = {"dtype": "bfloat16", "chunk": 64, "device": "cuda"}
    words = said_of(five, needed(five, **way, cache="cpu"), **way)
    # 3,999 tokens of five layers, keys and values of 16 channels, 2 bytes each.
    assert words.startswith("With --cache cpu 4,000 tokens take ")
    assert words.endswith("; the machine holds 1.2 MiB of keys.")


def test_what_cannot_be_made_to_fit_says_so(loaded: load.Loaded) -> None:
    least = needed(loaded, dtype="bfloat16", chunk=64)
    words = said_of(loaded, least - 1)
    assert "No dtype, chunk, batch or cache makes 4,000 tokens fit" in words and "a smaller --factor" in words
    spread = said_of(loaded, least - 1, device="cuda")
    assert "--dtype bfloat16 --device auto --chunk 64 keeps weights that do not fit" in spread


def test_what_does_not_run_on_shapes_has_no_plan_and_says_why(loaded: load.Loaded, monkeypatch) -> None:
    def refuses(*given: Any, **options: Any) -> None:
        raise NotImplementedError("item() of a tensor without numbers")

    monkeypatch.setattr(plan, "of_pass", refuses)
    found = plan.planned(loaded, LENGTHS, Way(), None)
    (words,) = plan.sentences(found)
    assert words.startswith("There is no plan of memory: LlamaForCausalLM does not run on shapes alone: ")
    assert "item()" in words and plan.table(found)[1] == []


def test_a_text_takes_the_time_of_a_chunk_by_counted_work(loaded: load.Loaded, monkeypatch) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(plan.time, "perf_counter", lambda: next(clock))
    model = tiny_llama.model()
    found = plan.timed(plan.planned(loaded, LENGTHS, Way(chunk=50), "2GB"), model, torch.arange(96))
    work = plan.Work.of(model)
    assert found["chunk"] == {"tokens": 50, "seconds": 2.0}
    last = found["rows"][-1]
    assert last["seconds"] == pytest.approx(2.0 * work.total(4000) / work.total(50))
    assert last["late"] == pytest.approx(2.0 * (work.total(4000) - work.total(3950)) / work.total(50))
    assert "A chunk of 50 took 2 s; " in plan.sentences(found)[1]


def test_where_a_device_is_full_it_is_said_what_would_help(loaded: load.Loaded) -> None:
    with pytest.raises(
        RuntimeError, match=r"yarn at 96: the device has no memory left .*Finished passes are kept. Take"
    ):
        with plan.within_memory("yarn at 96", None):
            raise torch.OutOfMemoryError("out of memory")


def test_from_the_command_line_a_plan_runs_nothing(folder: Path, tmp_path: Path, capsys) -> None:
    asked = ["extend", str(folder), "--plan", "--out", str(tmp_path / "out")]
    # The card need not be there.
    assert cli.main([*asked, "--memory", "24GB", "--device", "cuda", "--dtype", "bfloat16"]) == 0
    words = capsys.readouterr().out
    assert "By plan 192 tokens take" in words and "it fits" in words and "computed from the config alone" in words
    assert cli.main([*asked, "--memory", "1GB", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["length"] for row in found["rows"]] == [96, 144, 192] and found["chunk"] is None
    assert not (tmp_path / "out").exists()


def test_a_plan_refuses_what_would_change_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--text would change nothing in a plan; leave it out"):
        module.foreseen(Settings(str(folder), 2.0, text=("a.txt",)))
    from transformers import ViTConfig

    ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, architectures=["ViTModel"]).save_pretrained(
        tmp_path
    )
    with pytest.raises(ValueError, match="plans are made for decoders, and ViTModel is none; leave out --plan"):
        module.foreseen(Settings(str(tmp_path), 2.0))
