"""The scaling of Llama 3."""

from dataclasses import dataclass

from posenc.schedules._ramps import RampInTurns


@dataclass(frozen=True)
class Llama3(RampInTurns):
    """Llama 3's scaling: short wavelengths stay, long ones are multiplied by the factor, a ramp in turns between.

    turns_k = trained_length frequency_k / (2 pi)
    keep_k = clamp((turns_k - low)/(high - low), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 1

    This is ntk_by_parts with alpha = low and beta = high.

    factor          target length / trained length (unitless, 1 or more); 8 in Llama 3.1, 32 in 3.2
    trained_length  tokens; 8192 in Llama 3; a model built from a spec fills in its own
    low             turns up to which a pair is divided
    high            turns from which a pair is kept; equal to low (Llama 4) makes a step

    Source: Meta's Llama 3.1 reference code, `apply_scaling`; Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.2.
    """

    ends = ("low", "high")
    equation = r"""
    \text{turns}_k = \frac{\text{trained length} \cdot \text{frequency}_k}{2 \pi}

    \text{keep}_k = \operatorname{clamp}\left( \frac{\text{turns}_k - \text{low}}{\text{high} - \text{low}}, 0, 1
    \right)

    \text{frequency}'_k = \text{keep}_k \, \text{frequency}_k + (1 - \text{keep}_k)
    \frac{\text{frequency}_k}{\text{factor}}
    """
    example = "llama3(factor=4)"

    low: float = 1.0
    high: float = 4.0
