"""Keys: what is remembered of the tokens one may attend to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posenc.tokens.positions import Positions


@dataclass(frozen=True, eq=False)
class Keys:
    """What is remembered of the tokens one may attend to.

    k, v        [B, KV, S, D]     keys and values; KV divides the number of query heads
    at          Positions of the S tokens; order -1 marks an empty cache slot
    turned      [B or 1, S, A]    the coordinates where keys were turned, of tokens that were moved since; None: where
                they are
    moves       what becomes of a key whose token moves, as the encoding has it (`Encoding.moves`)
    memo        name -> [B, heads or 1, S, ...]   what encodings asked to remember of each token
    query_memo  name -> [B, heads or 1, T, ...]   the same facts of the query tokens
    summed      names of facts that are running sums along the sequence already, in both memos: where these are some of
                its keys only, nobody could sum them up from what is there
    """

    k: Tensor
    v: Tensor
    at: Positions
    memo: Mapping[str, Tensor] = field(default_factory=dict)
    query_memo: Mapping[str, Tensor] = field(default_factory=dict)
    summed: frozenset[str] = frozenset()
    turned: Tensor | None = None
    moves: str = "exact"

    def facts(self) -> dict[str, Tensor]:
        """What is remembered of each token beside where it is, [B, heads or 1, S, ...], by names."""
        return {"k": self.k, "v": self.v, **{f"memo {name}": fact for name, fact in self.memo.items()}}

    def to(self, device: torch.device | str) -> "Keys":
        turned = None if self.turned is None else self.turned.to(device)
        return replace(self.each(lambda name, fact: fact.to(device)), at=self.at.to(device), turned=turned)

    def each(self, change: Callable[[str, Tensor], Tensor]) -> "Keys":
        """The same keys with every fact of tokens changed, by its name and value as `facts` has them."""
        memo = {name: change(f"memo {name}", fact) for name, fact in self.memo.items()}
        return replace(self, k=change("k", self.k), v=change("v", self.v), memo=memo)
