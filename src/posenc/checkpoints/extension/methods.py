"""Methods that stretch a rotary (RoPE) model's context, by their usual names, as specs and a config."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from posenc.checkpoints.extension import changes
from posenc.checkpoints.extension.changes import Goal, describe_method, is_schedule
from posenc.checkpoints.extension.lengths import ServedLengths, served_lengths
from posenc.checkpoints.formats.config_json import with_positions
from posenc.checkpoints.formats.huggingface import build_config
from posenc.checkpoints.formats.learned_tables import place_in
from posenc.checkpoints.formats.load import LoadedModel
from posenc.checkpoints.inspection.served_layers import served_differences
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading, with_part
from posenc.checkpoints.vocabulary.specs import shorten_spec
from posenc.encoding.base import Encoding, parts_of
from posenc.foreign import matches, read_json
from posenc.schedules import Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.specs.syntax import split

ALL_METHODS = ("none", "linear", "ntk", "dynamic", "llama3", "yarn", "longrope", "self-extend", "rerope")
"""The methods of "all"."""


@dataclass(frozen=True)
class Method:
    """A method that stretches a model.

    name             as on the command line
    words            what it does
    specs            the encoding of each layer
    by_length        whether it depends on the length of a sequence, so that each length takes a pass of its own
    config           the config.json of the stretched model, or None where no config can express it
    planned_reading  the reading that this config must have
    why_not          why no config can express it
    scales           by layer, the factor of the logits' scale (unitless): in models of DeepSeek's kind it follows the
                     schedule
    """

    name: str
    words: str
    specs: tuple[str, ...]
    by_length: bool = False
    config: dict[str, Any] | None = None
    planned_reading: Reading | None = None
    why_not: str = ""
    scales: tuple[float, ...] = ()

    @property
    def spec(self) -> str:
        """The specs of the layers, each once, with long lists shortened."""
        return " | ".join(map(shorten_spec, dict.fromkeys(self.specs)))


@dataclass
class Plan:
    """The methods to measure.

    trained_length  the length that the model serves now, which its config's scaling reaches (tokens)
    target          the factor times that length
    methods         the original model first
    left_out        name -> why a method does not apply to this model
    words           the lengths and their sources in words
    """

    trained_length: int
    target: int
    methods: tuple[Method, ...]
    left_out: Mapping[str, str]
    words: str


FirstLosses = Callable[[Method, int], tuple[Tensor, Tensor]]
"""(method, count) -> the ids [n] of at most count first tokens of a text, and their measured losses [n - 1] (nats)."""


@dataclass
class Stretch(Plan):
    """A plan for one kind of model: positions in its encoding, or in a learned table.

    config   its config.json
    fitting  the names of the measures that fit the model
    options  the settings that this kind reads
    """

    checkpoint: LoadedModel
    config: Mapping[str, Any]
    fitting: tuple[str, ...]
    options: ClassVar[frozenset[str]] = frozenset()

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths at which the model can run with a method."""
        return tuple(lengths)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        """Return what the model with a method depends on, beside its files."""
        raise NotImplementedError

    def model_with(self, method: Method, length: int) -> AbstractContextManager[Any]:
        """Yield the model with a method in it, for inputs of a length."""
        raise NotImplementedError

    def write(self, method: Method, where: Path) -> None:
        """Write the checkpoint of a method to a folder, which appears when it is whole."""
        raise NotImplementedError

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Compare the written checkpoint with the measured model; {"words": the result}. Raises RuntimeError."""
        raise NotImplementedError


def plan_methods(
    reading: Reading,
    config: Mapping[str, Any],
    factor: float,
    names: Sequence[str],
    *,
    longrope: Mapping[str, Sequence[float]] | None = None,
    replace: bool = False,
) -> Plan:
    """Plan the methods of these names for a model.

    reading   of the model
    config    its config.json, from which the config of the stretched model is made
    factor    target length / the length that the model serves now (unitless, above 1)
    names     "all", or any of changes.DESCRIPTIONS, or a schedule as a spec
    longrope  short_factor and long_factor, one divisor for each pair, for longrope
    replace   whether the method's schedule replaces the model's own: from the length before any scaling, by target /
              that length

    A named method that does not apply is an error; "all" leaves it out and says why. Without `replace` a model that is
    already scaled is stretched further only by a schedule of the same kind (linear, yarn and llama3: the factors
    multiply, and the length before any scaling stays), by a schedule around another one, or by a change of distances.

    Raises ValueError for an unknown name, a method that does not apply, nothing to replace, and a config that
    transformers would read as another model than planned; CannotRead for a model without one causal stack, without a
    trained length, or with lengths that contradict each other.
    """
    all_names = method_names(names)
    part = causal_part(reading, config)
    lengths = furthest_served(part)
    goal = Goal(factor, lengths.current, replace, longrope)
    schedules = [shorten_spec(text) for text in dict.fromkeys(map(str, schedules_of(part)))]
    if replace and not schedules:
        raise ValueError(
            "--replace: the model's frequencies are not scaled, so there is nothing to replace; leave it out"
        )
    if replace and not any(map(is_schedule, all_names)):
        listing = ", ".join(all_names)
        raise ValueError(
            f"--replace puts another schedule in place of {schedules[0]}, and {listing} gives none; leave it out"
        )
    applicable, left_out = [], {}
    for name in dict.fromkeys(("none", *all_names)):
        try:
            applicable.append(build_method(name, reading, part, config, goal))
        except ValueError as error:
            # Errors may hold the whole lists of searched factors.
            if name in split_names(names):
                raise ValueError(shorten_spec(error)) from error
            left_out[name] = shorten_spec(error)
    words = f"{lengths.words} Stretched by {factor:g} it is to serve {goal.target:,}."
    if not any(place_in(config, part.name).get(key) for key in LENGTHS):
        words += f" Its config names no length: that is the default of {reading.architecture}."
    return Plan(goal.current, goal.target, tuple(applicable), left_out, words)


def split_names(names: Iterable[str]) -> list[str]:
    """Return the names, split at commas."""
    return [name for name in split(",".join(names)) if name]


def method_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of methods, with "all" replaced by its methods.

    >>> method_names(["yarn,ntk", "resonance(inner=yarn(beta_fast=16, beta_slow=2))"])
    ('yarn', 'ntk', 'resonance(inner=yarn(beta_fast=16, beta_slow=2))')
    """
    result: list[str] = []
    for name in split_names(names):
        if name != "all":
            changes.check_name(name)
        result += ALL_METHODS if name == "all" else [name]
    if not result:
        raise ValueError(
            f"name at least one method: {', '.join(changes.DESCRIPTIONS)}, all, or a schedule such as part_ntk"
        )
    return tuple(dict.fromkeys(result))


