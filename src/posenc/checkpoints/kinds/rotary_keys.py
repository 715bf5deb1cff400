"""Rotary as the keys of transformers say it: every schedule with its parameters, and the keys of a spec."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.catalogue import options_of, parse
from posenc.checkpoints.models.nodes import Node
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.ledger import Ledger, in_words
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import possible, rotary_spec, spec_of
from posenc.schedules import Schedule
from posenc.schedules.dynamic_ntk import DynamicNTK
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.ntk import NTK
from posenc.schedules.yarn import YaRN

PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent")

DICTIONARIES = ("rope_parameters", "rope_scaling")

BASES = ("rope_theta", "rotary_emb_base", "rotary_embedding_base", "global_rope_theta")


@dataclass(frozen=True)
class Options:
    """Rotary as its keys say it, all but the layout."""

    head_dim: int
    width: int
    base: float
    schedule: Schedule | None = None
    sections: tuple[int, ...] | None = None
    order: str | None = None
    proportion: float | None = None

    def spec(self, layout: str) -> str:
        if self.proportion is not None:
            return spec_of(
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


def rope_keys(node: Node) -> dict[str, Ledger]:
    """The dictionaries of rotary parameters by what they are for: "" for all layers, or names of kinds of layers."""
    keys = node.keys
    for name in DICTIONARIES:
        value = keys.peek(name)
        if not isinstance(value, dict) or not value:
            continue
        nested = [key for key, inner in value.items() if isinstance(inner, dict)]
        whole = keys.open(name, everything=True)
        if nested:
            return {key: whole.open(key, everything=True) for key in nested}
        return {"": whole}
    if any(keys.has(name) for name in (*BASES, "rotary_dim", *PARTIAL)):
        return {"": Ledger({}, keys.name, inside=keys)}
    return {}


def trained_before(node: Node, kind: str, rope: Ledger) -> int | None:
    """The trained length that a schedule starts from, or None; one dictionary for all layers may have it beside it."""
    key, says = "original_max_position_embeddings", "trained length {} before stretching"
    inside, outside = rope.whole(key, says), None
    if kind in ("llama3", "yarn", "longrope", "su") and rope.name in map(node.keys.path, DICTIONARIES):
        outside = node.keys.whole(key, says)
    return outside or inside


def rope_options(node: Node, rope: Ledger, turned: int) -> Options:
    """One dictionary of rotary parameters."""
    keys = node.keys
    for name in (*BASES, *PARTIAL):
        if keys.has(name) and rope.has(name):
            keys.say(name, f"the same as {rope.path(name)}")
    base = rope.number("rope_theta", "base {}") or keys.first(BASES, "base {}") or 10_000.0
    kind = rope.first(("rope_type", "type"), "schedule {}", "default", "word")
    partial = rope.number("partial_rotary_factor", "{} of each head turns")
    if partial is None:
        partial = keys.first(PARTIAL, "{} of each head turns", 1.0)
    if not 0 <= partial <= 1:
        raise CannotRead(f"{rope.path('partial_rotary_factor')} is a share of a head, from 0 to 1, got {partial:g}")
    width = int(turned * partial + 1e-9)
    if keys.has("qk_rope_head_dim"):
        # Its channels all turn, whatever share of the whole head they are.
        width = turned
    if keys.has("rotary_dim"):
        width = keys.whole("rotary_dim", "{} channels of each head turn")
    where = rope.name or "rotary"
    with possible(where):
        if kind == "proportional":
            factor = rope.number("factor", "factor {}", 1.0)
            return Options(turned, turned, base, Linear(float(factor)) if factor != 1 else None, proportion=partial)
        schedule = schedule_of(node, kind, rope)
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
        interleaved = rope.flag("mrope_interleaved", "axes take turns: {}")
        order = "interleaved" if interleaved else "chunked"
        sections = tuple(int(n) for n in sections)
    rope.say("max_position_embeddings", "told by the key of the same name outside")
    rope.say(
        "original_max_position_embeddings",
        f"trained length {rope.peek('original_max_position_embeddings')} before stretching",
    )
    return Options(turned, width, float(base), schedule, sections, order)


def schedule_of(node: Node, kind: str, rope: Ledger) -> Schedule | None:
    """The schedule of a dictionary of rotary parameters.

    Raises CannotRead for a kind of which no schedule is known, or without a number that it needs.
    """
    longest = node.first(LENGTHS)
    trained = trained_before(node, kind, rope) or longest
    if kind in ("default", "axial", "mrope") or not kind:
        return None
    if kind == "ntk_alpha" or (kind == "dynamic" and rope.has("alpha")):
        alpha = rope.number("alpha", "factor {} of the base")
        return NTK(float(alpha)) if alpha is not None else None
    factor = rope.number("factor", "factor {}")
    if factor is None and kind in ("yarn", "longrope", "su") and trained and longest:
        factor = longest / trained
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
        return Llama3(factor, trained, float(low), float(high))
    if kind == "yarn":
        return YaRN(
            factor,
            trained,
            float(rope.number("beta_fast", "from {} turns kept") or 32),
            float(rope.number("beta_slow", "up to {} turns divided") or 1),
            rope.flag("truncate", "the ramp's ends are whole pairs: {}", True),
            attention_factor=rope.number("attention_factor", "temperature {}"),
            mscale=rope.number("mscale", "temperature rule, above: {}"),
            mscale_all_dim=rope.number("mscale_all_dim", "temperature rule, below: {}"),
        )
    if kind in ("longrope", "su"):
        return LongRoPE(
            factor,
            rope.numbers("short_factor", "divisors of short sequences {}", ()),
            rope.numbers("long_factor", "divisors of long sequences {}", ()),
            trained,
            attention_factor=rope.number("attention_factor", "temperature {}"),
        )
    raise CannotRead(
        f"{rope.name}: there is no schedule {kind} here; known are default, linear, dynamic, yarn, longrope, llama3, "
        f"proportional, ntk_alpha and axial"
    )


def by_keys(node: Node, count: int, options: Mapping[str, Options]) -> list[Options | None]:
    """What the keys give each layer, None for no rotary."""
    keys = node.keys
    types = keys.peek("layer_types")
    types = types if isinstance(types, list) and len(types) == count else None
    layers: list[Options | None] = [options.get("", next(iter(options.values()), None))] * count
    if "" not in options and types:
        layers = [options.get(kind) for kind in types]
        keys.say("layer_types", "which kind each layer is of")
    thetas = keys.peek("layer_rope_theta")
    if isinstance(thetas, list) and len(thetas) == count:
        keys.say("layer_rope_theta", "the base of each layer; 0 is no rotary")
        layers = [replace(o, base=float(base)) if o and base else None for o, base in zip(layers, thetas, strict=True)]
    turning = keys.peek("no_rope_layers")
    if isinstance(turning, list) and len(turning) == count:
        keys.say("no_rope_layers", f"layers without rotary: {in_words([i for i, on in enumerate(turning) if not on])}")
        keys.say("no_rope_layer_interval", "every how many layers one has no rotary")
        layers = [option if on else None for option, on in zip(layers, turning, strict=True)]
    return layers


def rope_parameters(spec: str, max_len: int | None = None) -> dict[str, Any] | None:
    """`rope_parameters` for a spec of rotary, or None where transformers has no keys for it.

    spec     "rotary", "proportional_rotary" or "multimodal_rotary", with their options
    max_len  the trained length (tokens), for a schedule that is given none

    The layout is not among them: it belongs to the architecture and the weights. dynamic_ntk takes its trained length
    from `max_position_embeddings`, wherever these parameters are put.

    >>> rope_parameters("rotary(base=500_000, schedule=linear(factor=2))")
    {'rope_type': 'linear', 'rope_theta': 500000, 'factor': 2}
    """
    node = parse(spec)
    if node.name not in ("rotary", "proportional_rotary", "multimodal_rotary"):
        return None
    options = {name: p.default for name, p in options_of(node.name).items()} | dict(node.options)
    schedule = options["schedule"]
    out = written_schedule(schedule if schedule is None or not max_len else schedule.with_trained_length(max_len))
    if out is None:
        return None
    kind = out.pop("rope_type")
    written = {"rope_type": kind, "rope_theta": options["base"]}
    if node.name == "proportional_rotary":
        if kind not in ("default", "linear"):
            return None
        return written | {"rope_type": "proportional", "partial_rotary_factor": options["partial"]} | out
    if options["partial"] != 1:
        written["partial_rotary_factor"] = options["partial"]
    if node.name == "multimodal_rotary":
        if options["sections"] is None or options["order"] not in ("chunked", "interleaved"):
            return None
        written["mrope_section"] = list(options["sections"])
        if options["order"] == "interleaved":
            written["mrope_interleaved"] = True
    return written | out


def written_schedule(schedule: Schedule | None) -> dict[str, Any] | None:
    """The keys of a schedule; None where transformers has none for it."""
    if schedule is None:
        return {"rope_type": "default"}
    if isinstance(schedule, Linear):
        return {"rope_type": "linear", "factor": schedule.factor}
    if isinstance(schedule, DynamicNTK):
        return {"rope_type": "dynamic", "factor": schedule.factor}
    if isinstance(schedule, NTK):
        return None
    if isinstance(schedule, Llama3):
        return {
            "rope_type": "llama3",
            "factor": schedule.factor,
            "low_freq_factor": schedule.low,
            "high_freq_factor": schedule.high,
            "original_max_position_embeddings": schedule.known_length,
        }
    if isinstance(schedule, LongRoPE) and not (schedule.short_mscale or schedule.long_mscale):
        out = {
            "rope_type": "longrope",
            "factor": schedule.factor,
            "short_factor": list(schedule.short_factor),
            "long_factor": list(schedule.long_factor),
            "original_max_position_embeddings": schedule.known_length,
        }
        return out | ({"attention_factor": schedule.attention_factor} if schedule.attention_factor else {})
    if isinstance(schedule, YaRN) and schedule.ramp == "pairs":
        out = {
            "rope_type": "yarn",
            "factor": schedule.factor,
            "original_max_position_embeddings": schedule.known_length,
            "beta_fast": schedule.beta_fast,
            "beta_slow": schedule.beta_slow,
        }
        out |= {} if schedule.truncate else {"truncate": False}
        if schedule.mscale_rule == "apart":
            return out | {"attention_factor": schedule.temperature}
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(schedule, name) is not None:
                out[name] = getattr(schedule, name)
        return out
    return None
