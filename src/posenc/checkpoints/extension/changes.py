"""A method's changes to a layer's rotary encoding: another schedule, a distance map around it, a temperature."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from posenc.catalogue import find, options_of
from posenc.checkpoints.extension.lengths import served_lengths
from posenc.checkpoints.vocabulary.specs import shorten_spec
from posenc.encoding.base import Compose, Encoding, parts_of
from posenc.encodings.rotations import ScheduledSpectrum
from posenc.foreign import code, quote, suggestion
from posenc.schedules import SCHEDULES, Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.ntk import NTK
from posenc.schedules.yarn import YaRN
from posenc.specs.syntax import name_of, tree_of

DESCRIPTIONS = {
    "none": "the model as it is",
    "linear": "every frequency divided by the factor (position interpolation)",
    "ntk": "a larger base: base factor^(r/(r-2)) for a rotary width of r",
    "dynamic": "the larger base of dynamic NTK, as much of it as each sequence's length asks for",
    "dynamic-yarn": "YaRN by as much as each sequence's length asks for",
    "yarn": "fast pairs kept, slow ones divided by the factor, a ramp between, warmer logits",
    "llama3": "fast pairs kept, slow ones divided by the factor, Llama 3's ramp, the same logits",
    "longrope": "a divisor for each pair, from searched factors",
    "temperature": "frequencies as they are, and the warmer logits of YaRN alone",
    "log-temperature": "sharper attention beyond the served length, by the logarithm of the position",
    "step-temperature": "slowly sharper attention beyond the served length, as in Inkling",
    "self-extend": "exact distances nearby, distances between groups of tokens further away",
    "rerope": "no distance beyond a quarter of the served length",
    "dual-chunk": "exact distances within chunks and at their borders, one distance further away",
}
"""The methods with names of their own; every schedule is a method too, by its name in specs."""

ALIASES = {
    "dynamic": "dynamic_ntk",
    # No pair rotates so slowly, so every frequency is kept.
    "temperature": "yarn(beta_fast=2e-9, beta_slow=1e-9)",
}


@dataclass(frozen=True)
class Goal:
    """The lengths between which a model is stretched, and the ways that are allowed.

    factor    target / served length (unitless)
    current   the length that the model serves now (tokens)
    replace   whether a method replaces the model's own schedule
    longrope  short_factor and long_factor of longrope, one divisor for each pair
    """

    factor: float
    current: int
    replace: bool = False
    longrope: Mapping[str, Sequence[float]] | None = None

    @property
    def target(self) -> int:
        return round(self.current * self.factor)

    def start(self, schedule: Schedule | None) -> int:
        """Return the length from which a rotary encoding with this schedule is stretched (tokens)."""
        return served_lengths(schedule, self.current).original if schedule and self.replace else self.current


def self_extend(goal: Goal) -> dict[str, int]:
    # The authors' rule: the groups should end within two thirds of the served length, which training saw often.
    window = max(1, goal.current // 4)
    group = math.ceil((goal.factor * goal.current - window) / max(1, 2 * goal.current // 3 - window))
    return {"window": window, "group": group}


DISTANCE_MAPS: dict[str, Callable[[Goal], dict[str, Any]]] = {
    "self_extend": self_extend,
    "rerope": lambda goal: {"window": max(1, goal.current // 4)},
    "dual_chunk": lambda goal: {"chunk": max(1, goal.current * 3 // 4), "longest": goal.current},
}
"""The distance maps, with options for a model that was not tuned for them."""

QUERY_TEMPERATURES: dict[str, Callable[[Goal], dict[str, Any]]] = {
    "log_temperature": lambda goal: {"trained_length": goal.current, "least": 1.0},
    "step_temperature": lambda goal: {"interval": goal.current, "form": "inkling"},
}
"""The temperatures of queries, with options that change nothing within the served length."""


def as_spec(name: str) -> str:
    """Return a method's name as a spec: aliases resolved, and its first word with underscores."""
    word, bracket, options = name.partition("(")
    spec = ALIASES.get(word, word if code.is_class_path(word) else word.replace("-", "_"))
    return spec if not bracket else f"{spec.partition('(')[0]}({options}"


def check_name(name: str) -> None:
    """Check a method's name. Raises ValueError, with the nearest name, for an unknown one; CannotRead for no spec."""
    tree = tree_of(as_spec(name), "method", "posenc extend --help has all")
    word = name_of(tree.func if isinstance(tree, ast.Call) else tree)
    if not (word in ("none", *DISTANCE_MAPS, *QUERY_TEMPERATURES) or code.is_class_path(word) or SCHEDULES.knows(word)):
        known_names = [*DESCRIPTIONS, *SCHEDULES, "all"]
        raise ValueError(f"no method named {quote(name)}{suggestion(name, known_names, 'posenc extend --help')}")


