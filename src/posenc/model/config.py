"""Config: the sizes and options of a transformer, shared by attention, block and model."""

import inspect
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, TypeAlias, TypeVar

from torch import nn

from posenc import checks, kernels
from posenc.encoding.base import Shape
from posenc.tokens import masks

NORMS = ("layer", "rms")
GATED_KINDS = ("swiglu", "geglu", "geglu_tanh")
PARTS_WITH_BIAS = ("q_proj", "k_proj", "v_proj", "o_proj", "feed_forward", "norm", "output")
"""The parts that may have biases."""

FEED_FORWARDS = ("gelu", "gelu_tanh", "relu", "relu2", *GATED_KINDS)
INITS = ("torch", "normal", "gpt2", "small", "xavier")
T = TypeVar("T", bound="ConfiguredModule")

LayerWindow: TypeAlias = int | tuple[int | None, ...] | None
"""How many tokens a layer sees back, or None for all; a tuple is cycled over the layers."""


@dataclass(frozen=True)
class Config:
    """The sizes and options of a transformer; each part reads those that concern it.

    dim        width of the model (channels)
    heads      number of query heads
    layers     number of blocks
    max_len    the trained length (tokens): rows of a learned table, horizon of a schedule; not a limit of the model
    window     tokens that a layer sees back (itself included), or None for all; a tuple is cycled over the layers:
               ("rotary", "rotary", "rotary", "none") with (512, 512, 512, None)
    kv_heads   number of key and value heads, a divisor of `heads` (default: as many; 1 is multi-query attention)
    head_dim   width of one head (channels; default dim / heads)
    intermediate_size   width of the feed-forward layer (channels; default 4 dim, or 8/3 dim where gated)
    feed_forward   "gelu", "relu", "relu2" (its square), or the gated "swiglu" and "geglu"; "gelu_tanh" and "geglu_tanh"
               take the tanh for the error function, as GPT-2 and Gemma do
    norm       "layer" or "rms" (Zhang, Sennrich 2019, arXiv:1910.07467); norm_eps is added before the square root
    norm_first   whether the norms are before attention and feed-forward, or after the sum with them (the original)
    branch_norm   whether the outputs of attention and feed-forward are normed before they are added: with norm_first
               the sandwich of Gemma 2, without it the block of OLMo 2
    parallel_residual   whether all branches read the block's input, not each the sum before it (as in GPT-NeoX);
               with norm_first
    residual_scale   factor of the outputs of attention and feed-forward before they are added (unitless)
    embedding_norm   whether the embeddings are normed before the first block (as in BLOOM)
    qk_norm    whether the queries and the keys of each head are normed, before they are turned (as in Qwen 3), or
               "joined": those of all heads as one vector (as in OLMo 2)
    kernel     "auto", or a name in `posenc.kernels.KERNELS`; a named kernel is never replaced in silence
    scale      factor of the logits (unitless; default head_dim^-1/2; T5 has 1)
    softcap    c: the scaled products s of queries and keys become c tanh(s / c) before biases are added (Gemma 2: 50)
    output_softcap   the same for the logits of a decoder
    init       initial weights: "torch" as PyTorch's layers, "normal" N(0, 0.02), "gpt2" the same, with the last layer
               of a residual branch divided by (2 layers)^1/2, "small" N(0, 2 / (5 dim)) (arXiv:1910.05895) with a last
               layer of N(0, 4 / (layers^2 dim)) (GPT-J's), "xavier" uniform (the original's). Encodings have their own
    dropout    share of the attention weights and of the channels behind each layer that is dropped in training
    bias       whether there are biases, or the parts that have one, of "q_proj", "k_proj", "v_proj", "o_proj",
               "feed_forward", "norm" (a layer norm) and "output" (of a decoder)
    sinks      whether each head has a learned logit without a value in its softmax (0 at first, as softmax off by one)

    Raises ValueError for head counts that do not divide, an unknown norm or kernel, and numbers out of range.

    >>> from posenc import Decoder
    >>> config = Config(dim=32, heads=4, layers=2)
    >>> Decoder(11, config, encoding="alibi").config == Decoder(11, dim=32, heads=4, layers=2).config
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
    intermediate_size: int | None = None
    feed_forward: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    norm_eps: float = 1e-5
    branch_norm: bool = False
    parallel_residual: bool = False
    residual_scale: float = 1.0
    embedding_norm: bool = False
    qk_norm: bool | str = False
    kernel: str = "auto"
    scale: float | None = None
    softcap: float | None = None
    output_softcap: float | None = None
    init: str = "torch"
    dropout: float = 0.0
    bias: bool | tuple[str, ...] = True
    sinks: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            checks.kind(option.name, getattr(self, option.name), option.type)
        self.shape()
        if self.layers < 1:
            raise ValueError(f"a stack needs at least one layer, got {self.layers}")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}")
        if self.norm in ("pre", "post"):
            raise ValueError(f"norm says which norm, and norm_first={self.norm == 'pre'} is what '{self.norm}' was")
        checks.one_of("norm", self.norm, NORMS)
        checks.one_of("feed_forward", self.feed_forward, FEED_FORWARDS)
        checks.one_of("init", self.init, INITS)
        if isinstance(self.qk_norm, str) and self.qk_norm != "joined":
            raise ValueError(f"qk_norm must be True, False or 'joined', got {checks.display(self.qk_norm)}")
        if self.parallel_residual and not self.norm_first:
            raise ValueError("parallel_residual branches read norms of the block's input; set norm_first=True too")
        checks.number("residual_scale", self.residual_scale)
        checks.above("norm_eps", self.norm_eps, 0)
        for name in ("softcap", "output_softcap"):
            if getattr(self, name) is not None:
                checks.above(name, getattr(self, name), 0)
        if not isinstance(self.bias, bool):
            object.__setattr__(self, "bias", tuple(self.bias))
            for part in self.bias:
                checks.one_of("bias", part, PARTS_WITH_BIAS)
        if self.intermediate_size is not None:
            checks.whole("intermediate_size", self.intermediate_size, 1)
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

    def has_bias(self, part: str) -> bool:
        return self.bias if isinstance(self.bias, bool) else part in self.bias

    @property
    def inner(self) -> int:
        """The width of the feed-forward layer (channels)."""
        if self.intermediate_size is not None:
            return self.intermediate_size
        # A gated layer has three matrices, and as many parameters as two of 4 dim.
        return -(-self.dim // 3) * 8 if self.feed_forward in GATED_KINDS else 4 * self.dim

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        cycle = self.window if isinstance(self.window, tuple) else (self.window,)
        return tuple(cycle[layer % len(cycle)] for layer in range(self.layers))

    def shape(self, causal: bool = True) -> Shape:
        """Return the shape that encodings are built for."""
        if self.head_dim is None:
            return Shape.of(self.dim, self.heads, self.max_len, causal)
        return Shape(self.dim, self.heads, self.head_dim, self.max_len, causal)


OPTIONS = frozenset(field.name for field in fields(Config))
"""The names of all options of a Config."""


class ConfiguredModule(checks.ChecksArguments, nn.Module):
    """Base of a module that takes either a Config, as `dim`, or its options one by one."""

    def __new__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Raise ValueError for a Config together with options of a Config, and as ChecksArguments does."""
        module = super().__new__(cls, *args, **kwargs)
        # The constructor of a subclass may use these names for other options.
        if any(isinstance(value, Config) for value in (*args, *kwargs.values())):
            bound = inspect.signature(cls.__init__).bind_partial(module, *args, **kwargs).arguments
            if isinstance(bound.get("dim"), Config) and (extra := (bound.keys() & OPTIONS) - {"dim"}):
                raise ValueError(
                    f"{cls.__name__} takes a Config or its options one by one, got a Config and "
                    f"{', '.join(sorted(extra))}; change it before with dataclasses.replace(config, ...)"
                )
        return module


def config_of(options: Mapping[str, Any]) -> Config:
    """Return the Config that a constructor got in place of `dim`, or one from its options."""
    if isinstance(options["dim"], Config):
        return options["dim"]
    return Config(**{name: value for name, value in options.items() if name in OPTIONS})
