"""How large a transformer is: every size and option of its layers, said once for attention, block and model."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from inspect import Parameter, Signature
from typing import Any, TypeAlias

from posenc import checks, kernels, masks
from posenc.encoding import Shape
from posenc.foreign import near

NORMS = ("pre", "post")

LayerWindow: TypeAlias = int | tuple[int | None, ...] | None
"""How many tokens a layer sees back, or None for all; a tuple is cycled over the layers."""


@dataclass(frozen=True)
class Sizes:
    """What the parts of a transformer agree on; each part reads what concerns it.

    dim        width of the model (channels)
    heads      number of query heads
    layers     number of blocks
    max_len    the trained length (tokens): rows of a learned table, horizon of a schedule; not a limit of the model
    window     tokens that a layer sees back (itself included), or None for all; a tuple is cycled over the layers:
               ("rotary", "rotary", "rotary", "none") with (512, 512, 512, None)
    kv_heads   number of key and value heads, a divisor of `heads` (default: as many; 1 is multi-query attention)
    head_dim   width of one head (channels; default dim / heads)
    hidden     width of the feed-forward layer (channels; default 4 dim)
    norm       where the layer norms are: "pre" (before attention and feed-forward) or "post" (after them, the original)
    kernel     "auto", or a name in `posenc.kernels.KERNELS`; a named kernel is never replaced in silence
    scale      factor of the logits (unitless; default head_dim^-1/2; T5 has 1)
    dropout    share of the attention weights and of the channels behind each layer that is dropped in training
    bias       whether the four projections of attention have biases
    sinks      whether each head has a learned logit without a value in its softmax (0 at first, as softmax off by one)

    Raises ValueError for head counts that do not divide, an unknown norm or kernel, and numbers out of range.

    >>> from posenc import Decoder
    >>> sizes = Sizes(dim=32, heads=4, layers=2)
    >>> Decoder(11, sizes, encoding="alibi").sizes == Decoder(11, dim=32, heads=4, layers=2).sizes
    True
    """

    dim: int = 512
    heads: int = 8
    layers: int = 6
    _: KW_ONLY
    max_len: int = 2048
    window: LayerWindow = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    norm: str = "pre"
    kernel: str = "auto"
    scale: float | None = None
    dropout: float = 0.0
    bias: bool = True
    sinks: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            checks.kind(one.name, getattr(self, one.name), one.type)
        self.shape()
        if self.layers < 1:
            raise ValueError(f"a stack needs at least one layer, got {self.layers}")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}")
        if self.norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {checks.shown(self.norm)}")
        if self.hidden is not None:
            checks.whole("hidden", self.hidden, 1)
        if self.scale is not None:
            checks.number("scale", self.scale)
        checks.share("dropout", self.dropout)
        kernels.check_name(self.kernel)
        if isinstance(self.window, list):
            object.__setattr__(self, "window", tuple(self.window))
        if self.window == ():
            raise ValueError("window needs at least one size or None for the layers, got an empty tuple")
        for size in self.windows:
            if size is not None:
                masks.window(size)  # refuses a wrong size

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        cycle = self.window if isinstance(self.window, tuple) else (self.window,)
        return tuple(cycle[layer % len(cycle)] for layer in range(self.layers))

    def shape(self, causal: bool = True) -> Shape:
        """What encodings are built for."""
        if self.head_dim is None:
            return Shape.of(self.dim, self.heads, self.max_len, causal)
        return Shape(self.dim, self.heads, self.head_dim, self.max_len, causal)


def takes_sizes(*without: str, **instead: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor that is written with `sizes: Sizes` be called with them one by one as well.

    without   the fields that such a module does not have
    instead   defaults of its own, where its sizes are given one by one

    `Decoder(11, dim=32)` is then `Decoder(11, Sizes(dim=32))`, and `Decoder(11, sizes, dim=32)` changes one of them.
    The signature names each, for help and completion.

    Raises TypeError for an option that the module does not have, and names the nearest.
    """
    options = {
        name: parameter.replace(default=instead.get(name, parameter.default))
        for name, parameter in inspect.signature(Sizes).parameters.items()
        if name not in without
    }

    def decorate(construct: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(construct).parameters.values())
        place = [parameter.name for parameter in own].index("sizes")
        together = Signature([*own, *(option.replace(kind=Parameter.KEYWORD_ONLY) for option in options.values())])
        flat = [*own[:place], *options.values(), *own[place + 1 :]]
        one_by_one = Signature(sorted(flat, key=lambda parameter: parameter.kind))

        @functools.wraps(construct)
        def constructor(self: object, *given: Any, **named: Any) -> None:
            whole = "sizes" in named or any(isinstance(one, Sizes) for one in given)
            signature = together if whole else one_by_one
            for name in named:
                if name not in signature.parameters:
                    kind, known = type(self).__name__, list(one_by_one.parameters)[1:]
                    raise TypeError(f"{kind} has no option '{name}'{near(name, known) or f'; see help({kind})'}")
            bound = signature.bind(self, *given, **named).arguments
            chosen = {name: bound.pop(name) for name in options if name in bound}
            if whole:
                checks.kind("sizes", bound["sizes"], Sizes)
                bound["sizes"] = replace(bound["sizes"], **chosen)
            else:
                bound["sizes"] = Sizes(**(instead | chosen))
            construct(**bound)

        vars(constructor)["__signature__"] = one_by_one
        return constructor

    return decorate
