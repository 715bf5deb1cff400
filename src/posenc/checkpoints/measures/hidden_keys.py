"""Hidden keys: whether a model repeats the number of a word from anywhere in a long text.

After two tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3), with our own sentences, from a seed.
"""

import bisect
import functools
import hashlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from posenc.checkpoints.measures.measure import (
    WHOLE,
    Inputs,
    Measure,
    Number,
    Progress,
    TooShort,
    Value,
    part_progress,
    share_of,
    tokenizer_of,
)
from posenc.checkpoints.measures.perplexity import PrefixCache, likeliest_tokens, opening_of, read_texts
from posenc.foreign import quote

if TYPE_CHECKING:
    from transformers import PreTrainedModel as Model

THRESHOLD = 0.856
"""The score at which a model can do a task at a length: RULER's threshold, which is the score of Llama 2 (7B) at its
trained length of 4,096 tokens (arXiv:2404.06654, section 4)."""

DEFAULT_TRIALS = 8
"""The default number of trials."""

PROMPT = "Numbers of words are hidden in the following text. Remember them: they are asked for at the end.\n\n"

FILLER = (
    "The tide comes in. ",
    "The tide goes out. ",
    "Boats lie in the harbour. ",
    "A gull sits on the wall. ",
    "It was like this before. ",
)
"""The filler of texts, unless the user gives a text: it has no number and no key."""

KEY_WORDS = tuple(
    "apple arrow baker basket bell bird boat book bottle bridge brush butter button cabin camel candle carpet castle "
    "chair cherry circle clock cloud coat copper corner cotton dance desert doctor dragon drum eagle earth engine "
    "farmer feather fence finger flag flower forest fork garden gate ghost glass goat guitar hammer hat honey horse "
    "house ice island jacket jewel judge jungle key king kitchen kite knife ladder lake lamp leaf lemon letter lion "
    "magnet maple market mirror monkey moon mountain needle nest night ocean olive onion orange oven owl paint palace "
    "paper pencil piano pillow planet pocket queen quilt rabbit radio rain ribbon river rocket rope salt school "
    "shadow silver spoon star stone table tiger tower train tree turtle umbrella uncle valley velvet village violin "
    "wagon water whale window wolf yard yellow zebra zero".split()
)
"""The words that have numbers: plain words, some for each letter."""

KEY_NUMBERS = range(10_000, 100_000)

Tokenize = Callable[[str], tuple[int, ...]]
"""text -> its tokens, without special tokens."""


@dataclass(frozen=True, eq=False)
class Question:
    """A text [T] that ends with its answer, and the number of tokens of that answer."""

    ids: Tensor
    answer: int


