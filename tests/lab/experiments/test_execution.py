"""Execution of a run: each option has its effect, and none changes the training."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from forks import FORKS, ForkedCli

from posenc import catalogue
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.models import model_of, stacks_of
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import checkpoint, train
from posenc.lab.runs.single_run import train_run
from posenc.lab.runs.train import answer_loss, start, training_step
from posenc.lab.tasks import task_of

TINY = {"train_length": 3, "dim": 16, "heads": 2, "layers": 2, "batch": 4, "warmup": 2, "steps": 8, "evaluate_every": 2}
BOOK = "".join(f"line {i} of a book that counts its lines\n" for i in range(2000))


def tiny(spec: str = "rotary", task: str = "copy", **changes) -> Experiment:
    return recipe(task, spec, **(TINY | changes))


def train_into(folder: Path, messages: list[str], execution: Execution, task: str = "copy", **changes) -> train.Run:
    settings = TINY | changes
    return train_run("learned", task, 0, folder, None, messages.append, execution=execution, **settings)


def gradients(experiment: Experiment, execution: Execution) -> dict[str, torch.Tensor]:
    """The gradients of one batch, with an encoding whose parameters differ."""
    run = start(experiment, execution=execution)
    torch.manual_seed(0)
    with torch.no_grad():
        for stack in stacks_of(run.model):
            for parameter in stack.encodings.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    batch = run.task.batch(experiment.train_length, 3, torch.Generator().manual_seed(1))
    answer_loss(run.training_module, batch).backward()
    return {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}


def hold_to_the_same(spec: str, task: str = "copy") -> None:
    plain, again = (gradients(tiny(spec, task), Execution(activation_checkpointing=flag)) for flag in (False, True))
    assert plain.keys() == again.keys() and plain
    for name, slope in plain.items():
        torch.testing.assert_close(again[name], slope, rtol=1e-6, atol=1e-7, msg=f"{spec}, {name}")


@pytest.mark.parametrize("spec", ["learned_rotary + kerple", "shaw", "forgetting", "path"])
def test_activations_that_are_computed_again_give_the_same_gradients(spec: str) -> None:
    hold_to_the_same(spec)


def test_an_encoder_decoder_computes_both_of_its_stacks_again() -> None:
    hold_to_the_same("sinusoidal", "translation")


@pytest.mark.slow
def test_activations_that_are_computed_again_give_the_same_gradients_with_every_encoding() -> None:
    for spec in catalogue.names():
        if all(encoding.axes < 2 for encoding in stacks_of(model_of(tiny(spec), task_of("copy")))[0].encodings):
            hold_to_the_same(spec)


def test_activation_checkpointing_keeps_what_comes_into_blocks_alone() -> None:
    def saved_bytes(execution: Execution) -> int:
        """How many numbers the graph of a loss stores."""
        run, sizes = start(tiny(train_length=40, layers=4, dim=32), execution=execution), []
        batch = run.task.batch(40, 4, torch.Generator().manual_seed(0))
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
            answer_loss(run.training_module, batch)
        return sum(sizes)

    # Within a checkpointed block its own hooks take what is saved.
    assert saved_bytes(Execution(activation_checkpointing=True)) < saved_bytes(Execution()) / 4


def test_a_model_without_blocks_has_no_activations_to_compute_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self, vocab, encoding):\n"
        "        super().__init__()\n"
        "        self.table = torch.nn.Embedding(vocab, vocab)\n"
        "    def forward(self, ids, *, positions):\n"
        "        return self.table(ids)\n"
    )
    with pytest.raises(
        ValueError, match=r"^activation checkpointing is for the blocks of posenc's stacks, and mine\.py"
    ):
        start(tiny(model="mine.py:Mine"), execution=Execution(activation_checkpointing=True))


@pytest.mark.parametrize("clip", [0.0, 0.01, 1.0])
def test_gradients_longer_than_the_clip_are_shortened_to_it(clip: float) -> None:
    run = start(tiny(clip=clip))
    training_step(run)
    norm = float(torch.stack([p.grad.norm() for p in run.parameters if p.grad is not None]).norm())
    if clip:
        assert norm == pytest.approx(clip, rel=1e-3)
    else:
        assert norm > 1.5


def test_a_clip_below_nothing_is_refused_and_one_that_is_left_alone_is_in_no_record() -> None:
    with pytest.raises(ValueError, match=r"^clip must be 0 or more, got -1\.0$"):
        tiny(clip=-1.0)
    assert "clip" not in tiny().to_dict() and tiny(clip=0.5).to_dict()["clip"] == 0.5


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_checkpoints_are_kept_as_is_said(keep: int, tmp_path: Path) -> None:
    train_into(tmp_path, [], Execution(keep=keep))
    steps = sorted(path.name for path in tmp_path.glob("step-*"))
    assert steps == [f"step-{step:06}" for step in (2, 4, 6, 8)][-keep:]
    assert [checkpoint.load(tmp_path / step).step for step in steps] == [2, 4, 6, 8][-keep:]


@pytest.mark.parametrize("name", ["accumulation", "keep", "sample_tokens"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of 1 or more, got 0$"):
        Execution(**{name: 0})
    with pytest.raises(ValueError, match=rf"^{name} must be at most 1,000,000, got 1000001$"):
        Execution(**{name: 1_000_001})


def test_samples_are_said_and_told_to_the_loggers_at_every_point(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    texts: list[str] = []
    execution = Execution(samples=("line ", "a "), sample_tokens=5)
    setup = TINY | {"train_length": 8, "steps": 4, "text": str(tmp_path / "book.txt"), "test_lengths": ()}
    train_run("rotary", "text", 0, tmp_path / "run", None, texts.append, log=["jsonl"], execution=execution, **setup)
    samples = [words for words in texts if words.startswith(("'line '", "'a '"))]
    assert len(samples) == 4 and all(words.split(" ->\n")[1].startswith(("line ", "a ")) for words in samples)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    log = [(line["step"], line["prompt"], line["text"]) for line in lines if "prompt" in line]
    assert [entry[:2] for entry in log] == [(2, "line "), (2, "a "), (4, "line "), (4, "a ")]
    assert all(text.startswith(prompt) and len(text) <= len(prompt) + 5 for _, prompt, text in log)


def test_a_sample_of_symbols_ends_where_its_answer_does(tmp_path: Path) -> None:
    messages: list[str] = []
    train_into(tmp_path, messages, Execution(samples=("ab|",), sample_tokens=11))
    samples = [words for words in messages if words.startswith("'ab|'")]
    assert len(samples) == 4 and all(words.split("\n")[1].startswith("ab|") for words in samples)


def test_samples_are_refused_where_nothing_is_generated(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^samples are for a decoder, and masked_symbols.* is answered at once; leave"
    ):
        train_into(tmp_path, [], Execution(samples=("ab",)), "masked_symbols", train_length=8)
    with pytest.raises(
        ValueError, match=r"^samples count their tokens 0, 1, 2, \.\.\., and interpolated\(factor=2\) does"
    ):
        train_into(tmp_path, [], Execution(samples=("ab|",)), map="interpolated(factor=2)")
    # Nothing is trained first.
    with pytest.raises(
        ValueError, match=r"^position 14 is past the learned table of 14 rows; build it with max_len=15"
    ):
        train_into(tmp_path, [], Execution(samples=("ab|",)))
    assert not checkpoint.has_checkpoint(tmp_path)


def test_dropout_is_drawn_by_seed_and_step_and_not_by_what_came_before(tmp_path: Path) -> None:
    experiment = tiny(dropout=0.3)
    whole = train.train(start(experiment))
    checkpoint.save(train.train(start(experiment), stop_step=4), tmp_path)
    torch.manual_seed(99)
    second = train.train(checkpoint.load(tmp_path))
    for a, b in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(7)
    b = train.train(start(tiny(dropout=0.3, seed=101)))
    assert b.curve[0]["loss"] != whole.curve[0]["loss"]


@pytest.mark.slow
@pytest.mark.skipif(not FORKS, reason="processes are forked and killed")
def test_a_run_that_is_killed_in_mid_step_ends_in_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    sizes = ["--train-length=16", "--dim=16", "--heads=2", "--layers=2", "--batch=4", "--steps=120", "--dropout=0.2"]
    options = ["--evaluate-every=10", "--accumulation=2", "--keep=1", f"--text={tmp_path / 'book.txt'}", "--threads=1"]

    def command(folder: Path) -> ForkedCli:
        return ForkedCli("train", "learned", "--task=text", *sizes, *options, f"--out={folder}")

    whole = command(tmp_path / "whole")
    assert whole.outcome()[0] == 0
    for step in (10, 60):
        run = command(tmp_path / "killed")
        run.wait_for(
            lambda step=step: any(int(path.name[5:11]) >= step for path in (tmp_path / "killed").glob("step-*"))
        )
        # The next checkpoint is ten steps away.
        time.sleep(0.01)
        run.kill(signal.SIGKILL)
        assert run.outcome()[0] == -signal.SIGKILL
    code, _, words = command(tmp_path / "killed").outcome()
    assert code == 0 and "going on at step" in words
    for name in ("model.safetensors", "optimizer.safetensors"):
        actual, expected = ((tmp_path / end / "step-000120" / name).read_bytes() for end in ("killed", "whole"))
        assert actual == expected
    facts = [json.loads((tmp_path / end / "step-000120" / "run.json").read_text()) for end in ("killed", "whole")]
    curves = [[(p["step"], p["loss"], p["score"]) for p in end["curve"]] for end in facts]
    assert curves[0] == curves[1] and len(curves[0]) == 12
    assert facts[0]["tokens"] == facts[1]["tokens"]
    assert os.listdir(tmp_path / "killed") and not list((tmp_path / "killed").glob(".*.part"))
