"""Transformer-XL's relative encoding."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, DotProducts, Products, distance_tensor, facts_of
from posenc.encoding.formulas import dot_product
from posenc.encoding.keys import Keys
from posenc.encoding.precision import exact
from posenc.encoding.score_mods import ScoreMod, dot_products
from posenc.encodings.rotations import Waves
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once

LAYOUTS = ("concatenated", "interleaved")


class TransformerXL(Waves, Encoding):
    """Compare each query with its distance from the key, a sinusoid that each layer projects.

    logit(i, j) = scale * q_i . k_j + (u . k_j + (q_i + v) . W R(m_i - n_j)) / sqrt(head_dim)
    R(d) has sin(d frequency_k) and cos(d frequency_k), frequency_k = base^(-2k/dim), k = 0, 1, ...

    u and v are one vector for each head [heads, head_dim], W maps dim channels to those of all heads; every layer has
    its own. All but the content's logit is divided by sqrt(head_dim), as published, whatever Attention's `scale` is.

    dim           width of the sinusoid (channels), that of the model in the paper; an odd width lacks the last cosine
    heads         number of query heads
    head_dim      width of one head (channels)
    max_distance  the distance (positions) from which all look alike; none in the paper's formula, but the released code
                  (and XLNet's clamp_len) clamps when it evaluates past the trained length
    base          ratio that sets the longest wavelength (unitless, above 1)
    layout        "concatenated" as in the released code and XLNet: all sines, then all cosines. "interleaved": a sine
                  and its cosine in turn, as in Conformers (Wav2Vec2-BERT). The same up to the order of W's columns
    std           standard deviation of the initial u, v and W

    Since R(m - n) is R(m) turned by n, a query meets each key in a product of dim channels: exact for fractional,
    unordered and cross-attention positions, without a table of distances or a shift of tensors.

    What differs from the paper: the segment recurrence is a KV cache here, and no part of the encoding. The paper's
    models share u and v between layers (released code: `untie_r=False`); load the same vectors into every layer.
    XLNet's segment term tells which sentence a token is of, not where it is, and is left out.

    Where it goes wrong: it is relative, but a distance that training never saw is still a new sinusoid; and the term of
    positions costs dim/head_dim times what the content's costs. Interleaved weights in concatenated layout are silently
    wrong.

    Raises ValueError for widths, heads or a max_distance below 1, a base of 1 or less, an unknown layout, and other
    heads than it was built for.
    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3.

    >>> TransformerXL(dim=16, heads=2, head_dim=4).weight.shape
    torch.Size([8, 16])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \frac{u \cdot k_j + (q_i + v) \cdot W R(m_i -
    n_j)}{\sqrt{\text{head dim}}}

    R(d) = [\sin(d\,\text{frequency}_k), \; \cos(d\,\text{frequency}_k)], \quad \text{frequency}_k =
    \text{base}^{-2k/\text{dim}}
    """
    source = "Dai et al. 2019, arXiv:1901.02860, section 3.3"
    also_called = ("xl", "txl", "xlnet", "relative_sinusoidal")
    per_layer = True
    reads_keys = True
    queries_together = 1
    extrapolates = (
        "made for contexts that grow segment by segment, and reported to evaluate past the trained length; "
        "no independent measurement is known to us, and distances beyond the trained ones are still unseen"
    )
    used_by = "Transformer-XL, XLNet; Conformer speech encoders such as Wav2Vec2-BERT and Parakeet"
    between = ()

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        max_distance: float | None = None,
        base: float = 10_000.0,
        layout: str = "concatenated",
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, head_dim=head_dim)
        checks.at_least("max_distance", max_distance, 1, ", or None for no limit")
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        checks.above("std", std, 0)
        self.dim, self.heads, self.head_dim, self.max_distance = dim, heads, head_dim, max_distance
        self.width, self.base, self.layout, self.std = dim, base, layout, std
        self.content_bias = nn.Parameter(torch.empty(heads, head_dim, device=device, dtype=dtype))
        self.distance_bias = nn.Parameter(torch.empty(heads, head_dim, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(heads * head_dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.content_bias, self.distance_bias, self.weight):
            nn.init.normal_(parameter, std=self.std)

    def waves(self, coords: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the sines and cosines [..., pairs] at coordinates [...]."""
        coords = exact(coords)
        angle = coords[..., None] * self.frequencies_on(coords.device)
        return angle.sin().to(dtype).to(device), angle.cos().to(dtype).to(device)

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.heads(self, q)
        checks.head_dim(self, q)
        facts, products = partial(self.facts, at), partial(self.products, q, at, keys.k)
        limit = None if self.max_distance is None else math.ceil(self.max_distance)
        return [Products(self.score_mod, q, at, keys, facts=facts, products=products, same_beyond=limit)]

    def facts(self, at: Positions, keys: Keys) -> Keys:
        """Return the keys with sinusoids of queries and keys, [B or 1, 1, T or S, 2 pairs]."""
        dtype, device = self.precision(keys.k), keys.k.device
        of_queries, of_keys = (
            torch.cat(self.waves(where.axis(self)[:, None], dtype, device), -1) for where in (at, keys.at)
        )
        return facts_of(keys, memo={"transformer_xl": of_keys}, query_memo={"transformer_xl": of_queries})

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        dtype, biased_q = self.precision(q), self.biased_queries(q) * self.head_dim**-0.5
        of_sine, of_cosine = self.split(biased_q @ self.weight.to(dtype).unflatten(0, (self.heads, -1)))
        sin, cos = keys.query_memo["transformer_xl"].to(dtype).chunk(2, -1)
        # sin(m - n) = sin m cos n - cos m sin n, and cos(m - n) = cos m cos n + sin m sin n.
        query_waves = torch.cat((of_cosine * sin - of_sine * cos, of_sine * sin + of_cosine * cos), -1)
        waves, content = keys.memo["transformer_xl"].to(dtype), self.content_logits(keys.k)
        if self.max_distance is not None:
            sin, cos = self.waves(exact(at.coords).new_full((), self.max_distance), dtype, q.device)
            even, odd = of_cosine @ cos, of_sine @ sin
            m, n = (where.axis(self).expand(q.shape[0], -1) for where in (at, keys.at))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            bias = dot_products(query_waves, waves, b, h, i, j)
            if self.max_distance is not None:
                delta, even_part, odd_part = m[b, i] - n[b, j], even[b, h, i], odd[b, h, i]
                bias = torch.where(delta > self.max_distance, even_part + odd_part, bias)
                bias = torch.where(delta < -self.max_distance, even_part - odd_part, bias)
            return score + (bias + content[b, h, j]).to(score.dtype)

        return score_mod

    def products(self, q: Tensor, at: Positions, k: Tensor, distances: range) -> list[DotProducts]:
        """Return the bias at whole distances: products of queries with the distance, and the content term of keys."""
        dtype = self.precision(q)
        table_args = distances, dtype, q.device
        # Layers share them: 4,096 tokens have a million sines.
        shape = self.dim, self.base, self.layout, self.max_distance
        table = once(at, (type(self), shape, table_args), lambda: self.sinusoids(*table_args))
        vectors = F.linear(table, self.weight.to(dtype) * self.head_dim**-0.5)
        content = self.content_logits(k)[..., None]
        return [
            DotProducts(self.biased_queries(q), vectors.unflatten(-1, (self.heads, -1)).transpose(0, 1)),
            DotProducts(content, content.new_ones(1, 1, 1), of_keys=True),
        ]

    def sinusoids(self, distances: range, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the sinusoids [R, dim] of whole distances."""
        delta = distance_tensor(distances, device).double()
        if self.max_distance is not None:
            delta = delta.clamp(-self.max_distance, self.max_distance)
        sin, cos = self.waves(delta, dtype, device)
        if self.layout == "concatenated":
            return torch.cat((sin, cos), -1)[:, : self.dim]
        return torch.stack((sin, cos), -1).flatten(-2)[:, : self.dim]

    def precision(self, x: Tensor) -> torch.dtype:
        return torch.promote_types(torch.promote_types(x.dtype, self.weight.dtype), torch.float32)

    def biased_queries(self, q: Tensor) -> Tensor:
        """Return q + v, which is multiplied with the distances: [B, H, T, head_dim]."""
        dtype = self.precision(q)
        return q.to(dtype) + self.distance_bias.to(dtype)[:, None]

    def content_logits(self, k: Tensor) -> Tensor:
        """Return the scaled product u . k_j of each key: [B, H, S]."""
        dtype = self.precision(k)
        heads = self.content_bias.to(dtype).unflatten(0, (k.shape[1], -1))  # [KV, group, head_dim]
        return (k.to(dtype) @ heads.transpose(-1, -2)).transpose(-1, -2).flatten(1, 2) * self.head_dim**-0.5

    def split(self, channels: Tensor) -> tuple[Tensor, Tensor]:
        """Split channels [..., dim], in the layout's order, into those of sines and of cosines [..., pairs]."""
        channels = F.pad(channels, (0, self.dim % 2))
        if self.layout == "concatenated":
            of_sine, of_cosine = channels.chunk(2, -1)
        else:
            of_sine, of_cosine = channels.unflatten(-1, (-1, 2)).unbind(-1)
        return of_sine, of_cosine

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        distance = m - n if self.max_distance is None else max(-self.max_distance, min(self.max_distance, m - n))
        pairs = (self.dim + 1) // 2
        place = [(c % pairs, c // pairs) if self.layout == "concatenated" else divmod(c, 2) for c in range(self.dim)]
        sinusoid = [(math.sin, math.cos)[wave](distance / self.base ** (2 * pair / self.dim)) for pair, wave in place]
        u, v = self.content_bias[head].tolist(), self.distance_bias[head].tolist()
        rows = self.weight[head * self.head_dim : (head + 1) * self.head_dim].tolist()
        products = [dot_product(row, sinusoid) for row in rows]
        total = dot_product(u, k) + dot_product(q, products) + dot_product(v, products)
        return super().formula_logit(q, k, m, n, head, scale) + total / self.head_dim**0.5
