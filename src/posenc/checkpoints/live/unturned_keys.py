"""Any encoding in a live transformers model: keys are cached unturned, and rotated in attention.

The model's rotary modules are replaced by identity rotations, so queries and keys reach attention and the cache as the
projections gave them. Attention goes through transformers' own interface under the name "posenc", where the encoding
gets the positions of queries and keys, and posenc's kernels compute it.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from posenc import kernels
from posenc.checkpoints.live.cached_positions import KEYWORD, PassPositions, PositionHooks
from posenc.checkpoints.live.latent_heads import on_last_channels
from posenc.encoding.base import Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.kernels.reference import softmax_where
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NAME = "posenc"
"""The name of the attention in transformers' interfaces, and of the module with a decoder's encodings."""


def attach_unturned(
    model: nn.Module, encodings: Sequence[Encoding], *, horizon: int | None = None
) -> Callable[[], None]:
    """Let a transformers decoder attend through encodings, on unturned keys; return the function that undoes it.

    model      a transformers model whose decoder rotates queries and keys by a rotary module and attends through
               transformers' AttentionInterface; of a model with several towers, the decoder
    encodings  one for each layer of the decoder; layers may share one. Doors 2 to 4: encodings that rotate, bias or
               replace the attention rule
    horizon    the horizon of every sequence (tokens) for encodings that depend on one; the default for each sequence is
               its last position so far plus one

    Positions are the model's `position_ids`; without them they are counted from the padding mask, or else from the
    tokens in the cache. Masks keep their meaning, and any cache of transformers may be used: a cache stores the
    positions of its tokens, also when it is cropped, copied, or its rows are reordered.

    Raises TypeError for another object than a transformers model, and ValueError for one that attends by code of its
    own, has no rotary module or another number of layers, or is attached already; and for encodings that open door 1 or
    remember tokens.
    Limits: one axis of positions. Under torch.compile it runs uncompiled, and with fullgraph=True not at all. A cache
    that was filled earlier has rotated keys, and is refused. While a horizon moves, deeper layers have cached states
    that were computed with earlier horizons: declare it if a step must equal a pass over all tokens.
    """
    decoder = decoder_of(model)
    check_decoder(decoder, encodings)
    register_attention()
    encodings = fit_to_heads(decoder.config, encodings)
    modules = nn.ModuleList(dict.fromkeys(encodings))
    decoder.add_module(NAME, modules)
    rotary = rotary_modules(decoder)
    for parent, name, module in rotary:
        setattr(parent, name, IdentityRotation(module))
    config, implementation = decoder.config, decoder.config._attn_implementation_internal
    config._attn_implementation_internal = NAME
    follow = PositionHooks(decoder, tuple(encodings), horizon)
    first_hook = decoder.register_forward_pre_hook(follow.before_pass, with_kwargs=True)
    last_hook = decoder.register_forward_hook(follow.after_pass, with_kwargs=True)

    def undo() -> None:
        for hook in (first_hook, last_hook):
            hook.remove()
        config._attn_implementation_internal = implementation
        for parent, name, module in rotary:
            # The model may have moved meanwhile.
            setattr(parent, name, module.to(next(getattr(parent, name).buffers()).device))
        delattr(decoder, NAME)

    return undo


def decoder_of(model: nn.Module) -> "PreTrainedModel":
    """Return the stack of a transformers model that has a KV cache."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"expected a model of transformers, got {type(model).__name__}")
    return model.get_decoder()


def check_decoder(decoder: "PreTrainedModel", encodings: Sequence[Encoding]) -> None:
    """Raise ValueError unless the decoder can attend through these encodings."""
    name = type(decoder).__name__
    if hasattr(decoder, NAME):
        raise ValueError(f"{name} is attached already; detach it first")
    if decoder.config.is_encoder_decoder:
        raise ValueError(f"{name} attends to an encoder too, whose tokens have no place among its own; leave it")
    if not decoder._supports_attention_backend:
        raise ValueError(
            f"{name} attends by code of its own and not through transformers' AttentionInterface, so that only "
            f"encodings that turn each key once can be put into it"
        )
    if not rotary_modules(decoder):
        raise ValueError(f"{name} has no rotary module whose place an encoding on unturned keys could take")
    layers = decoder.config.num_hidden_layers
    if len(encodings) != layers:
        raise ValueError(f"{name} has {layers} layers and needs an encoding for each, got {len(encodings)}")
    for encoding in encodings:
        if doors := encoding.doors & {"embed", "remember"}:
            raise ValueError(
                f"{encoding} opens {' and '.join(sorted(doors))}, which reads or changes the states between layers; "
                f"attention in {name} takes encodings that turn queries and keys, bias, or replace the rule"
            )
        if encoding.axes > 1:
            raise ValueError(f"{encoding} reads {encoding.axes} axes, and the tokens of {name} have one")


