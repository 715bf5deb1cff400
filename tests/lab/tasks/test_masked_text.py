"""Masked text: which tokens are masked, by what, and that all encodings and lengths get the same masks."""

import math
from pathlib import Path

import pytest
import torch

from posenc.lab.tasks import Batch, Task, task_of

BOS, MASK = 256, 257


def on_a_book(home: Path, options: str = "") -> Task:
    (home / "book.txt").write_text("".join(f"{i} a few words, and a few more of them\n" for i in range(3000)))
    return task_of(f"masked_text(path='{home / 'book.txt'}'{options})")


def answers_in(batch: Batch) -> list[tuple[int, int, int]]:
    """Row, column and target of each predicted token."""
    return [(row, column, int(batch.targets[row, column])) for row, column in batch.answer.nonzero().tolist()]


def test_windows_are_bos_and_the_text_of_which_some_is_hidden(tmp_path: Path) -> None:
    task = on_a_book(tmp_path)
    start = torch.tensor([0, 777])
    batch = task.windows(task.text.test, start, 60)
    content = b"".join(task.text.test.blocks())
    assert task.reads == "encoder" and task.vocab == 258 and task.tokens(60) == 61
    assert batch.targets.tolist() == [[BOS, *content[place : place + 60]] for place in start.tolist()]
    assert batch.ids[:, 0].tolist() == [BOS] * 2 and not batch.answer[:, 0].any() and batch.answer.any(1).all()
    assert bool((batch.ids == batch.targets)[~batch.answer].all())
    assert batch.bytes is not None and batch.bytes.tolist() == [[0] + [1] * 60] * 2


@pytest.mark.parametrize("held_out", [True, False])
def test_fifteen_percent_are_asked_of_which_most_are_masked_some_changed_and_some_left(
    held_out: bool, tmp_path: Path
) -> None:
    task = on_a_book(tmp_path)
    if held_out:
        batch = task.windows(task.text.train, torch.arange(0, 60_000, 200), 200)
    else:
        batch = task.batch(200, 300, torch.Generator().manual_seed(4))
    count = 60_000

    def is_near(count: int, share: float, total: float) -> bool:
        return abs(count - share * total) < 4 * math.sqrt(share * (1 - share) * total)

    answers = int(batch.answer.sum())
    assert is_near(answers, 0.15, count)
    became = batch.ids[batch.answer]
    unchanged_count = int((became == batch.targets[batch.answer]).sum())
    assert is_near(int((became == MASK).sum()), 0.8, answers)
    # One in 256 of what is changed at random comes out as it was.
    assert is_near(unchanged_count, 0.1 + 0.1 / 256, answers)
    noise = became[(became != MASK) & (became != batch.targets[batch.answer])]
    assert noise.max() > 230 and noise.min() < 25 and noise.max() < BOS and len(noise.unique()) > 200


def test_held_out_windows_of_all_lengths_ask_for_the_same_bytes(tmp_path: Path) -> None:
    task = on_a_book(tmp_path)
    source = task.text.test
    whole = task.windows(source, torch.tensor([100]), 120)
    for length in (1, 7, 40):
        parts = task.windows(source, torch.arange(100, 220 - length + 1, length), length)
        size = len(parts.ids) * length
        for name in ("ids", "answer", "targets"):
            assert getattr(parts, name)[:, 1:].flatten().tolist() == getattr(whole, name)[0, 1 : size + 1].tolist()


def test_two_tasks_hide_the_same_held_out_bytes_and_a_generator_others_each_time(tmp_path: Path) -> None:
    first, second = on_a_book(tmp_path), on_a_book(tmp_path)
    start = torch.tensor([5, 500])
    assert torch.equal(first.windows(first.text.test, start, 90).ids, second.windows(second.text.test, start, 90).ids)
    generator = torch.Generator().manual_seed(0)
    batch_a, batch_b = (first.batch(90, 2, generator) for _ in range(2))
    again = second.batch(90, 2, torch.Generator().manual_seed(0))
    assert torch.equal(batch_a.ids, again.ids) and answers_in(batch_a) == answers_in(again) != answers_in(batch_b)


def test_what_is_hidden_does_not_come_again_at_the_same_place_of_every_window(tmp_path: Path) -> None:
    task = on_a_book(tmp_path)
    batch = task.windows(task.text.train, torch.arange(0, 32_000, 32), 32)
    assert 0.08 < batch.answer[:, 1:].double().mean(0).min() < batch.answer[:, 1:].double().mean(0).max() < 0.22


def test_every_window_in_training_is_asked_for_something(tmp_path: Path) -> None:
    task = on_a_book(tmp_path, ", masked=0.01")
    batch = task.batch(3, 400, torch.Generator().manual_seed(0))
    assert bool(batch.answer.any(1).all()) and int(batch.answer.sum()) < 420


def test_another_share_is_asked_for(tmp_path: Path) -> None:
    task = on_a_book(tmp_path, ", masked=0.5")
    assert repr(task).endswith("masked=0.5)")
    batch = task.windows(task.text.train, torch.arange(0, 40_000, 100), 100)
    assert batch.answer[:, 1:].double().mean() == pytest.approx(0.5, abs=0.01)


def test_masked_tokens_are_written_as_what_they_are(tmp_path: Path) -> None:
    task = on_a_book(tmp_path)
    assert task.decode([BOS, *b"a f", MASK, *b"w", MASK]) == "a f[MASK]w[MASK]"


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1"])
def test_a_share_that_is_none_is_refused(share: str) -> None:
    with pytest.raises(ValueError, match=rf"^masked_text: masked must be above 0 and at most 1, got {share}$"):
        task_of(f"masked_text(masked={share})")
