"""RoPE (rotary) in the keys of transformers: read and write every schedule with its parameters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from posenc.checkpoints.kinds.rotary.old_keys import BASES, LOCAL_BASES, SHARES
from posenc.checkpoints.models.nodes import ConfigNode
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.ledger import Ledger, show_value
from posenc.checkpoints.vocabulary.reading import CannotRead, names_no_code
from posenc.checkpoints.vocabulary.specs import CannotExpress, new_spec, possible, rotary_spec, shorten_spec
from posenc.encoding.base import Encoding, spec_options
from posenc.encodings.rotations.multimodal_rotary import MultimodalRotary
from posenc.schedules import SCHEDULES, Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.ntk import NTK
from posenc.schedules.ntk_fixed import NTKFixed
from posenc.schedules.ntk_mixed import NTKMixed
from posenc.schedules.yarn import YaRN

OWN_PREFIX = "posenc:"
"""Prefix of the rope types that `posenc.register` adds to transformers."""

ROPE_TYPES = (
    *("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "proportional", "ntk", "ntk_alpha"),
    "axial",
)
"""The schedules that are read, by their rope type."""

DICTIONARIES = ("rope_parameters", "rope_scaling")

KEEPS_STATE = re.compile(r"linear|^conv|mamba|recurrent|^moe$")
"""Types of layers without attention."""

WITH_KEYS = ("rotary", "multimodal_rotary", "proportional_rotary")
"""The encodings that transformers has keys for."""


@dataclass(frozen=True)
class Options:
    """Rotary as its keys have it, without the layout."""

    head_dim: int
    width: int
    base: float
    schedule: Schedule | None = None
    sections: tuple[int, ...] | None = None
    order: str | None = None
    proportion: float | None = None

    def spec(self, layout: str) -> str:
        if self.proportion is not None:
            return new_spec(
                "proportional_rotary",
                partial=None if self.proportion == 0.25 else self.proportion,
                base=None if self.base == 10_000 else self.base,
                layout=None if layout == "half" else layout,
                schedule=self.schedule,
            )
        return rotary_spec(
            head_dim=self.head_dim,
            width=self.width,
            base=self.base,
            layout=layout,
            schedule=self.schedule,
            sections=self.sections,
            order=None if self.order == "chunked" else self.order,
        )


def rope_keys(node: ConfigNode) -> dict[str, Ledger]:
    """Return the dictionaries of rotary parameters by layer type; "" is for all layers."""
    keys = node.keys
    for name in DICTIONARIES:
        value = keys.peek(name)
        if not isinstance(value, dict) or not value:
            continue
        layer_kinds = [key for key, inner in value.items() if isinstance(inner, dict)]
        whole = keys.open(name, position_only=True)
        if name != "rope_scaling":
            keys.note("rope_scaling", f"told by {name}")
        if layer_kinds:
            return {key: whole.open(key, position_only=True) for key in layer_kinds}
        return {"": whole}
    if any(keys.has(name) for name in (*BASES, "rotary_dim", *SHARES)):
        return {"": Ledger({}, keys.name, parent=keys)}
    return {}


def original_length(node: ConfigNode, kind: str, rope: Ledger) -> int | None:
    """Return the trained length that a schedule starts from, inside its dictionary or beside it, or None."""
    key, says = "original_max_position_embeddings", "trained length {} before stretching"
    own_length, outer_length = rope.whole(key, says), None
    if kind in ("llama3", "yarn", "longrope", "su") and rope.name in map(node.keys.path, DICTIONARIES):
        outer_length = node.keys.whole(key, says)
    return outer_length or own_length


def rope_options(node: ConfigNode, rope: Ledger, rotary_dim: int) -> Options | None:
    """Return the options in a dictionary of rotary parameters; None, with a sentence, for an unknown schedule."""
    keys = node.keys
    for name in (*BASES, *LOCAL_BASES, *SHARES):
        if rope.has(key := "partial_rotary_factor" if name in SHARES else "rope_theta"):
            keys.note(name, f"the same as {rope.path(key)}")
    base = rope.number("rope_theta", "base {}") or keys.first(BASES, "base {}") or 10_000.0
    if base < 0:
        raise CannotRead(f"the base of rotary must be positive, got {show_value(base)} from rope_theta or its like")
    if rope.peek("type") == "mrope":
        # This is Qwen's older type for what mrope_section says; transformers adds its own type beside it.
        rope.note("type", "positions on several axes, as mrope_section shares them out")
    names = [name for name in ("rope_type", "type") if rope.peek(name) != "mrope"]
    kind = rope.first(names, "schedule {}", "default", "word") or "default"
    if kind not in ROPE_TYPES and not kind.startswith(OWN_PREFIX):
        node.leave(f"{rope.name}: there is no schedule {kind} here; known are {', '.join(ROPE_TYPES)}")
        return None
    partial = rope.number("partial_rotary_factor", "{} of each head turns")
    if partial is None:
        partial = keys.first(SHARES, "{} of each head turns", 1.0)
    if not 0 <= partial <= 1:
        raise CannotRead(f"{rope.path('partial_rotary_factor')} is a share of a head, from 0 to 1, got {partial:g}")
    width = int(rotary_dim * partial + 1e-9)
    if keys.has("qk_rope_head_dim"):
        # All of these channels rotate, whatever share of the whole head they are.
        width = rotary_dim
    if keys.has("rotary_dim"):
        width = keys.whole("rotary_dim", "{} channels of each head turn")
    where = rope.name or "rotary"
    with possible(where):
        if kind == "proportional":
            factor = rope.number("factor", "factor {}", 1.0)
            linear = Linear(float(factor)) if factor != 1 else None
            return Options(rotary_dim, rotary_dim, base, linear, proportion=partial)
        schedule = read_schedule(node, kind, rope)
    if width % 2 and width < rotary_dim and schedule is None:
        # transformers counts its frequencies in steps of the odd width, and turns a pair more than fit into it.
        base, width = float(base) ** ((width + 1) / width), width + 1
    if isinstance(schedule, LongRoPE):
        for name in ("short_factor", "long_factor"):
            if len(getattr(schedule, name)) != width // 2:
                raise CannotRead(
                    f"{rope.path(name)} must hold a number for each of the {width // 2} pairs, got "
                    f"{len(getattr(schedule, name))}"
                )
    sections = rope.numbers("mrope_section", "pairs of time, height and width {}")
    order = None
    if sections:
        sections = tuple(int(n) for n in sections)
        if rope.has("mrope_interleaved"):
            order = "interleaved" if rope.flag("mrope_interleaved", "axes take turns: {}") else "chunked"
    rope.note("max_position_embeddings", "told by the key of the same name outside")
    rope.note(
        "original_max_position_embeddings",
        f"trained length {rope.peek('original_max_position_embeddings')} before stretching",
    )
    return Options(rotary_dim, width, float(base), schedule, sections, order)


def read_schedule(node: ConfigNode, kind: str, rope: Ledger) -> Schedule | None:
    """Return the schedule of a dictionary of rotary parameters; raises CannotRead if a number is missing."""
    longest = node.first(LENGTHS)
    start = original_length(node, kind, rope) or longest
    if kind in ("default", "axial"):
        return None
    if kind.startswith(OWN_PREFIX):
        return own_schedule(kind, rope, longest)
    if kind == "ntk_alpha" or (kind == "dynamic" and rope.has("alpha")):
        alpha = rope.number("alpha", "factor {} of the base")
        return NTK(float(alpha)) if alpha is not None else None
    factor = rope.number("factor", "factor {}")
    if factor is None and kind in ("yarn", "longrope", "su") and start and longest:
        factor = longest / start
    if factor is None:
        raise CannotRead(f"{rope.name}: the schedule {kind} needs factor, and it is not given")
    factor = float(factor)
    if kind == "linear":
        return Linear(factor)
    if kind == "dynamic":
        return DynamicNTK(factor, longest)
    if kind == "llama3":
        low = rope.number("low_freq_factor", "up to {} turns divided", 1.0)
        high = rope.number("high_freq_factor", "from {} turns kept", 4.0)
        return Llama3(factor, start, float(low), float(high))
    if kind == "yarn":
        return YaRN(
            factor,
            start,
            float(rope.number("beta_fast", "from {} turns kept") or 32),
            float(rope.number("beta_slow", "up to {} turns divided") or 1),
            rope.flag("truncate", "the ramp's ends are whole pairs: {}", True),
            attention_factor=rope.number("attention_factor", "temperature {}"),
            mscale=rope.number("mscale", "temperature rule, above: {}"),
            mscale_all_dim=rope.number("mscale_all_dim", "temperature rule, below: {}"),
        )
    if kind == "ntk":
        # GTE's own code: a number system, or one whose steps grow by a power.
        power = rope.number("mixed_b", "steps grow by the power {}")
        return NTKFixed(factor) if power is None else NTKMixed(factor, float(power))
    return LongRoPE(
        factor,
        rope.numbers("short_factor", "divisors of short sequences {}", ()),
        rope.numbers("long_factor", "divisors of long sequences {}", ()),
        start,
        attention_factor=rope.number("attention_factor", "temperature {}"),
    )


def own_schedule(kind: str, rope: Ledger, length: int | None) -> Schedule:
    """Return the schedule of a rope type that `posenc.register` adds. Raises CannotRead for another one."""
    name = kind.removeprefix(OWN_PREFIX)
    if name not in SCHEDULES:
        raise CannotRead(
            f"{rope.name}: {kind} is no schedule of posenc's; an encoding goes into a live model by attach(model, "
            f"{rope.peek('encoding') or 'spec'!r})"
        )
    schedule = schedule_named(name, {key: rope.take(key, f"{key} {{}}") for key in option_names(name)}, length)
    if schedule.by_horizon:
        raise CannotRead(
            f"{rope.path('horizon')}: all sequences are computed as if they were {rope.peek('horizon')} tokens long, "
            f"which no spec says; give attach the schedule and horizon=..."
        )
    return schedule


def option_names(name: str) -> list[str]:
    """Return the names of a schedule's options, which are keys beside its rope type."""
    return [option.name for option in fields(SCHEDULES.find(name))]


