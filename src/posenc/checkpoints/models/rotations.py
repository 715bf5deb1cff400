"""Measure a model's own rotary (RoPE) code by its effect on unit vectors."""

import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from posenc.checkpoints.models.skeleton import LARGE, is_shape
from posenc.checkpoints.vocabulary.reading import CannotRead

OnCall: TypeAlias = Callable[[dict[str, Any]], None]
OnReturn: TypeAlias = Callable[[object], None]

APPLIES_ROTARY = re.compile(r"apply_\w*(rot|rope)")

MAX_CHANNELS = 1024
"""The most channels of a head that are measured: each is rotated by itself, which takes some 200 MB in all."""


@dataclass(frozen=True)
class Turn:
    """The effect of one layer's rotary code on channels, as matrices.

    path      the calling module, such as "layers.3.self_attn"
    matrices  [T, D, D], row i the image of unit vector i at each of T tokens
    """

    path: str
    matrices: Tensor

    @property
    def temperature(self) -> float:
        """The factor of rotated channels: the length of an image at the first token, at position 0."""
        lengths = self.matrices[0].norm(dim=-1)
        channels = self.moving_channels
        return float(lengths[channels].mean()) if channels.any() else 1.0

    @cached_property
    def relative(self) -> Tensor:
        """The rotation since the first token [T, D, D]. Channels have the order before any permutation by the code."""
        return self.matrices.double() @ torch.linalg.inv(self.matrices[0].double())

    @property
    def moving_channels(self) -> Tensor:
        """A mask of rotated channels [D]: those whose image differs between tokens."""
        return (self.matrices - self.matrices[:1]).abs().amax((0, 2)) > 1e-6

    def pairs(self) -> list[tuple[int, int, float]]:
        """Return the pairs of channels that rotate together, and the angle of each at the second token (radians).

        Raises CannotRead if channels do not rotate in pairs.
        """
        turn, pairs, channels = self.relative[1], [], set()
        # The slowest pairs of large bases rotate too little to show at the second token.
        together = self.relative.abs().amax(0) > 1e-7
        for first in self.moving_channels.nonzero().flatten().tolist():
            if first in channels:
                continue
            partners = [int(c) for c in together[first].nonzero() if int(c) != first]
            if len(partners) != 1:
                raise CannotRead(f"channel {first} of {self.path} turns with {len(partners)} others, not in a pair")
            second = partners[0]
            channels |= {first, second}
            pairs.append((first, second, float(torch.atan2(turn[first, second], turn[first, first]))))
        return pairs

    @property
    def layout(self) -> str | None:
        """The layout, "half" or "interleaved"; None for other pairs, or without any."""
        try:
            pairs = self.pairs()
        except CannotRead:
            return None
        if not pairs:
            return None
        start = min(first for first, _, _ in pairs)
        last = max(second for _, second, _ in pairs)
        if all(second == first + 1 for first, second, _ in pairs):
            return "interleaved"
        # Some slow pairs may not show, so the width is not twice the number of pairs.
        steps = {second - first for first, second, _ in pairs}
        half = steps.pop()
        return "half" if not steps and last - start <= 2 * half else None


def functions(model: nn.Module, pattern: re.Pattern[str]) -> Iterator[tuple[CodeType, FunctionType]]:
    """Yield the functions in the modelling files of a model whose names match a pattern, by their code."""
    for file in sorted({type(module).__module__ for module in model.modules()}):
        if not file.startswith("torch."):
            yield from by_code(vars(sys.modules[file]), pattern)


def rotary_functions(model: nn.Module) -> Iterator[tuple[CodeType, FunctionType]]:
    """Yield rotary code: functions of modelling files, and static methods of modules."""
    yield from functions(model, APPLIES_ROTARY)
    for cls in {type(module) for module in model.modules()}:
        static = {name: value.__func__ for name, value in vars(cls).items() if isinstance(value, staticmethod)}
        yield from by_code(static, APPLIES_ROTARY)


def by_code(names: Mapping[str, Any], pattern: re.Pattern[str]) -> Iterator[tuple[CodeType, FunctionType]]:
    for name, value in names.items():
        function = inspect.unwrap(value) if inspect.isroutine(value) and pattern.search(name.lower()) else None
        if inspect.isfunction(function):
            yield function.__code__, function


