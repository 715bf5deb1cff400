"""Text to train on: the Python standard library's own documentation and sources, or the user's files and records.

Texts stay on disk. They are read once in blocks, and then window by window, so that no process holds more than a few
blocks of a text. They are not memory-mapped: when another program truncates the file, a map kills the process, and a
read raises an error.
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

from posenc.foreign import CannotRead, quote, regular_file
from posenc.lab.texts import documents
from posenc.lab.texts.scratch_file import BLOCK, ScratchFile

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tex", ".html", ".json", ".csv", ".c", ".h", ".cpp", ".rs", ".js", ".ts", "")
MIN_BYTES = 20_000
"""The minimum size of a text (bytes): fewer leave no held-out windows worth measuring."""


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one file, with the file's state, to detect changes.

    start, size  of the range
    state        size (bytes) and time of the last change (ns) of the whole file
    """

    path: Path
    start: int
    size: int
    state: tuple[int, int]

    @staticmethod
    def from_file(path: Path, folder: Path | None = None) -> "Piece":
        """All of a file. Raises CannotRead as `regular_file` does."""
        status = os.stat(regular_file(path, folder))
        return Piece(path, 0, status.st_size, (status.st_size, status.st_mtime_ns))

    def read(self, place: int, count: int) -> bytes:
        """`count` of its bytes from `place` on. Raises CannotRead where the file has changed."""
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


class JoinedPieces:
    """Pieces of files joined by newlines, read from disk on demand."""

    def __init__(self, pieces: Sequence[Piece | ScratchFile]) -> None:
        self.pieces = tuple(pieces)
        # The start of each piece, and of one after the last.
        self.begins = [0, *accumulate(piece.size + 1 for piece in self.pieces)]

    def __len__(self) -> int:
        """The size in bytes."""
        return self.begins[-1] - 1

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from `start` on."""
        data = bytearray()
        number = bisect_right(self.begins, start) - 1
        while len(data) < count:
            place = start + len(data) - self.begins[number]
            data += self.pieces[number].read(place, min(count - len(data), self.pieces[number].size - place))
            number += 1
            if len(data) < count:
                data += b"\n"
        return bytes(data)

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes in blocks."""
        for place in range(0, len(self), BLOCK):
            yield self.read(place, min(BLOCK, len(self) - place))

    def windows(self, start: Tensor, length: int) -> Tensor:
        """`length` bytes from each start [B]: [B, length] uint8."""
        read = b"".join(self.read(place, length) for place in start.tolist())
        return torch.frombuffer(bytearray(read), dtype=torch.uint8).view(-1, length)

    def pairs(self) -> Tensor:
        """The count of each pair of consecutive bytes, [256 before, 256 after] int64."""
        counts, last = torch.zeros(65_536, dtype=torch.long), b""
        for block in self.blocks():
            data = torch.frombuffer(bytearray(last + block), dtype=torch.uint8).long()
            counts += torch.bincount(data[:-1] * 256 + data[1:], minlength=65_536)
            last = block[-1:]
        return counts.view(256, 256)


@dataclass(frozen=True, eq=False)
class SplitText:
    """Training and held-out bytes, split by document; the last tenth of a single file is held out.

    documents  the number of text files, plus that of records in other files
    sha256     of all bytes, training first: the standard library differs between Python versions
    """

    name: str
    train: JoinedPieces
    test: JoinedPieces
    files: int
    documents: int
    sha256: str

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a bigram model: the baseline of a language model."""
        probabilities = self.train.pairs().double() + 0.1
        probabilities /= probabilities.sum(1, keepdim=True)
        pair_counts = self.test.pairs()
        return float(-(pair_counts * probabilities.log2()).sum() / pair_counts.sum())

    def record_entry(self) -> dict:
        """The text's entry in a record."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "train_bytes": len(self.train),
            "test_bytes": len(self.test),
            "files": self.files,
            "documents": self.documents,
            "bigram_bits_per_byte": self.bigram_bits,
        }


def load_text(path: str | None, field: str | None = None) -> SplitText:
    """The text of a file or folder, or of the standard library without a path.

    field  of the text in the records of `.jsonl` and `.parquet` files; None: "text"

    Raises ValueError for a path that does not exist, has no text, has binary data, or is too short, and for a field
    where there are no records.
    """
    if path is None:
        if field is not None:
            raise ValueError(f"field={quote(field)} is for records; give the path of a .jsonl or .parquet file too")
        return standard_library()
    if not os.path.exists(path):
        raise ValueError(f"no file or folder {quote(path)}; give --text a text file or a folder of text files")
    root = Path(path)
    is_folder = root.is_dir()
    files = text_files_in(root) if is_folder else [root]
    pieces = {str(file.relative_to(root.parent)): Piece.from_file(file, root if is_folder else None) for file in files}
    pieces = {name: piece for name, piece in pieces.items() if piece.size}
    if not pieces:
        raise ValueError(f"'{path}' holds no text; give --text a file or folder with at least {MIN_BYTES:,} bytes")
    return build_text(str(path), tuple(pieces.items()), field)


