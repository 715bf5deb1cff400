"""Beam search: the likeliest text, looked for among as many beginnings as there are beams."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc import checks
from posenc.generation.choice import Choice, at_least_single
from posenc.generation.one_by_one import check_prompts, evaluating

if TYPE_CHECKING:
    from posenc.model import Decoder


@torch.no_grad()
def beam_search(
    model: "Decoder",
    ids: Tensor,
    tokens: int,
    choice: Choice,
    *,
    beams: int,
    length_penalty: float = 1.0,
    padding: Tensor | None = None,
) -> Tensor:
    """ids [B, T] with up to `tokens` more: of each row the text that ranks first.

    rank(y) = log p(y | prompt) / length(y)^length_penalty, where a stop ends y, and is counted.

    Every step keeps the `beams` beginnings that rank first, among those that have stopped too. With vocab^tokens beams
    nothing is left out, and the text is the best there is.

    Raises ValueError for numbers out of range.
    Source: Wu et al. 2016, arXiv:1609.08144, section 7 (with another penalty).
    """
    check_prompts(ids, tokens, choice.vocab, padding)
    checks.whole("beams", beams, 1), checks.number("length_penalty", length_penalty)
    if not len(ids):
        return ids.new_empty(0, ids.shape[1] + tokens)
    cache, batch, vocab = model.cache(), len(ids), choice.vocab
    first = torch.arange(batch, device=ids.device)[:, None] * beams
    score = torch.full((batch, beams), -torch.inf, dtype=torch.float64, device=ids.device)
    # All beams of a row begin alike: but for one they would be the same.
    score[:, 0] = 0
    length = torch.zeros(batch, beams, device=ids.device)
    done = torch.zeros(batch, beams, dtype=torch.bool, device=ids.device)
    text = ids.new_empty(batch, beams, 0)
    with evaluating(model):
        logits = model(ids, padding=padding, cache=cache, only=slice(-1, None))
        rows = torch.arange(batch, device=ids.device).repeat_interleave(beams)
        cache.rows(rows)
        logits = logits[rows]
        for left in range(tokens - 1, -1, -1):
            more = at_least_single(logits[:, -1]).log_softmax(-1).view(batch, beams, vocab)
            if choice.stop is not None:
                only_stop = torch.full_like(more[0, 0], -torch.inf)
                only_stop[choice.stop] = 0
                more = torch.where(done[..., None], only_stop, more)
            total, length = score[..., None] + more, length + (~done)
            best = (total / length[..., None] ** length_penalty).flatten(1).topk(beams).indices
            beam, new = best // vocab, best % vocab
            score, length, done = total.flatten(1).gather(1, best), length.gather(1, beam), done.gather(1, beam)
            text = torch.cat((text.gather(1, beam[..., None].expand_as(text)), new[..., None]), 2)
            if choice.stop is not None:
                done = done | (new == choice.stop)
            if left == 0 or (choice.stop is not None and bool(done.all())):
                break
            cache.rows((first + beam).flatten())
            logits = model(new.view(-1, 1), cache=cache)
    return torch.cat((ids, text[:, 0]), 1)
