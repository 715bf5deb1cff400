"""The metadata of GGUF files: what llama.cpp makes of their keys, and of their rope tensors."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc.checkpoints.formats.gguf import architectures as known
from posenc.checkpoints.formats.gguf.architectures import TABLES
from posenc.checkpoints.vocabulary.ledger import Ledger, in_words, is_list
from posenc.checkpoints.vocabulary.reading import (
    LONGEST,
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    WIDEST_HEAD,
    CannotRead,
    Layer,
    Part,
    Reading,
)
from posenc.checkpoints.vocabulary.specs import possible, rotary_spec, spec_of, whole
from posenc.encoding.base import Shape
from posenc.foreign import count, matches, quoted
from posenc.schedules import Schedule
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.yarn import YaRN

MOST_BUCKETS = 4_096
"""The buckets of distances that a file may claim."""

LONGEST_NAME = 64
"""The letters of an architecture's name."""

STILL = 1e20
"""A divisor from which a pair stands still: Gemma 4 writes 1e30."""


def is_it(given: Mapping[str, Any]) -> bool:
    return "general.architecture" in given


def read(given: Mapping[str, Any]) -> Reading:
    """What the metadata of a GGUF file say of positions, as llama.cpp takes them.

    given   the keys, and beside them the tensors in `TABLES` as lists of numbers under their names, as `metadata`
            gives them

    The layout is that of the weights in the file, told by the architecture. An architecture of no known layout gives
    no part, and a sentence in `not_covered`. Raises CannotRead for keys that are missing or cannot be.
    """
    arch = given.get("general.architecture")
    if not isinstance(arch, str) or not 0 < len(arch) <= LONGEST_NAME:
        wrong = f"expected a word of at most {LONGEST_NAME} letters, got {'nothing' if arch is None else quoted(arch)}"
        raise CannotRead(wrong, field="general.architecture", remedy="inspect a file that llama.cpp loads")
    own = {key: value for key, value in given.items() if key.startswith(f"{arch}.") or key in TABLES}
    keys = Ledger({"general.architecture": arch} | own)
    keys.take("general.architecture", "architecture {}")
    parts: tuple[Part, ...] = ()
    if arch not in known.KNOWN and f"{arch}.attention.relative_buckets_count" not in own:
        keys.leave(f"the architecture {arch}: how llama.cpp lays out its rotary pairs, or whether it has any")
    else:
        parts = Reader(keys, arch).parts()
    told = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("gguf", arch, parts, keys.understood, keys.unknown(), *told)


