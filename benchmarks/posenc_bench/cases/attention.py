"""Attention with relative encodings, compared with plain causal attention."""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import kernels, masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.tokens.positions import Positions
from posenc_bench import peers
from posenc_bench.measure import Group, difference

HEADS, HEAD_DIM = 8, 64
PLAIN = "plain causal SDPA"
PLAIN_GRID = "plain SDPA"
PLAIN_LAST = "plain SDPA, with the mask of these rows"
RIGHT, ROUGH = 1e-4, 1e-2
"""The tolerances for our encodings, and for inherently inexact candidates."""


AT_EVERY_LENGTH = (
    "alibi",
    "t5_bias",
    "kerple",
    "sandwich",
    "forgetting",
    "shaw(max_distance=64, values=False)",
    "alibi + forgetting",
    "alibi + shaw(max_distance=64, values=False)",
    "rerope(rotary)",
    "self_extend(rotary)",
    "path",
)
OTHER_LENGTHS = (
    "none",
    "rotary",
    "xpos",
    "selective_rotary",
    "polar",
    "rotary_values",
    "mlp_bias",
    "fire",
    "fire(length=4096)",
    "shaw(max_distance=64)",
    "transformer_xl",
    "deberta",
    "tupe",
    "inkling",
    "on(alibi, heads=(0, 1, 2, 3))",
    "dual_chunk(rotary)",
    "contextual",
    "stick_breaking",
    "dape(kerple)",
)
SPECS = (*AT_EVERY_LENGTH, *OTHER_LENGTHS)
"""The measured encodings. A quick run measures OTHER_LENGTHS at one length only."""
ONE_LENGTH = 1024

ON_A_GRID = ("grid_bias(window=(32, 32))", "log_grid_bias(window=32)", "axial_rotary", "mixed_rotary")
GRIDS = {"quick": ((32, 32),), "full": ((14, 14), (20, 48), (32, 32), (48, 48))}
OF_THE_LAST = ("none", "rotary")
LAST = ((8, 64), (32, 256))
"""Pairs (number of queries, number of keys) of a model's last block."""

