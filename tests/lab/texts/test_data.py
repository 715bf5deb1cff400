"""Text to train on: the split, the hash, and every error."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from tiers import rest_slow

from posenc.lab import tasks
from posenc.lab.texts import data


def folder_of(home: Path, sizes: dict[str, int]) -> Path:
    """Files of the given sizes (bytes), each made of lines that name the file and the line."""
    for name, size in sizes.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{name} line {i}\n" for i in range(size // 8 + 1))
        file.write_text(lines[:size])
    return home


def bytes_of(part: data.JoinedPieces) -> bytes:
    return b"".join(part.blocks())


def test_a_folder_is_split_by_file_and_about_a_tenth_is_held_out(tmp_path: Path) -> None:
    sizes = {f"part/{i}.txt": 1000 + 37 * i for i in range(40)}
    text = data.load_text(str(folder_of(tmp_path / "book", sizes)))
    train, test = bytes_of(text.train), bytes_of(text.test)
    test_files = [name for name in sizes if (tmp_path / "book" / name).read_bytes() in test]
    assert 0.1 <= len(test) / (len(train) + len(test)) < 0.16
    assert all(((tmp_path / "book" / name).read_bytes() in train) != (name in test_files) for name in sizes)
    assert text.files == 40


def test_no_line_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    text = data.load_text(str(folder_of(tmp_path / "book", {f"{i}.txt": 3000 for i in range(12)})))
    test_lines = set(bytes_of(text.test).splitlines())
    assert test_lines and not test_lines & set(bytes_of(text.train).splitlines()) - {b""}


def test_a_single_file_holds_out_its_last_tenth(tmp_path: Path) -> None:
    whole = folder_of(tmp_path, {"one.xyz": 30_007}) / "one.xyz"
    text = data.load_text(str(whole))
    cut = math.floor(30_007 * 0.9)
    assert bytes_of(text.train) == whole.read_bytes()[:cut]
    assert bytes_of(text.test) == whole.read_bytes()[cut:]
    facts = {"name": str(whole), "sha256": text.sha256, "train_bytes": cut, "test_bytes": 30_007 - cut, "files": 1}
    facts["documents"] = 1
    assert text.record_entry() == facts | {"bigram_bits_per_byte": text.bigram_bits}


def test_what_is_to_be_beaten_is_a_count_of_pairs_of_bytes(tmp_path: Path) -> None:
    text = data.load_text(str(folder_of(tmp_path, {"one.txt": 30_000}) / "one.txt"))
    train, test = bytes_of(text.train), bytes_of(text.test)
    pairs, firsts = Counter(pairwise(train)), Counter(train[:-1])
    bits = [-math.log2((pairs[a, b] + 0.1) / (firsts[a] + 25.6)) for a, b in pairwise(test)]
    assert text.bigram_bits == pytest.approx(math.fsum(bits) / len(bits), rel=1e-9)


def test_a_file_of_most_of_the_text_is_trained_on_whatever_its_name(tmp_path: Path) -> None:
    for i in range(6):
        text = data.load_text(str(folder_of(tmp_path / str(i), {f"large{i}.txt": 30_000, "small.txt": 4000})))
        assert len(text.train) == 30_000 and len(text.test) == 4000


def test_the_split_depends_on_names_inside_the_folder_and_not_on_where_it_lies(tmp_path: Path) -> None:
    sizes = {f"{i}.txt": 3000 for i in range(12)}
    first, second = (data.load_text(str(folder_of(tmp_path / where / "book", sizes))) for where in ("a", "b"))
    assert first.sha256 == second.sha256 and bytes_of(first.test) == bytes_of(second.test)


def test_the_hash_changes_with_a_single_byte(tmp_path: Path) -> None:
    book = folder_of(tmp_path, {"0.txt": 12_000, "1.txt": 12_000, "2.txt": 12_000})
    digest = data.load_text(str(book)).sha256
    content = (book / "1.txt").read_bytes()
    (book / "1.txt").write_bytes(content[:-2] + b"#" + content[-1:])
    assert data.load_text(str(book)).sha256 != digest


def test_hidden_files_and_other_kinds_of_files_are_left_alone(tmp_path: Path) -> None:
    book = folder_of(tmp_path, {"0.txt": 12_000, "1.md": 12_000})
    plain = data.load_text(str(book)).sha256
    (book / ".git").mkdir()
    (book / ".git" / "index").write_bytes(b"\x00\xff" * 100)
    (book / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (book / "empty.txt").write_bytes(b"")
    assert data.load_text(str(book)).sha256 == plain


def test_without_a_path_the_standard_library_of_this_python_is_read() -> None:
    text = data.load_text(None)
    assert text.name == "the Python standard library" and text.files > 100
    assert 0.1 <= len(text.test) / (len(text.test) + len(text.train)) < 0.25
    assert Path(os.__file__).read_bytes() in bytes_of(text.train) + bytes_of(text.test)


def test_a_python_without_its_sources_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(
        ValueError, match=r"this Python keeps no sources of its standard library in .*; give --text a file or folder"
    ):
        data.load_text(None)


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.txt"
    with pytest.raises(
        ValueError, match=r"^no file or folder '.*nowhere\.txt'; give --text a text file or a folder of text files$"
    ):
        data.load_text(str(path))


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_folder_or_file_holds_no_text(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"^'.*' holds no text; give --text a file or folder with at least 20,000 bytes$"
    ):
        data.load_text(str(tmp_path))
    if content is not None:
        with pytest.raises(ValueError, match="holds no text"):
            data.load_text(str(tmp_path / "empty.txt"))


@pytest.mark.parametrize("content", [b"\xff\xfe" * 20_000, b"a\x00" * 20_000, "ü".encode("latin-1") * 30_000])
def test_binary_data_is_refused_with_the_file_named(tmp_path: Path, content: bytes) -> None:
    folder_of(tmp_path, {"fine.txt": 30_000})
    (tmp_path / "other.txt").write_bytes(content)
    for path in (tmp_path, tmp_path / "other.txt"):
        with pytest.raises(
            ValueError, match=r"^'.*other\.txt' is not text \(it holds bytes that are no UTF-8\); give --text"
        ):
            data.load_text(str(path))


@pytest.mark.parametrize("sizes", [{"one.txt": 19_999}, {"a.txt": 9000, "b.txt": 9000}])
def test_a_text_that_is_too_short_says_how_long_it_is_and_should_be(tmp_path: Path, sizes: dict[str, int]) -> None:
    folder_of(tmp_path, sizes)
    path = tmp_path / "one.txt" if len(sizes) == 1 else tmp_path
    with pytest.raises(
        ValueError, match=r"holds 1[89],\d\d\d bytes of text, and at least 20,000 are needed; add more text$"
    ):
        data.load_text(str(path))


def test_twenty_thousand_bytes_are_enough(tmp_path: Path) -> None:
    assert len(data.load_text(str(folder_of(tmp_path, {"one.txt": 20_000}) / "one.txt")).train) == 18_000


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user who may be denied reading")
def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    file = folder_of(tmp_path, {"secret.txt": 30_000}) / "secret.txt"
    file.chmod(0)
    with pytest.raises(ValueError, match=r"^'.*secret\.txt' cannot be read: Permission denied$"):
        data.load_text(str(tmp_path))


def test_a_file_that_fails_while_it_is_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder_of(tmp_path, {"torn.txt": 30_000}) / "torn.txt"

    def failing(path: Path, *_, **__) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(data, "open", failing, raising=False)
    with pytest.raises(ValueError, match=r"^'.*torn\.txt' cannot be read: Input/output error$"):
        data.load_text(str(file))


def test_windows_are_bos_and_consecutive_bytes_and_all_predictions_count(tmp_path: Path) -> None:
    task = tasks.task_of(f"text(path='{folder_of(tmp_path, {'one.txt': 30_000}) / 'one.txt'}')")
    batch = task.batch(11, 5, torch.Generator().manual_seed(0))
    whole = bytes_of(task.text.train)
    assert batch.ids.shape == (5, 11) and batch.answer.tolist() == [True] * 11 and batch.answer.dtype == torch.bool
    for read, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        assert read[0] == 256 and read[1:] == targets[:-1] and bytes(targets) in whole


def test_windows_read_over_the_ends_of_files_with_a_newline_between(tmp_path: Path) -> None:
    book = folder_of(tmp_path / "book", {f"{i}.txt": size for i, size in enumerate((9000, 1, 3, 8000, 2, 9000))})
    text = data.load_text(str(book))
    train = text.train
    whole, held_out = (b"\n".join(piece.path.read_bytes() for piece in part.pieces) for part in (train, text.test))
    assert text.sha256 == hashlib.sha256(whole + held_out).hexdigest()
    assert len(train.pieces) > 2 and len(train) == len(whole)
    start = torch.arange(len(whole) - 20)
    assert bytes(train.windows(start, 20).flatten().tolist()) == b"".join(whole[i : i + 20] for i in start.tolist())


@pytest.mark.parametrize("block", rest_slow([7, 1 << 20, 1, 1000], 2))
def test_the_size_of_a_block_changes_nothing(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "naïve \N{GREEK SMALL LETTER ALPHA}\N{SMILING FACE WITH SUNGLASSES} text\n" * 1200
    (tmp_path / "one.txt").write_text(words)
    data.build_text.cache_clear()
    monkeypatch.setattr(data, "BLOCK", block)
    text = data.load_text(str(tmp_path / "one.txt"))
    assert text.sha256 == hashlib.sha256(words.encode()).hexdigest()
    cut = len(words.encode()) * 9 // 10
    pairs = Counter(pairwise(words.encode()[:cut]))
    counts = text.train.pairs()
    assert int(counts.sum()) == cut - 1 and all(counts[pair] == n for pair, n in pairs.items())


@pytest.mark.parametrize("bad", [b"\xff", b"\x00", "ü".encode()[:1]])
@pytest.mark.parametrize("place", ["middle", "end"])
def test_what_is_no_text_is_found_wherever_it_stands(bad: bytes, place: str, tmp_path: Path) -> None:
    fine = b"fine text\n" * (data.BLOCK // 10 + 50)
    (tmp_path / "late.txt").write_bytes(fine + bad + (b"x" if place == "middle" else b""))
    with pytest.raises(ValueError, match=r"late\.txt' is not text \(it holds bytes that are no UTF-8\)"):
        data.load_text(str(tmp_path / "late.txt"))


@pytest.mark.parametrize("change", [lambda file: file.write_text("x" * 30_000), lambda file: os.truncate(file, 29_000)])
def test_a_text_that_changes_while_it_is_in_use_is_refused(change, tmp_path: Path) -> None:
    file = folder_of(tmp_path, {"one.txt": 30_000}) / "one.txt"
    text = data.load_text(str(file))
    os.utime(file, ns=(0, 0))
    change(file)
    for use in (text.record_entry, lambda: text.test.windows(torch.tensor([5]), 3)):
        with pytest.raises(ValueError, match=r"one\.txt' was changed while it was in use; run the same command again"):
            use()
    assert data.load_text(str(file)).sha256 != text.sha256


def test_pipes_devices_and_impossible_names_are_refused_in_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for path, words in (
        (tmp_path / "pipe.txt", "expected a file, got a device or a pipe"),
        ("/dev/zero", "expected a file, got a device or a pipe"),
        ("x" * 300, "^no file or folder 'x+.* give --text a text file or a folder of text files$"),
        ("x\x00y", "^no file or folder 'x.*y'; give --text"),
        ("", "^no file or folder ''; give --text"),
        ("/proc/self", "cannot be read|cannot be opened|holds no text|is not text|there is no such file|changed"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            data.load_text(str(path))
        assert len(str(error.value)) < 400


def test_a_folder_that_may_not_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, {"a.txt": 30_000, "closed/b.txt": 30_000})
    real_scandir = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ValueError, match=r"closed' cannot be read: Permission denied$"):
        data.load_text(str(tmp_path))


def test_a_link_out_of_a_folder_of_texts_is_refused_and_one_that_is_named_is_followed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "book", {"a.txt": 30_000, "b.txt": 30_000})
    (tmp_path / "secret").write_text("a word\n" * 5_000)
    (folder / "inside.txt").symlink_to("a.txt")
    assert data.load_text(str(folder)).files == 3
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"notes\.txt: it is a link to '.*secret', outside its folder; put the file"):
        data.load_text(str(folder))
    assert data.load_text(str(folder / "notes.txt")).files == 1
    (tmp_path / "link").symlink_to(folder)
    (folder / "notes.txt").unlink()
    assert data.load_text(str(tmp_path / "link")).files == 3


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes on Linux alone")
def test_a_file_whose_name_is_no_text_is_read_like_any_other(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "book", {"a.txt": 30_000, "b.txt": 30_000})
    (folder / os.fsdecode(b"\xff.txt")).write_text("a word\n" * 5_000)
    assert data.load_text(str(folder)).files == 3


def test_too_little_text_for_a_window_is_refused_with_both_sizes(tmp_path: Path) -> None:
    task = tasks.task_of(f"text(path='{folder_of(tmp_path, {'one.txt': 20_000}) / 'one.txt'}')")
    with pytest.raises(ValueError, match="the text has 18,000 bytes to train on, too few for a window of 18000; add"):
        task.batch(18_000, 1, torch.Generator())


PROGRAM = """
import sys, torch
from pathlib import Path
from posenc.lab import tasks
from posenc.lab.evaluation import evaluate
from posenc.lab.texts import data

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def use(path):
    task = tasks.task_of(f"text({path})")
    text = task.text
    text.record_entry()
    task.batch(64, 16, torch.Generator().manual_seed(0))
    last = evaluate.evenly_spaced(0, len(text.train) - 64, 1000)
    task.windows(text.train, last, 64)
    return len(text.train)

