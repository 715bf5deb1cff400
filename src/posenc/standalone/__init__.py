"""Standalone files: an encoding as the text of one file that needs PyTorch alone, to be pasted into any code.

The readable form of each encoding is a module of `forms`, found by its name. `eject` writes the options of a spec into
its constants, and leaves out what they rule out.
"""

import inspect
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import posenc
from posenc.catalogue import ENCODINGS, Node, Spec, build, names, parse
from posenc.encoding.base import Encoding, Shape, constructor_arguments, parts_of
from posenc.encoding.biases import BIASES
from posenc.encoding.chosen_heads import OnHeads
from posenc.foreign import quote
from posenc.standalone.bundle import PACKAGE, Piece, file_of, piece_of, rename_conflicts
from posenc.standalone.glue import Member, sum_class
from posenc.standalone.sources import Forms, readable

__all__ = ["eject", "readable"]

MOST_HEADS = 256
TEST_LENGTH = 64


def eject(
    spec: Spec,
    *,
    trained_length: int | None = None,
    causal: bool = True,
    layout: str | None = None,
    seq_dim: int = 2,
    tokens: bool = False,
    cache: bool = False,
    packed: bool = False,
    flex: bool = False,
) -> str:
    """Return the text of one file with an encoding, which imports torch and math alone.

    spec            a spec, or an encoding; its trained weights are not in the file, and load from its state dict
    trained_length  of schedules that compare with it and leave it open (tokens)
    causal          whether tokens see only the past, for encodings that ask
    layout          of rotary encodings, if the spec leaves it open: which channels form a pair
    seq_dim         the axis of the tokens in q and k: 2 for [B, H, T, D], 1 for [B, T, H, D]
    tokens          add the embedding of tokens, with positions and dropout; for learned and sinusoidal
    cache           add a KV cache of one layer
    packed          add position ids and a mask for several documents in a row
    flex            add score_mod closures for FlexAttention to biases of positions

    Raises ValueError for an encoding, an option or an addition without a readable form, a schedule that needs a trained
    length, and as `posenc.build` does.

    >>> print(eject("rotary(base=500_000)").partition(":")[0].strip('"'))
    Rotary position embedding (RoPE)
    """
    if seq_dim not in (1, 2):
        raise ValueError(f"seq_dim must be 2, for [B, H, T, D], or 1, for [B, T, H, D]; got {quote(seq_dim)}")
    flags: dict[str, Any] = {"SEQ_DIM": seq_dim, "HEADS_DIM": 3 - seq_dim, "FLEX": flex}
    shape = Shape(16, 2, 8, trained_length or TEST_LENGTH, causal)
    encodings, heads = parts_to_eject(spec, shape, layout)
    other_encodings, _ = parts_to_eject(spec, replace(shape, max_len=shape.max_len + 1), layout)
    by_length = any(depends_on_length(*pair) for pair in zip(encodings, other_encodings, strict=True))
    if by_length and trained_length is None:
        raise ValueError(
            f"{quote(spec)} depends on the trained length and leaves it open; give it in tokens, as in "
            f"eject(..., trained_length=4096)"
        )
    forms = [Forms(encoding, flags) for encoding in encodings]
    pieces = [piece_of(sources, f"{PACKAGE}.{sources.encoding.spec_name}") for sources in forms]
    for piece, encoding, some_heads in zip(pieces, encodings, heads, strict=True):
        if flex and (some_heads or "def score_mod(" not in piece.main_class):
            raise ValueError(f"{spec} has no score_mod for flex: {why_no_score_mod(encoding, some_heads)}")
    rename_conflicts(pieces)
    extras = {"token_position": tokens, "kv_cache": cache, "packing": packed}
    names = [name for name, is_asked in extras.items() if is_asked]
    glue = ""
    if len(pieces) > 1 or any(heads):
        glue = sum_class(str(spec), list(members_of(pieces, encodings, heads)), seq_dim)
        names += [helper for helper in ("rotate_heads", "bias_on_heads") if helper in glue]
    if tokens:
        forms[0].add_embedding_of_tokens(str(spec), pieces)
    pieces += [piece_of(forms[0], f"{PACKAGE}.{name}") for name in names]
    options = {
        "trained_length": trained_length if by_length else None,
        "bidirectional": not causal,
        "layout": layout,
        "tokens": tokens,
    }
    options |= {"seq_dim": seq_dim if seq_dim != 2 else None, "cache": cache, "packed": packed, "flex": flex}
    return file_of(pieces, header_of(pieces, str(spec), options), glue)


def why_no_score_mod(encoding: Encoding, some_heads: tuple[int, ...]) -> str:
    """Return why the form of an encoding has no closure for FlexAttention."""
    if not encoding.doors & BIASES:
        return f"{encoding} has no bias"
    if some_heads:
        return f"{encoding} is on some heads, and its closure would count them from 0"
    if encoding.axes != 1:
        return f"the positions of {encoding} have {encoding.axes} axes, and tokens count up along one"
    return f"the bias of {encoding} reads content"


