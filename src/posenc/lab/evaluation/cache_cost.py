"""The cost of a KV cache for an encoding besides keys and values, measured by one attention step."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc import kernels
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.keys import Keys
from posenc.tokens.masks import causal
from posenc.tokens.positions import Positions


@torch.no_grad()
def cache_cost(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """Measure what a KV cache holds and does for an encoding besides k and v, on three tokens.

    numbers      how many numbers each token and layer adds to the cache
    turned_anew  which of keys and values it rotates again at every step
    words        the same as text
    """
    T, numbers = 3, 0
    turned_parts = {"keys"} if encoding.turns_when_attending else set()
    if encoding.doors & {"attend", "remember"}:
        x, heads = torch.zeros(1, T, shape.dim), torch.zeros(1, shape.heads, T, shape.head_dim)
        places = torch.zeros(1, T, encoding.axes or 1, dtype=torch.long)
        at = Positions.count(T).with_facts(coords=places, unit_step=False, extent=1).with_horizon(T)
        memo = encoding.remember(x, at)
        numbers = sum(fact.numel() // T for fact in memo.values())
        cache = Keys(heads.clone(), heads.clone(), at, memo, memo)

        def watch(_: Encoding, q: Tensor, at: Positions, keys: Keys, *args: Any, **kw: Any) -> tuple[Tensor, Tensor]:
            turned_parts.update(
                name for name, key in (("keys", "k"), ("values", "v")) if vars(keys)[key] is not vars(cache)[key]
            )
            return q, q.new_zeros(1, shape.heads, T, T)

        encoding.attend(heads, at, cache, causal(), replace(kernels.bind("reference", encoding, scale=1), kernel=watch))
    words = [f"{numbers:,} number{'s' * (numbers != 1)} per token and layer beside k and v"] if numbers else []
    words += [f"all {' and '.join(sorted(turned_parts))} are turned anew at each step"] if turned_parts else []
    return {"numbers": numbers, "turned_anew": sorted(turned_parts), "words": "; ".join(words) or "nothing more"}
