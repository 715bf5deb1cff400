"""Attention with a relative term, beside plain causal attention that has none."""

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
from posenc.bench import peers
from posenc.bench.measure import Goal, Group, difference
from posenc.catalogue import build
from posenc.encoding import Encoding, Shape
from posenc.keys import Keys, Projections
from posenc.positions import Positions

HEADS, HEAD_DIM = 8, 64
PLAIN = "plain causal SDPA"
EXACT = 2e-6
RIGHT, ROUGH = 1e-4, 1e-2
"""The largest errors of ours, and of what is inexact by its nature."""


@dataclass(frozen=True)
class Wanted:
    """What an encoding is to cost at most, in times of plain attention; None where nothing was asked.

    near, far  forward, up to 4096 tokens and beyond
    backward   forward and backward
    """

    near: float | None = None
    far: float | None = None
    backward: float | None = None

    def at(self, tokens: int, backward: bool) -> float | None:
        return self.backward if backward else self.near if tokens <= 4096 else self.far


WANTED: dict[str, Wanted] = {
    "alibi": Wanted(1.1, 1.2, 1.1),
    "t5_bias": Wanted(1.1, 1.2, 1.3),
    "kerple": Wanted(1.1, 1.2, 1.1),
    "sandwich": Wanted(1.1, 1.2, 1.1),
    "forgetting": Wanted(1.25, 1.25, 1.25),
    "shaw(max_distance=64, values=False)": Wanted(1.6, None, 1.6),
    "shaw(max_distance=64)": Wanted(),
    "fire": Wanted(),
    "mlp_bias": Wanted(),
    "transformer_xl": Wanted(),
    "deberta": Wanted(),
    "inkling": Wanted(),
    # A sum is to cost a fifth more than its slower part, and a distance map 1.6 times what it maps.
    "alibi + forgetting": Wanted(1.5, None, 1.5),
    "alibi + shaw(max_distance=64, values=False)": Wanted(1.92, None, 1.92),
    "rerope(rotary)": Wanted(1.6, None, 1.6),
    "self_extend(rotary)": Wanted(1.6, None, 1.6),
    "path": Wanted(4.0, None, 4.0),
}
"""The encodings that are measured -> what each is to cost."""

FORWARD = {"quick": (512, 1024, 2048, 4096), "full": (512, 1024, 2048, 4096, 8192, 16384)}
BACKWARD = {"quick": (512, 1024, 2048), "full": (512, 1024, 2048, 4096)}
LONGEST_OF_ALL = {"quick": 0, "full": 2048}
"""Beyond it only encodings with a goal are measured."""
QUICK = ("alibi by hand, matrix made in each call", "t5_bias by hand, matrix made in each call")
"""The slow ways that a quick run takes."""
LONGEST_BY_HAND = 4096
"""Beyond it what is made of whole matrices would take gigabytes."""
LONGEST_COMPILED = 2048
"""FlexAttention compiles anew for each length."""


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Every length, forward and with backward, made when its turn comes."""
    for backward, lengths in ((False, FORWARD[shapes]), (True, BACKWARD[shapes])):
        for tokens in lengths:
            yield causal(tokens, backward, with_peers, shapes=shapes)


@dataclass(frozen=True)
class Case:
    """q, k, v [1, HEADS, tokens, HEAD_DIM], and the embeddings x [1, tokens, dim] that some encodings read."""

    tokens: int
    backward: bool

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shape = (1, HEADS, self.tokens, HEAD_DIM)
        q, k, v = (torch.randn(shape, generator=generator).requires_grad_(self.backward) for _ in range(3))
        return q, k, v

    def embeddings(self) -> Tensor:
        return torch.randn(1, self.tokens, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(1))


class Subject:
    """One encoding at work on the inputs of a case."""

    def __init__(self, spec: str, case: Case, given: tuple[Tensor, Tensor, Tensor]) -> None:
        torch.manual_seed(2)
        shape = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, case.tokens)
        self.encoding = build(spec, shape)
        for parameter in self.encoding.parameters():
            # A table that starts at zero would hide a mistake.
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.3)
        self.case, (self.q, self.k, self.v) = case, given
        memo = remembered(self.encoding, case)
        self.memo = {name: fact.requires_grad_(case.backward) for name, fact in memo.items()}

    def call(self, kernel: str = "auto") -> Tensor:
        """One forward pass: positions are new in each, as in a model."""
        at = Positions.count(self.case.tokens)
        keys = Keys(self.k, self.v, at, self.memo, self.memo)
        bound = kernels.bind(kernel, self.encoding, scale=HEAD_DIM**-0.5)
        return self.encoding.attend(self.q, at, keys, masks.causal(), bound)[0]

    def wanting_gradients(self) -> list[Tensor]:
        return [self.q, self.k, self.v, *self.encoding.parameters(), *self.memo.values()]

    @torch.no_grad()
    def error(self, call: Callable[[], Tensor]) -> float:
        """The largest difference from the readable kernel in float64, over some rows of queries."""
        out, tokens = call(), self.case.tokens
        encoding = copy.deepcopy(self.encoding).double()
        at = Positions.count(tokens)
        memo = remembered(encoding, self.case, torch.float64)
        errors = []
        for rows in (slice(0, 32), slice(tokens // 2, tokens // 2 + 32), slice(tokens - 32, tokens)):
            query_memo = {name: fact[:, :, rows] for name, fact in memo.items()}
            keys = Keys(self.k.double(), self.v.double(), at, memo, query_memo)
            bound = kernels.bind("reference", encoding, scale=HEAD_DIM**-0.5)
            some = self.q[:, :, rows].double()
            right, _ = encoding.attend(some, at.rows(rows), keys, masks.causal(), bound)
            errors.append(difference(out[:, :, rows], right))
        return difference(torch.tensor(errors), torch.zeros(len(errors)))


@torch.no_grad()
def remembered(encoding: Encoding, case: Case, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What an encoding remembers of the tokens, projections standing still."""
    if "remember" not in encoding.doors:
        return {}

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    x = case.embeddings().to(dtype)
    return encoding.remember(x, Positions.count(case.tokens), Projections(heads, heads, heads))


