"""Text to train on: the Python standard library's own documentation and sources, or the user's files and records.

Texts stay on the disk. They are read through once, in blocks, and then where a window is asked for, so that no process
holds more than a few blocks of a text, whatever its size. They are not mapped into memory: a map of a file that
somebody cuts short ends the process, a read of it is answered with a sentence.
"""

import codecs
import functools
import hashlib
import os
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from posenc.foreign import CannotRead, quoted, regular
from posenc.lab.texts import documents
from posenc.lab.texts.nameless import BLOCK, Nameless

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tex", ".html", ".json", ".csv", ".c", ".h", ".cpp", ".rs", ".js", ".ts", "")
LEAST = 20_000
"""A text must hold this many bytes: fewer leave no held-out windows worth measuring."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one file, as it was when it was found.

    start, size  which of its bytes
    state        size (bytes) and time of the last change (ns) of the whole file
    """

    path: Path
    start: int
    size: int
    state: tuple[int, int]

    @staticmethod
    def of(path: Path, within: Path | None = None) -> "Piece":
        """All of a file. Raises CannotRead as `regular` does."""
        found = os.stat(regular(path, within))
        return Piece(path, 0, found.st_size, (found.st_size, found.st_mtime_ns))

    def read(self, place: int, count: int) -> bytes:
        """`count` of its bytes from `place` on. Raises CannotRead where the file is no longer what it was."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                now = os.fstat(file.fileno())
                file.seek(self.start + place)
                data = file.read(count)
        except OSError as error:
            raise CannotRead(f"'{self.path}' cannot be read: {error.strerror}") from None
        if (now.st_size, now.st_mtime_ns) != self.state or len(data) < count:
            raise CannotRead(f"'{self.path}' was changed while it was in use; run the same command again")
        return data


class Joined:
    """Pieces of files behind one another with a newline between them, read from the disk where they are asked for."""

    def __init__(self, pieces: Sequence[Piece | Nameless]) -> None:
        self.pieces = tuple(pieces)
        # Where each piece begins; behind the last one, where another would.
        self.begins = [0, *accumulate(piece.size + 1 for piece in self.pieces)]

    def __len__(self) -> int:
        """In bytes."""
        return self.begins[-1] - 1

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from the place `start` on."""
        found = bytearray()
        number = bisect_right(self.begins, start) - 1
        while len(found) < count:
            place = start + len(found) - self.begins[number]
            found += self.pieces[number].read(place, min(count - len(found), self.pieces[number].size - place))
            number += 1
            if len(found) < count:
                found += b"\n"
        return bytes(found)

    def blocks(self) -> Iterator[bytes]:
        """All of it, a block at a time."""
        for place in range(0, len(self), BLOCK):
            yield self.read(place, min(BLOCK, len(self) - place))

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` bytes from each of the places [B] on: [B, length] uint8."""
        read = b"".join(self.read(place, length) for place in start.tolist())
        return torch.frombuffer(bytearray(read), dtype=torch.uint8).view(-1, length)

    def pairs(self) -> Tensor:
        """How often each byte follows each other one, [256 before, 256 after] int64."""
        counts, last = torch.zeros(65_536, dtype=torch.long), b""
        for block in self.blocks():
            data = torch.frombuffer(bytearray(last + block), dtype=torch.uint8).long()
            counts += torch.bincount(data[:-1] * 256 + data[1:], minlength=65_536)
            last = block[-1:]
        return counts.view(256, 256)


@dataclass(frozen=True, eq=False)
class Text:
    """Bytes to train on and bytes held out, split by document; a single file of text is split by its last tenth.

    documents  how many files of text, and records of other files
    sha256     of all bytes, those to train on first: the standard library differs between Python versions
    """

    name: str
    train: Joined
    test: Joined
    files: int
    documents: int
    sha256: str

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a model that knows only the byte before: what a language model has to beat."""
        chances = self.train.pairs().double() + 0.1
        chances /= chances.sum(1, keepdim=True)
        came = self.test.pairs()
        return float(-(came * chances.log2()).sum() / came.sum())

    def facts(self) -> dict:
        """What a record keeps of the text."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "train_bytes": len(self.train),
            "test_bytes": len(self.test),
            "files": self.files,
            "documents": self.documents,
            "bigram_bits_per_byte": self.bigram_bits,
        }


def load(path: str | None, field: str | None = None) -> Text:
    """The text of a file or folder, or of the standard library when there is no path.

    field  where the text stands in the records of `.jsonl` and `.parquet` files; None: in "text"

    Raises ValueError for a path that does not exist, holds no text, holds binary data, or is too short, and for a field
    where there are no records.
    """
    if path is None:
        if field is not None:
            raise ValueError(f"field={quoted(field)} is for records; give the path of a .jsonl or .parquet file too")
        return standard_library()
    if not os.path.exists(path):
        raise ValueError(f"no file or folder {quoted(path)}; give --text a text file or a folder of text files")
    where = Path(path)
    whole = where.is_dir()
    files = files_in(where) if whole else [where]
    found = {str(file.relative_to(where.parent)): Piece.of(file, where if whole else None) for file in files}
    found = {name: piece for name, piece in found.items() if piece.size}
    if not found:
        raise ValueError(f"'{path}' holds no text; give --text a file or folder with at least {LEAST:,} bytes")
    return text_of(str(path), tuple(found.items()), field)


def files_in(folder: Path) -> list[Path]:
    """The text files of a folder, by their names; nothing hidden, such as the inside of .git."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"'{error.filename}' cannot be read: {error.strerror}")

    found = []
    for home, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(home, name) for name in names if not name.startswith("."))
        read = (*SUFFIXES, *documents.SUFFIXES)
        found += [file for file in files if file.suffix.lower() in read and os.path.isfile(file)]
    return sorted(found)


def standard_library() -> Text:
    """The modules at the top of the standard library, and the language reference that pydoc shows."""
    home = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in [*home.glob("*.py"), home / "pydoc_data" / "topics.py"] if file.is_file()]
    found = {file.relative_to(home).as_posix(): piece for file in files if (piece := Piece.of(file)).size}
    if sum(piece.size for piece in found.values()) < LEAST:
        raise ValueError(
            f"this Python keeps no sources of its standard library in {home}; give --text a file or folder"
        )
    return text_of("the Python standard library", tuple(found.items()))


def check_text(piece: Piece) -> None:
    """Raises ValueError unless it is UTF-8 without NUL."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in Joined([piece]).blocks():
            if "\0" in decoder.decode(block):
                raise UnicodeError
        decoder.decode(b"", final=True)
    except UnicodeError:
        raise ValueError(
            f"'{piece.path}' is not text (it holds bytes that are no UTF-8); give --text a file or folder of text"
        ) from None


def read_text(path: Path) -> str:
    """The whole of a text file. Raises ValueError where there is none, or it is no text."""
    piece = Piece.of(path)
    check_text(piece)
    return b"".join(Joined([piece]).blocks()).decode()


@functools.lru_cache(maxsize=2)
def text_of(name: str, found: tuple[tuple[str, Piece], ...], field: str | None = None) -> Text:
    """The text of named files, each read through once; records are read twice, and kept decoded."""
    plain = {file: piece for file, piece in found if piece.path.suffix.lower() not in documents.SUFFIXES}
    records = [piece for file, piece in found if file not in plain]
    if field is not None and not records:
        wrong = f"field={quoted(field)} is for records, and '{name}' has none"
        raise ValueError(f"{wrong}; leave it out, or give a .jsonl or .parquet file")
    parts: list[tuple[Sequence[Piece | Nameless], Sequence[Piece | Nameless]]] = []
    for piece in plain.values():
        check_text(piece)
    if plain:
        parts.append(split(plain))
    count = len(plain)
    if records:
        of_train, of_test, documents_in = documents.split([piece.path for piece in records], field or documents.FIELD)
        for piece in records:
            # Raises where the file is no longer what it was.
            piece.read(0, 0)
        parts.append(([of_train], [of_test]))
        count += documents_in
    train, test = (Joined([piece for part in parts for piece in part[half]]) for half in (0, 1))
    if len(train) + len(test) < LEAST:
        raise ValueError(
            f"'{name}' holds {len(train) + len(test):,} bytes of text, and at least {LEAST:,} are needed; add more text"
        )
    digest = hashlib.sha256()
    for part in (train, test):
        for block in part.blocks():
            digest.update(block)
    return Text(name, train, test, len(found), count, digest.hexdigest())


def split(found: dict[str, Piece]) -> tuple[list[Piece], list[Piece]]:
    """Every tenth of the text held out: by file, in an order that depends on names alone; a single file by its end."""
    if len(found) == 1:
        (whole,) = found.values()
        cut = whole.size * 9 // 10
        train, test = (Piece(whole.path, *which, whole.state) for which in ((0, cut), (cut, whole.size - cut)))
        return [train], [test]
    order = sorted(found, key=lambda file: hashlib.sha256(os.fsencode(file)).hexdigest())
    total, held, test_files = sum(piece.size for piece in found.values()), 0, dict[str, None]()
    # A file of more than half the text is trained on, whatever its name.
    for file in [file for file in order if found[file].size <= total / 2][: len(order) - 1]:
        if held >= total / 10:
            break
        held += found[file].size
        test_files[file] = None
    return [found[file] for file in order if file not in test_files], [found[file] for file in test_files]
