"""Perplexity of long texts in bounded memory: chunk after chunk behind a cache, the logits of one chunk at a time."""

import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.formats.devices import AUTO, first_of
from posenc.checkpoints.kinds.calls import cache_name
from posenc.checkpoints.live.streaming import Stream
from posenc.checkpoints.measures.measure import (
    WHOLE,
    Given,
    Measure,
    Number,
    Tell,
    Value,
    error_of,
    part_of,
    tokenizer_of,
)
from posenc.foreign import quoted
from posenc.lab.texts.data import Piece, read_text

ROWS = 128
"""How many rows of logits are turned into losses at once, in float32."""

MOST_TEXT = 64 << 20
"""How large the text files may be together (bytes): all of them become tokens, which take ten times as much memory."""

DEVICE = "device"
PLACES = {DEVICE: "where the model is", "cpu": "in the memory of the machine, and on the device a layer at a time"}
"""Where the keys and values of a text are kept while it is read."""

LAST = 512
"""How many tokens at the end of a window make "the last tokens"."""

WINDOWS = 24
"""The most windows that are measured where nobody says how many."""

SHORT = 8192
"""And the most tokens of all of them together, unless one takes more."""

BEGIN = 2000
"""The token of the text where the first window begins where nobody says which, in a text that is long enough."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as a model's tokens.

    name     what it is called
    sha256   of its bytes, before any tokens
    ids      [N] int64, without any special token
    opening  the special tokens that this model's texts begin with, often one or none
    """

    name: str
    sha256: str
    ids: Tensor
    opening: tuple[int, ...] = ()

    def window(self, start: int, length: int) -> Tensor:
        """The tokens [length] of a window, its opening ones included; `start` counts tokens of the text.

        Raises ValueError where the text ends before the window.
        """
        need = start + length - len(self.opening)
        if need > len(self.ids):
            raise ValueError(
                f"{self.name} has {len(self.ids):,} tokens, and a window of {length:,} from token {start:,} takes "
                f"{need:,}; give a longer --text, or a smaller --factor, --start or --samples"
            )
        return torch.cat((torch.tensor(self.opening, dtype=torch.long), self.ids[start:need]))


def read(paths: Sequence[str | Path]) -> tuple[str, str]:
    """The name and the content of text files behind one another; without any, of the Python language reference.

    Raises ValueError for a file that does not exist or is not UTF-8, and for more text than is read.
    """
    if not paths:
        from pydoc_data.topics import topics

        return "the Python language reference (pydoc_data.topics)", "\n\n".join(topics.values())
    size = sum(Piece.of(Path(path)).size for path in paths)
    if size > MOST_TEXT:
        raise ValueError(f"--text holds {size:,} bytes, and at most {MOST_TEXT:,} are read; give an excerpt of it")
    text = "\n".join(read_text(Path(path)) for path in paths)
    if not text.strip():
        raise ValueError(f"{', '.join(map(str, paths))} holds no text; give --text files with text in them")
    return ", ".join(Path(path).name for path in paths), text


def tokens(paths: Sequence[str | Path], tokenizer: Any) -> Tokens:
    """The tokens of text files, or of the Python language reference, as `read` and a transformers tokenizer have them.

    Raises ValueError as `read` does.
    """
    name, text = read(paths)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return Tokens(name, sha256, torch.tensor(ids, dtype=torch.long), opening_of(tokenizer))


def opening_of(tokenizer: Any) -> tuple[int, ...]:
    """The special tokens that a model's texts begin with, as its tokenizer has them."""
    begins, opening = getattr(tokenizer, "bos_token_id", None), tuple(tokenizer("")["input_ids"][:1])
    return opening if begins is not None and opening == (begins,) else ()


