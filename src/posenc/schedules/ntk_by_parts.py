"""NTK by parts, as in the paper of YaRN."""

from dataclasses import dataclass

from posenc.schedules._ramps import RampInTurns


@dataclass(frozen=True)
class NTKByParts(RampInTurns):
    """NTK by parts: fast pairs stay, slow ones are divided by the factor, with a ramp between.

    turns_k = trained_length frequency_k / (2 pi)
    keep_k = clamp((turns_k - alpha)/(beta - alpha), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 1

    factor          target length / trained length (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own
    alpha           turns up to which a pair is divided
    beta            turns from which a pair is kept; equal to alpha it makes a step

    Limit: with a trained length below 201 no pair turns 32 times, so all are stretched.
    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, definition 2.
    """

    ends = ("alpha", "beta")
    equation = r"""
    \text{turns}_k = \frac{\text{trained length} \cdot \text{frequency}_k}{2 \pi}

    \text{keep}_k = \operatorname{clamp}\left( \frac{\text{turns}_k - \alpha}{\beta - \alpha}, 0, 1 \right)

    \text{frequency}'_k = \text{keep}_k \, \text{frequency}_k + (1 - \text{keep}_k)
    \frac{\text{frequency}_k}{\text{factor}}
    """
    example = "ntk_by_parts(factor=4)"

    alpha: float = 1.0
    beta: float = 32.0
