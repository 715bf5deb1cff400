"""ALiBi."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.tokens.shared_tables import number_tensor

FORMS = ("symmetric", "asymmetric", "falcon")


class ALiBi(Encoding):
    """Subtract from each logit a per-head slope times the distance.

    logit(i, j) = scale * q_i . k_j - slope_h |m_i - n_j|

    For H a power of two, slope_h = 2^(-bias_max h/H) for h = 1..H (logit per position). Otherwise, as in the authors'
    code, the slopes of the power of two below H, followed by every other slope of the power of two above. The bias is
    added after the scaling: it is not divided by sqrt(head_dim).

    heads     number of heads, any number from 1; `on(alibi, heads=(0, 1))` has the slopes of two heads
    form      symmetric: as above, which under a causal mask is the published encoding, and what BLOOM and MPT compute
              asymmetric: keys behind the query count half a position nearer, so that an encoder tells the sides apart
              (Ruoss et al. 2023, arXiv:2305.16843, released code)
              falcon: the bias is divided by sqrt(head_dim) too, as Falcon does
    bias_max  the exponent of the last slope of a power of two; 8 in the paper, `alibi_bias_max` in MPT
    learned   whether slopes are parameters, kept as logarithms that start at the published slopes; shared by all layers
    head_dim  width of one head (channels); only the falcon form reads it

    BLOOM adds slope_h n_j instead. Under a causal mask that differs by the same number for all keys of a query, which
    the softmax does not see; in bfloat16 it loses the distance, which is why it is not reproduced here. Positions may
    be fractional, and queries and keys may be different tokens.

    Where it goes wrong: it does not use longer context, it ignores it. A head sees about 7/slope tokens (a weight of
    e^-7), and perplexity beyond the trained length stays flat for that reason; the published improvement is the effect
    of windows whose first tokens have little to look at. A far needle is out of reach. Learned slopes carry less far.

    Raises ValueError for fewer than one head, an unknown form, or the falcon form without head_dim.
    Source: Press, Smith, Lewis 2021, arXiv:2108.12409, section 3.

    >>> ALiBi(2).bias(3, causal=True)[0, 0]
    tensor([[-0.0000,    -inf,    -inf],
            [-0.0625, -0.0000,    -inf],
            [-0.1250, -0.0625, -0.0000]])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j - \text{slope}_h \, |m_i - n_j|

    \text{slope}_h = 2^{-\text{bias max} \, h / H}, \quad h = 1, \dots, H \quad \text{for } H \text{ a power of two}
    """
    source = "Press, Smith, Lewis 2021, arXiv:2108.12409, section 3"
    also_called = ("linear_bias",)
    extrapolates = "Claimed: yes. Found: perplexity stays flat beyond the trained length, by ignoring what is far."
    used_by = "BLOOM, MPT, one Falcon"

    def __init__(
        self,
        heads: int,
        *,
        form: str = "symmetric",
        bias_max: float = 8.0,
        learned: bool = False,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, head_dim=head_dim)
        if form not in FORMS:
            raise ValueError(
                f"form must be one of {', '.join(FORMS)}, got '{form}'; "
                f"BLOOM and MPT are symmetric, MPT with its alibi_bias_max as bias_max"
            )
        checks.above("bias_max", bias_max, 0)
        if form == "falcon" and head_dim is None:
            raise ValueError("form 'falcon' divides the bias by sqrt(head_dim); give head_dim")
        self.heads, self.form, self.bias_max, self.learned, self.head_dim = heads, form, bias_max, learned, head_dim
        self.log_slopes = nn.Parameter(torch.empty(heads, device=device, dtype=dtype)) if learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.log_slopes is not None:
            with torch.no_grad():
                self.log_slopes.copy_(torch.tensor([math.log(slope) for slope in self.slopes], dtype=torch.float64))

    @property
    def slopes(self) -> list[float]:
        """The published slope of each head (logit per position), the initial value of a learned one."""
        power = 2 ** int(math.log2(self.heads))
        first = [2.0 ** (-self.bias_max * h / power) for h in range(1, power + 1)]
        second = [2.0 ** (-self.bias_max * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
        return first + second[: self.heads - power]

    def by_distance(self, delta: Tensor) -> Tensor:
        slopes = self.strengths(torch.float64 if delta.dtype == torch.float64 else torch.float32, delta.device)
        distance = delta.abs().to(slopes.dtype)
        if self.form == "asymmetric":
            distance = distance - 0.5 * (delta > 0)
        return -slopes.view(-1, *(1,) * delta.dim()) * distance

    def strengths(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the slope of each head (logit per position), in dtype or wider."""
        factor = 1.0 if self.form != "falcon" else (self.head_dim or 1) ** -0.5
        if self.log_slopes is None:
            return number_tensor([slope * factor for slope in self.slopes], dtype, device)
        return self.log_slopes.to(torch.promote_types(dtype, self.log_slopes.dtype)).exp() * factor

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        H = self.heads
        if H & (H - 1) == 0:
            exponent = self.bias_max * (head + 1) / H
        else:
            power = 1 << (H.bit_length() - 1)
            exponent = self.bias_max * ((head + 1) / power if head < power else (head - power + 0.5) / power)
        slope = 2**-exponent if self.log_slopes is None else math.exp(self.log_slopes[head].item())
        distance = abs(m - n) - (0.5 if self.form == "asymmetric" and m > n else 0.0)
        bias = -slope * distance / (math.sqrt(self.head_dim or 1) if self.form == "falcon" else 1.0)
        return super().formula_logit(q, k, m, n, head, scale) + bias
