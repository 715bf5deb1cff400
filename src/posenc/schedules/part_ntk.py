"""NTK by parts, as it was before the paper of YaRN."""

from dataclasses import dataclass

import torch

from posenc.schedules._ramps import kept_by_pair, pair_ramp, published_pair_ramp
from posenc.schedules._schedule import Schedule
from posenc.schedules.ntk import NTK


@dataclass(frozen=True)
class PartNTK(Schedule):
    """The first NTK by parts, before the paper: slow pairs linear, middle NTK-aware, fast unchanged.

    mixed = lerp(linear, ntk, keep_1),   frequency' = lerp(mixed, plain, keep_2)

    keep_1 falls from 1 to 0 between the pairs that turn 1.25 and 0.75 times in the trained length, keep_2 between those
    that turn 16 and 2 times; both linear in the pair index, their ends rounded outwards.

    factor          target length / trained length (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own

    Raises ValueError for a rotary width of 2.
    Source: `LlamaPartNTKScaledRotaryEmbedding` of jquesnelle/yarn 2023; its constants were "found experimentally".
    """

    equation = r"""
    \text{mixed} = \operatorname{lerp}(\text{linear}, \text{ntk}, \text{keep}_1), \quad \text{frequency}' =
    \operatorname{lerp}(\text{mixed}, \text{plain}, \text{keep}_2)
    """
    example = "part_ntk(factor=4)"

    factor: float
    trained_length: int | None = None

    def __call__(self, frequencies, *, base, width, horizon=None):
        length = self.known_length
        aware, _ = NTK(self.factor)(frequencies, base=base, width=width)
        options = {"base": base, "width": width, "truncate": True}
        keep_1 = kept_by_pair(pair_ramp(length, fast=1.25, slow=0.75, **options), frequencies)
        keep_2 = kept_by_pair(pair_ramp(length, fast=16, slow=2, **options), frequencies)
        blend = torch.lerp(frequencies / self.factor, aware, keep_1)
        return torch.lerp(blend, frequencies, keep_2), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        aware, _ = NTK(self.factor).formula(frequencies, base=base, width=width)
        options = {"base": base, "width": width, "truncate": True}
        keep_1 = published_pair_ramp(width // 2, self.known_length, fast=1.25, slow=0.75, **options)
        keep_2 = published_pair_ramp(width // 2, self.known_length, fast=16, slow=2, **options)
        linear = [f / self.factor for f in frequencies]
        blend = [a * (1 - keep) + b * keep for a, b, keep in zip(linear, aware, keep_1, strict=True)]
        return [a * (1 - keep) + b * keep for a, b, keep in zip(blend, frequencies, keep_2, strict=True)], 1.0
