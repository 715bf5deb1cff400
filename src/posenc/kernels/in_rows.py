"""Door 4 in blocks of queries: a rule that computes something for every pair of tokens, in bounded memory."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.biases import BIASES, distances_between
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.device import device_of
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import check_versions, versions
from posenc.tokens.watched import is_transformed, is_written_down

Own = TypeVar("Own", bound=nn.Module)

Rule: TypeAlias = Callable[[Any, Tensor, Positions, Keys, Mask, BoundKernel], AttentionOutput]
"""A method of an encoding with the arguments of door 4."""


def attend_in_rows(
    encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel
) -> AttentionOutput:
    """Door 4 of an encoding, some queries at a time where it reads pairs: the output [B, H, T, E] and weights."""
    on_gpu = device_of(q) == "cuda"
    # Of ids that nothing reads, a table of all distances could be of any size.
    spread = on_gpu and not BIASES.isdisjoint(encoding.doors) and distances_between(at, keys.at) is None
    if not ((encoding.queries_together and ("attend" in encoding.doors or on_gpu)) or spread):
        return encoding.attend(q, at, keys, mask, kernel)
    return in_rows(lambda held, *given: held.attend(*given), encoding, q, at, keys, mask, kernel)


def at_a_time(encoding: Encoding, q: Tensor, keys: int) -> int:
    """How many queries a rule is asked for that computes something for each pair with so many keys."""
    pairs = q.shape[0] * q.shape[1] * keys
    together = SIZES.pairs_of_rules_on_cuda if device_of(q) == "cuda" else SIZES.pairs_of_rules
    return max(1, encoding.queries_together, together // max(pairs, 1))


def in_rows(
    rule: Rule, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel, most: int = 0
) -> AttentionOutput:
    """A rule of an encoding, asked for some queries at a time where there are many pairs; at most `most`, unless 0.

    No query reads another one, and none needs keys that it may not see: so nothing is left out. In training a block
    keeps only its queries and computes the rest again in the backward pass. A graph takes all queries at once, since
    the number of blocks would tie it to one length; so do the transforms of torch.func, which cannot compute again.
    """
    tokens, step = q.shape[2], at_a_time(encoding, q, keys.k.shape[2])
    step = min(step, most or step)
    if tokens <= step or torch.compiler.is_compiling() or is_transformed() or is_written_down():
        return rule(encoding, q, at, keys, mask, kernel)
    # The same encodings with the same parameters, whatever stands in for them when a block is computed again.
    known = {id(parameter): parameter for part in (encoding, *kernel.beside) for parameter in part.parameters()}
    held, beside = copy.deepcopy((encoding, kernel.beside), known)
    kernel = replace(kernel, beside=beside)

    before = versions(at, keys.at)

    def attend(rows: slice) -> AttentionOutput:
        check_versions(before, at, keys.at)
        return rule(held, *few(rows, q, at, keys, mask, drop_future=not kernel.need_weights), kernel)

    outs, weights = [], []
    for start in range(0, tokens, step):
        rows = slice(start, min(start + step, tokens))
        if torch.is_grad_enabled():
            out, applied = checkpoint(attend, rows, use_reentrant=False, preserve_rng_state=kernel.dropout > 0)
        else:
            out, applied = attend(rows)
        outs.append(out)
        weights.append(applied)
    return torch.cat(outs, 2), torch.cat(weights, 2) if kernel.need_weights else None


def standing_in(
    module: Own, names: Sequence[tuple[str, str]], inputs: Sequence[Tensor]
) -> tuple[Own, tuple[Tensor, ...]]:
    """A copy of a module whose parameters are leaves of their own, since they may have been replaced or have hooks.

    With it all inputs as such leaves; `names` says of each which kind it is and what it is called.
    """
    leaves = tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)
    parameters, told = dict(module.named_parameters()), zip(names, leaves, strict=True)
    known = {id(parameters[name]): leaf for (kind, name), leaf in told if kind == "parameters"}
    return copy.deepcopy(module, known), leaves


def few(
    rows: slice | Tensor, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, drop_future: bool
) -> tuple[Tensor, Positions, Keys, Mask]:
    """The attention of some queries alone; `drop_future` leaves out keys known to come after all of them."""
    query_memo = {name: fact[:, :, rows] for name, fact in keys.query_memo.items()}
    at, first, last = at.rows(rows), keys.at.start, keys.at.tokens
    if drop_future and mask.causal and not mask.prefix and at.start is not None and first is not None:
        # One key at least, so that rows which see nothing keep a shape.
        last = min(max(at.start + at.tokens - first, 1), last)
    given = mask.given
    if given is not None and given.dim() > 1 and given.shape[-2] > 1:
        mask = replace(mask, given=given[..., rows, :])
    return q[:, :, rows], at, *some_keys(slice(0, last), replace(keys, query_memo=query_memo), mask)


def some_keys(columns: slice, keys: Keys, mask: Mask) -> tuple[Keys, Mask]:
    """Some of the keys, and the mask over them."""
    given = mask.given
    if given is not None and given.dim() > 0 and given.shape[-1] > 1:
        mask = replace(mask, given=given[..., columns])
    memo = {name: fact[:, :, columns] for name, fact in keys.memo.items()}
    k, v = keys.k[:, :, columns], keys.v[:, :, columns]
    return Keys(k, v, keys.at.rows(columns), memo, keys.query_memo, keys.summed), mask
