"""The tokenizer inside a GGUF file: byte-level BPE, where the way it cuts text into words is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import count, matches, quoted, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORDS = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": WORDS + SPACES,
    "qwen2": WORDS.replace("{1,3}", "") + SPACES,
}
"""How text is cut into words before BPE, by GGUF's names: a regular expression, or None for the one of GPT-2."""

NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
"""What GGUF calls a token that stands for something -> what transformers calls it."""

FORM = {
    "tokenizer.ggml.tokens": [str],
    "tokenizer.ggml.merges": [str],
    "tokenizer.ggml.token_type?": [int],
    **{f"tokenizer.ggml.{key}_token_id?": int for key in NAMED},
    "tokenizer.ggml.add_bos_token?": bool,
    "tokenizer.chat_template?": str,
    "*": Any,
}

SPECIAL = 3
USER_DEFINED = 4


def tokenizer_or_why(said: Mapping[str, Any], path: Path) -> tuple["PreTrainedTokenizerBase | None", tuple[str, ...]]:
    """The tokenizer of a GGUF file's metadata where there is one that can be made; and why not, in sentences.

    Raises CannotRead as `tokenizer` does, but for one of a kind that is not known.
    """
    if "tokenizer.ggml.model" not in said:
        return None, ()
    return (None, (f"The file has {why}",)) if (why := strange(said)) else (tokenizer(said, path), ())


def strange(said: Mapping[str, Any]) -> str:
    """What no tokenizer is made of, in the words behind "has", or "" where one can be made."""
    kind, cut = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.pre")
    if kind == "gpt2" and isinstance(cut, str) and cut in CUTS:
        return ""
    return (
        f"a tokenizer of the kind {quoted(kind)} that cuts words as {quoted(cut)}; posenc makes those of the kind "
        f"'gpt2' that cut as one of {', '.join(CUTS)}. Use the tokenizer of the original checkpoint"
    )


def tokenizer(said: Mapping[str, Any], path: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a GGUF file's metadata, as transformers has them.

    said   the metadata, key -> value
    path   of the file, for messages

    Raises CannotRead for a tokenizer that is no byte-level BPE or that cuts words in a way that is not known: the
    wrong words give a text other tokens than the model was trained with, and nobody would notice.
    """
    if why := strange(said):
        raise CannotRead(f"{path} has {why}")
    matches(said, FORM, file=path)
    cut = said["tokenizer.ggml.pre"]
    pieces = said["tokenizer.ggml.tokens"]
    kinds = said.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    if len(kinds) != len(pieces):
        wrong = f"expected one for each of {len(pieces)} tokens, got {len(kinds)}"
        raise CannotRead(wrong, file=path, field="tokenizer.ggml.token_type")
    names = {}
    for key, name in NAMED.items():
        key = f"tokenizer.ggml.{key}_token_id"
        if key in said:
            names[name] = pieces[count(said[key], key, file=path, least=0, most=len(pieces) - 1)]
    begins = said.get("tokenizer.ggml.add_bos_token", cut == "llama-bpe")
    if begins and "bos_token" not in names:
        raise CannotRead("it is missing, and every text begins with it", file=path, field="tokenizer.ggml.bos_token_id")
    with reading_with("tokenizers", file=path, remedy="use the tokenizer of the original checkpoint"):
        made = byte_level(cut, pieces, kinds, said["tokenizer.ggml.merges"], names["bos_token"] if begins else None)
        from transformers import PreTrainedTokenizerFast

        found = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **names)
    found.chat_template = said.get("tokenizer.chat_template")
    return found


def byte_level(cut: str, pieces: list[str], kinds: list[int], merges: list[str], begin: str | None) -> Any:
    """The tokenizer of the library: pieces with a kind each, merges as two pieces with a space between them.

    begin  the token that every text begins with
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in merges]
    # Llama 3 keeps a word that is a token whole, whatever the merges say.
    made = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe"))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=CUTS[cut] is None)
    first = []
    if cut == "smollm":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    if pattern := CUTS[cut]:
        first = [pre_tokenizers.Split(Regex(pattern), "isolated")]
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, by_bytes])
    made.decoder = decoders.ByteLevel()
    for number, piece in zip(kinds, pieces, strict=True):
        if number == SPECIAL:
            made.add_special_tokens([AddedToken(piece, special=True, normalized=False)])
        elif number == USER_DEFINED:
            made.add_tokens([AddedToken(piece, special=False, normalized=False)])
    if begin is not None:
        made.post_processor = processors.TemplateProcessing(
            single=f"{begin}:0 $A:0", pair=f"{begin}:0 $A:0 {begin}:1 $B:1", special_tokens=[(begin, vocabulary[begin])]
        )
    return made
