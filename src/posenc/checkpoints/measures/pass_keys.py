"""Passkey retrieval: a number hidden at some depth of a long, dull text, which the model has to say at its end."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

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
from posenc.checkpoints.measures.perplexity import DEVICE, Read, costs, likeliest, opening_of

OPENING = "Somewhere in the following text a pass key is hidden. Remember it: you will be asked for it at the end.\n\n"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key. "
QUESTION = "\n\nWhat is the pass key? The pass key is"

DEPTHS = (0.1, 0.5, 0.9)
"""Where the key is hidden: shares of the text before it."""

ABLE = 0.9
"""A model that says fewer of the keys than this at its trained length cannot do the task, so longer texts say nothing
of positions."""


@dataclass(frozen=True)
class Retrieval:
    """How many keys were said without a mistake at a length (tokens) and a depth (share of the text before the key)."""

    length: int
    depth: float
    right: int
    trials: int


def prompt(tokenizer: Any, length: int, depth: float, key: int, opening: Sequence[int] = ()) -> tuple[Tensor, int]:
    """The ids of a text of at most `length` tokens that ends with the key, and how many of them are that answer.

    The filler is cut between its sentences, so that the text is less than one round of them shorter than asked.

    Raises TooShort for a length without room for any filler, ValueError for a depth outside 0..1.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"a depth is the share of the text before the key, from 0 to 1, got {depth}")

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    filler, answer = ids(FILLER), ids(f" {key}")
    start, needle, question = [*opening, *ids(OPENING)], ids(NEEDLE.format(key=key)), ids(QUESTION)
    rounds = (length - len(start) - len(needle) - len(question) - len(answer)) // len(filler)
    if rounds < 1:
        raise TooShort(f"a pass key needs more text to hide in than {length} tokens give")
    before = round(depth * rounds)
    text = [*start, *filler * before, *needle, *filler * (rounds - before), *question, *answer]
    return torch.tensor(text, dtype=torch.long), len(answer)


def says_the_key(
    model: Any, ids: Tensor, answer: int, *, chunk: int = 1024, tell: Tell | None = None, read: Read | None = None
) -> bool:
    """Whether the model, reading greedily, says the last `answer` tokens of a text without a mistake.

    read  what it read before, as `likeliest` has it

    One teacher-forced pass: a greedy answer is right exactly when every prediction of it is, by induction on the first
    mistake.
    """
    return bool((likeliest(model, ids, answer, chunk, tell, read) == ids[-answer:]).all())


def retrieve(
    model: Any,
    tokenizer: Any,
    length: int,
    trials: int,
    *,
    depths: Sequence[float] = DEPTHS,
    opening: Sequence[int] = (),
    chunk: int = 1024,
    cache: str = DEVICE,
    tell: Tell | None = None,
) -> list[Retrieval]:
    """How often the key is found at each depth of a text; each trial is a pass with a key of its own.

    The keys are the same for every model and method, five digits drawn from the depth and the trial.
    """
    asked = prompts(tokenizer, length, trials, depths, opening)
    work, before, right = costs(model, [ids for ids, _ in asked], cache), Read(cache), []
    for number, (ids, answer) in enumerate(asked):
        share = part_of(tell, sum(work[:number]), sum(work), work[number])
        right.append(says_the_key(model, ids, answer, chunk=chunk, tell=share, read=before))
    return [
        Retrieval(length, depth, sum(right[place * trials : (place + 1) * trials]), trials)
        for place, depth in enumerate(depths)
    ]


def prompts(
    tokenizer: Any, length: int, trials: int, depths: Sequence[float], opening: Sequence[int]
) -> list[tuple[Tensor, int]]:
    """The texts of every trial at every depth, as `prompt` has them; raises as it does."""
    return [
        prompt(tokenizer, length, depth, random.Random(f"{depth} {trial}").randrange(10_000, 100_000), opening)
        for depth in depths
        for trial in range(trials)
    ]


class PassKeys:
    """Decoders: whether the model says a number that stood at some depth of a dull text."""

    name: ClassVar = "pass-keys"
    unit: ClassVar = "tokens"
    numbers: ClassVar = (Number("right", "share of pass keys said right", True, chance=1 / 90_000),)
    price: ClassVar = "right"
    needs: ClassVar = ABLE
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar = frozenset({"passkey", "chunk", "cache"})

    def __init__(self, given: Given) -> None:
        """Raises CannotRead without a tokenizer, ValueError without trials."""
        if given.passkey < 1:
            raise ValueError(f"pass-keys takes a --passkey of 1 or more, got {given.passkey}")
        self.tokenizer, self.trials, self.chunk = tokenizer_of(given.loaded), given.passkey, given.chunk
        self.cache = given.cache
        self.opening = opening_of(self.tokenizer)
        self.on = f"{self.trials} of {len(DEPTHS)} depths each, in repeated sentences; chunks of {self.chunk:,} tokens"
        self.facts = {"trials": self.trials, "depths": list(DEPTHS), "chunk": self.chunk}

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        try:
            asked = prompts(self.tokenizer, length, self.trials, DEPTHS, self.opening)
        except TooShort:
            return 0.0
        return sum(costs(model, [ids for ids, _ in asked], self.cache))

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        how_read: dict[str, Any] = {"opening": self.opening, "chunk": self.chunk, "cache": self.cache, "tell": tell}
        keys = retrieve(model, self.tokenizer, length, self.trials, **how_read)
        return {"keys": [asdict(key) for key in keys], "read": length * self.trials * len(DEPTHS)}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        keys = [Retrieval(**key) for key in raw[length]["keys"]]
        return {"right": share_of([float(trial < key.right) for key in keys for trial in range(key.trials)])}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return tuple(
            Detail(
                f"Share of pass keys said right in {length:,} tokens, by how much text stands before them",
                tuple(f"{key['depth']:.0%}" for key in raw[length]["keys"]),
                tuple(key["right"] / key["trials"] for key in raw[length]["keys"]),
            )
            for length in sorted(raw)
        )
