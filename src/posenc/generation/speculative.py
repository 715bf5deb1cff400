"""Speculative decoding: a small model drafts, the large one reads all drafts in one pass and keeps what it agrees to.

The text is drawn from the large model's own distribution, whatever the draft is; a good draft only makes it faster.
Source: Leviathan et al. 2022, arXiv:2211.17192, section 2.3 and appendix A.1.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc import checks
from posenc.generation.choice import Choice, Draw
from posenc.generation.one_by_one import check_prompts, evaluating

if TYPE_CHECKING:
    from posenc.model import Decoder

AHEAD = 4
"""How many tokens are drafted where nobody says."""


def outcomes(large: Tensor, small: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """What becomes of n drafted tokens [B, n]: how many are kept [B, n + 1], and what comes behind them [B, n + 1, V].

    large  [B, n + 1, V]  the large model's distributions: of each drafted token, and of the one behind all
    small  [B, n, V]      those of which the tokens were drafted

    Both are probabilities: of keeping the first 0, 1, ..., n tokens, and of the token behind so many. Token x is kept
    with min(1, large(x) / small(x)), if all before were; behind a refused one comes a token of max(0, large - small),
    normalised.
    """
    n = drafted.shape[1]
    ratio = large[:, :n].gather(2, drafted[..., None]) / small.gather(2, drafted[..., None])
    kept = ratio[..., 0].clamp(max=1)
    one = torch.ones_like(large[:, :1, 0])
    number = torch.cat((one, kept.cumprod(1)), 1) * torch.cat((1 - kept, one), 1)
    rest = (large[:, :n] - small).clamp(min=0)
    total = rest.sum(-1, keepdim=True)
    # Where both agree nothing is refused.
    rest = torch.where(total > 0, rest / total, large[:, :n])
    return number, torch.cat((rest, large[:, n:]), 1)


@torch.no_grad()
def speculate(
    model: "Decoder",
    draft: "Decoder",
    ids: Tensor,
    tokens: int,
    choice: Choice,
    *,
    ahead: int = AHEAD,
    padding: Tensor | None = None,
    draw: Draw | None = None,
) -> Tensor:
    """ids [B, T] with up to `tokens` more, of the distribution that `model` has alone: greedy, the same tokens.

    draft  the small model, of the same vocabulary
    ahead  how many tokens it drafts at a time; rows may keep different numbers of them
    draw   draws from weights; default: with random numbers from the seed of the choice

    Raises ValueError for models of different vocabularies, and numbers out of range.
    """
    check_prompts(ids, tokens, choice.vocab, padding)
    checks.whole("ahead", ahead, 1)
    check_vocabularies(model, draft)
    if not len(ids):
        return ids.new_empty(0, ids.shape[1] + tokens)
    draw = choice.drawing(ids.device) if draw is None else draw
    batch, begin = ids.shape
    end, stop = begin + tokens, choice.stop
    text = torch.cat((ids, ids.new_full((batch, tokens), 0 if stop is None else stop)), 1)
    width = torch.full((batch,), end, device=ids.device)
    # Of each row that goes on: its number, and how many columns of its text are known, and how many of them are tokens.
    row = torch.arange(batch, device=ids.device)
    known = torch.full_like(row, begin)
    held = known if padding is None else (padding != 0).sum(1)
    large, small = model.cache(), draft.cache()

    def newest(number: int) -> Tensor:
        """The last known tokens of each row that goes on, [rows, number]."""
        return text[row].gather(1, known[:, None] - number + torch.arange(number, device=row.device))

    with evaluating(model), evaluating(draft):
        for reader, cache in ((model, large), (draft, small)):
            reader(ids, padding=padding, cache=cache, only=slice(-1, None))
            cache.crop(held - 1)
        # How many of the newest tokens the draft has not read; the model has read all but one.
        unread = 1
        while len(row):
            # No row is drafted more than it wants: no position is asked for that plain decoding does not ask for.
            n = min(ahead, end - int(known.max()) - 1)
            drafts, guessed, new = [], [], newest(unread)
            for _ in range(n):
                guessed.append(choice.weights(draft(new, cache=small, only=slice(-1, None))[:, -1]))
                new = draw(guessed[-1])[:, None]
                drafts.append(new)
            read = torch.cat((newest(1), *drafts), 1)
            wanted = choice.weights(model(read, cache=large))
            drafted = read[:, 1:]
            said = torch.stack(guessed, 1) if guessed else wanted[:, :0]
            number, behind = outcomes(wanted, said, drafted)
            kept = draw(number)
            last = draw(behind[torch.arange(len(row), device=row.device), kept])
            new = torch.cat((drafted, last[:, None]), 1).scatter(1, kept[:, None], last[:, None])
            fresh = torch.arange(n + 1, device=row.device) <= kept[:, None]
            stopped = torch.zeros_like(kept, dtype=torch.bool)
            if stop is not None:
                # What stands behind the first stop is not taken.
                stops = (new == stop) & fresh
                fresh &= stops.cumsum(1) - stops.long() == 0
                stopped = stops.any(1)
            where = known[:, None] + torch.arange(n + 1, device=row.device)
            text[row] = text[row].scatter(1, where, torch.where(fresh, new, text[row].gather(1, where)))
            added = fresh.sum(1)
            known, held = known + added, held + added
            large.crop(held - 1)
            if n:
                small.crop(held - 2)
            unread = 2 if n else unread + 1
            width[row] = known
            going = (~stopped & (known < end)).nonzero()[:, 0]
            if 0 < len(going) < len(row):
                large.rows(going), small.rows(going)
            row, known, held = row[going], known[going], held[going]
    return text[:, : int(width.max())]


@torch.no_grad()
def acceptance(
    model: "Decoder", draft: "Decoder", ids: Tensor, *, temperature: float = 0.0, top_k: int | None = None
) -> Tensor:
    """How likely the model keeps the token that a draft gives behind each token of ids [B, T]: [B, T].

    sum_x min(model(x), draft(x)).  Where it is a on average, a pass of the model with n drafted tokens gives
    (1 - a^(n + 1)) / (1 - a) of them, if they are kept independently.

    temperature, top_k   how tokens are drawn

    Raises ValueError as generation does. Source: Leviathan et al. 2022, arXiv:2211.17192, theorem 3.5 and equation 1.

    >>> from posenc import Decoder
    >>> model = Decoder(vocab=5, dim=8, heads=2, layers=1)
    >>> acceptance(model, model, torch.tensor([[0, 1, 2]]), temperature=1.0)
    tensor([[1., 1., 1.]])
    """
    choice = Choice(model.vocab, temperature, top_k)
    check_vocabularies(model, draft)
    with evaluating(model), evaluating(draft):
        return torch.minimum(choice.weights(model(ids)), choice.weights(draft(ids))).sum(-1)


def check_vocabularies(model: "Decoder", draft: "Decoder") -> None:
    """Raises ValueError unless the draft is a model with the same ids."""
    if not hasattr(draft, "vocab"):
        raise ValueError(f"a draft is a Decoder, got {checks.shown(draft)}")
    if draft.vocab != model.vocab:
        raise ValueError(f"the draft has {draft.vocab} token ids, and the model {model.vocab}; give one with the same")
