"""Head parallelism: each rank attends with some of the heads, and the outputs are summed."""

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
from posenc.parallel.sequence import attentions, process_group, sum_gradients
from posenc.parallel.some_heads import HeadSubset, ParameterPart


@dataclass(frozen=True, eq=False)
class HeadShards:
    """The heads of a model on this rank, as returned by `shard_heads`.

    group              the ranks, each with as many heads
    heads              this rank's query heads
    parts              parameter of this rank -> its place in the whole parameter
    names              parameter -> its name in the whole model
    shared_parameters  parameters of encodings that all heads read, a copy on each rank
    """

    group: dist.ProcessGroup
    heads: tuple[int, ...]
    parts: dict[nn.Parameter, ParameterPart]
    names: dict[nn.Parameter, str]
    shared_parameters: tuple[nn.Parameter, ...] = field(repr=False)

    def add_gradients(self) -> None:
        """Sum over ranks the gradients of encoding parameters that all heads share.

        All other gradients are complete: parts on their rank, whole parameters equal on all ranks.
        """
        sum_gradients(self.shared_parameters, self.group)

    def whole_state(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state dict of the whole model, with the parameters of all ranks.

        All ranks call it together, and each gets the whole.
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
            rank_parts: list[Any] = [None] * self.group.size()
            dist.all_gather_object(rank_parts, (part.heads, parameter.detach().cpu()), group=self.group)
            whole = torch.empty_like(part.whole, device="cpu").unflatten(part.axis, (part.total_heads, -1))
            for heads, values in rank_parts:
                rank_values = values.unflatten(part.axis, (len(heads), -1))
                whole.index_copy_(part.axis, torch.tensor(heads), rank_values)
            state[self.names[part.whole]] = whole.flatten(part.axis, part.axis + 1).to(parameter.device)
        return state


def shard_heads(model: nn.Module, group: dist.ProcessGroup | None = None) -> HeadShards:
    """Cut every attention of a model to this rank's heads; the outputs of all ranks are summed.

    out = sum over ranks of W_o[:, its heads] attention(its heads),   the gradient in the input likewise

    group  the ranks over which heads are cut (default: all); rank r of R has the heads r H/R to (r+1) H/R - 1

    Projections and per-head parameters of encodings are cut; parameters that heads share stay whole on every rank, and
    `add_gradients` sums their gradients. An encoding is accepted only if the heads of a rank attend with the same
    numbers as in the whole model, so slopes stay, and encodings that mix heads are refused. All other modules stay
    whole on every rank, and receive the same tokens. Load a checkpoint before the call; make the optimiser after it.

    Raises ValueError for a model without posenc.Attention, heads that do not divide, encodings that cannot be cut, and
    if torch.distributed is not initialised. The model is changed only if nothing is raised.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
    """
    all_attentions, group = attentions(model), process_group(group)
    names = {parameter: name for name, parameter in model.named_parameters()}
    whole, rank, ranks = all_attentions[0], group.rank(), group.size()
    sizes = {(layer.heads, layer.kv_heads, layer.head_dim, layer.dim) for layer in all_attentions}
    if len(sizes) > 1 or whole.heads % ranks or whole.kv_heads % ranks:
        raise ValueError(
            f"heads are cut over {ranks} ranks where every attention has as many, a multiple of {ranks}, and so many "
            f"key heads; got (heads, kv_heads, head_dim, dim) of {sorted(sizes)}"
        )
    if any(attention.joins_heads for attention in all_attentions):
        raise ValueError("qk_norm='joined' norms all heads as one vector, and no rank has all; take qk_norm=True")
    heads_per_rank = whole.heads // ranks
    heads = tuple(range(rank * heads_per_rank, (rank + 1) * heads_per_rank))
    of_heads = HeadSubset(heads, whole.heads, whole.kv_heads, whole.head_dim, whole.dim)
    for encoding in encodings(model):
        of_heads(encoding)
    for module in model.modules():
        if isinstance(module, Stack):
            cut_encodings = list(map(of_heads, encoding_list(module.encodings)))
            module.hold(cut_encodings, list(map(of_heads, module.encoding_of)))
            if module.cross_encoding_of:
                module.cross_encodings = nn.ModuleList(map(of_heads, encoding_list(module.cross_encodings)))
                module.cross_encoding_of = tuple(map(of_heads, module.cross_encoding_of))
    for attention in all_attentions:
        if attention.encoding is not None:
            attention.encoding = of_heads(attention.encoding)
        cut_attention(attention, of_heads, group)
    shared_parameters = {
        parameter: None
        for encoding in encodings(model)
        for layer in parts_of(encoding)
        if layer.doors - {"embed"}
        for parameter in layer.parameters()
        if parameter not in of_heads.parts
    }
    # The weights of a norm of queries or keys are those of all heads.
    norms = (norm for attention in all_attentions for norm in (attention.q_norm, attention.k_norm) if norm is not None)
    shared_parameters |= {parameter: None for norm in norms for parameter in norm.parameters()}
    return HeadShards(group, heads, of_heads.parts, names, tuple(shared_parameters))


def encoding_list(modules: nn.ModuleList) -> list[Encoding]:
    return cast(list[Encoding], list(modules))


def encodings(model: nn.Module) -> list[Encoding]:
    """Return the encodings that a model's attentions use, each once."""
    unique: dict[Encoding, None] = {}
    for module in model.modules():
        if isinstance(module, Stack):
            unique |= dict.fromkeys((*encoding_list(module.encodings), *module.encoding_of, *module.cross_encoding_of))
        elif isinstance(module, Attention) and module.encoding is not None:
            unique[module.encoding] = None
    return list(unique)


def cut_attention(attention: Attention, of_heads: HeadSubset, group: dist.ProcessGroup) -> None:
    """Cut an attention to some of its heads."""
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
    attention.register_module("o_proj", SummedLinear(output, weight, lambda y: dist.all_reduce(y, group=group)))
    attention.heads, attention.kv_heads = len(of_heads.heads), len(keys)
    attention.register_forward_pre_hook(gradient_sum_hook(group), with_kwargs=True)


class SummedLinear(nn.Module):
    """A linear map whose input channels are cut over ranks: y = b + sum of W x.

    add_up  sums a tensor over ranks in place; a function, so that deepcopy keeps the group
    """

    def __init__(self, whole: nn.Linear, weight: nn.Parameter, add_up: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.bias, self.add_up = weight, whole.bias, add_up

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        # The gradient of the sum is the same on each rank, so each part has it already.
        self.add_up(y.detach())
        return y if self.bias is None else y + self.bias


def gradient_sum_hook(group: dist.ProcessGroup) -> Callable[..., tuple[tuple, dict[str, Any]]]:
    """Return a forward pre-hook that sums the gradient of the inputs over ranks, since all heads read them."""

    def add_up(slope: Tensor) -> Tensor:
        total = slope.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    def with_summed_gradient(value: Any) -> Any:
        if isinstance(value, Tensor) and torch.is_grad_enabled() and value.requires_grad:
            value = value.view_as(value)
            value.register_hook(add_up)
        return value

    def hook(attention: nn.Module, inputs: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = options.get("call")
        if options.get("need_weights") or (isinstance(call, Call) and call.need_weights):
            raise ValueError("attention weights of heads cut over ranks are on no rank; call without need_weights")
        tokens = {name: with_summed_gradient(options[name]) for name in ("query", "key", "value") if name in options}
        return tuple(map(with_summed_gradient, inputs)), {**options, **tokens}

    return hook
