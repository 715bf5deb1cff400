"""Text as a tokenizer's tokens: no byte is lost, and each token counts its bytes."""

import hashlib
import json
import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from posenc.foreign import CannotRead
from posenc.lab.tasks import task_of
from posenc.lab.texts import data, tokenized

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed; it comes with the hf extra")

WORDS = "the cat sat on the naïve mat, and said \N{GREEK SMALL LETTER ALPHA}\N{SMILING FACE WITH SUNGLASSES}  twice\n\n"


def book(home: Path, times: int = 700) -> str:
    """A text of different lines, without a final newline."""
    file = home / "book.txt"
    file.write_text("".join(f"{i} {WORDS}" for i in range(times)) + "end")
    return str(file)


def byte_level(home: Path, size: int = 280) -> str:
    """A byte-level BPE of the words above."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([WORDS.replace("\N{SMILING FACE WITH SUNGLASSES}", "")] * 9, trainer)
    tokenizer.save(str(home / "tokenizer.json"))
    return str(home / "tokenizer.json")


def in_tokens(home: Path, **options) -> tokenized.TokenizedText:
    return tokenized.tokenize_text(
        data.load_text(book(home)), tokenized.Tokenizer.from_file(byte_level(home, **options))
    )


def all_of(part: tokenized.TokenFile) -> tuple[list[int], list[int]]:
    start = torch.tensor([0])
    return part.windows(start, len(part))[0].tolist(), part.bytes_in(start, len(part))[0].tolist()


def test_the_tokens_are_those_of_the_text_and_count_all_of_its_bytes(tmp_path: Path) -> None:
    text = in_tokens(tmp_path)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for part, source in ((text.train, text.text.train), (text.test, text.text.test)):
        ids, sizes = all_of(part)
        content = b"".join(source.blocks())
        assert plain.decode(ids, skip_special_tokens=False).encode() == content
        assert sum(sizes) == len(content) and len(ids) < 0.7 * len(content)
        blanks = {"Ġ": " ", "Ċ": "\n"}
        for token, size in zip(ids[:2000], sizes, strict=False):
            letters = "".join(blanks.get(letter, letter) for letter in plain.id_to_token(token))
            if letters.isascii():
                assert size == len(letters)


def test_a_letter_of_several_tokens_counts_for_the_first_of_them(tmp_path: Path) -> None:
    tokenizer = tokenized.Tokenizer.from_file(byte_level(tmp_path))
    ids, sizes = tokenizer.with_bytes("a\N{SMILING FACE WITH SUNGLASSES}b")
    assert len(ids) == 6 and sizes == [1, 4, 0, 0, 0, 1]


def test_blanks_count_where_a_tokenizer_leaves_them_out_of_its_places(tmp_path: Path) -> None:
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "abĠ": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b"), ("ab", "Ġ")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = level, tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids, sizes = tokenized.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).with_bytes("ab ab ab ")
    assert ids == [4, 4, 4] and sum(sizes) == 9 and min(sizes) >= 2


@pytest.mark.parametrize("block", [7, 100, 1 << 20])
def test_the_size_of_a_block_loses_nothing(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenized, "BLOCK_BYTES", block)
    text, tokenizer = data.load_text(book(tmp_path)), tokenized.Tokenizer.from_file(byte_level(tmp_path))
    part = tokenized.TokenFile(text.train, tokenizer)
    ids, sizes = all_of(part)
    assert tokenizer.decode(ids).encode() == b"".join(text.train.blocks()) and sum(sizes) == len(text.train)
    assert list(pairwise(ids)) == [pair for piece in part.blocks() for pair in pairwise(piece.tolist())]


def test_a_text_is_cut_where_lines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenized, "BLOCK_BYTES", 200)
    pieces = list(tokenized.text_blocks(data.load_text(book(tmp_path)).train))
    assert len(pieces) > 100 and all(piece.endswith("\n") for piece in pieces[:-1])


@pytest.mark.parametrize(("width", "largest"), [(2, 65_535), (4, 4_294_967_295)])
def test_numbers_keep_their_value_in_two_or_four_bytes(width: int, largest: int) -> None:
    file = tokenized.IntegerFile(width)
    file.write([0, 1, largest])
    file.write([largest - 1, 5])
    assert len(file) == 5 and file.file.size == 5 * width
    assert file.windows(torch.tensor([0, 2]), 3).tolist() == [[0, 1, largest], [largest, largest - 1, 5]]


def test_ids_take_two_bytes_where_the_vocabulary_allows_it(tmp_path: Path) -> None:
    text = in_tokens(tmp_path)
    assert text.tokenizer.vocab == 280 and text.train.ids.width == 2
    text.tokenizer.vocab = 65_536
    assert tokenized.TokenFile(text.text.test, text.tokenizer).ids.width == 2
    text.tokenizer.vocab = 65_537
    assert tokenized.TokenFile(text.text.test, text.tokenizer).ids.width == 4


def test_what_is_to_be_beaten_is_a_count_of_pairs_of_tokens(tmp_path: Path) -> None:
    text = in_tokens(tmp_path)
    (train, _), (test, sizes) = all_of(text.train), all_of(text.test)
    pairs, firsts, seconds = Counter(pairwise(train)), Counter(train[:-1]), Counter(train[1:])
    bits = []
    for a, b in pairwise(test):
        alone = (seconds[b] + 0.1) / (len(train) - 1 + 0.1 * 280)
        bits.append(-math.log2((pairs[a, b] + 10 * alone) / (firsts[a] + 10)))
    assert text.bigram_bits == pytest.approx(math.fsum(bits) / sum(sizes[1:]), rel=1e-9)


def test_a_record_says_what_the_tokens_are_of(tmp_path: Path) -> None:
    text = in_tokens(tmp_path)
    facts = text.record_entry()
    assert facts["sha256"] == text.sha256 == text.text.sha256
    assert facts["tokenizer_sha256"] == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert facts["tokenizer"] == str(tmp_path / "tokenizer.json") and facts["vocab"] == 280
    assert (facts["train_tokens"], facts["test_tokens"]) == (len(text.train), len(text.test))
    assert facts["bytes_per_token"] == len(text.text.test) / len(text.test) > 1.4
    assert facts["bigram_bits_per_byte"] == text.bigram_bits != text.text.bigram_bits


def test_a_text_is_encoded_once_for_all_tasks_that_read_it(tmp_path: Path) -> None:
    spec = f"text(path='{book(tmp_path)}', tokenizer='{byte_level(tmp_path)}')"
    assert task_of(spec).text is task_of(spec).text


def test_another_tokenizer_is_another_task(tmp_path: Path) -> None:
    path = book(tmp_path)
    plain = task_of(f"text(path='{path}')")
    with_tokens = task_of(f"text(path='{path}', tokenizer='{byte_level(tmp_path)}')")
    sha256 = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert plain.contents() == {"sha256 of the text": plain.text.sha256}
    assert with_tokens.contents() == plain.contents() | {"sha256 of the tokenizer": sha256}
    byte_level(tmp_path, 270)
    new_task = task_of(f"text(path='{path}', tokenizer='{tmp_path / 'tokenizer.json'}')")
    assert new_task.contents()["sha256 of the tokenizer"] != sha256 and new_task.vocab == 271


def test_windows_are_bos_and_consecutive_tokens_and_say_how_many_bytes_each_stands_for(tmp_path: Path) -> None:
    task = task_of(f"text(path='{book(tmp_path)}', tokenizer='{byte_level(tmp_path)}')")
    ids, sizes = all_of(task.text.train)
    batch = task.windows(task.text.train, torch.tensor([3, 40]), 9)
    assert task.vocab == 281 and task.bos == 280 and task.tokens(9) == 9
    assert batch.ids.tolist() == [[280, *ids[3:11]], [280, *ids[40:48]]]
    assert batch.targets.tolist() == [ids[3:12], ids[40:49]] and batch.answer.tolist() == [True] * 9
    assert batch.bytes is not None and batch.bytes.tolist() == [sizes[3:12], sizes[40:49]]
    assert task.decode(task.encode("the cat")) == "the cat" and task.encode("the cat")[0] == 280
    with pytest.raises(
        ValueError, match=r"tokens to train on, too few for a window of 90000; add text or choose shorter"
    ):
        task.batch(90_000, 1, torch.Generator())


def test_bytes_stand_for_themselves(tmp_path: Path) -> None:
    task = task_of(f"text(path='{book(tmp_path)}')")
    batch = task.batch(11, 5, torch.Generator().manual_seed(0))
    assert batch.bytes is not None and batch.bytes.tolist() == [[1] * 11] * 5


def test_a_tokenizer_that_cuts_or_pads_is_asked_not_to(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    plain = tokenized.Tokenizer.from_file(path).encode(WORDS)
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=500)
    tokenizer.save(path)
    assert tokenized.Tokenizer.from_file(path).encode(WORDS) == plain and len(plain) > 4


def test_a_tokenizer_that_loses_letters_is_refused_with_the_place(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.save(path)
    with pytest.raises(
        CannotRead,
        match=r"tokenizer\.json: it does not give back the text that it was given: 'Sat here' comes back as "
        r"'sat here', and bits per byte would be those of another text; "
        r"take one that loses nothing, such as a byte-level BPE$",
    ):
        tokenized.Tokenizer.from_file(path).with_bytes("the cat Sat here")


@pytest.mark.parametrize("content", ["{}", "no tokenizer", json.dumps({"version": "1.0", "model": 5})])
def test_what_is_no_tokenizer_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CannotRead, match=r"tokenizer\.json: tokenizers cannot read it \(.*; give a tokenizer\.json$"):
        tokenized.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def test_a_tokenizer_without_the_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = byte_level(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenized.cached_tokenizer.cache_clear()
    with pytest.raises(
        CannotRead,
        match=r"tokenizer\.json: a tokenizer needs tokenizers; install it with `pip install 'posenc\[hf\]'`$",
    ):
        tokenized.Tokenizer.from_file(path)
