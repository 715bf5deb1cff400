"""Generation token by token, greedy or sampled."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.cache import Cache
from posenc.model.generation.choice import Choice
from posenc.model.generation.sinks import SinkWindow
from posenc.model.inputs import check_padding, check_token_ids

SLOTS = 256
"""The slots of a static cache for a compiled graph are a multiple of this: texts of similar lengths share a graph."""


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
    sinks: SinkWindow | None = None,
) -> Iterator[Tensor]:
    """Yield up to `max_new_tokens` new ids [B * samples] for each row of ids [B, T].

    model      has no dropout from the first id to the last, or until the iterator is closed
    logits_of  (ids, padding=..., cache=..., only=...) -> logits [B, T, vocab], as of a Decoder
    choice     the options of choosing a token, and of stopping
    step       the same for one token after others: (ids, cache=...) -> logits [B, 1, vocab]; default `logits_of`
    padding, samples   as in Decoder.stream; prompts are computed once
    sinks      the tokens that the cache keeps; default all

    Raises ValueError for ids outside the vocabulary, numbers out of range, and prompts padded on the right.
    """
    check_token_ids(ids, choice.vocab)
    checks.whole("max_new_tokens", max_new_tokens, 1)
    if padding is not None:
        check_padding(padding, ids)
        if not bool((padding[:, -1] != 0).all()):
            raise ValueError(
                "generation goes on from the last column, and a row is padded there; pad prompts on the left"
            )
    step = logits_of if step is None else step

    @torch.no_grad()
    def new_ids() -> Iterator[Tensor]:
        generator = torch.Generator(ids.device).manual_seed(choice.seed)
        with eval_mode(model):
            logits = logits_of(ids, padding=padding, cache=cache, only=slice(-1, None))
            if samples > 1 and len(ids):
                rows = torch.arange(len(ids), device=ids.device).repeat_interleave(samples)
                cache.rows(rows)
                logits = logits[rows]
            has_ended = torch.zeros(len(logits), dtype=torch.bool, device=ids.device)
            for steps_to_go in range(max_new_tokens - 1, -1, -1):
                new = choice.pick(logits[:, -1], generator)
                if choice.eos_token_id is not None:
                    new = torch.where(has_ended, choice.eos_token_id, new)
                    has_ended = has_ended | (new == choice.eos_token_id)
                yield new
                if steps_to_go == 0 or (choice.eos_token_id is not None and bool(has_ended.all())):
                    return
                if sinks is not None:
                    sinks.make_room(cache)
                logits = step(new[:, None], cache=cache)

    return new_ids()


def append_stream(ids: Tensor, new_ids: Iterable[Tensor]) -> Tensor:
    """Return ids [B, T] with the ids of a stream appended."""
    return torch.cat((ids, torch.stack(list(new_ids), 1)), 1)


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Put a model into eval mode for a block. Afterwards each module is as before, also after an error."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was
