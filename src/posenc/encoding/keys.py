"""Keys: the keys, values and remembered facts of tokens, with their positions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posenc.tokens.positions import Positions


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys, values and remembered facts of tokens, with their positions.

    k, v        [B, KV, S, D]     keys and values; KV divides the number of query heads
    at          Positions of the S tokens; order -1 marks an empty cache slot
    turned      [B or 1, S, A]    coordinates at which keys were rotated, if tokens moved since; None: as in `at`
    moves       how a key follows its token (`Encoding.moves`)
    memo        name -> [B, heads or 1, S, ...]   facts of key tokens, from `Encoding.remember`
    query_memo  name -> [B, heads or 1, T, ...]   the same facts of the query tokens
    prefix_sums  memo entries that are prefix sums already (sequence parallel: a shard cannot sum them itself)
    """

    k: Tensor
    v: Tensor
    at: Positions
    memo: Mapping[str, Tensor] = field(default_factory=dict)
    query_memo: Mapping[str, Tensor] = field(default_factory=dict)
    prefix_sums: frozenset[str] = frozenset()
    turned: Tensor | None = None
    moves: str = "exact"

    def facts(self) -> dict[str, Tensor]:
        """Return k, v and the memo, [B, heads or 1, S, ...], by name."""
        return {"k": self.k, "v": self.v, **{f"memo {name}": fact for name, fact in self.memo.items()}}

    def to(self, device: torch.device | str) -> "Keys":
        turned_coords = None if self.turned is None else self.turned.to(device)
        return replace(self.each(lambda name, fact: fact.to(device)), at=self.at.to(device), turned=turned_coords)

    def each(self, change: Callable[[str, Tensor], Tensor]) -> "Keys":
        """Return the same keys with `change(name, value)` applied to each of `facts`."""
        memo = {name: change(f"memo {name}", fact) for name, fact in self.memo.items()}
        return replace(self, k=change("k", self.k), v=change("v", self.v), memo=memo)
