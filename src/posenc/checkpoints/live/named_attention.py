"""Attention that a config chooses by name: transformers' masks say where tokens stand, posenc computes the rest.

A model that only names its attention has nothing of posenc's inside: no module, no hook, no parameter. What the two
interfaces are given is all there is: masks know the padding, the cache and the config, attention has queries and keys.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.rotary.keys import OURS
from posenc.checkpoints.live.cached_positions import counted, present, slots_at
from posenc.checkpoints.live.unturned import Rule, attend_through, check_doors, fitted, rule_of
from posenc.checkpoints.vocabulary.reading import names_no_code
from posenc.checkpoints.vocabulary.specs import trained_or_one
from posenc.encoding import Encoding, Shape
from posenc.foreign import quoted
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions

ATTENTION = f"{OURS}attention"
"""The attention, and the rope type, whose encoding stands in the config's rotary parameters."""

NONE = f"{OURS}none"
"""The rope type that turns nothing."""


@dataclass(frozen=True)
class NamedAttention:
    """What transformers' AttentionInterface holds under a name of posenc's.

    spec  the encoding that attention goes through; None where the config's rotary parameters say it, layer by layer
    """

    spec: str | None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        **asked: Any,
    ) -> tuple[Tensor, Tensor | None]:
        name = type(module).__name__
        if not isinstance(attention_mask, Placed):
            raise ValueError(
                f"{name} was not told where its tokens stand: attention by posenc takes a padding mask [batch, tokens] "
                f"that the model hands to transformers' mask functions, got "
                f"{'none' if attention_mask is None else f'a mask of shape {list(attention_mask.shape)}'}"
            )
        at, keys_at = attention_mask.places(position_ids)
        if key.shape[2] != keys_at.tokens:
            raise ValueError(
                f"{name} attends to {key.shape[2]} keys where its mask is for {keys_at.tokens}: keys of another layer "
                f"or of another model cannot be placed; leave it to an attention of transformers"
            )
        config = attention_mask.config
        encoding = encoding_of(self.spec, config, layer_type_of(module, config))
        if encoding.turns_when_attending:
            at, keys_at = attention_mask.with_horizons(at, keys_at)
        (encoding,) = fitted(config, [encoding])
        keys = Keys(key, value, keys_at)
        return attend_through(encoding, module, query, at, keys, attention_mask.mask, **asked)


class Placed(Rule):
    """Who may see whom, and where they stand, where models hand on a tensor.

    tokens   Positions of all tokens so far, counted by the padding mask
    queries  how many of them this pass brings; they are the last
    slots    how many keys there are, and the index among all tokens of the first
    """

    config: Any
    tokens: Positions
    queries: int
    slots: tuple[int, int]
    seen: tuple[Tensor | None, tuple[Positions, Positions]] | None

    def places(self, position_ids: Tensor | None) -> tuple[Positions, Positions]:
        """The Positions of queries and keys, once for all layers that share this mask.

        Raises ValueError for position ids that are not where the tokens stand.
        """
        if self.seen is None or self.seen[0] is not position_ids:
            self.seen = (position_ids, self.place(position_ids))
        return self.seen[1]

    def place(self, position_ids: Tensor | None) -> tuple[Positions, Positions]:
        total = self.tokens.tokens
        at = self.tokens if self.queries == total else self.tokens.rows(slice(total - self.queries, total))
        keys_at = slots_at(self.tokens, at, *self.slots)
        if position_ids is None:
            return at, keys_at
        if position_ids.dim() != 2:
            raise ValueError(
                f"position_ids have one axis here, shape [batch, tokens]; got {list(position_ids.shape)}: positions on "
                f"several axes are not for attention that a config names"
            )
        told = position_ids.to(at.coords.device)
        slots = torch.arange(total - self.queries, total, device=told.device)
        padding = at.order < 0
        if bool((told == slots).all()) or bool(((told == at.coords[..., 0]) | padding).all()):
            return at, keys_at
        if self.queries < total or keys_at is not at or bool(padding.any()):
            raise ValueError(
                "position_ids stand elsewhere than the padding mask counts, and the cache does not remember where its "
                "tokens stood: leave position_ids out, or attach(model, encoding), which remembers them"
            )
        at = Positions(told[..., None], self.tokens.order, contiguous=True, extent=int(told.amax()) + 1)
        return at, at

    def with_horizons(self, at: Positions, keys_at: Positions) -> tuple[Positions, Positions]:
        """The same Positions, where the horizon of each sequence is one more than the last position it has so far."""
        coords = at.coords[..., 0]
        if at is keys_at and bool(((coords.diff(dim=1) != 1) & (at.order[:, 1:] >= 0) & (at.order[:, :-1] >= 0)).any()):
            raise ValueError(
                "several documents in a row have one horizon only when it is declared: attach(model, encoding, "
                "horizon=...), or give each document a row of its own"
            )
        horizon = coords.amax(1) + 1
        placed = at.with_horizon(horizon)
        return placed, placed if keys_at is at else keys_at.with_horizon(horizon)


