"""Checks of arguments, with one wording of the error for each kind.

They read types, shapes and Python's own numbers only, never data on a device.
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

from posenc.foreign import quote
from posenc.specs import words


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number; booleans and 2.0 are none."""
    if type(value) is int:
        return True
    if isinstance(value, Tensor):
        # torch.jit.trace turns sizes into such tensors.
        return torch.jit.is_tracing() and value.dim() == 0 and value.dtype == torch.int64
    return isinstance(value, (int, numbers.Integral, torch.SymInt)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number that a float can hold; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        return False
    # Whole numbers may be larger than any float, so they are compared and not converted.
    return abs(value) <= sys.float_info.max if isinstance(value, int) else math.isfinite(value)


def whole(name: str, value: object, minimum: int | None = None) -> int:
    """Return the value. Raises ValueError unless it is a whole number that torch takes, of `minimum` or more."""
    large = value.__class__ is int and value >= 2**63
    if not is_whole(value) or large or (minimum is not None and value < minimum):
        bound = " below 2 ** 63" if large else "" if minimum is None else f" of {minimum} or more"
        raise ValueError(f"{name} must be a whole number{bound}, got {display(value)}")
    return value


def number(name: str, value: object, minimum: float | None = None, *, above: float | None = None) -> float:
    """Return the value. Raises ValueError unless it is a finite number of `minimum` or more, or `above` a bound."""
    if not is_number(value) or (minimum is not None and value < minimum) or (above is not None and value <= above):
        bound = f" above {above:g}" if above is not None else "" if minimum is None else f" of {minimum:g} or more"
        raise ValueError(f"{name} must be a finite number{bound}, got {display(value)}")
    return value


def at_least(name: str, value: Any, least: float, unit: str = "") -> None:
    """Raise ValueError for a number below `least`, or infinite; None passes."""
    not_infinite(name, value)
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be {least} or more{unit}, got {display(value)}")


def above(name: str, value: Any, bound: float) -> None:
    """Raise ValueError unless a number is above a bound and finite; None passes."""
    not_infinite(name, value)
    if value is not None and not value > bound:
        raise ValueError(f"{name} must be above {bound}, got {display(value)}")


def not_infinite(name: str, value: Any) -> None:
    """Raise ValueError for infinity."""
    if value in (math.inf, -math.inf):
        raise ValueError(f"{name} must be a finite number, got {display(value)}")


def sizes(**values: float | None) -> None:
    """Raise ValueError unless each value is 1 or more; None passes."""
    for name, value in values.items():
        at_least(name, value, 1)


def even(name: str, value: int) -> None:
    """Raise ValueError unless a number of channels is even and 2 or more."""
    if not value >= 2 or value % 2:
        raise ValueError(f"{name} must be an even number of channels to form pairs, got {display(value)}")


def fraction(name: str, value: float) -> None:
    """Raise ValueError unless a fraction is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {display(value)}")


def one_of(name: str, value: object, words: Collection[str]) -> None:
    """Raise ValueError unless a value is one of the words."""
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, got {display(value)}")


def share(name: str, value: object) -> float:
    """Return the value. Raises ValueError unless it is a share for dropout: at least 0 and below 1."""
    ratio = number(name, value)
    if not 0 <= ratio < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {display(value)}")
    return ratio


def tensor(name: str, value: object) -> Tensor:
    """Return the value. Raises ValueError unless it is a dense tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {display(value)}; make one with torch.as_tensor(...)")
    if not is_dense(value):
        kind = "nested" if value.is_nested else "quantised" if value.is_quantized else value.layout
        raise ValueError(f"{name} must be dense, got a {kind} tensor; make it dense, and say by a mask what is missing")
    return value


def is_dense(value: Tensor) -> bool:
    """Whether a tensor is neither sparse nor nested nor quantised."""
    return value.layout is torch.strided and not value.is_nested and not value.is_quantized


def floating(name: str, value: object) -> Tensor:
    """Return the value. Raises ValueError unless it is a dense tensor of floating-point numbers."""
    if isinstance(value, Tensor) and value.is_floating_point() and is_dense(value):
        return value
    raise ValueError(f"{name} must be floating, got {tensor(name, value).dtype}; cast with .float()")


def no_device(name: str, known_devices: str = "") -> str:
    """Return why torch cannot compute on a device here; empty if it can."""
    try:
        requested_device = torch.device(name)
    except RuntimeError:
        return f"device must be {known_devices or 'cpu, cuda, cuda:1 or mps'}, got {quote(name)}"
    there, count = torch.accelerator.current_accelerator(check_available=True), torch.accelerator.device_count()
    places = ["cpu", *(f"{there.type}:{index}" for index in range(count if there else 0) if there)]
    if f"{requested_device.type}:{requested_device.index or 0}" in ("cpu:0", *places):
        return ""
    return f"there is no device {name} here; torch {torch.__version__} has {', '.join(places)}: give one of these"


def device(name: str, known_devices: str = "") -> None:
    """Raise ValueError for an unknown or missing device; `known_devices` lists the devices for the message."""
    if problem := no_device(name, known_devices):
        raise ValueError(problem)


def one_device(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all tensors are on one device."""
    if len({value.device for value in tensors.values() if value is not None}) > 1:
        places = ", ".join(f"{name} on '{value.device}'" for name, value in tensors.items() if value is not None)
        raise ValueError(f"all have to be on one device, got {places}; move them with .to()")


def dim(encoding: Any, x: Tensor) -> None:
    """Raise ValueError unless embeddings [B, T, dim] have the width of the encoding."""
    built_for(encoding, "dim", encoding.dim, x.shape[-1], "embeddings of {} channels")


def head_dim(encoding: Any, x: Tensor) -> None:
    """Raise ValueError unless heads [B, H, T, head_dim] have the width of the encoding."""
    built_for(encoding, "head_dim", encoding.head_dim, x.shape[-1], "heads of {} channels")


def heads(encoding: Any, x: Tensor) -> None:
    """Raise ValueError unless there are as many heads [B, H, T, head_dim] as the encoding has."""
    built_for(encoding, "heads", encoding.heads, x.shape[1], "{} heads")


def built_for(encoding: object, size: str, expected: int, count: int, words: str) -> None:
    """Raise ValueError unless a size is the one that an encoding was built for."""
    if count != expected:
        raise ValueError(f"{encoding} is built for {words.format(expected)}, got {count}; build it with {size}={count}")


T = TypeVar("T", bound="ChecksArguments")

KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (is_whole, "a whole number"),
    # NaN and inf pass here; the checks of bounds reject them with a better message.
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
    """Raise ValueError unless a value has the type of its annotation.

    It checks numbers, strings, booleans, tuples, dictionaries, None beside them, or one class; others pass.
    """
    # Beyond 2 ** 53 floats skip whole numbers, and formulas would divide by a difference of 0.
    if isinstance(value, (int, float)) and 2**53 < abs(value) < math.inf:
        raise ValueError(
            f"{name} must be between -2 ** 53 and 2 ** 53, got {display(value)}; give one that is nearer 0"
        )
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if value is None and type(None) in kinds:
        return
    types = [get_origin(option) or option for option in kinds if option is not type(None)]
    if len(kinds) == 1 and types and types[0] not in KINDS:
        # isinstance takes neither protocols nor Any.
        is_class = isinstance(types[0], type) and types[0] not in (Any, inspect.Parameter.empty)
        if is_class and not getattr(types[0], "_is_protocol", False) and not isinstance(value, types[0]):
            raise ValueError(f"{name} must be of type {types[0].__name__}, got {display(value)}")
        return
    if all(option in KINDS for option in types) and not any(KINDS[option][0](value) for option in types):
        raise ValueError(f"{name} must be {' or '.join(KINDS[option][1] for option in types)}, got {display(value)}")
    if torch.device in types and isinstance(value, str) and (wrong := no_device(value)).startswith("device must"):
        raise ValueError(wrong)


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ValueError unless the arguments of a call have the types of the function's annotations."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:
        # Annotations that only a type checker imports cannot be evaluated.
        signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError:
        return  # Python says it better
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        for item in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
            kind(name, item, parameter.annotation)


class ChecksArguments:
    """Base of a class whose constructor refuses unknown options and arguments of another type."""

    def __new__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Raise TypeError for an unknown option, with the one that is meant, and ValueError as `kind`."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            words.check_options(cls.__name__, words.names_of(cls.__init__), kwargs)
        try:
            arguments(cls.__init__, (None, *args), kwargs)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
        return super().__new__(cls)


def display(value: object) -> str:
    """Return a value for a message: the shape and dtype of a tensor, or the repr, shortened."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    return f"{quote(value)} ({type(value).__name__})" if type(value).__module__ != "builtins" else quote(value)
