"""Tests of coordinate maps: their draws, what they leave unchanged, and use with every encoding."""

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import Positions, build
from posenc.coordinate_maps import (
    COORDINATE_MAPS,
    Abacus,
    Augmented,
    CoordinateMap,
    Coupled,
    Interpolated,
    Randomised,
    RandomisedContinuous,
    Restarted,
    Shifted,
    ShiftedAtRandom,
    SkippedChunks,
)
from posenc.encoding.base import Shape

PLAIN = [
    Randomised(longest=60),
    RandomisedContinuous(longest=30.0),
    RandomisedContinuous(longest=30.0, even=True, trained_length=12),
    Shifted(by=4),
    ShiftedAtRandom(most=20),
    Augmented(shift=5.0, scale=1.2),
    SkippedChunks(longest=60, chunks=3),
    Interpolated(factor=2.5),
]
READING = [
    Abacus(first_digit=0, most=7),
    Coupled(first_digit=0, equals=11, width=40, most=7),
    Restarted(separator=3),
]
DETERMINISTIC = [
    RandomisedContinuous(longest=30.0, even=True, trained_length=12),
    Shifted(by=4),
    Interpolated(factor=2.5),
    Abacus(first_digit=0),
    Coupled(first_digit=0, equals=11, width=40),
    Restarted(separator=3),
]
RANDOM = [rule for rule in PLAIN + READING if rule not in DETERMINISTIC]
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def ids_for(tokens: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(13, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def place(rule: CoordinateMap, at: Positions, ids: torch.Tensor | None = None) -> torch.Tensor:
    return rule(at, ids_for(at.tokens) if ids is None else ids).coords[..., 0]


@pytest.mark.parametrize("rule", PLAIN + READING, ids=str)
@settings(max_examples=12, deadline=None)
@given(lengths=lengths)
def test_only_coordinates_change(rule: CoordinateMap, lengths: list[int]) -> None:
    at = Positions.packed(lengths).with_horizon(99)
    coords = at.coords.clone()
    out = rule(at, ids_for(at.tokens))
    assert out.order is at.order and out.document is at.document and out.horizon is at.horizon
    assert torch.equal(at.coords, coords) and out.coords.shape == coords.shape and out.coords.isfinite().all()
    assert out.extent is None and not out.unit_step


@pytest.mark.parametrize("rule", PLAIN, ids=str)
@settings(max_examples=15, deadline=None)
@given(lengths=lengths, seed=st.integers(0, 999))
def test_later_tokens_of_a_document_stand_no_earlier(rule: CoordinateMap, lengths: list[int], seed: int) -> None:
    at = Positions.packed(lengths)
    actual = rule(at, generator=torch.Generator().manual_seed(seed)).coords[0, :, 0].split(lengths)
    for piece in actual:
        assert (piece.diff() >= 0).all()


@settings(max_examples=25, deadline=None)
@given(lengths=lengths, extra=st.integers(0, 30), seed=st.integers(0, 999))
def test_randomised_positions_are_distinct_and_in_the_range(lengths: list[int], extra: int, seed: int) -> None:
    longest = max(lengths) + extra
    actual = place(Randomised(longest=longest, seed=seed), Positions.packed(lengths))[0]
    assert not actual.is_floating_point()
    for piece in actual.split(lengths):
        assert (piece.diff() > 0).all() and 0 <= int(piece.min()) and int(piece.max()) < longest


def test_randomised_positions_fall_everywhere_alike() -> None:
    actual = place(Randomised(longest=10), Positions.padded(torch.ones(1000, 3)))
    # For 3 sorted draws out of 10, the i-th has the mean i (10 + 1)/4 - 1.
    torch.testing.assert_close(
        actual.double().mean(0), torch.tensor([1.75, 4.5, 7.25], dtype=torch.float64), rtol=0, atol=0.25
    )
    counts = torch.bincount(actual.flatten(), minlength=10)
    assert counts.min() > 240 and counts.max() < 360


def test_a_range_of_exactly_the_document_leaves_it_in_a_row() -> None:
    at = Positions.count(7)
    for rule in (Randomised(longest=7, seed=3), SkippedChunks(longest=7, seed=3)):
        assert torch.equal(place(rule, at), at.coords[..., 0])


def test_continuous_positions_are_real_numbers_of_the_range() -> None:
    actual = place(RandomisedContinuous(longest=8.0), Positions.padded(torch.ones(1000, 4)))
    assert actual.dtype == torch.float64 and actual.min() >= 0 and actual.max() < 8
    expected = 8 * torch.arange(1, 5, dtype=torch.float64) / 5
    torch.testing.assert_close(actual.mean(0), expected, rtol=0, atol=0.25)


def test_even_positions_are_the_middles_of_equal_parts() -> None:
    for n, length in ((3, 10), (10, 3), (5, 5)):
        actual = place(RandomisedContinuous(longest=2.0, even=True, trained_length=length), Positions.count(n))[0]
        expected = [2 * (2 * i - 1) / (2 * max(n, length)) for i in range(1, n + 1)]
        assert actual.tolist() == pytest.approx(expected, abs=1e-15)


def test_a_shift_keeps_whole_positions_whole() -> None:
    at = Positions.count(4)
    assert place(Shifted(by=-0.5), at).tolist() == [[-0.5, 0.5, 1.5, 2.5]]
    assert place(Shifted(by=2.0), at).tolist() == [[2, 3, 4, 5]] and not place(Shifted(by=2.0), at).is_floating_point()
    with pytest.raises(ValueError, match=r"shifted\(by=-1\) moves position 0 below 0; give floating positions"):
        Shifted(by=-1)(at)
    assert place(Shifted(by=-1), Positions.of(torch.arange(4.0))).tolist() == [[-1, 0, 1, 2]]


def test_a_random_shift_keeps_distances_and_reaches_every_value() -> None:
    actual = place(ShiftedAtRandom(most=3), Positions.padded(torch.ones(400, 5)))
    assert (actual.diff(dim=1) == 1).all() and set(actual[:, 0].tolist()) == {0, 1, 2, 3}


def test_augmented_positions_follow_their_formula() -> None:
    rows = Positions.padded(torch.ones(400, 6))
    start = torch.arange(6.0, dtype=torch.float64)
    shifts = place(Augmented(shift=5.0, jitter=0.0), rows) - start
    assert (shifts - shifts[:, :1]).abs().max() < 1e-12
    assert -5 <= shifts.min() < -4.8 and 4.8 < shifts.max() <= 5
    jitter = place(Augmented(shift=0.0), rows) - start
    assert -0.5 <= jitter.min() < -0.48 and 0.48 < jitter.max() <= 0.5 and (jitter.diff(dim=1).abs() > 1e-3).any()
    stretch = place(Augmented(shift=0.0, jitter=0.0, scale=2.0), rows)[:, 1:] / start[1:]
    assert (stretch - stretch[:, :1]).abs().max() < 1e-12
    assert 0.5 <= stretch.min() < 0.52 and 1.95 < stretch.max() <= 2
    assert abs(float((stretch > 1).double().mean()) - 0.5) < 0.1


def test_augmented_axes_shift_apart_and_stretch_together() -> None:
    at = Positions.grid(3, 4)
    actual = Augmented(shift=5.0, jitter=0.0, scale=1.5)(at).coords[0]
    differences = actual[1:] - actual[:1]
    stretch = differences[at.coords[0, 1:] > 0] / at.coords[0, 1:][at.coords[0, 1:] > 0]
    assert float(stretch.max() - stretch.min()) < 1e-12 and actual[0, 0] != actual[0, 1]


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), chunks=st.integers(1, 14), extra=st.integers(0, 40), seed=st.integers(0, 999))
def test_skipped_chunks_are_rows_of_neighbours_from_0_within_the_range(
    n: int, chunks: int, extra: int, seed: int
) -> None:
    out = place(SkippedChunks(longest=n + extra, chunks=chunks, seed=seed), Positions.count(n))[0]
    steps = out.diff()
    assert int(out[0]) == 0 and int(out[-1]) < n + extra and (steps >= 1).all() and int((steps > 1).sum()) < chunks