def causal_part(reading: Reading, config: Mapping[str, Any]) -> Part:
    """Return the single causal stack of a decoder."""
    if config.get("is_encoder_decoder") or getattr(build_config(config), "is_encoder_decoder", False):
        raise CannotRead(
            f"extend takes a decoder that predicts text by itself, and '{reading.architecture}' is an encoder "
            f"with a decoder, each with texts and lengths of its own, which nothing here measures"
        )
    causal = [part for part in reading.parts if part.shape.causal]
    if len(causal) != 1:
        stacks = "; ".join(part.name or reading.architecture for part in reading.parts) or "none"
        raise CannotRead(
            f"extend takes a model with one causal stack (a decoder that predicts text), and "
            f"'{reading.architecture}' has {len(causal)}; its stacks: {stacks}"
        )
    return causal[0]


def schedules_of(part: Part) -> list[Schedule]:
    """Return the schedules of the layers, each once."""
    encodings = map(part.encoding, range(len(part.layers)))
    return list(dict.fromkeys(schedule for encoding in encodings for schedule in schedules_in(encoding)))


def furthest_served(part: Part) -> ServedLengths:
    """Return the lengths that a model serves now, by the schedule of its layers that reaches furthest."""
    if not part.trained_length:
        raise CannotRead(
            "neither the config nor a table says how long a text the model was trained on; give its config "
            "max_position_embeddings"
        )
    lengths = [served_lengths(schedule, part.trained_length) for schedule in schedules_of(part) or [None]]
    return max(lengths, key=lambda item: item.current)


