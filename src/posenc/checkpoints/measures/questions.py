"""Questions about long texts: a text of a given length that ends with its answer, marked after one forward pass."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.measures.measure import TooShort

Ids = Callable[[str], tuple[int, ...]]
"""A text's tokens, without any special one."""


@dataclass(frozen=True)
class Draw:
    """What one trial asks, before it is as long as it is to be; those of one text have `first` and `body` in common.

    first       what is said before the text
    body        how the text reads that is `n` steps long, in pieces; more steps are more tokens
    question    what stands behind the text
    answers     what is to be said, in this order, with commas between
    candidates  how many things whoever has not read where they stand can choose among
    any_order   whether another of the answers does as well, in each place
    """

    first: str
    body: Callable[[int], Sequence[str]]
    question: str
    answers: tuple[str, ...]
    candidates: int
    any_order: bool = False


@dataclass(frozen=True, eq=False)
class Question:
    """A text that ends with its answer.

    ids     [T], the text
    wanted  for each item of the answer the tokens that have to be foreseen: their place in `ids`, and which ones do
    """

    ids: Tensor
    wanted: tuple[tuple[tuple[int, frozenset[int]], ...], ...]

    @property
    def answer(self) -> int:
        """How many tokens at the end hold the answer."""
        return len(self.ids) - min(place for item in self.wanted for place, _ in item)

    def right(self, said: Tensor) -> list[bool]:
        """Which items were said, from the likeliest token [answer] at each place of the answer."""
        first = len(self.ids) - self.answer
        return [all(int(said[place - first]) in ids for place, ids in item) for item in self.wanted]


def ids_of(tokenizer: Any) -> Ids:
    """The tokens of texts, each text read once."""

    @functools.cache
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return ids


def questions(draws: Sequence[Draw], ids: Ids, length: int, opening: Sequence[int] = ()) -> list[Question]:
    """What was drawn of one text, which is as long as all of them can be in at most `length` tokens.

    Texts are put together from pieces that are made tokens one by one, so that they grow step by step and the answer
    begins with a token of its own.

    Raises TooShort for a length without room for one step of the text.
    """
    around = max(len(question(draw, (), ids, opening).ids) for draw in draws)
    room, body = length - around, draws[0].body

    def size(steps: int) -> int:
        return sum(len(ids(piece)) for piece in body(steps))

    if size(1) > room:
        raise TooShort(f"the text of this question takes {size(1) + around:,} tokens at least, got {length:,}")
    low, high = 1, 2
    while size(high) <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= room else (low, middle)
    return [question(draw, body(low), ids, opening) for draw in draws]


def question(draw: Draw, body: Sequence[str], ids: Ids, opening: Sequence[int] = ()) -> Question:
    """What was drawn, behind a text of these pieces."""
    answers, comma = [ids(f" {answer}") for answer in draw.answers], ids(",")
    text = [*opening, *itertools.chain.from_iterable(map(ids, (draw.first, *body, draw.question)))]
    # Where every answer begins alike, as with a space, what follows tells them apart.
    alike = common_start(answers) if draw.any_order else 0
    wanted = []
    for number, answer in enumerate(answers):
        text += comma if number else ()
        if draw.any_order:
            left = frozenset(other[alike] for other in answers[number:])
            wanted.append(((len(text) + alike, left),))
        else:
            wanted.append(tuple((len(text) + n, frozenset({token})) for n, token in enumerate(answer)))
        text += answer
    return Question(torch.tensor(text, dtype=torch.long), tuple(wanted))


def common_start(texts: Sequence[Sequence[int]]) -> int:
    """With how many tokens all of the texts begin alike.

    >>> common_start([(7, 1, 2), (7, 3)])
    1
    """
    columns = zip(*texts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
