"""A text as a tokenizer's tokens, on disk; scores stay in bits per byte, so tokenizers compare."""

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

from posenc.foreign import CannotRead, quote, read, reading_with
from posenc.lab.texts.data import JoinedPieces, SplitText
from posenc.lab.texts.scratch_file import ScratchFile

MAX_TOKENIZER_BYTES = 64 << 20
"""The largest tokenizer.json (bytes)."""

BLOCK_BYTES = 1 << 16
"""The bytes of text that are encoded at once, cut at the end of a line."""

MAX_BIGRAM_TOKENS = 1 << 19
"""The most held-out tokens for the bigram baseline."""


class Tokenizer:
    """A tokenizer of the `tokenizers` library, from its tokenizer.json.

    It encodes without special tokens, padding or truncation.

    sha256  of the file
    vocab   the number of ids, from 0 on
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
            self.library_tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
            self.library_tokenizer.no_truncation()
            self.library_tokenizer.no_padding()
            self.vocab = 1 + max(self.library_tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @staticmethod
    def from_file(path: str) -> "Tokenizer":
        """Read a file. Raises CannotRead where it is missing or no tokenizer, and without the library."""
        return cached_tokenizer(path, read(path, limit=MAX_TOKENIZER_BYTES))

    def encode(self, text: str) -> list[int]:
        return self.library_tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.library_tokenizer.decode(ids, skip_special_tokens=False)

    def with_bytes(self, text: str) -> tuple[list[int], list[int]]:
        """Return a text's ids and the bytes of each, which add up to the size of the text.

        A letter of several tokens counts for the first of them.

        Raises CannotRead where decoding does not return the text, because lost letters would cost no bits.
        """
        encoding = self.library_tokenizer.encode(text, add_special_tokens=False)
        if (decoded_text := self.decode(encoding.ids)) != text:
            common = takewhile(lambda pair: pair[0] == pair[1], zip(text, decoded_text, strict=False))
            place = sum(1 for _ in common)
            raise CannotRead(
                f"it does not give back the text that it was given: {quote(text[place : place + 20])} comes back as "
                f"{quote(decoded_text[place : place + 20])}, and bits per byte would be those of another text",
                file=self.path,
                remedy="take one that loses nothing, such as a byte-level BPE",
            )
        ends = [0, *(end for _, end in encoding.offsets)]
        # The offsets of some tokenizers leave blanks out.
        ends[-1] = len(text)
        return encoding.ids, [len(text[a:b].encode()) for a, b in pairwise(ends)]


class IntegerFile:
    """Unsigned integers of two or four bytes, on disk."""

    def __init__(self, width: int) -> None:
        self.file, self.width = ScratchFile(), width
        self.code, self.kind = {2: ("H", torch.uint16), 4: ("I", torch.uint32)}[width]

    def __len__(self) -> int:
        return self.file.size // self.width

    def write(self, numbers: list[int]) -> None:
        """Append numbers."""
        self.file.write(array(self.code, numbers).tobytes())

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` numbers from each start [B]: [B, length] int64."""
        data = b"".join(self.file.read(place * self.width, length * self.width) for place in start.tolist())
        return torch.frombuffer(bytearray(data), dtype=self.kind).view(-1, length).long()


class TokenFile:
    """A text as ids of two or four bytes on disk, with each id's bytes of text."""

    def __init__(self, source: JoinedPieces, tokenizer: Tokenizer) -> None:
        self.ids = IntegerFile(2 if tokenizer.vocab <= 1 << 16 else 4)
        self.sizes = IntegerFile(4)
        for text in text_blocks(source):
            ids, sizes = tokenizer.with_bytes(text)
            self.ids.write(ids)
            self.sizes.write(sizes)

    def __len__(self) -> int:
        """The size in tokens."""
        return len(self.ids)

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` ids from each start [B]: [B, length] int64."""
        return self.ids.windows(start, length)

    def bytes_in(self, start: Tensor, length: int) -> Tensor:
        """The bytes of text of each of these tokens: [B, length] int64."""
        return self.sizes.windows(start, length)

    def blocks(self) -> Iterator[Tensor]:
        """Yield all ids in blocks, each from the last id of the previous one."""
        for place in range(0, len(self) - 1, BLOCK_BYTES):
            yield self.windows(torch.tensor([place]), min(BLOCK_BYTES + 1, len(self) - place))[0]


def text_blocks(source: JoinedPieces) -> Iterator[str]:
    """Yield a text in pieces of a few blocks at most, cut at the ends of lines."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    for place in range(0, len(source), BLOCK_BYTES):
        text = rest + decoder.decode(source.read(place, min(BLOCK_BYTES, len(source) - place)))
        # A block without a newline is cut at its end.
        cut = text.rfind("\n") + 1 or len(text)
        rest = text[cut:]
        if cut:
            yield text[:cut]
    if rest:
        yield rest


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The training and held-out tokens of a text."""

    text: SplitText
    tokenizer: Tokenizer
    train: TokenFile
    test: TokenFile

    @property
    def sha256(self) -> str:
        """The SHA-256 of the text's bytes."""
        return self.text.sha256

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a bigram model of tokens: the baseline of a language model.

        p(b | a) = (count(a b) + 10 p(b)) / (count(a) + 10),   p(b) = (count(b) + 0.1) / (tokens + 0.1 vocab)

        Counted in all training tokens, for the pairs at the beginning of the held-out ones.
        """
        vocab = self.tokenizer.vocab
        tokens = self.test.windows(torch.tensor([0]), min(len(self.test), MAX_BIGRAM_TOKENS))[0]
        pairs, test_counts = torch.unique(tokens[:-1] * vocab + tokens[1:], return_counts=True)
        joint, firsts, totals = (torch.zeros(size, dtype=torch.double) for size in (len(pairs), vocab, vocab))
        for ids in self.train.blocks():
            train_pairs = ids[:-1] * vocab + ids[1:]
            place = torch.searchsorted(pairs, train_pairs).clamp(max=len(pairs) - 1)
            joint += torch.bincount(place[pairs[place] == train_pairs], minlength=len(pairs))
            firsts += torch.bincount(ids[:-1], minlength=vocab)
            totals += torch.bincount(ids[1:], minlength=vocab)
        first, second = pairs // vocab, pairs % vocab
        share = (totals + 0.1) / (totals.sum() + 0.1 * vocab)
        chance = (joint + 10 * share[second]) / (firsts[first] + 10)
        byte_count = int(self.test.bytes_in(torch.tensor([1]), len(tokens) - 1).sum())
        return float(-(test_counts * chance.log2()).sum()) / byte_count

    def record_entry(self) -> dict:
        """The entry of the text and its tokens in a record."""
        return self.text.record_entry() | {
            "tokenizer": self.tokenizer.path,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab,
            "train_tokens": len(self.train),
            "test_tokens": len(self.test),
            "bytes_per_token": len(self.text.test) / len(self.test),
            "bigram_bits_per_byte": self.bigram_bits,
        }


@functools.lru_cache(maxsize=2)
def cached_tokenizer(path: str, content: bytes) -> Tokenizer:
    """The tokenizer of a file with this content, built once in a process."""
    return Tokenizer(path, content)


@functools.lru_cache(maxsize=2)
def tokenize_text(text: SplitText, tokenizer: Tokenizer) -> TokenizedText:
    """The tokens of a text, encoded once in a process."""
    return TokenizedText(text, tokenizer, TokenFile(text.train, tokenizer), TokenFile(text.test, tokenizer))