def placed_mask(
    *,
    config: Any,
    q_length: int,
    kv_length: int,
    mask_function: Callable,
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **asked: Any,
) -> Tensor:
    """The mask of a layer as transformers asks for it, which also says where queries and keys stand."""
    from transformers import masking_utils

    if torch.compiler.is_compiling():
        raise RuntimeError("attention that posenc computes cannot be compiled here; run the model as it is")
    if config.is_encoder_decoder:
        raise ValueError(
            f"{type(config).__name__} is of a model that attends to an encoder too, whose tokens have no place among "
            f"its own; leave it to an attention of transformers"
        )
    total = int(q_offset) + q_length
    tokens = Positions.count(total, device=device)
    if attention_mask is not None:
        there = present(attention_mask, int(q_offset), q_length)
        if not bool(there.all()):
            order = tokens.order.masked_fill(~there, -1)
            tokens = Positions(counted(there)[..., None], order, extent=total)
    mask = Mask() if mask_function is masking_utils.bidirectional_mask_function else rule_of(mask_function, local_size)
    if mask is None:
        asked |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        given = masking_utils.sdpa_mask(
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            device=device,
            **asked,
        )
        mask = Mask(given=given)
    rule = Placed.of(mask)
    rule.config, rule.tokens, rule.queries, rule.slots, rule.seen = (
        config,
        tokens,
        q_length,
        (kv_length, kv_offset),
        None,
    )
    return rule


def parameters_of(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    """The rotary parameters of a config, for layers of a type where it tells types apart; empty where it has none."""
    said = getattr(config, "rope_parameters", None) or {}
    return (said[layer_type] or {}) if layer_type in said else said


def layer_type_of(module: nn.Module, config: Any) -> str | None:
    """The type of a layer of attention, where a config tells types apart."""
    types, layer = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    return types[layer] if types and isinstance(layer, int) and layer < len(types) else None


def named_in(said: Mapping[str, Any]) -> str:
    """The spec that rotary parameters hold. Raises ValueError where there is none; CannotRead for code of a file."""
    spec = said.get("encoding")
    if not isinstance(spec, str):
        raise ValueError(
            f'rope_parameters of {ATTENTION} hold the spec of an encoding, such as "encoding": "alibi", got '
            f"{quoted(str(spec))}"
        )
    names_no_code(spec)
    return spec


def encoding_of(spec: str | None, config: Any, layer_type: str | None) -> Encoding:
    """The encoding that attention goes through, in layers of a type.

    Raises ValueError for one that cannot be expressed by a name alone, with the reason.
    """
    said = parameters_of(config, layer_type)
    rope_type = said.get("rope_type")
    if spec is None:
        # Layers of another type may turn by a table, and attend by nothing else.
        spec = named_in(said) if rope_type == ATTENTION else "none"
    model = type(config).__name__.removesuffix("Config")
    encoding = expressed(spec, shape_of(config), model)
    if rope_type is not None and rope_type not in (NONE, ATTENTION) and turns_keys(encoding):
        raise ValueError(
            f"{encoding} turns queries and keys, which the rotary module of {model} has turned already: set "
            f'"rope_type": "{NONE}" in rope_parameters'
        )
    return encoding


@functools.lru_cache(maxsize=256)
def expressed(spec: str, shape: Shape, model: str) -> Encoding:
    encoding = build(spec, shape)
    check_doors(encoding, model)
    if any(True for _ in encoding.parameters()):
        raise ValueError(
            f"{encoding} has parameters, and a model that only names its attention has no place to keep them; "
            f"attach(model, '{encoding}') puts them in, and so does training with posenc"
        )
    return encoding


def turns_keys(encoding: Encoding) -> bool:
    """Whether an encoding, or one that it wraps, turns keys."""
    inside = (module for module in encoding.modules() if isinstance(module, Encoding))
    return any("turn" in one.doors and one.turns != "queries" for one in inside)


def shape_of(config: Any) -> Shape:
    """The shape of a model's heads, as its config says it."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(config.hidden_size, heads, head_dim, trained_or_one(getattr(config, "max_position_embeddings", None)))


def check_attention(config: Any, layer_type: str | None) -> None:
    """Raises ValueError where a config names an attention of posenc's that cannot be; asked when a model is built."""
    named = config._attn_implementation
    if isinstance(named, str) and named.startswith(OURS):
        encoding_of(None if named == ATTENTION else named.removeprefix(OURS), config, layer_type)
