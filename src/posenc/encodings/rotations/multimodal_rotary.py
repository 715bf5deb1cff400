"""Multimodal rotary encoding (M-RoPE), and the positions of text and grids in one sequence."""

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS
from posenc.encoding.precision import exact
from posenc.encodings.rotations import ScheduledSpectrum, cos_sin, rotary_width
from posenc.schedules import Schedule, schedule_of
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor

ORDERS = ("chunked", "interleaved", "time_last")


class MultimodalRotary(ScheduledSpectrum):
    """Divide the pairs of rotary among time, height and width; for text it is rotary.

    frequency_k = base^(-2k/r), k = 0..r/2-1;   pair k turns by p_a(k) frequency_k, a(k) the axis that owns pair k
    chunked      the first sections[0] pairs read time, the next sections[1] height, the last sections[2] width
    interleaved  pair k < A sections[k mod A] reads axis k mod A (A axes), the rest time: t h w t h w ... t t t
    time_last    height and width in turn (h w h w ...), then all pairs of time, which so has the slowest

    head_dim  width of one head (channels)
    base      ratio that sets the longest wavelength (unitless, above 1); Qwen2-VL takes 1,000,000
    sections  how many pairs each axis owns, time first; together r/2. The default shares the pairs out as Qwen2-VL
              does, (16, 24, 24) of 64, when chunked or time_last, and as Qwen3-VL, (24, 20, 20), when interleaved
    order     which pairs these are, one of the three above
    layout    which channels form a pair: "half" pairs k with k + r/2 (Qwen), "interleaved" 2k with 2k + 1 (GLM-4V)
    partial   share of the head that is turned, r = partial * head_dim; the other channels carry no position
    schedule  a change of the frequencies for longer contexts, as in rotary, that does not depend on the horizon

    Positions have one axis (text: every axis is at the same place) or one for each section. `text_and_grids` in this
    module makes those of Qwen2-VL: after an image the text goes on one past its largest coordinate, so the next
    position is not the number of tokens; when decoding, give it.

    How we differ: sections that the interleaved order cannot place are refused, with those that it would place; vLLM
    checks only their sum, and Hugging Face and timm give the axis fewer pairs in silence.

    Where it goes wrong: chunked gives time only the fastest pairs, whose angles repeat within few frames, so far frames
    look near; interleaved and time_last exist for that reason. Ids grow more slowly than tokens, so a context counted
    in tokens overstates how far the angles go.

    Raises ValueError for sections that do not fill the pairs, fewer than three pairs without sections, an odd or
    impossible width, a base of 1 or less, an unknown word, a schedule that depends on the horizon, or positions with
    another number of axes.
    Source: Wang et al. 2024, arXiv:2409.12191, section 2.1 (Qwen2-VL); interleaved: Huang et al. 2025,
    arXiv:2510.23095; time_last: Wei et al. 2025, arXiv:2502.05173, section 3 (VideoRoPE), and the authors' code.

    >>> MultimodalRotary(128, order="interleaved").sections_in_use
    (24, 20, 20)
    """

    equation = r"""
    \text{frequency}_k = \text{base}^{-2k/r}, \quad k = 0, \dots, r/2 - 1

    \text{pair } k \text{ turns by } p_{a(k)} \, \text{frequency}_k, \quad a(k) \text{ the axis that owns pair } k
    """
    source = "Wang et al. 2024, arXiv:2409.12191, section 2.1"
    also_called = ("mrope", "m_rope", "m-rope", "multimodal_rope", "videorope")
    extrapolates = "as rotary does, but ids grow more slowly than tokens: Qwen3-VL asks YaRN for 2 to 3 times, not 4"
    used_by = "Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, GLM-4.1V, ERNIE-VL, Hunyuan-VL, PaddleOCR-VL"
    axes = 0

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        sections: tuple[int, ...] | None = None,
        order: str = "chunked",
        layout: str = "half",
        partial: float = 1.0,
        schedule: Schedule | str | None = None,
    ) -> None:
        super().__init__()
        checks.one_of("order", order, ORDERS), checks.one_of("layout", layout, LAYOUTS)
        checks.above("base", base, 1)
        schedule = schedule_of(schedule)
        if schedule is not None and schedule.by_horizon:
            raise ValueError(
                f"schedule {schedule} depends on the horizon, which only rotary reads; take yarn(factor=4)"
            )
        self.head_dim, self.base, self.layout, self.partial = head_dim, base, layout, partial
        self.sections, self.order, self.schedule = sections, order, schedule
        self.width = rotary_width(head_dim, partial)
        self.sections_in_use = self.default_sections() if sections is None else tuple(sections)
        self.check_sections()
        self.spectrum()

    def default_sections(self) -> tuple[int, ...]:
        pairs = self.width // 2
        if pairs < 3:
            raise ValueError(
                f"sections for time, height and width take three pairs, 6 channels, got {self.width} "
                f"(head_dim={self.head_dim}, partial={self.partial}); give sections yourself"
            )
        side = max(pairs * (5 if self.order == "interleaved" else 6) // 16, 1)
        return pairs - 2 * side, side, side

    def check_sections(self) -> None:
        sections, pairs = self.sections_in_use, self.width // 2
        if not sections or any(not n >= 0 or n % 1 for n in sections) or sum(sections) != pairs:
            raise ValueError(f"sections must be whole numbers of pairs that add up to {pairs}, got {sections}")
        axis = self.axis_of_pair()
        counts = tuple(axis.count(a) for a in range(len(sections)))
        if counts != sections:
            raise ValueError(
                f"sections {sections} do not fit the interleaved order, which ends after {pairs} pairs; "
                f"other libraries then give the axes {counts} pairs: say sections={counts} for the same"
            )

    def axis_of_pair(self) -> list[int]:
        """Return the axis that each pair reads, the fastest pair first."""
        first, *spatial = self.sections_in_use
        if self.order == "chunked":
            return [axis for axis, n in enumerate(self.sections_in_use) for _ in range(n)]
        if self.order == "time_last":
            turns = range(max(spatial, default=0))
            return [axis for turn in turns for axis, n in enumerate(spatial, 1) if turn < n] + [0] * first
        A = len(self.sections_in_use)
        return [k % A if k < A * self.sections_in_use[k % A] else 0 for k in range(self.width // 2)]

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.coordinates(self.axes, self))  # [B or 1, T, 1 or A]
        if coords.shape[-1] not in (1, len(self.sections_in_use)):
            raise ValueError(
                f"{self} reads one axis or {len(self.sections_in_use)}, one for each of its sections "
                f"{self.sections_in_use}, got positions with {coords.shape[-1]} axes"
            )
        if coords.shape[-1] != 1:
            coords = coords[..., number_tensor(self.axis_of_pair(), torch.long, coords.device)]
        frequencies, temperature = self.spectrum(device=coords.device)
        return cos_sin((coords * frequencies)[:, None], temperature, dtype, device)

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        sections, angles = self.sections_in_use, []
        places = position if isinstance(position, tuple) else (position,) * len(sections)
        pairs_by_axis = list(sections)
        for p, frequency in enumerate(self.formula_spectrum()[0]):
            if self.order == "chunked":
                axis = next(a for a, pairs in enumerate(pairs_by_axis) if pairs)
            elif self.order == "interleaved":
                axis = p % len(sections) if pairs_by_axis[p % len(sections)] else 0
            else:
                # Of height and width, the one that has had fewer pairs; time when both have theirs.
                waiting = [a for a in range(1, len(sections)) if pairs_by_axis[a]]
                axis = min(waiting, key=lambda a: (sections[a] - pairs_by_axis[a], a)) if waiting else 0
            pairs_by_axis[axis] -= 1
            angles.append(places[axis] * frequency)
        return angles


def text_and_grids(*parts: int | tuple[int, ...], device: torch.device | str | None = None) -> Positions:
    """Return the positions of text and grids in one sequence, as Qwen2-VL counts them.

    Text counts up on all axes at once. A grid begins where the text before it would have gone on, and what follows it
    begins one past its largest coordinate.

    parts  an int is a run of text (tokens), a tuple a grid: (time, height, width) in patches as the model sees them

    Raises ValueError for an empty part or grids of different numbers of axes.

    >>> text_and_grids(2, (1, 2, 2), 1).coords[0].tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    """
    axes = {len(part) for part in parts if isinstance(part, tuple)} or {3}
    if len(axes) > 1:
        raise ValueError(f"grids in one sequence must have the same number of axes, got {sorted(axes)} in {parts}")
    A, start, pieces = axes.pop(), 0, []
    for part in parts:
        sizes = part if isinstance(part, tuple) else (part,)
        pieces.append(start + Positions.grid(*sizes, device=device).coords.expand(-1, -1, A))
        start += max(sizes)
    if not pieces:
        raise ValueError("a sequence needs at least one token, got no parts")
    coords = torch.cat(pieces, 1)
    order = torch.arange(coords.shape[1], device=device)[None]
    return Positions(coords, order, contiguous=True, extent=start)
