"""Perplexity of long texts in bounded memory. Chunks are read behind a KV cache, with the logits of one at a time."""

import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.formats.devices import AUTO, input_device
from posenc.checkpoints.kinds.calls import cache_argument
from posenc.checkpoints.live.streaming import Stream
from posenc.checkpoints.measures.measure import (
    WHOLE,
    Inputs,
    Measure,
    Number,
    Progress,
    Value,
    error_of,
    part_progress,
    tokenizer_of,
)
from posenc.foreign import quote
from posenc.lab.texts.data import Piece, read_plain_text

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedTokenizerBase
    from transformers import PreTrainedModel as Model

LOSS_ROWS = 128
"""The number of rows of logits that become losses at once, in float32."""

MAX_TEXT_BYTES = 64 << 20
"""The largest total size of text files (bytes); their tokens take ten times as much memory."""

DEVICE = "device"
CACHE_PLACES = {DEVICE: "where the model is", "cpu": "in the machine's memory, and on the device a layer at a time"}
"""The places of the KV cache of a text."""

LAST_TOKENS = 512
"""The number of "last tokens" at the end of a window."""

MAX_WINDOWS = 24
"""The default number of windows, at most."""

MAX_WINDOW_TOKENS = 8192
"""The default number of tokens in all windows, at most, unless one window takes more."""

DEFAULT_START = 2000
"""The default first token of the first window, in a text that is long enough."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as a model's tokens.

    name     of the text
    sha256   of its bytes, before any tokens
    ids      [N] int64, without any special token
    opening  the special tokens that this model's texts begin with, often one or none
    """

    name: str
    sha256: str
    ids: Tensor
    opening: tuple[int, ...] = ()

    def window(self, start: int, length: int) -> Tensor:
        """Return the tokens [length] of a window with its opening tokens; `start` counts tokens of the text.

        Raises ValueError where the text ends before the window.
        """
        end = start + length - len(self.opening)
        if end > len(self.ids):
            raise ValueError(
                f"{self.name} has {len(self.ids):,} tokens, and a window of {length:,} from token {start:,} takes "
                f"{end:,}; give a longer --text, or a smaller --factor, --start or --samples"
            )
        return torch.cat((torch.tensor(self.opening, dtype=torch.long), self.ids[start:end]))


def read_texts(paths: Sequence[str | Path]) -> tuple[str, str]:
    """Return the name and the content of joined text files; without any, of the Python language reference.

    Raises ValueError for a file that does not exist or is not UTF-8, and for more than MAX_TEXT_BYTES.
    """
    if not paths:
        from pydoc_data.topics import topics

        return "the Python language reference (pydoc_data.topics)", "\n\n".join(topics.values())
    size = sum(Piece.from_file(Path(path)).size for path in paths)
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"--text holds {size:,} bytes, and at most {MAX_TEXT_BYTES:,} are read; give an excerpt of it")
    text = "\n".join(read_plain_text(Path(path)) for path in paths)
    if not text.strip():
        raise ValueError(f"{', '.join(map(str, paths))} holds no text; give --text files with text in them")
    return ", ".join(Path(path).name for path in paths), text


def tokenize_texts(paths: Sequence[str | Path], tokenizer: "PreTrainedTokenizerBase") -> Tokens:
    """Return the tokens of text files, or of the Python language reference; raises as `read_texts` does."""
    name, text = read_texts(paths)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return Tokens(name, sha256, torch.tensor(ids, dtype=torch.long), opening_of(tokenizer))


