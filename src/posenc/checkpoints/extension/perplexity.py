"""Perplexity of long texts in bounded memory: chunk after chunk behind a cache, the logits of one chunk at a time."""

import ctypes
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.kinds.calls import cache_name
from posenc.checkpoints.live.streaming import Stream, Window
from posenc.lab.texts.data import Piece, read_text

ROWS = 128
"""How many rows of logits are turned into losses at once, in float32."""

MOST_TEXT = 64 << 20
"""How large the text files may be together (bytes): all of them become tokens, which take ten times as much memory."""

LAST = 512
"""How many tokens at the end of a window make "the last tokens"."""

Tell = Callable[[float], None]
"""Is told which share of the work of a pass is done, from 0 to 1."""


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
                f"{need:,}; give a longer --text, or a smaller --factor, --start or --windows"
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
    begins = getattr(tokenizer, "bos_token_id", None)
    opening = tuple(tokenizer("")["input_ids"][:1])
    return Tokens(
        name,
        hashlib.sha256(text.encode()).hexdigest(),
        torch.tensor(ids, dtype=torch.long),
        opening if begins is not None and opening == (begins,) else (),
    )


def losses(model: Any, ids: Tensor, *, chunk: int = 1024, tell: Tell | None = None) -> Tensor:
    """-ln p (nats, float32) of each token but the first, given those before it: [T - 1] for ids [T].

    model  a transformers model with a language modelling head, in evaluation mode
    chunk  how many tokens go through it at once: memory grows with chunk times the vocabulary, and with the cache
    tell   is told how much of the work is done

    Every prediction reads the tokens before it alone, so that of an encoding that does not depend on the length the
    losses of a shorter text are the first ones of a longer text that begins with it.

    Raises ValueError for fewer than two tokens, or a chunk below 1.
    """
    found = []
    for logits, targets in predictions(model, ids, chunk, tell):
        found += of_rows(logits, targets)
    return torch.cat(found)


def streamed_losses(
    model: Any, ids: Tensor, *, sinks: int = 4, window: int = 1020, slack: int = 64, tell: Tell | None = None
) -> Tensor:
    """The same of a text that is read as `posenc.checkpoints.stream` reads: memory does not grow with it.

    Each token is predicted from the first `sinks` ones and from `window` to `window + slack` before it.

    Raises ValueError for fewer than two tokens, numbers out of range, and a model whose cached keys cannot be moved.
    """
    check_ids(ids)
    reading, found, done = Stream(model, Window(sinks, window, slack)), [], 0
    for piece in reading.pieces(ids[:-1]):
        logits = reading.read(piece)
        found += of_rows(logits, ids[done + 1 : done + 1 + len(piece)].to(logits.device))
        done += len(piece)
        if tell is not None:
            tell(done / (len(ids) - 1))
    return torch.cat(found)


def of_rows(logits: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The losses of predictions [n, vocabulary], some rows at a time."""
    for row in range(0, len(targets), ROWS):
        rows = slice(row, row + ROWS)
        yield F.cross_entropy(logits[rows].float(), targets[rows], reduction="none").cpu()


def check_ids(ids: Tensor) -> None:
    """Raises ValueError unless something follows a token."""
    if ids.dim() != 1 or len(ids) < 2:
        raise ValueError(f"predictions take the ids [T] of two tokens or more, got shape {list(ids.shape)}")


@torch.inference_mode()
def predictions(model: Any, ids: Tensor, chunk: int, tell: Tell | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits [n, vocabulary] of each chunk, with the tokens [n] that they predict; raises as `losses` does."""
    check_ids(ids)
    if chunk < 1:
        raise ValueError(f"chunk must be 1 token or more, got {chunk}")
    work, cache, ids, name = Work.of(model), None, ids.to(model.device), cache_name(model)
    # The last token predicts nothing.
    read = len(ids) - 1
    for start in range(0, read, chunk):
        end = min(start + chunk, read)
        out = model(input_ids=ids[None, start:end], use_cache=True, **{name: cache})
        cache = getattr(out, name)
        yield out.logits[0], ids[start + 1 : end + 1]
        # The logits of this chunk must go before those of the next come.
        del out
        if tell is not None:
            tell(work.share(end, read))


@dataclass(frozen=True)
class Work:
    """How the cost of a token grows with the tokens before it: 1 + position / even, in any unit.

    even  the position where attention over the past costs as much as everything else (tokens)
    """

    even: float

    @classmethod
    def of(cls, model: Any) -> "Work":
        """Counted in products: two for each weight, four for each layer, channel and token of the past."""
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        layers, width = getattr(config, "num_hidden_layers", 1), getattr(config, "hidden_size", 1)
        weights = sum(p.numel() for p in model.parameters())
        return cls(weights / (2 * layers * width))

    def total(self, tokens: float) -> float:
        return tokens + tokens * tokens / (2 * self.even)

    def share(self, done: int, of: int) -> float:
        return self.total(done) / self.total(of)


@dataclass(frozen=True)
class Measures:
    """What a window says of a method at one length.

    length  tokens of the window
    mean    perplexity of all its tokens
    last    perplexity of its last 512 tokens, or of all where it has fewer
    """

    length: int
    mean: float
    last: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measures(windows: Sequence[Tensor], length: int) -> Measures:
    """The measures at a length, from the losses [T - 1] of windows of that length or more.

    Windows count alike: the perplexity is exp of the mean loss over the tokens of all of them.
    """
    return Measures(length, perplexity(windows, 1, length), perplexity(windows, max(1, length - LAST), length))


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


def bands(windows: Sequence[Tensor], edges: Sequence[int]) -> list[tuple[int, int, float]]:
    """(first, end, perplexity) of the tokens between lengths: from 0 to the first, and so on."""
    ends = sorted(set(edges))
    return [(first, end, perplexity(windows, max(first, 1), end)) for first, end in zip([0, *ends], ends, strict=False)]


def curve(windows: Sequence[Tensor], bins: int = 64) -> tuple[list[float], list[float]]:
    """Perplexity by position: the middle of each bin (tokens), and the perplexity within it."""
    length = min(len(window) for window in windows) + 1
    edges = [1 + round((length - 1) * place / bins) for place in range(bins + 1)]
    pairs = [(a, b) for a, b in pairwise(edges) if b > a]
    return [(a + b - 1) / 2 for a, b in pairs], [perplexity(windows, a, b) for a, b in pairs]


class Meter:
    """Time and memory of what is done inside: wall and CPU seconds, and the peak of the process's memory (MiB)."""

    def __enter__(self) -> "Meter":
        clear = Path("/proc/self/clear_refs")
        self.sees_peaks = clear.exists()
        if self.sees_peaks:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                # What an earlier pass has freed is not this one's.
                trim(0)
            # Writing 5 sets the peak back to what is held now.
            clear.write_text("5")
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.peak_mib = None
        if self.sees_peaks:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            self.peak_mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
