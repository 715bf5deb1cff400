"""What every kind of position code of others is: found in a stack of layers, measured, read as a spec, filled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from posenc.checkpoints.models.found import Found
from posenc.checkpoints.models.nodes import Node, of_role
from posenc.encoding.base import Encoding, Shape


class Differs(ValueError):
    """A piece of a model and the encoding that was to fill it compute different numbers; the message says where."""


class NotSaid(ValueError):
    """What is said of a model cannot fill a piece of it; the message says what was wanted."""


@dataclass
class Stack:
    """One stack of layers: a configuration, or the encoder or the decoder of one.

    node     the configuration, with what its modules showed
    role     "encoder", "decoder", or "" for the whole
    shape    width, heads, channels of a head, trained length (1 where it has none), and whether it is causal
    turned   channels of a head that rotary is given
    layers   their number
    besides  what the stack does about position that no spec says, in sentences
    turning  the spec of what turns in each layer, and the channels that it is given; None where nothing does
    """

    node: Node
    role: str
    shape: Shape
    turned: int
    layers: int
    besides: list[str] = field(default_factory=list)
    turning: list[tuple[str, int]] | None = None

    @property
    def name(self) -> str:
        """Where it stands in the config: "" for the whole, else a path such as "text_config" or "encoder"."""
        return f"{self.node.path}.{self.role}".strip(".")

    @property
    def turns(self) -> bool:
        """Whether anything turns in any layer."""
        return any(spec != "none" for spec, _ in self.turning or ())

    def has(self, path: str) -> bool:
        """Whether a module or tensor belongs to this stack."""
        return of_role(path, self.role)

    def pieces(self, *kinds: str) -> Iterator[Found]:
        """What was found of these kinds in its modules."""
        return (item for item in self.node.found if item.kind in kinds and self.has(item.path))

    def modules(self) -> Iterator[tuple[str, Any]]:
        """Its modules, with their paths."""
        return ((path, module) for path, module in self.node.modules.items() if self.has(path))


Change = Callable[[], None]
"""What takes a change of a model back. It can be copied and pickled with the model."""


def swap(model: nn.Module, path: str, new: nn.Module) -> Change:
    """Put a module in the place of the one at a path."""
    above, _, name = path.rpartition(".")
    parent, original = model.get_submodule(above), model.get_submodule(path)
    new.train(original.training)
    setattr(parent, name, new)
    return partial(swap_back, parent, name, original)


def swap_back(parent: nn.Module, name: str, original: nn.Module) -> None:
    current = getattr(parent, name)
    # A parameter may have become another object since, such as by load_state_dict(assign=True).
    original._parameters.update(current._parameters)
    original.train(current.training)
    setattr(parent, name, original)


def shadow(owner: nn.Module, name: str, new: Any) -> Change:
    """Hide a method, parameter or buffer of a module by an attribute of this one module."""
    owner.__dict__[name] = new
    return partial(unshadow, owner, name, owner._buffers.get(name))


def unshadow(owner: nn.Module, name: str, buffer: Tensor | None) -> None:
    del owner.__dict__[name]
    # Some models put a buffer into its own place in their forward; what they read was ours.
    current = owner._buffers.get(name)
    if buffer is not None and current is not None and current is not buffer:
        owner._buffers[name] = buffer.to(current)


def refill(owner: Any, name: str, new: Tensor) -> Change:
    """Put a tensor in the place of a buffer, in its shape, dtype and device; it moves with the model as that did."""
    original = owner._buffers[name]
    owner._buffers[name] = new.reshape(original.shape).to(original)
    return partial(fill_back, owner, name, original)


def fill_back(owner: Any, name: str, original: Tensor) -> None:
    current = owner._buffers[name]
    same = (current.device, current.dtype) == (original.device, original.dtype)
    owner._buffers[name] = original if same else original.to(current)


def hook(module: nn.Module, new: Any) -> Change:
    """Be called before a module."""
    return module.register_forward_pre_hook(new, with_kwargs=True).remove


@dataclass
class Kind:
    """One piece of a model's position code.

    stack  the layers that it belongs to
    path   where it is in the model: "model.rotary_emb"
    """

    stack: Stack
    path: str

    words: ClassVar[str]
    """What it is, in words."""

    takes: ClassVar[tuple[type[Encoding], ...]]
    usual: ClassVar[str]
    """The encodings that can fill it, and the spec of the usual one."""

    door: ClassVar[str]
    """ "embed", "turn" or "bias": where position enters."""

    @classmethod
    def find(cls, stack: Stack) -> Iterator["Kind"]:
        """The pieces of this kind in a stack, as its modules ran."""
        raise NotImplementedError

    def specs(self) -> list[str]:
        """The catalogue's entry that gives the same numbers: one for each layer, or one alone for the embeddings."""
        if self.door == "turn":
            return [spec for spec, _ in self.stack.turning or ()]
        return [vars(self)["spec"]] * (1 if self.door == "embed" else self.stack.layers)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        """Let encodings compute it in a live model, one for each layer.

        `same` says that they have to give the numbers that it gives; raises Differs where they do not, and NotSaid,
        with the reason, where it cannot be filled.
        """
        raise NotImplementedError

    @property
    def where(self) -> str:
        """What holds it in the model: a tensor, or a module."""
        return f"{self.path}.{getattr(self, 'tensor', '')}".strip(".")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of its table, or the width of what a module adds; empty where nothing is added."""
        return getattr(self, "size", ())

    @property
    def besides(self) -> str:
        """What the spec does not say, in a sentence."""
        return ""

    def one(self, encodings: Sequence[Encoding]) -> Any:
        """The one encoding that fills it for all layers; raises ValueError where there are several, or none."""
        fitting = {repr(e): e for e in encodings if isinstance(e, self.takes)}
        if len(fitting) != 1:
            got = ", ".join(sorted({repr(e) for e in encodings})) or "nothing"
            raise (ValueError if fitting else NotSaid)(
                f"{self.path} is {self.words}, the same for all its layers, and takes one encoding of its kind, such "
                f"as {self.usual}; got {got}"
            )
        return next(iter(fitting.values()))
