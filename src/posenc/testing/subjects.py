"""What is put to the test: encodings with their sizes, the small network around them, and its inputs."""

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
from posenc.model.seeding import seeded
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions, positions_for
from posenc.tokens.shared_tables import KEPT

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
    """What is put to the test: how to build a fresh encoding for a shape.

    encoding  a spec, an Encoding class (its constructor arguments are filled from the shape by name), a factory
              `shape -> Encoding`, or a tuple of these, one for each layer of a stack
    shape     the model it is built for; its max_len must be served, past it an encoding may refuse with ValueError
    name      what verdicts and test reports call it
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
    def of(cls, given: "Subject | Source") -> "Subject":
        return given if isinstance(given, Subject) else cls(given)

    def build(self, shape: Shape | None = None) -> tuple[list[Encoding], list[Encoding]]:
        """The encodings to own, and the one that each layer uses."""
        shape = self.shape if shape is None else shape
        parts = self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)
        if all(isinstance(part, str) for part in parts):
            return build_layers(parts, shape, len(parts))
        made = [build(part, shape) if isinstance(part, str) else make(part, shape) for part in parts]
        return made, made

    @property
    def axes(self) -> int:
        """How many coordinates its positions need; 1 where a sequence will do."""
        return max(1, *(encoding.axes for encoding in self.build()[1]))

    def net(self, *, perturbed: bool = True, shape: Shape | None = None, seed: int = 1, **options: Any) -> "Net":
        """A small network around fresh encodings, in float64. `perturbed` moves parameters off their initial values,
        because a table of zeros would agree with anything."""
        with seeded(seed):
            shape = self.shape if shape is None else shape
            net = Net(*self.build(shape), shape, **options).double()
            if perturbed:
                with torch.no_grad():
                    for encoding in net.encodings:
                        for parameter in encoding.parameters():
                            parameter += 0.3 * torch.randn_like(parameter)
            return net.eval()

    def encodings(self) -> list[Encoding]:
        """The single encodings inside, without sums and choices of heads."""
        return [single for owned in self.build()[0] for single in inside(owned)]

    def serves(self, at: Positions) -> bool:
        """Whether the encoding speaks of these positions. Past the trained length it may refuse with a ValueError."""
        try:
            self.net()(tokens(self, at.tokens), at)
        except ValueError:
            return False
        return True

    @property
    def reach(self) -> int:
        """The longest sequence that promises are tried on (tokens): LONG, or max_len where more is refused."""
        return LONG if self.serves(count(LONG)) else self.shape.max_len


@contextmanager
def nothing_kept() -> Generator[None]:
    """Without the tables that this process keeps."""
    kept = dict(KEPT)
    KEPT.clear()
    try:
        yield
    finally:
        KEPT.clear()
        KEPT.update(kept)


class Net(nn.Module):
    """What a model does with an encoding, and no more: add it once, then attention with a residual in each layer."""

    def __init__(
        self,
        owned: list[Encoding],
        used: list[Encoding],
        shape: Shape,
        *,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(owned)
        self.used, self.shape = tuple(used), shape
        self.axes = max(1, *(encoding.axes for encoding in used))
        self.layers = nn.ModuleList(
            Attention(shape.dim, shape.heads, head_dim=shape.head_dim, kv_heads=kv_heads, scale=scale, encoding=None)
            for _ in used
        )
        for layer in self.attentions:
            # Promises ask under masks of either direction, whatever an encoding is built for.
            layer.has_warned = True

    def apart(self) -> "Net":
        """This network, without what the process keeps: as in one that has just begun."""
        vars(self)["forward"] = nothing_kept()(self.forward)
        return self

    @property
    def attentions(self) -> list[Attention]:
        return cast(list[Attention], list(self.layers))

    @property
    def kernels(self) -> list[str]:
        """The kernels that can serve these encodings where gradients are wanted, the readable one first."""
        q = torch.empty(1, self.shape.heads, 1, self.shape.head_dim, dtype=torch.float64, requires_grad=True)

        def serves(name: str) -> bool:
            return all(kernels.why_not(name, encoding, q=q) is None for encoding in self.used)

        with torch.enable_grad():
            return sorted(filter(serves, kernels.KERNELS), key=lambda name: name != "reference")

    def through(self, kernel: str) -> "Net":
        """This network, attending through a named kernel from now on."""
        for layer in self.attentions:
            layer.kernel = kernel
        return self

    def added(self, x: Tensor, at: Positions) -> Tensor:
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
        x = self.added(x, at)
        for index, (layer, encoding) in enumerate(zip(self.attentions, self.used, strict=True)):
            cache = None if caches is None else caches[index]
            x = x + layer(x, positions=at, mask=mask, cache=cache, encoding=encoding)
        return x

    def across(self, x: Tensor, at: Positions, other: Tensor, keys_at: Positions, mask: Mask) -> Tensor:
        """The same with keys and values from another sequence."""
        at, keys_at = on_axes(at, self.axes), on_axes(keys_at, self.axes)
        x, other = self.added(x, at), self.added(other, keys_at)
        for layer, encoding in zip(self.attentions, self.used, strict=True):
            x = x + layer(x, other, positions=at, key_positions=keys_at, mask=mask, encoding=encoding)
        return x


def make(source: "type[Encoding] | Factory", shape: Shape, **options: Any) -> Encoding:
    """An encoding from a class, its arguments filled from the shape by name, or from a factory."""
    if not (inspect.isclass(source) and issubclass(source, Encoding)):
        made = source(shape)
        if not isinstance(made, Encoding):
            raise ValueError(f"a factory gives an Encoding, got {type(made).__name__}")
        return made
    wanted = inspect.signature(source.__init__).parameters
    filled = {name: value for name, value in shape.options.items() if name in wanted}
    if source.wraps:
        filled["encoding"] = build(source.wraps[0], shape)
    return source(**filled | options)


def inside(encoding: Encoding) -> list[Encoding]:
    """The single encodings in a sum, a choice of heads or a wrapper, with the wrapper; or the encoding itself."""
    if isinstance(encoding, Compose):
        return [single for part in encoding.parts for single in inside(part)]
    if isinstance(encoding, OnHeads):
        return inside(encoding.encoding)
    return [encoding, *(inside(cast(Any, encoding).encoding) if encoding.wraps else [])]


def registered(cls: type[Encoding]) -> bool:
    """Whether the class is one that the catalogue finds, by its name or by path/to/file.py:Class."""
    return (ENCODINGS.knows(cls.spec_name) or ":" in cls.spec_name) and find(cls.spec_name) is cls


def chooses_heads(subject: Subject) -> bool:
    """Whether a part of it stands on chosen heads, which grouped key heads may not allow."""
    return any(isinstance(module, OnHeads) for owned in subject.build()[0] for module in owned.modules())


def tokens(subject: Subject, T: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    """Random embeddings [batch, T, dim], float64. Longer ones do not begin with shorter ones: cut them yourself."""
    with seeded(100 + seed):
        return torch.randn(batch, T, subject.shape.dim, dtype=torch.float64)


def count(T: int, start: int = 0) -> Positions:
    """start, start + 1, ...; the declared horizon is the same in all promises, so that cuts and alone mean the same."""
    return Positions.count(T, start).with_horizon(max(LONG, start + T))


def far_enough(at: Positions) -> Positions:
    """The same positions with the horizon that `count` declares."""
    return at.with_horizon(LONG)


def far_positions(subject: Subject) -> Positions:
    """Positions past every reach, or, where they are refused, as far as the trained length goes."""
    far = Positions.of(torch.tensor(FAR)).with_horizon(FAR[-1] + 1)
    if subject.serves(far):
        return far
    last = subject.shape.max_len - 1
    return Positions.of(torch.tensor([min(p, last) for p in FAR])).with_horizon(last + 1)


def some_positions(subject: Subject) -> Iterator[tuple[str, Positions]]:
    """Named positions of nine tokens each: in a row, later, fractional, in any order, different in each row, far."""
    last = subject.shape.max_len - 1
    yield "counted", count(TOKENS)
    yield "counted from the middle", count(TOKENS, subject.shape.max_len - TOKENS)
    fractional = torch.tensor([0.0, 0.5, 1.25, 2.0, 3.75, 6.5, 7.0, 11.125, last - 0.5], dtype=torch.float64)
    yield "fractional", Positions.of(fractional).with_horizon(LONG)
    in_rows = torch.stack((torch.arange(TOKENS).flip(0), torch.arange(TOKENS) * last // (TOKENS - 1)))
    yield "different in each row", Positions.of(in_rows).with_horizon(LONG)
    yield "far", far_positions(subject)
    declared = Positions.of(torch.arange(TOKENS).repeat(2, 1)).with_horizon(torch.tensor([LONG, 3 * LONG]))
    yield "with two horizons", declared


def on_axes(at: Positions, axes: int) -> Positions:
    """The same tokens on several axes, as a fixed function of their coordinate, for encodings that read several."""
    if axes == 1 or at.axes != 1:
        return at
    # Other strides on every axis, and short enough for tables of the trained length.
    further = [at.coords * (2 * axis + 1) % (2 * axis + 5) for axis in range(1, axes)]
    return at.with_coords(torch.cat((at.coords, *further), -1))


def in_chunks(
    net: Net, x: Tensor, at: Positions, cuts: Sequence[int], mask: Mask, cache: Callable[[], LayerCache]
) -> Tensor:
    """The network's output for tokens that come in chunks of the sizes `cuts`, through one cache for each layer."""
    caches, out, start = [cache() for _ in net.layers], [], 0
    for n in cuts:
        # Counted positions stay counted, as a caller would give them; others are cut.
        rows = slice(start, start + n)
        chunk = Positions.count(n, start).changed(horizon=at.horizon) if at.contiguous else at.rows(rows)
        out.append(net(x[:, rows], chunk, mask, caches))
        start += n
    return torch.cat(out, 1)


def with_gradients(net: Net, x: Tensor, at: Positions, mask: Mask, *, rows: Tensor | None = None) -> dict[str, Tensor]:
    """The output, and the gradients of a loss in x and in every parameter. `rows` says which tokens count for it."""
    x = x.clone().requires_grad_()
    out = net(x, at, mask)
    # A loss that is a sum over tokens, so that other tokens do not enter a token's gradient.
    loss = out.tanh() if rows is None else out.tanh() * rows[..., None]
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss.sum(), [x, *named.values()], allow_unused=True)
    slopes = {f"gradient of {name}": g for name, g in zip(("x", *named), found, strict=True) if g is not None}
    return {"output": out.detach(), **slopes}


def mask_name(mask: Mask) -> str:
    return "window" if mask.window else "causal" if mask.causal else "bidirectional"