use(sys.argv[1])
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmHWM")
size = use(sys.argv[2])
print(size, memory("VmHWM") - before)
"""


def memory_beyond(small: str, large: str) -> tuple[int, float]:
    """The training size of a text, and its memory beyond that of a small one (MB, including file pages)."""
    child = [sys.executable, "-c", PROGRAM, small, large]
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(child, capture_output=True, text=True, env=path, check=False)
    assert process.returncode == 0, process.stderr
    size, extra = process.stdout.split()
    return int(size), float(extra)


def letters_in_lines(megabytes: int) -> Iterator[str]:
    """A megabyte of letters, line by line, again and again."""
    letters = torch.randint(97, 123, (1_000_000,), generator=torch.Generator().manual_seed(0))
    block = bytes(letters.tolist()).decode()
    for number in range(megabytes):
        yield from (f"{number}{block[place : place + 5_000]}" for place in range(0, 1_000_000, 5_000))


MEMORY_IS_TOLD = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc"
)
SMALL = "a few words, to load all that this needs\n"


@pytest.mark.slow
@MEMORY_IS_TOLD
@pytest.mark.parametrize(("megabytes", "files"), [(64, 3), (2300, 1)], ids=str)
def test_a_text_takes_the_memory_of_a_few_blocks_whatever_its_size(megabytes: int, files: int, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text(SMALL * 1000)
    book = tmp_path / "book"
    book.mkdir()
    for name in range(files):
        with open(book / f"{name}.txt", "w") as file:
            file.writelines(letters_in_lines(megabytes // files))
    size, extra = memory_beyond(f"path='{tmp_path / 'small.txt'}'", f"path='{book}'")
    assert size > 0.6e6 * megabytes and extra < 40


@pytest.mark.slow
@MEMORY_IS_TOLD
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_records_take_the_memory_of_a_few_of_them_however_many_there_are(suffix: str, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed; it comes with the test extra")
    for name, megabytes in (("small", 3), ("large", 48)):
        write_records(tmp_path / f"{name}{suffix}", letters_in_lines(megabytes))
    size, extra = memory_beyond(*(f"path='{tmp_path / name}{suffix}'" for name in ("small", "large")))
    assert size > 40e6 and extra < 40


def write_records(file: Path, texts: Iterator[str]) -> None:
    if file.suffix == ".jsonl":
        with open(file, "w") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        return
    from pyarrow import parquet, record_batch, schema, string

    form = schema([("text", string())])
    with parquet.ParquetWriter(file, form, use_dictionary=False, compression="none") as writer:
        while rows := list(islice(texts, 2000)):
            writer.write_batch(record_batch([rows], schema=form))


@pytest.mark.slow
@MEMORY_IS_TOLD
def test_tokens_take_the_memory_of_a_few_blocks_whatever_the_size_of_the_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed; it comes with the hf extra")
    # Every letter is a token: as numbers of Python and their places, those of this text would take 150 MB.
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({chr(i): i for i in range(128)}, []))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(tmp_path / "letters.json"))
    (tmp_path / "small.txt").write_text(SMALL * 1000)
    (tmp_path / "large.txt").write_text("\n".join(letters_in_lines(1)))
    options = (f"path='{tmp_path / name}.txt', tokenizer='{tmp_path / 'letters.json'}'" for name in ("small", "large"))
    size, extra = memory_beyond(*options)
    assert size > 0.8e6 and extra < 40
