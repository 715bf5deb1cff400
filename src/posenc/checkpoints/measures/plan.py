"""The plan of a run: the memory of a pass at each length, whether it is there, what would help, and the time of it."""

import itertools
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.formats.devices import AUTO, accelerators_of, at_hand, bytes_of, check_device
from posenc.checkpoints.formats.load import Loaded, dtype_of, hollow_model
from posenc.checkpoints.measures.memory import Memory, of_pass, weights_of
from posenc.checkpoints.measures.perplexity import DEVICE, check_cache, losses
from posenc.checkpoints.measures.work import Work
from posenc.foreign.text import told
from posenc.lab.results.summary import duration

BESIDE = 1 << 30
"""Bytes that are left to what is not counted: the libraries, or a context of CUDA, and what kernels work in."""

CHUNKS = (256, 64)
"""Smaller chunks that are tried where a pass does not fit: below these, time grows faster than memory falls."""

Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """How texts go through a model.

    dtype   of the weights
    device  where they are: cpu, cuda, cuda:1, mps, auto
    chunk   tokens at once
    batch   texts of one length side by side
    cache   where keys are kept: device or cpu
    """

    dtype: str = "float32"
    device: str = "cpu"
    chunk: int = 1024
    batch: int = 1
    cache: str = DEVICE

    @classmethod
    def of(cls, settings: Any) -> "Way":
        return cls(settings.dtype, settings.device, settings.chunk, settings.batch, settings.cache)

    def check(self) -> None:
        """Raises ValueError for a device that is not there, and for a place of the cache that would change nothing."""
        check_device(self.device)
        check_cache(self.cache, self.device)

    def options(self, before: "Way") -> str:
        """What of it is not as before, as options."""
        changed = {name: value for name, value in asdict(self).items() if value != getattr(before, name)}
        return " ".join(f"--{name} {value}" for name, value in changed.items())


def planned(loaded: Loaded, lengths: Sequence[int], way: Way, memory: str | None) -> dict[str, Any]:
    """The plan of passes at some lengths (tokens), as JSON.

    memory  what it is held to, such as "24GB"; None: what the device has free, and what the weights take already

    Where the model's own code does not run on shapes alone, there are no rows, and `why_not` says what stopped it.
    """
    kind, config = type(loaded.model), loaded.config
    held = 0 if loaded.model.device.type == "meta" else sum(one.nbytes for one in weights_of(loaded.model))
    free = at_hand(way.device) if memory is None else None
    room = bytes_of(memory) if memory is not None else None if free is None else free + held
    found: dict[tuple[Any, ...], Memory] = {}

    def at(length: int, how: Way) -> Memory:
        key = length, replace(how, device="")
        if key not in found:
            model = hollow_model(kind, config, dtype_of(how.dtype))
            found[key] = of_pass(model, length, chunk=how.chunk, batch=how.batch, cache=how.cache)
        return found[key]

    plan: dict[str, Any] = {"way": asdict(way), "memory": room, "rows": [], "advice": "", "why_not": "", "chunk": None}
    try:
        for length in lengths:
            one = at(length, way)
            fits = None if room is None else one.total + BESIDE <= room
            plan["rows"].append({"length": length, **asdict(one), "total": one.total, "fits": fits})
        if room is not None and not plan["rows"][-1]["fits"]:
            plan["advice"] = advice(partial(at, lengths[-1]), way, room, lengths[-1])
    except Exception as error:
        # Code of others, on tensors that it was not written for.
        plan |= {"rows": [], "why_not": f"{kind.__name__} does not run on shapes alone: {told(error)}"}
    return plan


