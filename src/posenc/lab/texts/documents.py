"""Documents in files of records, `.jsonl` and `.parquet`: read one at a time, and split into two texts.

A record is a document, so whole documents are held out, never the end of one. Their content alone decides: the order of
the records and the names of the files change nothing, and equal documents are on the same side.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, lines, one_line, quote, reading_with, shorten
from posenc.lab.texts.scratch_file import BLOCK, ScratchFile

SUFFIXES = (".jsonl", ".parquet")
FIELD = "text"
"""The default field or column of a document."""

BINS = 1 << 16
"""Documents are hashed into so many bins to choose what is held out: memory does not grow with them."""

ROWS = 64
"""How many rows of a Parquet file are in memory at once."""


def split_documents(files: Sequence[Path], field: str) -> tuple[ScratchFile, ScratchFile, int]:
    """Split the documents of files into (training text, held-out text, number of documents), joined by newlines.

    About a tenth of the bytes is held out; a document of more than half of all is trained on. The files are read twice,
    first for the sizes, so that memory does not grow with them.

    Raises CannotRead for a file or record that cannot be read, ValueError where there is nothing to hold out.
    """
    sizes = Counter[int]()
    count = 0
    for document in read_documents(files, field):
        sizes[bin_of(document)] += len(document)
        count += 1
    held_out_bytes, held_out, total = 0, set[int](), sum(sizes.values())
    for number in sorted(bin for bin, size in sizes.items() if size <= total / 2):
        if held_out_bytes >= total / 10:
            break
        held_out_bytes += sizes[number]
        held_out.add(number)
    if not held_out or len(held_out) == len(sizes):
        raise ValueError(
            f"{', '.join(map(str, files))} must hold at least two different documents, one of them to be held out; "
            f"found {count} in the field {quote(field)}"
        )
    train, test = ScratchFile(), ScratchFile()
    for document in read_documents(files, field):
        side = test if bin_of(document) in held_out else train
        side.write(b"\n" + document if side.size else document)
    return train, test, count


def bin_of(document: bytes) -> int:
    return int.from_bytes(hashlib.sha256(document).digest()[:2], "big") % BINS


def read_documents(files: Sequence[Path], field: str) -> Iterator[bytes]:
    """Yield the documents of files as UTF-8, without empty or null ones.

    Raises CannotRead, which names the file and the record.
    """
    for file in files:
        records = json_line_values if file.suffix.lower() == ".jsonl" else parquet_values
        for where, text in records(file, field):
            if text is None:
                continue
            if not isinstance(text, str):
                raise CannotRead(f"expected text, got {quote(text, 40)}", file=file, field=f"{where}: {field}")
            try:
                document = text.encode()
            except UnicodeEncodeError as error:
                wrong = f"letter {error.start} is half of a pair, which is no Unicode"
                raise CannotRead(wrong, file=file, field=f"{where}: {field}") from None
            if document:
                yield document


def json_line_values(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """Yield place ("line 3") and field of each record in a file of JSON lines."""
    for number, line in enumerate(lines(file), 1):
        if not line.strip():
            continue
        try:
            # Not by `parse_json`, which replaces control characters: a model must read the original text.
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            # A decoder's line numbers count from this line, so only its message is used.
            message = str(getattr(error, "msg", error))
            wrong = f"it is no whole JSON ({shorten(one_line(message))})"
            raise CannotRead(wrong, file=file, field=f"line {number}") from None
        if not isinstance(record, dict) or field not in record:
            names = f"the fields {quote(list(record))}" if isinstance(record, dict) else quote(record, 40)
            wrong = f"expected a record with the field {quote(field)}, got {names}"
            todo = "name the field that holds the text, as in text(field='content')"
            raise CannotRead(wrong, file=file, field=f"line {number}", remedy=todo)
        yield f"line {number}", record[field]


def parquet_values(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    """Yield place ("row 3") and column value of each row of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError:
        todo = "install it with `pip install 'posenc[frames]'`"
        raise CannotRead("reading Parquet needs pyarrow", file=file, remedy=todo) from None
    # With pre_buffer the whole file would be in memory.
    buffering = {"buffer_size": BLOCK, "pre_buffer": False}
    with reading_with("pyarrow", file=file), parquet.ParquetFile(file, **buffering) as parquet_file:
        names = parquet_file.schema_arrow.names
        if field not in names:
            todo = "name the column that holds the text, as in text(field='content')"
            raise CannotRead(f"expected a column {quote(field)}, got {quote(names)}", file=file, remedy=todo)
        row = 0
        for batch in parquet_file.iter_batches(ROWS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                row += 1
                yield f"row {row}", text
