"""Heads cut over devices: each rank attends with some of the heads, and their outputs are added up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encoding.base import Encoding, parts_of
from posenc.model.attention import Attention, Call
from posenc.model.stack import Stack
from posenc.parallel.sequence import attentions, group_of, sum_gradients
from posenc.parallel.some_heads import OfHeads, Part


@dataclass(frozen=True, eq=False)
class HeadShards:
    """Which heads of a model this rank has; `shard_heads` makes it.

    group   the ranks, each with as many heads
    heads   this rank's query heads
    parts   what this rank has of a parameter that is cut: the parameter -> its place in the whole one
    names   the names of parameters in the model that was cut
    shared  parameters of encodings that all heads read, each rank with its own
    """

    group: dist.ProcessGroup
    heads: tuple[int, ...]
    parts: dict[nn.Parameter, Part]
    names: dict[nn.Parameter, str]
    shared: tuple[nn.Parameter, ...] = field(repr=False)

    def add_gradients(self) -> None:
        """Give what the heads of all ranks share in their encodings the sum of its gradients.

        All other parameters have theirs: a part on its rank, and what is no part the same on all.
        """
        sum_gradients(self.shared, self.group)

    def whole_state(self, model: nn.Module) -> dict[str, Tensor]:
        """The state dict of the model as it was before it was cut, with the parameters of all ranks.

        All ranks call it at the same time, and each gets the whole.
        Raises ValueError for another model than the one that was cut.
        """
        state = {}
        for name, parameter in model.named_parameters():
            part = self.parts.get(parameter)
            if part is None:
                if parameter not in self.names:
                    raise ValueError(f"the model that was cut is wanted, got another one, with a '{name}' of its own")
                state[self.names[parameter]] = parameter.detach()
                continue
            told: list[Any] = [None] * self.group.size()
            dist.all_gather_object(told, (part.heads, parameter.detach().cpu()), group=self.group)
            whole = torch.empty_like(part.whole, device="cpu").unflatten(part.axis, (part.of, -1))
            for heads, values in told:
                few = values.unflatten(part.axis, (len(heads), -1))
                whole.index_copy_(part.axis, torch.tensor(heads), few)
            state[self.names[part.whole]] = whole.flatten(part.axis, part.axis + 1).to(parameter.device)
        return state


def shard_heads(model: nn.Module, group: dist.ProcessGroup | None = None) -> HeadShards:
    """Leave every attention of a model with this rank's share of its heads; the outputs of all ranks are added up.

    out = sum over ranks of W_o[:, its heads] attention(its heads),   the gradient in the input likewise

    group  the ranks over which heads are cut (default: all); rank r of R has the heads r H/R to (r+1) H/R - 1

    Projections and what encodings learn for each head are cut with the heads; what heads share stays whole on every
    rank, and `add_gradients` adds up what they found of it. An encoding takes its place only where attention gives the
    heads of a rank the same numbers as among all: slopes stay those of the whole model, and what mixes heads is
    refused. Everything else of the model is on every rank, and is given the same tokens there. Load a checkpoint
    before; make the optimiser behind it.

    Raises ValueError for a model without posenc.Attention, heads that do not divide, encodings that cannot be cut, and
    where torch.distributed has not been set up. The model is changed only if nothing is raised.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
    """
    found, group = attentions(model), group_of(group)
    names = {parameter: name for name, parameter in model.named_parameters()}
    whole, rank, ranks = found[0], group.rank(), group.size()
    sizes = {(one.heads, one.kv_heads, one.head_dim, one.dim) for one in found}
    if len(sizes) > 1 or whole.heads % ranks or whole.kv_heads % ranks:
        raise ValueError(
            f"heads are cut over {ranks} ranks where every attention has as many, a multiple of {ranks}, and so many "
            f"key heads; got (heads, kv_heads, head_dim, dim) of {sorted(sizes)}"
        )
    if any(attention.joined for attention in found):
        raise ValueError("qk_norm='joined' norms all heads as one vector, and no rank has all; take qk_norm=True")
    each = whole.heads // ranks
    heads = tuple(range(rank * each, (rank + 1) * each))
    of_heads = OfHeads(heads, whole.heads, whole.kv_heads, whole.head_dim, whole.dim)
    for encoding in encodings(model):
        of_heads(encoding)
    for module in model.modules():
        if isinstance(module, Stack):
            module.hold([of_heads(one) for one in own(module.encodings)], [of_heads(one) for one in module.encoding_of])
            if module.cross_encoding_of:
                module.cross_encodings = nn.ModuleList(map(of_heads, own(module.cross_encodings)))
                module.cross_encoding_of = tuple(map(of_heads, module.cross_encoding_of))
    for attention in found:
        if attention.encoding is not None:
            attention.encoding = of_heads(attention.encoding)
        cut(attention, of_heads, group)
    shared = {
        parameter: None
        for encoding in encodings(model)
        for one in parts_of(encoding)
        if one.doors - {"embed"}
        for parameter in one.parameters()
        if parameter not in of_heads.parts
    }
    # The weights of a norm of queries or keys are those of all heads.
    norms = (norm for attention in found for norm in (attention.q_norm, attention.k_norm) if norm is not None)
    shared |= {parameter: None for norm in norms for parameter in norm.parameters()}
    return HeadShards(group, heads, of_heads.parts, names, tuple(shared))


def own(modules: nn.ModuleList) -> list[Encoding]:
    return cast(list[Encoding], list(modules))


def encodings(model: nn.Module) -> list[Encoding]:
    """The encodings that a model's attentions use, each once."""
    found: dict[Encoding, None] = {}
    for module in model.modules():
        if isinstance(module, Stack):
            found |= dict.fromkeys((*own(module.encodings), *module.encoding_of, *module.cross_encoding_of))
        elif isinstance(module, Attention) and module.encoding is not None:
            found[module.encoding] = None
    return list(found)


