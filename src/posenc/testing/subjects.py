"""The subject of a test: encodings with their sizes, the small network around them, and its inputs."""

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from posenc import kernels
from posenc.cache import LayerCache
from posenc.catalogue import ENCODINGS, build, build_layers, find
from posenc.encoding.base import Compose, Encoding, Shape
from posenc.encoding.chosen_heads import OnHeads
from posenc.model.attention import Attention
from posenc.model.seeding import local_seed
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions, positions_for
from posenc.tokens.shared_tables import KEPT_WINDOWS

SHAPE = Shape(dim=15, heads=3, head_dim=6, max_len=21)
"""The default shape: odd sizes, and a width that is not heads times head_dim, so that no size can stand for another."""

TOKENS, LONG = 9, 47
"""Sequence lengths (tokens). LONG exceeds the trained length and, with small options, every reach about five times."""

FAR = (0, 1, 2, 4, 7, 12, 40, 333, 5000)
"""Positions whose distances exceed the reach of any encoding with usual options."""

Factory: TypeAlias = Callable[[Shape], Encoding]
Source: TypeAlias = "str | type[Encoding] | Factory | tuple[str | type[Encoding] | Factory, ...]"


@dataclass(frozen=True)
class Subject:
    """A recipe that builds the encoding under test afresh for a shape.

    encoding  a spec, an Encoding class (its constructor arguments are filled from the shape by name), a factory
              `shape -> Encoding`, or a tuple of these, one for each layer of a stack
    shape     the model it is built for; an encoding must serve its max_len and may refuse more with ValueError
    name      its name in verdicts and test reports
    """

    encoding: Any
    shape: Shape = SHAPE
    name: str = ""

    def __post_init__(self) -> None:
        parts = self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)
        for part in parts:
            if isinstance(part, Encoding) or not (isinstance(part, str) or callable(part)):
                raise ValueError(
                    f"a subject is built afresh for each promise: give a spec, an Encoding class, a factory "
                    f"(shape -> Encoding) or a tuple of them, got {part!r}"
                )
        if not parts:
            raise ValueError("a subject needs at least one encoding, got an empty tuple")
        if not self.name:
            words = [part if isinstance(part, str) else getattr(part, "__name__", str(part)) for part in parts]
            object.__setattr__(self, "name", " | ".join(words))

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_source(cls, source: "Subject | Source") -> "Subject":
        return source if isinstance(source, Subject) else cls(source)

    def build(self, shape: Shape | None = None) -> tuple[list[Encoding], list[Encoding]]:
        """Return the encodings that the model owns, and the encoding of each layer."""
        shape = self.shape if shape is None else shape
        parts = self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)
        if all(isinstance(part, str) for part in parts):
            return build_layers(parts, shape, len(parts))
        encodings = [build(part, shape) if isinstance(part, str) else make(part, shape) for part in parts]
        return encodings, encodings

    @property
    def axes(self) -> int:
        """The number of coordinates that its positions need; 1 for a sequence."""
        return max(1, *(encoding.axes for encoding in self.build()[1]))

    def net(self, *, perturb: bool = True, shape: Shape | None = None, seed: int = 1, **options: Any) -> "Net":
        """Return a small float64 network; `perturb` moves parameters off their initial zeros, which hide errors."""
        with local_seed(seed):
            shape = self.shape if shape is None else shape
            net = Net(*self.build(shape), shape, **options).double()
            if perturb:
                with torch.no_grad():
                    for encoding in net.encodings:
                        for parameter in encoding.parameters():
                            parameter += 0.3 * torch.randn_like(parameter)
            return net.eval()

    def encodings(self) -> list[Encoding]:
        """Return the single encodings inside, without sums and choices of heads."""
        return [single for encoding in self.build()[0] for single in singles(encoding)]

    def serves(self, at: Positions) -> bool:
        """Return whether the encoding accepts these positions; past max_len it may refuse with a ValueError."""
        try:
            self.net()(embeddings(self, at.tokens), at)
        except ValueError:
            return False
        return True

    @property
    def reach(self) -> int:
        """The longest sequence in tests (tokens): LONG, or max_len if the encoding refuses more."""
        return LONG if self.serves(arange(LONG)) else self.shape.max_len


@contextmanager
def empty_table_cache() -> Generator[None]:
    """Empty the process's table cache, and restore it at the end."""
    saved_tables = dict(KEPT_WINDOWS)
    KEPT_WINDOWS.clear()
    try:
        yield
    finally:
        KEPT_WINDOWS.clear()
        KEPT_WINDOWS.update(saved_tables)