def test_skipped_chunks_cover_the_range() -> None:
    actual = place(SkippedChunks(longest=32), Positions.padded(torch.ones(800, 8)))
    assert set(range(32)) == set(actual.flatten().tolist())
    # The skip is drawn from 0..24, so its mean is 12.
    assert float((actual[:, -1] - 7).double().mean()) == pytest.approx(12, abs=1)


def digits_by_hand(ids: list[int]) -> list[int]:
    """Count as the released Abacus code does: digit runs from 1, everything else 0."""
    out: list[int] = []
    for token in ids:
        out.append((out[-1] if out else 0) + 1 if token < 10 else 0)
    return out


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(st.integers(0, 12), min_size=1, max_size=20), most=st.integers(0, 5), seed=st.integers(0, 99))
def test_abacus_counts_the_digits_of_each_number_from_one_offset(ids: list[int], most: int, seed: int) -> None:
    out = place(Abacus(first_digit=0, most=most, seed=seed), Positions.count(len(ids)), torch.tensor(ids))[0].tolist()
    plain = digits_by_hand(ids)
    offsets = {g - p for g, p in zip(out, plain, strict=True) if p}
    assert len(offsets) <= 1 and all(0 <= k <= most for k in offsets)
    assert all(g == 0 for g, p in zip(out, plain, strict=True) if not p)


