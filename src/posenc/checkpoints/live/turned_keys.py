"""How the keys in a live model's cache turn: read for each layer, and compared with what the model caches."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.checkpoints.kinds.calls import cache_name, parameters
from posenc.checkpoints.live.attach import MARK, build_part, decoder_parts
from posenc.checkpoints.live.unturned import decoder_of, fitted
from posenc.checkpoints.vocabulary.reading import Layer
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.encodings.rotations import quotient
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign.text import told
from posenc.tokens.positions import Positions

Pair = tuple[Tensor, Tensor]
"""What a layer calls its keys and its values, [B, KV, S, D] each."""

Side = Literal["keys", "values"]
"""What a layer of a cache calls the tensor that turns: latent attention has it among the values."""

ASKED = 4
"""How many tokens a model is asked to cache, at the places 0, 1, ... and further on."""

FAR = 512
"""By how many places they are then shifted, or by an eighth of the trained length."""

ALLOWED = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Up to which relative difference the model's keys are those of an encoding; 0.1 in half precision."""

REMEDY = "leave them where they are, as evict(keep, renumber=False) and crop do, or feed the tokens again"


@dataclass(frozen=True, eq=False)
class CachedKeys:
    """What becomes of the keys that a live model's layers have cached, when their tokens move.

    decoder    the stack that has the cache
    layers     as the model was read
    encodings  one for each layer, for the tensor that turns
    added      whether positions are added to the embeddings
    length     trained length (tokens)
    """

    decoder: Any
    layers: tuple[Layer, ...]
    encodings: tuple[Encoding, ...]
    added: bool
    known: bool
    length: int

    @classmethod
    def of(cls, model: nn.Module) -> "CachedKeys":
        """Raises TypeError for what is no transformers model, and ValueError for one whose tokens cannot be moved."""
        from posenc.checkpoints.formats.huggingface import read_live

        decoder = decoder_of(model)
        if any(MARK in module.__dict__ for module in model.modules()):
            raise ValueError(
                f"posenc is attached to this {type(model).__name__}, and keys are moved as the model's own code turns "
                f"them; detach(model) first"
            )
        if model.training:
            raise ValueError(f"this {type(model).__name__} is in training mode; call model.eval() first")
        if decoder.config.is_encoder_decoder:
            raise ValueError(
                f"{type(model).__name__} has an encoder, whose tokens have no place among the decoder's; give a model "
                f"that is a decoder alone"
            )
        reading, _ = read_live(model)
        part = next(iter(decoder_parts(model, reading)), None)
        if part is None:
            raise ValueError(
                f"{type(model).__name__} has no decoder that is recognised: "
                f"{'; '.join(reading.not_covered) or 'no part of it was read'}"
            )
        if chunk := next((layer.chunk for layer in part.layers if layer.chunk), None):
            raise ValueError(
                f"{type(model).__name__} attends in chunks of {chunk} tokens, counted in slots of the cache, which "
                f"its tokens would leave; feed the tokens again where others are to stand in front of them"
            )
        encodings = fitted(decoder.config, build_part(part))
        length = part.trained_length or part.shape.max_len
        return cls(decoder, part.layers, tuple(encodings), part.embed != "none", part.known, length)

    @property
    def takes_positions(self) -> bool:
        """Whether the model can be told where its tokens stand."""
        return "position_ids" in parameters(type(self.decoder))

    @property
    def device(self) -> torch.device:
        """Where the model takes its tokens."""
        return next(self.decoder.parameters()).device

    @property
    def by_horizon(self) -> bool:
        return any(encoding.turns_when_attending for encoding in self.encodings)

    def counts_slots(self, layer: int) -> bool:
        """Whether a layer measures distances in slots of the cache, as transformers' windows and biases do."""
        biased = self.encodings[layer].doors & {"by_distance", "biases"}
        return bool(biased) or self.layers[layer].window is not None

    @cached_property
    def fixed(self) -> str:
        """Why cached keys cannot be moved; empty where they can."""
        if self.added:
            return WHY_FIXED["recomputed"]
        # What depends on a horizon was turned when it was made.
        reason = next((WHY_FIXED[e.moves] for e in self.encodings if e.moves in WHY_FIXED), "")
        if reason or not any("turn" in e.doors for e in self.encodings):
            return reason or ("" if self.known else f"posenc does not know how their keys were turned; {REMEDY}")
        if not self.takes_positions:
            return f"{type(self.decoder).__name__} cannot be told where tokens stand; {REMEDY}"
        return self.measured if isinstance(self.measured, str) else ""

    def side(self, layer: int) -> Side:
        """Which tensor of a layer turns; either will do where none can be moved."""
        return "keys" if self.fixed or isinstance(self.measured, str) else self.measured[layer]

    @cached_property
    def measured(self) -> tuple[Side, ...] | str:
        """Which tensor turns in each layer, by what the model caches of the same tokens at other places; or why none
        is that of its encoding there."""
        if not self.takes_positions or not any("turn" in encoding.doors for encoding in self.encodings):
            return ("keys",) * len(self.encodings)
        far = max(min(FAR, self.length // 8), 1)
        there = [Positions.count(ASKED), Positions.count(ASKED, start=far)]
        try:
            ran = [self.run(at.coords[..., 0]) for at in there]
        except Exception as error:
            # It is code of many hands, which says so in any way.
            return f"{type(self.decoder).__name__} could not be asked for its keys ({told(error)}); {REMEDY}"
        sides: list[Side] = []
        for number in ran[0]:
            pairs = ran[0][number], ran[1][number]
            off = {side: self.difference(number, *there, *pairs, side) for side in ("keys", "values")}
            best = min(off, key=lambda side: off[side])
            if not off[best] <= ALLOWED.get(pairs[0][0].dtype, 0.1):
                return (
                    f"what {type(self.decoder).__name__} caches of tokens {far} places further on in layer {number} is "
                    f"not what {self.encodings[number]} turns there (off by {off[best]:.0%}); {REMEDY}"
                )
            sides.append("values" if best == "values" else "keys")
        return tuple(sides) + ("keys",) * (len(self.encodings) - len(sides))

    @torch.no_grad()
    def run(self, ids: Tensor) -> dict[int, Pair]:
        """What each layer caches of some tokens at places [1, ASKED]."""
        from transformers import DynamicCache

        cache, tokens = DynamicCache(), torch.arange(1, ASKED + 1, device=self.device)[None]
        given = {"position_ids": ids.to(self.device), cache_name(self.decoder): cache}
        self.decoder(input_ids=tokens, use_cache=True, **given)
        return {number: (layer.keys, layer.values) for number, layer in layers_of(cache).items()}

    def moved(self, layer: int, k: Tensor, before: Positions, after: Positions, horizon: int) -> Tensor:
        """Keys of a layer that were turned at `before`, as they are turned at `after`, both in passes of a horizon."""
        encoding = self.encodings[layer]
        if encoding.turns_when_attending and isinstance(encoding, Rotary):
            before, after = (at.with_horizon(horizon) for at in (before, after))
            return encoding.by_table(k, quotient(encoding.table, before, after, k))
        return encoding.moved(k, before, after)

    def check_horizons(self, shortest: int, longest: int) -> None:
        """Raises ValueError where passes of horizons between the two did not turn keys by the same frequencies."""
        for encoding in self.encodings:
            if not encoding.turns_when_attending or not isinstance(encoding, Rotary) or encoding.schedule is None:
                continue
            short, long = encoding.spectrum(torch.tensor([shortest, longest]))[0].expand(2, -1)
            if not torch.equal(short, long):
                raise ValueError(
                    f"{encoding} has changed its frequencies between horizons of {shortest} and {longest} tokens, and "
                    f"the cache holds keys of both; keep a sequence within {encoding.schedule.short_horizon} tokens, "
                    f"or feed the tokens again"
                )

    def difference(self, layer: int, before: Positions, after: Positions, old: Pair, new: Pair, side: Side) -> float:
        """By how much what a layer caches elsewhere is not what it cached before with one side turned (relative)."""
        turns, stays = (0, 1) if side == "keys" else (1, 0)
        device = old[0].device
        before, after = before.to(device), after.to(device)
        try:
            turned = self.moved(layer, old[turns], before, after, int(after.coords.max()) + 1)
        except ValueError:
            # So many channels are not what it turns.
            return float("inf")
        return max(relative(turned, new[turns]), relative(old[stays], new[stays]))


def layers_of(cache: Any) -> dict[int, Any]:
    """The layers of a transformers cache that hold keys, by their number.

    Raises TypeError for what is no such cache, and ValueError for layers that do not hold all of their tokens: sliding,
    static and quantised ones, states of recurrent layers.
    """
    from transformers import Cache, EncoderDecoderCache, cache_utils

    if not isinstance(cache, Cache):
        raise TypeError(f"expected a cache of transformers, such as DynamicCache(), got {checks.shown(cache)}")
    if isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            "a cache of an encoder-decoder holds the keys of an encoder too, whose tokens have no place among the "
            "decoder's; give the cache of a decoder"
        )
    if cache.offloading:
        raise ValueError("an offloaded cache is on its way between devices; make the cache with offloading=False")
    layers = {}
    for number, layer in enumerate(cache.layers):
        if type(layer) is cache_utils.DynamicLayer:
            layers[number] = layer
        elif not isinstance(layer, getattr(cache_utils, "DummyLayer", ())):
            raise ValueError(
                f"layer {number} of the cache is a {type(layer).__name__}, which forgets tokens or keeps them where "
                f"they are; use DynamicCache(), without a config, whose layers keep all"
            )
    return layers


def relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-30))
