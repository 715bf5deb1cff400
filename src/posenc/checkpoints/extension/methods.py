"""Ways to stretch a rotary model's context, by the names that people use: as specs, and as a change of its config."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc import schedules
from posenc.catalogue import find, options_of
from posenc.checkpoints.formats.config_json import with_positions
from posenc.checkpoints.inspection.served import unlike_planned
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading, with_part
from posenc.encoding import Compose, Encoding, parts_of
from posenc.foreign import matches, near, quoted, read_json
from posenc.schedules import Schedule

WORDS = {
    "none": "the model as it is",
    "linear": "every frequency divided by the factor (position interpolation)",
    "ntk": "a larger base: base factor^(r/(r-2)) for a rotary width of r",
    "dynamic": "the larger base of dynamic NTK, as much of it as each sequence's length asks for",
    "dynamic-yarn": "YaRN by as much as each sequence's length asks for",
    "yarn": "fast pairs kept, slow ones divided by the factor, a ramp between, warmer logits",
    "llama3": "fast pairs kept, slow ones divided by the factor, Llama 3's ramp, the same logits",
    "longrope": "a divisor for each pair, from searched factors",
    "self-extend": "exact distances nearby, distances between groups of tokens further away",
    "rerope": "no distance beyond a quarter of the trained length",
    "dual-chunk": "exact distances within chunks and at their borders, one distance further away",
}
"""The methods by name, with what each does."""

ALL = ("none", "linear", "ntk", "dynamic", "llama3", "yarn", "longrope", "self-extend", "rerope")
"""What "all" stands for."""

WRAPPERS = ("self-extend", "rerope", "dual-chunk")
"""Methods that change distances and not frequencies."""


@dataclass(frozen=True)
class Method:
    """One way to stretch a model.

    name       as the user knows it
    specs      the encoding of each layer
    by_length  whether it depends on how long a sequence is, so that each length takes a pass of its own
    config     the config.json of the stretched model, or None where no config says it
    planned    how that config has to be read
    why_not    why no config says it
    """

    name: str
    specs: tuple[str, ...]
    by_length: bool = False
    config: dict[str, Any] | None = None
    planned: Reading | None = None
    why_not: str = ""

    @property
    def spec(self) -> str:
        """The spec of the layers, shortened where all are alike."""
        return " | ".join(dict.fromkeys(self.specs))


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    part      the stack of the model whose context is stretched
    trained   its trained length (tokens)
    target    the length that it is stretched to (tokens)
    methods   the model as it is first
    left_out  name -> why a method does not apply to this model
    """

    part: Part
    trained: int
    target: int
    methods: tuple[Method, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def plan(
    reading: Reading,
    config: Mapping[str, Any],
    factor: float,
    names: Sequence[str],
    *,
    longrope: Mapping[str, Sequence[float]] | None = None,
) -> Plan:
    """The methods of these names for a model, with those left out that it cannot have.

    reading   what the model says of its positions
    config    its config.json, onto which that of the stretched model is written
    factor    target length / trained length (unitless, above 1)
    names     from WORDS, or "all"
    longrope  short_factor and long_factor, one divisor for each pair, for longrope

    A method asked for by name that does not apply is an error; "all" leaves it out and says why. A model that is scaled
    already is stretched further by its own kind alone (linear, yarn and llama3: the factors multiply, and the length
    before any scaling stays), or by a change of distances.

    Raises ValueError for a factor that is not above 1, an unknown name, a method that does not apply, and one of whose
    config transformers would make another model than planned; CannotRead for a model without a causal stack, or without
    a trained length.
    """
    if not (math.isfinite(factor) and factor > 1):
        raise ValueError(f"the factor is target length / trained length and must be above 1, got {factor:g}")
    wanted = names_of(names)
    part = causal_part(reading)
    trained = part.trained_length
    if not trained:
        raise CannotRead(
            "neither the config nor a table says how long a text the model was trained on, so a factor has no meaning; "
            "give its config max_position_embeddings"
        )
    made, left_out = [], {}
    for name in dict.fromkeys(("none", *wanted)):
        try:
            made.append(method(name, reading, part, config, factor, trained, longrope))
        except ValueError as error:
            if name in names:
                raise
            left_out[name] = str(error)
    return Plan(part, trained, round(trained * factor), tuple(made), left_out)


def names_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of methods, with what "all" stands for.

    >>> names_of(["yarn", "ntk"])
    ('yarn', 'ntk')
    """
    out: list[str] = []
    for name in names:
        if name != "all" and name not in WORDS:
            raise ValueError(f"no method named {quoted(name)}{near(name, [*WORDS, 'all'], 'posenc extend --help')}")
        out += ALL if name == "all" else [name]
    if not out:
        raise ValueError(f"name at least one method: {', '.join(WORDS)}, all")
    return tuple(dict.fromkeys(out))


def causal_part(reading: Reading) -> Part:
    """The one causal stack of a model."""
    causal = [part for part in reading.parts if part.shape.causal]
    if len(causal) != 1:
        found = "; ".join(part.name or reading.architecture for part in reading.parts) or "none"
        raise CannotRead(
            f"extending takes a model with one causal stack (a decoder that predicts text), and "
            f"'{reading.architecture}' has {len(causal)}; its stacks: {found}"
        )
    return causal[0]


def method(
    name: str,
    reading: Reading,
    part: Part,
    config: Mapping[str, Any],
    factor: float,
    trained: int,
    longrope: Mapping[str, Sequence[float]] | None = None,
) -> Method:
    """One method for a model; raises ValueError, with the reason, where it does not apply."""
    encodings = [part.encoding(layer) for layer in range(len(part.layers))]
    if name == "none":
        by_length = any(encoding.turns_when_attending for encoding in encodings)
        return Method(name, tuple(repr(encoding) for encoding in encodings), by_length)
    change = changer(name, factor, trained, longrope)

    def stretched_beyond(length: float) -> list[Encoding]:
        return [
            encoding if of.reach <= length else with_change(encoding, change)
            for of, encoding in zip(part.layers, encodings, strict=True)
        ]

    # A layer that sees less than the trained length never meets a longer distance.
    stretched = stretched_beyond(trained)
    if all(new is old for new, old in zip(stretched, encodings, strict=True)):
        raise ValueError(
            f"{name} stretches rotary encodings, and no layer that sees beyond the trained length has one "
            f"(the model has: {' | '.join(dict.fromkeys(map(repr, encodings)))})"
        )
    specs = tuple(repr(encoding) for encoding in stretched)
    by_length = any(encoding.turns_when_attending for encoding in stretched)
    if name in WRAPPERS:
        why_not = "transformers has no config key for a change of distances; attach it when the model is loaded"
        return Method(name, specs, by_length, why_not=why_not)
    # transformers takes the trained length of dynamic scaling from max_position_embeddings.
    longest = trained if name == "dynamic" else round(trained * factor)
    why_not: list[str] = []
    # Where a config has one place for all layers, those that see less are stretched with the others, as they were when
    # released models were stretched.
    for length in (trained, 0):
        try:
            new = tuple(repr(encoding) for encoding in stretched_beyond(length))
            layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, new, strict=True))
            shape = replace(part.shape, max_len=longest)
            stretched_part = replace(part, shape=shape, layers=layers, trained_length=longest)
            written = with_positions(config, stretched_part)
        except ValueError as error:
            why_not.append(f"{error}; attach it when the model is loaded")
            continue
        planned = with_part(reading, part, stretched_part)
        if unlike := unlike_planned(written, planned):
            raise ValueError(
                f"{name} cannot be written so that transformers serves what is planned: {'; '.join(unlike)}"
            )
        return Method(name, new, by_length, written, planned)
    return Method(name, specs, by_length, why_not=why_not[0])


def with_change(encoding: Encoding, change: Callable[[Encoding], Encoding]) -> Encoding:
    """The encoding with its rotary part changed, or itself where it has none."""
    parts = parts_of(encoding)
    changed = [change(part) if hasattr(part, "schedule") else part for part in parts]
    if all(new is old for new, old in zip(changed, parts, strict=True)):
        return encoding
    return changed[0] if len(changed) == 1 else Compose(*changed)


def changer(
    name: str, factor: float, trained: int, longrope: Mapping[str, Sequence[float]] | None
) -> Callable[[Any], Encoding]:
    """What a method does to a rotary encoding."""
    if name == "ntk":
        return lambda rotary: with_options(unscaled(name, rotary), base=larger_base(rotary, factor))
    if name == "longrope":
        if longrope is None:
            raise ValueError(
                "longrope takes factors that somebody has searched for this very model, one for each pair; "
                "give them with --longrope-factors FILE"
            )
        short, long = (tuple(longrope[key]) for key in ("short_factor", "long_factor"))
        searched = schedules.LongRoPE(factor, short, long, trained)
        return lambda rotary: with_options(unscaled(name, rotary), schedule=searched)
    if name == "self-extend":
        # The authors' rule: the groups should end within two thirds of the trained length, which training saw often.
        window = max(1, trained // 4)
        group = math.ceil((factor * trained - window) / max(1, 2 * trained // 3 - window))
        self_extend: Any = find("self_extend")
        return lambda rotary: self_extend(rotary, window=window, group=group)
    if name == "rerope":
        rerope: Any = find("rerope")
        return lambda rotary: rerope(rotary, window=max(1, trained // 4))
    if name == "dual-chunk":
        dual_chunk: Any = find("dual_chunk")
        return lambda rotary: dual_chunk(rotary, chunk=max(1, trained * 3 // 4), longest=trained)
    new = {
        "linear": schedules.Linear(factor),
        "dynamic": schedules.DynamicNTK(factor, trained),
        "dynamic-yarn": schedules.DynamicYaRN(trained_length=trained),
        "yarn": schedules.YaRN(factor, trained),
        "llama3": schedules.Llama3(factor, trained),
    }[name]
    return lambda rotary: with_options(rotary, schedule=composed(name, rotary.schedule, new, factor))


def composed(name: str, old: Any, new: Schedule, factor: float) -> Schedule:
    """The schedule of a model that may be scaled already.

    >>> composed("linear", schedules.Linear(4), schedules.Linear(2), 2)
    linear(factor=8)
    """
    if old is None:
        return new
    fixed = getattr(old, "attention_factor", None)
    if type(old) is type(new) and not old.by_horizon and fixed is None:
        # The temperature and the ramp go by the length before any scaling, which the old schedule knows.
        return replace(old, factor=old.factor * factor)
    hint = f", with a temperature of its own (attention_factor={fixed})" if fixed is not None else ""
    raise ValueError(
        f"the model's frequencies are already scaled by {old}{hint}, and {name} on top of that has no published "
        f"meaning; self-extend and rerope apply to it, and linear, yarn and llama3 to a model of their own kind"
    )


def unscaled(name: str, rotary: Any) -> Encoding:
    """A rotary encoding without a schedule; raises ValueError where it has one."""
    if rotary.schedule is not None:
        composed(name, rotary.schedule, schedules.NTK(1.0), 1.0)
    return rotary


def larger_base(rotary: Any, factor: float) -> float:
    """The base of NTK-aware scaling, base factor^(r/(r-2)), for a rotary width of r channels."""
    width = getattr(rotary, "width", rotary.head_dim)
    if width < 4:
        raise ValueError(f"ntk keeps the fastest pair and stretches the slowest, and a rotary width of {width} has one")
    return rotary.base * factor ** (width / (width - 2))


def with_options(encoding: Encoding, **options: Any) -> Encoding:
    """The same encoding with other options."""
    kept = {option: getattr(encoding, option) for option in options_of(encoding.spec_name)}
    return type(encoding)(**kept | options)


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


@contextmanager
def attached(model: Any, method: Method, length: int) -> Generator[None]:
    """The model with a method in it; as it is, it runs by its own code, unless that goes wrong behind a cache."""
    if method.name == "none" and not method.by_length:
        yield
        return
    from posenc.checkpoints.live.attach import attach, detach

    attach(model, method.specs, horizon=length if method.by_length else None)
    try:
        yield
    finally:
        detach(model)