def test_abacus_finds_digits_wherever_their_ids_begin_and_draws_once_for_a_row() -> None:
    ids = torch.tensor([[3, 21, 20, 3, 29, 3]]).expand(60, -1)
    actual = Abacus(first_digit=20, most=4)(Positions.count(6), ids).coords[..., 0]
    assert actual.shape == (60, 6) and (actual[:, [0, 3, 5]] == 0).all()
    assert (actual[:, 2] == actual[:, 1] + 1).all() and (actual[:, 4] == actual[:, 1]).all()
    assert set(actual[:, 1].tolist()) == {1, 2, 3, 4, 5}


def released_coupling(a: str, b: str, c: str, start: int) -> list[int]:
    """Return the released position coupling code's positions of a + b = c, c reversed."""
    end = start + max(len(a), len(b)) + 1
    operands = [*range(end - len(a), end + 1), *range(end - len(b), end + 1)]
    return operands + list(range(end - len(c), end))[::-1]


@settings(max_examples=25, deadline=None)
@given(a=st.integers(0, 99_999), b=st.integers(0, 99_999), most=st.integers(0, 9), seed=st.integers(0, 99))
def test_coupling_is_the_released_one_up_to_its_start(a: int, b: int, most: int, seed: int) -> None:
    text = f"{a}+{b}={str(a + b)[::-1]}"
    ids = torch.tensor(["0123456789+=".index(letter) for letter in text])
    rule = Coupled(first_digit=0, equals=11, width=6, most=most, seed=seed)
    actual = place(rule, Positions.count(len(ids)), ids)[0]
    expected = torch.tensor(released_coupling(str(a), str(b), str(a + b), 1))
    apart = actual - expected
    assert (apart == apart[0]).all() and int(actual.min()) >= 1 and int(actual.max()) <= 6 + 2 + most


def test_coupling_of_a_growing_result_does_not_move_what_is_written() -> None:
    rule = Coupled(first_digit=0, equals=11, width=5)
    ids = torch.tensor([7, 3, 10, 9, 11, 2, 8, 0])
    whole = place(rule, Positions.count(8), ids)
    for n in (5, 6, 7):
        assert torch.equal(place(rule, Positions.count(n), ids[:n]), whole[:, :n])
    with pytest.raises(ValueError, match="holds numbers of 2 digits, got one of 3; choose width=3"):
        Coupled(first_digit=0, equals=11, width=2)(Positions.count(8), ids)


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_positions_restart_behind_each_separator(ids: list[int]) -> None:
    actual = place(Restarted(separator=0), Positions.count(len(ids)), torch.tensor(ids))[0].tolist()
    expected, p = [], 0
    for token in ids:
        expected.append(p)
        p = 0 if token == 0 else p + 1
    assert actual == expected


