"""Streams without an end through a live model, in bounded memory: the first tokens and a window of the newest."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.checkpoints.kinds.calls import cache_name
from posenc.checkpoints.live.moving_keys import movable
from posenc.model.generation import Choice


class Stream:
    """A text that a model reads on and on: it holds at most sinks + window + slack tokens, counted from 0.

    sinks   so many of the first tokens, on which attention rests (1 to 4 as published; 0 shows what becomes without)
    window  so many of the newest
    slack   up to so many more, before all but these are forgotten: the keys then move once for that many tokens
    tokens  the tokens held, as `movable` has them

    Raises ValueError for numbers out of range, and for a model whose cached keys cannot be moved.
    """

    def __init__(self, model: Any, sinks: int = 4, window: int = 1020, slack: int = 64) -> None:
        from transformers import DynamicCache

        self.sinks, self.window = checks.whole("sinks", sinks, 0), checks.whole("window", window, 1)
        self.slack = checks.whole("slack", slack, 1)
        self.model, self.device = model, next(model.parameters()).device
        self.tokens = movable(model, DynamicCache())
        if self.tokens.keys.fixed:
            raise ValueError(f"{type(model).__name__} cannot read a stream: {self.tokens.keys.fixed}")

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        """The logits [T, vocabulary] behind each of the next tokens, ids [T], of which there are at most as many as
        are held; each sees the sinks, the window, and what came since."""
        count, most = 0 if self.tokens.held is None else self.tokens.held.tokens, self.sinks + self.window
        if count + len(ids) > most + self.slack and count > most:
            self.tokens.evict([*range(self.sinks), *range(count - self.window, count)])
        given = self.tokens.inputs(len(ids)) | {cache_name(self.model): self.tokens.cache}
        return self.model(input_ids=ids.to(self.device)[None], use_cache=True, **given).logits[0]

    def pieces(self, ids: Tensor) -> Iterator[Tensor]:
        """A text [T] in pieces to read: as many as are held at first, then as many as there is slack."""
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
    """Ids behind a prompt, one after another, for ever and in bounded memory (StreamingLLM).

    The model sees its first `sinks` tokens and `window` to `window + slack` of the newest, at the places 0, 1, 2, ...:
    it never counts further than it was trained for, as long as sinks + window + slack is at most the trained length.

    model        a transformers decoder with a language modelling head, in evaluation mode, in its own attention
    ids          the prompt, [T] or [1, T], of any length
    max_new_tokens   how many to generate; None goes on for ever
    temperature  0 takes the likeliest token; above, tokens are drawn from the softmax of logits / temperature
    top_k        draw among the k likeliest only

    What has left the window is forgotten: it reads on without falling apart, and does not remember longer.

    Raises ValueError for an empty prompt, numbers out of range, and a model whose cached keys cannot be moved.
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

    def chosen() -> Iterator[int]:
        for piece in reading.pieces(ids):
            logits = reading.read(piece)
        told = 0
        while True:
            new = choice.pick(logits[-1:], generator)
            yield int(new)
            told += 1
            if told == max_new_tokens:
                return
            logits = reading.read(new)

    return chosen()
