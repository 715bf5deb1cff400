"""Text to train on: the Python standard library's own documentation and sources, or the user's files."""

import functools
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SUFFIXES = (".txt", ".md", ".rst", ".py", ".tex", ".html", ".json", ".csv", ".c", ".h", ".cpp", ".rs", ".js", ".ts", "")
LEAST = 20_000
"""A text must hold this many bytes: fewer leave no held-out windows worth measuring."""


@dataclass(frozen=True, eq=False)
class Text:
    """Bytes to train on and bytes held out, split by file; a single file is split by its last tenth.

    train, test  [N] uint8
    sha256       of all bytes, train first: the standard library differs between Python versions
    """

    name: str
    train: Tensor
    test: Tensor
    files: int
    sha256: str

    @functools.cached_property
    def bigram_bits(self) -> float:
        """Bits per held-out byte of a model that knows only the byte before: what a language model has to beat."""
        train, test = self.train.long(), self.test.long()
        pairs = torch.bincount(train[:-1] * 256 + train[1:], minlength=65_536).view(256, 256).double() + 0.1
        chances = pairs / pairs.sum(1, keepdim=True)
        return float(-chances[test[:-1], test[1:]].log2().mean())

    def facts(self) -> dict:
        """What a record keeps of the text."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "train_bytes": self.train.numel(),
            "test_bytes": self.test.numel(),
            "files": self.files,
            "bigram_bits_per_byte": self.bigram_bits,
        }


@functools.lru_cache(maxsize=2)
def load(path: str | None) -> Text:
    """The text of a file or folder, or of the standard library when there is no path.

    Raises ValueError for a path that does not exist, holds no text, holds binary data, or is too short.
    """
    if path is None:
        return standard_library()
    where = Path(path)
    if not where.exists():
        raise ValueError(f"no file or folder '{path}'; give --text a text file or a folder of text files")
    files = [where] if where.is_file() else files_in(where)
    contents = {str(file.relative_to(where.parent)): read_text(file) for file in files}
    contents = {name: data for name, data in contents.items() if data}
    if not contents:
        raise ValueError(f"'{path}' holds no text; give --text a file or folder with at least {LEAST:,} bytes")
    return split(str(path), contents)


def files_in(folder: Path) -> list[Path]:
    """The text files of a folder, by their names; nothing hidden, such as the inside of .git."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in SUFFIXES)
    return sorted(file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def standard_library() -> Text:
    """The modules at the top of the standard library, and the language reference that pydoc shows."""
    home = Path(sysconfig.get_paths()["stdlib"])
    files = [*sorted(home.glob("*.py")), home / "pydoc_data" / "topics.py"]
    contents = {
        file.relative_to(home).as_posix(): data for file in files if file.is_file() and (data := file.read_bytes())
    }
    if sum(map(len, contents.values())) < LEAST:
        raise ValueError(
            f"this Python keeps no sources of its standard library in {home}; give --text a file or folder"
        )
    return split("the Python standard library", contents)


def read_text(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(f"'{file}' cannot be read: {error.strerror}") from None
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        decoded = "\0"
    if "\0" in decoded:
        raise ValueError(
            f"'{file}' is not text (it holds bytes that are no UTF-8); give --text a file or folder of text"
        )
    return data


def split(name: str, contents: dict[str, bytes]) -> Text:
    """Every tenth of the text held out: by file, in an order that depends on names alone; a single file by its end."""
    if len(contents) == 1:
        data = next(iter(contents.values()))
        train, test = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    else:
        order = sorted(contents, key=lambda file: hashlib.sha256(file.encode()).hexdigest())
        total, held, test_files = sum(map(len, contents.values())), 0, []
        # A file of more than half the text is trained on, whatever its name.
        for file in [file for file in order if len(contents[file]) <= total / 2][: len(order) - 1]:
            if held >= total / 10:
                break
            held += len(contents[file])
            test_files.append(file)
        train = b"\n".join(contents[file] for file in order if file not in test_files)
        test = b"\n".join(contents[file] for file in test_files)
    if len(train) + len(test) < LEAST:
        raise ValueError(
            f"'{name}' holds {len(train) + len(test):,} bytes of text, and at least {LEAST:,} are needed; add more text"
        )
    digest = hashlib.sha256(train + test).hexdigest()

    def tensor(data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    return Text(name, tensor(train), tensor(test), len(contents), digest)
