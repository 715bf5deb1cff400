"""The tokenizer inside a GGUF file: byte-level BPE, where the way it cuts text into words is known."""

from typing import TYPE_CHECKING, Any

from posenc.checkpoints.reading import CannotRead

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

SPECIAL = 3
USER_DEFINED = 4


def tokenizer(said: dict[str, Any], path: object) -> "PreTrainedTokenizerBase":
    """The tokenizer of a GGUF file's metadata, as transformers has them.

    said   the metadata, key -> value
    path   of the file, for messages

    Raises CannotRead for a tokenizer that is no byte-level BPE or that cuts words in a way that is not known: the
    wrong words give a text other tokens than the model was trained with, and nobody would notice.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    kind, cut = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in CUTS:
        raise CannotRead(
            f"{path} has a tokenizer of the kind '{kind}' that cuts words as '{cut}'; posenc makes those of the kind "
            f"'gpt2' that cut as one of {', '.join(CUTS)}. Use the tokenizer of the original checkpoint"
        )
    pieces = said["tokenizer.ggml.tokens"]
    kinds = said.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]
    # Llama 3 keeps a word that is a token whole, whatever the merges say.
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
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
    names = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        number = said.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            names[name] = pieces[number]
    if said.get("tokenizer.ggml.add_bos_token", cut == "llama-bpe"):
        begin = names["bos_token"]
        made.post_processor = processors.TemplateProcessing(
            single=f"{begin}:0 $A:0", pair=f"{begin}:0 $A:0 {begin}:1 $B:1", special_tokens=[(begin, vocabulary[begin])]
        )
    found = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **names)
    found.chat_template = said.get("tokenizer.chat_template")
    return found
