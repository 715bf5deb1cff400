"""Positions: each token's coordinates, order and document."""

import copy
import pickle

import pytest
import torch

from posenc import Positions
from posenc.cache.cached_positions import last_positions
from posenc.tokens.positions import distance, positions_for
from posenc.tokens.shared_tables import all_versions, check_versions, once


def test_count_starts_where_it_is_told() -> None:
    at = Positions.count(4, start=7)
    assert at.coords.tolist() == [[[7], [8], [9], [10]]]
    assert at.order.tolist() == [[7, 8, 9, 10]]
    assert (at.contiguous, at.unit_step, at.extent, at.tokens, at.axes) == (True, True, 11, 4, 1)


@pytest.mark.parametrize(
    ("tokens", "start", "words"), [(0, 0, "at least one token, got 0"), (3, -1, "0 or later, got start=-1")]
)
def test_count_refuses_what_does_not_exist(tokens: int, start: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Positions.count(tokens, start)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3)])
def test_ids_of_every_shape_keep_their_values_and_are_seen_in_tensor_order(shape: tuple[int, ...]) -> None:
    ids = torch.randint(0, 90, shape)
    at = Positions.of(ids)
    expected = ids[None, :, None] if ids.dim() == 1 else ids[..., None] if ids.dim() == 2 else ids
    assert torch.equal(at.coords, expected)
    assert at.order.tolist() == [[0, 1, 2, 3, 4]]
    assert not at.contiguous and not at.unit_step and at.extent is None