def cut(attention: Attention, of_heads: OfHeads, group: dist.ProcessGroup) -> None:
    """Leave an attention with some of its heads."""
    keys = tuple(sorted({head // (attention.heads // attention.kv_heads) for head in of_heads.heads}))
    queries, of_keys = (of_heads.heads, attention.heads), (keys, attention.kv_heads)
    for name, share in (("q_proj", queries), ("k_proj", of_keys), ("v_proj", of_keys)):
        linear = getattr(attention, name)
        linear.weight = of_heads.cut(linear.weight, 0, *share)
        linear.bias = None if linear.bias is None else of_heads.cut(linear.bias, 0, *share)
        linear.out_features = len(linear.weight)
    if attention.sinks is not None:
        attention.sinks = of_heads.cut(attention.sinks, 0, *queries)
    output = attention.o_proj
    weight = of_heads.cut(cast(nn.Parameter, output.weight), 1, *queries)
    attention.register_module("o_proj", AddedUp(output, weight, lambda y: dist.all_reduce(y, group=group)))
    attention.heads, attention.kv_heads = len(of_heads.heads), len(keys)
    attention.register_forward_pre_hook(entering(group), with_kwargs=True)


class AddedUp(nn.Module):
    """A linear map of channels of which each rank has some: y = sum over ranks of W x, + b.

    add_up  sums a tensor over ranks in place; a function, since a copy of a model belongs to the same ranks
    """

    def __init__(self, whole: nn.Linear, weight: nn.Parameter, add_up: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.bias, self.add_up = weight, whole.bias, add_up

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        # The gradient of the sum is the same on each rank, and so that of its own part.
        self.add_up(y.detach())
        return y if self.bias is None else y + self.bias


def entering(group: dist.ProcessGroup) -> Callable[..., tuple[tuple, dict[str, Any]]]:
    """What every rank gives its heads is the same, so its gradient is the sum of what all heads find."""

    def add_up(slope: Tensor) -> Tensor:
        total = slope.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    def entered(x: Any) -> Any:
        if isinstance(x, Tensor) and torch.is_grad_enabled() and x.requires_grad:
            x = x.view_as(x)
            x.register_hook(add_up)
        return x

    def enter(attention: nn.Module, given: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = named.get("call")
        if named.get("need_weights") or (isinstance(call, Call) and call.need_weights):
            raise ValueError("attention weights of heads cut over ranks are on no rank; call without need_weights")
        tokens = {name: entered(named[name]) for name in ("query", "key", "value") if name in named}
        return tuple(map(entered, given)), {**named, **tokens}

    return enter