def losses(
    model: Any,
    ids: Tensor,
    *,
    chunk: int = 1024,
    tell: Tell | None = None,
    last: int | None = None,
    cache: str = DEVICE,
) -> Tensor:
    """-ln p (nats, float32) of each token but the first, given those before it: [T - 1] for ids [T].

    model  a transformers model with a language modelling head, in evaluation mode
    chunk  how many tokens go through it at once: memory grows with chunk times the vocabulary, and with the cache
    tell   is told how much of the work is done
    last   how many losses at the end are wanted; None: all
    cache  where keys are kept: "device", or "cpu", from where they go to a CUDA device layer by layer

    Every prediction reads the tokens before it alone, so that of an encoding that does not depend on the length the
    losses of a shorter text are the first ones of a longer text that begins with it.

    Raises ValueError for fewer than two tokens, or a chunk below 1.
    """
    read = predictions(model, ids, chunk, tell, Read(cache), last=last)
    # A loop would hold the logits of a chunk while the next ones are made. What waits on the device costs less than a
    # stop of it for each chunk.
    return torch.cat([*starmap(of_rows, read)]).cpu()


def streamed_losses(
    model: Any, ids: Tensor, *, sinks: int = 4, window: int = 1020, slack: int = 64, tell: Tell | None = None
) -> Tensor:
    """The same of a text that is read as `posenc.checkpoints.stream` reads: memory does not grow with it.

    Each token is predicted from the first `sinks` ones and from `window` to `window + slack` before it.

    Raises ValueError for fewer than two tokens, numbers out of range, and a model whose cached keys cannot be moved.
    """
    check_ids(ids)
    reading, found, done = Stream(model, sinks, window, slack), [], 0
    for piece in reading.pieces(ids[:-1]):
        logits = reading.read(piece)
        found.append(of_rows(logits, ids[done + 1 : done + 1 + len(piece)].to(logits.device)))
        done += len(piece)
        if tell is not None:
            tell(done / (len(ids) - 1))
    return torch.cat(found).cpu()


def of_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """The losses [n] of predictions [n, vocabulary], some rows at a time."""
    parts = [slice(row, row + ROWS) for row in range(0, len(targets), ROWS)]
    return torch.cat([F.cross_entropy(logits[rows].float(), targets[rows], reduction="none") for rows in parts])


def check_ids(ids: Tensor) -> None:
    """Raises ValueError unless something follows a token."""
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"predictions take the ids [T] of two tokens or more, got shape {list(ids.shape)}")


class Read:
    """What a model has read: the tokens [T] in its cache, so that what texts begin with alike is read once.

    place  where the cache is kept: one of PLACES
    """

    def __init__(self, place: str = DEVICE) -> None:
        self.place, self.ids = place, torch.empty(0, dtype=torch.long)
        self.cache: Any = None

    def begun(self, model: Any) -> Any:
        """The cache for the next tokens; None where the model makes its own."""
        if self.cache is None and self.place != DEVICE:
            from transformers import DynamicCache

            return DynamicCache(config=model.config, offloading=True)
        return self.cache

    def go_back(self, ids: Tensor) -> None:
        """Forget the tokens from the first one on that does not begin these ids [T] too.

        All are forgotten where a layer does not hold every token, as windows and recurrent states do not.
        """
        most = min(len(ids), len(self.ids))
        different = (ids[:most] != self.ids[:most]).nonzero()
        alike = int(different[0]) if len(different) else most
        if alike == len(self.ids):
            return
        if alike and can_go_back(self.cache):
            self.cache.crop(alike - len(self.ids))
        else:
            alike, self.cache = 0, None
        self.ids = ids[:alike]


def can_go_back(cache: Any) -> bool:
    """Whether the last tokens can be taken from a cache of transformers', because its layers hold all of them."""
    layers = getattr(cache, "layers", ())
    # What is on its way between devices is left alone.
    at_rest = not getattr(cache, "offloading", False)
    return bool(layers) and at_rest and all(type(layer).__name__ == "DynamicLayer" for layer in layers)


