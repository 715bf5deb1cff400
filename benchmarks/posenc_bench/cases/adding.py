"""Encodings that add to embeddings, compared with adding a stored table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.catalogue import build
from posenc.encoding.base import Shape
from posenc_bench import peers
from posenc_bench.measure import Group, difference

SLICE = "adding a slice of a kept table"
LOOK_UP = "adding F.embedding"
ROWS = 5000


@dataclass(frozen=True)
class Case:
    """Embeddings [batch, tokens, dim], from position `start` on."""

    batch: int
    tokens: int
    dim: int
    start: int = 0

    def __str__(self) -> str:
        where = f" at {self.start}" if self.start else ""
        return f"{self.batch} x {self.tokens} x {self.dim}{where}"

    def inputs(self) -> Tensor:
        return torch.randn(self.batch, self.tokens, self.dim, generator=torch.Generator().manual_seed(0))

    def right(self) -> Tensor:
        """Return interleaved sines and cosines in float64."""
        frequencies = 10_000.0 ** -(torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        ids = torch.arange(self.start, self.start + self.tokens, dtype=torch.float64)
        angles = ids[:, None] * frequencies
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


CASES = {
    "quick": (Case(8, 1024, 768), Case(128, 32, 64), Case(1, 1, 768, 4000)),
    "full": (Case(8, 1024, 768), Case(1, 4096, 4096), Case(128, 32, 64), Case(1, 1, 768, 4000)),
}


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Yield every case, built only when it is reached."""
    for case in CASES[shapes]:
        yield sinusoidal(case, with_peers)
        yield learned_table(case, backward=False)
        if shapes == "full":
            yield learned_table(case, backward=True)


def sinusoidal(case: Case, with_peers: bool) -> Group:
    """Compare our sinusoids, which store no table, with others that do."""
    group = Group("adding", f"sinusoidal, {case}", SLICE, facts={"x": [case.batch, case.tokens, case.dim]})
    x, right = case.inputs(), case.right()

    def add(name: str, kind: str, call: Callable[[], Tensor], rows: Tensor = right) -> None:
        tolerance = 1e-6 if kind == "posenc" else 1e-2
        expected = x.double() + rows
        group.add(name, kind, call, error=lambda: difference(call(), expected), tolerance=tolerance)

    last = case.start + case.tokens
    table = torch.zeros(max(ROWS, last), case.dim)
    table[case.start : last] = right
    add(SLICE, "limit", lambda: x + table[case.start : last])
    encoding = build("sinusoidal", Shape.of(case.dim, 1, ROWS))
    add("sinusoidal", "posenc", lambda: encoding(x, offset=case.start))
    add("by hand, sinusoids made in each call", "naive", lambda: x + by_hand(case))
    for name, make in PEERS.items() if with_peers and not case.start else ():
        try:
            peer_candidates = make(case.dim)
        except peers.AbsentPeer as reason:
            group.absent[name] = str(reason)
            continue
        # x-transformers puts all sines first, then all cosines.
        order = torch.cat((right[:, ::2], right[:, 1::2]), -1) if name == "x-transformers" else right
        add(name, "peer", add_to(x, peer_candidates), rows=order)
    return group


PEERS = {
    "positional-encodings": peers.sinusoidal_of_positional_encodings,
    "x-transformers": peers.sinusoidal_of_x_transformers,
}


def add_to(x: Tensor, module: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    return lambda: x + module(x)


def by_hand(case: Case) -> Tensor:
    frequencies = 1.0 / 10_000.0 ** (torch.arange(0, case.dim, 2).float() / case.dim)
    angles = torch.outer(torch.arange(case.start, case.start + case.tokens).float(), frequencies)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def learned_table(case: Case, backward: bool) -> Group:
    """Compare our learned table with a plain look-up of the same rows."""
    passes = "forward and backward" if backward else "forward"
    facts = {"x": [case.batch, case.tokens, case.dim], "pass": passes}
    group = Group("adding", f"learned, {case}: {passes}", LOOK_UP, facts=facts, grad=backward)
    x, last = case.inputs(), case.start + case.tokens
    encoding = build("learned", Shape.of(case.dim, 1, max(ROWS, last)))
    (table,) = encoding.parameters()
    ids = torch.arange(case.start, last)
    upstream = case.inputs()

    def add(name: str, kind: str, call: Callable[[], Tensor]) -> None:
        def both_ways() -> Any:
            return torch.autograd.grad(call(), table, upstream)

        def error() -> float:
            return difference(call().detach(), x.double() + table[case.start : last].detach())

        group.add(name, kind, both_ways if backward else call, error=error, tolerance=1e-6)

    add(LOOK_UP, "limit", lambda: x + F.embedding(ids, table))
    add("learned", "posenc", lambda: encoding(x, offset=case.start))
    add("by hand, nn.Embedding of arange", "naive", lambda: x + F.embedding(torch.arange(case.start, last), table))
    return group
