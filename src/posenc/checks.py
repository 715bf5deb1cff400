"""What a caller gave, held to what it has to be: one wording for each kind.

Only types, shapes and Python's own numbers are asked for: nothing that lies on a device is read.
"""

import inspect
import math
import numbers
import sys
from collections.abc import Callable, Collection
from types import UnionType
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import torch
from torch import Tensor

from posenc.foreign import quoted
from posenc.specs import words


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; a truth value is none, and neither is 2.0."""
    if type(value) is int:
        return True
    if isinstance(value, Tensor):
        # What torch.jit.trace makes of a size.
        return torch.jit.is_tracing() and value.dim() == 0 and value.dtype == torch.int64
    return isinstance(value, (int, numbers.Integral, torch.SymInt)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, small enough to compute with; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        return False
    # Whole numbers may be larger than any float, so they are compared and not converted.
    return abs(value) <= sys.float_info.max if isinstance(value, int) else math.isfinite(value)


def whole(name: str, value: object, least: int | None = None) -> int:
    """The value; raises ValueError unless it is a whole number that torch takes, of at least so much."""
    large = value.__class__ is int and value >= 2**63
    if not is_whole(value) or large or (least is not None and value < least):
        bound = " below 2 ** 63" if large else "" if least is None else f" of {least} or more"
        raise ValueError(f"{name} must be a whole number{bound}, got {shown(value)}")
    return value


def number(name: str, value: object, least: float | None = None, *, above: float | None = None) -> float:
    """The value; raises ValueError unless it is a finite number, of at least so much or above something."""
    if not is_number(value) or (least is not None and value < least) or (above is not None and value <= above):
        bound = f" above {above:g}" if above is not None else "" if least is None else f" of {least:g} or more"
        raise ValueError(f"{name} must be a finite number{bound}, got {shown(value)}")
    return value


def at_least(name: str, value: Any, least: float, unit: str = "") -> None:
    """Raises ValueError for a number below the least, or infinite; None is none that was given."""
    not_infinite(name, value)
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be {least} or more{unit}, got {shown(value)}")


def above(name: str, value: Any, bound: float) -> None:
    """Raises ValueError unless a number is above a bound, and not infinite; None is none that was given."""
    not_infinite(name, value)
    if value is not None and not value > bound:
        raise ValueError(f"{name} must be above {bound}, got {shown(value)}")


def not_infinite(name: str, value: Any) -> None:
    """Raises ValueError for infinity."""
    if value in (math.inf, -math.inf):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")


def sizes(**given: float | None) -> None:
    """Raises ValueError unless each of these is 1 or more; None is none that was given."""
    for name, value in given.items():
        at_least(name, value, 1)


def even(name: str, value: int) -> None:
    """Raises ValueError unless channels come in pairs."""
    if not value >= 2 or value % 2:
        raise ValueError(f"{name} must be an even number of channels to form pairs, got {shown(value)}")


def fraction(name: str, value: float) -> None:
    """Raises ValueError unless it is a fraction that leaves something: above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {shown(value)}")


def one_of(name: str, value: object, words: Collection[str]) -> None:
    """Raises ValueError unless a value is one of the words."""
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, got {shown(value)}")


def share(name: str, value: object) -> float:
    """The value; raises ValueError unless it is a share that can be dropped: at least 0 and below 1."""
    given = number(name, value)
    if not 0 <= given < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {shown(value)}")
    return given