def causal(tokens: int, backward: bool, with_peers: bool, *, shapes: str = "full", only: str = "") -> Group:
    """Every encoding, or `only` the candidate of a name, on the same queries, keys and values of one length."""
    passes = "forward and backward" if backward else "forward"
    facts = {"tokens": tokens, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": "float32", "pass": passes}
    group = Group("attention", f"T {tokens}: {passes}", PLAIN, facts=facts, grad=backward)
    case = Case(tokens, backward)
    given = case.inputs()

    def plain() -> Tensor:
        return F.scaled_dot_product_attention(*given, is_causal=True)

    upstream = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(3))

    def both_ways(call: Callable[[], Tensor], wanting: Iterable[Tensor]) -> Callable[[], Any]:
        wanting = tuple(wanting)
        return (lambda: torch.autograd.grad(call(), wanting, upstream, allow_unused=True)) if backward else call

    group.add(PLAIN, "limit", both_ways(plain, given))
    for spec, wanted in WANTED.items():
        bound = wanted.at(tokens, backward)
        if (tokens > LONGEST_OF_ALL[shapes] and bound is None) or (only and not only_of(spec, only)):
            continue
        subject = Subject(spec, case, given)
        ways: list[ByHand] = [(spec, "posenc", lambda subject=subject: subject.call)]
        ways += by_hand(subject, with_peers, compiled=shapes == "full" and not (backward or only))
        for name, kind, make in ways:
            if only not in ("", name) or (shapes == "quick" and kind == "naive" and name not in QUICK):
                continue
            try:
                call = make()
            except peers.Absent as reason:
                group.absent[name] = str(reason)
                continue
            goals = []
            if name == spec and bound is not None:
                goals.append(Goal(bound, PLAIN))
            if name == spec and wanted.near is not None and tokens <= 8192:
                goals.append(Goal(EXACT, of="error"))
            error = functools.partial(subject.error, call)
            timed = both_ways(call, subject.wanting_gradients())
            tolerance = ROUGH if kind != "posenc" or name != spec else RIGHT
            group.add(name, kind, timed, error=error, tolerance=tolerance, goals=goals, subject=spec)
    return group


