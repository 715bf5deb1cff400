"""Tokenizers of the library `tokenizers` from the pieces that a GGUF file has, one function for each kind of them."""

from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.vocabulary.reading import CannotRead

WORDS = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = WORDS.replace("{1,3}", "")
LARGE, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
"""Letters that may begin a word in capitals, and those that may end one."""

TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{LARGE}*{SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{LARGE}+{SMALL}*"
TEKKEN += r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{LARGE}*{SMALL}+{ENDS}|[^\r\n\p{{L}}\p{{N}}]?{LARGE}+{SMALL}*{ENDS}"
O200K += r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"

CUTS = {
    **dict.fromkeys(("gpt-2", "smollm")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), WORDS + SPACES),
    **dict.fromkeys(("dbrx", "smaug-bpe"), WORDS + SPACES),
    "tekken": TEKKEN + SPACES,
    **dict.fromkeys(("gpt-4o", "llama4"), O200K + SPACES),
    "qwen2": QWEN + SPACES,
    "qwen35": QWEN.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]") + SPACES,
}
"""How text is cut into words before byte-level BPE, by GGUF's names: a regular expression, or None for that of GPT-2.
As `llama_vocab::impl::load` and `llm_tokenizer_bpe` in src/llama-vocab.cpp of llama.cpp have it."""

WHOLE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
"""Those that keep a word which is a token whole, whatever the merges say, and begin every text with a token."""

COMPOSED = {"qwen2", "qwen35"}
"""Those that compose letters and their marks first."""

UNKNOWN, SPECIAL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""Kinds of pieces; others are plain ones, or are not used."""

SPACE = "\u2581"
"""How pieces of SentencePiece write a space."""


def with_kinds(made: Any, pieces: list[str], kinds: list[int]) -> Any:
    """The tokenizer with its pieces for special uses, and those of users, which stay whole in any text."""
    from tokenizers import AddedToken

    for number, piece in zip(kinds, pieces, strict=True):
        if number == SPECIAL:
            made.add_special_tokens([AddedToken(piece, special=True, normalized=False)])
        elif number == USER_DEFINED:
            made.add_tokens([AddedToken(piece, special=False, normalized=False)])
    return made


def byte_level(pieces: list[str], kinds: list[int], said: Mapping[str, Any]) -> Any:
    """Byte-level BPE: merges are two pieces with a space between them."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    cut = said["tokenizer.ggml.pre"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut in WHOLE))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=CUTS[cut] is None)
    first = []
    if cut == "smollm":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    if pattern := CUTS[cut]:
        first = [pre_tokenizers.Split(Regex(pattern), "isolated")]
    if cut in COMPOSED:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, by_bytes])
    made.decoder = decoders.ByteLevel()
    return with_kinds(made, pieces, kinds)


def sentence_pieces(pieces: list[str], kinds: list[int], said: Mapping[str, Any]) -> Any:
    """BPE of SentencePiece: of two neighbours those are joined first whose joined piece has the highest score.

    Letters that no piece has become pieces for their bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = said["tokenizer.ggml.scores"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    plain = {piece: number for piece, number in vocabulary.items() if kinds[number] not in (UNKNOWN, SPECIAL, BYTE)}
    joined = [
        (-scores[number], number, piece[:place], piece[place:])
        for piece, number in plain.items()
        if kinds[number] != USER_DEFINED
        for place in range(1, len(piece))
        if piece[:place] in plain and piece[place:] in plain
    ]
    merges = [(left, right) for _, _, left, right in sorted(joined)]
    unknown = next((piece for piece, kind in zip(pieces, kinds, strict=True) if kind == UNKNOWN), None)
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in kinds))
    begins = said.get("tokenizer.ggml.add_space_prefix", True)
    first = [normalizers.Prepend(SPACE)] if begins else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if begins else []
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return with_kinds(made, pieces, kinds)


def unigram(pieces: list[str], kinds: list[int], said: Mapping[str, Any]) -> Any:
    """Unigram of SentencePiece: the pieces of a text are those with the highest sum of scores."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unknown = next((number for number, kind in enumerate(kinds) if kind == UNKNOWN), None)
    if unknown is None:
        raise CannotRead("it has no piece of the kind for what has none", field="tokenizer.ggml.token_type")
    made = Tokenizer(models.Unigram(list(zip(pieces, said["tokenizer.ggml.scores"], strict=True)), unk_id=unknown))
    steps: list[Any] = []
    if written := said.get("tokenizer.ggml.precompiled_charsmap"):
        rules = bytes(number % 256 for number in written)
        # The library looks letters up in a tree that begins so, and does not ask whether it is there.
        if not 1024 <= int.from_bytes(rules[:4], "little") <= len(rules) - 4:
            raise CannotRead("its tree of letters is cut off", field="tokenizer.ggml.precompiled_charsmap")
        steps.append(normalizers.Precompiled(rules))
    if said.get("tokenizer.ggml.remove_extra_whitespaces", True):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    scheme = "always" if said.get("tokenizer.ggml.add_space_prefix", True) else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return with_kinds(made, pieces, kinds)


def word_pieces(pieces: list[str], kinds: list[int], said: Mapping[str, Any]) -> Any:
    """WordPiece: the longest pieces of each word. In a file words begin with a mark, in BERT what follows does.

    Text is lowered where no plain piece has a capital letter: of lowered text none is made.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    plain = [number for number, kind in enumerate(kinds) if kind not in (UNKNOWN, SPECIAL)]
    words = list(pieces)
    for number in plain:
        marked = pieces[number].startswith(SPACE)
        words[number] = pieces[number].removeprefix(SPACE) if marked else f"##{pieces[number]}"
    small = not any(words[number] != words[number].lower() for number in plain if "[" not in words[number])
    vocabulary = {piece: number for number, piece in enumerate(words)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=small)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    return with_kinds(made, words, kinds)


KINDS = {"gpt2": byte_level, "llama": sentence_pieces, "t5": unigram, "bert": word_pieces}
"""The kinds of tokenizers that are made, by GGUF's names."""

ENDS_OF_TEXTS = {"gpt2": (False, False), "llama": (True, False), "t5": (False, True), "bert": (True, True)}
"""Whether a text begins with a token, and ends with one, where a file does not say it."""
