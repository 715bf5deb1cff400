"""DAPE: a bias that adapts to the data."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import BIASES, AttentionOutput, Encoding
from posenc.encoding.biases import Bias, Dense, product, total
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

WRAPPABLE_DOORS = BIASES | {"remember"}


class DAPE(Encoding):
    """Let a small network correct a bias for each pair, from the logits and biases of all heads.

    logit = A + B + f([A; B]),   A = scale * q_i . k_j,  B the wrapped bias, both [H] for a pair
    f(z) = W_2 leaky_relu(W_1 z + b_1) + b_2,   W_1 [width, 2 H], W_2 [H, width], slope 0.01 below 0

    encoding  the bias that is adapted: kerple or alibi in the paper, or any encoding that is a bias and nothing else
    heads     number of query heads
    width     hidden width of the network (channels); 32 in the paper

    Every layer has its own network and wrapped bias. A is read after other encodings have turned queries and keys;
    their biases and the mask are added afterwards, and the network does not read them. DAPE-v2's convolution over three
    neighbouring keys is left out: neighbours in the tensor are no neighbours in a packed or cached sequence.

    Where it goes wrong: 2 H numbers for each pair go through the network, about width times the memory of plain
    logits. The network reads the whole bias, which is far outside what it was trained on at long distances.

    Raises ValueError for a number of heads or a width below 1, and for an encoding that is no bias or more than one.
    Source: Zheng et al. 2024, arXiv:2405.14722, section 3; code in chuanyang-Zheng/DAPE.

    >>> from posenc.encodings.distance_biases.alibi import ALiBi
    >>> DAPE(ALiBi(4), heads=4).first.weight.shape
    torch.Size([32, 8])
    """

    equation = r"""
    \text{logit} = A + B + f([A; B]), \quad A = \text{scale}\, q \cdot k

    f(z) = W_2 \operatorname{leaky\ relu}(W_1 z + b_1) + b_2
    """
    source = "Zheng et al. 2024, arXiv:2405.14722, section 3; code in chuanyang-Zheng/DAPE"
    also_called = ("data_adaptive", "data_adaptive_bias")
    extrapolates = "Claimed, in its own tables: better beyond the trained length than the bias it adapts."
    queries_together = 1
    per_layer = True
    wraps = ("kerple", "alibi")

    def __init__(
        self,
        encoding: Encoding,
        heads: int,
        *,
        width: int = 32,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, width=width)
        if not encoding.doors & BIASES or not encoding.doors <= WRAPPABLE_DOORS:
            raise ValueError(
                f"dape adapts a bias and nothing else, as in dape(kerple); {encoding} opens "
                f"{sorted(encoding.doors) or 'no door'}"
            )
        self.encoding, self.heads, self.width = encoding, heads, width
        self.doors = encoding.doors | {"attend"}
        self.axes, self.reads_keys, self.between = encoding.axes, encoding.reads_keys, encoding.between
        self.first = nn.Linear(2 * heads, width, device=device, dtype=dtype)
        self.second = nn.Linear(width, heads, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        self.first.reset_parameters()
        self.second.reset_parameters()

    def by_distance(self, delta: Tensor) -> Tensor | None:
        return self.encoding.by_distance(delta)

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        return self.encoding.biases(q, at, keys)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        return self.encoding.remember(x, at)

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        checks.heads(self, q)
        dtype = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            logits = product(q, keys.k) * kernel.scale
            biases = self.biases(q, at, keys)
            bias = total(biases, dtype)
            assert bias is not None
            # An expanded bias would tie a graph to batches of several rows.
            correction = self.corrections(torch.cat((logits, bias + torch.zeros_like(logits)), 1))
        return kernel(self, q, at, keys, mask, biases=[*biases, Dense(correction)])

    def corrections(self, pairs: Tensor) -> Tensor:
        """Return f of logits and biases [B, 2 H, T, S], each head's correction [B, H, T, S]."""
        hidden = F.leaky_relu(map_channels(self.first, pairs.flatten(2)), inplace=True)
        return map_channels(self.second, hidden).unflatten(2, pairs.shape[2:])

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        raise NotImplementedError(f"{self} mixes the logits of all heads, and a formula of one head lacks the others")


def map_channels(linear: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear map to the channels of x [B, C, N]. Transposing them would be slower."""
    weight, bias = linear.weight.to(x.dtype), linear.bias.to(x.dtype)
    return torch.baddbmm(bias[:, None], weight.expand(x.shape[0], -1, -1), x)
