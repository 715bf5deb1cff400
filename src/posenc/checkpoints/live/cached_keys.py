"""Read how each layer of a live model rotates cached keys, and compare that with its cache."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.checkpoints.kinds.calls import cache_argument, parameter_names
from posenc.checkpoints.live.attach import MARK, build_part, decoder_parts
from posenc.checkpoints.live.unturned_keys import decoder_of, fit_to_heads
from posenc.checkpoints.vocabulary.reading import Layer
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.encodings.rotations import quotient
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign.text import error_text
from posenc.tokens.positions import Positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pair = tuple[Tensor, Tensor]
"""The keys and the values of a layer by its own names, [B, KV, S, D] each."""

Side = Literal["keys", "values"]
"""The name of the rotated tensor in a layer of a cache; latent attention stores it as values."""

PROBE_TOKENS = 4
"""Number of tokens that the probe lets a model cache, at positions 0, 1, ... and again after a shift."""

PROBE_SHIFT = 512
"""The shift of the probe in positions, at most an eighth of the trained length."""

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""The largest relative error of keys predicted by an encoding; 0.1 in half precision."""

REMEDY = "leave them where they are, as evict(keep, renumber=False) and crop do, or feed the tokens again"


@dataclass(frozen=True, eq=False)
class CachedKeys:
    """The keys that the layers of a live model cache, and the rotation that moves them.

    decoder         the stack that has the cache
    layers          the layers as the reading has them
    encodings       one for each layer, for the rotated tensor
    adds_positions  whether positions are added to the embeddings
    is_complete     whether the position code was recognised
    length          trained length (tokens)
    """

    decoder: "PreTrainedModel"
    layers: tuple[Layer, ...]
    encodings: tuple[Encoding, ...]
    adds_positions: bool
    is_complete: bool
    length: int

    @classmethod
    def from_model(cls, model: nn.Module) -> "CachedKeys":
        """Read a model. Raises TypeError for no transformers model, ValueError for one whose tokens cannot move."""
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
        encodings = fit_to_heads(decoder.config, build_part(part))
        length = part.trained_length or part.shape.max_len
        return cls(decoder, part.layers, tuple(encodings), part.embed != "none", part.is_complete, length)

    @property
    def takes_positions(self) -> bool:
        """Whether the model takes `position_ids`."""
        return "position_ids" in parameter_names(type(self.decoder))

    @property
    def device(self) -> torch.device:
        """The device of the input ids."""
        return next(self.decoder.parameters()).device

    @property
    def by_horizon(self) -> bool:
        return any(encoding.turns_when_attending for encoding in self.encodings)

    def counts_slots(self, layer: int) -> bool:
        """Whether a layer counts distances in slots of the cache, as transformers' windows and biases do."""
        bias_doors = self.encodings[layer].doors & {"by_distance", "biases"}
        return bool(bias_doors) or self.layers[layer].window is not None

    @cached_property
    def why_fixed(self) -> str:
        """The reason why cached keys cannot move; empty if they can."""
        if self.adds_positions:
            return WHY_FIXED["recomputed"]
        # transformers rotates before it caches, also by frequencies that depend on a horizon.
        reason = next((WHY_FIXED[e.moves] for e in self.encodings if e.moves in WHY_FIXED), "")
        if reason or not any("turn" in e.doors for e in self.encodings):
            return reason or ("" if self.is_complete else f"posenc does not know how their keys were turned; {REMEDY}")
        if not self.takes_positions:
            return f"{type(self.decoder).__name__} cannot be told where tokens stand; {REMEDY}"
        return self.probed_sides if isinstance(self.probed_sides, str) else ""

    def side(self, layer: int) -> Side:
        """Return the rotated tensor of a layer; "keys" if no tensor can move."""
        return "keys" if self.why_fixed or isinstance(self.probed_sides, str) else self.probed_sides[layer]

    @cached_property
    def probed_sides(self) -> tuple[Side, ...] | str:
        """The tensor that each layer rotates, by a probe at two places, or why the encoding is wrong."""
        if not self.takes_positions or not any("turn" in encoding.doors for encoding in self.encodings):
            return ("keys",) * len(self.encodings)
        far = max(min(PROBE_SHIFT, self.length // 8), 1)
        probes = [Positions.count(PROBE_TOKENS), Positions.count(PROBE_TOKENS, start=far)]
        try:
            caches = [self.run(at.coords[..., 0]) for at in probes]
        except Exception as error:
            # A model's own code may raise any error.
            return f"{type(self.decoder).__name__} could not be asked for its keys ({error_text(error)}); {REMEDY}"
        sides: list[Side] = []
        for number in caches[0]:
            pairs = caches[0][number], caches[1][number]
            errors = {side: self.difference(number, *probes, *pairs, side) for side in ("keys", "values")}
            best = min(errors, key=lambda side: errors[side])
            if not errors[best] <= TOLERANCE.get(pairs[0][0].dtype, 0.1):
                return (
                    f"what {type(self.decoder).__name__} caches of tokens {far} places further on in layer {number} is "
                    f"not what {self.encodings[number]} turns there (off by {errors[best]:.0%}); {REMEDY}"
                )
            sides.append("values" if best == "values" else "keys")
        return tuple(sides) + ("keys",) * (len(self.encodings) - len(sides))

    @torch.no_grad()
    def run(self, ids: Tensor) -> dict[int, Pair]:
        """Return the tensors that each layer caches for a few tokens at positions [1, PROBE_TOKENS]."""
        from transformers import DynamicCache

        cache, tokens = DynamicCache(), torch.arange(1, PROBE_TOKENS + 1, device=self.device)[None]
        arguments = {"position_ids": ids.to(self.device), cache_argument(self.decoder): cache}
        self.decoder(input_ids=tokens, use_cache=True, **arguments)
        return {number: (layer.keys, layer.values) for number, layer in cache_layers(cache).items()}

    def moved_keys(self, layer: int, k: Tensor, old: Positions, new: Positions, horizon: int) -> Tensor:
        """Rotate keys of a layer from positions `old` to `new`, in passes of one horizon."""
        encoding = self.encodings[layer]
        if encoding.turns_when_attending and isinstance(encoding, Rotary):
            old, new = (at.with_horizon(horizon) for at in (old, new))
            return encoding.by_table(k, quotient(encoding.table, old, new, k))
        return encoding.moved(k, old, new)

    def check_horizons(self, shortest: int, longest: int) -> None:
        """Raise ValueError if passes of horizons between the two rotate keys by different frequencies."""
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

    def difference(self, layer: int, old_at: Positions, new_at: Positions, old: Pair, new: Pair, side: Side) -> float:
        """Return the relative error of a layer's cache at new positions, predicted from that at old ones."""
        turns, stays = (0, 1) if side == "keys" else (1, 0)
        device = old[0].device
        old_at, new_at = old_at.to(device), new_at.to(device)
        try:
            expected = self.moved_keys(layer, old[turns], old_at, new_at, int(new_at.coords.max()) + 1)
        except ValueError:
            # The tensor has another number of channels than the encoding rotates.
            return float("inf")
        return max(relative_error(expected, new[turns]), relative_error(old[stays], new[stays]))


def cache_layers(cache: object) -> dict[int, Any]:
    """Return the layers of a transformers cache that store keys, by number.

    Raises TypeError for another object, and ValueError for layers that do not keep all tokens in order: sliding, static
    and quantised ones, states of recurrent layers.
    """
    from transformers import Cache, EncoderDecoderCache, cache_utils

    if not isinstance(cache, Cache):
        raise TypeError(f"expected a cache of transformers, such as DynamicCache(), got {checks.display(cache)}")
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


def relative_error(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-30))
