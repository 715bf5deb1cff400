"""Time2Vec agrees with its formula in 50 digits."""

import math

import mpmath
import pytest
import torch

from posenc import Positions
from posenc.encodings.added.continuous_time import ContinuousTime

TIMES = [0.0, 1.0, 0.3, -7.25, 1234.5, 1e6]


def numbers_by_hand(encoding: ContinuousTime, p: float) -> list:
    """Return t(p) from the paper. The linear term's frequency is the parameter over trained_length."""
    with mpmath.workdps(50):
        w, f = encoding.frequency.tolist(), encoding.phase.tolist()
        line = mpmath.mpf(w[0]) / encoding.trained_length * mpmath.mpf(p) + f[0]
        return [line] + [mpmath.sin(mpmath.mpf(a) * mpmath.mpf(p) + b) for a, b in zip(w[1:], f[1:], strict=True)]


@pytest.mark.parametrize("size", [None, 2, 9])
def test_a_time_is_a_line_and_waves(size: int | None) -> None:
    encoding = ContinuousTime(5, 32, size=size).double()
    at = Positions.of(torch.tensor(TIMES, dtype=torch.float64))
    rows = [numbers_by_hand(encoding, p) for p in TIMES]
    if encoding.project is not None:
        project = encoding.project.tolist()
        rows = [[mpmath.fsum(w * t for w, t in zip(row, numbers, strict=True)) for row in project] for numbers in rows]
    expected = torch.tensor([[float(value) for value in row] for row in rows], dtype=torch.float64)
    x = torch.randn(2, len(TIMES), 5, dtype=torch.float64)
    torch.testing.assert_close(encoding(x, positions=at) - x, expected.expand(2, -1, -1), rtol=1e-12, atol=1e-8)
    actual = [[encoding.formula_added(p, c) for c in range(5)] for p in TIMES]
    torch.testing.assert_close(torch.tensor(actual, dtype=torch.float64), expected, rtol=1e-12, atol=1e-8)


def test_adding_a_projection_is_what_concatenating_before_a_linear_layer_does() -> None:
    encoding, at = (
        ContinuousTime(4, 16, size=3).double(),
        Positions.of(torch.tensor([0.5, 2.0, 9.75], dtype=torch.float64)),
    )
    x, joint = torch.randn(1, 3, 4, dtype=torch.float64), torch.nn.Linear(4 + 3, 4, bias=False).double()
    plain = ContinuousTime(3, 16).double()
    with torch.no_grad():
        plain.load_state_dict({name: p for name, p in encoding.state_dict().items() if name != "project"})
        on_x, on_time = joint.weight[:, :4], joint.weight[:, 4:]
        assert encoding.project is not None
        encoding.project.copy_(torch.linalg.solve(on_x, on_time))
    expected = joint(torch.cat((x, plain.encode(at)), -1))
    torch.testing.assert_close(encoding(x, positions=at) @ on_x.T, expected, rtol=1e-9, atol=1e-9)


def test_the_line_is_of_order_one_at_the_trained_length_and_waves_start_in_radians_per_position() -> None:
    torch.manual_seed(0)
    encoding = ContinuousTime(4000, 512)
    assert encoding.frequency.std().item() == pytest.approx(1, rel=0.05)
    assert encoding.phase.min() >= -math.pi and encoding.phase.max() <= math.pi
    assert encoding.phase.std().item() == pytest.approx(math.pi / math.sqrt(3), rel=0.05)
    with torch.no_grad():
        line = encoding.encode(Positions.of(torch.tensor([0.0, 512.0])))[0, :, 0].diff()
    assert line.item() == pytest.approx(encoding.frequency[0].item(), rel=1e-5)
    assert ContinuousTime(8, 64, size=2500).project.std().item() == pytest.approx(0.02, rel=0.05)


def test_wavelengths_are_those_of_the_waves() -> None:
    encoding = ContinuousTime(4, 16).double()
    with torch.no_grad():
        encoding.frequency.copy_(torch.tensor([5.0, -0.5, 2.0, 1.0]))
    assert encoding.wavelengths.tolist() == pytest.approx([math.pi, 2 * math.pi, 4 * math.pi], rel=1e-15)


def test_whole_times_do_not_give_zeros_and_late_ones_stay_exact_in_float32() -> None:
    encoding = ContinuousTime(16, 64)
    places = torch.tensor([1_000_000, 1_000_001])
    actual = encoding(torch.zeros(1, 2, 16), positions=places)
    exact = encoding.encode(Positions.of(places.double()))
    assert torch.equal(actual, exact.float()) and float(actual.detach().abs().sum()) > 1
