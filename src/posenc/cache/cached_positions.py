"""Positions of cached tokens, and of new tokens behind them."""

import torch
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import CountedPositions, Positions, fact_at_token
from posenc.tokens.shared_tables import once, tensor_versions
from posenc.tokens.tracing import assert_on_gpu, may_be_read


def order_span(at: Positions) -> tuple[int, int | None]:
    """Return the largest number of orders that a row spans, and the last order if known."""
    if at.start is not None:
        return at.tokens, at.start + at.tokens - 1
    if at.tokens == 1 or not may_be_read(at.order):
        return at.tokens, None
    first = at.order.masked_fill(at.order < 0, torch.iinfo(at.order.dtype).max).amin(1)
    last = at.order.amax(1)
    return max(int((last - first).max()) + 1, 1), int(last.max())


def last_positions(at: Positions) -> Positions:
    """Return the positions of the last token of each row, [B or 1, 1]."""
    last = at.order.argmax(1, keepdim=True)
    return at.with_facts(
        coords=fact_at_token(at.coords, last),
        order=at.order.gather(1, last),
        document=None if at.document is None else fact_at_token(at.document, last),
        extent=None,
    )


def joined_positions(old: Positions, new: Positions, batch: int) -> Positions:
    """Return the positions of old tokens followed by new ones, computed once for all layers."""
    return once(new, (joined_positions, old, tensor_versions(old), batch), lambda: join_positions(old, new, batch))


def join_positions(old: Positions, new: Positions, batch: int) -> Positions:
    counted_positions = old.with_next(new) if isinstance(old, CountedPositions) else None
    if counted_positions is not None:
        return counted_positions
    one_document = old.document is None and new.document is None
    follows = old.contiguous and new.contiguous and old.unit_step and new.unit_step
    follows = follows and old.extent is not None and new.extent == old.extent + new.tokens
    return Positions(
        coords=concatenated_rows(old.coords, new.coords, batch),
        order=concatenated_rows(old.order, new.order, batch),
        document=None if one_document else concatenated_rows(document_ids(old), document_ids(new), batch),
        horizon=new.horizon,
        contiguous=follows,
        unit_step=old.unit_step and new.unit_step,
        extent=joint_extent(old.extent, new.extent),
    )


def concatenated_rows(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """Concatenate facts [B or 1, S, ...] along the tokens; one row stays if both have one."""
    if a.shape[0] != b.shape[0]:
        a, b = (fact.expand(batch, *fact.shape[1:]) for fact in (a, b))
    return torch.cat((a, b), 1)


def joint_extent(a: int | None, b: int | None) -> int | None:
    """Return the extent of tokens with these two extents; None if either is unknown."""
    return None if a is None or b is None else max(a, b)


def check_rows(past: Keys, new: Keys) -> None:
    """Raise ValueError unless the new keys have as many rows and heads as the cached ones."""
    if past.k.shape[:2] != new.k.shape[:2]:
        raise ValueError(
            f"the cache holds keys of {past.k.shape[0]} rows and {past.k.shape[1]} heads, got new ones of "
            f"{new.k.shape[0]} and {new.k.shape[1]}; start a new cache for another batch"
        )


def check_behind(past: Keys | None, at: Positions, mask: Mask) -> None:
    """Raise ValueError if tokens do not follow the cached ones, or continue a cached prefix.

    Positions that cannot be read are not checked.
    """
    # A number that is read in a graph, and changes with every token, would recompile it.
    if past is None or torch.compiler.is_compiling():
        return
    follows = at.start is not None and past.at.unit_step and past.at.extent is not None and at.start >= past.at.extent
    behind_prefix = not mask.prefix or (at.start is not None and at.start >= mask.prefix)
    if (follows and behind_prefix) or not may_be_read(at.order, past.at.order):
        return
    latest = past.at.order.amax(1, keepdim=True)
    wrong = (at.order >= 0) & (at.order <= latest)
    message = f"a token cannot come behind those that the cache holds, or is of a prefix of {mask.prefix} that it holds"
    if assert_on_gpu(at.order, lambda: ~wrong & ((latest < 0) | (at.order < 0) | (at.order >= mask.prefix)), message):
        return
    if not follows and bool(wrong.any()):
        row, token = wrong.nonzero()[0].tolist()
        first, last = int(at.order.expand_as(wrong)[row, token]), int(latest.expand(wrong.shape[0], 1)[row, 0])
        raise ValueError(
            f"the cache holds tokens up to order {last}, and a token of order {first} cannot come behind them; number "
            f"the new tokens from {last + 1}, or give ids alone (a tensor, or Positions.of(ids)), which continue there"
        )
    if not behind_prefix and bool((((at.order >= 0) & (at.order < mask.prefix)) & (latest >= 0)).any()):
        raise ValueError(
            f"a prefix of {mask.prefix} tokens came in pieces, and its first tokens could not see the later ones; give "
            f"all of it in the first chunk, or masks.prefix of as many tokens as that holds"
        )


def document_ids(at: Positions) -> Tensor:
    """Return the document of each token; 0 if there is only one."""
    return torch.zeros_like(at.order) if at.document is None else at.document
