"""Causal attention whose bias is one row of numbers for the keys: the cheapest of all, and inexact.

Under a causal mask a bias like slope_h (n_j - m_i) differs from slope_h n_j by the same number for all keys of a query,
which the softmax ignores. So a mask of one row, which the fused kernel reads again for every query, is enough:

    out_i = sum over j <= i of softmax_j(scale q_i . k_j + row_hj) v_j

The price is rounding. A row is as large as the bias of the farthest key, and q . k is added to that, so that in float32
the logits of a query which stands d positions before the newest key lose about slope_h d 2^-24. One query alone, the
newest, loses next to nothing. The largest error of an output against float64, for standard normal q, k, v of width 64,
in float32 (in float64 it is 1e-15, in half precision it drowns in that of the output):

    tokens                      512      2048     8192
    ALiBi, 8 heads              1.0e-5   4.7e-5   2.2e-4
    ALiBi, 12 heads             3.1e-5   1.4e-4   7.7e-4
    gates of about 0.5          4.1e-5   1.9e-4   8.3e-4
    gates of about 0.98         9.5e-7   3.8e-6   1.1e-5

It is never chosen by "auto".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding import Encoding, Keys, parts_of
from posenc.kernels.reference import fit_heads
from posenc.kernels.sdpa import why_not_transformed
from posenc.masks import Mask
from posenc.positions import Positions


def why_not(encoding: Encoding, *, weights: bool, dropout: float, q: Tensor | None) -> str | None:
    """Why a row of keys cannot serve, or None; what depends on the mask and the positions is said by `attend`."""
    if weights:
        return "key_row returns no attention weights; use kernel='reference' or 'auto'"
    if encoding.needs_weights:
        return (
            f"{encoding} reads the attention weights, which key_row does not return; use kernel='reference' or 'auto'"
        )
    if dropout:
        return f"key_row has no dropout, got {dropout}; use another kernel, or dropout=0"
    if q is not None and q.device.type != "cpu":
        return f"key_row runs on the CPU, got queries on '{q.device}'; use kernel='auto' or 'flex'"
    biased = [part for part in parts_of(encoding) if part.doors & {"by_distance", "score_mod"}]
    if not biased:
        return f"{encoding} has no bias; kernel='sdpa' is as fast, and exact"
    for part in biased:
        own = type(part)
        if own.key_row is Encoding.key_row and own.levels is Encoding.levels:
            return f"the bias of {part} is not a number for each key and one for each query; use kernel='auto'"
    return why_not_transformed("key_row")


def attend(
    encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, scale: float, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Attention with the encoding's key row: of tokens in sequence, padded or not, or of one query behind a cache.

    One query may go with any causal mask (window, documents, a given one); several need a plain one. A query that may
    see nothing, and padding, give zeros.
    Raises ValueError, with the reason, for other positions and masks.
    """
    assert not (weights or dropout), "why_not('key_row') forbids this"
    refuse(reason_against(encoding, q, at, keys, mask))
    row = encoding.key_row(at, encoding.prepare(q, at, keys))
    if row is None:
        refuse(
            f"the bias of {encoding} is not a number for each key here: it takes positions that count up by one "
            f"(count, padded), and a form that treats all keys alike"
        )
    assert row is not None
    k, v = fit_heads(q, keys.k, keys.v)
    T, present = at.tokens, keys.at.order[:, None] >= 0  # [B or 1, 1, S]
    if T == 1:
        seen = mask.allowed(at, keys.at)[:, :, 0]  # [B or 1, 1 or H, S]
        empty = ~seen.any(-1)[..., None, None]
    else:
        # Behind the queries' own tokens there may be empty slots.
        k, v, row, seen = k[:, :, :T], v[:, :, :T], row[..., :T], present[..., :T]
        empty = (at.order < 0)[:, None, :, None]
    added = mask.added(at, keys.at)
    if added is not None:
        row = row + torch.where(seen, added[..., 0, :], 0.0)
    # The newest key at 0: then what is near keeps its digits, as far as one number for each key allows.
    row = row - torch.where(seen, row.detach(), torch.finfo(row.dtype).min).amax(-1, keepdim=True)
    row = row.to(torch.promote_types(q.dtype, torch.float32))
    # Finite, so that a query which sees nothing gets no NaN; its output is dropped.
    row = torch.where(seen, row, torch.finfo(row.dtype).min)
    out = attend_to_row(q, k, v, row, causal=T > 1, scale=scale)
    return out.masked_fill(empty, 0.0), None


def reason_against(encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask) -> str | None:
    """Why these positions and this mask are not for one row of keys, or None."""
    if not mask.causal or mask.prefix:
        return "queries may see keys that come after them; it takes a causal mask without a prefix"
    if keys.v.shape[-1] != q.shape[-1]:
        return f"values must be as wide as queries, got {keys.v.shape[-1]} and {q.shape[-1]} channels"
    if at.tokens == 1:
        return None
    if mask.window is not None or mask.given is not None:
        return "several queries differ in the keys they see by more than causality; it takes a plain causal mask"
    if at.document is not None and keys.at.document is not None:
        return "packed documents do not see each other, which one row of keys cannot say; attend to each by itself"
    if not in_sequence(at, keys.at):
        return (
            "several queries must be the keys' own tokens, in sequence; it takes self-attention from the first token "
            "on, and behind a cache one query at a time"
        )
    return None


def in_sequence(at: Positions, keys_at: Positions) -> bool:
    """Whether the keys are the queries' own tokens in sequence, and behind them only empty slots.

    Positions that are not contiguous are looked at, which a compiled graph cannot do.
    """
    if at is keys_at and at.contiguous:
        return True
    T = at.tokens
    if torch.compiler.is_compiling() or keys_at.tokens < T:
        return False
    own, rest = keys_at.order[:, :T], keys_at.order[:, T:]
    later = own[:, 1:] > own.cummax(1).values[:, :-1]
    return bool((own == at.order).all() and (rest < 0).all() and (later | (own[:, 1:] < 0)).all())


def refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(f"kernel 'key_row' cannot do this: {reason}; or use kernel='auto'")


def attend_to_row(q: Tensor, k: Tensor, v: Tensor, row: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Fused attention with a row [1 or B, 1 or H, S] added to the logits of every query.

    PyTorch's public function refuses a mask beside `is_causal`, and one in float32 beside half-precision queries; the
    operator behind it takes both, and gives the mask no gradient. So a row that wants one also comes as a channel of
    the keys, which is 0 in value and meets a channel of ones in the queries.
    """
    width = v.shape[-1]
    if row.requires_grad and torch.is_grad_enabled():
        nothing = ((row - row.detach()) / scale).to(k.dtype)[..., None].expand(*k.shape[:3], 1)
        # Eight channels more, since the operator goes through channels by whole registers.
        q = torch.cat((q, torch.ones_like(q[..., :1]), q.new_zeros(*q.shape[:3], 7)), -1)
        k = torch.cat((k, nothing, k.new_zeros(*k.shape[:3], 7)), -1)
        v = F.pad(v, (0, 8))
    mask = row.detach()[:, :, None].expand(*q.shape[:3], row.shape[-1])  # a view: every query reads the same numbers
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return operator(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)[0][..., :width]