def only_of(spec: str, name: str) -> bool:
    """Whether a candidate's name is that of an encoding, or of another way to it."""
    return name == spec or spec.partition("(")[0] in name.partition("(")[0].replace(":", " ").split()


ByHand = tuple[str, str, Callable[[], Callable[[], Tensor]]]


def by_hand(subject: Subject, with_peers: bool, compiled: bool) -> Iterator[ByHand]:
    """Other ways to the same result: the bias as a matrix, and what libraries have."""
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
        made = matrix(subject.encoding, tokens)
        yield f"{spec} by hand, matrix made in each call", "naive", lambda: lambda: softmax(made())
        name = f"{spec} as attn_mask made in each call"
        yield name, "naive", lambda: lambda: as_mask(made()[None].masked_fill(future, -math.inf))

    def alibi_kept() -> Callable[[], Tensor]:
        kept = alibi_matrix(subject.encoding, tokens)()[None].masked_fill(future, -math.inf)
        return lambda: as_mask(kept)

    def alibi_of_x_transformers() -> Callable[[], Tensor]:
        theirs = peers.alibi_of_x_transformers(HEADS)
        return lambda: softmax(theirs(tokens))

    if spec == "alibi":
        yield "alibi as attn_mask kept", "naive", alibi_kept
    if spec == "alibi" and with_peers:
        yield "x-transformers: alibi", "peer", alibi_of_x_transformers
    if str(subject.encoding).startswith("shaw") and not subject.encoding.needs_weights:
        yield "shaw by hand, gathered from q R^T", "naive", lambda: lambda: shaw_by_hand(subject, future)
    if spec in ("alibi", "t5_bias") and compiled and tokens <= LONGEST_COMPILED:
        yield f"flex_attention compiled: {spec}", "peer", lambda: flex(subject)


def distances(tokens: int) -> Tensor:
    at = torch.arange(tokens)
    return at[:, None] - at


def alibi_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    slopes = torch.tensor(encoding.slopes)
    return lambda: -slopes[:, None, None] * distances(tokens).abs()


def t5_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    def made() -> Tensor:
        exact = encoding.buckets // 2
        past = distances(tokens).clamp(min=0)
        share = torch.log(past.float().clamp(min=1) / exact) / math.log(encoding.max_distance / exact)
        far = (exact + (share * (encoding.buckets - exact)).long()).clamp(max=encoding.buckets - 1)
        bucket = torch.where(past < exact, past, far)
        return t5_table(encoding)[bucket].permute(2, 0, 1)

    return made


def t5_table(encoding: Any) -> Tensor:
    """The learned table, a row for each bucket."""
    (table,) = encoding.parameters()
    return table if table.shape[0] == encoding.buckets else table.T


def sandwich_matrix(encoding: Any, tokens: int) -> Callable[[], Tensor]:
    def made() -> Tensor:
        # As published: the products of sinusoids.
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * 2 * math.pi / encoding.wavelengths
        waves = torch.cat((angles.sin(), angles.cos()), -1).float()
        share = torch.tensor([encoding.heads / (8 * h) for h in range(1, encoding.heads + 1)])
        return share[:, None, None] * (waves @ waves.T)

    return made


def shaw_by_hand(subject: Any, future: Tensor) -> Tensor:
    """Queries times the table of clipped distances, spread over the whole matrix."""
    encoding, q = subject.encoding, subject.q
    (table,) = encoding.parameters()
    index = encoding.max_distance - distances(subject.case.tokens).clamp(-encoding.max_distance, encoding.max_distance)
    near = (q @ table.T).gather(-1, index.expand(*q.shape[:2], -1, -1))
    logits = (q @ subject.k.transpose(-1, -2) + near) / math.sqrt(HEAD_DIM)
    return logits.masked_fill(future, -math.inf).softmax(-1) @ subject.v


def flex(subject: Subject) -> Callable[[], Tensor]:
    """PyTorch's FlexAttention, compiled, with the bias as its score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens, encoding = subject.case.tokens, subject.encoding
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cpu")
    with torch.no_grad():
        values = encoding.by_distance(torch.arange(tokens))
        assert values is not None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + values[h, torch.clamp(i - j, min=0)]

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(subject.q, subject.k, subject.v, score_mod=score_mod, block_mask=block_mask)
