"""Rotary position embedding."""

import math

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.kernels.rotate_pairs import LAYOUTS, rotate_pairs
from posenc.positions import Positions
from posenc.schedules import Schedule


class Rotary(Encoding):
    """Turn each pair of channels of queries and keys by an angle that grows with the position.

    frequency_k = base^(-2k/r), k = 0..r/2-1     (radians per position; the first pair is the fastest)
    (a, b) -> (a cos p frequency_k - b sin p frequency_k,  b cos p frequency_k + a sin p frequency_k)
    so that a logit depends on the positions only through their difference.

    head_dim  width of one head (channels)
    base      ratio that sets the longest wavelength, 2 pi base^((r-2)/r) (unitless, above 1); 10,000 in the paper
    layout    which channels form a pair: "half" pairs k with k + r/2 (GPT-NeoX, Hugging Face Llama), "interleaved"
              pairs 2k with 2k + 1 (the paper, GPT-J, Meta's Llama). The same encoding up to a fixed order of channels,
              and silently wrong with weights trained in the other layout
    partial   share of the head that is turned, r = partial * head_dim; the other channels carry no position. The
              frequencies then run over r, from 1 down to about 1/base
    schedule  a change of the frequencies for longer contexts: linear, ntk, yarn or llama3, see posenc.schedules

    Shapes: q [B, H, T, head_dim], k [B, KV, S, head_dim], any strides; values are not touched. Any position works:
    fractional, negative, or at a million. Angles are taken in float64, the rotation in float32 (float64 for float64
    input), and the result is rounded once to the input's dtype.

    Where it goes wrong: it does not extrapolate by itself. Past the trained length the slow pairs reach angles that
    training never saw, and models break at 1.2 to 1.4 times that length. Nor does it make attention decay with
    distance: for unrelated q and k the logit has the same spread at any distance.

    Raises ValueError for an odd or impossible rotary width, a base of 1 or less, an unknown layout, or heads of another
    width.
    Source: Su et al. 2021, arXiv:2104.09864, sections 3.2 and 3.4.

    >>> q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    >>> near, _ = Rotary(8)(q, k)
    >>> near[0, 0, 0].equal(q[0, 0, 0])
    True
    """

    source = "Su et al. 2021, arXiv:2104.09864, sections 3.2 and 3.4"
    also_called = ("rope", "roformer")

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: str = "half",
        partial: float = 1.0,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got '{layout}'")
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        if not 0 < partial <= 1:
            raise ValueError(f"partial must be above 0 and at most 1, got {partial}")
        # A share such as 30/44 times the head may round to just below a whole number.
        width = int(head_dim * partial + 1e-9)
        if width < 2 or width % 2:
            share = max(width - width % 2, 2) / max(head_dim, 2)
            raise ValueError(
                f"the rotary width must be an even number of channels to form pairs, got {width} (head_dim={head_dim}, "
                f"partial={partial}); choose an even head_dim, or partial={share:.12g}"
            )
        if schedule is not None and not isinstance(schedule, Schedule):
            raise ValueError(f"schedule must be one of posenc.schedules, such as yarn(factor=4), got {schedule!r}")
        self.head_dim, self.base, self.layout, self.partial, self.schedule = head_dim, base, layout, partial, schedule
        self.width = width
        self.spectrum()

    def spectrum(self) -> tuple[Tensor, float]:
        """The frequency of each pair (radians per position, float64, fastest first), and the temperature."""
        plain = self.base ** -(torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        if self.schedule is None:
            return plain, 1.0
        return self.schedule(plain, base=self.base, width=self.width)

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each pair after the schedule (radians per position), float64, fastest first."""
        return self.spectrum()[0]

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair, 2 pi / frequency (positions), float64, shortest first."""
        return 2 * math.pi / self.frequencies

    def turn(self, x: Tensor, at: Positions) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ValueError(
                f"heads must have {self.head_dim} channels, got {x.shape[-1]}; build Rotary({x.shape[-1]})"
            )
        # float32 holds a rotation to 1e-7; bfloat16 could not even count the positions past 256.
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        key = ("rotary", self.width, self.base, self.schedule, dtype, x.device)
        table = at.once(key, lambda: self.table(at, dtype, x.device))  # [2, B or 1, 1, T, r/2]
        return rotate_pairs(x, table[0], table[1], self.layout)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        frequencies, temperature = self.spectrum()
        coords = at.axis(str(self))
        # Some devices have no float64: the angles are then taken on the CPU.
        exact = torch.device("cpu") if coords.device.type == "mps" else coords.device
        angle = coords.to(exact).double()[:, None, :, None] * frequencies.to(exact)
        return (torch.stack((angle.cos(), angle.sin())) * temperature).to(dtype).to(device)

    def query(self, q: Tensor, at: Positions) -> Tensor:
        return self.turn(q, at)

    def key(self, k: Tensor, at: Positions) -> Tensor:
        return self.turn(k, at)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        r, total = self.width, []
        frequencies, temperature = ([self.base ** (-2 * p / r) for p in range(r // 2)], 1.0)
        if self.schedule is not None:
            frequencies, temperature = self.schedule.formula(frequencies, base=self.base, width=r)
        for p, frequency in enumerate(frequencies):
            first, second = (p, p + r // 2) if self.layout == "half" else (2 * p, 2 * p + 1)
            # The real part of (q_a + i q_b) conj(k_a + i k_b) e^{i (m - n) frequency}.
            turned = complex(q[first], q[second]) * complex(k[first], -k[second])
            angle = (m - n) * frequency
            total.append(temperature**2 * (turned.real * math.cos(angle) - turned.imag * math.sin(angle)))
        passed = [a * b for a, b in zip(q[r:], k[r:], strict=True)]
        return scale * math.fsum(total + passed)
