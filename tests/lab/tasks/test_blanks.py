"""Answers at blanks: what is read and what is to be said, by hand."""

import pytest
import torch
from torch import Generator

from posenc.lab import checking
from posenc.lab.tasks import task_of

PROMPTS = {
    "copy": lambda word: word,
    "reverse": lambda word: word[::-1],
    "odds_first": lambda word: word[::2] + word[1::2],
}


@pytest.mark.parametrize("answer", PROMPTS)
@pytest.mark.parametrize("length", [1, 5, 8])
def test_a_prompt_is_read_with_blanks_and_answered_there(answer: str, length: int) -> None:
    task = task_of(f"blanks(answer={answer}, symbols=4)")
    batch = task.batch(length, 16, Generator().manual_seed(3))
    for ids, targets in zip(batch.ids, batch.targets, strict=True):
        read, said = task.decode(ids.tolist()), task.decode(targets[batch.answer].tolist())
        prompt, blanks = read.removeprefix("^").split("|")
        assert (blanks, said) == ("?" * length, PROMPTS[answer](prompt))
    assert torch.equal(task.batch(length, 16, Generator().manual_seed(3)).ids, batch.ids)


def test_it_is_read_by_an_encoder_and_guessed_as_often_as_it_says() -> None:
    task = task_of("blanks")
    assert (task.reads, task.vocab, task.tokens(3), task.chance(3)) == ("encoder", 6, 8, 0.125)
    assert task.encode("ab|??") == [0, 3, 4, 1, 5, 5]


def test_another_answer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^blanks: answer must be one of copy, odds_first, reverse, got 'sort'"):
        task_of("blanks(answer=sort)")


@pytest.mark.parametrize("answer", PROMPTS)
def test_it_keeps_the_promises_of_a_task(answer: str) -> None:
    assert [one for one in checking.verdicts(f"blanks(answer={answer})") if not one.good] == []
