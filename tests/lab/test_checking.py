"""The promises of tasks: tasks that ship keep them, and each broken one is reported with its reason."""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from tiers import daily_third, rest_slow
from torch import Generator

from posenc.lab import checking
from posenc.lab.tasks import TASKS, Batch, Symbols, Task, prompt_and_answer, random_symbols
from posenc.tokens.positions import Positions
from posenc.verdicts import promise_name

OPTIONS = [
    "addition(padded=False)",
    "addition(reversed=none,padded=False)",
    "addition(reversed=answer)",
    "copy(symbols=3,times=2)",
    "flip_flop(ignore=0)",
    "masked_symbols(symbols=5,offset=2)",
    "parity(running=True)",
    "pass_key(key=1,depth=0.5)",
    "recall(symbols=17,questions=one)",
    "same_set(symbols=12)",
    "sort(symbols=3)",
    "tree_copy(mirrored=True)",
]


@pytest.mark.parametrize("promise", checking.PROMISES, ids=promise_name)
@pytest.mark.parametrize("spec", daily_third(TASKS) + rest_slow(OPTIONS, 0))
def test_a_task_that_ships_keeps_every_promise(spec: str, promise) -> None:
    verdict, *further = checking.check(spec, [promise])
    assert not further and verdict.good, verdict.message


@dataclass(frozen=True, kw_only=True)
class Good(Symbols):
    """Say the prompt again, as those do that break a promise each.

    Source: this test.
    """

    symbols: int = 3
    recipe = MappingProxyType({"train_length": 4})

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, prompt)


