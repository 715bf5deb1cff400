"""The plan of a run: the memory of a pass at each length, whether it is there, and what would take less."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posenc.checkpoints.formats.devices import AUTO, at_hand, bytes_of, check_device
from posenc.checkpoints.formats.load import Loaded, dtype_of
from posenc.checkpoints.measures.memory import ERROR, cached, of_pass, scores_of, weights_of
from posenc.checkpoints.measures.perplexity import DEVICE, check_cache
from posenc.foreign.text import told

BESIDE = 1 << 30
"""Bytes that are left to what is not counted: layers at work, the libraries, or a context of CUDA."""

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


def planned(loaded: Loaded, lengths: Sequence[int], way: Way, memory: str | None) -> dict[str, Any]:
    """The plan of passes at some lengths (tokens), as JSON, by the formula of `of_pass`.

    memory  what it is held to, such as "24GB"; None: what the device has free, and what the weights take already
    """
    model, dtype = loaded.model, dtype_of(way.dtype)
    assert dtype is not None
    if memory is None:
        free = at_hand(way.device)
        held = 0 if model.device.type == "meta" else sum(tensor.nbytes for tensor in weights_of(model))
        room = None if free is None else free + held
    else:
        room = bytes_of(memory)
    rows = []
    for length in lengths:
        found = of_pass(model, length, dtype=dtype, chunk=way.chunk, batch=way.batch, cache=way.cache)
        fits = None if room is None else found.total + BESIDE <= room
        rows.append({"length": length, **asdict(found), "total": found.total, "fits": fits})
    advice = smaller(way) if rows[-1]["fits"] is False else ""
    uncounted = [cached(loaded.config)[1]] if model.can_generate() else []
    if getattr(loaded.config, "_attn_implementation", None) == "eager":
        # Of one layer at a time; fused kernels make none.
        scores = way.batch * scores_of(loaded.config, way.chunk, lengths[-1]) * dtype.itemsize
        uncounted.append(f"the scores that its attention makes ({size(scores)} and more at {lengths[-1]:,} tokens)")
    words = " and ".join(filter(None, uncounted))
    return {"way": asdict(way), "memory": room, "rows": rows, "uncounted": words, "advice": advice}


def smaller(way: Way) -> str:
    """The options that take less memory."""
    spreads = way.device not in ("cpu", "mps", AUTO)
    options = {
        "--dtype bfloat16": way.dtype in ("float32", "float64"),
        "--batch 1": way.batch > 1,
        "a smaller --chunk": True,
        "--cache cpu": spreads and way.cache == DEVICE,
        "--device auto": spreads,
        "a smaller --factor": True,
    }
    return f"Less is taken by {', '.join(option for option, helps in options.items() if helps)}."


@contextmanager
def within_memory(words: str, plan: Plan | None) -> Generator[None]:
    """What is said where a device has no room left: what did not fit, what is kept, and what would help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        help = smaller(Way(**plan["way"]) if plan else Way())
        raise RuntimeError(
            f"{words}: the device has no memory left ({told(error)}). Finished passes are kept. {help} On CUDA the "
            f"environment variable PYTORCH_ALLOC_CONF=expandable_segments:True leaves fewer holes."
        ) from error


def sentences(plan: Plan) -> list[str]:
    """The plan in words."""
    way, last = plan["way"], plan["rows"][-1]
    asked = f"{way['dtype']} on {way['device']}, chunks of {way['chunk']:,}, {way['batch']} side by side"
    words = f"By plan {last['length']:,} tokens take {size(last['total'])} ({asked}, cache on {way['cache']})"
    if plan["memory"] is not None:
        fits = "fits" if last["fits"] else "does not fit"
        words += f", and of {size(plan['memory'])} at hand {size(BESIDE)} are left to what is not counted: it {fits}"
    besides = f" and {plan['uncounted']}" if plan["uncounted"] else ""
    return [
        f"{words}. {plan['advice']}".strip(),
        f"Counted are weights, keys and values, and the logits of a chunk, by the config alone; not counted is what "
        f"layers work in{besides}: {ERROR}.",
        *filter(None, [plan.get("refused")]),
    ]


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """What a pass takes at each length: headers and rows."""
    columns = ("weights", "cache", "logits", "total")
    fits = {None: "", True: "yes", False: "no"}
    rows = [[f"{row['length']:,}", *(size(row[name]) for name in columns), fits[row["fits"]]] for row in plan["rows"]]
    return ["tokens", *columns, "fits"], rows


def size(count: float) -> str:
    """Bytes as a person says them.

    >>> size(3 << 29), size(5 << 20)
    ('1.5 GiB', '5.0 MiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
