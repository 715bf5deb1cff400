"""The base of all kinds of position code: find it in layers, read its spec, replace it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from posenc.checkpoints.models.nodes import ConfigNode, has_role
from posenc.checkpoints.models.position_items import PositionItem
from posenc.encoding.base import Encoding, Shape


class Mismatch(ValueError):
    """A piece of a model and its replacement compute different numbers; the message says where."""


class CannotFill(ValueError):
    """The encodings cannot replace a piece of a model; the message says which would."""


@dataclass
class LayerStack:
    """One stack of layers: a configuration, or the encoder or the decoder of one.

    node        the configuration, with what its modules showed
    role        "encoder", "decoder", or "" for the whole
    shape       width, heads, channels of a head, trained length (1 where it has none), and whether it is causal
    rotary_dim  channels of a head that rotary is given
    layers      their number
    remarks     position code of the stack that no spec covers, in sentences
    rotations   the spec of the rotation in each layer, and its channels; None if nothing rotates
    """

    node: ConfigNode
    role: str
    shape: Shape
    rotary_dim: int
    layers: int
    remarks: list[str] = field(default_factory=list)
    rotations: list[tuple[str, int]] | None = None

    @property
    def name(self) -> str:
        """Its path in the config: "" for the whole, else such as "text_config" or "encoder"."""
        return f"{self.node.path}.{self.role}".strip(".")

    @property
    def turns(self) -> bool:
        """Whether any layer rotates queries and keys."""
        return any(spec != "none" for spec, _ in self.rotations or ())

    def has(self, path: str) -> bool:
        """Whether a module or tensor belongs to this stack."""
        return has_role(path, self.role)

    def pieces(self, *kinds: str) -> Iterator[PositionItem]:
        """Yield the pieces of these kinds in its modules."""
        return (item for item in self.node.items if item.kind in kinds and self.has(item.path))

    def modules(self) -> Iterator[tuple[str, Any]]:
        """Yield its modules with their paths."""
        return ((path, module) for path, module in self.node.modules.items() if self.has(path))


Undo = Callable[[], None]
"""A function that undoes a change of a model. It can be copied and pickled with the model."""


def replace_module(model: nn.Module, path: str, new: nn.Module) -> Undo:
    """Replace the module at a path."""
    parent_path, _, name = path.rpartition(".")
    parent, original = model.get_submodule(parent_path), model.get_submodule(path)
    new.train(original.training)
    setattr(parent, name, new)
    return partial(restore_module, parent, name, original)


def restore_module(parent: nn.Module, name: str, original: nn.Module) -> None:
    current = getattr(parent, name)
    # load_state_dict(assign=True), for one, makes a parameter another object.
    original._parameters.update(current._parameters)
    original.train(current.training)
    setattr(parent, name, original)


def shadow(owner: nn.Module, name: str, new: object) -> Undo:
    """Hide a method, parameter or buffer of a module by an instance attribute."""
    owner.__dict__[name] = new
    return partial(unshadow, owner, name, owner._buffers.get(name))


def unshadow(owner: nn.Module, name: str, buffer: Tensor | None) -> None:
    del owner.__dict__[name]
    # Some models assign a buffer to itself in their forward; what they read was the attribute.
    current = owner._buffers.get(name)
    if buffer is not None and current is not None and current is not buffer:
        owner._buffers[name] = buffer.to(current)


def replace_buffer(owner: nn.Module, name: str, new: Tensor) -> Undo:
    """Replace a buffer, in its shape, dtype and device; the new one moves with the model."""
    original = owner.get_buffer(name)
    owner._buffers[name] = new.reshape(original.shape).to(original)
    return partial(restore_buffer, owner, name, original)


def restore_buffer(owner: nn.Module, name: str, original: Tensor) -> None:
    current = owner.get_buffer(name)
    is_in_place = (current.device, current.dtype) == (original.device, original.dtype)
    owner._buffers[name] = original if is_in_place else original.to(current)


def hook(module: nn.Module, new: Callable[..., tuple[tuple, dict[str, Any]]]) -> Undo:
    """Register a function that is called before a module."""
    return module.register_forward_pre_hook(new, with_kwargs=True).remove


@dataclass
class Kind:
    """One piece of a model's position code.

    stack  the layers that it belongs to
    path   its path in the model: "model.rotary_emb"
    """

    stack: LayerStack
    path: str

    description: ClassVar[str]
    """A noun phrase for messages: "a rotary module"."""

    takes: ClassVar[tuple[type[Encoding], ...]]
    default_spec: ClassVar[str]
    """The encodings that can replace it, and the spec of the usual one."""

    door: ClassVar[str]
    """How position enters: "embed", "turn" or "bias"."""

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["Kind"]:
        """Yield the pieces of this kind in a stack, as its modules ran."""
        raise NotImplementedError

    def specs(self) -> list[str]:
        """Return the specs that give the same numbers: one for each layer, or one for the embeddings."""
        if self.door == "turn":
            return [spec for spec, _ in self.stack.rotations or ()]
        return [vars(self)["spec"]] * (1 if self.door == "embed" else self.stack.layers)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        """Let encodings compute it in a live model, one for each layer; `exact` demands the same numbers.

        Raises Mismatch if numbers must be equal and differ, and CannotFill, with the reason, if encodings do not fit.
        """
        raise NotImplementedError

    @property
    def where(self) -> str:
        """The path of its tensor, or of its module."""
        return f"{self.path}.{getattr(self, 'tensor', '')}".strip(".")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of its table, or the width of what its module adds; empty if nothing is added."""
        return getattr(self, "size", ())

    @property
    def remarks(self) -> str:
        """A sentence on what the spec does not cover."""
        return ""

    def single_encoding(self, encodings: Sequence[Encoding]) -> Any:
        """Return the encoding that replaces it in all layers; raises ValueError for several, or none."""
        fitting = {repr(e): e for e in encodings if isinstance(e, self.takes)}
        if len(fitting) != 1:
            names = ", ".join(sorted({repr(e) for e in encodings})) or "nothing"
            raise (ValueError if fitting else CannotFill)(
                f"{self.path} is {self.description}, the same for all its layers, and takes one encoding of its kind, "
                f"such as {self.default_spec}; got {names}"
            )
        return next(iter(fitting.values()))
