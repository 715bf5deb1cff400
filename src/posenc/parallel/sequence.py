"""A sequence cut over devices: each rank holds some of the tokens, and attention is that of the whole sequence."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.encoding.precision import most_exact
from posenc.model.attention import Attention, Call, attend
from posenc.parallel.gather import gathered_attention
from posenc.parallel.layout import Layout
from posenc.parallel.line import Line, line_of
from posenc.parallel.ring import ring_attention
from posenc.tokens.positions import Positions

WAYS = {"ring": ring_attention, "gather": gathered_attention}
"""How queries come to the keys of other ranks."""

Sequence = TypeVar("Sequence", Tensor, Positions)


@dataclass(frozen=True, eq=False)
class SequenceShards:
    """How a sequence is cut over the ranks of a group; `shard_sequence` makes it.

    group     the ranks, each with tokens of its own
    order     "zigzag" or "contiguous", as Layout has them
    exchange  "ring": keys go from rank to rank, and no rank holds those of more than two; "gather": every rank gets all
              keys, for rules that read what lies between a query and a key

    >>> Layout(4, "zigzag").chunks_of(0)
    (0, 7)
    """

    group: dist.ProcessGroup
    order: str = "zigzag"
    exchange: str = "ring"

    def __post_init__(self) -> None:
        checks.one_of("exchange", self.exchange, tuple(WAYS))
        assert self.layout is not None

    @property
    def layout(self) -> Layout:
        return Layout(self.group.size(), self.order)

    def cut(self, x: Sequence, axis: int = 1) -> Sequence:
        """What this rank holds of a whole sequence: of a tensor, such as ids [B, T], along an axis, or of Positions.

        Raises ValueError unless the tokens fall into chunks of equally many.
        """
        rank = self.group.rank()
        if isinstance(x, Positions):
            return cast(Sequence, self.layout.cut_positions(rank, x))
        return cast(Sequence, self.layout.cut(rank, x, axis))

    def joined(self, x: Tensor, axis: int = 1) -> Tensor:
        """A whole sequence, such as logits [B, T, vocab], from what each rank holds of it; without gradients."""
        return self.layout.gathered(x, axis, self.group)

    def add_gradients(self, model: nn.Module) -> None:
        """Give every parameter the sum of the gradients that the ranks found with their tokens.

        With a loss that is a sum over tokens (or each rank's share of a mean) these are the gradients of one process
        with the whole sequence. DistributedDataParallel instead divides the sum by the number of ranks.
        """
        sum_gradients(list(model.parameters()), self.group)

    def attend(self, q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> tuple[Tensor, None]:
        """Door 4 for queries [B, H, T, D] of this rank's tokens and the keys of all ranks: the output [B, H, T, E].

        All ranks call it at the same time. Raises ValueError for what cannot be had so.
        """
        check_call(keys, call, kernel)
        at, encoding, mask = call.at, call.encoding, call.mask
        check_encoding(encoding, self.exchange)
        line = line_of(at, self.layout, self.group)
        if self.exchange == "ring" and encoding.between:
            sums = {name: running_sums(keys.memo[name], at, line) for name in encoding.between}
            memo, query_memo = {**keys.memo, **sums}, {**keys.query_memo, **sums}
            keys = replace(keys, memo=memo, query_memo=query_memo, summed=frozenset(sums))
        return WAYS[self.exchange](encoding, q, keys, mask, kernel, line), None

    def __deepcopy__(self, memo: dict[int, Any]) -> "SequenceShards":
        # A copy of a model belongs to the same ranks, and a group has no copy.
        return self


def shard_sequence(
    model: nn.Module, group: dist.ProcessGroup | None = None, *, order: str = "zigzag", exchange: str = "ring"
) -> SequenceShards:
    """Let every attention of a model take its tokens as a part of a sequence whose other parts other ranks hold.

    out_i = sum over the keys j of all ranks of softmax_j(logit(i, j)) v_j, for each query i of this rank

    group     the ranks over which sequences are cut (default: all)
    order     "zigzag" (as much causal work on each rank) or "contiguous"
    exchange  "ring" or "gather", as SequenceShards has them

    Every rank gives the model its own tokens and their positions; all else about the model stays as it is, and so do
    its parameters, which every rank holds.

        shards = shard_sequence(model)
        logits = model(shards.cut(ids), positions=shards.cut(Positions.count(ids.shape[1])))

    Refused, with the reason: caches, attention weights and their dropout, given mask tensors, keys of another sequence,
    and over a ring encodings that read the keys between a query and a key. Backward passes have to run on all ranks.

    Raises ValueError for a model without posenc.Attention, an unknown word, encodings that cannot be had so, and where
    torch.distributed has not been set up.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3 (the ring); Brandon et al. 2023, arXiv:2311.09431 (balance).
    """
    shards = SequenceShards(group_of(group), order, exchange)
    for module in model.modules():
        if isinstance(module, Encoding):
            check_encoding(module, exchange)
    for attention in attentions(model):
        attention.rule = shards.attend
    return shards


def unshard_sequence(model: nn.Module) -> None:
    """Let a model take whole sequences again, as before `shard_sequence`."""
    for attention in attentions(model):
        attention.rule = attend


def group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The ranks of a group; all there are for None. Raises ValueError where nobody has set them up."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        raise ValueError("models are cut over the ranks of a group; call torch.distributed.init_process_group first")
    found = dist.group.WORLD if group is None else group
    assert found is not None
    return found


def sum_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Give each parameter the sum of the gradients that the ranks of a group have found."""
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    if not wanted:
        return
    # Of what no rank used nothing is made up.
    used = torch.tensor([p.grad is not None for p in wanted], dtype=torch.float32, device=wanted[0].device)
    dist.all_reduce(used, group=group)
    for parameter, found in zip(wanted, used.tolist(), strict=True):
        if found:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad, group=group)


