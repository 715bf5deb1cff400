"""Sequence parallelism: each rank holds some of the tokens, and attention covers the whole sequence."""

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
from posenc.model.attention import Attention, Call, plain_rule
from posenc.parallel.gather import gathered_attention
from posenc.parallel.layout import Layout
from posenc.parallel.line import Line, line_of
from posenc.parallel.ring import ring_attention
from posenc.tokens.positions import Positions

EXCHANGES = {"ring": ring_attention, "gather": gathered_attention}
"""The ways to exchange keys between ranks."""

Sequence = TypeVar("Sequence", Tensor, Positions)


@dataclass(frozen=True, eq=False)
class SequenceShards:
    """A sequence cut over the ranks of a group, as returned by `shard_sequence`.

    group     the ranks, each with its own tokens
    order     "zigzag" or "contiguous", see Layout
    exchange  "ring": keys go from rank to rank, and a rank holds those of two others at most; "gather": every rank gets
              all keys, for encodings that read keys between a query and a key

    >>> Layout(4, "zigzag").chunks_of(0)
    (0, 7)
    """

    group: dist.ProcessGroup
    order: str = "zigzag"
    exchange: str = "ring"

    def __post_init__(self) -> None:
        checks.one_of("exchange", self.exchange, tuple(EXCHANGES))
        assert self.layout is not None

    @property
    def layout(self) -> Layout:
        return Layout(self.group.size(), self.order)

    def cut(self, x: Sequence, axis: int = 1) -> Sequence:
        """Return this rank's part of a whole sequence: a tensor, such as ids [B, T], or Positions.

        Raises ValueError unless the chunks have equal size.
        """
        rank = self.group.rank()
        if isinstance(x, Positions):
            return cast(Sequence, self.layout.cut_positions(rank, x))
        return cast(Sequence, self.layout.cut(rank, x, axis))

    def joined(self, x: Tensor, axis: int = 1) -> Tensor:
        """Return a whole sequence, such as logits [B, T, vocab], from the parts of all ranks; without gradients."""
        return self.layout.gather(x, axis, self.group)

    def add_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of every parameter over ranks.

        With a loss that is a sum over tokens (or each rank's share of a mean) these are the gradients of one process
        with the whole sequence. DistributedDataParallel instead divides the sum by the number of ranks.
        """
        sum_gradients(list(model.parameters()), self.group)

    def attend(self, q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> tuple[Tensor, None]:
        """Door 4 over ranks: return the output [B, H, T, E] of this rank's queries over all keys.

        All ranks call it together. Raises ValueError for calls and encodings that cannot run over ranks.
        """
        check_call(keys, call, kernel)
        at, encoding, mask = call.at, call.encoding, call.mask
        check_encoding(encoding, self.exchange)
        line = line_of(at, self.layout, self.group)
        if self.exchange == "ring" and encoding.between:
            sums = {name: sequence_prefix_sums(keys.memo[name], at, line) for name in encoding.between}
            memo, query_memo = {**keys.memo, **sums}, {**keys.query_memo, **sums}
            keys = replace(keys, memo=memo, query_memo=query_memo, prefix_sums=frozenset(sums))
        return EXCHANGES[self.exchange](encoding, q, keys, mask, kernel, line), None

    def __deepcopy__(self, memo: dict[int, Any]) -> "SequenceShards":
        # A process group cannot be copied; the copy of a model uses the same ranks.
        return self


def shard_sequence(
    model: nn.Module, group: dist.ProcessGroup | None = None, *, order: str = "zigzag", exchange: str = "ring"
) -> SequenceShards:
    """Make every attention of a model treat its tokens as this rank's part of a longer sequence.

    out_i = sum over the keys j of all ranks of softmax_j(logit(i, j)) v_j, for each query i of this rank

    group     the ranks over which sequences are cut (default: all)
    order     "zigzag" (as much causal work on each rank) or "contiguous"
    exchange  "ring" or "gather", see SequenceShards

    Every rank calls the model with its own tokens and their positions. The model and its parameters are unchanged, and
    whole on every rank.

        shards = shard_sequence(model)
        logits = model(shards.cut(ids), positions=shards.cut(Positions.count(ids.shape[1])))

    Refused, with the reason: caches, attention weights and their dropout, mask tensors, keys of another sequence, and
    on a ring encodings that read keys between a query and a key. Backward passes have to run on all ranks.

    Raises ValueError for a model without posenc.Attention, an unknown order or exchange, encodings that cannot run over
    ranks, and if torch.distributed is not initialised.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3 (the ring); Brandon et al. 2023, arXiv:2311.09431 (balance).
    """
    shards = SequenceShards(process_group(group), order, exchange)
    for module in model.modules():
        if isinstance(module, Encoding):
            check_encoding(module, exchange)
    for attention in attentions(model):
        attention.rule = shards.attend
    return shards


def unshard_sequence(model: nn.Module) -> None:
    """Undo `shard_sequence`: the model takes whole sequences again."""
    for attention in attentions(model):
        attention.rule = plain_rule


def process_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group, or that of all ranks for None. Raises ValueError if torch.distributed is not initialised."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        raise ValueError("models are cut over the ranks of a group; call torch.distributed.init_process_group first")
    ranks = dist.group.WORLD if group is None else group
    assert ranks is not None
    return ranks


def sum_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum the gradients of each parameter over the ranks of a group."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        return
    # A parameter that no rank used keeps no gradient.
    is_used = torch.tensor([p.grad is not None for p in trainable], dtype=torch.float32, device=trainable[0].device)
    dist.all_reduce(is_used, group=group)
    for parameter, is_used_somewhere in zip(trainable, is_used.tolist(), strict=True):
        if is_used_somewhere:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad, group=group)


def attentions(model: nn.Module) -> list[Attention]:
    """Return the attentions of a model. Raises ValueError without any."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    if not layers:
        raise ValueError(f"a model with posenc.Attention inside is wanted, got {type(model).__name__} without any")
    return layers


def check_encoding(encoding: Encoding, exchange: str) -> None:
    """Raise ValueError if an encoding reads keys that this exchange does not bring together."""
    if exchange == "ring" and encoding.between is None:
        raise ValueError(
            f"{encoding} reads, for a query and a key, the keys between the two (or its class does not say that it "
            f"reads none: `between`), and on a ring no rank has them together; use exchange='gather', which brings all "
            f"keys to every rank"
        )


def check_call(keys: Keys, call: Call, kernel: BoundKernel) -> None:
    """Raise ValueError for options of a call that a sequence over ranks does not support."""
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
    if call.mask.tensor is not None:
        raise ValueError(
            "a mask tensor is of the tokens of one rank, which see those of all; give the mask as a rule, such as "
            "masks.causal(), or by padding and documents in the positions"
        )


def sequence_prefix_sums(values: Tensor, at: Positions, line: Line) -> Tensor:
    """Return a fact's prefix sums over the whole sequence, at this rank's tokens.

    The fact is [B, H, T, ...]. The ranks exchange one sum for each chunk. Padding counts as 0; documents share one
    running sum, so differences within a document are those of its own tokens.
    """
    present = (at.order >= 0)[:, None, :].unflatten(2, (-1, *(1,) * (values.dim() - 3)))
    parts = most_exact(values).masked_fill(~present, 0.0).chunk(len(line.own_positions), 2)
    chunk_sums = [part.cumsum(2) for part in parts]
    offsets = ChunkOffsets.apply(torch.stack([part[:, :, -1] for part in chunk_sums]), line)
    return torch.cat([part + offset[:, :, None] for part, offset in zip(chunk_sums, offsets.unbind(0), strict=True)], 2)


class ChunkOffsets(torch.autograd.Function):
    """Return, for the totals [chunks, ...] of this rank's chunks, the sum of all totals before each chunk."""

    @staticmethod
    def forward(ctx: Any, totals: Tensor, line: Line) -> Tensor:
        ctx.line = line
        whole = line.layout.gather(totals, 0, line.group)
        return (whole.cumsum(0) - whole)[list(line.layout.chunks_of(line.group.rank()))]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A total enters the sums of all later chunks.
        whole = ctx.line.layout.gather(*grads, 0, ctx.line.group)
        later = whole.flip(0).cumsum(0).flip(0) - whole
        return later[list(ctx.line.layout.chunks_of(ctx.line.group.rank()))], None