def members_of(
    pieces: Sequence[Piece], encodings: Sequence[Encoding], heads: Sequence[tuple[int, ...]]
) -> Iterator[Member]:
    """Yield the classes of the parts of a sum, each under a name of its own."""
    counts = Counter[str]()
    for piece, encoding, some_heads in zip(pieces, encodings, heads, strict=True):
        name = encoding.spec_name
        counts[name] += 1
        member = Member(piece.main_class, name if counts[name] == 1 else f"{name}_{counts[name]}", some_heads)
        if "v" in member.parameters("forward") and "attend" in encoding.doors:
            raise ValueError(f"{encoding} replaces attention, and its file cannot add other encodings; eject it alone")
        yield member


def parts_to_eject(spec: Spec, shape: Shape, layout: str | None) -> tuple[list[Encoding], list[tuple[int, ...]]]:
    """Return the parts of a sum, built for the self-tests, and the heads of each; () for all."""
    hints = {} if layout is None else {name: {"layout": layout} for name in names() if has_layout(name)}
    parts = parts_of(build(str(spec), replace(shape, heads=MOST_HEADS, **needed_widths(parse(str(spec)))), hints=hints))
    heads = [part.heads if isinstance(part, OnHeads) else () for part in parts]
    specs = [str(part.encoding if isinstance(part, OnHeads) else part) for part in parts]
    encodings = [of_test_length(build(part, replace(shape, **needed_widths(parse(part))))) for part in specs]
    if layout is not None and not any(getattr(encoding, "layout", None) == layout for encoding in encodings):
        raise ValueError(f"{spec} has no layout {quote(layout)} to choose; leave layout out")
    return encodings, heads


def of_test_length(encoding: Encoding) -> Encoding:
    """Return an encoding with as many positions as the self-tests have: a file takes them as an argument."""
    arguments = constructor_arguments(encoding)
    return type(encoding)(**arguments | {"max_len": TEST_LENGTH}) if arguments.get("max_len") else encoding


def needed_widths(node: Node) -> dict[str, int]:
    """Return the widths of a model that the lists of a spec need, such as the divisors of LongRoPE (channels)."""
    widths: dict[str, int] = {}
    for part in node.parts:
        widths |= needed_widths(part)
    options = dict(node.options)
    schedule = options.get("schedule")
    while inner := getattr(schedule, "inner", None):
        schedule = inner
    if pairs := len(getattr(schedule, "short_factor", ())) or sum_of(options.get("sections")):
        widths["head_dim"] = round(2 * pairs / options.get("partial", 1))
    for option, width in (("split", "head_dim"), ("widths", "dim")):
        if channels := sum_of(options.get(option)):
            widths[width] = channels
    return widths


def sum_of(value: object) -> int:
    """Return the sum of a tuple of whole numbers; 0 for another value."""
    return sum(value) if isinstance(value, tuple) and all(isinstance(part, int) for part in value) else 0


def depends_on_length(encoding: Encoding, second_encoding: Encoding) -> bool:
    """Return whether two trained lengths made these encodings different, so that the spec leaves the length open."""
    return any(getattr(encoding, n, None) != getattr(second_encoding, n, None) for n in ("schedule", "trained_length"))


def header_of(pieces: Sequence[Piece], spec: str, options: Mapping[str, Any]) -> str:
    """Return the docstring of a file, and the command that wrote it."""
    texts = [piece.docstring.strip() for piece in pieces]
    if options["tokens"]:
        name = texts[0].partition(":")[0]
        name = name[0].lower() + name[1:] if " positions" in name else name
        texts.insert(0, texts.pop(1).replace("positions", name, 1))
    elif len(texts) > 1:
        texts.insert(0, f"{spec}, in one file.")
    text = "\n\n".join(texts)
    command = f"posenc eject {shlex.quote(spec)}"
    for name, value in options.items():
        if value:
            command += f" --{name.replace('_', '-')}" + (f" {value}" if value is not True else "")
    lines = "\n" if "\n" in text else ""
    comments = [f"posenc {posenc.__version__}, MIT licence: {command}", "to combine encodings: posenc eject 'a + b'"]
    comments = ["; ".join(comments)] if len("; ".join(comments)) < 118 else comments
    origin = "\n".join(
        textwrap.fill(
            comment, 118, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
        )
        for comment in comments
    )
    return f'"""{text}{lines}"""\n\n{origin}'


def has_layout(name: str) -> bool:
    return "layout" in inspect.signature(ENCODINGS[name]).parameters and "turn" in ENCODINGS[name].doors
