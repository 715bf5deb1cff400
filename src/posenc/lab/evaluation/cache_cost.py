"""What a KV cache holds and does for an encoding besides keys and values, found by letting it attend."""

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
    """What a KV cache holds and does for an encoding besides k and v, found by letting it attend to three tokens.

    numbers      how many numbers it remembers of each token in each layer
    turned_anew  what of the cache it turns again at every step: keys, values
    words        the same in words
    """
    T, numbers = 3, 0
    again = {"keys"} if encoding.turns_when_attending else set()
    if encoding.doors & {"attend", "remember"}:
        x, heads = torch.zeros(1, T, shape.dim), torch.zeros(1, shape.heads, T, shape.head_dim)
        places = torch.zeros(1, T, encoding.axes or 1, dtype=torch.long)
        at = Positions.count(T).changed(coords=places, unit_step=False, extent=1).with_horizon(T)
        memo = encoding.remember(x, at)
        numbers = sum(fact.numel() // T for fact in memo.values())
        given = Keys(heads.clone(), heads.clone(), at, memo, memo)

        def watch(_: Encoding, q: Tensor, at: Positions, keys: Keys, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
            again.update(
                name for name, key in (("keys", "k"), ("values", "v")) if vars(keys)[key] is not vars(given)[key]
            )
            return q, q.new_zeros(1, shape.heads, T, T)

        encoding.attend(heads, at, given, causal(), replace(kernels.bind("reference", encoding, scale=1), kernel=watch))
    words = [f"{numbers:,} number{'s' * (numbers != 1)} per token and layer beside k and v"] if numbers else []
    words += [f"all {' and '.join(sorted(again))} are turned anew at each step"] if again else []
    return {"numbers": numbers, "turned_anew": sorted(again), "words": "; ".join(words) or "nothing more"}