def build_method(name: str, reading: Reading, part: Part, config: Mapping[str, Any], goal: Goal) -> Method:
    """Build a method for a model; raises ValueError, with the reason, where it does not apply."""
    encodings = [part.encoding(layer) for layer in range(len(part.layers))]
    if name == "none":
        by_length = any(encoding.turns_when_attending for encoding in encodings)
        return Method(name, describe_method(name), tuple(repr(encoding) for encoding in encodings), by_length)
    change = changes.encoding_change(name, goal)

    def stretched_beyond(length: float) -> list[Encoding]:
        return [
            encoding if layer.reach <= length else changes.with_rotary_change(encoding, change)
            for layer, encoding in zip(part.layers, encodings, strict=True)
        ]

    # A layer with a window below the served length never meets a longer distance.
    new_encodings = stretched_beyond(goal.current)
    if all(new is old for new, old in zip(new_encodings, encodings, strict=True)):
        furthest = max(layer.reach for layer in part.layers)
        why = (
            f"every layer sees at most {furthest:,} tokens, so that none meets a longer distance than now"
            if furthest <= goal.current
            else "no layer that sees beyond the served length has one"
        )
        raise ValueError(
            f"{name} stretches rotary encodings, and {why} "
            f"(the model has: {' | '.join(shorten_spec(spec) for spec in dict.fromkeys(map(repr, encodings)))})"
        )
    by_length = any(encoding.turns_when_attending for encoding in new_encodings)
    if not is_schedule(name):
        why = "transformers has no config key for a change of distances or of queries; attach it to the loaded model"
        return Method(name, describe_method(name), tuple(map(repr, new_encodings)), by_length, why_not=why)
    why_not, mismatches = list[str](), list[str]()
    # A config with one place for all layers stretches those with a window too, as in released models; and LongRoPE's
    # lists of divisors can express a schedule without a key of its own.
    for as_lists, length in ((False, goal.current), (False, 0), (True, goal.current), (True, 0)):
        new = stretched_beyond(length)
        try:
            config_encodings = [changes.with_lists(item, goal.target) if as_lists else item for item in new]
            new_part = stretched_part(part, encodings, config_encodings, goal.target)
            new_config = with_positions(config, new_part)
        except ValueError as error:
            why_not.append(str(error))
            continue
        new_reading = with_part(reading, part, new_part)
        if differences := served_differences(new_config, new_reading):
            # Lists are a fallback: where they fail, the method is attached.
            mismatches = mismatches or ([] if as_lists else differences)
            continue
        notes = [] if length else ["layers that see less are stretched too, because the config has one place for all"]
        notes += ["the config says it as LongRoPE's lists, a divisor for each pair"] if as_lists else []
        plain = part.shape.head_dim**-0.5
        old_scales, new_scales = ([layer.scale or plain for layer in stack.layers] for stack in (part, new_part))
        scales = tuple(now / then for now, then in zip(new_scales, old_scales, strict=True))
        words = "; ".join((describe_method(name), *notes))
        return Method(name, words, tuple(map(repr, new)), by_length, new_config, new_reading, scales=scales)
    if mismatches:
        reasons = "; ".join(mismatches)
        raise ValueError(f"{name} cannot be written so that transformers serves what is planned: {reasons}")
    hint = f"{shorten_spec(why_not[0])}; attach it to the loaded model"
    return Method(name, describe_method(name), tuple(map(repr, new_encodings)), by_length, why_not=hint)


