"""Text to train on: what is held out, what the hash covers, and every refusal."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from posenc.lab import data, tasks


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    data.load.cache_clear()
    yield
    data.load.cache_clear()


def folder_of(home: Path, sizes: dict[str, int]) -> Path:
    """Files of the given sizes (bytes), each made of lines that name the file and the line."""
    for name, size in sizes.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{name} line {i}\n" for i in range(size // 8 + 1))
        file.write_text(lines[:size])
    return home


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def test_a_folder_is_split_by_file_and_about_a_tenth_is_held_out(tmp_path: Path) -> None:
    sizes = {f"part/{i}.txt": 1000 + 37 * i for i in range(40)}
    text = data.load(str(folder_of(tmp_path / "book", sizes)))
    train, test = bytes_of(text.train), bytes_of(text.test)
    held = [name for name in sizes if (tmp_path / "book" / name).read_bytes() in test]
    assert 0.1 <= len(test) / (len(train) + len(test)) < 0.16
    assert all(((tmp_path / "book" / name).read_bytes() in train) != (name in held) for name in sizes)
    assert text.files == 40


def test_no_line_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    text = data.load(str(folder_of(tmp_path / "book", {f"{i}.txt": 3000 for i in range(12)})))
    held = set(bytes_of(text.test).splitlines())
    assert held and not held & set(bytes_of(text.train).splitlines()) - {b""}


def test_a_single_file_holds_out_its_last_tenth(tmp_path: Path) -> None:
    whole = folder_of(tmp_path, {"one.xyz": 30_007}) / "one.xyz"
    text = data.load(str(whole))
    cut = math.floor(30_007 * 0.9)
    assert bytes_of(text.train) == whole.read_bytes()[:cut]
    assert bytes_of(text.test) == whole.read_bytes()[cut:]
    facts = {"name": str(whole), "sha256": text.sha256, "train_bytes": cut, "test_bytes": 30_007 - cut, "files": 1}
    assert text.facts() == facts | {"bigram_bits_per_byte": text.bigram_bits}


def test_what_is_to_be_beaten_is_a_count_of_pairs_of_bytes(tmp_path: Path) -> None:
    text = data.load(str(folder_of(tmp_path, {"one.txt": 30_000}) / "one.txt"))
    train, test = bytes_of(text.train), bytes_of(text.test)
    pairs, firsts = Counter(pairwise(train)), Counter(train[:-1])
    bits = [-math.log2((pairs[a, b] + 0.1) / (firsts[a] + 25.6)) for a, b in pairwise(test)]
    assert text.bigram_bits == pytest.approx(math.fsum(bits) / len(bits), rel=1e-9)


def test_a_file_of_most_of_the_text_is_trained_on_whatever_its_name(tmp_path: Path) -> None:
    for i in range(6):
        text = data.load(str(folder_of(tmp_path / str(i), {f"large{i}.txt": 30_000, "small.txt": 4000})))
        assert text.train.numel() == 30_000 and text.test.numel() == 4000


def test_the_split_depends_on_names_inside_the_folder_and_not_on_where_it_lies(tmp_path: Path) -> None:
    sizes = {f"{i}.txt": 3000 for i in range(12)}
    first, second = (data.load(str(folder_of(tmp_path / where / "book", sizes))) for where in ("a", "b"))
    assert first.sha256 == second.sha256 and torch.equal(first.test, second.test)


def test_the_hash_changes_with_a_single_byte(tmp_path: Path) -> None:
    book = folder_of(tmp_path, {"0.txt": 12_000, "1.txt": 12_000, "2.txt": 12_000})
    before = data.load(str(book)).sha256
    content = (book / "1.txt").read_bytes()
    (book / "1.txt").write_bytes(content[:-2] + b"#" + content[-1:])
    data.load.cache_clear()
    assert data.load(str(book)).sha256 != before


def test_hidden_files_and_other_kinds_of_files_are_left_alone(tmp_path: Path) -> None:
    book = folder_of(tmp_path, {"0.txt": 12_000, "1.md": 12_000})
    plain = data.load(str(book)).sha256
    (book / ".git").mkdir()
    (book / ".git" / "index").write_bytes(b"\x00\xff" * 100)
    (book / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (book / "empty.txt").write_bytes(b"")
    data.load.cache_clear()
    assert data.load(str(book)).sha256 == plain


def test_without_a_path_the_standard_library_of_this_python_is_read() -> None:
    text = data.load(None)
    assert text.name == "the Python standard library" and text.files > 100
    assert 0.1 <= text.test.numel() / (text.test.numel() + text.train.numel()) < 0.25
    assert Path(os.__file__).read_bytes() in bytes_of(text.train) + bytes_of(text.test)


def test_a_python_without_its_sources_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(
        ValueError, match=r"this Python keeps no sources of its standard library in .*; give --text a file or folder"
    ):
        data.load(None)


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.txt"
    with pytest.raises(
        ValueError, match=r"^no file or folder '.*nowhere\.txt'; give --text a text file or a folder of text files$"
    ):
        data.load(str(missing))


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_folder_or_file_holds_no_text(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"^'.*' holds no text; give --text a file or folder with at least 20,000 bytes$"
    ):
        data.load(str(tmp_path))
    if content is not None:
        with pytest.raises(ValueError, match="holds no text"):
            data.load(str(tmp_path / "empty.txt"))


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20_000, b"a\x00" * 20_000, "ü".encode("latin-1") * 30_000])
def test_binary_data_is_refused_with_the_file_named(tmp_path: Path, content: bytes) -> None:
    folder_of(tmp_path, {"fine.txt": 30_000})
    (tmp_path / "other.txt").write_bytes(content)
    for path in (tmp_path, tmp_path / "other.txt"):
        with pytest.raises(
            ValueError, match=r"^'.*other\.txt' is not text \(it holds bytes that are no UTF-8\); give --text"
        ):
            data.load(str(path))


@pytest.mark.parametrize("sizes", [{"one.txt": 19_999}, {"a.txt": 9000, "b.txt": 9000}])
def test_a_text_that_is_too_short_says_how_long_it_is_and_should_be(tmp_path: Path, sizes: dict[str, int]) -> None:
    folder_of(tmp_path, sizes)
    path = tmp_path / "one.txt" if len(sizes) == 1 else tmp_path
    with pytest.raises(
        ValueError, match=r"holds 1[89],\d\d\d bytes of text, and at least 20,000 are needed; add more text$"
    ):
        data.load(str(path))


def test_twenty_thousand_bytes_are_enough(tmp_path: Path) -> None:
    assert data.load(str(folder_of(tmp_path, {"one.txt": 20_000}) / "one.txt")).train.numel() == 18_000


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user who may be denied reading")
def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    file = folder_of(tmp_path, {"secret.txt": 30_000}) / "secret.txt"
    file.chmod(0)
    with pytest.raises(ValueError, match=r"^'.*secret\.txt' cannot be read: Permission denied$"):
        data.load(str(tmp_path))


def test_a_file_that_fails_while_it_is_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder_of(tmp_path, {"torn.txt": 30_000}) / "torn.txt"

    def failing(self: Path) -> bytes:
        raise OSError(5, "Input/output error", str(self))

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(ValueError, match=r"^'.*torn\.txt' cannot be read: Input/output error$"):
        data.load(str(file))


def test_windows_are_bos_and_consecutive_bytes_and_all_predictions_count(tmp_path: Path) -> None:
    text = data.load(str(folder_of(tmp_path, {"one.txt": 30_000}) / "one.txt"))
    batch = tasks.find("text")(text).batch(11, 5, torch.Generator().manual_seed(0))
    whole = bytes_of(text.train)
    assert batch.ids.shape == (5, 12) and batch.answer.tolist() == [True] * 11
    for row in batch.ids.tolist():
        assert row[0] == 256 and bytes(row[1:]) in whole