def schedule_named(name: str, options: Mapping[str, Any], length: int | None) -> Schedule:
    """Return a schedule with options from JSON; `length` is the trained length if they have none.

    Raises ValueError for options that the schedule refuses, and CannotRead for code of a file.
    """
    arguments = ", ".join(f"{option}={in_spec(value)}" for option, value in options.items() if value is not None)
    schedule = SCHEDULES.read(f"{name}({arguments})", trusted_files=())
    return schedule if length is None else schedule.with_trained_length(length)


def in_spec(value: object) -> str:
    """Return a JSON value as text of a spec. A string is a word there, or a schedule in a schedule."""
    if isinstance(value, str):
        names_no_code(value)
        return value
    return repr(value)


def layer_options(node: ConfigNode, count: int, options: Mapping[str, Options | None]) -> list[Options | None]:
    """Return the options of each layer by the keys, None without rotary."""
    keys = node.keys
    types = keys.peek("layer_types")
    types = types if isinstance(types, list) and len(types) == count else None
    layers: list[Options | None] = [options.get("", next(iter(options.values()), None))] * count
    if types:
        layers = [None if KEEPS_STATE.search(str(kind)) else option for kind, option in zip(types, layers, strict=True)]
        if "" not in options:
            layers = [options.get(kind) for kind in types]
            keys.note("layer_types", "which kind each layer is of")
    thetas = keys.peek("layer_rope_theta")
    if isinstance(thetas, list) and len(thetas) == count:
        keys.note("layer_rope_theta", "the base of each layer; 0 is no rotary")
        layers = [replace(o, base=float(base)) if o and base else None for o, base in zip(layers, thetas, strict=True)]
    turning = keys.peek("no_rope_layers")
    if isinstance(turning, list) and len(turning) == count:
        keys.note("no_rope_layers", f"layers without rotary: {show_value([i for i, t in enumerate(turning) if not t])}")
        keys.note("no_rope_layer_interval", "every how many layers one has no rotary")
        layers = [option if rotates else None for option, rotates in zip(layers, turning, strict=True)]
    return layers


