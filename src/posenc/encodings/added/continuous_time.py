"""Time2Vec."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.formulas import dot_product
from posenc.encoding.precision import exact
from posenc.tokens.positions import Positions


class ContinuousTime(Encoding):
    """Add to each token a line and waves of its time, with learned frequency and phase.

    t(p)[0] = frequency_0 p / trained_length + phase_0
    t(p)[k] = sin(frequency_k p + phase_k),  k = 1..size-1               (radians per position, radians)
    x + t(p), or x + P t(p) with P [dim, size] where a size is given

    dim             width of the embeddings (channels)
    trained_length  the trained length (positions): there the line is of order one
    size            numbers that a time becomes, k + 1 in the paper, before they are projected to dim. None: dim of
                    them, added as they are

    Shapes: x [B, T, dim] -> [B, T, dim]. Positions are times: fractional, irregular, negative. The paper concatenates
    t(p) to a layer's input; the layer's matrix on [x, t(p)] is one on x plus one on t(p), so adding P t(p) gives the
    same models and keeps the width. It writes the line as frequency_0 p; the unit trained_length only changes where
    training begins. Frequencies begin at N(0, 1), phases anywhere in a turn. Angles are taken in float64.

    Where it goes wrong: the line grows without bound, so it drowns the tokens at times far past the trained ones.
    Frequencies hardly move in training, since the loss is a wave in each of them: where they begin decides much.

    Raises ValueError for sizes below 1 (below 2 for `size`), or embeddings of another width.
    Source: Kazemi et al. 2019, arXiv:1907.05321, section 4.

    >>> ContinuousTime(4, trained_length=8)(torch.zeros(1, 3, 4), positions=torch.tensor([0.0, 0.3, 7.25])).shape
    torch.Size([1, 3, 4])
    """

    equation = r"""
    t(p)_0 = \frac{\text{frequency}_0 \, p}{\text{trained length}} + \text{phase}_0

    t(p)_k = \sin(\text{frequency}_k \, p + \text{phase}_k), \quad k = 1, \dots, \text{size} - 1

    x_p \to x_p + P \, t(p)
    """
    source = "Kazemi et al. 2019, arXiv:1907.05321, section 4"
    also_called = ("time2vec", "t2v", "timestamps")
    extrapolates = "not claimed: past the trained times the line reaches values that training never saw"

    def __init__(
        self,
        dim: int,
        trained_length: int,
        *,
        size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, trained_length=trained_length)
        checks.at_least("size", size, 2, ", a line and a wave")
        self.dim, self.trained_length, self.size = dim, trained_length, size
        n = dim if size is None else size
        self.frequency = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.phase = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.project = None if size is None else nn.Parameter(torch.empty(dim, n, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequency)
        nn.init.uniform_(self.phase, -math.pi, math.pi)
        if self.project is not None:
            nn.init.normal_(self.project, std=self.project.shape[1] ** -0.5)

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each wave, 2 pi / |frequency| (positions), float64, shortest first."""
        return (2 * math.pi / self.frequency[1:].detach().double().abs()).sort().values

    def encode(self, at: Positions) -> Tensor:
        """Return the encoding [B or 1, T, dim] in float64."""
        time = exact(at.coordinates(self.axes, self))[..., None]
        frequency, phase = exact(self.frequency), exact(self.phase)
        line = time / self.trained_length * frequency[:1] + phase[:1]
        numbers = torch.cat((line, (time * frequency[1:] + phase[1:]).sin()), -1)
        return numbers if self.project is None else numbers @ exact(self.project).T

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        return x + self.encode(at).to(x.dtype).to(x.device)

    def formula_added(self, position: float, channel: int) -> float:
        (slope, *frequencies), (start, *phases) = self.frequency.tolist(), self.phase.tolist()
        waves = [math.sin(f * position + phase) for f, phase in zip(frequencies, phases, strict=True)]
        numbers = [slope * position / self.trained_length + start, *waves]
        return numbers[channel] if self.project is None else dot_product(self.project[channel].tolist(), numbers)
