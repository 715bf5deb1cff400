"""What a checkpoint says of positions: a Reading of parts, and of each part the layers, as specs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.foreign import CannotRead as CannotRead
from posenc.foreign import quoted
from posenc.specs.syntax import files_in

# What a file may claim of a model, some ten times what the largest has: tables and loops are made by these numbers.
MOST_LAYERS = 1_000
MOST_HEADS = 4_096
WIDEST_HEAD = 1 << 16
MOST_CHANNELS = 1 << 20
LONGEST = 1 << 40
"""The largest counts of layers and heads, widths in channels of a head and of a model, and length in tokens."""

UNHEARD = "no layer that transformers builds of it does so"
"""What is said of a key that names an encoding, in a contradiction."""


@dataclass(frozen=True)
class Layer:
    """How position enters one layer.

    spec        the encoding, as a spec; "none" where the layer has none
    head_dim    the channels of a head that the encoding is given: the rotary part alone in latent attention (MLA)
    window      it sees keys fewer than so many tokens away, itself among them, or None for all
    scale       factor of the logits where it is not 1/sqrt(channels of a head)
    chunk       it sees the keys of its own chunk of so many tokens alone, or None
    attends     whether it attends at all: others mix tokens by a state, a convolution, or not
    rows        of the weights that make queries and keys, where the modules of a layer say so; else empty
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
        """All distances that it meets are below so many tokens: by its window, by its chunk, or inf."""
        return min(self.window or math.inf, self.chunk or math.inf)

    def __post_init__(self) -> None:
        names_no_code(self.spec)


@dataclass(frozen=True)
class Part:
    """One stack of a model that has positions of its own: the decoder, a vision tower.

    name            where it stands in the config: "" for the whole, else a path such as "text_config"
    shape           its width, heads, channels of a head, trained length (1 where it has none), and whether it is causal
    layers          one entry for each layer
    kv_heads        number of key and value heads, or None where nothing says how many heads there are: the shape has 1
    trained_length  tokens, or None where neither the config nor a table says so
    embed           the spec of what is added to the embeddings, or "none": door 1 belongs to the part, not to a layer
    tables          the shapes of learned position tables, by the name of the tensor, where they are known
    besides         what the part does about position that no spec says, in sentences
    known           whether specs say all that was seen of its position code; else "none" means that it is not known
    """

    name: str
    shape: Shape
    layers: tuple[Layer, ...]
    kv_heads: int | None
    trained_length: int | None = None
    embed: str = "none"
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    known: bool = True

    def __post_init__(self) -> None:
        names_no_code(self.embed)

    def encoding(self, layer: int) -> Encoding:
        """The encoding of a layer, built."""
        of = self.layers[layer]
        shape = Shape(self.shape.dim, self.shape.heads, of.head_dim, self.shape.max_len, self.shape.causal)
        return build(of.spec, shape)


@dataclass(frozen=True)
class Reading:
    """What was understood of a checkpoint, what was not, and what contradicts itself.

    format          "transformers", "meta" or "gguf"
    architecture    what the checkpoint calls itself: "llama", "LlamaForCausalLM"
    parts           the stacks that have positions; empty where nothing could be read
    understood      key -> what it was taken to say, for every key that has to do with position
    unknown         key -> value, for keys that speak of position and that were not understood
    contradictions  sentences: which keys, or keys and tensors, cannot both be right, and which one was followed
    not_covered     sentences: what the model does about position that no spec here says
    """

    format: str
    architecture: str
    parts: tuple[Part, ...]
    understood: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


def with_part(reading: Reading, old: Part, new: Part) -> Reading:
    """The reading with one of its parts replaced."""
    return replace(reading, parts=tuple(new if part is old else part for part in reading.parts))


def names_no_code(spec: str) -> None:
    """Raises CannotRead for a spec with a file of somebody's own: a checkpoint never says what is run."""
    if files := files_in(spec):
        raise CannotRead(f"it asks for code from the file {quoted(files[0])}, and none is run that a checkpoint names")