def opening_of(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return the special tokens that a tokenizer puts before a text."""
    begins, opening = getattr(tokenizer, "bos_token_id", None), tuple(tokenizer("")["input_ids"][:1])
    return opening if begins is not None and opening == (begins,) else ()


def losses(
    model: "Model",
    ids: Tensor,
    *,
    chunk: int = 1024,
    tell: Progress | None = None,
    last: int | None = None,
    cache: str = DEVICE,
) -> Tensor:
    """Return -ln p [T - 1] (nats, float32) of ids [T] without the first, given all earlier tokens.

    model  a transformers model with a language modelling head, in evaluation mode
    chunk  how many tokens go through it at once: memory grows with chunk times the vocabulary, and with the cache
    tell   a progress callback
    last   the number of losses to return, from the end; None: all
    cache  where keys are kept: "device", or "cpu", from where they go to a CUDA device layer by layer

    Every prediction reads only earlier tokens, so with an encoding that does not depend on the length, the losses of a
    text are the first losses of a longer text that begins with it.

    Raises ValueError for fewer than two tokens, or a chunk below 1.
    """
    pairs = predictions(model, ids, chunk, tell, PrefixCache(cache), last=last)
    # A loop would hold the logits of a chunk while the next ones are made. The losses stay on the device, because a
    # copy after each chunk would stall it.
    return torch.cat([*starmap(row_losses, pairs)]).cpu()


def streamed_losses(
    model: "Model", ids: Tensor, *, sinks: int = 4, window: int = 1020, slack: int = 64, tell: Progress | None = None
) -> Tensor:
    """Return the same losses of a text that is read by `posenc.checkpoints.stream`: memory does not grow with it.

    Each token is predicted from the first `sinks` tokens and from the `window` to `window + slack` tokens before it.

    Raises ValueError for fewer than two tokens, numbers out of range, and a model whose cached keys cannot be moved.
    """
    check_ids(ids)
    reading, parts, start = Stream(model, sinks, window, slack), [], 0
    for piece in reading.pieces(ids[:-1]):
        logits = reading.read(piece)
        parts.append(row_losses(logits, ids[start + 1 : start + 1 + len(piece)].to(logits.device)))
        start += len(piece)
        if tell is not None:
            tell(start / (len(ids) - 1))
    return torch.cat(parts).cpu()


def row_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the losses [n] of predictions [n, vocabulary], computed some rows at a time."""
    parts = [slice(row, row + LOSS_ROWS) for row in range(0, len(targets), LOSS_ROWS)]
    return torch.cat([F.cross_entropy(logits[rows].float(), targets[rows], reduction="none") for rows in parts])


def check_ids(ids: Tensor) -> None:
    """Raise ValueError unless there are two tokens or more."""
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"predictions take the ids [T] of two tokens or more, got shape {list(ids.shape)}")


class PrefixCache:
    """A KV cache with its tokens [T], so that a common prefix of texts is read once. It is at one of CACHE_PLACES."""

    def __init__(self, place: str = DEVICE) -> None:
        self.place, self.ids = place, torch.empty(0, dtype=torch.long)
        self.cache: Any = None

    def next_cache(self, model: "Model") -> "Cache | None":
        """Return the cache for the next tokens; None where the model makes its own."""
        if self.cache is None and self.place != DEVICE:
            from transformers import DynamicCache

            return DynamicCache(config=model.config, offloading=True)
        return self.cache

    def keep_prefix(self, ids: Tensor) -> None:
        """Crop the cache to the common prefix with ids [T], or empty it if a layer drops tokens (windows)."""
        overlap = min(len(ids), len(self.ids))
        different = (ids[:overlap] != self.ids[:overlap]).nonzero()
        common = int(different[0]) if len(different) else overlap
        if common == len(self.ids):
            return
        if common and can_crop(self.cache):
            self.cache.crop(common - len(self.ids))
        else:
            common, self.cache = 0, None
        self.ids = ids[:common]


def can_crop(cache: object) -> bool:
    """Whether a cache of transformers can be cropped, because its layers hold every token."""
    layers = getattr(cache, "layers", ())
    # A cache with offloading may be on its way between devices.
    stays = not getattr(cache, "offloading", False)
    return bool(layers) and stays and all(type(layer).__name__ == "DynamicLayer" for layer in layers)