def describe_method(name: str) -> str:
    """Return a one-line description of a method."""
    if name in DESCRIPTIONS:
        return DESCRIPTIONS[name]
    word = as_spec(name).partition("(")[0]
    kind = find(word) if word in DISTANCE_MAPS or word in QUERY_TEMPERATURES else SCHEDULES.find(word)
    return (kind.__doc__ or "").partition("\n")[0].removesuffix(".")


def is_schedule(name: str) -> bool:
    return name != "none" and as_spec(name).partition("(")[0] not in (*DISTANCE_MAPS, *QUERY_TEMPERATURES)


def encoding_change(name: str, goal: Goal) -> Callable[[Any], Encoding]:
    """Return a method as a function of a rotary encoding. Both raise ValueError where the method does not apply."""
    spec = as_spec(name)
    word = spec.partition("(")[0]
    if word in DISTANCE_MAPS or word in QUERY_TEMPERATURES:
        options = (DISTANCE_MAPS | QUERY_TEMPERATURES)[word](goal) | options_of_spec(spec)
        kind: Any = find(word)
        for option in options:
            if option not in options_of(word):
                names = [name for name in options_of(word) if name != "inner"]
                hint = suggestion(option, names)
                raise ValueError(f"{name}: no option {quote(option)}; it has: {', '.join(names)}{hint}")
        if word in DISTANCE_MAPS:
            return lambda rotary: kind(rotary, **options)
        return lambda rotary: Compose(rotary, kind(**options))
    if spec == "longrope" and goal.longrope is None:
        raise ValueError(
            "longrope takes factors that were searched for this very model, one for each pair; "
            "give them with --longrope-factors FILE"
        )
    return lambda rotary: with_schedule(rotary, name, goal)


def with_schedule(rotary: ScheduledSpectrum, name: str, goal: Goal) -> Encoding:
    """Return a rotary encoding with the schedule of a method."""
    old, spec, start = rotary.schedule, as_spec(name), goal.start(rotary.schedule)
    if spec == "longrope":
        assert goal.longrope is not None
        short_factor, long_factor = (tuple(goal.longrope[key]) for key in ("short_factor", "long_factor"))
        new: Any = LongRoPE(goal.target / start, short_factor, long_factor, start)
    else:
        new = SCHEDULES.resolve(ast.unparse(with_factor(tree_of(spec), goal.target / start))).with_trained_length(start)
    if old is not None and not goal.replace:
        new = stretch_further(name, old, new, goal.factor)
    elif type(old) is type(new) and hasattr(new, "factor") and spec != "longrope" and "(" not in spec:
        # The same kind of schedule, from the length before scaling: its ramp and other options stay.
        new = replace(with_rule_temperature(old), factor=new.factor)
    if isinstance(new, NTK):
        return with_options(rotary, base=larger_base(rotary, new.factor), schedule=None)
    return with_options(rotary, schedule=new)


def with_rule_temperature(schedule: Any) -> Any:
    """Return a schedule whose temperature follows its rule instead of its attention_factor."""
    return replace(schedule, attention_factor=None) if hasattr(schedule, "attention_factor") else schedule


def options_of_spec(spec: str) -> dict[str, Any]:
    """Return the options of a spec.

    >>> options_of_spec("rerope(window=512)")
    {'window': 512}
    """
    tree = tree_of(spec)
    words = tree.keywords if isinstance(tree, ast.Call) else []
    return {word.arg or "**": SCHEDULES.value(word.value, spec) for word in words}


def with_factor(tree: ast.expr, factor: float) -> ast.expr:
    """Return a spec with this factor for each of its schedules that needs one and has none.

    >>> ast.unparse(with_factor(ast.parse("resonance(inner=yarn(beta_fast=16))", mode="eval").body, 4.0))
    'resonance(inner=yarn(beta_fast=16, factor=4.0))'
    """
    name = name_of(tree.func if isinstance(tree, ast.Call) else tree)
    if not name or not (code.is_class_path(name) or SCHEDULES.knows(name)):
        return tree
    words = [ast.keyword(keyword.arg, with_factor(keyword.value, factor)) for keyword in getattr(tree, "keywords", ())]
    kind: Any = SCHEDULES.find(name)
    # DynamicNTK's factor is optional here; transformers needs it.
    names = {field.name for field in fields(kind) if field.default is MISSING or kind is DynamicNTK}
    if "factor" in names and all(keyword.arg != "factor" for keyword in words):
        words.append(ast.keyword("factor", ast.Constant(factor)))
    function = tree.func if isinstance(tree, ast.Call) else tree
    return ast.Call(function, list(getattr(tree, "args", ())), words)