def advice(at: Any, way: Way, room: int, length: int) -> str:
    """What would make the longest pass fit: as few changes as can be, those first that change no number."""
    caches = [way.cache] if way.device in ("cpu", "mps") else [DEVICE, "cpu"]
    chunks = [way.chunk, *(n for n in CHUNKS if n < way.chunk)]
    dtypes = dict.fromkeys([way.dtype, "bfloat16" if way.dtype in ("float32", "float64") else way.dtype])
    batches = dict.fromkeys([way.batch, 1])
    ways = [
        replace(way, batch=batch, chunk=chunk, dtype=dtype, cache=cache)
        for cache, dtype, chunk, batch in itertools.product(
            dict.fromkeys([way.cache, *caches]), dtypes, chunks, batches
        )
    ]
    # Sorting keeps the order among those with as many changes.
    for other in sorted(ways, key=lambda one: sum(a != b for a, b in zip(astuple(one), astuple(way), strict=True))):
        if (need := at(other)).total + BESIDE <= room:
            words = f"With {other.options(way)} {length:,} tokens take {size(need.total)}, which fits"
            keys = size(at(replace(other, cache=DEVICE)).cache)
            return f"{words}." if other.cache == DEVICE else f"{words}; the machine holds {keys} of keys."
    least = min(ways, key=lambda one: at(one).total)
    need, changed = at(least), least.options(way)
    words = f"No dtype, chunk, batch or cache makes {length:,} tokens fit: {size(need.total)} at least"
    words += f" ({changed})." if changed else "."
    if way.device not in ("cpu", "mps", AUTO) and need.total - need.weights + BESIDE < room:
        more = replace(least, device=AUTO).options(way)
        return f"{words} {more} keeps weights that do not fit in the memory of the machine: slow, and it runs."
    return f"{words} Take a smaller --factor, or more memory."


def astuple(way: Way) -> tuple[Any, ...]:
    return tuple(asdict(way).values())


def timed(plan: Plan, model: Any, ids: Tensor) -> dict[str, Any]:
    """A plan with how long a text takes: from one chunk that is read, and for later ones by counted products.

    ids  [T] of a text, which may be shorter than a chunk
    """
    way, work = plan["way"], Work.of(model)
    text = ids[: way["chunk"] + 1].expand(way["batch"], -1)
    read = partial(losses, model, chunk=way["chunk"], cache=way["cache"])
    # The first call of a process does more than any other; a GPU chooses and loads kernels for each shape.
    read(text if accelerators_of(model) else text[:, : max(2, text.shape[1] // 8)])
    began = time.perf_counter()
    read(text)
    seconds = (time.perf_counter() - began) / way["batch"]
    unit = seconds / work.total(text.shape[1] - 1)
    tokens = text.shape[1] - 1

    def times(length: int) -> dict[str, float]:
        whole = work.total(length)
        return {"seconds": unit * whole, "late": unit * (whole - work.total(max(0, length - tokens)))}

    rows = [row | times(row["length"]) for row in plan["rows"]]
    return {**plan, "rows": rows, "chunk": {"tokens": tokens, "seconds": seconds}}


@contextmanager
def within_memory(words: str, plan: Plan | None) -> Generator[None]:
    """What is said where a device has no room left: what did not fit, what is kept, and what would help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        help = (plan or {}).get("advice") or "Take a smaller --chunk or --batch, or --dtype bfloat16."
        raise RuntimeError(
            f"{words}: the device has no memory left ({told(error)}). Finished passes are kept. {help}"
        ) from error


def sentences(plan: Plan) -> list[str]:
    """The plan in words."""
    way = plan["way"]
    if plan["why_not"]:
        return [f"There is no plan of memory: {plan['why_not']}."]
    last = plan["rows"][-1]
    asked = f"{way['dtype']} on {way['device']}, chunks of {way['chunk']:,}, {way['batch']} side by side"
    words = f"By plan {last['length']:,} tokens take {size(last['total'])} ({asked}, cache on {way['cache']})"
    if plan["memory"] is not None:
        fits = "fits" if last["fits"] else "does not fit"
        words += f", and of {size(plan['memory'])} at hand {size(BESIDE)} are left to what is not counted: it {fits}"
    out = [f"{words}. {plan['advice']}".strip()]
    if (chunk := plan["chunk"]) is None:
        return [*out, "It is computed from the config alone; nothing was measured, so it says no time."]
    early = f"A chunk of {chunk['tokens']:,} took {chunk['seconds']:.2g} s"
    late = f"by counted products the last one of {last['length']:,} tokens takes {last['late']:.2g} s"
    return [*out, f"{early}; {late}, and the whole text {duration(last['seconds'])}."]


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """What a pass takes at each length: headers and rows."""
    columns = ("weights", "cache", "layers", "logits", "total")
    headers, rows = ["tokens", *columns, "fits"], []
    for row in plan["rows"]:
        fits = "" if row["fits"] is None else "yes" if row["fits"] else "no"
        rows.append([f"{row['length']:,}", *(size(row[name]) for name in columns), fits])
        if plan["chunk"] is not None:
            rows[-1].append(duration(row["seconds"]))
    return [*headers, *([] if plan["chunk"] is None else ["a text"])], rows


def size(count: float) -> str:
    """Bytes as a person says them.

    >>> size(3 << 29), size(5 << 20)
    ('1.5 GiB', '5.0 MiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
