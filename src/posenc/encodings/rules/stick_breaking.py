"""Stick-breaking attention."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.in_rows import in_rows, keys_of_call
from posenc.kernels.sums_in_order import sums_after
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import may_be_read

LEAST_LEFT = -56.0
"""The logarithm of the smallest rest of a stick to go on with: float64 cannot add less to the sum so far."""


class StickBreaking(Encoding):
    """Let each query break its attention off a stick, key by key from the nearest back.

    beta_ij = sigmoid(logit(i, j))
    A_ij = beta_ij * product over order_j < order_l < order_i of (1 - beta_il)

    The nearest key takes its share first and the others share the rest, so order needs no position. There is no
    softmax: a row sums to at most 1, the rest of the stick goes nowhere, and a query whose keys all refuse gives zeros.

    itself  whether a query may take from its own token too (the products then start there); published without, so that
            the first token of a sequence gives zeros

    The logits are those of the whole composition, biases and turned queries included, with Attention's scale. Whatever
    the mask, a query takes only from tokens before it in `order`, and a key that it may not see breaks nothing off.
    Shares are multiplied as sums of logarithms, in float32 at least, each starting at the nearest key. Where tokens
    stand in a row on a CPU, keys are read from the nearest back, until nothing is left to take; in other calls, and
    where weights are wanted or a bias reads more than distances, the logits of all pairs are taken.

    Where it goes wrong: it needs the logits, so the fused sdpa kernel cannot serve it. Bidirectional attention sees the
    past only. Beside a positional bias, nearness counts twice.

    Raises nothing of its own.
    Source: Tan et al. 2024, arXiv:2410.17980, section 2.

    >>> StickBreaking().needs_weights
    True
    """

    equation = r"""
    \beta_{ij} = \operatorname{sigmoid}(\operatorname{logit}(i, j))

    A_{ij} = \beta_{ij} \prod_{\text{order}_j < \text{order}_l < \text{order}_i} (1 - \beta_{il})
    """
    source = "Tan et al. 2024, arXiv:2410.17980, section 2"
    also_called = ("stickbreaking", "stick_breaking_attention")
    extrapolates = "Claimed: it goes on past the trained length without any position."
    needs_weights = True

    def __init__(self, *, itself: bool = False) -> None:
        super().__init__()
        self.itself = itself

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        return in_rows(StickBreaking.nearest_first, self, q, at, keys, mask, kernel, SIZES.rows_backwards)

    def nearest_first(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        """Attend from the nearest keys back until every stick is used up. Contiguous tokens are read in blocks."""
        simple = all("biases" not in part.doors for part in kernel.other_parts)
        in_a_row = keys.at.start is not None and simple and not kernel.need_weights and q.is_cpu and may_be_read(q)
        out = rest = torch.zeros((), device=q.device)
        # A slice of all keys would tie a graph to their number.
        for columns in reversed(cut(slice(0, keys.k.shape[2]), SIZES.narrowest)) if in_a_row else (None,):
            block, seen_by = (keys, mask) if columns is None else keys_of_call(columns, keys, mask)
            logits = kernel.logits(self, q, at, block, seen_by)
            i, j = at.order[:, None, :, None], block.at.order[:, None, None, :]
            visible = seen_by.allowed(at, block.at) & ((j <= i) if self.itself else (j < i))
            log_rest = F.logsigmoid(-logits).masked_fill(~visible, 0.0)
            weights = (F.logsigmoid(logits) + sums_after(log_rest, block.at) + rest).exp().masked_fill(~visible, 0.0)
            block_out, final_weights = kernel.finish(weights, block)
            out, rest = out + block_out, rest + log_rest.sum(-1, keepdim=True)
            if in_a_row and rest.max() < LEAST_LEFT:
                break
        return out.to(keys.v.dtype), final_weights

    def formula_weights(self, logits, query, keys) -> list[float]:
        stick, weights = 1.0, [0.0] * len(keys)
        last = query.order if self.itself else query.order - 1
        for index in sorted(range(len(keys)), key=lambda index: -keys[index].order):
            if keys[index].order <= last:
                # The sigmoid in a form that cannot overflow.
                beta = (1 + math.tanh(logits[index] / 2)) / 2
                weights[index] = beta * stick
                stick *= 1 - beta
        return weights
