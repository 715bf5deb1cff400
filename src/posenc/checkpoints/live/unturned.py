"""Any encoding in a live transformers model: keys are cached unturned, and turned where they are attended to.

The model's rotary modules are made to turn by nothing, so that queries and keys reach attention, and the cache, as they
were projected. Attention goes through transformers' own interface under the name "posenc": there the encoding is given
the positions of queries and keys, and posenc's kernels compute it.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc import kernels
from posenc.checkpoints.live.cached_positions import KEYWORD, Follow, Step
from posenc.checkpoints.live.latent_heads import on_last_channels
from posenc.encoding.base import Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.kernels.reference import softmax_where
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

NAME = "posenc"
"""What the attention is called in transformers' interfaces, and the module that holds a decoder's encodings."""


def attach_unturned(
    model: nn.Module, encodings: Sequence[Encoding], *, horizon: int | None = None
) -> Callable[[], None]:
    """Let a transformers decoder attend through encodings, on unturned keys; returns what takes it back.

    model      a transformers model whose decoder turns queries and keys by a rotary module and attends through
               transformers' AttentionInterface; for a model with several towers it is the decoder that is meant
    encodings  one for each layer of the decoder; layers may share one. Doors 2 to 4: what turns, biases or replaces
               the attention rule
    horizon    the horizon of every sequence (tokens) for encodings that depend on one; without it, that of each
               sequence is one more than the last position it has so far

    Positions are the model's `position_ids`; without them they are counted from the padding mask, or else from the
    tokens in the cache. Masks mean what they mean to the model, and any cache of transformers may be used: a cache
    remembers where its tokens stand, also when it is cropped, copied, or its rows are reordered.

    Raises TypeError for a model that is none of transformers, and ValueError for one that attends by code of its own,
    has no rotary module or another number of layers, or is attached already; and for encodings that open door 1 or
    remember tokens.
    Limits: one axis of positions. Under torch.compile it runs uncompiled, and with fullgraph=True not at all. A cache
    that was filled before holds turned keys, and is refused. While a horizon moves, what deeper layers have cached
    comes from states that were computed with earlier ones: declare it where a step is to equal a pass over all tokens.
    """
    decoder = decoder_of(model)
    check(decoder, encodings)
    register()
    encodings = fitted(decoder.config, encodings)
    held = nn.ModuleList(dict.fromkeys(encodings))
    decoder.add_module(NAME, held)
    rotary = rotary_modules(decoder)
    for parent, name, module in rotary:
        setattr(parent, name, Unturned(module))
    config, before = decoder.config, decoder.config._attn_implementation_internal
    config._attn_implementation_internal = NAME
    follow = Follow(decoder, tuple(encodings), horizon)
    hooks = [
        decoder.register_forward_pre_hook(follow.before, with_kwargs=True),
        decoder.register_forward_hook(follow.after, with_kwargs=True),
    ]

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        config._attn_implementation_internal = before
        for parent, name, module in rotary:
            # The model may have moved meanwhile.
            setattr(parent, name, module.to(next(getattr(parent, name).buffers()).device))
        delattr(decoder, NAME)

    return undo


def decoder_of(model: nn.Module) -> Any:
    """The stack of a transformers model that has a KV cache."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"expected a model of transformers, got {type(model).__name__}")
    return model.get_decoder()


def check(decoder: Any, encodings: Sequence[Encoding]) -> None:
    """Raises ValueError unless these encodings can be the attention of this decoder."""
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
        if closed := encoding.doors & {"embed", "remember"}:
            raise ValueError(
                f"{encoding} opens {' and '.join(sorted(closed))}, which reads or changes the states between layers; "
                f"attention in {name} takes encodings that turn queries and keys, bias, or replace the rule"
            )
        if encoding.axes > 1:
            raise ValueError(f"{encoding} reads {encoding.axes} axes, and the tokens of {name} have one")


def fitted(config: Any, encodings: Sequence[Encoding]) -> list[Encoding]:
    """The encodings for the heads of a decoder: in latent attention only the last channels of a head turn."""
    width = getattr(config, "qk_rope_head_dim", None)
    if width is None:
        return list(encodings)
    # Such a model puts interleaved pairs in halves on the way to attention.
    layout = "half" if getattr(config, "rope_interleave", False) else None
    made = {encoding: on_last_channels(encoding, width, layout=layout) for encoding in dict.fromkeys(encodings)}
    return [made[encoding] for encoding in encodings]


def rotary_modules(decoder: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Modules that hold inverse frequencies: the parent of each, its name there, and itself."""
    return [
        (parent, name, module)
        for parent in decoder.modules()
        for name, module in parent.named_children()
        if any(buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False))
    ]


class Unturned(nn.Module):
    """In the place of a rotary module: cosines of 1 and sines of 0, in the form in which the model takes them.

    The form is what the module itself gives for a token at position 0, whose angles are 0: (cos, sin), each
    [1, 1, C], or complex numbers. A copy is asked, so that the module itself comes back as it was.
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = copy.deepcopy(rotary)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, *more: Any, **named: Any) -> Any:
        first = torch.zeros_like(position_ids[..., :1])
        given = self.rotary(x[:, :1], first, *more, **named)
        tokens = position_ids.shape[-1]

        def unturned(of: Tensor, value: float) -> Tensor:
            return torch.full_like(of, value).expand(*of.shape[:-2], tokens, of.shape[-1])

        if isinstance(given, Tensor):
            return unturned(given, 1.0)
        cos, sin = given
        return unturned(cos, 1.0), unturned(sin, 0.0)


