"""A text as the tokens of a tokenizer, on the disk: bits per byte stay what is measured, so tokenizers compare."""

import codecs
import functools
import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from posenc.foreign import CannotRead, quoted, read, reading_with
from posenc.lab.texts.data import Joined, Text
from posenc.lab.texts.nameless import Nameless

MOST_FILE = 64 << 20
"""The size of a tokenizer.json (bytes)."""

AT_ONCE = 1 << 16
"""How many bytes of text are encoded at once, up to the end of a line."""

MOST_ASKED = 1 << 19
"""How many held-out pairs of tokens are looked at for what is to be beaten."""


class Tokenizer:
    """A tokenizer of the `tokenizers` library, from its tokenizer.json.

    Nothing is added to what it makes of a text: no special tokens, no padding, and nothing is cut off.

    sha256  of the file
    vocab   how many ids it has, from 0 on
    """

    def __init__(self, path: str, content: bytes) -> None:
        try:
            import tokenizers
        except ImportError:
            raise CannotRead(
                "a tokenizer needs tokenizers", file=path, remedy="install it with `pip install 'posenc[hf]'`"
            ) from None
        self.path, self.sha256 = path, hashlib.sha256(content).hexdigest()
        with reading_with("tokenizers", file=path, remedy="give a tokenizer.json"):
            self.made: Any = tokenizers.Tokenizer.from_str(content.decode())
            self.made.no_truncation()
            self.made.no_padding()
            self.vocab = 1 + max(self.made.get_vocab(with_added_tokens=True).values(), default=-1)

    @staticmethod
    def of(path: str) -> "Tokenizer":
        """Raises CannotRead for a file that is missing or no tokenizer, and where the library is not installed."""
        return tokenizer_of(path, read(path, most=MOST_FILE))

    def encode(self, text: str) -> list[int]:
        return self.made.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.made.decode(ids, skip_special_tokens=False)

    def with_bytes(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text, and how many of its bytes each stands for; together these are all of its bytes.

        A letter of several tokens counts for the first of them.

        Raises CannotRead where the ids do not give the text back: what is lost would cost no bits.
        """
        encoded = self.made.encode(text, add_special_tokens=False)
        if (back := self.decode(encoded.ids)) != text:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(text, back, strict=False))
            place = sum(1 for _ in same)
            raise CannotRead(
                f"it does not give back the text that it was given: {quoted(text[place : place + 20])} comes back as "
                f"{quoted(back[place : place + 20])}, and bits per byte would be those of another text",
                file=self.path,
                remedy="take one that loses nothing, such as a byte-level BPE",
            )
        ends = [0, *(end for _, end in encoded.offsets)]
        # Some tokenizers leave blanks out of what they say of their places.
        ends[-1] = len(text)
        return encoded.ids, [len(text[a:b].encode()) for a, b in pairwise(ends)]


class Numbers:
    """Whole numbers from 0 on, of two or four bytes each, on the disk."""

    def __init__(self, width: int) -> None:
        self.file, self.width = Nameless(), width
        self.code, self.kind = {2: ("H", torch.uint16), 4: ("I", torch.uint32)}[width]

    def __len__(self) -> int:
        return self.file.size // self.width

    def write(self, numbers: list[int]) -> None:
        """Add to their end."""
        self.file.write(array(self.code, numbers).tobytes())

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` of them from each of the places [B] on: [B, length] int64."""
        found = b"".join(self.file.read(place * self.width, length * self.width) for place in start.tolist())
        return torch.frombuffer(bytearray(found), dtype=self.kind).view(-1, length).long()


class Tokens:
    """A text as ids, two or four bytes each on the disk, and beside each how many bytes of the text it stands for."""

    def __init__(self, source: Joined, tokenizer: Tokenizer) -> None:
        self.ids = Numbers(2 if tokenizer.vocab <= 1 << 16 else 4)
        self.sizes = Numbers(4)
        for text in in_lines(source):
            ids, sizes = tokenizer.with_bytes(text)
            self.ids.write(ids)
            self.sizes.write(sizes)

    def __len__(self) -> int:
        """In tokens."""
        return len(self.ids)

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` ids from each of the places [B] on: [B, length] int64."""
        return self.ids.windows(start, length)

    def bytes_in(self, start: Tensor, length: int) -> Tensor:
        """How many bytes each of these tokens stands for: [B, length] int64."""
        return self.sizes.windows(start, length)

    def blocks(self) -> Iterator[Tensor]:
        """All ids, a block at a time, each block from the last id of the one before."""
        for place in range(0, len(self) - 1, AT_ONCE):
            yield self.windows(torch.tensor([place]), min(AT_ONCE + 1, len(self) - place))[0]


def in_lines(source: Joined) -> Iterator[str]:
    """A text in pieces of a few blocks at most, cut behind the ends of lines where there are any."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    for place in range(0, len(source), AT_ONCE):
        text = rest + decoder.decode(source.read(place, min(AT_ONCE, len(source) - place)))
        # A block without an end of a line is cut where it ends.
        cut = text.rfind("\n") + 1 or len(text)
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if rest:
        yield rest


@dataclass(frozen=True, eq=False)
class Tokenized:
    """A text and its tokens, to train on and held out.

    text       the bytes
    tokenizer  what made the tokens of them
    """

    text: Text
    tokenizer: Tokenizer
    train: Tokens
    test: Tokens

    @property
    def sha256(self) -> str:
        """Of the bytes of the text."""
        return self.text.sha256

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a model that knows only the token before: what a language model has to beat.

        p(b | a) = (count(a b) + 10 p(b)) / (count(a) + 10),   p(b) = (count(b) + 0.1) / (tokens + 0.1 vocab)

        Counted in all that is trained on, for the pairs of tokens at the beginning of what is held out.
        """
        vocab = self.tokenizer.vocab
        asked = self.test.windows(torch.tensor([0]), min(len(self.test), MOST_ASKED))[0]
        pairs, came = torch.unique(asked[:-1] * vocab + asked[1:], return_counts=True)
        found, before, alone = (torch.zeros(size, dtype=torch.double) for size in (len(pairs), vocab, vocab))
        for ids in self.train.blocks():
            seen = ids[:-1] * vocab + ids[1:]
            place = torch.searchsorted(pairs, seen).clamp(max=len(pairs) - 1)
            found += torch.bincount(place[pairs[place] == seen], minlength=len(pairs))
            before += torch.bincount(ids[:-1], minlength=vocab)
            alone += torch.bincount(ids[1:], minlength=vocab)
        first, then = pairs // vocab, pairs % vocab
        share = (alone + 0.1) / (alone.sum() + 0.1 * vocab)
        chance = (found + 10 * share[then]) / (before[first] + 10)
        covered = int(self.test.bytes_in(torch.tensor([1]), len(asked) - 1).sum())
        return float(-(came * chance.log2()).sum()) / covered

    def facts(self) -> dict:
        """What a record keeps of the text and its tokens."""
        return self.text.facts() | {
            "tokenizer": self.tokenizer.path,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab,
            "train_tokens": len(self.train),
            "test_tokens": len(self.test),
            "bytes_per_token": len(self.text.test) / len(self.test),
            "bigram_bits_per_byte": self.bigram_bits,
        }


@functools.lru_cache(maxsize=2)
def tokenizer_of(path: str, content: bytes) -> Tokenizer:
    """The tokenizer of a file with this content, made once in a process."""
    return Tokenizer(path, content)


@functools.lru_cache(maxsize=2)
def tokenized(text: Text, tokenizer: Tokenizer) -> Tokenized:
    """A text in tokens, encoded once in a process."""
    return Tokenized(text, tokenizer, Tokens(text.train, tokenizer), Tokens(text.test, tokenizer))