def stretched_part(part: Part, old: Sequence[Encoding], new: Sequence[Encoding], target: int) -> Part:
    """Return a stack with new encodings and a new served length; the logits' scale follows the new schedules."""
    # transformers takes the length before dynamic scaling from max_position_embeddings.
    dynamic = [schedule for layer in new for schedule in schedules_in(layer) if isinstance(schedule, DynamicNTK)]
    longest = dynamic[0].known_length if dynamic else target
    plain, layers = part.shape.head_dim**-0.5, []
    for layer, old_encoding, new_encoding in zip(part.layers, old, new, strict=True):
        scale, (old_factor, new_factor) = layer.scale, map(scale_factor, (old_encoding, new_encoding))
        if old_factor != 1 and scale is not None and math.isclose(scale, plain * old_factor, rel_tol=1e-5):
            scale = plain * new_factor if new_factor != 1 else None
        layers.append(replace(layer, spec=repr(new_encoding), scale=scale))
    shape = replace(part.shape, max_len=longest)
    return replace(part, shape=shape, layers=tuple(layers), trained_length=longest)


def schedules_in(encoding: Encoding) -> list[Schedule]:
    """Return the schedules of an encoding and of its parts."""
    schedules: list[Any] = [getattr(inner, "schedule", None) for inner in parts_of(encoding)]
    return [schedule for schedule in schedules if schedule is not None]


def scale_factor(encoding: Encoding) -> float:
    """Return the factor of the logits' scale, for a model whose scale follows the schedule of this encoding."""
    return math.prod(schedule.scale_factor for schedule in schedules_in(encoding))


def read_factors(path: Path) -> dict[str, list[float]]:
    """Read longrope's lists short_factor and long_factor from a JSON file; raises CannotRead for any other file."""
    content = read_json(path)
    content = content.get("rope_parameters") or content.get("rope_scaling") or content
    matches(content, {"short_factor": [float], "long_factor": [float], "*": Any}, file=path)
    return {key: content[key] for key in ("short_factor", "long_factor")}


def measurement_lengths(trained_length: int, target: int, extra: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the lengths to measure at: the trained one, 1.5, 2, 3, 4, 6, ... times it, and the target."""
    lengths, step = {trained_length, target, *extra}, 1
    while trained_length * step < target:
        lengths |= {length for length in (trained_length * step, trained_length * step * 3 // 2) if length < target}
        step *= 2
    return tuple(sorted(lengths))


def attachable_plan(model: nn.Module, plan: Plan, names: Sequence[str]) -> Plan:
    """Return a plan without the methods that cannot be attached to its model.

    One cause is attention code of the model's own. Raises ValueError if such a method is named, or is the original one.
    """
    attached_methods, left_out = [], dict(plan.left_out)
    for method in plan.methods:
        try:
            with attach_method(model, method, plan.target):
                attached_methods.append(method)
        except ValueError as error:
            if method.name in ("none", *split_names(names)):
                raise ValueError(f"{method.name} cannot be put into this model: {shorten_spec(error)}") from error
            left_out[method.name] = shorten_spec(error)
    return replace(plan, methods=tuple(attached_methods), left_out=left_out)


@contextmanager
def attach_method(model: nn.Module, method: Method, length: int) -> Generator[None]:
    """Attach a method to the model. The original model runs its own code unless that fails behind a cache."""
    if method.name == "none" and not method.by_length:
        yield
        return
    from posenc.checkpoints.live.attach import attach, detach

    attach(model, method.specs, horizon=length if method.by_length else None)
    try:
        with scale_logits(model, method.scales):
            yield
    finally:
        detach(model)


@contextmanager
def scale_logits(model: nn.Module, scales: Sequence[float]) -> Generator[None]:
    """Multiply the logits' scale of each layer, as the model's own code does for a schedule."""
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "layer_idx")]
    attentions = [module for module in modules if isinstance(vars(module).get("scaling"), float)]
    old_scales = [(layer, layer.scaling) for layer in attentions if scales and scales[layer.layer_idx] != 1]
    for layer, scaling in old_scales:
        layer.scaling = scaling * scales[layer.layer_idx]
    try:
        yield
    finally:
        for layer, scaling in old_scales:
            layer.scaling = scaling