def predictions(
    model: Any, ids: Tensor, chunk: int, tell: Tell | None = None, read: Read | None = None, *, last: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits [n, vocabulary] of each chunk, with the tokens [n] that they predict; raises as `losses` does.

    read  what the model has read of these ids already, of which nothing is predicted again; it grows by each chunk
    last  how many predictions at the end are wanted; None: all. A chunk before them gives none, and no logits are made
          that are not wanted, unless the model makes them all by itself
    """
    check_ids(ids)
    if chunk < 1:
        raise ValueError(f"chunk must be 1 token or more, got {chunk}")
    read, on_device, name = read or Read(), ids.to(first_of(model)), cache_name(model)
    chooses = "logits_to_keep" in inspect.signature(model.forward).parameters
    # The last token predicts nothing.
    first, until = len(read.ids), len(ids) - 1
    for start in range(first, until, chunk):
        end = min(start + chunk, until)
        wanted = end - start if last is None else max(0, min(end - start, last - (until - end)))
        # None of them would be all.
        kept = {"logits_to_keep": max(1, wanted)} if chooses and wanted < end - start else {}
        # As a decorator it would hold what was given last while the next is made.
        with torch.inference_mode():
            out = model(input_ids=on_device[None, start:end], use_cache=True, **{name: read.begun(model)}, **kept)
        read.ids, read.cache = ids[:end], getattr(out, name)
        if wanted:
            yield out.logits[0, -wanted:], on_device[end + 1 - wanted : end + 1]
        # The logits of this chunk must go before those of the next come.
        del out
        if tell is not None:
            tell((end - first) / (until - first))


def check_cache(place: str, device: str) -> None:
    """Raises ValueError for a place of the cache that there is not, or that would change nothing."""
    if place not in PLACES:
        raise ValueError(f"--cache is one of {', '.join(PLACES)}, got {quoted(place)}")
    there = torch.accelerator.current_accelerator(check_available=True)
    on = device if device != AUTO else "cpu" if there is None else there.type
    if place != DEVICE and not on.startswith("cuda"):
        raise ValueError(f"--cache cpu keeps keys off a CUDA device, and this model is on {on}; leave it out")


def perplexity(windows: Sequence[Tensor], first: int, end: int) -> float:
    """exp of the mean loss of the tokens first..end-1 of all windows; the first token of a window has no loss.

    >>> perplexity([torch.tensor([1.0, 3.0])], 1, 3) == math.exp(2)
    True
    """
    short = [len(window) + 1 for window in windows if len(window) + 1 < end]
    if short or first < 1 or end <= first:
        raise ValueError(f"tokens {first} to {end} do not lie in windows of {short or 'any'} tokens")
    loss = torch.cat([window[first - 1 : end - 1] for window in windows]).double().mean()
    # Beyond this a double has no exponential, and nothing is learned from it.
    return math.exp(min(float(loss), 700.0))


def curve(windows: Sequence[Tensor], bins: int = 64) -> tuple[list[float], list[float]]:
    """Perplexity by position: the middle of each bin (tokens), and the perplexity within it."""
    length = min(len(window) for window in windows) + 1
    edges = [1 + round((length - 1) * place / bins) for place in range(bins + 1)]
    pairs = [(a, b) for a, b in pairwise(edges) if b > a]
    return [(a + b - 1) / 2 for a, b in pairs], [perplexity(windows, a, b) for a, b in pairs]


@torch.inference_mode()
def likeliest(
    model: Any, ids: Tensor, last: int, chunk: int, tell: Tell | None = None, read: Read | None = None
) -> Tensor:
    """The likeliest token at each of the last places of a text, given all before it: [last].

    read  what the model read before, which goes on from where this text begins otherwise
    """
    read = read or Read()
    read.go_back(ids[: len(ids) - 1 - last])
    wanted = predictions(model, ids, chunk, tell, read, last=last)
    return torch.cat([*starmap(lambda logits, _: logits.argmax(-1), wanted)]).cpu()


class Perplexity(Measure):
    """Language models: the perplexity of a text, of all tokens of a window and of its last ones.

    A pass at the longest length says the same of every shorter one, unless the method itself depends on the length.
    """

    name = "perplexity"
    numbers = (
        Number("last", f"perplexity of the last {LAST} tokens", False),
        Number("mean", "perplexity of all tokens", False),
    )
    price = "mean"
    baselines: ClassVar = {"windows": "each token predicted from at most the trained length before it"}
    options = frozenset({"text", "samples", "start", "chunk", "cache"})

    def __init__(self, given: Given) -> None:
        """Raises CannotRead without a tokenizer, and ValueError where the text has less than the windows take."""
        tokenizer_of(given.loaded)
        self.text, self.trained, self.stride, self.chunk = given.tokens, given.trained, given.longest, given.chunk
        self.cache = given.cache
        room = len(self.text.ids) + len(self.text.opening)
        most = max(1, min(WINDOWS, SHORT // self.stride, (room - (given.start or 0)) // self.stride))
        self.count = most if given.samples is None else given.samples
        latest = max(0, room - self.count * self.stride)
        self.start = min(BEGIN, latest) if given.start is None else given.start
        # All of the windows are there, or nothing is begun.
        self.window(self.count - 1, self.stride)
        windows = "1 window" if self.count == 1 else f"{self.count} windows"
        self.on = (
            f"{self.text.name}, {len(self.text.ids):,} tokens, SHA-256 {self.text.sha256}; {windows} of "
            f"{self.stride:,} tokens, from token {self.start:,}; chunks of {self.chunk:,}"
        )
        self.facts = {"text": self.text.sha256, "start": self.start, "windows": self.count, "stride": self.stride}
        self.facts |= {"chunk": self.chunk}

    def window(self, place: int, length: int) -> Tensor:
        """The ids [length] of a window; windows lie behind one another."""
        return self.text.window(self.start + place * self.stride, length)

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths) if by_length else tuple(lengths[-1:])

    def work(self, length: int) -> float:
        return self.count * length

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        found: list[list[float]] = []
        for place in range(self.count):
            share, ids = part_of(tell, place, self.count), self.window(place, length)
            if how == WHOLE:
                loss = losses(model, ids, chunk=self.chunk, tell=share, cache=self.cache)
            else:
                loss = losses_in_windows(model, ids, self.trained, chunk=self.chunk, tell=share, cache=self.cache)
            found.append([round(nats, 5) for nats in loss.tolist()])
        return {"losses": found, "read": self.count * length}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        windows = windows_of(raw, length)
        firsts = {"last": max(1, length - LAST), "mean": 1}
        return {name: of_windows(windows, first, length) for name, first in firsts.items()}


def windows_of(raw: Mapping[int, Mapping[str, Any]], length: int) -> list[Tensor]:
    """The losses [T - 1] of each window at a length: its own pass, or the longest, which says the same."""
    return [torch.tensor(window) for window in raw.get(length, raw[max(raw)])["losses"]]


def of_windows(windows: Sequence[Tensor], first: int, end: int) -> Value:
    """The perplexity of the tokens first..end-1 of all windows, with its error from window to window."""
    value = perplexity(windows, first, end)
    each = tuple(float(window[first - 1 : end - 1].double().mean()) for window in windows)
    error = error_of(each)
    # exp' = exp: an error of the mean loss is a share of the perplexity.
    return Value(value, None if error is None else value * error, each)


def losses_in_windows(
    model: Any, ids: Tensor, window: int, *, chunk: int = 1024, tell: Tell | None = None, cache: str = DEVICE
) -> Tensor:
    """-ln p of each token but the first; past the window, from windows that begin half a window later."""
    chunk, half, tokens = min(chunk, window), max(1, window // 2), len(ids)
    found, done = [losses(model, ids[:window], chunk=chunk, cache=cache)], min(window, tokens)
    for end in range(window + half, tokens + half, half):
        end = min(end, tokens)
        of_window = ids[max(0, end - window) : end]
        found.append(losses(model, of_window, chunk=chunk, last=end - done, cache=cache))
        done = end
        if tell is not None:
            tell(end / tokens)
    return torch.cat(found)
