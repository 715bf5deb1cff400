"""TUPE's untied positional encoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, Factored
from posenc.encoding.formulas import dot_product
from posenc.encoding.interpolation import interpolate
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import assert_on_gpu, may_be_read


class TUPE(Encoding):
    """Add to each logit how well two positions go together, from position vectors with projections of their own.

    logit(i, j) = scale * q_i . k_j + (U_Q p_m) . (U_K p_n) / sqrt(2 head_dim)
    untie_first: a key at position 0 gets first_key[h] instead, and a query at position 0 gets 0.

    p is a learned table [max_len, dim]; U_Q and U_K map dim channels to those of all heads. All layers share them: the
    term knows nothing of the content.

    dim          width of the table (channels), that of the model in the paper
    heads        number of query heads
    head_dim     width of one head (channels)
    max_len      rows of the table (positions)
    untie_first  whether the first token ([CLS], which represents the whole text and has no place in it) is freed from
                 positions
    std          standard deviation of the initial U_Q and U_K; the table starts with deviation 1

    Where each square root goes: the paper divides both terms by sqrt(2 head_dim). The content's is Attention's `scale`,
    whose default is head_dim^-1/2. TUPE-R, the variant with relative positions, is a sum: `tupe + t5_bias`.

    Positions may be fractional: the two neighbouring vectors are mixed linearly.

    What differs from the paper: its theta_1, the number that a first query gets for every key alike, is dropped by the
    softmax, so it is 0 here and only theta_2 is learned. The released code takes theta from rows of the table, passes
    the table through a LayerNorm and gives the projections biases; it unties the relative part of TUPE-R too.

    Where it goes wrong: it has no positions past its table. Under a causal mask a model finds its first token
    by itself, and untying it only takes the position away.

    Raises ValueError for sizes below 1, positions out of the table, and other heads than it was built for.
    Inside a compiled graph, where data cannot be looked at, positions out of the table come out as NaN.
    Source: Ke, He, Liu 2020, arXiv:2006.15595, sections 3.1 to 3.3.

    >>> TUPE(dim=8, heads=2, head_dim=4, max_len=16).table.shape
    torch.Size([16, 8])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \frac{(U_Q \, p_m) \cdot (U_K \, p_n)}{\sqrt{2 \,
    \text{head dim}}}
    """
    source = "Ke, He, Liu 2020, arXiv:2006.15595, sections 3.1 to 3.3"
    also_called = ("untied", "untied_positional_encoding")
    extrapolates = "no: a table of absolute positions ends with the trained length"
    between = ()

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        max_len: int,
        *,
        untie_first: bool = True,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, head_dim=head_dim, max_len=max_len)
        checks.above("std", std, 0)
        self.dim, self.heads, self.head_dim, self.max_len = dim, heads, head_dim, max_len
        self.untie_first, self.std = untie_first, std
        self.table = nn.Parameter(torch.empty(max_len, dim, device=device, dtype=dtype))
        self.to_query = nn.Linear(dim, heads * head_dim, bias=False, device=device, dtype=dtype)
        self.to_key = nn.Linear(dim, heads * head_dim, bias=False, device=device, dtype=dtype)
        self.first_key = nn.Parameter(torch.empty(heads, device=device, dtype=dtype)) if untie_first else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)
        for projection in (self.to_query, self.to_key):
            nn.init.normal_(projection.weight, std=self.std)
        if self.first_key is not None:
            nn.init.zeros_(self.first_key)

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.heads(self, q)
        checks.head_dim(self, q)
        q_pos = self.position_vectors(at, self.to_query, (2 * self.head_dim) ** -0.5)
        k_pos = self.position_vectors(keys.at, self.to_key)
        if self.first_key is not None:
            # An extra channel is 1 for a key at 0, and holds the bias of that key for every query.
            first_key = self.first_key.to(q_pos.dtype)[:, None, None].expand(*q_pos.shape[:3], 1)
            q_pos = torch.cat((q_pos, first_key), -1).masked_fill(self.first(at), 0.0)
            first = self.first(keys.at)
            k_pos = torch.cat((k_pos.masked_fill(first, 0.0), first.to(k_pos.dtype).expand(*k_pos.shape[:3], 1)), -1)
        return [Factored(q_pos, k_pos)]

    def first(self, at: Positions) -> Tensor:
        """Return which tokens are at position 0, [B or 1, 1, T, 1]."""
        return (at.axis(self) == 0)[:, None, :, None]

    def position_vectors(self, at: Positions, projection: nn.Linear, scale: float = 1.0) -> Tensor:
        """Return the projected position of each token [B or 1, H, T, D], in float32 or wider."""
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        coords = self.valid_coords(at)
        vectors = interpolate(lambda row: F.embedding(row, self.table).to(dtype), coords, self.max_len - 1)
        return F.linear(vectors, projection.weight.to(dtype) * scale).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def valid_coords(self, at: Positions) -> Tensor:
        """Return the coordinates [B or 1, T]. Raises ValueError if one is outside the table and data can be read."""
        coords = at.axis(self)
        if at.extent is not None and at.extent <= self.max_len:
            return coords
        if not may_be_read(coords):
            invalid = (coords < 0) | (coords > self.max_len - 1)
            return torch.where(invalid, torch.nan, coords.to(torch.float64))
        words = f"a position is out of the {self.max_len} rows of {self}"
        if assert_on_gpu(coords, lambda: (coords >= 0) & (coords <= self.max_len - 1), words):
            return coords
        lowest, highest = coords.min().item(), coords.max().item()
        if highest > self.max_len - 1:
            raise ValueError(
                f"position {highest:.12g} is past the {self.max_len} rows of {self}; "
                f"build it with max_len={math.ceil(highest) + 1} or more"
            )
        if lowest < 0:
            raise ValueError(f"{self} starts at position 0, got position {lowest:.12g}; shift the positions")
        return coords

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        content = super().formula_logit(q, k, m, n, head, scale)
        if self.first_key is not None and m == 0:
            return content
        if self.first_key is not None and n == 0:
            return content + self.first_key[head].item()
        q_pos, k_pos = self.formula_vector(self.to_query, m, head), self.formula_vector(self.to_key, n, head)
        return content + dot_product(q_pos, k_pos) / math.sqrt(2 * self.head_dim)

    def formula_vector(self, projection: nn.Linear, position: float, head: int) -> list[float]:
        """Return the vector of a position, projected for one head."""
        first, second = self.table[math.floor(position)].tolist(), self.table[math.ceil(position)].tolist()
        vector = [(1 - position % 1) * a + position % 1 * b for a, b in zip(first, second, strict=True)]
        rows = projection.weight[head * self.head_dim : (head + 1) * self.head_dim].tolist()
        return [dot_product(row, vector) for row in rows]