FORWARD = {"quick": (512, 1024, 2048, 4096), "full": (512, 1024, 2048, 4096, 8192, 16384)}
BACKWARD = {"quick": (512, 1024, 2048), "full": (512, 1024, 2048, 4096)}
LONGEST_OF_OTHERS = 2048
QUICK = ("alibi by hand, matrix made in each call", "t5_bias by hand, matrix made in each call")
"""The slow candidates that a quick run includes."""
LONGEST_BY_HAND = 4096
"""The largest length for full matrices, which would take gigabytes beyond it."""
LONGEST_COMPILED = 2048
"""The largest length for FlexAttention, which recompiles for each length."""


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Yield every length and grid, forward and with backward, built only when reached."""
    for backward, lengths in ((False, FORWARD[shapes]), (True, BACKWARD[shapes])):
        for tokens in lengths:
            yield causal(tokens, backward, with_peers, shapes=shapes)
        for grid in GRIDS[shapes]:
            yield on_a_grid(grid, backward)
        for count, tokens in LAST:
            yield last_queries(count, tokens, backward)


@dataclass(frozen=True)
class Case:
    """The inputs q, k, v [1, HEADS, tokens, HEAD_DIM] and embeddings x [1, tokens, dim].

    grid   the shape of an image, whose cells attend to each other in both directions; () for causal text
    queries  the number of queries, taken from the end; None for all tokens
    """

    tokens: int
    backward: bool
    grid: tuple[int, ...] = ()
    queries: int | None = None

    @property
    def rows(self) -> slice | None:
        return None if self.queries is None else slice(self.tokens - self.queries, self.tokens)

    @property
    def mask(self) -> masks.Mask:
        return masks.bidirectional() if self.grid else masks.causal()

    def positions(self) -> Positions:
        """Return new position ids for each pass, as in a model."""
        return Positions.grid(*self.grid) if self.grid else Positions.count(self.tokens)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shape = (1, HEADS, self.tokens, HEAD_DIM)
        q, k, v = (torch.randn(shape, generator=generator).requires_grad_(self.backward) for _ in range(3))
        return q, k, v

    def embeddings(self) -> Tensor:
        return torch.randn(1, self.tokens, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(1))


class Subject:
    """One encoding with the inputs of a case."""

    def __init__(self, spec: str, case: Case, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        torch.manual_seed(2)
        shape = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, case.tokens)
        self.encoding = build(spec, shape)
        for parameter in self.encoding.parameters():
            # A table that starts at zero would hide a mistake.
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.3)
        self.case, (self.q, self.k, self.v) = case, inputs
        memo = remembered_facts(self.encoding, case)
        self.memo = {name: fact.requires_grad_(case.backward) for name, fact in memo.items()}

    def call(self, kernel: str = "auto") -> Tensor:
        """Run the encoding and attention of one forward pass, without a layer's projections."""
        mask = (self.q, self.k, self.v)
        return self.attend(self.encoding, kernel, mask, self.memo, self.case.positions(), self.case.rows)

    def attend(
        self,
        encoding: Encoding,
        kernel: str,
        inputs: tuple[Tensor, Tensor, Tensor],
        memo: dict[str, Tensor],
        at: Positions,
        rows: slice | None,
    ) -> Tensor:
        """Return the attention output of the given query rows, or of all."""
        q, k, v = inputs
        if not encoding.turns_when_attending:
            q, k = encoding.turn_both(q, k, at, at)
        queries, facts = at, memo
        if rows is not None:
            q, queries = q[:, :, rows], at.rows(rows)
            facts = {name: fact[:, :, rows] for name, fact in memo.items()}
        keys = Keys(k, v, at, memo, facts)
        bound = kernels.bind(kernel, encoding, scale=HEAD_DIM**-0.5)
        return attend_in_rows(encoding, q, queries, keys, self.case.mask, bound)[0]

    def wanting_gradients(self) -> list[Tensor]:
        return [self.q, self.k, self.v, *self.encoding.parameters(), *self.memo.values()]

    @torch.no_grad()
    def error(self, call: Callable[[], Tensor]) -> float:
        """Return the largest difference from the reference kernel in float64, over some query rows."""
        output, tokens = call(), self.case.tokens
        encoding = copy.deepcopy(self.encoding).double()
        memo = remembered_facts(encoding, self.case, torch.float64)
        inputs = (self.q.double(), self.k.double(), self.v.double())
        errors = []
        row_slice = (slice(0, 32), slice(tokens // 2, tokens // 2 + 32), slice(tokens - 32, tokens))
        for rows in row_slice if self.case.rows is None else (self.case.rows,):
            right = self.attend(encoding, "reference", inputs, memo, self.case.positions(), rows)
            errors.append(difference(output[:, :, rows] if self.case.rows is None else output, right))
        return difference(torch.tensor(errors), torch.zeros(len(errors)))


@torch.no_grad()
def remembered_facts(encoding: Encoding, case: Case, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the values that an encoding computes from the tokens and remembers."""
    if "remember" not in encoding.doors:
        return {}
    return encoding.remember(case.embeddings().to(dtype), case.positions())


def causal(tokens: int, backward: bool, with_peers: bool, *, shapes: str = "full", only: str = "") -> Group:
    """Return a group of every encoding, or the candidate named `only`, at one length."""
    case = Case(tokens, backward)
    group, mask = start_group(f"T {tokens}", PLAIN, case)
    for spec in SPECS if only else specs_at(tokens, shapes):
        if only and not only_of(spec, only):
            continue
        subject = Subject(spec, case, mask)
        if only in ("", spec):
            add(group, subject, spec, "posenc", subject.call, spec, RIGHT)
        for name, kind, make in by_hand(subject, with_peers, is_compiled=shapes == "full" and not (backward or only)):
            if only not in ("", name) or (shapes == "quick" and kind == "naive" and name not in QUICK):
                continue
            try:
                add(group, subject, name, kind, make(), spec, ROUGH)
            except peers.AbsentPeer as reason:
                group.absent[name] = str(reason)
    return group


def on_a_grid(grid: tuple[int, ...], backward: bool) -> Group:
    """Return a group of the image encodings, with bidirectional attention on one grid."""
    case = Case(math.prod(grid), backward, grid)
    group, inputs = start_group(" x ".join(map(str, grid)), PLAIN_GRID, case)
    for spec in ON_A_GRID:
        subject = Subject(spec, case, inputs)
        add(group, subject, spec, "posenc", subject.call, spec, RIGHT)
    return group


def last_queries(count: int, tokens: int, backward: bool) -> Group:
    """Return a group of the last `count` queries with all keys. A model's last block does the same."""
    case = Case(tokens, backward, queries=count)
    group, inputs = start_group(f"the last {count} of {tokens}", PLAIN_LAST, case)
    for spec in OF_THE_LAST:
        subject = Subject(spec, case, inputs)
        add(group, subject, spec, "posenc", subject.call, spec, RIGHT)
    return group


def start_group(size: str, limit: str, case: Case) -> tuple[Group, tuple[Tensor, Tensor, Tensor]]:
    """Return a group with only plain attention, and the shared queries, keys and values."""
    passes = "forward and backward" if case.backward else "forward"
    facts = {"tokens": case.tokens, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": "float32", "pass": passes}
    group = Group("attention", f"{size}: {passes}", limit, facts=facts, grad=case.backward)
    inputs = case.inputs()
    q, k, v = inputs
    tokens = None
    if case.rows is not None:
        q, tokens = q[:, :, case.rows], torch.ones(case.tokens, case.tokens, dtype=torch.bool).tril()[case.rows]
    causal = tokens is None and not case.grid
    plain = functools.partial(F.scaled_dot_product_attention, q, k, v, tokens, is_causal=causal)
    group.add(limit, "limit", with_gradients(plain, inputs, case))
    return group, inputs


def add(
    group: Group, subject: Subject, name: str, kind: str, call: Callable[[], Tensor], spec: str, tolerance: float
) -> None:
    error = functools.partial(subject.error, call)
    candidate = with_gradients(call, subject.wanting_gradients(), subject.case)
    group.add(name, kind, candidate, error=error, tolerance=tolerance, subject=spec)


def with_gradients(call: Callable[[], Tensor], leaves: Iterable[Tensor], case: Case) -> Callable[[], Any]:
    """Return the call, extended by a backward pass if the case has one."""
    if not case.backward:
        return call
    leaves = tuple(leaves)
    rows = case.tokens if case.queries is None else case.queries
    upstream = torch.randn(1, HEADS, rows, HEAD_DIM, generator=torch.Generator().manual_seed(3))
    return lambda: torch.autograd.grad(call(), leaves, upstream, allow_unused=True)


def specs_at(tokens: int, shapes: str) -> tuple[str, ...]:
    """Return the specs of the encodings measured at one length."""
    is_measured = tokens <= LONGEST_OF_OTHERS if shapes == "full" else tokens == ONE_LENGTH
    return SPECS if is_measured else AT_EVERY_LENGTH


def only_of(spec: str, name: str) -> bool:
    """Return whether a name denotes the encoding or another implementation of it."""
    return name == spec or spec.partition("(")[0] in name.partition("(")[0].replace(":", " ").split()


ByHand = tuple[str, str, Callable[[], Callable[[], Tensor]]]


def by_hand(subject: Subject, with_peers: bool, is_compiled: bool) -> Iterator[ByHand]:
    """Yield other implementations of the same result: a bias matrix, and other libraries' functions."""
    spec, tokens = str(subject.encoding).partition("(")[0], subject.case.tokens
    q, k, v = subject.q, subject.k, subject.v
    if tokens > LONGEST_BY_HAND:
        return
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

    def softmax(bias: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM) + bias
        return logits.masked_fill(future, -math.inf).softmax(-1) @ v

    def as_mask(bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    matrix = {"alibi": alibi_matrix, "t5_bias": t5_matrix, "sandwich": sandwich_matrix}.get(spec)
    if matrix is not None:
        peer = matrix(subject.encoding, tokens)
        yield f"{spec} by hand, matrix made in each call", "naive", lambda: lambda: softmax(peer())
        name = f"{spec} as attn_mask made in each call"
        yield name, "naive", lambda: lambda: as_mask(peer()[None].masked_fill(future, -math.inf))

    def alibi_kept() -> Callable[[], Tensor]:
        bias = alibi_matrix(subject.encoding, tokens)()[None].masked_fill(future, -math.inf)
        return lambda: as_mask(bias)

    def alibi_of_x_transformers() -> Callable[[], Tensor]:
        peer_bias = peers.alibi_of_x_transformers(HEADS)
        return lambda: softmax(peer_bias(tokens))

    if spec == "alibi":
        yield "alibi as attn_mask kept", "naive", alibi_kept
    if spec == "alibi" and with_peers:
        yield "x-transformers: alibi", "peer", alibi_of_x_transformers
    if str(subject.encoding).startswith("shaw") and not subject.encoding.needs_weights:
        yield "shaw by hand, gathered from q R^T", "naive", lambda: lambda: shaw_by_hand(subject, future)
    if spec in ("alibi", "t5_bias") and is_compiled and tokens <= LONGEST_COMPILED:
        yield f"flex_attention compiled: {spec}", "peer", lambda: flex(subject)


def distances(tokens: int) -> Tensor:
    at = torch.arange(tokens)
    return at[:, None] - at


def alibi_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    slopes = torch.tensor(encoding.slopes)
    return lambda: -slopes[:, None, None] * distances(tokens).abs()


def t5_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    def matrix() -> Tensor:
        exact = encoding.buckets // 2
        past = distances(tokens).clamp(min=0)
        share = torch.log(past.float().clamp(min=1) / exact) / math.log(encoding.max_distance / exact)
        far = (exact + (share * (encoding.buckets - exact)).long()).clamp(max=encoding.buckets - 1)
        bucket = torch.where(past < exact, past, far)
        return t5_table(encoding)[bucket].permute(2, 0, 1)

    return matrix


def t5_table(encoding: Any) -> Tensor:
    """Return the learned table, one row per bucket."""
    (table,) = encoding.parameters()
    return table if table.shape[0] == encoding.buckets else table.T


def sandwich_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    def matrix() -> Tensor:
        # The published form: inner products of sinusoids.
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * 2 * math.pi / encoding.wavelengths
        waves = torch.cat((angles.sin(), angles.cos()), -1).float()
        share = torch.tensor([encoding.heads / (8 * h) for h in range(1, encoding.heads + 1)])
        return share[:, None, None] * (waves @ waves.T)

    return matrix


def shaw_by_hand(subject: Any, future: Tensor) -> Tensor:
    """Return queries times the table of clipped distances, gathered into the full matrix."""
    encoding, q = subject.encoding, subject.q
    (table,) = encoding.parameters()
    index = encoding.max_distance - distances(subject.case.tokens).clamp(-encoding.max_distance, encoding.max_distance)
    offsets = (q @ table.T).gather(-1, index.expand(*q.shape[:2], -1, -1))
    logits = (q @ subject.k.transpose(-1, -2) + offsets) / math.sqrt(HEAD_DIM)
    return logits.masked_fill(future, -math.inf).softmax(-1) @ subject.v


def flex(subject: Subject) -> Callable[[], Tensor]:
    """Return compiled FlexAttention with the bias as its score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens, encoding = subject.case.tokens, subject.encoding
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cpu")
    with torch.no_grad():
        values = encoding.by_distance(torch.arange(tokens))
        assert values is not None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + values[h, torch.clamp(i - j, min=0)]

    compiled_flex: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled_flex(subject.q, subject.k, subject.v, score_mod=score_mod, block_mask=block_mask)