def test_ids_may_come_in_any_order_and_with_an_order_of_their_own() -> None:
    order = torch.tensor([[2, 0, 1]])
    at = Positions.of(torch.tensor([4.5, -1.0, 2.0]), order=order)
    assert at.coords.flatten().tolist() == [4.5, -1.0, 2.0]
    assert torch.equal(at.order, order)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor(3), r"shape \[T\], \[B, T\] or \[B, T, A\], got \[\]"),
        (torch.zeros(1, 2, 3, 4), r"got \[1, 2, 3, 4\]"),
        (torch.zeros(2, 0), r"at least one token, got positions of shape \[2, 0\]"),
        (torch.tensor([0, -4, 2]), r"must not be negative, got -4; say which tokens are padding with Positions.padded"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.zeros(3, dtype=torch.bfloat16), r"torch.bfloat16 cannot count far"),
        (torch.zeros(3, dtype=torch.float16), r"torch.float16 cannot count far"),
    ],
)
def test_ids_that_cannot_be_positions_are_refused(ids: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Positions.of(ids)


def test_padding_may_stand_on_either_side_or_inside() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
    at = Positions.padded(mask)
    order = [[-1, -1, 0, 1, 2], [0, 1, 2, -1, -1], [0, -1, 1, -1, 2], [-1] * 5]
    assert at.order.tolist() == order
    assert at.coords[..., 0].tolist() == [[max(n, 0) for n in row] for row in order]
    assert at.unit_step and not at.contiguous and at.extent == 5
    assert torch.equal(Positions.padded(mask.bool()).order, at.order)


@pytest.mark.parametrize("shape", [(4,), (2, 0), (1, 2, 3)])
def test_a_padding_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a padding mask has shape \[B, T\] with at least one token"):
        Positions.padded(torch.ones(shape))


def test_packed_documents_restart_and_are_told_apart() -> None:
    at = Positions.packed([3, 1, 2])
    assert at.coords[0, :, 0].tolist() == [0, 1, 2, 0, 0, 1]
    assert at.order.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert at.document is not None and at.document.tolist() == [[0, 0, 0, 1, 2, 2]]
    assert not at.contiguous and at.extent == 3


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_packed_documents_need_tokens(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="packed documents need at least one token each"):
        Positions.packed(lengths)


def test_a_grid_has_an_axis_for_each_size_and_runs_fastest_along_the_last() -> None:
    at = Positions.grid(2, 3)
    assert at.coords[0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert (at.axes, at.tokens, at.extent, at.unit_step) == (2, 6, 3, False)
    assert Positions.grid(3).unit_step


@pytest.mark.parametrize("sizes", [(), (2, 0)])
def test_a_grid_needs_cells(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one cell on each axis"):
        Positions.grid(*sizes)


def test_what_reads_one_axis_says_who_it_is_when_there_are_more() -> None:
    with pytest.raises(ValueError, match=r"rotary reads one axis, got positions with 2 axes; choose one with coords"):
        Positions.grid(2, 2).axis("rotary")


@pytest.mark.parametrize(
    ("coords", "order", "document", "words"),
    [
        ((2, 3), (1, 3), None, r"coords must have shape \[batch or 1, tokens, axes\], got \[2, 3\]"),
        (
            (1, 3, 1),
            (1, 4),
            None,
            r"order must have shape \[batch or 1, 3\] to go with coords of shape \[1, 3, 1\], got \[1, 4\]",
        ),
        ((1, 3, 1), (3,), None, r"order must have shape"),
        ((1, 3, 1), (1, 3), (1, 2), r"document must name 3 tokens, got shape \[1, 2\]"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(coords, order, document, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Positions(torch.zeros(coords), torch.zeros(order), None if document is None else torch.zeros(document))


def test_each_row_goes_on_after_its_own_last_token() -> None:
    following = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 0]])).next(2)
    assert following.order.tolist() == [[2, 3], [3, 4], [1, 2], [0, 1]]
    assert following.coords[..., 0].tolist() == following.order.tolist()


def test_what_follows_a_count_is_still_a_count() -> None:
    following = Positions.count(3, start=4).next(2)
    assert following.order.tolist() == [[7, 8]] and following.coords[..., 0].tolist() == [[7, 8]]
    assert following.contiguous and following.unit_step and following.extent == 9


def test_a_packed_row_goes_on_with_its_last_document() -> None:
    following = Positions.packed([2, 3]).next(2)
    assert following.coords[..., 0].tolist() == [[3, 4]]
    assert following.order.tolist() == [[5, 6]]
    assert following.document is not None and following.document.tolist() == [[1, 1]]


@pytest.mark.parametrize("at", [Positions.of(torch.tensor([3, 1, 2])), Positions.grid(2, 2)])
def test_positions_that_do_not_count_by_one_know_no_next(at: Positions) -> None:
    with pytest.raises(ValueError, match=r"only positions that count up by one know what comes next.*Positions.of"):
        at.next()


def test_ids_behind_what_is_held_are_ordered_after_it() -> None:
    cached_at = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    at = Positions.of(torch.tensor([8.5, 3.0])).appended_to(cached_at)
    assert at.order.tolist() == [[2, 3], [3, 4]]
    assert at.coords.flatten().tolist() == [8.5, 3.0]
    packed = Positions.of(torch.tensor([9])).appended_to(Positions.packed([1, 2]))
    assert packed.document is not None and packed.document.tolist() == [[1]]


def test_a_slice_of_rows_keeps_everything_about_its_tokens() -> None:
    part = Positions.packed([2, 3]).rows(slice(1, 4))
    assert part.coords[0, :, 0].tolist() == [1, 0, 1] and part.order.tolist() == [[1, 2, 3]]
    assert part.document is not None and part.document.tolist() == [[0, 1, 1]]
    assert not part.contiguous and part.extent == 3
    rows = Positions.count(5).rows(torch.tensor([3, 1]))
    assert rows.order.tolist() == [[3, 1]] and not rows.contiguous


def test_all_rows_are_the_same_tokens() -> None:
    at = Positions.count(4, 2)
    assert at.rows(slice(None)) is at and at.rows(slice(0, 9)) is at and at.rows(slice(-4, None)) is at
    for index in (slice(1, None), slice(None, -1), slice(None, None, 2), torch.arange(4)):
        assert at.rows(index) is not at
    # A chunk keeps its order.
    loose = Positions.grid(4)
    assert loose.loose and not loose.rows(slice(None)).loose


def test_other_coordinates_leave_order_and_document_alone_and_drop_what_no_longer_holds() -> None:
    at = Positions.packed([2, 1])
    halves = at.with_coords(at.coords[..., 0] * 0.5)
    assert halves.coords[..., 0].tolist() == [[0.0, 0.5, 0.0]]
    assert halves.order is at.order and halves.document is at.document
    assert halves.extent is None and not halves.unit_step


def test_a_horizon_is_declared_for_all_sequences_or_for_each() -> None:
    at = Positions.count(3)
    assert at.horizon is None
    single, per_row = at.with_horizon(9).horizon, at.with_horizon(torch.tensor([4, 5])).horizon
    assert single is not None and single.tolist() == [9]
    assert per_row is not None and per_row.tolist() == [4, 5]
    horizon = Positions.of(torch.arange(3), horizon=6).horizon
    assert horizon is not None and horizon.tolist() == [6]


def test_positions_move_to_a_device_with_all_their_fields() -> None:
    at = Positions.packed([2, 3]).with_horizon(7).to("meta")
    assert all(field is not None and field.is_meta for field in (at.coords, at.order, at.document, at.horizon))


def test_a_table_is_made_once_for_each_key_and_mode() -> None:
    builds: list[str] = []

    def make(name: str):
        return lambda: (builds.append(name), torch.tensor(len(builds)))[1]

    at = Positions.count(3)
    first = once(at, "a", make("a"))
    assert once(at, "a", make("a")) is first
    once(at, "b", make("b"))
    with torch.inference_mode():
        # A tensor made here could not be saved for backward later.
        once(at, "a", make("inference"))
    assert builds == ["a", "b", "inference"]


@pytest.mark.parametrize(
    "change",
    [
        lambda at: at.with_facts(extent=9),
        lambda at: at.batch_rows(torch.tensor([0])).with_facts(),
        lambda at: at.with_horizon(3),
        lambda at: at.with_coords(at.coords),
        lambda at: at.rows(slice(0, 2)),
        lambda at: at.next(),
        lambda at: at.to("cpu"),
        copy.copy,
        copy.deepcopy,
        lambda at: pickle.loads(pickle.dumps(at)),
    ],
)
def test_no_table_survives_a_change(change) -> None:
    at = Positions.count(3)
    once(at, "a", lambda: torch.zeros(1))
    assert once(change(at), "a", lambda: torch.ones(1)).item() == 1


@pytest.mark.parametrize("at", [Positions.count(3), positions_for(3, None).with_coords(torch.zeros(1, 3))])
def test_no_table_survives_a_change_in_place(at: Positions) -> None:
    once(at, "a", lambda: torch.zeros(1))
    at.coords.add_(1)
    assert once(at, "a", lambda: torch.ones(1)).item() == 1


def test_a_caller_may_give_positions_ids_an_offset_or_nothing() -> None:
    at = Positions.count(3)
    assert positions_for(3, at) is at
    assert positions_for(3, None).coords.flatten().tolist() == [0, 1, 2]
    assert positions_for(3, None, offset=5).coords.flatten().tolist() == [5, 6, 7]
    assert positions_for(2, torch.tensor([9, 4])).coords.flatten().tolist() == [9, 4]
    assert positions_for(3, at, device=torch.device("meta")).order.is_meta


def test_positions_and_an_offset_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match=r"give positions or offset=2, not both"):
        positions_for(3, torch.arange(3), offset=2)


def test_positions_of_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="got positions of 4 tokens for 3 tokens; give one position for each token"):
        positions_for(3, torch.arange(4))


def test_a_distance_is_positive_for_keys_in_the_past() -> None:
    delta = distance(Positions.of(torch.tensor([5, 2])), Positions.of(torch.tensor([[0, 3, 9], [1, 1, 1]])), "a test")
    assert delta.tolist() == [[[5, 2, -4], [2, -1, -7]], [[4, 4, 4], [1, 1, 1]]]


def test_counted_positions_make_their_tensors_when_they_are_read() -> None:
    at, expected = positions_for(3, None, offset=5), Positions.count(3, 5)
    assert not {"coords", "order"} & set(vars(at))
    versions = all_versions(at)
    assert not {"coords", "order"} & set(vars(at))
    assert (at.tokens, at.start, at.axes, at.extent) == (3, 5, 1, 8)
    for positions in (at, copy.deepcopy(at), pickle.loads(pickle.dumps(at)), at.to("cpu"), at.with_horizon(9)):
        assert torch.equal(positions.coords, expected.coords) and torch.equal(positions.order, expected.order)
        assert (positions.tokens, positions.start) == (3, 5)
    assert at.rows(slice(1, 3)).coords.flatten().tolist() == [6, 7]
    assert at.next().coords.flatten().tolist() == [8]
    check_versions(versions, at)
    at.coords.add_(1)
    with pytest.raises(RuntimeError, match="changed in place after the forward pass; give each call its own"):
        check_versions(versions, at)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = at.nothing_like_it
    with pytest.raises(ValueError, match="at least one token, got 0"):
        positions_for(0, None)
    with pytest.raises(ValueError, match="0 or later, got start=-2"):
        positions_for(1, None, offset=-2)


def test_counted_positions_made_outside_a_compiled_graph_are_read_in_it() -> None:
    read = torch.compile(lambda at: at.coords[..., 0] + at.order, backend="eager", fullgraph=True)
    assert read(positions_for(3, None, offset=5)).tolist() == [[10, 12, 14]]


def test_rows_that_share_one_order_go_on_each_from_its_own_coords_and_document() -> None:
    coords = torch.tensor([[0, 1], [5, 6]])[..., None]
    document = torch.tensor([[0, 0], [3, 3]])
    at = Positions(coords, torch.arange(2)[None], document, unit_step=True)
    next_at = at.next(2)
    assert next_at.coords[..., 0].tolist() == [[2, 3], [7, 8]]
    assert next_at.document.tolist() == [[0, 0], [3, 3]] and next_at.order.tolist() == [[2, 3]]
    later = Positions.of(torch.arange(3)).appended_to(at)
    assert later.document.tolist() == [[0] * 3, [3] * 3] and later.order.tolist() == [[2, 3, 4]]
    last = last_positions(at)
    assert last.coords[..., 0].tolist() == [[1], [6]] and last.document.tolist() == [[0], [3]]