class OneKey(Measure):
    """Decoders: whether the model says the number of a word, in a text without another number.

    The depths of the trials are spread evenly from the beginning of the text to its end, the same at every length and
    for every method. An answer is right if each of its tokens is the likeliest one after the right tokens before it:
    greedy decoding would then say it, by induction on the first mistake.
    """

    name = "one-key"
    words: ClassVar[str] = "the number of a word, in a text where nothing else is a number"
    keys: ClassVar[int] = 1
    price = "right"
    needs = THRESHOLD
    options = frozenset({"text", "samples", "chunk", "cache"})

    def __init__(self, inputs: Inputs, seed: int = 0) -> None:
        """Samples are trials. Raises CannotRead without a tokenizer, ValueError as `plain_sentences` does."""
        self.tokenizer, self.chunk, self.cache = tokenizer_of(inputs.checkpoint), inputs.chunk, inputs.cache
        self.seed = seed
        self.opening = opening_of(self.tokenizer)
        self.trials = DEFAULT_TRIALS if inputs.samples is None else inputs.samples
        self.filler, source = FILLER, "repeated sentences"
        if inputs.text:
            title, text = read_texts(inputs.text)
            self.filler, source = plain_sentences(text), f"sentences of {title}"
        filler = hashlib.sha256("\0".join(self.filler).encode()).hexdigest()
        self.source = f"{self.trials} trials: {self.words}, in {source}"
        self.facts = {"task": self.name, "trials": self.trials, "seed": seed, "filler": filler, "chunk": self.chunk}
        # A model that does not read the only number of a text guesses among all numbers.
        chance = 1 / (self.keys if self.keys > 1 else len(KEY_NUMBERS))
        self.numbers = (Number("right", "share of what is asked that is said", True, chance),)

    def depth(self, trial: int) -> float:
        """Return the depth of a trial's key in its text, from 0 to 1."""
        return trial / (self.trials - 1) if self.trials > 1 else 0.5

    @property
    def texts(self) -> list[range]:
        """The trials of each text: one per key, spread over its depth. A common prefix of texts is read once."""
        count = math.ceil(self.trials / self.keys)
        return [range(first, self.trials, count) for first in range(count)]

    def keys_in(self, text: int) -> dict[str, tuple[str, float]]:
        """Return the words of a text with their numbers and depths; the trials ask for the first words."""
        random_numbers = random.Random(f"{self.seed} {self.name} {text}")
        names = random_numbers.sample(KEY_WORDS, self.keys)
        numbers = map(str, random_numbers.sample(KEY_NUMBERS, self.keys))
        depths = [random_numbers.random() for _ in names]
        trial_depths = [self.depth(trial) for trial in self.texts[text]]
        depths[: len(trial_depths)] = trial_depths
        return dict(zip(names, zip(numbers, depths, strict=True), strict=True))

    def questions(self, length: int) -> Iterator[Question]:
        """Yield the trials at a length, text by text; raises TooShort for a length without room."""

        @functools.cache
        def tokenize(piece: str) -> tuple[int, ...]:
            return tuple(self.tokenizer(piece, add_special_tokens=False)["input_ids"])

        for text, trials in enumerate(self.texts):
            yield from self.text_questions(self.keys_in(text), len(trials), tokenize, length)

    def text_questions(
        self, keys: Mapping[str, tuple[str, float]], trials: int, tokenize: Tokenize, length: int
    ) -> Iterator[Question]:
        """Yield the trials of one text, the longest with which each fits into `length` tokens.

        The pieces of a text are tokenized one by one, so that it grows step by step and the answer begins with its own
        token.
        """
        opening = [*self.opening, *tokenize(PROMPT)]
        ends = [(tokenize(f"\n\nThe number of {name} is"), tokenize(f" {keys[name][0]}")) for name in [*keys][:trials]]
        fixed_tokens = len(opening) + max(len(question) + len(answer) for question, answer in ends)
        sentences = [(depth, f"The number of {name} is {number}. ") for name, (number, depth) in keys.items()]

        def count_tokens(steps: int) -> int:
            return sum(len(tokenize(piece)) for piece in haystack(sentences, self.filler, steps))

        if count_tokens(1) > length - fixed_tokens:
            least = count_tokens(1) + fixed_tokens
            raise TooShort(f"the text of this question takes {least:,} tokens at least, got {length:,}")
        # Each step adds a token or more.
        steps = bisect.bisect_right(range(length - fixed_tokens + 1), length - fixed_tokens, key=count_tokens) - 1
        body = [token for piece in haystack(sentences, self.filler, steps) for token in tokenize(piece)]
        for question, answer in ends:
            yield Question(torch.tensor([*opening, *body, *question, *answer], dtype=torch.long), len(answer))

    def work(self, length: int) -> float:
        return self.trials * length

    def run(self, model: "Model", length: int, how: str = WHOLE, tell: Progress | None = None) -> dict[str, Any]:
        """Return whether each trial is right; raises TooShort for a length without room for the task."""
        if how != WHOLE:
            raise ValueError(f"{self.name} is asked of the whole text alone, not of {quote(how)}")
        trials, prefix, right = list(self.questions(length)), PrefixCache(self.cache), []
        for number, question in enumerate(trials):
            share = part_progress(tell, number, len(trials))
            answer = likeliest_tokens(model, question.ids, question.answer, self.chunk, prefix, share)
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
    """Return sentences of the filler with the sentences of the keys among them, each at its depth."""
    text = [filler[n % len(filler)] for n in range(steps)]
    for depth, sentence in reversed(sorted(keys, key=lambda pair: pair[0])):
        text.insert(round(depth * steps), sentence)
    return text


def plain_sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text without digits, because a number could be an answer.

    Raises ValueError for a text without such sentences.

    >>> plain_sentences("It rains. It is 9 degrees. So be it!")
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