class Net(nn.Module):
    """The smallest model around an encoding: embed once, then attention with a residual in each layer."""

    def __init__(
        self,
        encodings: list[Encoding],
        layer_encodings: list[Encoding],
        shape: Shape,
        *,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)
        self.layer_encodings, self.shape = tuple(layer_encodings), shape
        self.axes = max(1, *(encoding.axes for encoding in layer_encodings))
        self.layers = nn.ModuleList(
            Attention(shape.dim, shape.heads, head_dim=shape.head_dim, kv_heads=kv_heads, scale=scale, encoding=None)
            for _ in layer_encodings
        )
        for layer in self.attentions:
            # Tests run causal and bidirectional masks, whatever an encoding is built for.
            layer.has_warned = True

    def without_kept_tables(self) -> "Net":
        """Return this network with an empty table cache, as in a fresh process."""
        vars(self)["forward"] = empty_table_cache()(self.forward)
        return self

    @property
    def attentions(self) -> list[Attention]:
        return cast(list[Attention], list(self.layers))

    @property
    def kernels(self) -> list[str]:
        """The kernels that serve these encodings with gradients, the reference kernel first."""
        q = torch.empty(1, self.shape.heads, 1, self.shape.head_dim, dtype=torch.float64, requires_grad=True)

        def serves(name: str) -> bool:
            return all(kernels.why_not(name, encoding, q=q) is None for encoding in self.layer_encodings)

        with torch.enable_grad():
            return sorted(filter(serves, kernels.KERNELS), key=lambda name: name != "reference")

    def set_kernel(self, kernel: str) -> "Net":
        """Return this network after setting the kernel of each layer by name."""
        for layer in self.attentions:
            layer.kernel = kernel
        return self

    def add_positions(self, x: Tensor, at: Positions) -> Tensor:
        for encoding in cast(list[Encoding], list(self.encodings)):
            x = encoding.embed(x, at)
        return x

    def forward(
        self,
        x: Tensor,
        at: Positions | None = None,
        mask: Mask | Tensor | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Tensor:
        at = on_axes(positions_for(x.shape[1], at, device=x.device), self.axes)
        x = self.add_positions(x, at)
        for index, (layer, encoding) in enumerate(zip(self.attentions, self.layer_encodings, strict=True)):
            cache = None if caches is None else caches[index]
            x = x + layer(x, positions=at, mask=mask, cache=cache, encoding=encoding)
        return x

    def cross_attend(self, x: Tensor, at: Positions, keys_x: Tensor, keys_at: Positions, mask: Mask) -> Tensor:
        """Return the output for queries of x, with keys and values from another sequence."""
        at, keys_at = on_axes(at, self.axes), on_axes(keys_at, self.axes)
        x, keys_x = self.add_positions(x, at), self.add_positions(keys_x, keys_at)
        for layer, encoding in zip(self.attentions, self.layer_encodings, strict=True):
            x = x + layer(x, keys_x, positions=at, key_positions=keys_at, mask=mask, encoding=encoding)
        return x


def make(source: "type[Encoding] | Factory", shape: Shape, **options: Any) -> Encoding:
    """Build an encoding from a class, its arguments filled from the shape by name, or from a factory."""
    if not (inspect.isclass(source) and issubclass(source, Encoding)):
        encoding = source(shape)
        if not isinstance(encoding, Encoding):
            raise ValueError(f"a factory gives an Encoding, got {type(encoding).__name__}")
        return encoding
    parameters = inspect.signature(source.__init__).parameters
    arguments = {name: value for name, value in shape.options.items() if name in parameters}
    if source.wraps:
        arguments["encoding"] = build(source.wraps[0], shape)
    return source(**arguments | options)


def singles(encoding: Encoding) -> list[Encoding]:
    """Return the single encodings in a sum, a choice of heads or a wrapper (with it). A single one gives itself."""
    if isinstance(encoding, Compose):
        return [single for part in encoding.parts for single in singles(part)]
    if isinstance(encoding, OnHeads):
        return singles(encoding.encoding)
    return [encoding, *(singles(cast(Any, encoding).encoding) if encoding.wraps else [])]


def is_in_catalogue(cls: type[Encoding]) -> bool:
    """Return whether the catalogue finds the class, by its name or by path/to/file.py:Class."""
    return (ENCODINGS.knows(cls.spec_name) or ":" in cls.spec_name) and find(cls.spec_name) is cls


def chooses_heads(subject: Subject) -> bool:
    """Return whether a part applies to chosen heads only, which grouped key heads may not allow."""
    return any(isinstance(module, OnHeads) for encoding in subject.build()[0] for module in encoding.modules())


def embeddings(subject: Subject, T: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    """Return random embeddings [batch, T, dim], float64; a longer sequence does not begin with a shorter one."""
    with local_seed(100 + seed):
        return torch.randn(batch, T, subject.shape.dim, dtype=torch.float64)


def arange(T: int, start: int = 0) -> Positions:
    """Return positions from `start` on, with the horizon of all tests, so that cut sequences agree."""
    return Positions.count(T, start).with_horizon(max(LONG, start + T))


def far_enough(at: Positions) -> Positions:
    """Return the same positions with the horizon that `arange` declares."""
    return at.with_horizon(LONG)


def far_positions(subject: Subject) -> Positions:
    """Return positions beyond every encoding's reach, or up to max_len if the encoding refuses more."""
    far = Positions.of(torch.tensor(FAR)).with_horizon(FAR[-1] + 1)
    if subject.serves(far):
        return far
    last = subject.shape.max_len - 1
    return Positions.of(torch.tensor([min(p, last) for p in FAR])).with_horizon(last + 1)


def some_positions(subject: Subject) -> Iterator[tuple[str, Positions]]:
    """Yield named positions of nine tokens: consecutive, later, fractional, unordered, different per row, far."""
    last = subject.shape.max_len - 1
    yield "counted", arange(TOKENS)
    yield "counted from the middle", arange(TOKENS, subject.shape.max_len - TOKENS)
    fractional = torch.tensor([0.0, 0.5, 1.25, 2.0, 3.75, 6.5, 7.0, 11.125, last - 0.5], dtype=torch.float64)
    yield "fractional", Positions.of(fractional).with_horizon(LONG)
    in_rows = torch.stack((torch.arange(TOKENS).flip(0), torch.arange(TOKENS) * last // (TOKENS - 1)))
    yield "different in each row", Positions.of(in_rows).with_horizon(LONG)
    yield "far", far_positions(subject)
    two_horizons = Positions.of(torch.arange(TOKENS).repeat(2, 1)).with_horizon(torch.tensor([LONG, 3 * LONG]))
    yield "with two horizons", two_horizons


def on_axes(at: Positions, axes: int) -> Positions:
    """Return the same tokens on several axes, each a fixed function of the one coordinate."""
    if axes == 1 or at.axes != 1:
        return at
    # Other strides on every axis, and short enough for tables of the trained length.
    further = [at.coords * (2 * axis + 1) % (2 * axis + 5) for axis in range(1, axes)]
    return at.with_coords(torch.cat((at.coords, *further), -1))


def run_chunks(
    net: Net, x: Tensor, at: Positions, cuts: Sequence[int], mask: Mask, cache: Callable[[], LayerCache]
) -> Tensor:
    """Return the network's output for chunks of the sizes `cuts`, with a cache per layer."""
    caches, outputs, start = [cache() for _ in net.layers], [], 0
    for n in cuts:
        # Contiguous positions stay contiguous, as a caller would pass them; others are sliced.
        rows = slice(start, start + n)
        chunk = Positions.count(n, start).with_facts(horizon=at.horizon) if at.contiguous else at.rows(rows)
        outputs.append(net(x[:, rows], chunk, mask, caches))
        start += n
    return torch.cat(outputs, 1)


def with_gradients(net: Net, x: Tensor, at: Positions, mask: Mask, *, rows: Tensor | None = None) -> dict[str, Tensor]:
    """Return the output, and the gradients of a loss in x and every parameter. `rows` selects the loss's tokens."""
    x = x.clone().requires_grad_()
    output = net(x, at, mask)
    # The loss is a sum over tokens, so that other tokens do not enter a token's gradient.
    loss = output.tanh() if rows is None else output.tanh() * rows[..., None]
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss.sum(), [x, *parameters.values()], allow_unused=True)
    slopes = {f"gradient of {name}": g for name, g in zip(("x", *parameters), gradients, strict=True) if g is not None}
    return {"output": output.detach(), **slopes}


def mask_name(mask: Mask) -> str:
    return "window" if mask.window else "causal" if mask.causal else "bidirectional"