class Reader:
    """The keys of one architecture, and what they make together."""

    def __init__(self, keys: Ledger, arch: str) -> None:
        self.keys, self.arch = keys, arch
        self.dim = self.size("embedding_length", "width of the model {}", MOST_CHANNELS)
        self.layers = self.size("block_count", "{} layers", MOST_LAYERS)
        # Layers behind the model's own, which foretell tokens further ahead.
        self.layers -= self.count("nextn_predict_layers", "{} of them foretell further tokens", self.layers - 1, 0)
        self.length = self.count("context_length", "trained length {} tokens", LONGEST)
        heads = self.largest("attention.head_count", "{} heads")
        kv_heads = self.largest("attention.head_count_kv", "{} key and value heads", heads)
        if keys.peek(self.key("attention.kv_lora_rank")):
            # Latent attention, which newer files describe as llama.cpp computes it: with one head of keys for all.
            kv_heads = heads
        self.heads, self.kv_heads = heads or 1, kv_heads if heads else None
        own = self.count("attention.key_length", "{} channels a head", WIDEST_HEAD)
        own = self.count("attention.key_length_mla", "{} channels a head", WIDEST_HEAD, own)
        self.sized = heads is not None or own is not None
        self.head_dim = own or max(self.dim // self.heads, 1)
        usual = arch not in known.BIDIRECTIONAL
        self.causal = keys.flag(self.key("attention.causal"), "tokens see only the past: {}", usual)
        self.scale = keys.number(self.key("attention.scale"), "logits are multiplied by {}") or None
        if arch in known.UNSCALED and self.scale is None:
            self.scale = 1.0
        if self.layers == known.SCALED_BY_WIDTH.get(arch):
            self.scale = (self.dim // self.heads) ** -0.5
        self.besides: list[str] = []

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def count(self, name: str, says: str, most: int, default: int | None = None, least: int = 0) -> Any:
        """A whole number up to `most` by which something is made or looped over; 0 is as good as none."""
        value = self.keys.whole(self.key(name), says, default)
        return value if value is None else count(value, self.key(name), least=least, most=most) or default

    def size(self, name: str, says: str, most: int) -> int:
        """The same where it has to be there."""
        return count(self.keys.size(self.key(name), says), self.key(name), most=most)

    def largest(self, name: str, says: str, default: int | None = None) -> int | None:
        """A number of heads, which some architectures give for each layer; then the largest, 0 being none at all."""
        given = self.keys.peek(self.key(name))
        if not is_list(given) or not given:
            return self.count(name, says, MOST_HEADS, default)
        self.keys.numbers(self.key(name), f"{name.rpartition('.')[2]} of each layer: {{}}")
        if len(set(given) - {0}) > 1 and self.arch not in known.WINDOWED_FIRST:
            self.keys.leave(f"{self.key(name)} differs from layer to layer; the largest stands for all")
        return count(max(int(max(given)), 1), self.key(name), most=MOST_HEADS)

    def parts(self) -> tuple[Part, ...]:
        if self.keys.has(self.key("attention.relative_buckets_count")):
            return () if self.lacks_heads(slopes=True) else self.relative()
        embed, tables, per_layer = "none", {}, [self.plain("none", None)] * self.layers
        limit = self.keys.number(self.key("attention.max_alibi_bias"), "ALiBi's last slope is 2 to the -{}") or 0
        limit = limit or known.ALIBI.get(self.arch, 0) or (8.0 if self.arch == "baichuan" and self.layers == 40 else 0)
        if self.lacks_heads(slopes=bool(limit)):
            return ()
        if limit:
            per_layer = [self.plain(spec_of("alibi", bias_max=None if limit == 8 else limit), None)] * self.layers
            if self.keys.has(self.key("rope.freq_base")) or self.keys.has(self.key("rope.dimension_count")):
                self.keys.contradict(f"{self.arch} has ALiBi, and its file has keys of rotary; followed: ALiBi")
        elif self.arch in known.LEARNED:
            if self.length is None:
                raise CannotRead(f"{self.key('context_length')} is missing; it says how many rows the table has")
            embed = spec_of("learned", max_len=self.length)
            tables = {"position_embd.weight": (self.length, self.dim)}
        elif self.arch in known.RECURRENT:
            per_layer = [replace(self.plain("none", None), attends=False)] * self.layers
            self.besides.append("its layers are recurrent, and read no position")
        elif not self.turns():
            if self.keys.has(self.key("attention.kv_lora_rank")):
                width = self.count("rope.dimension_count", "{} channels that would turn", WIDEST_HEAD, self.head_dim)
                per_layer = [self.plain("none", None, width)] * self.layers
            for name in ("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"):
                self.keys.say(self.key(name), "its layers turn nothing")
        else:
            per_layer = self.rotary()
            if self.arch in known.WINDOWED_FIRST:
                per_layer = self.with_rows(per_layer)
        if without := self.without_attention():
            alone = Layer("none", per_layer[0].head_dim, None, None, attends=False)
            per_layer = [alone if index in without else layer for index, layer in enumerate(per_layer)]
            self.besides.append(f"layers {in_words(without)} do not attend")
        part = Part("", self.shape(), tuple(per_layer), self.kv_heads, self.length, embed, tables, tuple(self.besides))
        with possible(f"the rotary keys of {self.arch}"):
            for layer in {(layer.spec, layer.head_dim): index for index, layer in enumerate(per_layer)}.values():
                part.encoding(layer)
        return (part,)

    def lacks_heads(self, *, slopes: bool) -> bool:
        """Whether heads that the file does not say would be needed: for slopes their number, for rotary their width."""
        turns = self.arch not in known.LEARNED | known.RECURRENT | known.WITHOUT_ROTARY
        lacking = self.kv_heads is None if slopes else turns and not self.sized
        if lacking:
            self.keys.leave(f"how many heads there are: {self.key('attention.head_count')} is missing")
        return lacking

    def turns(self) -> bool:
        """Whether any layer has rotary."""
        if self.arch in known.ROTARY_BY_KEY:
            return bool(self.keys.flag(self.key("rope.scaling.finetuned"), "its layers have rotary: {}", True))
        return self.arch not in known.WITHOUT_ROTARY

    def without_attention(self) -> list[int]:
        """The layers that mix tokens by something else: they have no keys, or come between those that attend."""
        kv_heads = self.keys.given.get(self.key("attention.head_count_kv"))
        usual = known.ATTENDS_EVERY.get(self.arch)
        every = self.count("full_attention_interval", "every {}-th layer attends", MOST_LAYERS, usual)
        without = kv_heads[: self.layers] if is_list(kv_heads) else []
        return [i for i in range(self.layers) if (every and (i + 1) % every) or without[i : i + 1] == [0]]

    def shape(self) -> Shape:
        return Shape(self.dim, self.heads, self.head_dim, self.length or 1, self.causal)

    def plain(self, spec: str, window: int | None, head_dim: int | None = None) -> Layer:
        return Layer(spec, head_dim or self.head_dim, window, self.scale)

    def relative(self) -> tuple[Part, ...]:
        """T5: buckets of distances, in an encoder and, but for t5encoder, in a decoder; scale 1."""
        buckets = self.size("attention.relative_buckets_count", "{} buckets of distances", MOST_BUCKETS)
        below = self.count("decoder_block_count", "{} layers in the decoder", MOST_LAYERS, self.layers)
        stacks = [("encoder", self.layers, False), ("decoder", below, True)]
        if self.arch == "t5encoder":
            stacks = [("", self.layers, False)]
        parts = []
        for name, many, causal in stacks:
            spec = spec_of("t5_bias", buckets=buckets, max_distance=128, causal=causal)
            shape = Shape(self.dim, self.heads, self.head_dim, self.length or 1, causal)
            layers = (Layer(spec, self.head_dim, None, self.scale or 1.0),) * many
            parts.append(Part(name, shape, layers, self.kv_heads, self.length))
            with possible("attention.relative_buckets_count"):
                parts[-1].encoding(0)
        return tuple(parts)

    def rotary(self) -> list[Layer]:
        keys = self.keys
        latent = keys.has(self.key("attention.kv_lora_rank"))
        width = self.count("rope.dimension_count", "{} channels of a head are turned", WIDEST_HEAD, self.head_dim)
        if width % 2:
            raise CannotRead(
                f"expected an even number of channels, which turn in pairs, got {width}",
                field=self.key("rope.dimension_count"),
            )
        base = keys.number(self.key("rope.freq_base"), "rotary base {}", 10_000)
        head_dim = width if latent else self.head_dim
        layout = "interleaved" if self.arch in known.INTERLEAVED else "half"
        sections, order = self.sections(width)
        if sections is not None:
            layout = "half"
        shared: dict[str, Any] = {"layout": layout, "sections": sections, "order": order}
        windows = self.windows()
        with possible(f"{self.key('rope')}"):
            schedule, share = self.schedule(width, base)
            if share is None:
                spec = rotary_spec(head_dim=head_dim, width=width, base=base, schedule=schedule, **shared)
            else:
                spec = spec_of("proportional_rotary", partial=share, base=base)
            local, local_dim = self.local(spec, width, base, head_dim, schedule, shared)
        if latent and isinstance(schedule, YaRN) and self.scale is None:
            self.scale = schedule.scale_factor / math.sqrt(self.head_dim)
        temperature = self.temperature()
        without = known.NO_ROTARY_EVERY.get(self.arch)
        chunk = known.CHUNK.get(self.arch)
        if self.arch == "llama4" and keys.peek(self.key("attention.sliding_window")) == 0:
            without = chunk = None
        out = []
        for index, window in enumerate(windows):
            here, dim = (spec, head_dim) if window is None else (local, local_dim)
            turned = not (without and (index + 1) % without == 0)
            if not turned:
                here = "step_temperature(interval=8192, form='llama4')" if self.arch == "llama4" else "none"
            elif self.arch in known.ONLY_IN_WINDOWS and window is None and any(windows):
                here = "none"
            elif temperature:
                here = f"{here} + {temperature}"
            out.append(replace(self.plain(here, window, dim), chunk=chunk if turned else None))
        return out

    def with_rows(self, layers: list[Layer]) -> list[Layer]:
        """The layers with the rows that make their queries and keys; the heads of the whole are those of some."""
        given = self.keys.given.get(self.key("attention.head_count_kv"))
        kv_heads = given if is_list(given) else [self.kv_heads or self.heads] * len(layers)
        if len(kv_heads) < len(layers):
            raise CannotRead(
                f"{self.key('attention.head_count_kv')} must have one entry for each of {len(layers)} layers, got "
                f"{len(kv_heads)}"
            )
        for layer, many in zip(layers, kv_heads, strict=False):
            if bool(layer.window) is known.WINDOWED_FIRST[self.arch]:
                self.head_dim, self.kv_heads = layer.head_dim, many
        return [
            replace(layer, rows=(self.heads * layer.head_dim, many * layer.head_dim))
            for layer, many in zip(layers, kv_heads, strict=False)
        ]

    def sections(self, width: int) -> tuple[tuple[int, ...] | None, str | None]:
        """The pairs of time, height and width, where the architecture has M-RoPE."""
        given = self.keys.numbers(self.key("rope.dimension_sections"), "pairs for time, height and width: {}")
        order = known.MULTIMODAL.get(self.arch)
        if given is None:
            if order is not None:
                raise CannotRead(f"{self.key('rope.dimension_sections')} is missing; it says which pairs each axis has")
            return None, None
        if len(given) > 3 and any(given[3:]):
            self.keys.leave(f"the fourth axis of {self.key('rope.dimension_sections')}")
        return tuple(map(int, given[:3])), None if order in (None, "chunked") else order

    def windows(self) -> list[int | None]:
        """For each layer how many tokens it sees back."""
        size = self.count("attention.sliding_window", "a window of {} tokens", LONGEST)
        given = self.keys.take(self.key("attention.sliding_window_pattern"), "which layers have it: {}")
        matches(given, (None, int, [(bool, int)]), field=self.key("attention.sliding_window_pattern"))
        if not size:
            return [None] * self.layers
        if self.arch in known.BOTH_WAYS:
            size = size // 2 + 1
        if self.arch == "modern-bert":
            # Here the first of so many layers sees everything, not the last.
            every = given if isinstance(given, int) and given > 0 else 3
            return [size if index % every else None for index in range(self.layers)]
        if self.arch == "llama4":
            return [None] * self.layers
        if is_list(given):
            if len(given) < self.layers:
                raise CannotRead(
                    f"{self.key('attention.sliding_window_pattern')} must have one entry for each of {self.layers} "
                    f"layers, got {len(given)}"
                )
            return [size if local else None for local in given[: self.layers]]
        if self.arch in known.WINDOW_IN_ALL:
            self.besides.append("llama.cpp itself attends without the window")
            return [size] * self.layers
        every = given or known.WINDOW_EVERY.get(self.arch)
        if every is None:
            self.keys.leave(f"{self.key('attention.sliding_window')}: no key says which layers of {self.arch} have it")
            return [None] * self.layers
        return [size if (index + 1) % every else None for index in range(self.layers)]

    def local(
        self, spec: str, width: int, base: float, head_dim: int, schedule: Schedule | None, shared: dict[str, Any]
    ) -> tuple[str, int]:
        """The rotary of layers with a window, and the channels of their heads."""
        keys = self.keys
        says = "{} channels a head in layers with a window"
        dim = self.count("attention.key_length_swa", says, WIDEST_HEAD, head_dim)
        usual = width if dim == head_dim else dim
        turned = self.count("rope.dimension_count_swa", "{} of them are turned there", WIDEST_HEAD, usual)
        usual = known.LOCAL_BASE.get(self.arch, base)
        own = keys.number(self.key("rope.freq_base_swa"), "rotary base {} in layers with a window", usual)
        plain = self.arch in known.PLAIN_IN_WINDOWS or "proportional" in spec
        if (dim, turned, own) == (head_dim, width, base) and not plain:
            return spec, dim
        kept = None if plain else schedule
        return rotary_spec(head_dim=dim, width=turned, base=own, schedule=kept, **shared), dim

    def temperature(self) -> str | None:
        """Ministral's temperature, which all layers have."""
        strength = self.keys.number(self.key("attention.temperature_scale"), "the strength of the temperature is {}")
        interval = self.count("attention.temperature_length", "its steps are {} tokens long", LONGEST)
        start = interval or self.keys.peek(self.key("rope.scaling.original_context_length"))
        if not strength or not start or self.arch not in ("mistral3", "mistral4", "deepseek2"):
            return None
        return spec_of("step_temperature", interval=start, strength=round(strength, 6), form="ministral")

    def schedule(self, width: int, base: float) -> tuple[Schedule | None, float | None]:
        """The schedule, and the share of pairs that turn where the others stand still."""
        keys = self.keys
        kind = keys.word(self.key("rope.scaling.type"), "schedule {}", "linear")
        factor = keys.number(self.key("rope.scaling.factor"), "stretched by {}")
        older = keys.number(self.key("rope.scale_linear"), "stretched by {}")
        factor = whole(factor or older or 1)
        start = self.count("rope.scaling.original_context_length", "stretched from {} trained tokens", LONGEST)
        if self.arch not in known.ROTARY_BY_KEY:
            keys.flag(self.key("rope.scaling.finetuned"), "trained on after stretching: {}")
        warmth = keys.number(self.key("rope.scaling.attn_factor"), "cosines and sines are multiplied by {}", 1.0)
        tables = {name: self.divisors(name, width) for name in TABLES}
        short, long = tables["rope_factors_short.weight"], tables["rope_factors_long.weight"]
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise CannotRead(
                f"{self.key('rope.scaling.type')} must be none, linear, yarn or longrope, got {quoted(kind)}"
            )
        if short and long:
            return self.longrope(short, long, start, warmth), None
        if kind == "longrope":
            raise CannotRead(
                f"{self.key('rope.scaling.type')} is longrope, and the tensors rope_factors_short and "
                "rope_factors_long are missing; give them beside the keys, or inspect the file itself"
            )
        if kind == "yarn":
            return self.yarn(factor, start, warmth), None
        if divisors := tables["rope_freqs.weight"]:
            if factor != 1 and kind == "linear":
                raise CannotRead(
                    f"two schedules at once have no spec here: rope_freqs and {self.key('rope.scaling.factor')}"
                )
            return self.of_divisors(divisors, width, base, start)
        return (None if kind == "none" or factor == 1 else Linear(factor)), None

    def divisors(self, name: str, width: int) -> tuple[float, ...] | None:
        given = self.keys.numbers(name, "each pair's frequency is divided by its own number: {}")
        if given is not None and len(given) != width // 2:
            raise CannotRead(f"{name} must have a number for each of the {width // 2} turned pairs, got {len(given)}")
        return given

    def longrope(self, short: tuple[float, ...], long: tuple[float, ...], start: int | None, warmth: float) -> LongRoPE:
        start = start or self.length
        if start is None or self.length is None:
            raise CannotRead(f"{self.key('context_length')} is missing, from which LongRoPE knows its factor")
        short, long = (tuple(float(f"{one:.7g}") for one in each) for each in (short, long))
        usual = LongRoPE(whole(max(self.length / start, 1)), short, long, start)
        if math.isclose(usual.temperatures()[0], warmth, rel_tol=1e-6):
            return usual
        return LongRoPE(usual.factor, short, long, start, attention_factor=float(f"{warmth:.7g}"))

    def yarn(self, factor: float, start: int | None, warmth: float) -> YaRN:
        """YaRN as llama.cpp has it: the ends of its ramp are whole pairs, and mscale is 1 beside a log multiplier.

        In deepseek2 the multiplier was written a tenth as large, and stands for mscale and mscale_all_dim.
        """
        keys = self.keys
        fast = keys.number(self.key("rope.scaling.yarn_beta_fast"), "pairs that turn {} times are kept", 32)
        slow = keys.number(self.key("rope.scaling.yarn_beta_slow"), "pairs that turn {} times are stretched", 1)
        warmth *= keys.number(self.key("rope.scaling.yarn_attn_factor"), "cosines and sines are multiplied by {}", 1.0)
        mix = keys.number(self.key("rope.scaling.yarn_ext_factor"), "how much of the ramp is used: {}", 1.0)
        multiplier = keys.number(self.key("rope.scaling.yarn_log_multiplier"), "YaRN's mscale_all_dim {}") or None
        if mix != 1:
            raise CannotRead(f"{self.key('rope.scaling.yarn_ext_factor')} must be 1, got {mix}; no spec mixes less")
        mscale = None
        if multiplier is not None:
            if self.arch == "deepseek2":
                multiplier = round(multiplier * 10, 6)
            multiplier = whole(round(multiplier, 6))
            mscale = multiplier if self.arch == "deepseek2" and multiplier != 1 else 1
        length = start or self.length
        if length is None:
            raise CannotRead(f"{self.key('rope.scaling.original_context_length')} is missing, which YaRN starts from")
        rounded = self.arch not in known.UNROUNDED_RAMP
        if not rounded:
            self.besides.append("llama.cpp itself rounds the ends of YaRN's ramp")
        of_ramp: Any = (factor, length, whole(fast), whole(slow), rounded)
        found = YaRN(*of_ramp, mscale=mscale, mscale_all_dim=multiplier)
        if math.isclose(warmth, 1, rel_tol=1e-6):
            return found
        return YaRN(*of_ramp, attention_factor=float(f"{found.temperature * warmth:.7g}"))

    def of_divisors(
        self, divisors: tuple[float, ...], width: int, base: float, start: int | None
    ) -> tuple[Schedule | None, float | None]:
        """What a divisor for each pair says: Llama 3's schedule where it fits one, pairs that stand still, or a list.

        The file keeps the divisors and not the numbers that they came from.
        """
        if any(one >= STILL for one in divisors):
            turning = sum(one < STILL for one in divisors)
            if any(one != 1 for one in divisors[:turning]) or any(one < STILL for one in divisors[turning:]):
                raise CannotRead("rope_freqs stops pairs that are not the slowest, or stretches others: no spec does")
            return None, turning / len(divisors)
        plain = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        factor = whole(float(f"{max(divisors):.6g}"))
        if factor >= 1:
            for length in dict.fromkeys((8192, start or 8192, self.length or 8192)):
                for high in (4, 1):
                    guess = Llama3(factor, length, high=high)
                    made = plain / guess(plain, base=base, width=width)[0]
                    if torch.allclose(made, torch.tensor(divisors, dtype=torch.float64), rtol=1e-5, atol=0):
                        self.keys.say("rope_freqs.weight", f"a divisor for each pair: those of {guess!r}")
                        return guess, None
        same = tuple(float(f"{one:.7g}") for one in divisors)
        return LongRoPE(1, same, same, max(start or self.length or 2, 2)), None