class Unmade(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return super().batch(length, rows, generator).ids


class EmptyTask(Good):
    def lengths(self, longest: int) -> list[int]:
        return []


class OfAWrongKind(Good):
    reads = "writer"


class TooManyIds(Good):
    @property
    def vocab(self) -> int:
        return 5


class InFloats(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids.float(), batch.targets, batch.answer)


class WithAnswersInWholeNumbers(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids, batch.targets, batch.answer.long())


class WithoutAnAnswer(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids, batch.targets, batch.answer & False)


class OnAGrid(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids, batch.targets, batch.answer, Positions.grid(1, batch.ids.shape[1]))


class WithASource(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids, batch.targets, batch.answer, source=batch.ids)


class WrongLength(Good):
    def tokens(self, length: int) -> int:
        return 2 * length


class Backwards(Good):
    def lengths(self, longest: int) -> list[int]:
        return [2, 1]


class NoFurther(Good):
    beyond = (1.5, 1)


class ShortInSecret(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return super().batch(min(length, 4), rows, generator)


class FailsBeyond(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return super().batch([0, 1, 2, 3, 4][length], rows, generator)


class Forgetful(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return super().batch(length, rows, Generator().manual_seed(torch.seed()))


class AlwaysTheSame(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return super().batch(length, rows, Generator().manual_seed(0))


class DrawsFromTorch(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        torch.rand(1)
        return super().batch(length, rows, generator)


class DrawsFromPython(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        random.random()
        return super().batch(length, rows, generator)


class ReadsTheSeed(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        seed = int(torch.randint(1000, (), generator=generator)) + torch.initial_seed()
        return super().batch(length, rows, Generator().manual_seed(seed))


class OutOfNothing(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        first, second = (random_symbols(length, rows, self.symbols, generator) for _ in range(2))
        return prompt_and_answer(first, second)


class OwnTokenAnswer(Good):
    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        return Batch(batch.ids, batch.ids, batch.answer)


class Neighbours(Good):
    """An encoder's answer at each token follows from that token alone: the next letter."""

    reads = "encoder"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        ids = super().batch(length, rows, generator).ids[:, 1 : length + 1]
        return Batch(ids, 3 + (ids - 2) % self.symbols, torch.ones(length, dtype=torch.bool))

    def tokens(self, length: int) -> int:
        return length


class TooModest(Good):
    def chance(self, length: int) -> float:
        return 0.0


class TooProud(Good):
    def chance(self, length: int) -> float:
        return 0.9**length


class ToldByThePlace(Good):
    """Answers follow from the place alone."""

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, (3 + torch.arange(length) % self.symbols).expand(rows, -1))


class ToldByPadding(Good):
    """The number of padding tokens reveals the answer, of one or two tokens."""

    reads = "encoder"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        odd = torch.randint(0, 2, (rows, 1), generator=generator)
        order = torch.arange(batch.ids.shape[1]) - odd
        at = Positions.of(order.clamp(min=0), order=order)
        return Batch(batch.ids, torch.where(odd == 1, 4, 3).expand_as(batch.ids), torch.arange(order.shape[1]) == 1, at)

    def chance(self, length: int) -> float:
        return 0.5


class NothingToLearn(ToldByThePlace):
    def chance(self, length: int) -> float:
        return 1.0


class ReadsOtherLetters(Good):
    def encode(self, text: str) -> list[int]:
        return super().encode(text[::-1])


class WithASpellingMistake(Good):
    recipe = MappingProxyType({"train_length": 4, "step": 100})


class WithoutASingleStep(Good):
    recipe = MappingProxyType({"train_length": 4, "steps": 0})


class Unequal(Good):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Good.__hash__


class WithoutASource(Good):
    """Say the prompt again, without a source."""


class Terse(Good):
    """Says again.

    Source: this test.
    """


class OtherAlphabet(Good):
    """The prompt is a source of its own, and what is said begins again with BOS.

    Source: this test.
    """

    reads = "encoder_decoder"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        batch = super().batch(length, rows, generator)
        bos, prompt = batch.ids[:, :1], batch.ids[:, 1 : length + 1]
        ids = torch.cat((bos, prompt), 1)
        targets = torch.cat((prompt, batch.targets[:, -1:]), 1)
        return Batch(ids, targets, torch.ones(length + 1, dtype=torch.bool), source=ids)

    def tokens(self, length: int) -> int:
        return length + 1


class Rare(Good):
    """Prompts so long that no two are alike."""

    def lengths(self, longest: int) -> list[int]:
        return [40]

    recipe = MappingProxyType({"train_length": 40})


class InBits(Good):
    in_bits = True


@dataclass(frozen=True, kw_only=True)
class Bare(Task):
    """A task without optional members: whether a token is even.

    Source: this test.
    """

    vocab = 10

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        ids = torch.randint(0, 10, (rows, length), generator=generator)
        return Batch(ids, ids % 2, torch.ones(length, dtype=torch.bool))


class NoTask:
    """No task."""


BAD = {
    "a_batch_can_be_made": [
        (Unmade, r"batch\(4, 2, generator\) gave Tensor, expected a Batch"),
        (EmptyTask, r"lengths\(4\) is empty, so there is nothing to train on"),
    ],
    "batches_are_as_promised": [
        (OfAWrongKind, "reads is 'writer', expected one of decoder, encoder, encoder_decoder"),
        (TooManyIds, r"ids of batch\(1, 1, .*ids from 0 to 5, expected 0 to 4, which vocab=5 allows"),
        (InFloats, r"ids of batch.*\[1, 4\] .*torch.float32, expected \[rows, tokens\]"),
        (WithAnswersInWholeNumbers, r"answer of .*\[4\] and torch.int64, expected \[4\] or"),
        (WithoutAnAnswer, "has a sequence in which nothing counts"),
        (OnAGrid, "place 4 tokens by 2 coordinates, expected 4 by axes=1"),
        (WithASource, "a decoder was given source of batch.*; an encoder_decoder reads one"),
    ],
    "lengths_are_as_said": [
        (WrongLength, r"a sequence of length 1 has 4 tokens, and tokens\(1\) says 2"),
        (Backwards, r"lengths\(4\) are \[2, 1\], expected different ones from 1 to 4, shortest first"),
        (NoFurther, r"beyond is \(1.5, 1\), expected multiples of the trained length above 1"),
        (ShortInSecret, r"a sequence of length 5 has 10 tokens, and tokens\(5\) says 12"),
        (FailsBeyond, "IndexError: list index out of range"),
    ],
    "a_seed_decides_everything": [
        (Forgetful, "two batches of length 4 from generators with the same seed differ"),
        (AlwaysTheSame, "of length 4 from generators with different seeds are the same"),
    ],
    "nothing_else_is_drawn_from": [
        (DrawsFromTorch, "a batch draws from the random numbers of the process"),
        (DrawsFromPython, "a batch draws from the random numbers of the process"),
        (ReadsTheSeed, "a batch depends on the seed of the process"),
    ],
    "the_answer_follows_from_what_is_seen": [
        (OutOfNothing, r"length 1 .* up to token 2, '\^[abc]\|', .* '[abc]' and '[abc]'")
    ],
    "the_answer_does_not_stand_there": [
        (OwnTokenAnswer, "in 2000 of 2000 sequences of length 4, each id equals its target"),
        (Neighbours, r"one token alone answers 1000 of 1000 .* where chance\(4\) is 0.0123"),
    ],
    "chance_is_what_a_guess_answers": [
        (TooModest, r"chance\(1\) is 0, and the best guess without a prompt answers 3\d\d of"),
        (TooProud, r"chance\(1\) is 0.9, and the best guess without a prompt answers 3"),
        (ToldByThePlace, r"chance\(1\) is 0.333, and the best .* answers 1000 of 1000"),
        (ToldByPadding, r"chance\(1\) is 0.5, and the best .* answers 1000 of 1000"),
        (NothingToLearn, "1000 of 1000, so there is hardly anything to learn"),
    ],
    "a_prompt_goes_to_ids_and_back": [
        (ReadsOtherLetters, r"the prompt \[0, .* is written '[abc]{4}\|', which encode reads as")
    ],
    "the_recipe_can_be_followed": [
        (WithASpellingMistake, "the recipe names step; an Experiment has: spec, task"),
        (WithoutASingleStep, "ValueError: steps must be 1 or more, got 0"),
    ],
    "the_spec_round_trips": [(Unequal, r"read as a spec gives .*Unequal'?\(\), which is another task")],
    "has_a_source": [
        (WithoutASource, "the docstring of WithoutASource has no 'Source:'"),
        (Terse, "the docstring of Terse does not begin with a sentence about the idea"),
    ],
}
"""Of each promise, tasks that break it, and what is said then."""


def test_each_promise_is_broken_by_a_task_of_its_own() -> None:
    assert list(BAD) == [promise_name(promise) for promise in checking.PROMISES]


@pytest.mark.parametrize(
    "cls, promise, message",
    [pytest.param(cls, promise, message, id=cls.__name__) for promise in BAD for cls, message in BAD[promise]],
)
def test_a_broken_promise_is_told(cls: type[Task], promise: str, message: str) -> None:
    verdict = checking.check(f"{__file__}:{cls.__name__}", [promise])[0]
    assert (verdict.promise, verdict.word) == (promise, "broken")
    assert re.search(message, verdict.message), verdict.message
    assert {promise_name(one): advice for one, advice in checking.PROMISES.items()}[promise] in verdict.advice


@pytest.mark.parametrize("cls", [Good, OtherAlphabet])
def test_a_task_of_ones_own_keeps_all(cls: type[Task]) -> None:
    verdicts = checking.check(f"{__file__}:{cls.__name__}")
    assert [verdict.message for verdict in verdicts if verdict.word != "kept"] == []


def test_the_one_verdict_of_a_task_without_a_batch_is_that() -> None:
    assert [verdict.promise for verdict in checking.check(Unmade())] == ["a_batch_can_be_made"]


def test_what_fails_in_a_file_of_ones_own_is_told_with_its_line() -> None:
    verdict = checking.check(f"{__file__}:FailsBeyond", ["lengths_are_as_said"])[0]
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if "[0, 1, 2, 3, 4][length]" in text)
    assert verdict.advice.startswith(f"look at batch, line {line} of test_checking.py; make tokens(length)")


@pytest.mark.parametrize(
    "cls, promise, reason",
    [
        (Rare, "the_answer_follows_from_what_is_seen", "no two sequences among 2000 are alike; hold it"),
        (InBits, "the_answer_follows_from_what_is_seen", "it is measured in bits of text"),
        (InBits, "chance_is_what_a_guess_answers", "it is measured in bits of text"),
        (Bare, "a_prompt_goes_to_ids_and_back", "it has no prompts that a person can write"),
        (Good, "the_spec_round_trips", "its class was not named by a spec; hold path/to/file.py:Class to this"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_has_no_meaning_says_why(cls: type[Task], promise: str, reason: str) -> None:
    verdict = checking.check(cls(), [promise])[0]
    assert verdict.word == "no meaning" and verdict.message.startswith(reason)


@pytest.mark.parametrize("spec", ["copy", "copy(symbols=4)", f"{__file__}:Good", f"{__file__}:Good(symbols=2)"])
def test_a_spec_of_a_task_names_one(spec: str) -> None:
    assert checking.names_a_task(spec)


@pytest.mark.parametrize("spec", ["rotary", "rotary + copy", f"{__file__}:Other", "no/file.py:Task", "7"])
def test_any_other_spec_names_none(spec: str) -> None:
    assert not checking.names_a_task(spec)


def test_an_unknown_promise_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^no promise named 'has_a_sauce'; .*posenc check SPEC has all$"):
        checking.check("copy", ["has_a_sauce"])


@pytest.mark.parametrize("right, trials, share, exact", [(3, 4, 0.5, 5 / 16), (0, 4, 0.5, 1.0), (4, 4, 0.1, 1e-4)])
def test_the_binomial_tail_is_that_of_a_few_coins(right: int, trials: int, share: float, exact: float) -> None:
    assert checking.binomial_tail(right, trials, share) == pytest.approx(exact)


def test_nothing_is_answered_by_a_share_of_nothing() -> None:
    assert checking.binomial_tail(1, 1000, 0.0) == 0.0 and checking.binomial_tail(999, 1000, 1.0) == 1.0
