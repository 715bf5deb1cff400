"""Where the tokens stand that a cache holds, and those that come behind them."""

import torch
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Counted, Positions, of_token
from posenc.tokens.shared_tables import once, version
from posenc.tokens.watched import gpu_checks, may_be_read


def span(at: Positions) -> tuple[int, int | None]:
    """Over how many orders the tokens of a row stretch at most, and the last order if it is known."""
    if at.start is not None:
        return at.tokens, at.start + at.tokens - 1
    if at.tokens == 1 or not may_be_read(at.order):
        return at.tokens, None
    first = at.order.masked_fill(at.order < 0, torch.iinfo(at.order.dtype).max).amin(1)
    last = at.order.amax(1)
    return max(int((last - first).max()) + 1, 1), int(last.max())


def last_of(at: Positions) -> Positions:
    """Where the last token of each row stands, [B or 1, 1]."""
    last = at.order.argmax(1, keepdim=True)
    return at.changed(
        coords=of_token(at.coords, last),
        order=at.order.gather(1, last),
        document=None if at.document is None else of_token(at.document, last),
        extent=None,
    )


def joined(old: Positions, new: Positions, batch: int) -> Positions:
    """The positions of both, the new tokens behind the old ones: made once for all layers that hold the same."""
    return once(new, (joined, old, version(old), batch), lambda: join(old, new, batch))


def join(old: Positions, new: Positions, batch: int) -> Positions:
    counted = old.with_next(new) if isinstance(old, Counted) else None
    if counted is not None:
        return counted
    one_document = old.document is None and new.document is None
    follows = old.contiguous and new.contiguous and old.unit_step and new.unit_step
    follows = follows and old.extent is not None and new.extent == old.extent + new.tokens
    return Positions(
        coords=along(old.coords, new.coords, batch),
        order=along(old.order, new.order, batch),
        document=None if one_document else along(documents(old), documents(new), batch),
        horizon=new.horizon,
        contiguous=follows,
        unit_step=old.unit_step and new.unit_step,
        extent=larger(old.extent, new.extent),
    )


def along(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """Facts [B or 1, S, ...] of tokens and of those behind them, one row for all where both have one."""
    if a.shape[0] != b.shape[0]:
        a, b = (fact.expand(batch, *fact.shape[1:]) for fact in (a, b))
    return torch.cat((a, b), 1)


def larger(a: int | None, b: int | None) -> int | None:
    """The extent of tokens with these two."""
    return None if a is None or b is None else max(a, b)


def check_rows(held: Keys, new: Keys) -> None:
    """Raises ValueError unless the new keys are of as many rows and heads as those that a cache holds."""
    if held.k.shape[:2] != new.k.shape[:2]:
        raise ValueError(
            f"the cache holds keys of {held.k.shape[0]} rows and {held.k.shape[1]} heads, got new ones of "
            f"{new.k.shape[0]} and {new.k.shape[1]}; start a new cache for another batch"
        )


def check_behind(held: Keys | None, at: Positions, mask: Mask) -> None:
    """Raises ValueError unless all tokens come after what a cache holds, and none is of a prefix that it holds in part.

    Only where that is known, or may be read.
    """
    # A number that is read in a graph, and changes with every token, compiles it anew.
    if held is None or torch.compiler.is_compiling():
        return
    follows = at.start is not None and held.at.unit_step and held.at.extent is not None and at.start >= held.at.extent
    beyond = not mask.prefix or (at.start is not None and at.start >= mask.prefix)
    if (follows and beyond) or not may_be_read(at.order, held.at.order):
        return
    latest = held.at.order.amax(1, keepdim=True)
    wrong = (at.order >= 0) & (at.order <= latest)
    words = f"a token cannot come behind those that the cache holds, or is of a prefix of {mask.prefix} that it holds"
    if gpu_checks(at.order, lambda: ~wrong & ((latest < 0) | (at.order < 0) | (at.order >= mask.prefix)), words):
        return
    if not follows and bool(wrong.any()):
        row, token = wrong.nonzero()[0].tolist()
        first, last = int(at.order.expand_as(wrong)[row, token]), int(latest.expand(wrong.shape[0], 1)[row, 0])
        raise ValueError(
            f"the cache holds tokens up to order {last}, and a token of order {first} cannot come behind them; number "
            f"the new tokens from {last + 1}, or give ids alone (a tensor, or Positions.of(ids)), which are put there"
        )
    if not beyond and bool((((at.order >= 0) & (at.order < mask.prefix)) & (latest >= 0)).any()):
        raise ValueError(
            f"a prefix of {mask.prefix} tokens came in pieces, and its first tokens could not see the later ones; give "
            f"all of it in the first chunk, or masks.prefix of as many tokens as that holds"
        )


def documents(at: Positions) -> Tensor:
    """The document of each token; 0 where there is only one."""
    return torch.zeros_like(at.order) if at.document is None else at.document
