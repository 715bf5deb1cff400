"""One token after another, greedy or drawn."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.cache import Cache
from posenc.model.generation.choice import Choice
from posenc.model.generation.sinks import Sight
from posenc.model.inputs import check_ids, check_padding

SLOTS = 256
"""A static cache for a compiled graph has a multiple of so many slots: texts of about one length share a graph."""


def stream(
    model: nn.Module,
    logits_of: Callable[..., Tensor],
    cache: Cache,
    ids: Tensor,
    max_new_tokens: int,
    choice: Choice,
    step: Callable[..., Tensor] | None = None,
    *,
    padding: Tensor | None = None,
    samples: int = 1,
    sight: Sight | None = None,
) -> Iterator[Tensor]:
    """Up to `max_new_tokens` more ids for each row of ids [B, T], each [B * samples] as it is chosen.

    model      is without dropout from the first id that is asked for to the last, or until the iterator is closed
    logits_of  (ids, padding=..., cache=..., only=...) -> logits [B, T, vocab], as of a Decoder
    choice     how the next token is chosen, and where a text stops
    step       the same for one token behind others: (ids, cache=...) -> logits [B, 1, vocab]; default `logits_of`
    padding, samples   as in Decoder.stream; prompts are computed once
    sight      which tokens are held; default all

    Raises ValueError for ids outside the vocabulary, numbers out of range, and prompts padded on the right.
    """
    check_ids(ids, choice.vocab)
    checks.whole("max_new_tokens", max_new_tokens, 1)
    if padding is not None:
        check_padding(padding, ids)
        if not bool((padding[:, -1] != 0).all()):
            raise ValueError(
                "generation goes on from the last column, and a row is padded there; pad prompts on the left"
            )
    step = logits_of if step is None else step

    @torch.no_grad()
    def chosen() -> Iterator[Tensor]:
        generator = torch.Generator(ids.device).manual_seed(choice.seed)
        with evaluating(model):
            logits = logits_of(ids, padding=padding, cache=cache, only=slice(-1, None))
            if samples > 1 and len(ids):
                rows = torch.arange(len(ids), device=ids.device).repeat_interleave(samples)
                cache.rows(rows)
                logits = logits[rows]
            done = torch.zeros(len(logits), dtype=torch.bool, device=ids.device)
            for left in range(max_new_tokens - 1, -1, -1):
                new = choice.pick(logits[:, -1], generator)
                if choice.eos_token_id is not None:
                    new = torch.where(done, choice.eos_token_id, new)
                    done = done | (new == choice.eos_token_id)
                yield new
                if left == 0 or (choice.eos_token_id is not None and bool(done.all())):
                    return
                if sight is not None:
                    sight.make_room(cache)
                logits = step(new[:, None], cache=cache)

    return chosen()


def with_more(ids: Tensor, more: Iterable[Tensor]) -> Tensor:
    """ids [B, T] with those that a stream gives behind them."""
    return torch.cat((ids, torch.stack(list(more), 1)), 1)


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """The model without dropout; afterwards as it was, also after an error."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was
