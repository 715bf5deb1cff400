"""Tokenizers out of GGUF metadata: the same ids as transformers' own tokenizers of the same pieces."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from posenc.checkpoints.files.gguf_pieces import CUTS  # noqa: E402
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


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "rwkv"}, {"tokenizer.ggml.pre": "deepseek-llm"}])
def test_what_it_cannot_do_right_it_does_not_do(said, change: dict[str, str]) -> None:
    with pytest.raises(
        CannotRead, match=r"a file has a tokenizer of the kind '.*posenc makes those of the kinds llama, t5, bert, and"
    ):
        tokenizer(said | change, "a file")


@pytest.mark.parametrize("name", sorted(set(CUTS) - {"gpt-2", "smollm"}))
def test_words_are_cut_as_transformers_cuts_them(said, name: str) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    theirs = pre_tokenizers.Split(Regex(mapping.GGUF_PRE_TOKENIZER_SPLITS[name]), "isolated")
    words = tokenizer(said | {"tokenizer.ggml.pre": name}, "a file").backend_tokenizer.pre_tokenizer
    text = TEXT + " HTTPServer's ЖУК's éÉ n\u0303o 1234567 //path/to/ \u0e01\u0e33 don'T WE'LL"
    spans = [span for _, span in words.pre_tokenize_str(text)]
    assert spans == [span for _, span in theirs.pre_tokenize_str(text)]


SPACE = "\u2581"


def of_scores(pieces: dict[str, float], **more: Any) -> dict[str, Any]:
    """The metadata of pieces with scores, behind one for what has no piece, two special ones and one for each byte."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*first, *pieces],
        "tokenizer.ggml.scores": [0.0] * len(first) + list(pieces.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {key.replace("__", "."): value for key, value in more.items()}


def joined_by_score(text: str, pieces: dict[str, float]) -> list[str]:
    """SentencePiece's BPE by its definition: again and again two neighbours with the best joined piece are joined."""
    found = list(text)
    while True:
        pairs = [(pieces[a + b], -i) for i, (a, b) in enumerate(pairwise(found)) if a + b in pieces]
        if not pairs:
            return found
        place = -max(pairs)[1]
        found[place : place + 2] = [found[place] + found[place + 1]]


def test_pieces_with_scores_are_joined_by_the_best_score() -> None:
    words = ["the", "then", "there", "other", "her", "he", "hen", "en", "er", "re", "th", "ther", "ent", "the" + SPACE]
    drawn = torch.randperm(1000, generator=torch.Generator().manual_seed(3)).tolist()
    longer = {piece: -float(drawn[number]) for number, piece in enumerate([*words, SPACE + "t", SPACE + "the"])}
    pieces = longer | {letter: -2000.0 - number for number, letter in enumerate("thenro" + SPACE)}
    ours = tokenizer(of_scores(pieces), "a file")
    for text in ("then there other", "  the  hen", "otherthentherethe", "heherre tent", ""):
        wanted = joined_by_score((SPACE + text if text else "").replace(" ", SPACE), pieces)
        assert ours.tokenize(text) == wanted
        assert ours.decode(ids(ours, text)) == text
    # What no piece has becomes its bytes, and a text begins with its token unless the file says otherwise.
    assert ours.tokenize("é") == [SPACE, "<0xC3>", "<0xA9>"] and ours.decode(ids(ours, "thé €")) == "thé €"
    assert ours("the")["input_ids"][0] == 1 and ours("the")["input_ids"][-1] != 2
    plain = tokenizer(of_scores(pieces, tokenizer__ggml__add_space_prefix=False), "a file")
    assert plain.tokenize("the hen") == joined_by_score(f"the{SPACE}hen", pieces)


def best_sum(text: str, pieces: dict[str, float]) -> float:
    """The highest sum of scores by which a text can be cut into pieces."""
    best = [0.0] + [-math.inf] * len(text)
    for end in range(1, len(text) + 1):
        best[end] = max(best[start] + pieces.get(text[start:end], -math.inf) for start in range(end))
    return best[-1]


def test_unigram_finds_the_pieces_with_the_highest_sum() -> None:
    words = ["the", "then", "there", "other", "her", "he", "hen", SPACE + "t", SPACE + "the", *"thenro", SPACE]
    drawn = torch.rand(len(words), generator=torch.Generator().manual_seed(4)).tolist()
    pieces = {piece: -1.0 - 8 * score * len(piece) ** 0.5 for piece, score in zip(words, drawn, strict=True)}
    ours = tokenizer(of_scores(pieces) | {"tokenizer.ggml.model": "t5"}, "a file")
    for text in ("then there other", "otherthen", "  the   hen "):
        found = ours.tokenize(text)
        whole = SPACE + SPACE.join(text.split())
        assert "".join(found) == whole
        assert sum(pieces[piece] for piece in found) == pytest.approx(
            sum(best_sum(SPACE + word, pieces) for word in text.split())
        )
    assert ours("the")["input_ids"][-1] == 2 and ours("the")["input_ids"][0] != 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"token_type": [3] * 260}, "tokenizer.ggml.token_type: it has no piece of the kind for what has none"),
        ({"precompiled_charsmap": [0] * 8}, "tokenizer.ggml.precompiled_charsmap: its tree of letters is cut off"),
        ({"precompiled_charsmap": [0, 8, 0, 0, *[7] * 99]}, "precompiled_charsmap: its tree of letters is cut off"),
    ],
)
def test_a_unigram_that_cannot_be_is_refused_by_its_key(changed: dict[str, Any], words: str) -> None:
    said = of_scores({"a": -1.0}) | {"tokenizer.ggml.model": "t5"}
    with pytest.raises(CannotRead, match=words):
        tokenizer(said | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}, "a file")


