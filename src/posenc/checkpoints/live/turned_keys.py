"""How the keys in a live model's cache turn: read for each layer, and compared with what the model caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import cache_name, parameters
from posenc.checkpoints.live.attach import MARK, build_part, decoder_parts
from posenc.checkpoints.live.cache_layers import Pair, layers_of
from posenc.checkpoints.live.latent_heads import OnLastChannels
from posenc.checkpoints.live.unturned import decoder_of, fitted
from posenc.checkpoints.vocabulary.reading import Layer
from posenc.encoding import WHY_FIXED, Encoding, settings_of
from posenc.encodings.rotary import Rotary
from posenc.foreign.text import told
from posenc.positions import Positions
from posenc.schedules import Schedule

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
        """Which tensor of a layer turns, where its keys can be moved."""
        return "keys" if isinstance(self.measured, str) else self.measured[layer]

    @cached_property
    def measured(self) -> tuple[Side, ...] | str:
        """Which tensor turns in each layer, by what the model caches of the same tokens at other places; or why none
        is that of its encoding there."""
        if not self.takes_positions or not any("turn" in encoding.doors for encoding in self.encodings):
            return ("keys",) * len(self.encodings)
        far = max(min(FAR, self.length // 8), 1)
        there = [Positions.count(ASKED), Positions.count(ASKED, start=far)]
        horizon = (far + ASKED,) * 2
        try:
            ran = [self.run(at.coords[..., 0]) for at in there]
        except Exception as error:
            # It is code of many hands, which says so in any way.
            return f"{type(self.decoder).__name__} could not be asked for its keys ({told(error)}); {REMEDY}"
        sides: list[Side] = []
        for number in ran[0]:
            pairs = ran[0][number], ran[1][number]
            encoding = self.turning(number, *horizon)
            off = {side: differs(encoding, *there, *pairs, side) for side in ("keys", "values")}
            best = min(off, key=lambda side: off[side])
            if not off[best] <= ALLOWED.get(pairs[0][0].dtype, 0.1):
                return (
                    f"what {type(self.decoder).__name__} caches of tokens {far} places further on in layer {number} is "
                    f"not what {encoding} turns there (off by {off[best]:.0%}); {REMEDY}"
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
        return {layer.number: layer.pair for layer in layers_of(cache) if layer.pair is not None}

    def turning(self, layer: int, shortest: int, longest: int) -> Encoding:
        """The encoding by which a layer's keys were turned, in passes of horizons between the two.

        Raises ValueError where they were not all turned by the same frequencies.
        """
        encoding = self.encodings[layer]
        if not encoding.turns_when_attending:
            return encoding
        return made_at(encoding, shortest, longest)


def made_at(encoding: Encoding, shortest: int, longest: int) -> Encoding:
    """An encoding that depends on a horizon, with the frequencies of passes with horizons between the two."""
    if isinstance(encoding, OnLastChannels):
        return OnLastChannels(made_at(encoding.encoding, shortest, longest))
    if not isinstance(encoding, Rotary) or encoding.schedule is None:
        raise ValueError(
            f"{encoding} depends on a horizon within another encoding, and keys that transformers has turned by it "
            f"are not turned again; {REMEDY}"
        )
    short, long = encoding.spectrum(torch.tensor([shortest, longest]))[0].expand(2, -1)
    if not torch.equal(short, long):
        raise ValueError(
            f"{encoding} has changed its frequencies between horizons of {shortest} and {longest} tokens, and the "
            f"cache holds keys of both; keep a sequence within {encoding.schedule.short_horizon} tokens, or feed the "
            f"tokens again"
        )
    options: dict[str, Any] = settings_of(encoding) | {"schedule": AtHorizon(encoding.schedule, longest)}
    return type(encoding)(encoding.head_dim, **options)


@dataclass(frozen=True)
class AtHorizon(Schedule):
    """A schedule that depends on the horizon, at one of them for good.

    schedule  the schedule
    horizon   the horizon (positions)
    """

    schedule: Schedule
    horizon: int

    def __call__(
        self, frequencies: Tensor, *, base: float, width: int, horizon: Tensor | None = None
    ) -> tuple[Tensor, float | Tensor]:
        at = torch.tensor([self.horizon], device=frequencies.device)
        made, temperature = self.schedule(frequencies, base=base, width=width, horizon=at)
        return made.flatten(), float(temperature)

    def formula(
        self, frequencies: Sequence[float], *, base: float, width: int, horizon: float | None = None
    ) -> tuple[list[float], float]:
        return self.schedule.formula(frequencies, base=base, width=width, horizon=self.horizon)


def differs(encoding: Encoding, before: Positions, after: Positions, old: Pair, new: Pair, side: Side) -> float:
    """By how much the cached pair of the same tokens elsewhere is not the old one with one side turned (relative)."""
    turns, stays = (0, 1) if side == "keys" else (1, 0)
    device = old[0].device
    try:
        turned = encoding.moved(old[turns], before.to(device), after.to(device))
    except ValueError:
        # So many channels are not what it turns.
        return float("inf")
    return max(relative(turned, new[turns]), relative(old[stays], new[stays]))


def relative(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-30))
