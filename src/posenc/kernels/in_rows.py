"""Door 4 in blocks of queries: rules that materialise all pairs, in bounded memory."""

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
from posenc.tokens.shared_tables import all_versions, check_versions
from posenc.tokens.tracing import is_traced, is_transformed

ModuleType = TypeVar("ModuleType", bound=nn.Module)

Rule: TypeAlias = Callable[[Any, Tensor, Positions, Keys, Mask, BoundKernel], AttentionOutput]
"""A method of an encoding with the arguments of door 4."""


def attend_in_rows(
    encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel
) -> AttentionOutput:
    """Call door 4 of an encoding, in blocks of queries if it materialises pairs; return output and weights."""
    on_gpu = device_of(q) == "cuda"
    # Without known distances, a table of all of them could have any size.
    has_dense_bias = on_gpu and not BIASES.isdisjoint(encoding.doors) and distances_between(at, keys.at) is None
    if not ((encoding.queries_together and ("attend" in encoding.doors or on_gpu)) or has_dense_bias):
        return encoding.attend(q, at, keys, mask, kernel)
    return in_rows(lambda module, *arguments: module.attend(*arguments), encoding, q, at, keys, mask, kernel)


def rows_at_once(encoding: Encoding, q: Tensor, keys: int) -> int:
    """Return the number of queries in a block, for a rule that materialises all pairs with `keys` keys."""
    pairs = q.shape[0] * q.shape[1] * keys
    together = SIZES.pairs_of_rules_on_cuda if device_of(q) == "cuda" else SIZES.pairs_of_rules
    return max(1, encoding.queries_together, together // max(pairs, 1))


def in_rows(
    rule: Rule, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel, cap: int = 0
) -> AttentionOutput:
    """Call a rule of an encoding, in blocks of queries if there are many pairs.

    A block has at most `cap` queries, unless `cap` is 0. The result is exact: queries do not read each other, nor
    hidden keys. In training a block saves only its queries, and is recomputed in the backward pass. A graph takes all
    queries at once, since blocks would tie it to one length; so do transforms of torch.func, which cannot recompute.
    """
    tokens, step = q.shape[2], rows_at_once(encoding, q, keys.k.shape[2])
    step = min(step, cap or step)
    if tokens <= step or torch.compiler.is_compiling() or is_transformed() or is_traced():
        return rule(encoding, q, at, keys, mask, kernel)
    # Recomputation must use these parameters, even if functional_call has replaced them in the module by then.
    parameters = {id(weight): weight for part in (encoding, *kernel.other_parts) for weight in part.parameters()}
    encodings, other_parts = copy.deepcopy((encoding, kernel.other_parts), parameters)
    kernel = replace(kernel, other_parts=other_parts)

    versions = all_versions(at, keys.at)

    def attend(rows: slice) -> AttentionOutput:
        check_versions(versions, at, keys.at)
        return rule(encodings, *rows_of_call(rows, q, at, keys, mask, drop_future=not kernel.need_weights), kernel)

    outs, weights = [], []
    for start in range(0, tokens, step):
        rows = slice(start, min(start + step, tokens))
        if torch.is_grad_enabled():
            output, block_weights = checkpoint(attend, rows, use_reentrant=False, preserve_rng_state=kernel.dropout > 0)
        else:
            output, block_weights = attend(rows)
        outs.append(output)
        weights.append(block_weights)
    return torch.cat(outs, 2), torch.cat(weights, 2) if kernel.need_weights else None


def with_leaf_parameters(
    module: ModuleType, names: Sequence[tuple[str, str]], inputs: Sequence[Tensor]
) -> tuple[ModuleType, tuple[Tensor, ...]]:
    """Return a copy of a module with new leaves as parameters, and all inputs as such leaves.

    The module's own parameters may be replaced or have hooks. names: kind and name of each input.
    """
    leaves = tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)
    parameters, named_leaves = dict(module.named_parameters()), zip(names, leaves, strict=True)
    replacements = {id(parameters[name]): leaf for (kind, name), leaf in named_leaves if kind == "parameters"}
    return copy.deepcopy(module, replacements), leaves


def rows_of_call(
    rows: slice | Tensor, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, drop_future: bool
) -> tuple[Tensor, Positions, Keys, Mask]:
    """Return the inputs of attention for some queries; `drop_future` removes keys known to come after all of them."""
    query_memo = {name: fact[:, :, rows] for name, fact in keys.query_memo.items()}
    at, first, last = at.rows(rows), keys.at.start, keys.at.tokens
    if drop_future and mask.causal and not mask.prefix and at.start is not None and first is not None:
        # At least one key, so that empty rows keep a shape.
        last = min(max(at.start + at.tokens - first, 1), last)
    tensor = mask.tensor
    if tensor is not None and tensor.dim() > 1 and tensor.shape[-2] > 1:
        mask = replace(mask, tensor=tensor[..., rows, :])
    return q[:, :, rows], at, *keys_of_call(slice(0, last), replace(keys, query_memo=query_memo), mask)


def keys_of_call(columns: slice, keys: Keys, mask: Mask) -> tuple[Keys, Mask]:
    """Return some of the keys, and the mask over them."""
    tensor = mask.tensor
    if tensor is not None and tensor.dim() > 0 and tensor.shape[-1] > 1:
        mask = replace(mask, tensor=tensor[..., columns])
    memo = {name: fact[:, :, columns] for name, fact in keys.memo.items()}
    k, v = keys.k[:, :, columns], keys.v[:, :, columns]
    return Keys(k, v, keys.at.rows(columns), memo, keys.query_memo, keys.prefix_sums), mask
