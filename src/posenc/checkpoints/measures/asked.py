"""A task of long texts as a measure: trials spread over the depth, teacher-forced, common beginnings read once."""

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.checkpoints.measures.long_tasks import FILLER, TASKS, Task
from posenc.checkpoints.measures.measure import (
    WHOLE,
    Detail,
    Given,
    Number,
    Tell,
    TooShort,
    Value,
    part_of,
    share_of,
    tokenizer_of,
)
from posenc.checkpoints.measures.perplexity import DEVICE, Read, costs, likeliest, opening_of, read
from posenc.checkpoints.measures.questions import Draw, Ids, Question, ids_of, questions
from posenc.foreign import near, quoted

ENOUGH = 0.856
"""A task can be done at a length where so much of it is right: RULER's threshold, which is what Llama 2 (7B) scores at
its trained length of 4,096 tokens (arXiv:2404.06654, section 4)."""

TRIALS = 8
"""Where nobody says how many."""

LIKE_AN_ANSWER = re.compile(r"\d|\bmark\b", re.IGNORECASE)
"""What in a text that fills could be taken for an answer."""


def chances(draw: Draw) -> list[float]:
    """How often each item is right of whoever picks one of the candidates that were not said yet.

    1/(n - k) for the k-th item (from 0) of an order, (m - k)/(n - k) for any of m in any order, among n candidates
    """
    asked = len(draw.answers)
    return [((asked - k) if draw.any_order else 1) / (draw.candidates - k) for k in range(asked)]


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text that may fill one: those without numbers, because an answer may be one.

    Raises ValueError for a text without such sentences.

    >>> sentences("It rains. It is 9 degrees. So be it!")
    ('It rains. ', 'So be it! ')
    """
    found = (" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+", text))
    kept = tuple(f"{one} " for one in found if one and not LIKE_AN_ANSWER.search(one))
    if not kept:
        raise ValueError("the text has no sentence without a number, so that answers could not be told from it")
    return kept


@dataclass(frozen=True, eq=False)
class LongTask:
    """One of the tasks as a measure.

    task       what is asked
    tokenizer  the model's
    opening    the special tokens that its texts begin with
    trials     how many, at depths that are spread evenly from the beginning to the end
    seed       of everything that is drawn; the same trials at every length, and for every method
    chunk      how many tokens go through the model at once
    cache      where keys are kept: "device" or "cpu"
    filler     the sentences that make a text long

    An item of an answer is right when all of its tokens are foreseen, those before it given: of a single item, and of
    all together, this is what reading greedily would say, by induction on the first mistake. Behind a mistake it is
    kinder than reading greedily: the item before stands there as it should have been.

    Raises ValueError for no trials.
    """

    task: Task
    tokenizer: Any
    opening: tuple[int, ...] = ()
    trials: int = TRIALS
    seed: int = 0
    chunk: int = 1024
    filler: tuple[str, ...] = FILLER
    cache: str = DEVICE
    unit: ClassVar = "tokens"
    price: ClassVar = "right"
    needs: ClassVar = ENOUGH
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar = frozenset({"text", "samples", "chunk", "cache"})

    @classmethod
    def of(cls, task: Task, given: Given) -> "LongTask":
        """The task for a model, in sentences of the text where one is given; samples are trials.

        Raises CannotRead without a tokenizer, ValueError as `sentences` does.
        """
        tokenizer = tokenizer_of(given.loaded)
        filler = sentences(read(given.text)[1]) if given.text else FILLER
        trials = TRIALS if given.samples is None else given.samples
        how_read: dict[str, Any] = {"chunk": given.chunk, "cache": given.cache}
        return cls(task, tokenizer, opening_of(tokenizer), trials, filler=filler, **how_read)

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"a task takes one trial or more, got {self.trials}")

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def on(self) -> str:
        return f"{self.trials} trials: {self.task.words}"

    @property
    def numbers(self) -> tuple[Number, ...]:
        of_each = chances(self.draws(0, ids_of(self.tokenizer))[0])
        right = Number("right", "share of what is asked that is said", True, math.fsum(of_each) / len(of_each))
        whole = Number("whole", "share of answers without a mistake", True, math.prod(of_each))
        return (right, whole) if len(of_each) > 1 else (right,)

    @property
    def facts(self) -> dict[str, Any]:
        filler = hashlib.sha256("\0".join(self.filler).encode()).hexdigest()
        return {"task": self.name, "trials": self.trials, "seed": self.seed, "filler": filler, "chunk": self.chunk}

    def depth(self, trial: int) -> float:
        """How deep in its text a trial lies, from 0 to 1."""
        return trial / (self.trials - 1) if self.trials > 1 else 0.5

    @property
    def texts(self) -> list[range]:
        """The trials of each text: as many as the task has for one, spread over its depth."""
        count = math.ceil(self.trials / self.task.most)
        return [range(first, self.trials, count) for first in range(count)]

    def draws(self, text: int, ids: Ids) -> list[Draw]:
        """The trials of a text."""
        drawn = random.Random(f"{self.seed} {self.name} {text}")
        return self.task.draw(drawn, [self.depth(trial) for trial in self.texts[text]], self.filler, ids)

    def questions(self, length: int) -> Iterator[Question]:
        """The trials at a length, text by text; raises TooShort where it is too short for the task."""
        ids = ids_of(self.tokenizer)
        for text in range(len(self.texts)):
            yield from questions(self.draws(text, ids), ids, length, self.opening)

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        """Each length has texts of its own."""
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        try:
            return math.fsum(costs(model, [one.ids for one in self.questions(length)], self.cache))
        except TooShort:
            return 0.0

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """Which items of each trial were right; raises TooShort for a length without room for the task."""
        if how != WHOLE:
            raise ValueError(f"{self.name} is asked of the whole text alone, not of {quoted(how)}")
        asked, before, right = list(self.questions(length)), Read(self.cache), []
        work = costs(model, [one.ids for one in asked], self.cache)
        for number, one in enumerate(asked):
            share = part_of(tell, sum(work[:number]), sum(work), work[number])
            right.append(one.right(likeliest(model, one.ids, one.answer, self.chunk, share, before)))
        tokens = [len(one.ids) for one in asked]
        return {
            "right": right,
            "depths": [self.depth(trial) for trials in self.texts for trial in trials],
            "tokens": tokens,
            "read": sum(tokens),
        }

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        shares = [sum(items) / len(items) for items in raw[length]["right"]]
        wholes = [float(all(items)) for items in raw[length]["right"]]
        found = {"right": share_of(shares), "whole": share_of(wholes)}
        return {number.name: found[number.name] for number in self.numbers}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        """How much was right at the longest length, by depth."""
        of = raw[max(raw)]
        shares = tuple(sum(items) / len(items) for items in of["right"])
        words = f"{self.name} at {max(raw):,} tokens: the share that is right, by how deep in the text it lies"
        return (Detail(words, tuple(of["depths"]), shares),)


def task_of(name: str) -> Task:
    """The task of this name; raises ValueError for one that there is not."""
    if name not in TASKS:
        raise ValueError(f"no task named {quoted(name)}; there are: {', '.join(TASKS)}{near(name, list(TASKS))}")
    return TASKS[name]


@dataclass(frozen=True)
class Asks:
    """Makes the measure of a task from what is given, as the class of any other measure does."""

    task: Task
    baselines: ClassVar = LongTask.baselines
    options: ClassVar = LongTask.options

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, given: Given) -> LongTask:
        return LongTask.of(self.task, given)