@contextmanager
def watch(on_call: Mapping[CodeType, OnCall], on_return: Mapping[CodeType, OnReturn]) -> Generator[None]:
    """Watch the calls of functions in this thread, without replacing any.

    on_call    code of a function -> a callback for its arguments by name
    on_return  code of a function -> a callback for its result

    A replacement in the modelling file would be seen by every thread; a profile function belongs to one thread.
    """

    def profile(frame: FrameType, event: str, result: object) -> None:
        if event == "call" and frame.f_code in on_call:
            names, _, keywords, values = inspect.getargvalues(frame)
            on_call[frame.f_code]({name: values[name] for name in names} | (values[keywords] if keywords else {}))
        elif event == "return" and frame.f_code in on_return:
            on_return[frame.f_code](result)

    old_profiler: Any = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        # The caller's profiler is an object with `enable`, or a function.
        old_profiler.enable() if hasattr(old_profiler, "enable") else sys.setprofile(old_profiler)


def turn_recorder(function: Callable[..., Any], stack: list[str], turns: list[Turn]) -> OnCall:
    """Return a function that records how rotary code, with a call's arguments, rotates unit vectors."""
    matrices_by_call: dict[Any, Tensor | None] = {}

    def record(arguments: dict[str, Any]) -> None:
        # Most layers share their cosines and sines.
        tensors = [x for x in arguments.values() if isinstance(x, Tensor)]
        key = tuple((tuple(x.shape), tensor_digest(x) if x.shape != tensors[0].shape else 0) for x in tensors)
        if key not in matrices_by_call:
            matrices_by_call[key] = channel_images(function, arguments)
        matrices = matrices_by_call[key]
        if matrices is not None:
            turns.append(Turn(stack[-1], matrices))

    return record


def tensor_digest(x: Tensor) -> int:
    return 0 if is_shape(x) else hash(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def channel_images(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the images [T, D, D] of unit vectors, one a row, under rotary code.

    None if it returns no such tensor. Raises CannotRead for arguments that are too large.
    """
    if any(is_shape(x) or x.numel() > LARGE for x in arguments.values() if isinstance(x, Tensor)):
        raise CannotRead(f"its rotary code was called with tensors of more than {LARGE:,} numbers")
    # Here all numbers count, so the modes of a dry run, which return shapes and zeros, are off.
    with torch._C.DisableTorchFunction():
        return unit_images(function, arguments)


def unit_images(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Tensor | None:
    result = function(**inputs)
    images = [x for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, Tensor)]
    # The queries are the first argument with the shape of the first output.
    name = next((n for n, x in inputs.items() if isinstance(x, Tensor) and images and x.shape == images[0].shape), None)
    if name is None:
        return None
    queries = inputs[name]
    channels, tokens = queries.shape[-1], token_axis(queries, inputs)
    if channels > MAX_CHANNELS:
        raise CannotRead(f"a head has {channels:,} channels; the turns of at most {MAX_CHANNELS:,} are measured")
    unit, rows = torch.eye(channels), []
    if queries.dim() == 4 and queries.shape[0] == 1 and tokens:
        # The batch axis takes as many unit vectors at once as the memory limit allows.
        for batch in unit.split(max(1, LARGE // queries.numel())):
            image = function(**{**inputs, name: batch[:, None, None].expand(-1, *queries.shape[1:]).contiguous()})
            image = image[0] if isinstance(image, tuple) else image
            rows.append(image.movedim(tokens, 1)[:, :, 0])
        return torch.cat(rows).movedim(0, 1)
    for row in unit:
        image = function(**{**inputs, name: row.expand(queries.shape).contiguous()})
        image = image[0] if isinstance(image, tuple) else image
        image = image.movedim(tokens, 0)
        while image.dim() > 2:
            image = image[:, 0]
        rows.append(image)
    return torch.stack(rows, 1)


def token_axis(queries: Tensor, inputs: Mapping[str, Any]) -> int:
    """Return the axis of tokens in the queries: the last one that cosines, or other arguments, have too."""
    tables = [x for n, x in inputs.items() if isinstance(x, Tensor) and x is not queries and x.shape != queries.shape]
    sizes = {n for x in tables for n in x.shape[:-1]} or set(queries.shape[:-1])
    axes = [axis for axis in range(queries.dim() - 1) if queries.shape[axis] in sizes and queries.shape[axis] > 1]
    return axes[-1] if axes else queries.dim() - 2


def position_axes(module: nn.Module, layer_type: str | None = None) -> int:
    """Return the number of axes of positions that a rotary module combines in one table."""
    device = next((buffer.device for buffer in module.buffers()), None)
    for axes in (2, 3, 4):
        try:
            ids, options = torch.zeros(axes, 1, 5, dtype=torch.long, device=device), {"layer_type": layer_type}
            tables = module(torch.zeros(1, 1, 1, device=device), ids, **(options if layer_type else {}))
        except Exception:
            # A model's own code may raise any error for positions that it does not take.
            continue
        if isinstance(tables, tuple) and tables[0].shape[:-1] == ids.shape[1:]:
            return axes
    return 1
