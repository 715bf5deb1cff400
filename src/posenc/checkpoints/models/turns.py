"""What a model's own rotary code does to unit vectors, whatever it is called with."""

import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.models.skeleton import LARGE, is_shape
from posenc.checkpoints.vocabulary.reading import CannotRead

APPLIES_ROTARY = re.compile(r"apply_\w*(rot|rope)")

MOST_CHANNELS = 1024
"""The channels of a head whose turns are measured: each is turned by itself, which takes some 200 MB in all."""


@dataclass(frozen=True)
class Turn:
    """What one layer's rotary code does to the channels it is given, as matrices.

    path      the module that called it, such as "layers.3.self_attn"
    matrices  [T, D, D], row i the image of unit vector i at each of T tokens
    """

    path: str
    matrices: Tensor

    @property
    def temperature(self) -> float:
        """What turned channels are multiplied by: the length of an image at the first token, which is at position 0."""
        lengths = self.matrices[0].norm(dim=-1)
        moved = self.moved
        return float(lengths[moved].mean()) if moved.any() else 1.0

    @cached_property
    def relative(self) -> Tensor:
        """The turn since the first token [T, D, D], in the order of the channels before any shuffle of the code."""
        return self.matrices.double() @ torch.linalg.inv(self.matrices[0].double())

    @property
    def moved(self) -> Tensor:
        """Which channels turn [D]: those whose image differs between tokens."""
        return (self.matrices - self.matrices[:1]).abs().amax((0, 2)) > 1e-6

    def pairs(self) -> list[tuple[int, int, float]]:
        """The pairs of channels that turn together, and the angle of each at the second token (radians).

        Raises CannotRead where channels do not turn in pairs.
        """
        turn, pairs, seen = self.relative[1], [], set()
        # The slowest pairs of large bases turn too little to be seen at the second token.
        together = self.relative.abs().amax(0) > 1e-7
        for first in self.moved.nonzero().flatten().tolist():
            if first in seen:
                continue
            partners = [int(c) for c in together[first].nonzero() if int(c) != first]
            if len(partners) != 1:
                raise CannotRead(f"channel {first} of {self.path} turns with {len(partners)} others, not in a pair")
            second = partners[0]
            seen |= {first, second}
            pairs.append((first, second, float(torch.atan2(turn[first, second], turn[first, first]))))
        return pairs

    @property
    def layout(self) -> str | None:
        """ "half" or "interleaved", or None where the pairs lie otherwise, there are none, or nothing turns."""
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
        # Slow pairs may turn too little to be seen, so the width is not the number of pairs that were.
        steps = {second - first for first, second, _ in pairs}
        half = steps.pop()
        return "half" if not steps and last - start <= 2 * half else None


def functions(model: nn.Module, called: re.Pattern[str]) -> Iterator[tuple[CodeType, FunctionType]]:
    """The functions in the modelling files of a model whose names say something, by their code."""
    for file in sorted({type(module).__module__ for module in model.modules()}):
        if not file.startswith("torch."):
            yield from coded(vars(sys.modules[file]), called)


def rotary_functions(model: nn.Module) -> Iterator[tuple[CodeType, FunctionType]]:
    """Rotary code: functions of modelling files, and static methods of modules."""
    yield from functions(model, APPLIES_ROTARY)
    for cls in {type(module) for module in model.modules()}:
        static = {name: value.__func__ for name, value in vars(cls).items() if isinstance(value, staticmethod)}
        yield from coded(static, APPLIES_ROTARY)


def coded(names: Mapping[str, Any], called: re.Pattern[str]) -> Iterator[tuple[CodeType, FunctionType]]:
    for name, value in names.items():
        function = inspect.unwrap(value) if inspect.isroutine(value) and called.search(name.lower()) else None
        if inspect.isfunction(function):
            yield function.__code__, function


@contextmanager
def watched(
    called: Mapping[CodeType, Callable[[dict[str, Any]], None]], returned: Mapping[CodeType, Callable[[Any], None]]
) -> Generator[None]:
    """Be told, in this thread alone, what functions are called with and what they return; none of them is replaced.

    called    by a function's code, what is given its arguments by name when it is called
    returned  by a function's code, what is given its result
    """

    def profile(frame: FrameType, event: str, result: Any) -> None:
        if event == "call" and frame.f_code in called:
            names, _, keywords, values = inspect.getargvalues(frame)
            called[frame.f_code]({name: values[name] for name in names} | (values[keywords] if keywords else {}))
        elif event == "return" and frame.f_code in returned:
            returned[frame.f_code](result)

    before: Any = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        # A profiler of the caller's is an object that is switched on again, or a function.
        before.enable() if hasattr(before, "enable") else sys.setprofile(before)


