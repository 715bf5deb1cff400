"""Generate endless text with a live model, whose cache keeps the first tokens and the newest."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.checkpoints.kinds.calls import cache_argument
from posenc.checkpoints.live.moving_keys import movable
from posenc.model.generation import Choice


class Stream:
    """A text of any length in a cache of at most sinks + window + slack tokens. Positions count from 0.

    sinks   number of first tokens to keep, the attention sinks (1 to 4 as published; 0 shows the effect of none)
    window  number of newest tokens to keep
    slack   number of further tokens before the cache is trimmed: keys move once for that many tokens
    tokens  the cached tokens, a MovableCache

    Raises ValueError for numbers out of range, and for a model whose cached keys cannot move.
    """

    def __init__(self, model: nn.Module, sinks: int = 4, window: int = 1020, slack: int = 64) -> None:
        from transformers import DynamicCache

        self.sinks, self.window = checks.whole("sinks", sinks, 0), checks.whole("window", window, 1)
        self.slack = checks.whole("slack", slack, 1)
        self.model, self.device = model, next(model.parameters()).device
        self.tokens = movable(model, DynamicCache())
        if self.tokens.keys.why_fixed:
            raise ValueError(f"{type(model).__name__} cannot read a stream: {self.tokens.keys.why_fixed}")

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        """Return the logits [T, vocabulary] of the next ids [T], at most sinks + window. Each sees all in the cache."""
        count, capacity = 0 if self.tokens.held is None else self.tokens.held.tokens, self.sinks + self.window
        if count + len(ids) > capacity + self.slack and count > capacity:
            self.tokens.evict([*range(self.sinks), *range(count - self.window, count)])
        arguments = self.tokens.inputs(len(ids)) | {cache_argument(self.model): self.tokens.cache}
        return self.model(input_ids=ids.to(self.device)[None], use_cache=True, **arguments).logits[0]

    def pieces(self, ids: Tensor) -> Iterator[Tensor]:
        """Split a text [T] into pieces for `read`: first sinks + window tokens, then `slack` each."""
        first = self.sinks + self.window
        yield ids[:first]
        yield from ids[first:].split(self.slack) if len(ids) > first else ()


def stream(
    model: nn.Module,
    ids: Tensor,
    *,
    sinks: int = 4,
    window: int = 1020,
    slack: int = 64,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Generate ids after a prompt without end, in bounded memory (StreamingLLM).

    The model sees the first `sinks` tokens and `window` to `window + slack` of the newest, at positions 0, 1, 2, ...:
    these stay within the trained length if sinks + window + slack does.

    model        a transformers decoder with a language modelling head, in evaluation mode, in its own attention
    ids          the prompt, [T] or [1, T], of any length
    max_new_tokens   number of ids to generate; None has no end
    temperature  0 takes the likeliest token; above 0, tokens are drawn from the softmax of logits / temperature
    top_k        draw among the k likeliest only

    Tokens that leave the window are lost: the text stays fluent, but the model's memory does not grow.

    Raises ValueError for an empty prompt, numbers out of range, and a model whose cached keys cannot move.
    Source: Xiao et al. 2023, arXiv:2309.17453.
    """
    if ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 1 or not len(ids):
        raise ValueError(f"a stream begins with the ids of one prompt, [T] or [1, T], got shape {list(ids.shape)}")
    if max_new_tokens is not None:
        checks.whole("max_new_tokens", max_new_tokens, 1)
    vocab = cast(Any, model.config).get_text_config().vocab_size
    choice = Choice(vocab, temperature, top_k, seed=seed)
    reading = Stream(model, sinks, window, slack)
    generator = torch.Generator(reading.device).manual_seed(choice.seed)

    def generated_ids() -> Iterator[int]:
        for piece in reading.pieces(ids):
            logits = reading.read(piece)
        count = 0
        while True:
            new = choice.pick(logits[-1:], generator)
            yield int(new)
            count += 1
            if count == max_new_tokens:
                return
            logits = reading.read(new)

    return generated_ids()