def attend(
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
    **asked: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: query [B, H, T, D] on all keys [B, KV, S, D], to [B, T, H, D]."""
    step = asked.get(KEYWORD)
    if not isinstance(step, Step):
        raise RuntimeError(
            f"{type(module).__name__} was not told where its tokens stand: its model does not hand keyword arguments "
            f"down to attention, and cannot have an encoding on unturned keys"
        )
    if position_bias is not None:
        raise ValueError(f"{type(module).__name__} adds a bias of its own to the logits, beside which none can stand")
    layer = int(cast(int, module.layer_idx))
    if isinstance(attention_mask, Rule):
        mask = attention_mask.mask
    elif attention_mask is not None:
        mask = Mask(given=attention_mask)
    else:
        mask = Mask(causal=getattr(module, "is_causal", True) if is_causal is None else is_causal)
    encoding, where = step.encodings[layer], step.placed(step.keys_at(layer, key.shape[2]), key.device)
    at = step.placed(step.at, query.device)
    if step.sources and step.sources[layer] != layer:
        # Layers that attend to keys of others may be given the last tokens alone.
        at = at.rows(slice(at.tokens - query.shape[2], at.tokens))
    keys = Keys(encoding.turn(key, where, "key"), value, where)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query = encoding.turn(query, at, "query")
    rule = encoding if softcap is None else Capped(encoding, softcap)
    kernel = kernels.bind("auto", rule, scale=scale, dropout=dropout, need_weights=output_attentions, sinks=s_aux)
    out, weights = attend_in_rows(rule, query, at, keys, mask, kernel)
    return out.transpose(1, 2).contiguous(), weights


class Capped(Encoding):
    """Door 4: a model's own softmax around an encoding, which caps the logits (Gemma 2).

    logits_ij = cap tanh(scale q_i . k_j / cap)

    Biases of the encoding are capped with the logits; what a mask adds is not. The logits are in memory.

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
        mask, added = mask.split()
        logits = kernel.logits(self.encoding, q, at, keys, replace(mask, given=None))
        logits = self.cap * torch.tanh(logits / self.cap)
        logits = logits if added is None else logits + added
        return kernel.finish(softmax_where(logits, mask.allowed(at, keys.at)), keys)


class Rule(Tensor):
    """A mask that is a rule, where models hand on a tensor: of shape [1, 1, 1, 1], and an error for who reads it.

    So a model that changes its masks on the way to attention fails, and does not lose the rule in silence.
    """

    mask: Mask

    @classmethod
    def of(cls, mask: Mask) -> "Rule":
        rule = torch.zeros(1, 1, 1, 1, dtype=torch.bool).as_subclass(cls)
        rule.mask = mask
        return rule

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in ("contiguous", "to", "clone", "detach") or (name == "__getitem__" and keeps_last(args[1])):
            return args[0]
        if name in ("__get__", "dim", "size", "__repr__"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise RuntimeError(
            f"the model works on its attention mask by itself ('{name}'), where attention on unturned keys has a rule "
            f"and no tensor; it cannot have an encoding on unturned keys"
        )


def keeps_last(index: Any) -> bool:
    """Whether an index of a mask [B, H, T, S] keeps the last queries, or all of them, with all keys."""
    if not isinstance(index, tuple) or not all(isinstance(one, slice) for one in index) or len(index) != 4:
        return False
    queries, others = index[2], (index[0], index[1], index[3])
    return all(one == slice(None) for one in others) and queries.stop is None and queries.step is None


def mask_or_rule(
    *, mask_function: Callable, local_size: int | None = None, allow_is_causal_skip: bool = True, **asked: Any
) -> Tensor:
    """The mask of a layer as transformers asks for it: a Rule where kernels are faster by rule, else a tensor.

    Rules are causal attention, with or without a window, of tokens without padding. All else is made as transformers
    makes it, boolean [B, 1, T, S].
    """
    from transformers import masking_utils

    padding = asked.get("attention_mask")
    padded = padding is not None and not bool(padding[:, : int(asked["q_offset"]) + asked["q_length"]].all())
    if allow_is_causal_skip and not padded and (rule := rule_of(mask_function, local_size)) is not None:
        return Rule.of(rule)
    asked |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = masking_utils.sdpa_mask(mask_function=mask_function, local_size=local_size, **asked)
    assert mask is not None
    return mask


def rule_of(mask_function: Callable, local_size: int | None) -> Mask | None:
    """What a mask function of transformers says, where that is a rule: causal attention, with or without a window."""
    from transformers import masking_utils

    if mask_function is masking_utils.causal_mask_function:
        return Mask(causal=True)
    if local_size is not None:
        windowed = masking_utils.sliding_window_causal_mask_function(local_size)
        if same_function(mask_function, windowed):
            return Mask(causal=True, window=local_size)
    return None


def same_function(one: Any, other: Any) -> bool:
    """Whether two functions, or tuples of them, have the same code and closed over the same: then they do the same."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_function, one, other))
    if not (inspect.isfunction(one) and inspect.isfunction(other)):
        return type(one) is type(other) and not isinstance(one, Tensor) and one == other
    held, others = (tuple(cell.cell_contents for cell in f.__closure__ or ()) for f in (one, other))
    return one.__code__ is other.__code__ and same_function(held, others)


def register() -> None:
    """Make the attention and its masks known to transformers under their name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask_or_rule)