def stretch_further(name: str, old: Any, new: Any, factor: float) -> Schedule:
    """Return the schedule of a model that is already scaled, stretched by `factor` beyond its served length.

    A schedule of the same kind continues: factors multiply, and the temperature and the ramp follow the length before
    any scaling, which the old schedule knows. A schedule with an inner one takes the old schedule in.

    >>> from posenc.schedules import Linear
    >>> stretch_further("linear", Linear(4), Linear(2), 2)
    linear(factor=8)
    """
    if hasattr(new, "inner") and new.inner is None:
        return replace(new, inner=old)
    if isinstance(old, YaRN) and math.isclose(with_rule_temperature(old).temperature, old.temperature, rel_tol=1e-6):
        # Some configs spell out the temperature of the rule.
        old = with_rule_temperature(old)
    temperature = getattr(old, "attention_factor", None)
    same_kind = type(old) is type(new) and "(" not in as_spec(name)
    if same_kind and not old.by_horizon and temperature is None and hasattr(old, "factor"):
        return replace(old, factor=old.factor * factor)
    hint = "" if temperature is None else f", with a temperature of its own (attention_factor={temperature:g})"
    raise ValueError(
        f"the model's frequencies are already scaled by {shorten_spec(old)}{hint}, and {name} on top of that has no "
        f"published meaning; --replace puts it in place of that, from the length before any scaling; without it "
        f"self-extend and rerope apply, and linear, yarn and llama3 to a model of their own kind"
    )


def larger_base(rotary: ScheduledSpectrum, factor: float) -> float:
    """Return the base of NTK-aware scaling, base factor^(r/(r-2)), for a rotary width of r channels."""
    width = getattr(rotary, "width", rotary.head_dim)
    if width < 4:
        raise ValueError(f"ntk keeps the fastest pair and stretches the slowest, and a rotary width of {width} has one")
    return rotary.base * factor ** (width / (width - 2))


def with_options(encoding: Encoding, **options: Any) -> Encoding:
    """Return the same encoding with other options."""
    old_options = {option: getattr(encoding, option) for option in options_of(encoding.spec_name)}
    return type(encoding)(**old_options | options)


def with_rotary_change(encoding: Encoding, change: Callable[[Encoding], Encoding]) -> Encoding:
    """Return the encoding with its rotary part changed, or itself where it has none."""
    parts = parts_of(encoding)
    new_parts = [change(part) if hasattr(part, "schedule") else part for part in parts]
    if all(new is old for new, old in zip(new_parts, parts, strict=True)):
        return encoding
    return new_parts[0] if len(new_parts) == 1 else Compose(*new_parts)


def with_lists(encoding: Encoding, target: int) -> Encoding:
    """Return an encoding of the same frequencies and temperature with LongRoPE's lists: a divisor for each pair.

    Raises ValueError where a frequency is 0, or follows the length of each sequence.
    """
    rotary: Any = encoding
    if getattr(rotary, "schedule", None) is None:
        return encoding
    if rotary.turns_when_attending:
        raise ValueError(f"{shorten_spec(rotary.schedule)} follows the length of each sequence, which no divisors say")
    divisors = divisors_of(rotary)
    if not all(map(math.isfinite, divisors)):
        raise ValueError(f"{shorten_spec(rotary.schedule)} makes pairs stand still, which no divisors say")
    start, (_, temperature) = getattr(rotary.schedule, "trained_length", None) or target, rotary.spectrum()
    lists = LongRoPE(max(1.0, target / start), divisors, divisors, start, attention_factor=float(temperature))
    return with_options(rotary, schedule=lists)


def divisors_of(rotary: ScheduledSpectrum) -> tuple[float, ...]:
    """Return the divisor of each pair's frequency; inf or nan where a pair stands still.

    Where a schedule follows the length of a sequence, these are the divisors up to the trained length.

    >>> from posenc import Rotary
    >>> divisors_of(Rotary(8, schedule="linear(factor=2)"))
    (2.0, 2.0, 2.0, 2.0)
    """
    plain: Any = with_options(rotary, schedule=None)
    return tuple((plain.spectrum()[0] / rotary.spectrum()[0]).flatten().tolist())
