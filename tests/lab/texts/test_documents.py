"""Text in records: the documents, the split, and every error."""

import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from posenc.foreign import CannotRead
from posenc.lab.tasks import task_of
from posenc.lab.texts import data, documents
from posenc.lab.texts.scratch_file import ScratchFile

DOCUMENTS = [f"document {i} \N{GREEK SMALL LETTER ALPHA}\nhas {i % 90} words: {'word ' * (i % 90)}" for i in range(300)]


def records(file: Path, texts: list, field: str = "text") -> str:
    """A file of JSON lines, with a number beside each text."""
    file.write_text("".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)))
    return str(file)


def table(file: Path, texts: list, field: str = "text") -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; it comes with the test extra")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": list(range(len(texts))), field: texts}), file, row_group_size=70)
    return str(file)


def bytes_of(part: data.JoinedPieces) -> bytes:
    return b"".join(part.blocks())


def held_by_hand(texts: list[str]) -> list[str]:
    """The held-out tenth of documents, in the order of the first two bytes of their SHA-256."""
    documents, size = list[str](), 0
    for text in sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest()[:4]):
        if size >= sum(len(text.encode()) for text in texts) / 10:
            break
        documents.append(text)
        size += len(text.encode())
    return [text for text in texts if text in documents]


@pytest.mark.parametrize("write", [records, table])
def test_a_record_is_a_document_and_a_tenth_of_them_is_held_out(write, tmp_path: Path) -> None:
    text = data.load_text(write(tmp_path / f"book.{'jsonl' if write is records else 'parquet'}", DOCUMENTS))
    test_documents = held_by_hand(DOCUMENTS)
    assert 10 < len(test_documents) < 60
    assert bytes_of(text.test).decode() == "\n".join(test_documents)
    assert bytes_of(text.train).decode() == "\n".join(text for text in DOCUMENTS if text not in test_documents)
    whole = bytes_of(text.train) + bytes_of(text.test)
    assert text.sha256 == hashlib.sha256(whole).hexdigest()
    assert (text.files, text.documents, text.record_entry()["documents"]) == (1, 300, 300)


def test_which_are_held_out_depends_on_what_they_say_and_not_on_their_order_or_file(tmp_path: Path) -> None:
    sample = random.Random(0).sample(DOCUMENTS, len(DOCUMENTS))
    (tmp_path / "two").mkdir()
    records(tmp_path / "two" / "a.jsonl", sample[:100])
    records(tmp_path / "two" / "b.jsonl", sample[100:])
    (tmp_path / "two" / "picture.png").write_bytes(b"\x89PNG")
    text = data.load_text(str(tmp_path / "two"))
    test_documents = held_by_hand(DOCUMENTS)
    assert bytes_of(text.test).decode() == "\n".join(text for text in sample if text in test_documents)
    assert (text.files, text.documents) == (2, 300)


def test_documents_that_are_the_same_are_on_one_side(tmp_path: Path) -> None:
    text = data.load_text(records(tmp_path / "book.jsonl", DOCUMENTS + DOCUMENTS[::-1] + DOCUMENTS))
    train, test = bytes_of(text.train), bytes_of(text.test)
    docs = [document for document in DOCUMENTS if document.encode() in test]
    assert docs and not any(document.encode() in train for document in docs if document.count("word") > 3)


def test_a_document_of_most_of_the_text_is_trained_on(tmp_path: Path) -> None:
    for i in range(6):
        large = f"large {i} " * 3000
        text = data.load_text(records(tmp_path / f"{i}.jsonl", [large, "small " * 700]))
        assert bytes_of(text.train).decode() == large


def test_files_of_text_and_records_stand_beside_one_another(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"line of {i}\n" * 300)
    plain = data.load_text(str(tmp_path))
    records(tmp_path / "book.jsonl", DOCUMENTS)
    mixed_text = data.load_text(str(tmp_path))
    alone = data.load_text(str(tmp_path / "book.jsonl"))
    for half in ("train", "test"):
        parts = [bytes_of(getattr(text, half)) for text in (plain, alone)]
        assert bytes_of(getattr(mixed_text, half)) == b"\n".join(parts)
    assert (mixed_text.files, mixed_text.documents) == (13, 312)


def test_windows_of_records_are_those_of_their_bytes(tmp_path: Path) -> None:
    text = data.load_text(records(tmp_path / "book.jsonl", DOCUMENTS))
    whole = bytes_of(text.train)
    start = torch.arange(0, len(whole) - 20, 7)
    assert bytes(text.train.windows(start, 20).flatten().tolist()) == b"".join(
        whole[i : i + 20] for i in start.tolist()
    )


def test_another_field_is_read_where_it_is_named(tmp_path: Path) -> None:
    text = data.load_text(records(tmp_path / "a.jsonl", DOCUMENTS, "content"), "content")
    assert text.sha256 == data.load_text(records(tmp_path / "b.jsonl", DOCUMENTS)).sha256
    assert task_of(f"text(path='{tmp_path / 'a.jsonl'}', field='content')").text is text


def test_a_folder_is_searched_for_all_kinds_of_records(tmp_path: Path) -> None:
    records(tmp_path / "a.jsonl", DOCUMENTS[:150])
    table(tmp_path / "b.PARQUET", DOCUMENTS[150:])
    assert data.load_text(str(tmp_path)).documents == 300


