"""Tests of image rotary encoding (DINOv3): normalised coordinates and their augmentation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.image_rotary import ImageRotary, augmented, normalised_grid


def rotated(x: Tensor, places: Tensor, base: float, layout: str) -> Tensor:
    """Rotate x [B, H, T, D] at positions [T, A]. Each pair is multiplied by a unit complex number."""
    axes = places.shape[1]
    n = x.shape[-1] // (2 * axes)
    pairs, out = n * axes, x.double().clone()
    for axis in range(axes):
        for j in range(n):
            p = axis * n + j
            first, second = (p, p + pairs) if layout == "half" else (2 * p, 2 * p + 1)
            z = torch.complex(x[..., first].double(), x[..., second].double())
            z = z * torch.exp(2j * math.pi * places[:, axis] * base ** (-j / n))
            out[..., first], out[..., second] = z.real, z.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "axes", "base"), [(8, 2, 100.0), (64, 2, 100.0), (11, 2, 20.0), (20, 3, 1e4)])
def test_queries_and_keys_are_turned_as_published(layout: str, head_dim: int, axes: int, base: float) -> None:
    at = normalised_grid(*(3, 4, 2)[:axes])
    q, k = (torch.randn(2, heads, at.tokens, head_dim, dtype=torch.float64) for heads in (3, 1))
    got_q, got_k = ImageRotary(head_dim, axes=axes, base=base, layout=layout)(q, k, positions=at)
    torch.testing.assert_close(got_q, rotated(q, at.coords[0], base, layout), rtol=0, atol=1e-13)
    torch.testing.assert_close(got_k, rotated(k, at.coords[0], base, layout), rtol=0, atol=1e-13)


def test_the_periods_of_two_axes_are_base_to_the_4k_over_d() -> None:
    assert ImageRotary(64).periods.tolist() == pytest.approx([100 ** (4 * k / 64) for k in range(16)], rel=1e-14)
    assert torch.equal(ImageRotary(64).wavelengths, ImageRotary(64).periods)


def test_coordinates_are_the_centres_of_patches_between_minus_one_and_one() -> None:
    coords = normalised_grid(2, 4).coords[0]
    assert coords.dtype == torch.float64
    assert coords[:, 0].tolist() == [-0.5] * 4 + [0.5] * 4
    assert coords[:, 1].tolist() == [-0.75, -0.25, 0.25, 0.75] * 2
    assert normalised_grid(2, 4, device="meta").order.is_meta


@pytest.mark.parametrize(
    ("side", "reach"), [("each", (0.5, 0.75)), ("longest", (-0.25, 0.75)), ("shortest", (0.5, 2.5))]
)
def test_the_side_that_measures_decides_how_far_each_axis_reaches(side: str, reach: tuple[float, float]) -> None:
    assert normalised_grid(2, 4, side=side).coords[0].amax(0).tolist() == list(reach)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_every_image_is_centred_and_stays_inside_whatever_its_size(sizes: list[int]) -> None:
    coords = normalised_grid(*sizes).coords[0]
    assert float(coords.abs().amax()) < 1 and coords.mean(0).abs().amax().item() < 1e-15
    assert torch.equal(coords, -coords.flip(0))


def test_the_same_seed_gives_the_same_positions_and_the_global_random_state_is_untouched() -> None:
    at, state = normalised_grid(3, 4), torch.get_rng_state()
    options = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}
    first, again, another_seed = (augmented(at, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(first.coords, again.coords) and not torch.equal(first.coords, another_seed.coords)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(at.coords, normalised_grid(3, 4).coords)
    assert first.coords.dtype == torch.float64 and torch.equal(first.order, at.order) and first.contiguous


def test_without_shift_jitter_and_rescale_nothing_moves() -> None:
    at = normalised_grid(3, 4)
    assert torch.equal(augmented(at, seed=5).coords, at.coords)


def test_augmentation_is_one_shift_and_one_stretch_for_each_axis() -> None:
    at = normalised_grid(3, 4)
    stretches, shifts = [], []
    for seed in range(300):
        actual = augmented(at, seed=seed, shift=0.25, jitter=1.5, rescale=2.0).coords[0]
        first, last = at.coords[0, 0], at.coords[0, -1]
        stretch = (actual[-1] - actual[0]) / (last - first)
        shift = actual[0] / stretch - first
        torch.testing.assert_close(actual, (at.coords[0] + shift) * stretch, rtol=0, atol=1e-12)
        stretches.append(stretch.log())
        shifts.append(shift)
    shift, stretch = torch.stack(shifts), torch.stack(stretches)
    assert 0.24 < shift.abs().max().item() <= 0.25 + 1e-6 and shift.mean().abs().item() < 0.02
    assert shift.var().item() == pytest.approx(0.25**2 / 3, rel=0.15)
    # The rescaling is the same for both axes; the jitter differs, by at most 1.5 to 1 / 1.5.
    assert stretch.abs().max().item() <= math.log(3) + 1e-6
    assert math.log(2) < (stretch[:, 0] - stretch[:, 1]).abs().max().item() <= 2 * math.log(1.5) + 1e-6
    together = 0.5 * stretch.sum(1)
    expected = (math.log(2) ** 2 + math.log(1.5) ** 2 / 2) / 3
    assert together.var().item() == pytest.approx(expected, rel=0.2)


def test_rows_with_coordinates_of_their_own_get_draws_of_their_own() -> None:
    at = Positions.of(normalised_grid(2, 2).coords.expand(3, 4, 2))
    actual = augmented(at, seed=1, shift=0.5).coords
    assert (actual - at.coords)[:, 0].unique(dim=0).shape[0] == 3
    assert torch.equal(actual - at.coords, (actual - at.coords)[:, :1].expand(3, 4, 2)) or torch.allclose(
        actual - at.coords, (actual - at.coords)[:, :1].expand(3, 4, 2), atol=1e-15
    )


def test_patches_counted_in_whole_numbers_move_when_augmented() -> None:
    at = augmented(Positions.grid(2, 2), seed=3, shift=0.5)
    assert at.coords.dtype == torch.float32 and not torch.equal(at.coords, Positions.grid(2, 2).coords.float())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shift": -0.1}, "shift must be 0 or more, got -0.1"),
        ({"shift": math.nan}, "shift must be 0 or more, got nan"),
        ({"jitter": 0.9}, "jitter must be 1 or more, got 0.9"),
        ({"rescale": math.inf}, "rescale must be a finite number, got inf"),
    ],
)
def test_impossible_augmentations_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        augmented(normalised_grid(2, 2), seed=0, **options)


def test_impossible_grids_are_refused() -> None:
    with pytest.raises(ValueError, match="side must be one of each, longest, shortest, got 'min'"):
        normalised_grid(2, 2, side="min")
    with pytest.raises(ValueError, match="a grid needs at least one cell on each axis"):
        normalised_grid(2, 0)
