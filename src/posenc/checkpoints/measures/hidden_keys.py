"""Keys in long texts: whether a model says the number of a word that stood somewhere in a text of any length.

After two tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3), in sentences of our own, from a seed alone.
"""

import bisect
import functools
import hashlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.checkpoints.measures.measure import (
    WHOLE,
    Given,
    Measure,
    Number,
    Tell,
    TooShort,
    Value,
    part_of,
    share_of,
    tokenizer_of,
)
from posenc.checkpoints.measures.perplexity import Read, likeliest, opening_of, read
from posenc.foreign import quoted

ENOUGH = 0.856
"""A task can be done at a length where so much of it is right: RULER's threshold, which is what Llama 2 (7B) scores at
its trained length of 4,096 tokens (arXiv:2404.06654, section 4)."""

TRIALS = 8
"""Where nobody says how many."""

FIRST = "Numbers of words are hidden in the following text. Remember them: they are asked for at the end.\n\n"

FILLER = (
    "The tide comes in. ",
    "The tide goes out. ",
    "Boats lie in the harbour. ",
    "A gull sits on the wall. ",
    "It was like this before. ",
)
"""What the texts are made long with, unless a text is given: nothing in it is a number or a key."""

WORDS = tuple(
    "apple arrow baker basket bell bird boat book bottle bridge brush butter button cabin camel candle carpet castle "
    "chair cherry circle clock cloud coat copper corner cotton dance desert doctor dragon drum eagle earth engine "
    "farmer feather fence finger flag flower forest fork garden gate ghost glass goat guitar hammer hat honey horse "
    "house ice island jacket jewel judge jungle key king kitchen kite knife ladder lake lamp leaf lemon letter lion "
    "magnet maple market mirror monkey moon mountain needle nest night ocean olive onion orange oven owl paint palace "
    "paper pencil piano pillow planet pocket queen quilt rabbit radio rain ribbon river rocket rope salt school "
    "shadow silver spoon star stone table tiger tower train tree turtle umbrella uncle valley velvet village violin "
    "wagon water whale window wolf yard yellow zebra zero".split()
)
"""The words that have numbers: plain ones, some for each letter."""

NUMBERS = range(10_000, 100_000)

Ids = Callable[[str], tuple[int, ...]]
"""A text's tokens, without any special one."""


@dataclass(frozen=True, eq=False)
class Question:
    """A text [T] that ends with its answer, and how many of its tokens are that answer."""

    ids: Tensor
    answer: int


