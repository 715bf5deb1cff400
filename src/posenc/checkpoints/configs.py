"""Foreign dictionaries: which format one is, key by key what it was taken to say, and writing one back."""

import functools
import importlib
import math
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeGuard

import torch

from posenc.catalogue import build
from posenc.checkpoints.reading import CannotRead, Layer, Part, Reading
from posenc.checks import is_number
from posenc.encoding import Encoding, Shape, parts_of
from posenc.foreign import one_line, quoted, shortened
from posenc.schedules import Schedule

SPEAKS_OF_POSITION = re.compile(
    r"rope|rotary|rotate|alibi|posit|(?<![a-z])pos(?![a-z])|relative|bucket|yarn|ntk|xpos|theta|sinusoid|longrope|mscale"
    r"|max_seq|seq_?len|max_model_len|context_len|n_ctx|n_positions|window|chunk_size|attn_temperature|attn_scale"
    r"|floor_scale|freq_base|frequenc|inv_freq|freq_factor"
)
"""Keys that have to do with position, whatever else they are called: none of them may be passed over in silence."""


class Ledger:
    """The keys of a foreign dictionary: each is read under what it was taken to say, and what is left over is named.

    given       the dictionary; a value of None counts as absent, as in the files of transformers
    name        where it stands in another: "text_config"
    everything  whether all its keys speak of position, as those of `rope_parameters` do
    file        the names of all keys as the file has them, where a library has given some of them other names

    Ledgers of nested dictionaries write into the same lists as the one that they were opened from.
    Raises CannotRead for a value that is not of the kind that was asked for.

    >>> ledger = Ledger({"rope_theta": 500000, "rope_magic": 3, "vocab_size": 9})
    >>> ledger.number("rope_theta", "base {}")
    500000
    >>> ledger.understood, ledger.unknown()
    ({'rope_theta': 'base 500000'}, {'rope_magic': 3})
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        name: str = "",
        *,
        everything: bool = False,
        inside: "Ledger | None" = None,
        file: Collection[str] = (),
    ) -> None:
        self.given, self.name, self.everything = given, name, everything
        self.taken: set[str] = set()
        self.opened: dict[str, Ledger] = {}
        self.understood: dict[str, str] = {} if inside is None else inside.understood
        self.contradictions: list[str] = [] if inside is None else inside.contradictions
        self.not_covered: list[str] = [] if inside is None else inside.not_covered
        self.file: Collection[str] = file if inside is None else inside.file

    def path(self, key: str) -> str:
        """The name of a key as a person sees it: as the file spells it, with those of the dictionaries around it."""
        path = f"{self.name}.{key}" if self.name else key
        older = (path.replace("rope_parameters", "rope_scaling"), re.sub(r"rope_(parameters|scaling)\.", "", path))
        return next((name for name in (path, *older) if name in self.file), path)

    def has(self, key: str) -> bool:
        """Whether a key has a value; asking does not count as reading."""
        return self.given.get(key) is not None

    def peek(self, key: str, default: Any = None) -> Any:
        """The value of a key, which does not count as reading it."""
        value = self.given.get(key)
        return default if value is None else value

    def take(self, key: str, says: str, default: Any = None) -> Any:
        """The value of a key of any kind, entered as `says`, in which {} stands for the value."""
        self.taken.add(key)
        if not self.has(key):
            return default
        self.understood[self.path(key)] = says.replace("{}", in_words(self.given[key]))
        return self.given[key]

    def number(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a finite number."""
        return self.of_kind(key, says, default, is_number, "a finite number")

    def whole(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a whole number, which a file may write as 8192.0."""
        value = self.of_kind(key, says, default, lambda x: is_number(x) and x == int(x), "a whole number")
        return int(value) if is_number(value) else value

    def size(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a whole number of 1 or more, without which nothing can be read; raises where it is missing."""
        value = self.whole(key, says, default)
        if value is None:
            raise CannotRead(f"{self.path(key)} is missing; it says: {says.replace('{}', 'N')}")
        if value < 1:
            raise CannotRead(f"{self.path(key)} must be 1 or more, got {value}")
        return value

    def flag(self, key: str, says: str, default: Any = None) -> Any:
        """The same for true or false."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, bool), "true or false")

    def word(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a word."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, str), "a word")

    def numbers(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a list of numbers, given as a tuple."""
        wanted = "a list of numbers"
        value = self.of_kind(key, says, default, lambda x: is_list(x) and all(map(is_number, x)), wanted)
        return tuple(value) if is_list(value) else value

    def of_kind(self, key: str, says: str, default: Any, fits: Any, words: str) -> Any:
        if self.has(key) and not fits(self.given[key]):
            raise CannotRead(f"{self.path(key)} must be {words}, got {quoted(self.given[key], 80)}")
        return self.take(key, says, default)

    def first(self, keys: Sequence[str], says: str, default: Any = None, kind: str = "number") -> Any:
        """One thing that goes by several names: the first that is given is followed.

        kind    the method that reads it: "number", "whole", "flag", "word", "numbers" or "take"

        Others that say something else are contradictions.
        """
        found = [(key, getattr(self, kind)(key, says)) for key in keys if self.has(key)]
        for key, value in found[1:]:
            if value != found[0][1]:
                self.contradict(
                    f"{self.path(found[0][0])} is {in_words(found[0][1])} and {self.path(key)} is {in_words(value)}; "
                    f"followed: {self.path(found[0][0])}"
                )
        return found[0][1] if found else default

    def open(self, key: str, *, everything: bool = False) -> "Ledger":
        """The ledger of a nested dictionary; an empty one where there is none."""
        if key not in self.opened:
            within = self.given.get(key)
            if within is not None and not isinstance(within, Mapping):
                raise CannotRead(f"{self.path(key)} must be a dictionary, got {quoted(within, 80)}")
            self.taken.add(key)
            self.opened[key] = Ledger(within or {}, self.path(key), everything=everything, inside=self)
        return self.opened[key]

    def say(self, key: str, words: str) -> None:
        """Enter a key as read, or put other words to one that was read."""
        self.taken.add(key)
        if self.has(key):
            self.understood[self.path(key)] = words

    def contradict(self, sentence: str) -> None:
        """Which keys cannot both be right, and which one was followed."""
        if sentence not in self.contradictions:
            self.contradictions.append(sentence)

    def leave(self, sentence: str) -> None:
        """What the model does about position that no spec says."""
        if sentence not in self.not_covered:
            self.not_covered.append(sentence)

    def unknown(self) -> dict[str, Any]:
        """The keys that speak of position and that nobody has read, with their values, nested ones too."""
        left = dict(unread(self.given, self.name, self.taken, self.everything))
        for within in self.opened.values():
            left |= within.unknown()
        return left


def unread(given: Mapping[str, Any], name: str, taken: set[str], everything: bool) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        path = f"{name}.{key}" if name else str(key)
        if key in taken or value is None:
            continue
        if isinstance(value, Mapping) and value:
            yield from unread(value, path, set(), everything or bool(SPEAKS_OF_POSITION.search(str(key).lower())))
        elif everything or SPEAKS_OF_POSITION.search(str(key).lower()):
            yield path, value


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def in_words(value: object) -> str:
    """A value as a person reads it: whole floats without their point, long lists by their ends.

    >>> in_words(500000.0), in_words([1.0, 1.5, 2, 3, 4, 5, 6])
    ('500000', '[1, 1.5, ..., 6] (7 entries)')
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]  # type: ignore[index]
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.12g}"
    if is_list(value):
        words = [in_words(one) for one in value]
        if len(words) > 6:
            words = [*words[:2], "...", f"{words[-1]}"]
            return f"[{', '.join(words)}] ({len(value)} entries)"
        return f"[{', '.join(words)}]"
    return shortened(one_line(str(value)))


HOMES = {
    "transformers": "config_json",
    "meta": "meta",
    "gguf": "gguf_metadata",
}
"""The formats, and the module of each: it has `is_it`, `read` and `write`."""

ASKED_IN_TURN = ("gguf", "meta", "transformers")
"""Each format is told apart from those after it."""

EXPECTED = (
    "expected a config.json of transformers (model_type), Meta's params.json (dim, n_layers, n_heads) or the metadata "
    "of a GGUF file (general.architecture)"
)
"""What is read, in an error's words."""


class CannotExpress(ValueError):
    """A reading that a format has no words for; the message says what is lacking and what to do."""


def home_of(format: str) -> Any:
    if format not in HOMES:
        raise ValueError(f"no format '{format}'; there are: {', '.join(HOMES)}")
    return importlib.import_module(f"posenc.checkpoints.{HOMES[format]}")


def detect(given: Mapping[str, Any]) -> str:
    """The format of a dictionary, told by its keys: "transformers", "meta" or "gguf".

    Raises CannotRead, with the keys that it has or what it looks like, for one that is none of them.

    >>> detect({"dim": 4096, "n_layers": 32, "n_heads": 32, "norm_eps": 1e-5})
    'meta'
    """
    if stranger := not_read(given):
        raise CannotRead(f"these look like {stranger}, which posenc does not read; {EXPECTED}")
    for format in ASKED_IN_TURN:
        if home_of(format).is_it(given):
            return format
    keys = ", ".join(str(key)[:40] for key in list(given)[:8])
    raise CannotRead(f"no format known has these keys: {keys or 'none'}; {EXPECTED}")


def not_read(given: Mapping[str, Any]) -> str:
    """What a dictionary of settings looks like that shares keys with a config and means other things by them, or ""."""
    keys = {str(key).replace("-", "_") for key in given}
    if keys & {"hf_overrides", "max_model_len"}:
        return "settings of vLLM"
    if {"num_layers", "position_embedding_type"} <= keys and not keys & {"model_type", "architectures"}:
        return "arguments of Megatron"
    return ""


def read(given: Mapping[str, Any], format: str | None = None) -> Reading:
    """What a foreign dictionary says of positions; the format is told by its keys unless it is given.

    Raises CannotRead for a dictionary of no known format, a value of the wrong kind, or a schedule that cannot be.
    """
    return home_of(format or detect(given)).read(given)


def write(reading: Reading, format: str, onto: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The dictionary of a format that says what a reading says.

    onto    a dictionary of that format to be changed: what it says of positions is replaced, all else stays. Without
            it the result says what concerns positions, and the sizes of the model

    The result is read back before it is given, so that nothing is lost in silence. The layout alone may differ, because
    it belongs to the weights: Meta's are interleaved, those of transformers' Llama half (see `posenc convert`).

    Raises CannotExpress where the format has no words for it.
    """
    written = home_of(format).write(reading, onto)
    lost = differences(reading, read(written, format), layout=False)
    if lost:
        raise CannotExpress(f"{format} cannot say it; read back, what was written differs: {'; '.join(lost)}")
    return written


def layout_changes(reading: Reading, format: str) -> list[str]:
    """What has to be done to the weights before they fit the config that `write` gives, in sentences."""
    written = read(write(reading, format), format)
    told = []
    for before, after in zip(reading.parts, written.parts, strict=True):
        changes = [
            (one.options()["layout"], other.options()["layout"])
            for first, second in zip(encodings_of(before), encodings_of(after), strict=True)
            for one, other in zip(first.values(), second.values(), strict=True)
            if "layout" in one.options() and one.options()["layout"] != other.options()["layout"]
        ]
        if changes:
            told.append(
                f"the layout of {format} is {changes[0][1]}: turn the weights, which are {changes[0][0]}, with "
                f"posenc convert --layout {changes[0][1]}"
            )
    return told


def differences(one: Reading, other: Reading, *, layout: bool = True) -> list[str]:
    """In what two readings differ, in sentences: encodings by what they compute, windows, scales, sizes, lengths.

    layout  whether the order of rotary's channels counts
    """
    if len(one.parts) != len(other.parts):
        return [f"{len(one.parts)} parts and {len(other.parts)}"]
    found = []
    for first, second in zip(one.parts, other.parts, strict=True):
        for what in ("kv_heads", "trained_length", "shape"):
            values = getattr(first, what), getattr(second, what)
            if values[0] != values[1]:
                found.append(f"{what.replace('_', ' ')} {values[0]} and {values[1]}")
        if not same(first.embed, first.shape, second.embed, second.shape, layout):
            found.append(f"embed {first.embed} and {second.embed}")
        if len(first.layers) != len(second.layers):
            found.append(f"{len(first.layers)} layers and {len(second.layers)}")
            continue
        for index, (a, b) in enumerate(zip(first.layers, second.layers, strict=True)):
            if not same(a.spec, shape_of(first, a), b.spec, shape_of(second, b), layout):
                found.append(f"layer {index} {short(a.spec)} and {short(b.spec)}")
            for what in ("head_dim", "window", "scale"):
                if not alike(getattr(a, what), getattr(b, what)):
                    found.append(f"layer {index} {what.replace('_', ' ')} {getattr(a, what)} and {getattr(b, what)}")
    return found if len(found) <= 4 else [*found[:4], f"and {len(found) - 4} more"]


@functools.lru_cache(maxsize=4096)
def same(one: str, shape: Shape, other: str, other_shape: Shape, layout: bool) -> bool:
    """Whether two specs mean the same: equal names and options, and of rotary equal frequencies and temperatures."""
    first, second = (parts_of(built(spec, of)) for spec, of in ((one, shape), (other, other_shape)))
    if [type(a) for a in first] != [type(b) for b in second]:
        return False
    for a, b in zip(first, second, strict=True):
        spectral = hasattr(a, "spectrum")
        left_out = ("base", "schedule", *(() if layout else ("layout",))) if spectral else ()
        options = [{key: value for key, value in x.options().items() if key not in left_out} for x in (a, b)]
        if options[0] != options[1]:
            return False
        # Within the trained lengths and beyond both.
        longest = max(shape.max_len, other_shape.max_len)
        if spectral and not all(spectra_alike(a, b, horizon) for horizon in (1, longest, 1000 * longest)):
            return False
    return True


def spectra_alike(one: Any, other: Any, horizon: int) -> bool:
    length = torch.tensor([horizon])
    (first, warm), (second, warmer) = (
        x.spectrum(length) if x.turns_when_attending else x.spectrum() for x in (one, other)
    )
    warm, warmer = (torch.as_tensor(x, dtype=torch.float64) for x in (warm, warmer))
    return first.shape[-1] == second.shape[-1] and bool(
        torch.isclose(first, second, rtol=1e-6, atol=0).all() and torch.isclose(warm, warmer, rtol=1e-6).all()
    )


@functools.lru_cache(maxsize=1024)
def built(spec: str, shape: Shape) -> Encoding:
    """An encoding to be looked at and not changed: layers that are alike share it."""
    return build(spec, shape)


def shape_of(part: Part, layer: Layer) -> Shape:
    """The shape that a layer's encoding is built for."""
    return replace(part.shape, head_dim=layer.head_dim)


def alike(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else math.isclose(one, other, rel_tol=1e-9)


@contextmanager
def possible(where: str) -> Generator[None]:
    """Turns a schedule or an encoding that cannot be into CannotRead, with the keys that ask for it."""
    try:
        yield
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(f"{where} cannot be: {error}") from error


def spec_of(name: str, **options: Any) -> str:
    """A spec from a name and its options, those that are None left out.

    >>> spec_of("rotary", base=500000.0, layout="half", schedule=None)
    "rotary(base=500000, layout='half')"
    """
    given = {key: whole(value) for key, value in options.items() if value is not None}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name


def short(spec: object) -> str:
    """A spec for a sentence: long lists by their ends.

    >>> short("longrope(factor=4, short_factor=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5))")
    'longrope(factor=4, short_factor=(1.0, 1.5, ..., 3.5))'
    """
    return re.sub(r"\(([\d.e+-]+, [\d.e+-]+), (?:[\d.e+-]+, ){2,}([\d.e+-]+)\)", r"(\1, ..., \2)", str(spec))


def rotary_spec(
    *,
    head_dim: int,
    width: int | None = None,
    base: float | None = None,
    layout: str = "half",
    schedule: Schedule | None = None,
    sections: tuple[int, ...] | None = None,
    order: str | None = None,
) -> str:
    """The spec of rotary, or of its multimodal form where it has sections; only what differs from the defaults is said.

    head_dim  channels of a head; `width` of them turn
    """
    turned = head_dim if width is None else width
    options = {
        "base": None if base == 10_000 else base,
        "sections": sections,
        "order": order,
        "layout": None if layout == "half" else layout,
        "partial": None if turned == head_dim else turned / head_dim,
        "schedule": schedule,
    }
    return spec_of("rotary" if sections is None else "multimodal_rotary", **options)


def whole(value: Any) -> Any:
    """A float without a fraction as a whole number, which reads better in a spec."""
    return int(value) if isinstance(value, float) and value == int(value) and abs(value) < 1e15 else value


def only_part(reading: Reading, format: str) -> Part:
    """The one part of a reading; raises CannotExpress where there are others, or none."""
    if len(reading.parts) != 1:
        names = ", ".join(part.name or "the whole" for part in reading.parts) or "none"
        raise CannotExpress(f"{format} describes one stack of layers, and the reading has these parts: {names}")
    return reading.parts[0]


def encodings_of(part: Part) -> list[dict[str, Encoding]]:
    """For each layer, the encodings that its spec adds up, by name; "none" is left out."""
    return [
        {str(one).partition("(")[0]: one for one in parts_of(built(layer.spec, shape_of(part, layer)))}
        if layer.spec != "none"
        else {}
        for layer in part.layers
    ]


def rotary_of(part: Part, format: str) -> Any:
    """The rotary that the layers share, or None; raises CannotExpress where they have several or something else."""
    known = ("rotary", "multimodal_rotary")
    found: list[Any] = []
    for index, layer in enumerate(encodings_of(part)):
        for name, encoding in layer.items():
            if name not in (*known, "step_temperature"):
                raise CannotExpress(f"{format} has no words for {name}, which layer {index} has")
            if name in known and not any(encoding.options() == other.options() for other in found):
                found.append(encoding)
    if len(found) > 1:
        raise CannotExpress(
            f"{format} has one rotary for all layers, and here there are: {', '.join(map(short, found))}"
        )
    return found[0] if found else None


def every_nth_without(part: Part, format: str) -> int | None:
    """The n of layers whose every n-th has no rotary; None where all have it."""
    without = [i for i, layer in enumerate(encodings_of(part)) if not {"rotary", "multimodal_rotary"} & set(layer)]
    if not without:
        return None
    step = without[0] + 1
    if without != list(range(step - 1, len(part.layers), step)):
        raise CannotExpress(f"{format} leaves rotary out of every n-th layer, and here it is out of layers {without}")
    return step


def trained_or_one(length: int | None) -> int:
    """The length of a Shape, which has to have one."""
    return length or 1