def test_empty_lines_and_records_without_text_are_passed_over(tmp_path: Path) -> None:
    plain = data.load_text(records(tmp_path / "a.jsonl", DOCUMENTS))
    with_holes = records(tmp_path / "b.jsonl", [*DOCUMENTS[:5], "", None, *DOCUMENTS[5:]])
    Path(with_holes).write_text(Path(with_holes).read_text().replace("\n", "\n \n"))
    text = data.load_text(with_holes)
    assert text.sha256 == plain.sha256 and text.documents == 300
    assert (
        data.load_text(table(tmp_path / "c.parquet", [*DOCUMENTS[:5], "", None, *DOCUMENTS[5:]])).sha256 == plain.sha256
    )


def test_nothing_is_left_beside_the_files_or_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "book").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    text = data.load_text(records(tmp_path / "book" / "a.jsonl", DOCUMENTS))
    assert len(text.train) > 20_000
    assert os.listdir(tmp_path / "book") == ["a.jsonl"] and os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"book\.jsonl: line 301: it is no whole JSON \(Expecting property name[a-z ]*\)$"),
        ("[" * 100_000, r"line 301: it is no whole JSON \(maximum recursion depth"),
        (
            "[1]",
            r"line 301: expected a record with the field 'text', got \[1\]; name the field that holds the text, as",
        ),
        ('{"a": 1}', r"expected a record with the field 'text', got the fields \['a'\]; .* text\(field='content'\)$"),
        ('{"text": 5}', r"book\.jsonl: line 301: text: expected text, got 5$"),
        (r'{"text": "ab\ud800"}', r"line 301: text: letter 2 is half of a pair, which is no Unicode$"),
        ("\xff", r"book\.jsonl: it is no text: byte 0 is no UTF-8$"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(line: str, words: str, tmp_path: Path) -> None:
    file = records(tmp_path / "book.jsonl", DOCUMENTS)
    with open(file, "a", encoding="latin-1") as stream:
        stream.write(line + "\n")
    with pytest.raises(CannotRead, match=words):
        data.load_text(file)


def test_one_document_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"book\.jsonl must hold at least two different documents, .*; found 2 in the field 'text'$"
    ):
        data.load_text(records(tmp_path / "book.jsonl", ["a word " * 5000] * 2))


def test_a_field_without_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a word\n" * 5000)
    with pytest.raises(
        ValueError, match=r"^field='body' is for records, and '.*a\.txt' has none; leave it out, or give a"
    ):
        data.load_text(str(tmp_path / "a.txt"), "body")
    with pytest.raises(
        ValueError, match=r"^field='body' is for records; give the path of a \.jsonl or \.parquet file too$"
    ):
        data.load_text(None, "body")


def test_records_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(records(tmp_path / "book.jsonl", DOCUMENTS))
    real = documents.split_documents

    def split(files: list[Path], field: str) -> tuple[ScratchFile, ScratchFile, int]:
        result = real(files, field)
        file.write_text(file.read_text() + '{"text": "more"}\n')
        return result

    monkeypatch.setattr(documents, "split_documents", split)
    with pytest.raises(CannotRead, match=r"book\.jsonl' was changed while it was in use; run the same command again$"):
        data.load_text(str(file))


def test_what_parquet_cannot_give_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = table(tmp_path / "book.parquet", DOCUMENTS)
    with pytest.raises(
        CannotRead, match=r"book\.parquet: expected a column 'body', got \['id', 'text'\]; name the column"
    ):
        data.load_text(file, "body")
    with pytest.raises(CannotRead, match=r"book\.parquet: row 1: id: expected text, got 0$"):
        data.load_text(file, "id")
    (tmp_path / "torn.parquet").write_bytes(Path(file).read_bytes()[:-300])
    with pytest.raises(CannotRead, match=r"torn\.parquet: pyarrow cannot read it \(Arrow"):
        data.load_text(str(tmp_path / "torn.parquet"))


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "book.parquet").write_bytes(b"PAR1" * 9000)
    todo = r"install it with `pip install 'posenc\[frames\]'`"
    with pytest.raises(CannotRead, match=rf"book\.parquet: reading Parquet needs pyarrow; {todo}$"):
        data.load_text(str(tmp_path / "book.parquet"))


def test_a_temporary_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, place: int) -> None:
            pass

        def write(self, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

    scratch = ScratchFile()
    monkeypatch.setattr(scratch, "file", Full())
    with pytest.raises(
        OSError, match=r"temporary folder '.*': No space left on device; set TMPDIR to a folder with room"
    ):
        scratch.write(b"text")


def test_bytes_without_a_name_are_read_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, content = ScratchFile(), random.Random(1).randbytes(700_000)
    for place in range(0, len(content), 90_001):
        scratch.write(content[place : place + 90_001])
        assert scratch.read(5, 20) == content[5:25]
    assert scratch.size == len(content) and scratch.read(0, scratch.size) == content
    assert scratch.read(262_140, 10) == content[262_140:262_150]
    monkeypatch.delattr(os, "pread", raising=False)
    assert scratch.read(262_140, 10) == content[262_140:262_150] and scratch.read(0, scratch.size) == content
    assert scratch.read(5, 20) == content[5:25]
    scratch.write(b"more")
    assert scratch.read(699_990, 14) == content[-10:] + b"more"