def predictions(
    model: "Model", ids: Tensor, chunk: int, tell: Progress | None, prefix: PrefixCache, *, last: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits [n, vocabulary] of each chunk and the tokens [n] that they predict. Raises as `losses` does.

    prefix  the tokens of these ids that the model has read; they are not predicted, and each chunk is added
    last    the number of predictions, from the end; None: all. No other logits are computed, unless the model cannot
            leave them out
    """
    check_ids(ids)
    if chunk < 1:
        raise ValueError(f"chunk must be 1 token or more, got {chunk}")
    device_ids, name = ids.to(input_device(model)), cache_argument(model)
    chooses = "logits_to_keep" in inspect.signature(model.forward).parameters
    # The last token predicts nothing.
    first, last_place = len(prefix.ids), len(ids) - 1
    for start in range(first, last_place, chunk):
        end = min(start + chunk, last_place)
        count = end - start if last is None else max(0, min(end - start, last - (last_place - end)))
        # logits_to_keep=0 would keep all.
        options: dict[str, Any] = {"logits_to_keep": max(1, count)} if chooses and count < end - start else {}
        options[name] = prefix.next_cache(model)
        # As a decorator it would hold the last logits while the next ones are made.
        with torch.inference_mode():
            output = model(input_ids=device_ids[None, start:end], use_cache=True, **options)
        prefix.ids, prefix.cache = ids[:end], getattr(output, name)
        if count:
            yield output.logits[0, -count:], device_ids[end + 1 - count : end + 1]
        # Free the logits of this chunk before the next ones are made.
        del output
        if tell is not None:
            tell((end - first) / (last_place - first))


def check_cache(place: str, device: str) -> None:
    """Raise ValueError for an unknown place of the KV cache, or one that would change nothing."""
    if place not in CACHE_PLACES:
        raise ValueError(f"--cache is one of {', '.join(CACHE_PLACES)}, got {quote(place)}")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device_type = device if device != AUTO else "cpu" if accelerator is None else accelerator.type
    if place != DEVICE and not device_type.startswith("cuda"):
        raise ValueError(f"--cache cpu keeps keys off a CUDA device, and this model is on {device_type}; leave it out")


def perplexity(windows: Sequence[Tensor], first: int, end: int) -> float:
    """Return exp of the mean loss of the tokens first..end-1 of all windows. A window's first token has no loss.

    >>> perplexity([torch.tensor([1.0, 3.0])], 1, 3) == math.exp(2)
    True
    """
    short = [len(window) + 1 for window in windows if len(window) + 1 < end]
    if short or first < 1 or end <= first:
        raise ValueError(f"tokens {first} to {end} do not lie in windows of {short or 'any'} tokens")
    loss = torch.cat([window[first - 1 : end - 1] for window in windows]).double().mean()
    # Near the largest exponent of a double.
    return math.exp(min(float(loss), 700.0))


def curve(windows: Sequence[Tensor], bins: int = 64) -> tuple[list[float], list[float]]:
    """Return the perplexity by position: the middle of each bin (tokens), and the perplexity within it."""
    length = min(len(window) for window in windows) + 1
    edges = [1 + round((length - 1) * place / bins) for place in range(bins + 1)]
    pairs = [(a, b) for a, b in pairwise(edges) if b > a]
    return [(a + b - 1) / 2 for a, b in pairs], [perplexity(windows, a, b) for a, b in pairs]


@torch.inference_mode()
def likeliest_tokens(
    model: "Model", ids: Tensor, last: int, chunk: int, prefix: PrefixCache, tell: Progress | None = None
) -> Tensor:
    """Return the likeliest token at each of the last places of a text, given all earlier tokens: [last].

    prefix  a cache of an earlier text, whose common prefix with this one is not read again
    """
    prefix.keep_prefix(ids[: len(ids) - 1 - last])
    pairs = predictions(model, ids, chunk, tell, prefix, last=last)
    return torch.cat([*starmap(lambda logits, _: logits.argmax(-1), pairs)]).cpu()


class Perplexity(Measure):
    """Language models: the perplexity of a text, of all tokens of a window and of its last tokens.

    A pass at the longest length covers every shorter one, unless the method depends on the length.
    """

    name = "perplexity"
    numbers = (
        Number("last", f"perplexity of the last {LAST_TOKENS} tokens", False),
        Number("mean", "perplexity of all tokens", False),
    )
    price = "mean"
    baselines: ClassVar = {"windows": "each token predicted from at most the trained length before it"}
    options = frozenset({"text", "samples", "start", "chunk", "cache"})

    def __init__(self, inputs: Inputs) -> None:
        """Raises CannotRead without a tokenizer, and ValueError where the text is too short for the windows."""
        tokenizer_of(inputs.checkpoint)
        self.text, self.trained_length, self.stride = inputs.tokens, inputs.trained_length, inputs.longest
        self.chunk, self.cache = inputs.chunk, inputs.cache
        room = len(self.text.ids) + len(self.text.opening)
        limit = min(MAX_WINDOWS, MAX_WINDOW_TOKENS // self.stride, (room - (inputs.start or 0)) // self.stride)
        self.count = max(1, limit) if inputs.samples is None else inputs.samples
        latest = max(0, room - self.count * self.stride)
        self.start = min(DEFAULT_START, latest) if inputs.start is None else inputs.start
        # Raise now where the text is too short for the last window.
        self.window(self.count - 1, self.stride)
        windows = "1 window" if self.count == 1 else f"{self.count} windows"
        self.source = (
            f"{self.text.name}, {len(self.text.ids):,} tokens, SHA-256 {self.text.sha256}; {windows} of "
            f"{self.stride:,} tokens, from token {self.start:,}; chunks of {self.chunk:,}"
        )
        self.facts = {"text": self.text.sha256, "start": self.start, "windows": self.count, "stride": self.stride}
        self.facts |= {"chunk": self.chunk}

    def window(self, place: int, length: int) -> Tensor:
        """Return the ids [length] of a window; windows follow one another."""
        return self.text.window(self.start + place * self.stride, length)

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths) if by_length else tuple(lengths[-1:])

    def work(self, length: int) -> float:
        return self.count * length

    def run(self, model: "Model", length: int, how: str = WHOLE, tell: Progress | None = None) -> dict[str, Any]:
        results: list[list[float]] = []
        for place in range(self.count):
            share, ids = part_progress(tell, place, self.count), self.window(place, length)
            if how == WHOLE:
                loss = losses(model, ids, chunk=self.chunk, tell=share, cache=self.cache)
            else:
                loss = windowed_losses(model, ids, self.trained_length, chunk=self.chunk, tell=share, cache=self.cache)
            results.append([round(nats, 5) for nats in loss.tolist()])
        return {"losses": results, "read": self.count * length}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        windows = window_losses(raw, length)
        firsts = {"last": max(1, length - LAST_TOKENS), "mean": 1}
        return {name: window_perplexity(windows, first, length) for name, first in firsts.items()}


def window_losses(raw: Mapping[int, Mapping[str, Any]], length: int) -> list[Tensor]:
    """Return each window's losses [T - 1] at a length, from that length's pass or the longest."""
    return [torch.tensor(window) for window in raw.get(length, raw[max(raw)])["losses"]]


def window_perplexity(windows: Sequence[Tensor], first: int, end: int) -> Value:
    """Return the perplexity of the tokens first..end-1 of all windows, with its error over windows."""
    value = perplexity(windows, first, end)
    means = tuple(float(window[first - 1 : end - 1].double().mean()) for window in windows)
    error = error_of(means)
    # exp' = exp, so an error of the mean loss is a relative error of the perplexity.
    return Value(value, None if error is None else value * error, means)


def windowed_losses(
    model: "Model", ids: Tensor, window: int, *, chunk: int = 1024, tell: Progress | None = None, cache: str = DEVICE
) -> Tensor:
    """Return -ln p of each token but the first. Past the first window, windows move by half a window."""
    chunk, half, tokens = min(chunk, window), max(1, window // 2), len(ids)
    parts, end_before = [losses(model, ids[:window], chunk=chunk, cache=cache)], min(window, tokens)
    for end in range(window + half, tokens + half, half):
        end = min(end, tokens)
        window_ids = ids[max(0, end - window) : end]
        parts.append(losses(model, window_ids, chunk=chunk, last=end - end_before, cache=cache))
        end_before = end
        if tell is not None:
            tell(end / tokens)
    return torch.cat(parts)
