"""Ways to stretch a rotary model's context, by the names that people use: as specs, and as a change of its config."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from posenc.checkpoints.extension.changes import (
    WORDS,
    Goal,
    by_lists,
    change_of,
    check_name,
    gives_a_schedule,
    with_change,
    words_of,
)
from posenc.checkpoints.extension.lengths import Served, served_by
from posenc.checkpoints.formats.config_json import with_positions
from posenc.checkpoints.formats.huggingface import filled
from posenc.checkpoints.formats.learned_tables import place_in
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.inspection.served import unlike_planned
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading, with_part
from posenc.checkpoints.vocabulary.specs import short
from posenc.encoding.base import Encoding, parts_of
from posenc.foreign import matches, read_json
from posenc.schedules import Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.specs.syntax import split

ALL = ("none", "linear", "ntk", "dynamic", "llama3", "yarn", "longrope", "self-extend", "rerope")
"""What "all" stands for."""


@dataclass(frozen=True)
class Method:
    """One way to stretch a model.

    name       as the user knows it
    words      what it does
    specs      the encoding of each layer
    by_length  whether it depends on how long a sequence is, so that each length takes a pass of its own
    config     the config.json of the stretched model, or None where no config says it
    planned    how that config has to be read
    why_not    why no config says it
    scales     by layer, what its scale of the logits is multiplied by (unitless): in models of DeepSeek's kind it
               follows the schedule
    """

    name: str
    words: str
    specs: tuple[str, ...]
    by_length: bool = False
    config: dict[str, Any] | None = None
    planned: Reading | None = None
    why_not: str = ""
    scales: tuple[float, ...] = ()

    @property
    def spec(self) -> str:
        """The spec of the layers for a reader: once where they are alike, and of long lists the ends."""
        return " | ".join(map(short, dict.fromkeys(self.specs)))


@dataclass
class Plan:
    """What is to be measured.

    trained   the length that the model serves now: the one that its config's scaling reaches already (tokens)
    target    the length that it is stretched to: the factor asked for times that
    methods   the model as it is first
    left_out  name -> why a method does not apply to this model
    words     the three lengths in words, and where they come from
    """

    trained: int
    target: int
    methods: tuple[Method, ...]
    left_out: Mapping[str, str]
    words: str


FirstLosses = Callable[[Method, int], tuple[Tensor, Tensor]]
"""(method, most) -> the ids [n] of at most so many first tokens of a text, and their measured losses [n - 1] (nats)."""


@dataclass
class Stretch(Plan):
    """Everything that depends on where a model keeps its positions: in its encoding, or in a learned table.

    config    its config.json
    fitting   the names of the measures that this model can be asked for
    options   the settings that this way reads
    """

    loaded: Loaded
    config: Mapping[str, Any]
    fitting: tuple[str, ...]
    options: ClassVar[frozenset[str]] = frozenset()

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """The lengths at which the model with a method in it can be run."""
        return tuple(lengths)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        """What the model with a method in it depends on, beside the files of the model."""
        raise NotImplementedError

    def used(self, method: Method, length: int) -> AbstractContextManager[Any]:
        """The model with a method in it, for inputs of a length."""
        raise NotImplementedError

    def write(self, method: Method, where: Path) -> None:
        """Write the checkpoint of a method, which appears when it is whole."""
        raise NotImplementedError

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Load what was written and hold it to what was measured; {"words": how that went}. Raises RuntimeError."""
        raise NotImplementedError


def plan(
    reading: Reading,
    config: Mapping[str, Any],
    factor: float,
    names: Sequence[str],
    *,
    longrope: Mapping[str, Sequence[float]] | None = None,
    replace: bool = False,
) -> Plan:
    """The methods of these names for a model, with those left out that it cannot have.

    reading   what the model says of its positions
    config    its config.json, onto which that of the stretched model is written
    factor    target length / the length that the model serves now (unitless, above 1)
    names     "all", or any of changes.WORDS, or a schedule as a spec
    longrope  short_factor and long_factor, one divisor for each pair, for longrope
    replace   whether a schedule that the model has already makes room for the method's: from the length before any
              scaling, by target / that length

    A method asked for by name that does not apply is an error; "all" leaves it out and says why. Without `replace` a
    model that is scaled already is stretched further by its own kind alone (linear, yarn and llama3: the factors
    multiply, and the length before any scaling stays), by what stands around a schedule, or by a change of distances.

    Raises ValueError for an unknown name, a method that does not apply, nothing to replace, and a method of whose
    config transformers would make another model than planned; CannotRead for a model without a causal stack of its
    own, without a trained length, or whose lengths contradict each other.
    """
    wanted = names_of(names)
    part = causal_part(reading, config)
    found = served(part)
    to = Goal(factor, found.served, replace, longrope)
    scaled = [short(one) for one in dict.fromkeys(map(str, schedules_of(part)))]
    if replace and not scaled:
        raise ValueError(
            "--replace: the model's frequencies are not scaled, so there is nothing to replace; leave it out"
        )
    if replace and not any(map(gives_a_schedule, wanted)):
        raise ValueError(
            f"--replace puts another schedule in place of {scaled[0]}, and {', '.join(wanted)} gives none; leave it out"
        )
    made, left_out = [], {}
    for name in dict.fromkeys(("none", *wanted)):
        try:
            made.append(method(name, reading, part, config, to))
        except ValueError as error:
            # Searched factors stand in errors of others, too, as long as they are.
            if name in asked(names):
                raise ValueError(short(error)) from error
            left_out[name] = short(error)
    words = f"{found.words} Stretched by {factor:g} it is to serve {to.target:,}."
    if not any(place_in(config, part.name).get(key) for key in LENGTHS):
        words += f" Its config names no length: that is the default of {reading.architecture}."
    return Plan(to.served, to.target, tuple(made), left_out, words)