def test_interpolation_is_rotary_with_linear_scaling() -> None:
    shape = Shape(8, 1, 8, 16)
    q = torch.randn(1, 1, 12, 8, dtype=torch.float64)
    at = Positions.count(12)
    out = build("rotary", shape).query(q, Interpolated(factor=4)(at))
    torch.testing.assert_close(out, build("rotary(schedule=linear(factor=4))", shape).query(q, at), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", PLAIN + READING, ids=str)
def test_padding_is_untouched_and_invisible(rule: CoordinateMap) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    at, ids = Positions.padded(mask), ids_for(7, 3)
    actual = place(rule, at, ids)
    assert torch.equal(actual[mask == 0], at.coords[..., 0][mask == 0].to(actual.dtype))
    # The tokens of row 0 have the same positions as without padding.
    assert torch.equal(actual[0, mask[0] == 1], place(rule, Positions.count(4), ids[:1, mask[0] == 1])[0])
    assert torch.equal(place(rule, at, ids + torch.where(mask == 0, 5, 0)), actual)


@pytest.mark.parametrize("rule", DETERMINISTIC, ids=str)
@settings(max_examples=12, deadline=None)
@given(lengths=lengths)
def test_packing_gives_every_document_what_it_has_alone(rule: CoordinateMap, lengths: list[int]) -> None:
    ids = ids_for(sum(lengths))
    actual = place(rule, Positions.packed(lengths), ids)
    alone = [place(rule, Positions.count(len(piece)), piece) for piece in ids[0].split(lengths)]
    assert torch.equal(actual, torch.cat(alone, 1))


@pytest.mark.parametrize("rule", RANDOM, ids=str)
def test_packed_documents_have_draws_of_their_own_and_the_first_that_of_a_row_alone(rule: CoordinateMap) -> None:
    at, ids = Positions.packed([9] * 8), ids_for(9).repeat(1, 8)
    actual = place(rule, at, ids).view(8, 9)
    assert torch.equal(actual[:1], place(rule, Positions.count(9), ids[:, :9]))
    assert len(actual.unique(dim=0)) > 2
    # The length of one document does not change the draw of the next.
    actual_2 = place(rule, Positions.packed([3, 9]), torch.cat((ids[:, :3], ids[:, :9]), 1))
    assert torch.equal(actual_2[0, 3:], actual[1])


@pytest.mark.parametrize("rule", RANDOM, ids=str)
def test_a_seed_decides_a_generator_goes_on_and_the_global_state_rests(rule: CoordinateMap) -> None:
    at, ids = Positions.padded(torch.ones(3, 12)), ids_for(12, 3)
    state = torch.get_rng_state()
    first = place(rule, at, ids)
    assert torch.equal(place(rule, at, ids), first)
    assert any(not torch.equal(place(replace(rule, seed=seed), at, ids), first) for seed in range(1, 4))
    stream = torch.Generator().manual_seed(1)
    draws = [rule(at, ids, generator=stream).coords for _ in range(4)]
    assert any(not torch.equal(draw, draws[0]) for draw in draws[1:])
    assert len(first.unique(dim=0)) > 1
    # A row does not depend on its neighbours' lengths.
    shorter = torch.ones(3, 12)
    shorter[0, :7] = 0
    assert torch.equal(place(rule, Positions.padded(shorter), ids)[1:], first[1:])
    assert torch.equal(torch.get_rng_state(), state)


def test_order_and_not_the_place_in_the_tensor_decides_who_comes_later() -> None:
    shuffle = torch.tensor([3, 0, 4, 1, 2])
    at = Positions.count(5)
    shuffled_at = Positions(at.coords[:, shuffle], at.order[:, shuffle])
    ids = ids_for(5)
    for rule in PLAIN + READING:
        assert torch.equal(place(rule, shuffled_at, ids[:, shuffle]), place(rule, at, ids)[:, shuffle])


def test_documents_that_a_batch_shares_hold_for_every_row_of_its_ids() -> None:
    at, ids = Positions.packed([3, 4]), ids_for(7, rows=2)
    mapped_at = Coupled(first_digit=0, equals=11, width=40)(at, ids)
    for row in range(2):
        alone = Coupled(first_digit=0, equals=11, width=40)(at, ids[row : row + 1])
        assert torch.equal(mapped_at.coords[row], alone.coords[0])


@pytest.mark.parametrize("rule", PLAIN + READING, ids=str)
def test_the_default_device_changes_no_draw(rule: CoordinateMap) -> None:
    at, ids = Positions.count(6), ids_for(6)
    expected = rule(at, ids).coords
    with torch.device("meta"):
        assert torch.equal(rule(at, ids).coords, expected)


def test_one_row_shared_by_a_batch_is_one_draw_unless_ids_have_more_rows() -> None:
    rule = Randomised(longest=50)
    assert rule(Positions.count(6)).coords.shape == (1, 6, 1)
    actual = rule(Positions.count(6), ids_for(6, 4)).coords[..., 0]
    assert actual.shape == (4, 6) and len(actual.unique(dim=0)) == 4


def test_every_map_is_found_by_its_name_and_prints_the_spec_that_makes_it() -> None:
    assert [m for m in COORDINATE_MAPS if m != m.lower() or not m.replace("_", "").isalpha()] == []
    for rule in PLAIN + READING:
        name, _, arguments = str(rule).partition("(")
        options = eval(f"dict({arguments}", {"__builtins__": {"dict": dict}})
        assert COORDINATE_MAPS[name](**options) == rule and hash(rule) == hash(COORDINATE_MAPS[name](**options))
    assert repr(Randomised(longest=2048)) == "randomised(longest=2048)"
    for cls in COORDINATE_MAPS.values():
        assert all(words in (cls.__doc__ or "") for words in ("Source:", "At evaluation:"))
        assert all(field.type in (int, float, bool) for field in fields(cls))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Randomised(longest=0), "randomised: longest must be a whole number of 1 or more, got 0"),
        (lambda: Randomised(longest=math.nan), "randomised: longest must be a whole number of 1 or more, got nan"),
        (lambda: Randomised(longest=9, seed=-1), "randomised: seed must be a whole number of 0 or more, got -1"),
        (lambda: RandomisedContinuous(longest=0), "longest must be a finite number above 0, got 0"),
        (
            lambda: RandomisedContinuous(longest=1, trained_length=0),
            "trained_length must be a whole number of 1 or more, got 0",
        ),
        (lambda: Shifted(by=math.inf), "shifted: by must be a finite number, got inf"),
        (lambda: ShiftedAtRandom(most=-1), "shifted_at_random: most must be a whole number of 0 or more, got -1"),
        (lambda: Augmented(shift=-1.0), "shift must be a finite number of 0 or more, got -1.0"),
        (lambda: Augmented(shift=1.0, jitter=math.nan), "jitter must be a finite number of 0 or more, got nan"),
        (lambda: Augmented(shift=1.0, scale=0.5), "scale must be a finite number of 1 or more, got 0.5"),
        (lambda: SkippedChunks(longest=9, chunks=0), "chunks must be a whole number of 1 or more, got 0"),
        (lambda: Abacus(first_digit=0, digits=0), "digits must be a whole number of 1 or more, got 0"),
        (lambda: Abacus(first_digit=0, most=-1), "abacus: most must be a whole number of 0 or more, got -1"),
        (lambda: Coupled(first_digit=0, equals=11, width=0), "width must be a whole number of 1 or more, got 0"),
        (lambda: Coupled(first_digit=0, equals=5, width=3), "equals must be no digit, got the id 5 of one"),
        (lambda: Restarted(separator=True), "separator must be a whole number of 0 or more, got True"),
        (lambda: Interpolated(factor=0), "interpolated: factor must be a finite number above 0, got 0"),
    ],
)
def test_impossible_numbers_are_refused_and_named(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_does_not_fit_is_refused() -> None:
    at = Positions.count(5)
    for rule in (Randomised(longest=4), SkippedChunks(longest=4)):
        with pytest.raises(ValueError, match="has 4 positions, too few for a document of 5 tokens; choose longest=5"):
            rule(at)
    for rule in READING:
        with pytest.raises(ValueError, match=r"reads token ids; give ids of shape \[B, T\]"):
            rule(at)
    with pytest.raises(ValueError, match=r"ids must have shape \[1, 5\] to go with the positions, got \[1, 4\]"):
        Restarted(separator=1)(at, ids_for(4))
    with pytest.raises(ValueError, match=r"ids must have shape \[3, 5\] .* got \[2, 5\]"):
        Restarted(separator=1)(Positions.padded(torch.ones(3, 5)), ids_for(5, 2))
    with pytest.raises(ValueError, match="counts along one axis, got positions with 2 axes"):
        Randomised(longest=40)(Positions.grid(2, 3))


NINE = (
    "sinusoidal",
    "sinusoidal(layout=concatenated)",
    "learned(overrun=clamp)",
    "learned_factorised(overrun=clamp)",
    "fourier_features",
    "continuous_time",
    "rotary",
    "alibi",
    "t5_bias",
)


@pytest.mark.parametrize("spec", NINE)
def test_every_encoding_takes_mapped_positions(spec: str) -> None:
    """A mapped batch gives the same result as its coordinates, with or without padding."""
    from posenc import testing

    mask = torch.ones(2, 9)
    mask[0, :3] = 0
    at, ids = Positions.padded(mask), ids_for(9, 2)
    net, x = testing.Subject(spec).net(), torch.randn(2, 9, testing.SHAPE.dim, dtype=torch.float64)
    doors = set()
    for rule in PLAIN + READING:
        mapped_at = rule(at, ids)
        lowest = mapped_at.coords.amin()
        if lowest < 0 and spec.startswith("learned"):
            continue
        actual = net(x, mapped_at)
        alone = net(x[:1, 3:], Positions(mapped_at.coords[:1, 3:], at.order[:1, 3:]))
        torch.testing.assert_close(actual[:1, 3:], alone, rtol=0, atol=1e-9)
        doors.add(round(actual[1].sum().item(), 6))
    assert len(doors) > 3


def test_the_documents_of_a_neighbour_change_no_draw() -> None:
    def second_row(first_row: list[int]) -> torch.Tensor:
        order = torch.arange(6).repeat(2, 1)
        at = Positions(order[..., None], order, torch.tensor([first_row, [0] * 6]))
        return Randomised(longest=500)(at).coords[1]

    assert second_row([0] * 6).equal(second_row([0, 0, 1, 1, 2, 2]))
