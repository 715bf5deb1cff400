"""Translate from the order subject, object, verb to verb, subject, object: qtasbk -> 'k'a't'q'b's."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from posenc import checks
from posenc.lab.tasks._symbols import BOS, END, LETTERS, Symbols, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Translation(Symbols):
    """Translate a sentence into a language with the verb first and adjectives behind nouns: qta sb k -> 'k'a't'q'b's.

    A sentence is a subject, an object and a verb; a subject or an object is any number of adjectives and a noun. In the
    translation the verb comes first, then the subject and the object, each mirrored; each word has one translation.
    Words repeat within a sentence, so the model has to find each by its place, and only its noun ends a phrase.

    The length is the number of words, 3 or more: longer sentences have more adjectives.

    symbols  how many words each language has: a third of them nouns, a third verbs, the others adjectives

    Source: the model and its training: Vaswani et al. 2017, arXiv:1706.03762, section 5; the two orders: Dryer 2013,
    WALS 81A and 87A.
    """

    also_called = ("translate", "translation", "language", "sentence")
    reads = "encoder_decoder"
    recipe = MappingProxyType(
        {"train_length": 6, "steps": 2000, "batch": 64, "schedule": "original", "rate": 1.0}
        | {"warmup": 400, "cool_down": 200}
    )
    shortest = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, symbols=3)

    @property
    def vocab(self) -> int:
        return 3 + 2 * self.symbols

    @property
    def kinds(self) -> tuple[int, int, int]:
        """The numbers of nouns, verbs and adjectives; their ids are in this order."""
        third = self.symbols // 3
        return third, third, self.symbols - 2 * third

    def tokens(self, length: int) -> int:
        return length + 1  # BOS, and the words: of the source as of the translation, which is read without its END

    def chance(self, length: int) -> float:
        nouns, verbs, adjectives = self.kinds
        # A guess needs the object's start as well as the words.
        return float(nouns) ** -2 / verbs * float(adjectives) ** (3 - length) / (length - 2)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < self.shortest:
            raise ValueError(f"translation needs 3 words, subject, object and verb, got a length of {length}")
        sentence, first = self.sentences(length, rows, generator)
        target = torch.cat((column(rows, BOS), self.translate(sentence, first), column(rows, END)), 1)
        source = torch.cat((column(rows, BOS), sentence), 1)
        return Batch.of_next(target, torch.ones(length + 1, dtype=torch.bool), source)

    def sentences(self, length: int, rows: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Random sentences [rows, length], and the place of the first noun in each [rows, 1]."""
        nouns, verbs, _ = self.kinds
        first = torch.randint(0, length - 2, (rows, 1), generator=generator)
        words = torch.randint(3 + nouns + verbs, 3 + self.symbols, (rows, length), generator=generator)
        two_nouns = torch.randint(3, 3 + nouns, (rows, 2), generator=generator)
        words.scatter_(1, torch.cat((first, torch.full_like(first, length - 2)), 1), two_nouns)
        words[:, -1] = torch.randint(3 + nouns, 3 + nouns + verbs, (rows,), generator=generator)
        return words, first

    def translate(self, sentence: Tensor, first: Tensor) -> Tensor:
        """The translations [B, n] of sentences [B, n] whose first nouns stand at `first` [B, 1]."""
        length = sentence.shape[1]
        place = torch.arange(length)
        # After the verb each phrase is mirrored: the subject ends at its noun, the object before the verb.
        source = torch.where(place <= first + 1, first + 1 - place, first + length - place)
        source[:, 0] = length - 1
        return sentence.gather(1, source) + self.symbols

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. A source word is a letter, and a translated word an apostrophe and a letter."""
        words = {BOS: "^", END: "."}
        words |= {3 + i: letter for i, letter in enumerate(LETTERS[: self.symbols])}
        words |= {3 + self.symbols + i: f"'{letter}" for i, letter in enumerate(LETTERS[: self.symbols])}
        return "".join(words[i] for i in ids)
