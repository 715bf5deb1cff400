"""Tokenizers out of GGUF metadata: the same ids as transformers' own tokenizers of the same pieces."""

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from posenc.checkpoints.files.gguf_tokenizer import tokenizer  # noqa: E402
from posenc.checkpoints.files.packages import is_there  # noqa: E402
from posenc.checkpoints.formats.load import load  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

TEXT = (
    "It's 12345 o'clock, isn't it?\n\n  Twelve   spaces:            end\r\n\ttab\t\n"
    "We'LL see: caf\u00e9, cafe\u0301, na\u00efve, \u4f60\u597d 2024\u5e74, \U0001f600!!! ... #include <x>\n   "
    "\n x= y+1;  "
)
LEARNED = " ".join([TEXT, "the then there 12 123 1234 it's it'LL we'll cafe spaces end end. x= += -> <x> café"] * 3)


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """The metadata of a small byte-level BPE, with special tokens at its end."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        [LEARNED], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    import json

    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    special = ["<|begin|>", "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*pieces, *special, "<user>"],
        "tokenizer.ggml.token_type": [1] * len(pieces) + [3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(pieces),
        "tokenizer.ggml.eos_token_id": len(pieces) + 1,
    }


def ids(of: Any, text: str = TEXT) -> list[int]:
    return of(text, add_special_tokens=False)["input_ids"]


def pieces_of(said: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Vocabulary and merges, as transformers' tokenizers are given them."""
    vocabulary = {piece: number for number, piece in enumerate(said["tokenizer.ggml.tokens"])}
    return vocabulary, [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]


def test_gpt2_gives_the_ids_of_transformers(said) -> None:
    vocabulary, merges = pieces_of(said)
    theirs = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges, add_prefix_space=False)
    ours = tokenizer(said, "a file")
    assert ids(ours) == ids(theirs)
    assert ours.decode(ids(ours)) == TEXT


def test_qwen2_gives_the_ids_of_transformers(said) -> None:
    vocabulary, merges = pieces_of(said)
    theirs = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, add_prefix_space=False)
    ours = tokenizer(said | {"tokenizer.ggml.pre": "qwen2"}, "a file")
    assert ids(ours) == ids(theirs) != ids(tokenizer(said, "a file"))


def test_llama_cuts_numbers_in_threes_and_begins_with_its_own_token(said) -> None:
    ours = tokenizer(said | {"tokenizer.ggml.pre": "llama-bpe"}, "a file")
    cuts = [piece for piece, _ in ours.backend_tokenizer.pre_tokenizer.pre_tokenize_str("it'LL 1234567 be\n\n  so !\n")]
    assert cuts == ["it", "'LL", "Ġ", "123", "456", "7", "Ġbe", "ĊĊ", "Ġ", "Ġso", "Ġ!Ċ"]
    begin = said["tokenizer.ggml.bos_token_id"]
    assert ours("a")["input_ids"][0] == begin and len(ours("a")["input_ids"]) == 2
    without = tokenizer(said | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, "a file")
    assert without("a")["input_ids"] == ours("a")["input_ids"][1:]


def test_smollm_cuts_every_digit_apart(said) -> None:
    ours = tokenizer(said | {"tokenizer.ggml.pre": "smollm"}, "a file")
    cuts = [piece for piece, _ in ours.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 1984 it")]
    assert cuts == ["in", "Ġ", "1", "9", "8", "4", "Ġit"]
    assert ours.decode(ids(ours)) == TEXT


def test_special_tokens_stay_whole_and_those_of_users_are_no_special_ones(said) -> None:
    ours = tokenizer(said | {"tokenizer.chat_template": "{{ messages }}"}, "a file")
    end, user = said["tokenizer.ggml.eos_token_id"], len(said["tokenizer.ggml.tokens"]) - 1
    assert ids(ours, "<|end|>") == [end] and ids(ours, "<user>") == [user]
    assert ours.decode([end, user], skip_special_tokens=True) == "<user>"
    assert ours.eos_token_id == end and ours.pad_token_id is None and ours.chat_template == "{{ messages }}"


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "deepseek-llm"}])
def test_what_it_cannot_do_right_it_does_not_do(said, change: dict[str, str]) -> None:
    with pytest.raises(
        CannotRead, match=r"a file has a tokenizer of the kind '.*posenc makes those of the kind 'gpt2'"
    ):
        tokenizer(said | change, "a file")


@pytest.mark.slow
@pytest.mark.skipif(not is_there("smollm2"), reason="run `posenc fetch smollm2` first")
def test_the_tokenizer_of_smollm2_reads_and_says_a_whole_book() -> None:
    from pydoc_data.topics import topics

    text = "\n\n".join(topics.values())
    ours = load("smollm2").tokenizer
    assert ours is not None
    found = ids(ours, text)
    # Cut and merged by another implementation of the same rules.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.Split(
        Regex(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated"
    )
    twin = Tokenizer.from_str(ours.backend_tokenizer.to_str())
    twin.pre_tokenizer = pre_tokenizers.Sequence([digits, words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    twin.decoder = decoders.ByteLevel()
    assert found == twin.encode(text, add_special_tokens=False).ids
    assert ours.decode(found) == text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens: expected a list of str, got None"),
        ({"tokenizer.ggml.tokens": [1]}, "tokenizer.ggml.tokens[0]: expected str, got 1"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type: expected one for each of"),
        ({"tokenizer.ggml.bos_token_id": 9_999}, "tokenizer.ggml.bos_token_id: expected a whole number from 0 to"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "tokenizers cannot read it (TypeError: "),
        ({"tokenizer.ggml.merges": ["nothing here"]}, "tokenizers cannot read it (Exception: "),
        ({"tokenizer.ggml.pre": ["gpt-2"]}, "of the kind 'gpt2' that cuts words as ['gpt-2']"),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused_by_its_key(said, changed, words) -> None:
    with pytest.raises(CannotRead) as error:
        tokenizer(said | changed, Path("m.gguf"))
    assert words in str(error.value) and str(error.value).startswith("m.gguf")


def test_a_text_that_begins_with_a_token_that_is_not_named_is_refused(said) -> None:
    without = {key: value for key, value in said.items() if "bos" not in key} | {"tokenizer.ggml.add_bos_token": True}
    with pytest.raises(CannotRead, match=r"m.gguf: tokenizer.ggml.bos_token_id: it is missing, and every text begins"):
        tokenizer(without, Path("m.gguf"))
