"""The positions of a checkpoint: a Reading has parts, a part has layers with specs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.foreign import CannotRead as CannotRead
from posenc.foreign import quote
from posenc.specs.syntax import code_files

# Bounds of a model in a file, some ten times the largest one: tables and loops depend on these numbers.
MOST_LAYERS = 1_000
MOST_HEADS = 4_096
WIDEST_HEAD = 1 << 16
MOST_CHANNELS = 1 << 20
LONGEST = 1 << 40
"""The largest counts of layers and heads, widths in channels of a head and of a model, and length in tokens."""

UNHEARD = "no layer that transformers builds of it does so"
"""End of a contradiction about a key that names an encoding."""


@dataclass(frozen=True)
class Layer:
    """How position enters one layer.

    spec        the encoding, as a spec; "none" without one
    head_dim    the channels of a head that the encoding gets: only the rotary part in latent attention (MLA)
    window      a query sees keys fewer than so many tokens away, its own among them; None for all
    scale       factor of the logits if it is not 1/sqrt(channels of a head)
    chunk       a query sees only keys of its own chunk of so many tokens, or None
    attends     whether it attends at all: others mix tokens by a state, a convolution, or not
    rows        of the weights of queries and keys, if the layer has separate modules; else empty
    """

    spec: str
    head_dim: int
    window: int | None = None
    scale: float | None = None
    chunk: int | None = None
    attends: bool = True
    rows: tuple[int, ...] = ()

    @property
    def reach(self) -> float:
        """The bound of all distances (tokens): its window, its chunk, or inf."""
        return min(self.window or math.inf, self.chunk or math.inf)

    def __post_init__(self) -> None:
        names_no_code(self.spec)


@dataclass(frozen=True)
class Part:
    """One stack of a model that has positions of its own: the decoder, a vision tower.

    name            its path in the config: "" for the whole, else such as "text_config"
    shape           width, heads, channels of a head, trained length (1 if unknown), and whether it is causal
    layers          one entry for each layer
    kv_heads        number of key and value heads, or None for an unknown number of heads: the shape has 1
    trained_length  tokens, or None if neither the config nor a table says so
    embed           the spec of what is added to the embeddings, or "none": it belongs to the part, not to a layer
    tables          the shapes of learned position tables, by the name of the tensor, if known
    remarks         position code of the part that no spec covers, in sentences
    is_complete     whether specs cover all position code that was found; else "none" means unknown
    """

    name: str
    shape: Shape
    layers: tuple[Layer, ...]
    kv_heads: int | None
    trained_length: int | None = None
    embed: str = "none"
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    is_complete: bool = True

    def __post_init__(self) -> None:
        names_no_code(self.embed)

    def encoding(self, layer: int) -> Encoding:
        """Return the encoding of a layer, built."""
        entry = self.layers[layer]
        shape = Shape(self.shape.dim, self.shape.heads, entry.head_dim, self.shape.max_len, self.shape.causal)
        return build(entry.spec, shape)


@dataclass(frozen=True)
class Reading:
    """The positions of a checkpoint, the keys behind them, and its contradictions.

    format          "transformers", "meta" or "gguf"
    architecture    what the checkpoint calls itself: "llama", "LlamaForCausalLM"
    parts           the stacks that have positions; empty if nothing could be read
    understood      key -> its meaning, for every key about position that was read
    unknown         key -> value, for keys about position that were not understood
    contradictions  sentences: which keys, or keys and tensors, contradict each other, and which one was followed
    not_covered     sentences: position code of the model that no spec covers
    """

    format: str
    architecture: str
    parts: tuple[Part, ...]
    understood: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


def with_part(reading: Reading, old: Part, new: Part) -> Reading:
    """Return the reading with one of its parts replaced."""
    return replace(reading, parts=tuple(new if part is old else part for part in reading.parts))


def names_no_code(spec: str) -> None:
    """Raise CannotRead for a spec with a file: a checkpoint never chooses code."""
    if files := code_files(spec):
        raise CannotRead(f"it asks for code from the file {quote(files[0])}, and none is run that a checkpoint names")
