"""Distance maps: wrappers that pass mapped distances to an encoding, so that no distance exceeds training.

A map gives the distance of each pair by branches: coordinates whose difference is right for some pairs of tokens. A
bias is evaluated at the mapped distance. Rotary-like encodings rotate queries and unrotated keys for each branch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.encoding.base import AttentionOutput, Encoding, Moves
from posenc.encoding.biases import Bias, Branch, BranchedLogits, Pairs, check_head_rows
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.formulas import Token
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, head_values
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


class BranchCoords(NamedTuple):
    """Coordinates whose difference is the mapped distance, for the pairs of tokens of the branch.

    queries  true coordinates of queries -> those of the branch
    keys     true coordinates of keys -> those of the branch
    holds    (m, n) -> whether the branch holds for a query at m and a key at n; both broadcast
    """

    queries: Callable[[Tensor], Tensor]
    keys: Callable[[Tensor], Tensor]
    holds: Callable[[Tensor, Tensor], Tensor]


class DistanceMap(Encoding):
    """Base of the distance maps: passes mapped distances to an encoding.

    A subclass defines `branches` (pairs of no branch keep the true distance) and the scalar `formula_positions`.

    Raises ValueError for an encoding that reads more than a distance, or several axes.
    """

    wraps = ("rotary", "alibi")
    between = ()

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        extra_doors = sorted(encoding.doors - {"turn", "by_distance"})
        if not encoding.doors or extra_doors:
            raise ValueError(
                f"a distance map takes an encoding that turns queries and keys or is a bias by distance, as rotary and "
                f"alibi do; {encoding} opens {', '.join(extra_doors) or 'no door'}"
            )
        if encoding.axes > 1:
            raise ValueError(f"a distance map knows one axis, got {encoding}, which reads {encoding.axes}")
        if encoding.turns_when_attending:
            raise ValueError(f"a distance map replaces a schedule that follows the length, got {encoding}")
        self.encoding, self.per_layer = encoding, encoding.per_layer
        doors = {"turn": "attend", "by_distance": "biases"}
        self.doors = frozenset(doors[door] for door in encoding.doors)

    @property
    def wavelengths(self) -> Tensor | None:
        return self.encoding.wavelengths

    @property
    def moves(self) -> Moves:
        return "unturned" if "attend" in self.doors else "exact"

    def branches(self) -> list[BranchCoords]:
        """Return the branches: the pairs with another distance than the true one, and that distance."""
        raise NotImplementedError

    def formula_positions(self, m: float, n: float) -> tuple[float, float]:
        """Return two positions whose difference is the mapped distance of m and n, in scalars as published."""
        raise NotImplementedError

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        if "attend" not in self.doors:
            return super().attend(q, at, keys, mask, kernel)
        m, n = at.axis(self), keys.at.axis(self)

        def rotate_at(there: Positions, keys_there: Positions) -> tuple[Tensor, Tensor]:
            return self.encoding.turn(q, there, "query"), self.encoding.turn(keys.k, keys_there, "key")

        branches = [
            Branch(*rotate_at(at.with_coords(branch.queries(m)), keys.at.with_coords(branch.keys(n))), branch.holds)
            for branch in self.branches()
        ]
        true_q, true_k = rotate_at(at, keys.at)
        logits = BranchedLogits(true_q, true_k, branches, at, keys.at, kernel.scale, repr(self))
        return kernel(self, true_q, at, replace(keys, k=true_k), mask, biases=[*self.biases(q, at, keys), logits])

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        if "biases" not in self.doors or q is None:
            return []
        return [Pairs(self.score_mod, q, at, keys, reads_between=False)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        """Return the bias of the mapped distances, pair by pair."""
        branches = self.branches()
        m, n = at.axis(self), keys.at.axis(self)
        branch_coords = [(branch.queries(m), branch.keys(n)) for branch in branches]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            true_m, true_n = at_token(m, b, i), at_token(n, b, j)
            delta = true_m - true_n
            for branch, (queries, branch_keys) in zip(branches, branch_coords, strict=True):
                there = at_token(queries, b, i) - at_token(branch_keys, b, j)
                delta = torch.where(branch.holds(true_m, true_n), there, delta)
            values = self.encoding.by_distance(delta if self.encoding.axes == 1 else delta[..., None])
            assert values is not None
            check_head_rows(self, values, delta.dim(), q.shape[1])
            return score + head_values(values, h).to(score.dtype)

        return score_mod

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        logits = []
        for key in keys:
            m, n = self.formula_positions(query.at, key.at)
            logits += self.encoding.formula_logits(query._replace(at=m), [key._replace(at=n)], head, scale)
        return logits