class OneKey(Measure):
    """Decoders: whether the model says the number of a word, in a text where nothing else is a number.

    Trials lie at depths that are spread evenly from the beginning of the text to its end, the same at every length and
    for every method. A number is said where all of its tokens are the likeliest ones, those before it given: this is
    what reading greedily would say, by induction on the first mistake.
    """

    name = "one-key"
    words: ClassVar[str] = "the number of a word, in a text where nothing else is a number"
    keys: ClassVar[int] = 1
    price = "right"
    needs = ENOUGH
    options = frozenset({"text", "samples", "chunk", "cache"})

    def __init__(self, given: Given, seed: int = 0) -> None:
        """In sentences of the text where one is given; samples are trials.

        Raises CannotRead without a tokenizer, ValueError as `sentences` does.
        """
        self.tokenizer, self.chunk, self.cache, self.seed = tokenizer_of(given.loaded), given.chunk, given.cache, seed
        self.opening = opening_of(self.tokenizer)
        self.trials = TRIALS if given.samples is None else given.samples
        self.filler, source = FILLER, "repeated sentences"
        if given.text:
            title, text = read(given.text)
            self.filler, source = sentences(text), f"sentences of {title}"
        filler = hashlib.sha256("\0".join(self.filler).encode()).hexdigest()
        self.on = f"{self.trials} trials: {self.words}, in {source}"
        self.facts = {"task": self.name, "trials": self.trials, "seed": seed, "filler": filler, "chunk": self.chunk}
        # One number alone in a text is one among all numbers for whoever does not read it.
        chance = 1 / (self.keys if self.keys > 1 else len(NUMBERS))
        self.numbers = (Number("right", "share of what is asked that is said", True, chance),)

    def depth(self, trial: int) -> float:
        """How deep in its text a trial lies, from 0 to 1."""
        return trial / (self.trials - 1) if self.trials > 1 else 0.5

    @property
    def texts(self) -> list[range]:
        """The trials of each text: as many as it has keys, spread over its depth, because what texts begin with alike
        is read once."""
        count = math.ceil(self.trials / self.keys)
        return [range(first, self.trials, count) for first in range(count)]

    def keys_of(self, text: int) -> dict[str, tuple[str, float]]:
        """The words of a text, each with its number and its depth; each of its trials asks for one of the first, which
        lies as deep as the trial."""
        random_numbers = random.Random(f"{self.seed} {self.name} {text}")
        names = random_numbers.sample(WORDS, self.keys)
        numbers = map(str, random_numbers.sample(NUMBERS, self.keys))
        depths = [random_numbers.random() for _ in names]
        asked = [self.depth(trial) for trial in self.texts[text]]
        depths[: len(asked)] = asked
        return dict(zip(names, zip(numbers, depths, strict=True), strict=True))

    def questions(self, length: int) -> Iterator[Question]:
        """The trials at a length, text by text; raises TooShort where it is too short for the task."""

        @functools.cache
        def ids(piece: str) -> tuple[int, ...]:
            return tuple(self.tokenizer(piece, add_special_tokens=False)["input_ids"])

        for text, trials in enumerate(self.texts):
            yield from self.questions_of(self.keys_of(text), len(trials), ids, length)

    def questions_of(
        self, keys: Mapping[str, tuple[str, float]], trials: int, ids: Ids, length: int
    ) -> Iterator[Question]:
        """The trials of a text, which is as long as all of them can be in at most `length` tokens.

        Texts are put together from pieces that are made tokens one by one, so that they grow step by step and the
        answer begins with a token of its own.
        """
        opening = [*self.opening, *ids(FIRST)]
        ends = [(ids(f"\n\nThe number of {name} is"), ids(f" {keys[name][0]}")) for name in [*keys][:trials]]
        around = len(opening) + max(len(question) + len(answer) for question, answer in ends)
        hidden = [(depth, f"The number of {name} is {number}. ") for name, (number, depth) in keys.items()]

        def size(steps: int) -> int:
            return sum(len(ids(piece)) for piece in haystack(hidden, self.filler, steps))

        if size(1) > length - around:
            raise TooShort(f"the text of this question takes {size(1) + around:,} tokens at least, got {length:,}")
        # A step takes a token or more.
        steps = bisect.bisect_right(range(length - around + 1), length - around, key=size) - 1
        body = [token for piece in haystack(hidden, self.filler, steps) for token in ids(piece)]
        for question, answer in ends:
            yield Question(torch.tensor([*opening, *body, *question, *answer], dtype=torch.long), len(answer))

    def work(self, length: int) -> float:
        return self.trials * length

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """Whether each trial was right; raises TooShort for a length without room for the task."""
        if how != WHOLE:
            raise ValueError(f"{self.name} is asked of the whole text alone, not of {quoted(how)}")
        trials, reader, right = list(self.questions(length)), Read(self.cache), []
        for number, question in enumerate(trials):
            share = part_of(tell, number, len(trials))
            answer = likeliest(model, question.ids, question.answer, self.chunk, share, reader)
            right.append(answer.equal(question.ids[-question.answer :]))
        return {"right": right, "read": sum(len(question.ids) for question in trials)}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        return {"right": share_of([float(right) for right in raw[length]["right"]])}


class SeveralKeys(OneKey):
    """Decoders: whether the model says the number of one of eight words."""

    name = "several-keys"
    words = "the number of one of 8 words"
    keys = 8


def haystack(keys: Sequence[tuple[float, str]], filler: Sequence[str], steps: int) -> list[str]:
    """So many sentences of the filler, with those of the keys among them, each at its depth in the text."""
    text = [filler[n % len(filler)] for n in range(steps)]
    for depth, sentence in reversed(sorted(keys, key=lambda pair: pair[0])):
        text.insert(round(depth * steps), sentence)
    return text


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text that may fill one: those without numbers, because an answer may be one.

    Raises ValueError for a text without such sentences.

    >>> sentences("It rains. It is 9 degrees. So be it!")
    ('It rains. ', 'So be it! ')
    """
    pieces = (" ".join(piece.split()) for piece in re.split(r"(?<=[.!?])\s+", text))
    plain = tuple(f"{piece} " for piece in pieces if piece and not re.search(r"\d", piece))
    if not plain:
        raise ValueError(
            "the text has no sentence without a number, so that no key can be hidden in it; give another --text, or "
            "--measures perplexity alone"
        )
    return plain