def asked(names: Iterable[str]) -> list[str]:
    """Names as they were given, several in one with commas between."""
    return [name for name in split(",".join(names)) if name]


def names_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of methods, with what "all" stands for.

    >>> names_of(["yarn,ntk", "resonance(inner=yarn(beta_fast=16, beta_slow=2))"])
    ('yarn', 'ntk', 'resonance(inner=yarn(beta_fast=16, beta_slow=2))')
    """
    out: list[str] = []
    for name in asked(names):
        if name != "all":
            check_name(name)
        out += ALL if name == "all" else [name]
    if not out:
        raise ValueError(f"name at least one method: {', '.join(WORDS)}, all, or a schedule such as part_ntk")
    return tuple(dict.fromkeys(out))


def causal_part(reading: Reading, config: Mapping[str, Any]) -> Part:
    """The one causal stack of a model that predicts text from it alone."""
    if config.get("is_encoder_decoder") or getattr(filled(config), "is_encoder_decoder", False):
        raise CannotRead(
            f"extend takes a decoder that predicts text by itself, and '{reading.architecture}' is an encoder "
            f"with a decoder, each with texts and lengths of its own, which nothing here measures"
        )
    causal = [part for part in reading.parts if part.shape.causal]
    if len(causal) != 1:
        found = "; ".join(part.name or reading.architecture for part in reading.parts) or "none"
        raise CannotRead(
            f"extend takes a model with one causal stack (a decoder that predicts text), and "
            f"'{reading.architecture}' has {len(causal)}; its stacks: {found}"
        )
    return causal[0]


def schedules_of(part: Part) -> list[Schedule]:
    """The schedules of the layers, those that differ once."""
    return list(dict.fromkeys(one for layer in range(len(part.layers)) for one in schedules_in(part.encoding(layer))))


def served(part: Part) -> Served:
    """What a model serves now, by the schedule of its layers that reaches furthest."""
    if not part.trained_length:
        raise CannotRead(
            "neither the config nor a table says how long a text the model was trained on; give its config "
            "max_position_embeddings"
        )
    found = [served_by(schedule, part.trained_length) for schedule in schedules_of(part) or [None]]
    return max(found, key=lambda one: one.served)


def method(name: str, reading: Reading, part: Part, config: Mapping[str, Any], to: Goal) -> Method:
    """One method for a model; raises ValueError, with the reason, where it does not apply."""
    encodings = [part.encoding(layer) for layer in range(len(part.layers))]
    if name == "none":
        by_length = any(encoding.turns_when_attending for encoding in encodings)
        return Method(name, words_of(name), tuple(repr(encoding) for encoding in encodings), by_length)
    change = change_of(name, to)

    def stretched_beyond(length: float) -> list[Encoding]:
        return [
            encoding if of.reach <= length else with_change(encoding, change)
            for of, encoding in zip(part.layers, encodings, strict=True)
        ]

    # A layer that sees less than the served length never meets a longer distance.
    stretched = stretched_beyond(to.served)
    if all(new is old for new, old in zip(stretched, encodings, strict=True)):
        seen = max(layer.reach for layer in part.layers)
        why = (
            f"every layer sees at most {seen:,} tokens, so that none meets a longer distance than now"
            if seen <= to.served
            else "no layer that sees beyond the served length has one"
        )
        raise ValueError(
            f"{name} stretches rotary encodings, and {why} "
            f"(the model has: {' | '.join(short(one) for one in dict.fromkeys(map(repr, encodings)))})"
        )
    by_length = any(encoding.turns_when_attending for encoding in stretched)
    if not gives_a_schedule(name):
        why = "transformers has no config key for a change of distances or of queries; attach it to the loaded model"
        return Method(name, words_of(name), tuple(map(repr, stretched)), by_length, why_not=why)
    why_not, unlike = list[str](), list[str]()
    # Where a config has one place for all layers, those that see less are stretched with the others, as they were when
    # released models were stretched; and what it has no name for, it may have lists of numbers for.
    for listed, length in ((False, to.served), (False, 0), (True, to.served), (True, 0)):
        new = stretched_beyond(length)
        try:
            said = [by_lists(one, to.target) if listed else one for one in new]
            planned = planned_part(part, encodings, said, to.target)
            written = with_positions(config, planned)
        except ValueError as error:
            why_not.append(str(error))
            continue
        of_plan = with_part(reading, part, planned)
        if other := unlike_planned(written, of_plan):
            # Lists are a way around, and where they lead nowhere, it is attached.
            unlike = unlike or ([] if listed else other)
            continue
        besides = [] if length else ["layers that see less are stretched too, because the config has one place for all"]
        besides += ["the config says it as LongRoPE's lists, a divisor for each pair"] if listed else []
        plain = part.shape.head_dim**-0.5
        before, after = ([layer.scale or plain for layer in one.layers] for one in (part, planned))
        scales = tuple(now / then for now, then in zip(after, before, strict=True))
        words = "; ".join((words_of(name), *besides))
        return Method(name, words, tuple(map(repr, new)), by_length, written, of_plan, scales=scales)
    if unlike:
        raise ValueError(f"{name} cannot be written so that transformers serves what is planned: {'; '.join(unlike)}")
    hint = f"{short(why_not[0])}; attach it to the loaded model"
    return Method(name, words_of(name), tuple(map(repr, stretched)), by_length, why_not=hint)


def planned_part(part: Part, old: Sequence[Encoding], new: Sequence[Encoding], target: int) -> Part:
    """A stack whose layers have new encodings in place of old ones, and which serves so many tokens.

    Where the scale of the logits went by the old schedule, it goes by the new one.
    """
    # transformers takes the length before dynamic scaling from max_position_embeddings.
    dynamic = [one for layer in new for one in schedules_in(layer) if isinstance(one, DynamicNTK)]
    longest = dynamic[0].known_length if dynamic else target
    plain, layers = part.shape.head_dim**-0.5, []
    for layer, before, after in zip(part.layers, old, new, strict=True):
        scale, (was, becomes) = layer.scale, map(scale_factor, (before, after))
        if was != 1 and scale is not None and math.isclose(scale, plain * was, rel_tol=1e-5):
            scale = plain * becomes if becomes != 1 else None
        layers.append(replace(layer, spec=repr(after), scale=scale))
    shape = replace(part.shape, max_len=longest)
    return replace(part, shape=shape, layers=tuple(layers), trained_length=longest)


def schedules_in(encoding: Encoding) -> list[Schedule]:
    """The schedules of an encoding and of those that it adds up."""
    found: list[Any] = [getattr(one, "schedule", None) for one in parts_of(encoding)]
    return [one for one in found if one is not None]


def scale_factor(encoding: Encoding) -> float:
    """By what a model whose scale of the logits follows the schedule of this encoding multiplies it."""
    return math.prod(one.scale_factor for one in schedules_in(encoding))


def read_factors(path: Path) -> dict[str, list[float]]:
    """The searched factors of longrope from a JSON file with the lists short_factor and long_factor.

    Raises CannotRead for a file that is not that.
    """
    found = read_json(path)
    found = found.get("rope_parameters") or found.get("rope_scaling") or found
    matches(found, {"short_factor": [float], "long_factor": [float], "*": Any}, file=path)
    return {key: found[key] for key in ("short_factor", "long_factor")}


def lengths_of(trained: int, target: int, more: Sequence[int] = ()) -> tuple[int, ...]:
    """The lengths to measure at: the trained one, 1.5, 2, 3, 4, 6, ... times it, and the target."""
    found, step = {trained, target, *more}, 1
    while trained * step < target:
        found |= {length for length in (trained * step, trained * step * 3 // 2) if length < target}
        step *= 2
    return tuple(sorted(found))


def attachable(model: Any, plan: Plan, names: Sequence[str]) -> Plan:
    """A plan without what cannot be put into its model, which some architectures attend by code of their own.

    Raises ValueError for a method that was asked for by its name, and for the model as it is.
    """
    made, left_out = [], dict(plan.left_out)
    for one in plan.methods:
        try:
            with attached(model, one, plan.target):
                made.append(one)
        except ValueError as error:
            if one.name in ("none", *asked(names)):
                raise ValueError(f"{one.name} cannot be put into this model: {short(error)}") from error
            left_out[one.name] = short(error)
    return replace(plan, methods=tuple(made), left_out=left_out)


@contextmanager
def attached(model: Any, method: Method, length: int) -> Generator[None]:
    """The model with a method in it; as it is, it runs by its own code, unless that goes wrong behind a cache."""
    if method.name == "none" and not method.by_length:
        yield
        return
    from posenc.checkpoints.live.attach import attach, detach

    attach(model, method.specs, horizon=length if method.by_length else None)
    try:
        with rescaled(model, method.scales):
            yield
    finally:
        detach(model)


@contextmanager
def rescaled(model: Any, scales: Sequence[float]) -> Generator[None]:
    """The model with the scale of the logits of each layer multiplied, as its code does by itself for a schedule."""
    of_layers = [
        one for one in model.modules() if hasattr(one, "layer_idx") and isinstance(vars(one).get("scaling"), float)
    ]
    before = [(one, one.scaling) for one in of_layers if scales and scales[one.layer_idx] != 1]
    for one, scaling in before:
        one.scaling = scaling * scales[one.layer_idx]
    try:
        yield
    finally:
        for one, scaling in before:
            one.scaling = scaling
