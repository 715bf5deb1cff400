"""Generation: one token after another through a KV cache, greedy or drawn."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.cache import Cache
from posenc.inputs import check_ids, check_padding

SLOTS = 256
"""A static cache for a compiled graph has a multiple of so many slots: texts of about one length share a graph."""


def stream(
    model: nn.Module,
    logits_of: Callable[..., Tensor],
    cache: Cache,
    ids: Tensor,
    tokens: int,
    *,
    vocab: int,
    step: Callable[..., Tensor] | None = None,
    padding: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    stop: int | None = None,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Up to `tokens` more ids for each row of ids [B, T], each [B] as it is chosen.

    model        is without dropout from the first id that is asked for to the last, or until the iterator is closed
    logits_of    (ids, padding=..., cache=..., only=...) -> logits [B, T, vocab], as of a Decoder
    step         the same for one token behind others: (ids, cache=...) -> logits [B, 1, vocab]; default `logits_of`
    temperature  0 takes the likeliest token; above, tokens are drawn from the softmax of logits / temperature
    top_k        draw among the k likeliest only
    stop         after this id a row repeats it; generation ends when all rows have
    padding      [B, T], true where a token is; pad prompts of different length on the left

    Raises ValueError for ids outside the vocabulary, numbers out of range, and prompts padded on the right.
    """
    check_ids(ids, vocab)
    if checks.whole("tokens to generate", tokens) < 1:
        raise ValueError(f"tokens to generate must be 1 or more, got {tokens}")
    if checks.number("temperature", temperature) < 0:
        raise ValueError(f"temperature must be 0 or more, got {temperature}")
    if top_k is not None and checks.whole("top_k", top_k) < 1:
        raise ValueError(f"top_k must be 1 or more, got {top_k}")
    if stop is not None and not 0 <= checks.whole("stop", stop) < vocab:
        raise ValueError(f"stop is the id of a token, from 0 to {vocab - 1}, got {stop}")
    checks.whole("seed", seed)
    step = logits_of if step is None else step
    if padding is not None:
        check_padding(padding, ids)
        if not bool((padding[:, -1] != 0).all()):
            raise ValueError(
                "generation goes on from the last column, and a row is padded there; pad prompts on the left"
            )

    @torch.no_grad()
    def chosen() -> Iterator[Tensor]:
        generator = torch.Generator(ids.device).manual_seed(seed)
        done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        with evaluating(model):
            logits = logits_of(ids, padding=padding, cache=cache, only=slice(-1, None))
            for left in range(tokens - 1, -1, -1):
                new = pick(logits[:, -1].float(), temperature, top_k, generator)
                if stop is not None:
                    new = torch.where(done, stop, new)
                    done = done | (new == stop)
                yield new
                if left == 0 or (stop is not None and bool(done.all())):
                    return
                logits = step(new[:, None], cache=cache)

    return chosen()


def with_more(ids: Tensor, more: Iterable[Tensor]) -> Tensor:
    """ids [B, T] with those that a stream gives behind them."""
    return torch.cat((ids, torch.stack(list(more), 1)), 1)


def pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """One id for each row of logits [B, vocab]."""
    # Divided by less, the likeliest token has all the weight.
    if temperature < torch.finfo(torch.float32).tiny:
        return logits.argmax(-1)
    if top_k is not None:
        lowest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


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
