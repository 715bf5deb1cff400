"""Read the metadata of GGUF files: their keys and rope tensors, as llama.cpp uses them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc.checkpoints.formats.gguf import architectures as llama_cpp
from posenc.checkpoints.formats.gguf.architectures import TABLES
from posenc.checkpoints.vocabulary.ledger import Ledger, is_list, show_value
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
from posenc.checkpoints.vocabulary.specs import as_whole, new_spec, possible, rotary_spec
from posenc.encoding.base import Shape
from posenc.foreign import bounded_count, matches, quote
from posenc.schedules import Schedule
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE
from posenc.schedules.yarn import YaRN

MOST_BUCKETS = 4_096
"""The most buckets of distances in a file."""

LONGEST_NAME = 64
"""The most letters of an architecture's name."""

STILL = 1e20
"""A pair with this divisor or a larger one does not rotate: Gemma 4 writes 1e30."""


def recognises(metadata: Mapping[str, Any]) -> bool:
    return "general.architecture" in metadata


def read(metadata: Mapping[str, Any]) -> Reading:
    """Read the positions in the metadata of a GGUF file, as llama.cpp takes them.

    metadata  the keys, and the tensors in `TABLES` as lists of numbers by name, as `file.metadata` returns them

    The layout is that of the weights in the file, by its architecture. An architecture of unknown layout gives no part,
    and a sentence in `not_covered`. Raises CannotRead for missing or impossible keys.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or not 0 < len(arch) <= LONGEST_NAME:
        wrong = f"expected a word of at most {LONGEST_NAME} letters, got {'nothing' if arch is None else quote(arch)}"
        raise CannotRead(wrong, field="general.architecture", remedy="inspect a file that llama.cpp loads")
    own_keys = {key: value for key, value in metadata.items() if key.startswith(f"{arch}.") or key in TABLES}
    keys = Ledger({"general.architecture": arch} | own_keys)
    keys.take("general.architecture", "architecture {}")
    parts: tuple[Part, ...] = ()
    if arch not in llama_cpp.ARCHITECTURES and f"{arch}.attention.relative_buckets_count" not in own_keys:
        keys.add_uncovered(f"the architecture {arch}: how llama.cpp lays out its rotary pairs, or whether it has any")
    else:
        parts = MetadataReader(keys, arch).parts()
    sentences = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("gguf", arch, parts, keys.notes, keys.unknown(), *sentences)


class MetadataReader:
    """Reads the keys of one architecture."""

    def __init__(self, keys: Ledger, arch: str) -> None:
        self.keys, self.arch = keys, arch
        self.dim = self.size("embedding_length", "width of the model {}", MOST_CHANNELS)
        self.layers = self.size("block_count", "{} layers", MOST_LAYERS)
        # Extra layers for multi-token prediction.
        self.layers -= self.count("nextn_predict_layers", "{} of them foretell further tokens", self.layers - 1, 0)
        self.length = self.count("context_length", "trained length {} tokens", LONGEST)
        heads = self.largest("attention.head_count", "{} heads")
        kv_heads = self.largest("attention.head_count_kv", "{} key and value heads", heads)
        if keys.peek(self.key("attention.kv_lora_rank")):
            # Latent attention, which newer files describe as llama.cpp computes it: with one head of keys for all.
            kv_heads = heads
        self.heads, self.kv_heads = heads or 1, kv_heads if heads else None
        key_length = self.count("attention.key_length", "{} channels a head", WIDEST_HEAD)
        key_length = self.count("attention.key_length_mla", "{} channels a head", WIDEST_HEAD, key_length)
        self.has_width = heads is not None or key_length is not None
        self.head_dim = key_length or max(self.dim // self.heads, 1)
        usual = arch not in llama_cpp.BIDIRECTIONAL
        self.causal = keys.flag(self.key("attention.causal"), "tokens see only the past: {}", usual)
        self.scale = keys.number(self.key("attention.scale"), "logits are multiplied by {}") or None
        if arch in llama_cpp.UNIT_SCALE and self.scale is None:
            self.scale = 1.0
        if self.layers == llama_cpp.SCALED_BY_WIDTH.get(arch):
            self.scale = (self.dim // self.heads) ** -0.5
        self.remarks: list[str] = []

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def count(self, name: str, says: str, largest: int, default: int | None = None, smallest: int = 0) -> Any:
        """Return a whole number up to `largest`, as memory and time depend on it; 0 counts as None."""
        value = self.keys.whole(self.key(name), says, default)
        if value is None:
            return None
        return bounded_count(value, self.key(name), least=smallest, limit=largest) or default

    def size(self, name: str, says: str, largest: int) -> int:
        """Return the same for a key that must exist."""
        return bounded_count(self.keys.size(self.key(name), says), self.key(name), limit=largest)

    def largest(self, name: str, says: str, default: int | None = None) -> int | None:
        """Return a number of heads, of all layers the largest; 0 counts as None."""
        counts = self.keys.peek(self.key(name))
        if not is_list(counts) or not counts:
            return self.count(name, says, MOST_HEADS, default)
        self.keys.numbers(self.key(name), f"{name.rpartition('.')[2]} of each layer: {{}}")
        if len(set(counts) - {0}) > 1 and self.arch not in llama_cpp.WINDOWED_FIRST:
            self.keys.add_uncovered(f"{self.key(name)} differs from layer to layer; the largest stands for all")
        return bounded_count(max(int(max(counts)), 1), self.key(name), limit=MOST_HEADS)

    def parts(self) -> tuple[Part, ...]:
        if self.keys.has(self.key("attention.relative_buckets_count")):
            return () if self.lacks_heads(slopes=True) else self.relative()
        embed, tables, per_layer = "none", {}, [self.plain("none", None)] * self.layers
        limit = self.keys.number(self.key("attention.max_alibi_bias"), "ALiBi's last slope is 2 to the -{}") or 0
        usual = 8.0 if self.arch == "baichuan" and self.layers == 40 else 0
        limit = limit or llama_cpp.ALIBI.get(self.arch, 0) or usual
        if self.lacks_heads(slopes=bool(limit)):
            return ()
        if limit:
            per_layer = [self.plain(new_spec("alibi", bias_max=None if limit == 8 else limit), None)] * self.layers
            if self.keys.has(self.key("rope.freq_base")) or self.keys.has(self.key("rope.dimension_count")):
                self.keys.contradict(f"{self.arch} has ALiBi, and its file has keys of rotary; followed: ALiBi")
        elif self.arch in llama_cpp.LEARNED:
            if self.length is None:
                raise CannotRead(f"{self.key('context_length')} is missing; it says how many rows the table has")
            embed = new_spec("learned", max_len=self.length)
            tables = {"position_embd.weight": (self.length, self.dim)}
        elif self.arch in llama_cpp.RECURRENT:
            per_layer = [replace(self.plain("none", None), attends=False)] * self.layers
            self.remarks.append("its layers are recurrent, and read no position")
        elif not self.turns():
            if self.keys.has(self.key("attention.kv_lora_rank")):
                width = self.count("rope.dimension_count", "{} channels that would turn", WIDEST_HEAD, self.head_dim)
                per_layer = [self.plain("none", None, width)] * self.layers
            for name in ("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"):
                self.keys.note(self.key(name), "its layers turn nothing")
        else:
            per_layer = self.rotary()
            if self.arch in llama_cpp.WINDOWED_FIRST:
                per_layer = self.with_rows(per_layer)
        if stateful_layers := self.without_attention():
            alone = Layer("none", per_layer[0].head_dim, None, None, attends=False)
            per_layer = [alone if index in stateful_layers else layer for index, layer in enumerate(per_layer)]
            self.remarks.append(f"layers {show_value(stateful_layers)} do not attend")
        part = Part("", self.shape(), tuple(per_layer), self.kv_heads, self.length, embed, tables, tuple(self.remarks))
        with possible(f"the rotary keys of {self.arch}"):
            for layer in {(layer.spec, layer.head_dim): index for index, layer in enumerate(per_layer)}.values():
                part.encoding(layer)
        return (part,)

    def lacks_heads(self, *, slopes: bool) -> bool:
        """Whether the file lacks heads: for slopes their number, for rotary their width."""
        turns = self.arch not in llama_cpp.LEARNED | llama_cpp.RECURRENT | llama_cpp.WITHOUT_ROTARY
        lacking = self.kv_heads is None if slopes else turns and not self.has_width
        if lacking:
            self.keys.add_uncovered(f"how many heads there are: {self.key('attention.head_count')} is missing")
        return lacking

    def turns(self) -> bool:
        """Whether any layer has rotary."""
        if self.arch in llama_cpp.ROTARY_BY_KEY:
            return bool(self.keys.flag(self.key("rope.scaling.finetuned"), "its layers have rotary: {}", True))
        return self.arch not in llama_cpp.WITHOUT_ROTARY

    def without_attention(self) -> list[int]:
        """Return the layers without attention: they have no keys, or lie between those that attend."""
        kv_heads = self.keys.entries.get(self.key("attention.head_count_kv"))
        usual = llama_cpp.ATTENDS_EVERY.get(self.arch)
        interval = self.count("full_attention_interval", "every {}-th layer attends", MOST_LAYERS, usual)
        head_counts = kv_heads[: self.layers] if is_list(kv_heads) else []
        return [i for i in range(self.layers) if (interval and (i + 1) % interval) or head_counts[i : i + 1] == [0]]

    def shape(self) -> Shape:
        return Shape(self.dim, self.heads, self.head_dim, self.length or 1, self.causal)

    def plain(self, spec: str, window: int | None, head_dim: int | None = None) -> Layer:
        return Layer(spec, head_dim or self.head_dim, window, self.scale)

    def relative(self) -> tuple[Part, ...]:
        """Return T5's parts: buckets of distances in an encoder and, except t5encoder, in a decoder; scale 1."""
        buckets = self.size("attention.relative_buckets_count", "{} buckets of distances", MOST_BUCKETS)
        decoder_layers = self.count("decoder_block_count", "{} layers in the decoder", MOST_LAYERS, self.layers)
        stacks = [("encoder", self.layers, False), ("decoder", decoder_layers, True)]
        if self.arch == "t5encoder":
            stacks = [("", self.layers, False)]
        parts = []
        for name, layer_count, causal in stacks:
            spec = new_spec("t5_bias", buckets=buckets, max_distance=128, causal=causal)
            shape = Shape(self.dim, self.heads, self.head_dim, self.length or 1, causal)
            layers = (Layer(spec, self.head_dim, None, self.scale or 1.0),) * layer_count
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
        layout = "interleaved" if self.arch in llama_cpp.INTERLEAVED else "half"
        sections, order = self.sections(width)
        if sections is not None:
            layout = "half"
        options: dict[str, Any] = {"layout": layout, "sections": sections, "order": order}
        windows = self.windows()
        with possible(f"{self.key('rope')}"):
            schedule, share = self.schedule(width, base)
            if share is None:
                spec = rotary_spec(head_dim=head_dim, width=width, base=base, schedule=schedule, **options)
            else:
                spec = new_spec("proportional_rotary", partial=share, base=base)
            local, local_dim = self.local(spec, width, base, head_dim, schedule, options)
        if latent and isinstance(schedule, YaRN) and self.scale is None:
            self.scale = schedule.scale_factor / math.sqrt(self.head_dim)
        temperature = self.temperature()
        no_rotary_every = llama_cpp.NO_ROTARY_EVERY.get(self.arch)
        chunk = llama_cpp.CHUNK.get(self.arch)
        if self.arch == "llama4" and keys.peek(self.key("attention.sliding_window")) == 0:
            no_rotary_every = chunk = None
        layers = []
        for index, window in enumerate(windows):
            here, dim = (spec, head_dim) if window is None else (local, local_dim)
            rotates = not (no_rotary_every and (index + 1) % no_rotary_every == 0)
            if not rotates:
                here = "step_temperature(interval=8192, form='llama4')" if self.arch == "llama4" else "none"
            elif self.arch in llama_cpp.ONLY_IN_WINDOWS and window is None and any(windows):
                here = "none"
            elif temperature:
                here = f"{here} + {temperature}"
            layers.append(replace(self.plain(here, window, dim), chunk=chunk if rotates else None))
        return layers

    def with_rows(self, layers: list[Layer]) -> list[Layer]:
        """Return the layers with the rows of their queries and keys; the model's heads are those of some."""
        counts = self.keys.entries.get(self.key("attention.head_count_kv"))
        kv_heads = counts if is_list(counts) else [self.kv_heads or self.heads] * len(layers)
        if len(kv_heads) < len(layers):
            raise CannotRead(
                f"{self.key('attention.head_count_kv')} must have one entry for each of {len(layers)} layers, got "
                f"{len(kv_heads)}"
            )
        for layer, kv_count in zip(layers, kv_heads, strict=False):
            if bool(layer.window) is llama_cpp.WINDOWED_FIRST[self.arch]:
                self.head_dim, self.kv_heads = layer.head_dim, kv_count
        return [
            replace(layer, rows=(self.heads * layer.head_dim, kv_count * layer.head_dim))
            for layer, kv_count in zip(layers, kv_heads, strict=False)
        ]

    def sections(self, width: int) -> tuple[tuple[int, ...] | None, str | None]:
        """Return the pairs of time, height and width, and their order, in architectures with M-RoPE."""
        pairs = self.keys.numbers(self.key("rope.dimension_sections"), "pairs for time, height and width: {}")
        order = llama_cpp.MULTIMODAL.get(self.arch)
        if pairs is None:
            if order is not None:
                raise CannotRead(f"{self.key('rope.dimension_sections')} is missing; it says which pairs each axis has")
            return None, None
        if len(pairs) > 3 and any(pairs[3:]):
            self.keys.add_uncovered(f"the fourth axis of {self.key('rope.dimension_sections')}")
        return tuple(map(int, pairs[:3])), None if order in (None, "chunked") else order

    def windows(self) -> list[int | None]:
        """Return the window of each layer (tokens)."""
        size = self.count("attention.sliding_window", "a window of {} tokens", LONGEST)
        pattern = self.keys.take(self.key("attention.sliding_window_pattern"), "which layers have it: {}")
        matches(pattern, (None, int, [(bool, int)]), field=self.key("attention.sliding_window_pattern"))
        if not size:
            return [None] * self.layers
        if self.arch in llama_cpp.BOTH_WAYS:
            size = size // 2 + 1
        if self.arch == "modern-bert":
            # Here the first of these layers has no window, not the last.
            interval = pattern if isinstance(pattern, int) and pattern > 0 else 3
            return [size if index % interval else None for index in range(self.layers)]
        if self.arch == "llama4":
            return [None] * self.layers
        if is_list(pattern):
            if len(pattern) < self.layers:
                raise CannotRead(
                    f"{self.key('attention.sliding_window_pattern')} must have one entry for each of {self.layers} "
                    f"layers, got {len(pattern)}"
                )
            return [size if local else None for local in pattern[: self.layers]]
        if self.arch in llama_cpp.WINDOW_IN_ALL:
            self.remarks.append("llama.cpp itself attends without the window")
            return [size] * self.layers
        interval = pattern or llama_cpp.WINDOW_EVERY.get(self.arch)
        if interval is None:
            key = self.key("attention.sliding_window")
            self.keys.add_uncovered(f"{key}: no key says which layers of {self.arch} have it")
            return [None] * self.layers
        return [size if (index + 1) % interval else None for index in range(self.layers)]

    def local(
        self, spec: str, width: int, base: float, head_dim: int, schedule: Schedule | None, options: dict[str, Any]
    ) -> tuple[str, int]:
        """Return the rotary spec of layers with a window, and their head dimension."""
        keys = self.keys
        says = "{} channels a head in layers with a window"
        dim = self.count("attention.key_length_swa", says, WIDEST_HEAD, head_dim)
        usual = width if dim == head_dim else dim
        rotary_dim = self.count("rope.dimension_count_swa", "{} of them are turned there", WIDEST_HEAD, usual)
        usual = llama_cpp.LOCAL_BASE.get(self.arch, base)
        local_base = keys.number(self.key("rope.freq_base_swa"), "rotary base {} in layers with a window", usual)
        plain = self.arch in llama_cpp.PLAIN_IN_WINDOWS or "proportional" in spec
        if (dim, rotary_dim, local_base) == (head_dim, width, base) and not plain:
            return spec, dim
        local_schedule = None if plain else schedule
        return rotary_spec(head_dim=dim, width=rotary_dim, base=local_base, schedule=local_schedule, **options), dim

    def temperature(self) -> str | None:
        """Return the spec of Ministral's temperature, which all layers have, or None."""
        strength = self.keys.number(self.key("attention.temperature_scale"), "the strength of the temperature is {}")
        interval = self.count("attention.temperature_length", "its steps are {} tokens long", LONGEST)
        start = interval or self.keys.peek(self.key("rope.scaling.original_context_length"))
        if not strength or not start or self.arch not in ("mistral3", "mistral4", "deepseek2"):
            return None
        return new_spec("step_temperature", interval=start, strength=round(strength, 6), form="ministral")

    def schedule(self, width: int, base: float) -> tuple[Schedule | None, float | None]:
        """Return the schedule, and the share of pairs that rotate, None for all."""
        keys = self.keys
        kind = keys.word(self.key("rope.scaling.type"), "schedule {}", "linear")
        factor = keys.number(self.key("rope.scaling.factor"), "stretched by {}")
        older = keys.number(self.key("rope.scale_linear"), "stretched by {}")
        factor = as_whole(factor or older or 1)
        start = self.count("rope.scaling.original_context_length", "stretched from {} trained tokens", LONGEST)
        if self.arch not in llama_cpp.ROTARY_BY_KEY:
            keys.flag(self.key("rope.scaling.finetuned"), "trained on after stretching: {}")
        warmth = keys.number(self.key("rope.scaling.attn_factor"), "cosines and sines are multiplied by {}", 1.0)
        tables = {name: self.divisors(name, width) for name in TABLES}
        short, long = tables["rope_factors_short.weight"], tables["rope_factors_long.weight"]
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise CannotRead(
                f"{self.key('rope.scaling.type')} must be none, linear, yarn or longrope, got {quote(kind)}"
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
        table = self.keys.numbers(name, "each pair's frequency is divided by its own number: {}")
        if table is not None and len(table) != width // 2:
            raise CannotRead(f"{name} must have a number for each of the {width // 2} turned pairs, got {len(table)}")
        return table

    def longrope(self, short: tuple[float, ...], long: tuple[float, ...], start: int | None, warmth: float) -> LongRoPE:
        start = start or self.length
        if start is None or self.length is None:
            raise CannotRead(f"{self.key('context_length')} is missing, from which LongRoPE knows its factor")
        short, long = (tuple(float(f"{divisor:.7g}") for divisor in divisors) for divisors in (short, long))
        usual = LongRoPE(as_whole(max(self.length / start, 1)), short, long, start)
        if math.isclose(usual.temperatures()[0], warmth, rel_tol=1e-6):
            return usual
        return LongRoPE(usual.factor, short, long, start, attention_factor=float(f"{warmth:.7g}"))

    def yarn(self, factor: float, start: int | None, warmth: float) -> YaRN:
        """Return llama.cpp's YaRN. The ends of its ramp are whole pairs, and mscale is 1 beside a log multiplier.

        In deepseek2 the file has a tenth of the multiplier, which is mscale and mscale_all_dim.
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
            multiplier = as_whole(round(multiplier, 6))
            mscale = multiplier if self.arch == "deepseek2" and multiplier != 1 else 1
        length = start or self.length
        if length is None:
            raise CannotRead(f"{self.key('rope.scaling.original_context_length')} is missing, which YaRN starts from")
        rounds_ramp = self.arch not in llama_cpp.UNROUNDED_RAMP
        if not rounds_ramp:
            self.remarks.append("llama.cpp itself rounds the ends of YaRN's ramp")
        of_ramp: Any = (factor, length, as_whole(fast), as_whole(slow), rounds_ramp)
        schedule = YaRN(*of_ramp, mscale=mscale, mscale_all_dim=multiplier)
        if math.isclose(warmth, 1, rel_tol=1e-6):
            return schedule
        return YaRN(*of_ramp, attention_factor=float(f"{schedule.temperature * warmth:.7g}"))

    def of_divisors(
        self, divisors: tuple[float, ...], width: int, base: float, start: int | None
    ) -> tuple[Schedule | None, float | None]:
        """Return the schedule of some divisors, and the share of pairs that rotate.

        It is Llama 3's if that fits, else a list: the file has only the divisors, not the numbers of the schedule.
        """
        if any(divisor >= STILL for divisor in divisors):
            turning = sum(divisor < STILL for divisor in divisors)
            if any(d != 1 for d in divisors[:turning]) or any(d < STILL for d in divisors[turning:]):
                raise CannotRead("rope_freqs stops pairs that are not the slowest, or stretches others: no spec does")
            return None, turning / len(divisors)
        plain = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        factor = as_whole(float(f"{max(divisors):.6g}"))
        if factor >= 1:
            for length in dict.fromkeys((8192, start or 8192, self.length or 8192)):
                for high in (4, 1):
                    guess = Llama3(factor, length, high=high)
                    expected = plain / guess(plain, base=base, width=width)[0]
                    if torch.allclose(expected, torch.tensor(divisors, dtype=torch.float64), rtol=1e-5, atol=0):
                        self.keys.note("rope_freqs.weight", f"a divisor for each pair: those of {guess!r}")
                        return guess, None
        short_divisors = tuple(float(f"{divisor:.7g}") for divisor in divisors)
        return LongRoPE(1, short_divisors, short_divisors, max(start or self.length or 2, 2)), None
