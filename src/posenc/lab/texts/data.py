"""Text to train on: the Python standard library's own documentation and sources, or the user's files and records.

A text is copied once, in blocks, into temporary files, and read from there where a window is asked for: no process
holds more than a few blocks of a text, whatever its size, and a file that changes later changes no run.
"""

import codecs
import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from posenc.foreign import CannotRead, quoted, regular
from posenc.lab.texts import documents
from posenc.lab.texts.numbers import BLOCK, Numbers

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tex", ".html", ".json", ".csv", ".c", ".h", ".cpp", ".rs", ".js", ".ts", "")
LEAST = 20_000
"""A text must hold this many bytes: fewer leave no held-out windows worth measuring."""


@dataclass(frozen=True)
class TextFile:
    """A file, and what it was when it was found.

    size     its bytes
    changed  the time of its last change (ns)
    """

    path: Path
    size: int
    changed: int

    @staticmethod
    def of(path: Path, within: Path | None = None) -> "TextFile":
        """Raises CannotRead as `regular` does."""
        state = os.stat(regular(path, within))
        return TextFile(path, state.st_size, state.st_mtime_ns)

    def check(self) -> None:
        """Raises CannotRead where the file is no longer what it was."""
        if TextFile.of(self.path) != self:
            raise CannotRead(f"'{self.path}' was changed while it was in use; run the same command again")

    def blocks(self) -> Iterator[bytes]:
        """All of it as UTF-8 without NUL, a block at a time.

        Raises CannotRead where the file changes meanwhile or cannot be read, ValueError where it is no text.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with open(self.path, "rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    if "\0" in decoder.decode(block):
                        raise UnicodeError
                    yield block
            decoder.decode(b"", final=True)
        except OSError as error:
            raise CannotRead(f"'{self.path}' cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise ValueError(
                f"'{self.path}' is not text (it holds bytes that are no UTF-8); give --text a file or folder of text"
            ) from None
        self.check()


@dataclass(frozen=True, eq=False)
class Text:
    """Bytes to train on and bytes held out, split by document; a single file of text is split by its last tenth.

    documents  how many files of text, and records of other files
    sha256     of all bytes, those to train on first: the standard library differs between Python versions
    """

    name: str
    train: Numbers
    test: Numbers
    files: int
    documents: int
    sha256: str

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a model that knows only the byte before: what a language model has to beat."""
        chances = pairs(self.train).double() + 0.1
        chances /= chances.sum(1, keepdim=True)
        came = pairs(self.test)
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


def pairs(part: Numbers) -> Tensor:
    """How often each byte follows each other one, [256 before, 256 after] int64."""
    counts, last = torch.zeros(65_536, dtype=torch.long), b""
    for block in part.blocks():
        data = torch.frombuffer(bytearray(last + block), dtype=torch.uint8).long()
        counts += torch.bincount(data[:-1] * 256 + data[1:], minlength=65_536)
        last = block[-1:]
    return counts.view(256, 256)


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
    texts = {str(file.relative_to(where.parent)): TextFile.of(file, where if whole else None) for file in files}
    texts = {name: file for name, file in texts.items() if file.size}
    if not texts:
        raise ValueError(f"'{path}' holds no text; give --text a file or folder with at least {LEAST:,} bytes")
    return text_of(str(path), tuple(texts.items()), field)


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
    texts = {file.relative_to(home).as_posix(): text for file in files if (text := TextFile.of(file)).size}
    if sum(file.size for file in texts.values()) < LEAST:
        raise ValueError(
            f"this Python keeps no sources of its standard library in {home}; give --text a file or folder"
        )
    return text_of("the Python standard library", tuple(texts.items()))


def read_text(path: Path) -> str:
    """The whole of a text file. Raises ValueError where there is none, or it is no text."""
    return b"".join(TextFile.of(path).blocks()).decode()


def has_records(path: Path) -> bool:
    return path.suffix.lower() in documents.SUFFIXES


@functools.lru_cache(maxsize=2)
def text_of(name: str, files: tuple[tuple[str, TextFile], ...], field: str | None = None) -> Text:
    """The text of named files, each read through once; records are read twice."""
    records = [file for _, file in files if has_records(file.path)]
    plain = {name: file for name, file in files if not has_records(file.path)}
    if field is not None and not records:
        raise ValueError(
            f"field={quoted(field)} is for records, and '{name}' has none; leave it out, or give a .jsonl or .parquet "
            f"file"
        )
    train, test = Numbers(), Numbers()
    for file, cut in cuts(plain):
        copy(file, cut, train, test)
    count = len(plain)
    if records:
        count += documents.copy([file.path for file in records], field or documents.FIELD, train, test)
        for file in records:
            file.check()
    if len(train) + len(test) < LEAST:
        raise ValueError(
            f"'{name}' holds {len(train) + len(test):,} bytes of text, and at least {LEAST:,} are needed; add more text"
        )
    digest = hashlib.sha256()
    for part in (train, test):
        for block in part.blocks():
            digest.update(block)
    return Text(name, train, test, len(files), count, digest.hexdigest())


def copy(file: TextFile, cut: int, train: Numbers, test: Numbers) -> None:
    """Add the first `cut` bytes of a file to what is trained on, the others to what is held out; behind a newline."""
    for part, size in ((train, cut), (test, file.size - cut)):
        if len(part) and size:
            part.write(b"\n")
    place = 0
    for block in file.blocks():
        first = block[: max(cut - place, 0)]
        train.write(first)
        test.write(block[len(first) :])
        place += len(block)


def cuts(files: dict[str, TextFile]) -> list[tuple[TextFile, int]]:
    """The files in their order, and how many bytes of each are trained on: about nine tenths of all.

    Whole files are held out, in an order that depends on names alone; a single file by its end.
    """
    if len(files) == 1:
        return [(file, file.size * 9 // 10) for file in files.values()]
    order = sorted(files, key=lambda name: hashlib.sha256(os.fsencode(name)).hexdigest())
    total, size, test_names = sum(file.size for file in files.values()), 0, set[str]()
    # A file of more than half the text is trained on, whatever its name.
    for name in [name for name in order if files[name].size <= total / 2][: len(order) - 1]:
        if size >= total / 10:
            break
        size += files[name].size
        test_names.add(name)
    return [(files[name], 0 if name in test_names else files[name].size) for name in order]