def turning(function: Callable[..., Any], stack: list[str], turns: list[Turn]) -> Callable[[dict[str, Any]], None]:
    """What turns unit vectors by a function of rotary code, in place of the first tensor that it was called to turn."""
    known: dict[Any, Tensor | None] = {}

    def called(given: dict[str, Any]) -> None:
        # Layers mostly share their cosines and sines.
        tensors = [x for x in given.values() if isinstance(x, Tensor)]
        key = tuple((tuple(x.shape), digest(x) if x.shape != tensors[0].shape else 0) for x in tensors)
        if key not in known:
            known[key] = images(function, given)
        matrices = known[key]
        if matrices is not None:
            turns.append(Turn(stack[-1], matrices))

    return called


def digest(x: Tensor) -> int:
    return 0 if is_shape(x) else hash(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def images(function: Callable[..., Any], given: Mapping[str, Any]) -> Tensor | None:
    """The images [T, D, D] of unit vectors, one a row, under rotary code as it was called; None where none came out.

    Raises CannotRead where what it was called with is too large to be turned.
    """
    if any(is_shape(x) or x.numel() > LARGE for x in given.values() if isinstance(x, Tensor)):
        raise CannotRead(f"its rotary code was called with tensors of more than {LARGE:,} numbers")
    # Here all numbers count: none may become a shape, as elsewhere in a dry run, or the zeros of one.
    with torch._C.DisableTorchFunction():
        return turned_units(function, given)


def turned_units(function: Callable[..., Any], given: Mapping[str, Any]) -> Tensor | None:
    out = function(**given)
    turned = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
    # The queries are the first tensor that comes out with the shape that it went in.
    name = next((n for n, x in given.items() if isinstance(x, Tensor) and turned and x.shape == turned[0].shape), None)
    if name is None:
        return None
    like = given[name]
    channels, tokens = like.shape[-1], token_axis(like, given)
    if channels > MOST_CHANNELS:
        raise CannotRead(f"a head has {channels:,} channels; the turns of at most {MOST_CHANNELS:,} are measured")
    unit, rows = torch.eye(channels), []
    if like.dim() == 4 and like.shape[0] == 1 and tokens:
        # As many unit vectors as memory is meant for at once, in the place of the batch.
        for some in unit.split(max(1, LARGE // like.numel())):
            image = function(**{**given, name: some[:, None, None].expand(-1, *like.shape[1:]).contiguous()})
            image = image[0] if isinstance(image, tuple) else image
            rows.append(image.movedim(tokens, 1)[:, :, 0])
        return torch.cat(rows).movedim(0, 1)
    for row in unit:
        image = function(**{**given, name: row.expand(like.shape).contiguous()})
        image = image[0] if isinstance(image, tuple) else image
        image = image.movedim(tokens, 0)
        while image.dim() > 2:
            image = image[:, 0]
        rows.append(image)
    return torch.stack(rows, 1)


def token_axis(like: Tensor, given: Mapping[str, Any]) -> int:
    """Which axis of the queries counts tokens: the longest that cosines, or whatever came with them, has too."""
    tables = [x for n, x in given.items() if isinstance(x, Tensor) and x is not like and x.shape != like.shape]
    sizes = {n for x in tables for n in x.shape[:-1]} or set(like.shape[:-1])
    axes = [axis for axis in range(like.dim() - 1) if like.shape[axis] in sizes and like.shape[axis] > 1]
    return axes[-1] if axes else like.dim() - 2


def axes_of(module: nn.Module, layer_type: str | None = None) -> int:
    """On how many axes a rotary module takes the position of a token, to make one table of them."""
    device = next((buffer.device for buffer in module.buffers()), None)
    for axes in (2, 3, 4):
        try:
            ids, named = torch.zeros(axes, 1, 5, dtype=torch.long, device=device), {"layer_type": layer_type}
            given = module(torch.zeros(1, 1, 1, device=device), ids, **(named if layer_type else {}))
        except Exception:
            # It is code of many hands, which says in any way that it takes no such.
            continue
        if isinstance(given, tuple) and given[0].shape[:-1] == ids.shape[1:]:
            return axes
    return 1