def rope_parameters(rotary: Encoding) -> dict[str, Any]:
    """Return `rope_parameters` of transformers 5 for a rotary, proportional_rotary or multimodal_rotary.

    The layout is not among them: it belongs to the architecture and the weights. dynamic_ntk takes its trained length
    from `max_position_embeddings`, wherever these parameters are put.

    Raises CannotExpress if transformers has no keys for it.

    >>> from posenc import build, Shape
    >>> rope_parameters(build("rotary(base=500_000, schedule=linear(factor=2))", Shape(64, 1, 64, 1)))
    {'rope_type': 'linear', 'rope_theta': 500000.0, 'factor': 2.0}
    """
    name = rotary.spec_name
    options: dict[str, Any] = spec_options(rotary) if name in WITH_KEYS else {}
    schedule = options.get("schedule")
    keys = schedule_keys(schedule) if options else None
    whole_head = name == "proportional_rotary"
    if (
        keys is None
        or (whole_head and not isinstance(schedule, Linear | None))
        or options.get("order") not in (None, "chunked", "interleaved")
    ):
        raise CannotExpress(f"transformers has no rope_parameters for {shorten_spec(rotary)}")
    kind = keys.pop("rope_type")
    entries = {"rope_type": "proportional" if whole_head else kind, "rope_theta": float(options["base"])}
    if whole_head or options["partial"] != 1:
        entries["partial_rotary_factor"] = float(options["partial"])
    if isinstance(rotary, MultimodalRotary):
        entries["mrope_section"] = list(rotary.sections_in_use)
        entries |= {"mrope_interleaved": True} if rotary.order == "interleaved" else {}
    return entries | keys