def tensor(name: str, value: object) -> Tensor:
    """The value; raises ValueError unless it is a tensor with a number at every place."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {shown(value)}; make one with torch.as_tensor(...)")
    if not is_dense(value):
        kind = "nested" if value.is_nested else "quantised" if value.is_quantized else value.layout
        raise ValueError(f"{name} must be dense, got a {kind} tensor; make it dense, and say by a mask what is missing")
    return value


def is_dense(value: Tensor) -> bool:
    """Whether it has a number at every place: no sparse, nested or quantised tensor."""
    return value.layout is torch.strided and not value.is_nested and not value.is_quantized


def floating(name: str, value: object) -> Tensor:
    """The value; raises ValueError unless it is a tensor of floating-point numbers."""
    if isinstance(value, Tensor) and value.is_floating_point() and is_dense(value):
        return value
    raise ValueError(f"{name} must be floating, got {tensor(name, value).dtype}; cast with .float()")


def no_device(name: str, known: str = "") -> str:
    """Why torch cannot compute on a device here, in words; nothing where it can."""
    try:
        asked = torch.device(name)
    except RuntimeError:
        return f"device must be {known or 'cpu, cuda, cuda:1 or mps'}, got {quoted(name)}"
    there, count = torch.accelerator.current_accelerator(check_available=True), torch.accelerator.device_count()
    places = ["cpu", *(f"{there.type}:{index}" for index in range(count if there else 0) if there)]
    if f"{asked.type}:{asked.index or 0}" in ("cpu:0", *places):
        return ""
    return f"there is no device {name} here; torch {torch.__version__} has {', '.join(places)}: give one of these"


def device(name: str, known: str = "") -> None:
    """Raises ValueError for a device that is none, or that is not here; `known` says which there are, in words."""
    if problem := no_device(name, known):
        raise ValueError(problem)


def one_device(**given: Tensor | None) -> None:
    """Raises ValueError unless all these tensors are on one device."""
    if len({value.device for value in given.values() if value is not None}) > 1:
        told = ", ".join(f"{name} on '{value.device}'" for name, value in given.items() if value is not None)
        raise ValueError(f"all have to be on one device, got {told}; move them with .to()")


def dim(encoding: Any, x: Tensor) -> None:
    """Raises ValueError unless embeddings [B, T, dim] have the width that an encoding was built for."""
    built_for(encoding, "dim", encoding.dim, x.shape[-1], "embeddings of {} channels")


def head_dim(encoding: Any, x: Tensor) -> None:
    """Raises ValueError unless heads [B, H, T, head_dim] have the width that an encoding was built for."""
    built_for(encoding, "head_dim", encoding.head_dim, x.shape[-1], "heads of {} channels")


def heads(encoding: Any, x: Tensor) -> None:
    """Raises ValueError unless heads [B, H, T, head_dim] are as many as an encoding was built for."""
    built_for(encoding, "heads", encoding.heads, x.shape[1], "{} heads")


def built_for(encoding: object, size: str, expected: int, found: int, words: str) -> None:
    """Raises ValueError unless a size of what is given is the one that an encoding was built for."""
    if found != expected:
        raise ValueError(f"{encoding} is built for {words.format(expected)}, got {found}; build it with {size}={found}")


T = TypeVar("T", bound="ChecksArguments")

KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (is_whole, "a whole number"),
    # Not a number, and infinity, are of the kind: what they are told is why they do not fit.
    float: (lambda value: isinstance(value, (int, float, numbers.Real)) and not isinstance(value, bool), "a number"),
    str: (lambda value: isinstance(value, str), "a word"),
    tuple: (lambda value: isinstance(value, (tuple, list)), "a tuple"),
    dict: (lambda value: isinstance(value, dict), "a dictionary"),
    torch.device: (lambda value: isinstance(value, torch.device), "a device"),
    torch.dtype: (
        lambda value: isinstance(value, torch.dtype) and value.is_floating_point,
        "a floating dtype such as torch.float32",
    ),
}


def kind(name: str, value: object, annotation: object) -> None:
    """Raises ValueError unless a value is of the kind that an option is annotated with: numbers, words, truths, tuples,
    dictionaries, None beside them; or one class.

    Other annotations say nothing here.
    """
    # Beyond 2 ** 53 floats skip whole numbers, and formulas divide by what is left: nothing.
    if isinstance(value, (int, float)) and 2**53 < abs(value) < math.inf:
        raise ValueError(f"{name} must be between -2 ** 53 and 2 ** 53, got {shown(value)}; give one that is nearer 0")
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if value is None and type(None) in kinds:
        return
    asked = [get_origin(one) or one for one in kinds if one is not type(None)]
    if len(kinds) == 1 and asked and asked[0] not in KINDS:
        # A value cannot be asked to be an instance of a protocol, or of Any.
        is_class = isinstance(asked[0], type) and asked[0] not in (Any, inspect.Parameter.empty)
        if is_class and not getattr(asked[0], "_is_protocol", False) and not isinstance(value, asked[0]):
            raise ValueError(f"{name} must be of type {asked[0].__name__}, got {shown(value)}")
        return
    if all(one in KINDS for one in asked) and not any(KINDS[one][0](value) for one in asked):
        raise ValueError(f"{name} must be {' or '.join(KINDS[one][1] for one in asked)}, got {shown(value)}")
    if torch.device in asked and isinstance(value, str) and (wrong := no_device(value)).startswith("device must"):
        raise ValueError(wrong)


def arguments(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises ValueError unless the arguments of a call are of the kinds that the function is annotated with."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:
        # Names that only a type checker imports say nothing here.
        signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*given, **named)
    except TypeError:
        return  # Python says it better
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        for one in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
            kind(name, one, parameter.annotation)


class ChecksArguments:
    """Base of a class whose constructor refuses options that it does not have, and arguments of another kind."""

    def __new__(cls: type[T], *given: Any, **named: Any) -> T:
        """Raises TypeError for an option that there is not, naming the one that is meant, and ValueError as `kind`."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            words.check_options(cls.__name__, words.names_of(cls.__init__), named)
        try:
            arguments(cls.__init__, (None, *given), named)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
        return super().__new__(cls)


def shown(value: object) -> str:
    """A value in a message: what a tensor is, and anything else as it is, shortened."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    return f"{quoted(value)} ({type(value).__name__})" if type(value).__module__ != "builtins" else quoted(value)