def text_files_in(folder: Path) -> list[Path]:
    """The text files of a folder, sorted by name, without hidden ones such as those in .git."""

    def refuse(error: OSError) -> None:
        raise ValueError(f"'{error.filename}' cannot be read: {error.strerror}")

    text_files = []
    for home, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(home, name) for name in names if not name.startswith("."))
        suffixes = (*SUFFIXES, *documents.SUFFIXES)
        text_files += [file for file in files if file.suffix.lower() in suffixes and os.path.isfile(file)]
    return sorted(text_files)


def standard_library() -> SplitText:
    """The text of the standard library's top-level modules and of pydoc's language reference."""
    home = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in [*home.glob("*.py"), home / "pydoc_data" / "topics.py"] if file.is_file()]
    pieces = {file.relative_to(home).as_posix(): piece for file in files if (piece := Piece.from_file(file)).size}
    if sum(piece.size for piece in pieces.values()) < MIN_BYTES:
        raise ValueError(
            f"this Python keeps no sources of its standard library in {home}; give --text a file or folder"
        )
    return build_text("the Python standard library", tuple(pieces.items()))


def check_text(piece: Piece) -> None:
    """Raise ValueError unless a piece is UTF-8 without NUL."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in JoinedPieces([piece]).blocks():
            if "\0" in decoder.decode(block):
                raise UnicodeError
        decoder.decode(b"", final=True)
    except UnicodeError:
        raise ValueError(
            f"'{piece.path}' is not text (it holds bytes that are no UTF-8); give --text a file or folder of text"
        ) from None


def read_plain_text(path: Path) -> str:
    """The content of a text file. Raises ValueError where it is missing, or is no text."""
    piece = Piece.from_file(path)
    check_text(piece)
    return b"".join(JoinedPieces([piece]).blocks()).decode()


@functools.lru_cache(maxsize=2)
def build_text(name: str, pieces: tuple[tuple[str, Piece], ...], field: str | None = None) -> SplitText:
    """The text of named files, each read once; records are read twice, and kept decoded."""
    plain = {file: piece for file, piece in pieces if piece.path.suffix.lower() not in documents.SUFFIXES}
    records = [piece for file, piece in pieces if file not in plain]
    if field is not None and not records:
        wrong = f"field={quote(field)} is for records, and '{name}' has none"
        raise ValueError(f"{wrong}; leave it out, or give a .jsonl or .parquet file")
    parts: list[tuple[Sequence[Piece | ScratchFile], Sequence[Piece | ScratchFile]]] = []
    for piece in plain.values():
        check_text(piece)
    if plain:
        parts.append(split_files(plain))
    count = len(plain)
    if records:
        of_train, of_test, documents_in = documents.split_documents(
            [piece.path for piece in records], field or documents.FIELD
        )
        for piece in records:
            # Raises where the file has changed.
            piece.read(0, 0)
        parts.append(([of_train], [of_test]))
        count += documents_in
    train, test = (JoinedPieces([piece for part in parts for piece in part[half]]) for half in (0, 1))
    if len(train) + len(test) < MIN_BYTES:
        raise ValueError(
            f"'{name}' holds {len(train) + len(test):,} bytes of text, and at least {MIN_BYTES:,} are needed; "
            f"add more text"
        )
    digest = hashlib.sha256()
    for part in (train, test):
        for block in part.blocks():
            digest.update(block)
    return SplitText(name, train, test, len(pieces), count, digest.hexdigest())


def split_files(pieces: dict[str, Piece]) -> tuple[list[Piece], list[Piece]]:
    """Hold out a tenth of the text, by file in an order of name hashes. Of a single file it is the end."""
    if len(pieces) == 1:
        (whole,) = pieces.values()
        cut = whole.size * 9 // 10
        train, test = (Piece(whole.path, *span, whole.state) for span in ((0, cut), (cut, whole.size - cut)))
        return [train], [test]
    order = sorted(pieces, key=lambda file: hashlib.sha256(os.fsencode(file)).hexdigest())
    total, held_out_bytes, test_files = sum(piece.size for piece in pieces.values()), 0, dict[str, None]()
    # A file of more than half the text is always trained on.
    for file in [file for file in order if pieces[file].size <= total / 2][: len(order) - 1]:
        if held_out_bytes >= total / 10:
            break
        held_out_bytes += pieces[file].size
        test_files[file] = None
    return [pieces[file] for file in order if file not in test_files], [pieces[file] for file in test_files]