def schedule_keys(schedule: Schedule | None) -> dict[str, Any] | None:
    """Return the keys of a schedule; None if transformers has none. Factors are floats, as version 4 demands."""
    if schedule is None:
        return {"rope_type": "default"}
    factor, length_key = {"factor": float(getattr(schedule, "factor", 1))}, "original_max_position_embeddings"
    if isinstance(schedule, Linear):
        return {"rope_type": "linear"} | factor
    if isinstance(schedule, DynamicNTK):
        return {"rope_type": "dynamic"} | factor
    if isinstance(schedule, Llama3):
        ramp = {"low_freq_factor": float(schedule.low), "high_freq_factor": float(schedule.high)}
        return {"rope_type": "llama3"} | factor | ramp | {length_key: schedule.known_length}
    if isinstance(schedule, LongRoPE) and not (schedule.short_mscale or schedule.long_mscale):
        lists = {name: list(getattr(schedule, name)) for name in ("short_factor", "long_factor")}
        keys = {"rope_type": "longrope"} | factor | lists | {length_key: schedule.known_length}
        return keys | ({"attention_factor": schedule.attention_factor} if schedule.attention_factor else {})
    if isinstance(schedule, YaRN) and schedule.ramp == "pairs":
        keys = {"rope_type": "yarn"} | factor | {length_key: schedule.known_length}
        keys |= {"beta_fast": float(schedule.beta_fast), "beta_slow": float(schedule.beta_slow)}
        keys |= {} if schedule.truncate else {"truncate": False}
        if schedule.mscale_rule == "apart":
            return keys | {"attention_factor": schedule.temperature}
        numbers = {name: getattr(schedule, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
        return keys | {name: float(value) for name, value in numbers.items() if value is not None}
    return None