def fit_to_heads(config: "PreTrainedConfig", encodings: Sequence[Encoding]) -> list[Encoding]:
    """Return the encodings for the heads of a decoder. Latent attention rotates only the last channels of a head."""
    width = getattr(config, "qk_rope_head_dim", None)
    if width is None:
        return list(encodings)
    # Such a model permutes interleaved pairs to halves on the way to attention.
    layout = "half" if getattr(config, "rope_interleave", False) else None
    by_encoding = {encoding: on_last_channels(encoding, width, layout=layout) for encoding in dict.fromkeys(encodings)}
    return [by_encoding[encoding] for encoding in encodings]


def rotary_modules(decoder: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Return the modules with inverse frequencies: the parent of each, its name there, and the module."""
    return [
        (parent, name, module)
        for parent in decoder.modules()
        for name, module in parent.named_children()
        if any(buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False))
    ]


class IdentityRotation(nn.Module):
    """A substitute for a rotary module: cosines of 1 and sines of 0, in the same format.

    The format is that of the module's own output for a token at position 0, whose angles are 0: (cos, sin), each
    [1, 1, C], or complex numbers. A copy computes it, so the module itself does not change.
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = copy.deepcopy(rotary)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, *args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        first = torch.zeros_like(position_ids[..., :1])
        tables = self.rotary(x[:, :1], first, *args, **kwargs)
        tokens = position_ids.shape[-1]

        def constant(table: Tensor, value: float) -> Tensor:
            return torch.full_like(table, value).expand(*table.shape[:-2], tokens, table.shape[-1])

        if isinstance(tables, Tensor):
            return constant(tables, 1.0)
        cos, sin = tables
        return constant(cos, 1.0), constant(sin, 0.0)


def attend_in_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool = False,
    position_bias: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' AttentionInterface: query [B, H, T, D], keys [B, KV, S, D] -> [B, T, H, D]."""
    step = kwargs.get(KEYWORD)
    if not isinstance(step, PassPositions):
        raise RuntimeError(
            f"{type(module).__name__} was not told where its tokens stand: its model does not hand keyword arguments "
            f"down to attention, and cannot have an encoding on unturned keys"
        )
    if position_bias is not None:
        raise ValueError(f"{type(module).__name__} adds a bias of its own to the logits, beside which none can stand")
    layer = int(cast(int, module.layer_idx))
    if isinstance(attention_mask, MaskRule):
        mask = attention_mask.mask
    elif attention_mask is not None:
        mask = Mask(tensor=attention_mask)
    else:
        mask = Mask(causal=getattr(module, "is_causal", True) if is_causal is None else is_causal)
    encoding, where = step.encodings[layer], step.on_device(step.key_positions(layer, key.shape[2]), key.device)
    at = step.on_device(step.at, query.device)
    if step.key_sources and step.key_sources[layer] != layer:
        # Layers that share the keys of another layer may get the last tokens only.
        at = at.rows(slice(at.tokens - query.shape[2], at.tokens))
    keys = Keys(encoding.turn(key, where, "key"), value, where)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query = encoding.turn(query, at, "query")
    rule = encoding if softcap is None else SoftcappedRule(encoding, softcap)
    kernel = kernels.bind("auto", rule, scale=scale, dropout=dropout, need_weights=output_attentions, sinks=s_aux)
    out, weights = attend_in_rows(rule, query, at, keys, mask, kernel)
    return out.transpose(1, 2).contiguous(), weights


class SoftcappedRule(Encoding):
    """Door 4: a model's own rule around an encoding, which caps the logits before the softmax (Gemma 2).

    logits_ij = cap tanh(scale q_i . k_j / cap)

    Biases of the encoding are capped with the logits; an additive mask is not. The logits are in memory.

    Raises ValueError for an encoding that replaces the attention rule itself.
    """

    needs_weights, queries_together = True, 1

    def __init__(self, encoding: Encoding, cap: float) -> None:
        super().__init__()
        if "attend" in encoding.doors:
            raise ValueError(f"{encoding} and a model with capped logits both replace the softmax")
        self.encoding, self.cap = encoding, cap

    def attend(
        self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel
    ) -> tuple[Tensor, Tensor | None]:
        mask, bias = mask.split()
        logits = kernel.logits(self.encoding, q, at, keys, replace(mask, tensor=None))
        logits = self.cap * torch.tanh(logits / self.cap)
        logits = logits if bias is None else logits + bias
        return kernel.finish(softmax_where(logits, mask.allowed(at, keys.at)), keys)


class MaskRule(Tensor):
    """A tensor [1, 1, 1, 1] that carries the rule of a mask through a model to attention.

    Operations that read its values raise an error, so a model that changes its masks does not silently lose the rule.
    """

    mask: Mask

    @classmethod
    def from_mask(cls, mask: Mask) -> "MaskRule":
        rule = torch.zeros(1, 1, 1, 1, dtype=torch.bool).as_subclass(cls)
        rule.mask = mask
        return rule

    @classmethod
    def __torch_function__(cls, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        name = getattr(func, "__name__", str(func))
        if name in ("contiguous", "to", "clone", "detach") or (name == "__getitem__" and keeps_last(args[1])):
            return args[0]
        if name in ("__get__", "dim", "size", "__repr__"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise RuntimeError(
            f"the model works on its attention mask by itself ('{name}'), where attention on unturned keys has a rule "
            f"and no tensor; it cannot have an encoding on unturned keys"
        )


def keeps_last(index: object) -> bool:
    """Whether an index selects the last or all queries of a mask [B, H, T, S], and all keys."""
    if not isinstance(index, tuple) or not all(isinstance(item, slice) for item in index) or len(index) != 4:
        return False
    queries, rest = index[2], (index[0], index[1], index[3])
    return all(item == slice(None) for item in rest) and queries.stop is None and queries.step is None


def mask_or_rule(
    *, mask_function: Callable, local_size: int | None = None, allow_is_causal_skip: bool = True, **kwargs: Any
) -> Tensor:
    """Return the mask of a layer: a rule if kernels are faster by rule, else a tensor.

    Rules are causal attention, with or without a window, of tokens without padding. Other masks are transformers' own,
    boolean [B, 1, T, S].
    """
    from transformers import masking_utils

    padding = kwargs.get("attention_mask")
    padded = padding is not None and not bool(padding[:, : int(kwargs["q_offset"]) + kwargs["q_length"]].all())
    if allow_is_causal_skip and not padded and (rule := rule_of(mask_function, local_size)) is not None:
        return MaskRule.from_mask(rule)
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = masking_utils.sdpa_mask(mask_function=mask_function, local_size=local_size, **kwargs)
    assert mask is not None
    return mask


def rule_of(mask_function: Callable, local_size: int | None) -> Mask | None:
    """Return the rule of a mask function of transformers (causal, with or without a window), or None."""
    from transformers import masking_utils

    if mask_function is masking_utils.causal_mask_function:
        return Mask(causal=True)
    if local_size is not None:
        sliding_function = masking_utils.sliding_window_causal_mask_function(local_size)
        if same_function(mask_function, sliding_function):
            return Mask(causal=True, window=local_size)
    return None


def same_function(first: object, second: object) -> bool:
    """Whether two functions, or tuples of them, have equal code and equal closures."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same_function, first, second))
    if not (inspect.isfunction(first) and inspect.isfunction(second)):
        return type(first) is type(second) and not isinstance(first, Tensor) and first == second
    first_cells, second_cells = (tuple(cell.cell_contents for cell in f.__closure__ or ()) for f in (first, second))
    return first.__code__ is second.__code__ and same_function(first_cells, second_cells)


def register_attention() -> None:
    """Register the attention and its masks in transformers under their name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend_in_transformers)
    AttentionMaskInterface.register(NAME, mask_or_rule)