@pytest.mark.parametrize("capital", [False, True])
def test_word_pieces_give_the_ids_of_transformers(capital: bool) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "cafe", "café", "s", "it", "'", "!", "2024", "年", "20", *(["The"] if capital else [])]
    parts = ["##s", "##24", "##n", "##re", "##e"]
    theirs = transformers.BertTokenizer(
        vocab={piece: number for number, piece in enumerate([*special, *words, *parts])}, do_lower_case=not capital
    )
    stored = [*special, *(SPACE + word for word in words), *(part.removeprefix("##") for part in parts)]
    said = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": stored}
    said["tokenizer.ggml.token_type"] = [3] * 5 + [1] * (len(stored) - 5)
    ours = tokenizer(said, "a file")
    text = "The café's there! It's 2024年 then CAFE [MASK] xyz"
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours(text, "it s")["input_ids"] == theirs(text, "it s")["input_ids"]
    assert ours.tokenize("There")[0] == ("The" if capital else "the")


@pytest.mark.slow
@pytest.mark.skipif(not is_there("minilm"), reason="run `posenc fetch minilm` first")
def test_the_word_pieces_of_minilm_read_a_whole_book_as_its_own_tokenizer_does() -> None:
    from pydoc_data.topics import topics

    theirs = load("minilm").tokenizer
    vocabulary = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    special = set(theirs.all_special_tokens)
    stored = [one if one in special else one[2:] if one.startswith("##") else SPACE + one for one in vocabulary]
    said = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": stored}
    said["tokenizer.ggml.token_type"] = [3 if one in special else 1 for one in vocabulary]
    text = "\n\n".join(topics.values()) + TEXT
    assert ids(tokenizer(said, "a file"), text) == ids(theirs, text)


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


UNKNOWN = {"tokenizer.ggml.tokens": ["[UNK]", "[SEP]"], "tokenizer.ggml.token_type": [3, 3]}
UNKNOWN |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}


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
        ({"tokenizer.ggml.model": "llama"}, "the field tokenizer.ggml.scores is missing"),
        (
            {"tokenizer.ggml.model": "t5", "tokenizer.ggml.scores": [0.5]},
            "tokenizer.ggml.scores: expected one for each of",
        ),
        ({"tokenizer.ggml.model": "bert"}, "it has no [UNK], which stands for words that have no pieces"),
        ({"tokenizer.ggml.model": "bert", **UNKNOWN}, "bos_token_id: it is missing, and every text begins with it"),
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
