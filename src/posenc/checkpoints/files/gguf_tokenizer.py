"""The tokenizer inside a GGUF file, where the way it cuts text is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.checkpoints.files.gguf_pieces import CUTS, ENDS_OF_TEXTS, KINDS, WHOLE
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import count, matches, quoted, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
NAMED |= {"seperator": "sep_token", "mask": "mask_token", "cls": "cls_token"}
"""What GGUF calls a token that stands for something -> what transformers calls it."""

FORM = {
    "tokenizer.ggml.tokens": [str],
    "tokenizer.ggml.token_type?": [int],
    **{f"tokenizer.ggml.{key}_token_id?": int for key in NAMED},
    **{f"tokenizer.ggml.{key}?": bool for key in ("add_bos_token", "add_eos_token", "add_space_prefix")},
    "tokenizer.ggml.remove_extra_whitespaces?": bool,
    "tokenizer.ggml.precompiled_charsmap?": [int],
    "tokenizer.chat_template?": str,
    "*": Any,
}

SCORED: dict[str, Any] = {"tokenizer.ggml.scores": [float]}
OWN: dict[str, dict[str, Any]] = {"gpt2": {"tokenizer.ggml.merges": [str]}, "llama": SCORED, "t5": SCORED}
"""What a kind of tokenizers has to have besides."""


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
    if isinstance(kind, str) and kind in KINDS and (kind != "gpt2" or (isinstance(cut, str) and cut in CUTS)):
        return ""
    return (
        f"a tokenizer of the kind {quoted(kind)} that cuts words as {quoted(cut)}; posenc makes those of the kinds "
        f"{', '.join(one for one in KINDS if one != 'gpt2')}, and 'gpt2' that cut as one of {', '.join(CUTS)}. Use the "
        f"tokenizer of the original checkpoint"
    )


def tokenizer(said: Mapping[str, Any], path: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a GGUF file's metadata, as transformers has them.

    said   the metadata, key -> value
    path   of the file, for messages

    Raises CannotRead for a tokenizer of a kind that is not known, or that cuts words in a way that is not: the wrong
    words give a text other tokens than the model was trained with, and nobody would notice.
    """
    if why := strange(said):
        raise CannotRead(f"{path} has {why}")
    kind = said["tokenizer.ggml.model"]
    matches(said, FORM | OWN.get(kind, {}), file=path)
    pieces = said["tokenizer.ggml.tokens"]
    kinds = said.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    for key, each in (("token_type", kinds), ("scores", said.get("tokenizer.ggml.scores"))):
        if each is not None and len(each) != len(pieces):
            wrong = f"expected one for each of {len(pieces)} tokens, got {len(each)}"
            raise CannotRead(wrong, file=path, field=f"tokenizer.ggml.{key}")
    names = {}
    for key, name in NAMED.items():
        key = f"tokenizer.ggml.{key}_token_id"
        if key in said:
            names[name] = pieces[count(said[key], key, file=path, least=0, most=len(pieces) - 1)]
    if kind == "bert":
        if "[UNK]" not in pieces:
            wrong = "it has no [UNK], which stands for words that have no pieces"
            raise CannotRead(wrong, file=path, field="tokenizer.ggml.tokens")
        names["bos_token"], names["eos_token"] = names.get("cls_token", "[CLS]"), names.get("sep_token", "[SEP]")
    around = []
    for side, usual in zip(("bos", "eos"), ENDS_OF_TEXTS[kind], strict=True):
        usual = usual or (side == "bos" and said.get("tokenizer.ggml.pre") in WHOLE)
        asked = said.get(f"tokenizer.ggml.add_{side}_token", usual)
        if asked and names.get(f"{side}_token") not in pieces:
            where = "begins" if side == "bos" else "ends"
            wrong = f"it is missing, and every text {where} with it"
            raise CannotRead(wrong, file=path, field=f"tokenizer.ggml.{side}_token_id")
        around.append(names[f"{side}_token"] if asked else None)
    with reading_with("tokenizers", file=path, remedy="use the tokenizer of the original checkpoint"):
        made = with_ends(KINDS[kind](pieces, kinds, said), *around)
        from transformers import PreTrainedTokenizerFast

        found = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **names)
    found.chat_template = said.get("tokenizer.chat_template")
    return found


def with_ends(made: Any, begin: str | None, end: str | None) -> Any:
    """The tokenizer with the tokens that every text begins and ends with; two texts are put together as in BERT."""
    from tokenizers import processors

    if begin or end:
        one = " ".join(part for part in (begin and f"{begin}:0", "$A:0", end and f"{end}:0") if part)
        two = (one.partition(" ")[2] if begin and end else one).replace("$A", "$B").replace(":0", ":1")
        special = [(token, made.token_to_id(token)) for token in (begin, end) if token]
        made.post_processor = processors.TemplateProcessing(single=one, pair=f"{one} {two}", special_tokens=special)
    return made
