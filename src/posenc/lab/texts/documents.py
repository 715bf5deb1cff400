"""Documents in files of records, `.jsonl` and `.parquet`: read one at a time, and split into two texts.

A record is a document, so it is documents that are held out, and never the end of one that is trained on. Which they
are depends on their content alone: the order of the records and the names of their files change nothing, and documents
that say the same are all on one side.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, lines, one_line, quoted, reading_with, shortened
from posenc.lab.texts.nameless import BLOCK, Nameless

SUFFIXES = (".jsonl", ".parquet")
FIELD = "text"
"""The field or column that a document stands in, where nobody says otherwise."""

BINS = 1 << 16
"""Documents are told apart by so many bins when it is chosen what is held out: memory does not grow with them."""

ROWS = 64
"""How many rows of a Parquet file are held at once."""


def split(files: Sequence[Path], field: str) -> tuple[Nameless, Nameless, int]:
    """The documents of some files behind one another, with a newline between them: to train on, and held out; how many.

    About a tenth is held out, measured in bytes; a document of more than half of all is trained on. The files are read
    twice: it takes their sizes to choose, and no memory to read again.

    Raises CannotRead for a file or record that cannot be read, ValueError where there is nothing to hold out.
    """
    sizes = Counter[int]()
    count = 0
    for document in documents(files, field):
        sizes[bin_of(document)] += len(document)
        count += 1
    held, held_out, total = 0, set[int](), sum(sizes.values())
    for number in sorted(bin for bin, size in sizes.items() if size <= total / 2):
        if held >= total / 10:
            break
        held += sizes[number]
        held_out.add(number)
    if not held_out or len(held_out) == len(sizes):
        raise ValueError(
            f"{', '.join(map(str, files))} must hold at least two different documents, one of them to be held out; "
            f"found {count} in the field {quoted(field)}"
        )
    train, test = Nameless(), Nameless()
    for document in documents(files, field):
        half = test if bin_of(document) in held_out else train
        half.write(b"\n" + document if half.size else document)
    return train, test, count


def bin_of(document: bytes) -> int:
    return int.from_bytes(hashlib.sha256(document).digest()[:2], "big") % BINS


def documents(files: Sequence[Path], field: str) -> Iterator[bytes]:
    """The documents of files as UTF-8, without those that are empty or null.

    Raises CannotRead, naming the file and the record.
    """
    for file in files:
        records = of_lines if file.suffix.lower() == ".jsonl" else of_columns
        for where, text in records(file, field):
            if text is None:
                continue
            if not isinstance(text, str):
                raise CannotRead(f"expected text, got {quoted(text, 40)}", file=file, field=f"{where}: {field}")
            try:
                document = text.encode()
            except UnicodeEncodeError as error:
                wrong = f"letter {error.start} is half of a pair, which is no Unicode"
                raise CannotRead(wrong, file=file, field=f"{where}: {field}") from None
            if document:
                yield document


def of_lines(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """Where it stands, and the field, of each record in a file of JSON lines."""
    for number, line in enumerate(lines(file), 1):
        if not line.strip():
            continue
        try:
            # Not through `parse_json`, which makes strings fit to be shown: a model is to read what is there.
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            # What a decoder says of the place counts its lines from this one.
            said = str(getattr(error, "msg", error))
            wrong = f"it is no whole JSON ({shortened(one_line(said))})"
            raise CannotRead(wrong, file=file, field=f"line {number}") from None
        if not isinstance(record, dict) or field not in record:
            names = f"the fields {quoted(list(record))}" if isinstance(record, dict) else quoted(record, 40)
            wrong = f"expected a record with the field {quoted(field)}, got {names}"
            todo = "name the field that holds the text, as in text(field='content')"
            raise CannotRead(wrong, file=file, field=f"line {number}", remedy=todo)
        yield f"line {number}", record[field]


def of_columns(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """Where it stands, and the column, of each row of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError:
        todo = "install it with `pip install 'posenc[frames]'`"
        raise CannotRead("reading Parquet needs pyarrow", file=file, remedy=todo) from None
    # What is buffered before it is asked for would be the whole file.
    bounded = {"buffer_size": BLOCK, "pre_buffer": False}
    with reading_with("pyarrow", file=file), parquet.ParquetFile(file, **bounded) as opened:
        names = opened.schema_arrow.names
        if field not in names:
            todo = "name the column that holds the text, as in text(field='content')"
            raise CannotRead(f"expected a column {quoted(field)}, got {quoted(names)}", file=file, remedy=todo)
        row = 0
        for batch in opened.iter_batches(ROWS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                row += 1
                yield f"row {row}", text
