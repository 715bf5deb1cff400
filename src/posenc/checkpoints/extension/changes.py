"""What a method does to the rotary encoding of a layer: another schedule, a distance map around it, a temperature."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from posenc.catalogue import find, options_of
from posenc.checkpoints.extension.lengths import served_by
from posenc.checkpoints.vocabulary.specs import short
from posenc.encoding.base import Compose, Encoding, parts_of
from posenc.foreign import code, near, quoted
from posenc.schedules import SCHEDULES, Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.ntk import NTK
from posenc.schedules.yarn import YaRN
from posenc.specs.syntax import name_of, tree_of

WORDS = {
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
"""What the methods do that have a name here; every schedule is one besides, by its name in specs."""

SHORT_FOR = {
    "dynamic": "dynamic_ntk",
    # No pair turns as seldom, so that all are kept.
    "temperature": "yarn(beta_fast=2e-9, beta_slow=1e-9)",
}


@dataclass(frozen=True)
class Goal:
    """How far a model is stretched, and from where.

    factor    target / served length (unitless)
    served    what it serves now (tokens)
    replace   whether a schedule that it has already makes room for another one
    longrope  short_factor and long_factor of longrope, one divisor for each pair, where they are given
    """

    factor: float
    served: int
    replace: bool = False
    longrope: Mapping[str, Sequence[float]] | None = None

    @property
    def target(self) -> int:
        return round(self.served * self.factor)

    def start(self, schedule: Schedule | None) -> int:
        """The length that a rotary encoding with this schedule is stretched from (tokens)."""
        return served_by(schedule, self.served).original if schedule is not None and self.replace else self.served


def self_extend(to: Goal) -> dict[str, int]:
    # The authors' rule: the groups should end within two thirds of the served length, which training saw often.
    window = max(1, to.served // 4)
    group = math.ceil((to.factor * to.served - window) / max(1, 2 * to.served // 3 - window))
    return {"window": window, "group": group}


AROUND: dict[str, Callable[[Goal], dict[str, Any]]] = {
    "self_extend": self_extend,
    "rerope": lambda to: {"window": max(1, to.served // 4)},
    "dual_chunk": lambda to: {"chunk": max(1, to.served * 3 // 4), "longest": to.served},
}
"""The distance maps, with the options that suit a model that was not tuned for them."""

BESIDE: dict[str, Callable[[Goal], dict[str, Any]]] = {
    "log_temperature": lambda to: {"trained_length": to.served, "least": 1.0},
    "step_temperature": lambda to: {"interval": to.served, "form": "inkling"},
}
"""The temperatures of queries, with options by which all that is served now stays as it is."""


def in_specs(name: str) -> str:
    """A method as a spec: what stands for another one written out, and the word before the options with underscores."""
    word, bracket, options = name.partition("(")
    spec = SHORT_FOR.get(word, word if code.is_own(word) else word.replace("-", "_"))
    return spec if not bracket else f"{spec.partition('(')[0]}({options}"


def check_name(name: str) -> None:
    """Raises ValueError, naming what is near, for what is no method; CannotRead for what is not even a spec."""
    tree = tree_of(in_specs(name), "method", "posenc extend --help has all")
    word = name_of(tree.func if isinstance(tree, ast.Call) else tree)
    if not (word in ("none", *AROUND, *BESIDE) or code.is_own(word) or SCHEDULES.knows(word)):
        known = [*WORDS, *SCHEDULES, "all"]
        raise ValueError(f"no method named {quoted(name)}{near(name, known, 'posenc extend --help')}")


def words_of(name: str) -> str:
    """What a method does, in a line."""
    if name in WORDS:
        return WORDS[name]
    word = in_specs(name).partition("(")[0]
    of = find(word) if word in AROUND or word in BESIDE else SCHEDULES.find(word)
    return (of.__doc__ or "").partition("\n")[0].removesuffix(".")


def gives_a_schedule(name: str) -> bool:
    return name != "none" and in_specs(name).partition("(")[0] not in (*AROUND, *BESIDE)


def change_of(name: str, to: Goal) -> Callable[[Any], Encoding]:
    """What a method does to a rotary encoding. Raises ValueError where it cannot be; so does what is returned."""
    spec = in_specs(name)
    word = spec.partition("(")[0]
    if word in AROUND or word in BESIDE:
        options = (AROUND | BESIDE)[word](to) | options_in(spec)
        made: Any = find(word)
        for option in options:
            if option not in options_of(word):
                known = [one for one in options_of(word) if one != "inner"]
                raise ValueError(f"{name}: no option {quoted(option)}; it has: {', '.join(known)}{near(option, known)}")
        if word in AROUND:
            return lambda rotary: made(rotary, **options)
        return lambda rotary: Compose(rotary, made(**options))
    if spec == "longrope" and to.longrope is None:
        raise ValueError(
            "longrope takes factors that somebody has searched for this very model, one for each pair; "
            "give them with --longrope-factors FILE"
        )
    return lambda rotary: scheduled(rotary, name, to)


def scheduled(rotary: Any, name: str, to: Goal) -> Encoding:
    """A rotary encoding with the schedule of a method."""
    old, spec, start = rotary.schedule, in_specs(name), to.start(rotary.schedule)
    if spec == "longrope":
        assert to.longrope is not None
        short_factor, long_factor = (tuple(to.longrope[key]) for key in ("short_factor", "long_factor"))
        new: Any = LongRoPE(to.target / start, short_factor, long_factor, start)
    else:
        new = SCHEDULES.given(ast.unparse(filled(tree_of(spec), to.target / start))).with_trained_length(start)
    if old is not None and not to.replace:
        new = further(name, old, new, to.factor)
    elif type(old) is type(new) and hasattr(new, "factor") and spec != "longrope" and "(" not in spec:
        # Its own kind from the length before: its ramp and what else is its own stay.
        new = replace(ruled(old), factor=new.factor)
    if isinstance(new, NTK):
        return with_options(rotary, base=larger_base(rotary, new.factor), schedule=None)
    return with_options(rotary, schedule=new)


def ruled(schedule: Any) -> Any:
    """A schedule whose temperature goes by its rule, and not by a number of its own."""
    return replace(schedule, attention_factor=None) if hasattr(schedule, "attention_factor") else schedule


def options_in(spec: str) -> dict[str, Any]:
    """The options that a spec says.

    >>> options_in("rerope(window=512)")
    {'window': 512}
    """
    tree = tree_of(spec)
    words = tree.keywords if isinstance(tree, ast.Call) else []
    return {word.arg or "**": SCHEDULES.value(word.value, spec) for word in words}


def filled(tree: ast.expr, factor: float) -> ast.expr:
    """A spec of schedules in which each one that needs a factor and is given none has this one.

    >>> ast.unparse(filled(ast.parse("resonance(inner=yarn(beta_fast=16))", mode="eval").body, 4.0))
    'resonance(inner=yarn(beta_fast=16, factor=4.0))'
    """
    name = name_of(tree.func if isinstance(tree, ast.Call) else tree)
    if not name or not (code.is_own(name) or SCHEDULES.knows(name)):
        return tree
    words = [ast.keyword(one.arg, filled(one.value, factor)) for one in getattr(tree, "keywords", ())]
    made: Any = SCHEDULES.find(name)
    # transformers' dynamic scaling takes one, too, which is an option here.
    needed = any(one.name == "factor" and (one.default is MISSING or made is DynamicNTK) for one in fields(made))
    if needed and all(one.arg != "factor" for one in words):
        words.append(ast.keyword("factor", ast.Constant(factor)))
    function = tree.func if isinstance(tree, ast.Call) else tree
    return ast.Call(function, list(getattr(tree, "args", ())), words)


def further(name: str, old: Any, new: Any, factor: float) -> Schedule:
    """The schedule of a model that is scaled already, stretched by `factor` beyond what it serves.

    Its own kind goes on from there: factors multiply, and the temperature and the ramp go by the length before any
    scaling, which the old schedule knows. What stands around a schedule takes the old one in.

    >>> from posenc.schedules import Linear
    >>> further("linear", Linear(4), Linear(2), 2)
    linear(factor=8)
    """
    if hasattr(new, "inner") and new.inner is None:
        return replace(new, inner=old)
    if isinstance(old, YaRN) and math.isclose(ruled(old).temperature, old.temperature, rel_tol=1e-6):
        # Some configs write out the temperature that the rule gives anyway.
        old = ruled(old)
    fixed = getattr(old, "attention_factor", None)
    if (
        type(old) is type(new)
        and "(" not in in_specs(name)
        and not old.by_horizon
        and fixed is None
        and hasattr(old, "factor")
    ):
        return replace(old, factor=old.factor * factor)
    hint = f", with a temperature of its own (attention_factor={fixed:g})" if fixed is not None else ""
    raise ValueError(
        f"the model's frequencies are already scaled by {short(old)}{hint}, and {name} on top of that has no published "
        f"meaning; --replace puts it in place of that, from the length before any scaling; without it self-extend and "
        f"rerope apply, and linear, yarn and llama3 to a model of their own kind"
    )


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


def with_change(encoding: Encoding, change: Callable[[Encoding], Encoding]) -> Encoding:
    """The encoding with its rotary part changed, or itself where it has none."""
    parts = parts_of(encoding)
    changed = [change(part) if hasattr(part, "schedule") else part for part in parts]
    if all(new is old for new, old in zip(changed, parts, strict=True)):
        return encoding
    return changed[0] if len(changed) == 1 else Compose(*changed)


def by_lists(encoding: Encoding, target: int) -> Encoding:
    """The same frequencies and temperature by a divisor for each pair, which is what LongRoPE's keys say.

    Raises ValueError where a frequency is 0, or follows the length of each sequence.
    """
    rotary: Any = encoding
    if getattr(rotary, "schedule", None) is None:
        return encoding
    if rotary.turns_when_attending:
        raise ValueError(f"{short(rotary.schedule)} follows the length of each sequence, which no divisors say")
    divisors = divisors_of(rotary)
    if not all(map(math.isfinite, divisors)):
        raise ValueError(f"{short(rotary.schedule)} makes pairs stand still, which no divisors say")
    start, (_, temperature) = getattr(rotary.schedule, "trained_length", None) or target, rotary.spectrum()
    lists = LongRoPE(max(1.0, target / start), divisors, divisors, start, attention_factor=float(temperature))
    return with_options(rotary, schedule=lists)


def divisors_of(rotary: Any) -> tuple[float, ...]:
    """By what the frequency of each pair is divided; inf or nan where a pair stands still.

    Where a schedule follows the length of a sequence, this is what it does up to the trained one.

    >>> from posenc import Rotary
    >>> divisors_of(Rotary(8, schedule="linear(factor=2)"))
    (2.0, 2.0, 2.0, 2.0)
    """
    unscaled: Any = with_options(rotary, schedule=None)
    return tuple((unscaled.spectrum()[0] / rotary.spectrum()[0]).flatten().tolist())