def attentions(model: nn.Module) -> list[Attention]:
    """The attentions of a model. Raises ValueError where there are none."""
    found = [module for module in model.modules() if isinstance(module, Attention)]
    if not found:
        raise ValueError(f"a model with posenc.Attention inside is wanted, got {type(model).__name__} without any")
    return found


def check_encoding(encoding: Encoding, exchange: str) -> None:
    """Raises ValueError where an encoding reads what does not come together in this way."""
    if exchange == "ring" and encoding.between is None:
        raise ValueError(
            f"{encoding} reads, for a query and a key, the keys between the two (or its class does not say that it "
            f"reads none: `between`), and on a ring no rank has them together; use exchange='gather', which brings all "
            f"keys to every rank"
        )


def check_call(keys: Keys, call: Call, kernel: BoundKernel) -> None:
    """Raises ValueError for what a call asks that a sequence cut over ranks does not have."""
    if keys.at is not call.at or call.cache is not None:
        raise ValueError(
            "a sequence that is cut over ranks attends to itself, without a cache, keys of another sequence or `only` "
            "some tokens; take it together with posenc.parallel.unshard_sequence(model) for these"
        )
    if call.need_weights:
        raise ValueError("attention weights of a sequence cut over ranks are on no rank; call without need_weights")
    if kernel.dropout:
        raise ValueError(
            f"attention to keys of other ranks has no dropout of weights, got {kernel.dropout}; build the model with "
            f"dropout=0 or call model.eval()"
        )
    if call.mask.given is not None:
        raise ValueError(
            "a mask tensor is of the tokens of one rank, which see those of all; say the mask by a rule, such as "
            "masks.causal(), or by padding and documents in the positions"
        )


def running_sums(values: Tensor, at: Positions, line: Line) -> Tensor:
    """The sum of a fact of tokens [B, H, T, ...] over the whole sequence up to each of this rank's tokens.

    The ranks exchange one sum for each chunk. Padding counts nothing; documents stand behind one another on one line,
    so that differences within one are those of its own tokens.
    """
    present = (at.order >= 0)[:, None, :].unflatten(2, (-1, *(1,) * (values.dim() - 3)))
    parts = most_exact(values).masked_fill(~present, 0.0).chunk(len(line.mine), 2)
    within = [part.cumsum(2) for part in parts]
    before = SumsBefore.apply(torch.stack([part[:, :, -1] for part in within]), line)
    return torch.cat([part + offset[:, :, None] for part, offset in zip(within, before.unbind(0), strict=True)], 2)


class SumsBefore(torch.autograd.Function):
    """For this rank's chunks, whose totals [chunks, ...] are given, the sum of the totals of all chunks before each."""

    @staticmethod
    def forward(ctx: Any, totals: Tensor, line: Line) -> Tensor:
        ctx.line = line
        whole = line.layout.gathered(totals, 0, line.group)
        return (whole.cumsum(0) - whole)[list(line.layout.chunks_of(line.group.rank()))]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A total enters the sums of all chunks behind it.
        whole = ctx.line.layout.gathered(*grads, 0, ctx.line.group)
        behind = whole.flip(0).cumsum(0).flip(0) - whole
        return behind[list(ctx.line.layout.chunks_of(ctx.line.group.rank()))], None
