"""Evaluation: one pass says what generation says, and numbers that can be worked out by hand come out."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import Positions
from posenc.lab import data, evaluate, tasks
from posenc.lab.evaluate import by_length, exact_match, held_out_bits, sliding_bits
from posenc.lab.recipes import recipe
from posenc.lab.tasks import BOS, END, Batch
from posenc.lab.train import Run, start, train
from posenc.model import Decoder


class Answering:
    """Stands in for a model: logits [B, T, vocab] from a function of the ids."""

    def __init__(self, logits_of) -> None:
        self.logits_of = logits_of

    def eval(self) -> None:
        pass

    def __call__(self, ids: Tensor, *, positions: Positions, only: slice | None = None) -> Tensor:
        assert positions.tokens == ids.shape[1]
        logits = self.logits_of(ids)
        return logits if only is None else logits[:, only]


def copying(ids: Tensor, wrong_at: int | None = None) -> Tensor:
    """Logits of somebody who knows how to copy: behind the separator the prompt, then the end."""
    n = ids.shape[1] // 2 - 1
    said = torch.full_like(ids, END)
    said[:, n + 1 : -1] = ids[:, 1 : n + 1]
    if wrong_at is not None:
        said[:, n + 1 + wrong_at] = BOS
    return F.one_hot(said, 29).float()


class Remembering:
    """A task that keeps the batches it made."""

    def __init__(self, task: Any) -> None:
        self.task, self.made = task, []

    def batch(self, *given) -> Batch:
        self.made.append(self.task.batch(*given))
        return self.made[-1]


@pytest.fixture
def text(tmp_path: Path) -> Any:
    """The text task on 30,000 letters in no order, a tenth of them held out."""
    letters = torch.randint(97, 123, (30_000,), generator=torch.Generator().manual_seed(5))
    (tmp_path / "letters.txt").write_bytes(bytes(letters.tolist()))
    return tasks.find("text")(data.load(str(tmp_path / "letters.txt")))


@pytest.mark.parametrize("length", [1, 5, 10])
def test_a_model_that_knows_the_answer_scores_one(length: int) -> None:
    found = exact_match(Answering(copying), tasks.find("copy")(), length, rows=40)
    assert found.to_dict() == {"exact_match": 1.0, "token_accuracy": 1.0}


def test_one_wrong_token_a_sequence_costs_the_whole_sequence_and_one_token() -> None:
    wrong = Answering(lambda ids: copying(ids, wrong_at=2))
    found = exact_match(wrong, tasks.find("copy")(), 4, rows=40, shortest=4)
    assert found.exact_match == 0 and found.token_accuracy == pytest.approx(4 / 5)


def test_only_the_values_count_in_recall() -> None:
    def values_only(ids: Tensor) -> Tensor:
        pairs = (ids.shape[1] - 1) // 4
        keys, values = ids[:, 1 : 2 * pairs + 1 : 2], ids[:, 2 : 2 * pairs + 1 : 2]
        said = torch.full_like(ids, BOS)
        for place in range(2 * pairs + 2, ids.shape[1], 2):
            said[:, place] = values[keys == ids[:, [place]]]
        return F.one_hot(said, 35).float()

    assert exact_match(Answering(values_only), tasks.find("recall")(), 6, rows=30).exact_match == 1


def test_scores_are_spread_over_lengths_unless_one_is_asked_for() -> None:
    task = Remembering(tasks.find("copy")())
    exact_match(Answering(copying), task, 10, rows=40)
    assert [(batch.ids.shape[1] - 3) // 2 for batch in task.made] == [2, 5, 8, 10]
    assert [len(batch.ids) for batch in task.made] == [10] * 4
    task.made.clear()
    exact_match(Answering(copying), task, 10, rows=40, shortest=10)
    assert [batch.ids.shape for batch in task.made] == [(40, 23)]


def half_learned(spec: str) -> Run:
    """A run that copies some prompts of two symbols and not others."""
    run = start(
        recipe("copy", spec, train_length=2, dim=32, heads=2, layers=2, steps=400, batch=16, warmup=5, cool_down=0)
    )
    while run.step < 400 and (not run.curve or run.curve[-1]["score"] < 0.15):
        train(run, until=run.step + 5)
    return run


@pytest.mark.parametrize("spec", ["rotary", "learned"])
def test_one_teacher_forced_pass_finds_exactly_the_rows_that_greedy_generation_gets_right(spec: str) -> None:
    run, task = half_learned(spec), Remembering(tasks.find("copy")())
    found = exact_match(run.model, task, 2, rows=64, shortest=2)
    ids = task.made[0].ids
    generated = run.model.generate(ids[:, :4], 3)
    right = int((generated == ids).all(1).sum())
    assert found.exact_match == right / 64
    assert 0 < right < 64


def flat(vocab: int = 257) -> Decoder:
    """A model that has no opinion: every id is as likely."""
    model = Decoder(vocab, 16, 2, 1, "none", max_len=32)
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    return model


def test_a_model_without_opinion_needs_the_logarithm_of_257_bits_a_byte(text) -> None:
    assert held_out_bits(flat(), text, 32, total=2000) == pytest.approx(math.log2(257), rel=1e-6)
    assert sliding_bits(flat(), text, 32, stride=8, longest=64) == pytest.approx(math.log2(257), rel=1e-6)


def test_bits_per_byte_is_minus_the_mean_binary_logarithm_of_what_came(text) -> None:
    torch.manual_seed(0)
    unigram = torch.randn(257)
    model = Answering(lambda ids: unigram.expand(*ids.shape, 257))
    # One window over all but the last of the held-out bytes.
    total = text.text.test.numel() - 1
    expected = -unigram.double().log_softmax(0)[text.text.test[:total].long()].mean() / math.log(2)
    assert held_out_bits(model, text, total, total=total) == pytest.approx(float(expected), rel=1e-6)


def bytes_predicted(text, monkeypatch: pytest.MonkeyPatch, score, length: int) -> list[int]:
    """Where in the held-out text the predicted bytes stand, sorted."""
    places: list[int] = []

    def windows(source: Tensor, rows: Tensor, tokens: int) -> Batch:
        # Each byte is named by its place, so that targets can be recognised.
        ids = rows[:, None] + torch.arange(tokens)
        return Batch(torch.cat((torch.full((len(rows), 1), -1), ids), 1), torch.ones(tokens, dtype=torch.bool))

    def loss_of(model, ids: Tensor, change, only: slice | None = None) -> Tensor:
        targets = ids[:, 1:] if only is None else ids[:, 1:][:, only]
        places.extend(targets.flatten().tolist())
        return torch.zeros_like(targets, dtype=torch.float32)

    monkeypatch.setattr(text, "windows", windows)
    monkeypatch.setattr(evaluate, "loss_of", loss_of)
    score(length)
    return sorted(places)


def test_the_sliding_window_predicts_the_same_bytes_at_every_length(text, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        bytes_predicted(text, monkeypatch, lambda n: sliding_bits(flat(), text, n, stride=16, longest=256), length)
        for length in (32, 64, 100, 256)
    ]
    assert all(places == asked[0] for places in asked) and len(asked[0]) > 1000
    assert len(set(asked[0])) == len(asked[0])
    assert min(asked[0]) >= 240 and max(asked[0]) < text.text.test.numel()


def test_windows_that_do_not_overlap_predict_the_same_bytes_at_every_length(
    text, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        bytes_predicted(text, monkeypatch, lambda n: held_out_bits(flat(), text, n, total=2000, longest=256), length)
        for length in (32, 64, 256)
    ]
    assert all(places == asked[0] for places in asked)
    assert len(set(asked[0])) == len(asked[0])


def test_a_byte_under_the_sliding_window_sees_at_least_the_window_less_the_stride(text) -> None:
    class Checking(Answering):
        def __call__(self, ids: Tensor, *, positions: Positions, only: slice | None = None) -> Tensor:
            assert only is not None and only.start == 32 - 8 and ids.shape[1] == 32
            return super().__call__(ids, positions=positions, only=only)

    sliding_bits(Checking(lambda ids: torch.zeros(*ids.shape, 257)), text, 32, stride=8, longest=64)


def test_a_window_longer_than_the_held_out_text_is_refused_with_both_sizes(text) -> None:
    words = "the held-out text has 3,000 bytes, too few for a window of 3000; add text or test shorter lengths"
    for score in (
        lambda: held_out_bits(flat(), text, 3000, total=10),
        lambda: sliding_bits(flat(), text, 8, stride=4, longest=3000),
    ):
        with pytest.raises(ValueError, match=words):
            score()


def test_the_perplexity_ratio_is_perplexity_at_a_length_over_perplexity_at_the_trained_one(text) -> None:
    experiment = recipe(
        "text", "sinusoidal", train_length=8, test_lengths=(16, 64), dim=16, heads=2, layers=1, text=text.text.name
    )
    run = start(experiment)
    torch.nn.init.normal_(run.model.output.weight)
    rows = by_length(run)
    assert [(row["length"], row["factor"]) for row in rows] == [(8, 1.0), (16, 2.0), (64, 8.0)]
    for row in rows:
        expected = 2 ** row["bits_per_byte"] / 2 ** rows[0]["bits_per_byte"]
        assert row["perplexity_ratio"] == pytest.approx(expected)
        assert row["exact_match"] is None and row["token_accuracy"] is None
    assert rows[0]["perplexity_ratio"] == 1.0 and rows[2]["perplexity_ratio"] != 1.0


def test_a_task_with_answers_is_scored_at_the_trained_length_first() -> None:
    rows = by_length(start(recipe("copy", "none", train_length=4, dim=16, heads=2, layers=1)))
    assert [row["length"] for row in rows] == [4, 5, 6, 8]
    assert all(0 <= row["exact_match"] <= row["token_accuracy"] <= 1 for row in rows)
    assert all(row["bits_per_byte"] is row["sliding_bits_per_byte"] is row["perplexity_ratio"] is None for row in rows)


def test_evaluation_draws_the_same_held_out_sequences_for_everybody() -> None:
    seen = []
    for spec, seed in (("none", 0), ("learned", 3)):
        task = Remembering(tasks.find("copy")())
        run = start(recipe("copy", spec, seed, dim=16, heads=2, layers=1))
        exact_match(run.model, task, 6, rows=8, shortest=6)
        seen.append(task.made[0].ids)
    assert torch.equal(*seen)
