"""Masks: which keys each query may attend to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Positions, masks
from posenc.tokens.masks import Mask, check_mask, mask_for, with_tensor


def rows(mask: Mask, at: Positions, keys_at: Positions | None = None) -> list[str]:
    """Return the mask of the batch's first row, a string for each query: x where a key is visible."""
    visible = mask.allowed(at, at if keys_at is None else keys_at)
    return ["".join("x" if is_visible else "." for is_visible in row) for row in visible[0, 0].tolist()]


def test_causal_sees_itself_and_the_past() -> None:
    assert rows(masks.causal(), Positions.count(3)) == ["x..", "xx.", "xxx"]


def test_bidirectional_sees_all() -> None:
    assert rows(masks.bidirectional(), Positions.count(2), Positions.count(3)) == ["xxx", "xxx"]


def test_a_window_of_n_holds_n_tokens_the_query_included() -> None:
    assert rows(masks.window(2), Positions.count(4)) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows(masks.window(2, causal=False), Positions.count(4)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(masks.window(1), Positions.count(3)) == ["x..", ".x.", "..x"]


def test_a_mask_within_a_window_keeps_the_narrower_of_both() -> None:
    at = Positions.count(4)
    assert rows(masks.causal().with_window(2), at) == rows(masks.window(2), at)
    assert (
        rows(masks.window(3).with_window(2), at)
        == rows(masks.window(2).with_window(3), at)
        == rows(masks.window(2), at)
    )


def test_a_prefix_sees_itself_in_both_directions_and_nothing_later() -> None:
    assert rows(masks.prefix(2), Positions.count(4)) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert rows(masks.prefix(0), Positions.count(3)) == rows(masks.causal(), Positions.count(3))


def test_documents_do_not_see_each_other() -> None:
    assert rows(masks.causal(), Positions.packed([2, 1, 2])) == ["x....", "xx...", "..x..", "...x.", "...xx"]
    assert rows(masks.bidirectional(), Positions.packed([2, 1])) == ["xx.", "xx.", "..x"]


def test_padding_sees_nothing_and_is_never_seen() -> None:
    at = Positions.padded(torch.tensor([[0, 1, 0, 1]]))
    assert rows(masks.bidirectional(), at) == ["....", ".x.x", "....", ".x.x"]
    assert rows(masks.causal(), at) == ["....", ".x..", "....", ".x.x"]


def test_masks_compare_order_and_not_where_a_token_lies() -> None:
    at = Positions.of(torch.arange(3), order=torch.tensor([[2, 0, 1]]))
    assert rows(masks.causal(), at) == ["xxx", ".x.", ".xx"]
    assert rows(masks.causal(), Positions.count(1, start=2), Positions.count(4)) == ["xxx."]


def test_coordinates_do_not_decide_who_sees_whom() -> None:
    at = Positions.of(torch.tensor([9.0, 1.0, 5.0]))
    assert rows(masks.window(2), at) == rows(masks.window(2), Positions.count(3))


def test_each_row_of_a_batch_has_its_own_mask() -> None:
    at = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 0]]))
    visible = masks.causal().allowed(at, at)
    assert visible.shape == (2, 1, 3, 3)
    assert visible[1, 0].tolist() == [[True, False, False], [True, True, False], [False, False, False]]


@given(
    tokens=st.integers(1, 9),
    start=st.integers(0, 5),
    causal=st.booleans(),
    prefix=st.integers(0, 6),
    window=st.none() | st.integers(1, 9),
    present=st.lists(st.booleans(), min_size=14, max_size=14),
)
def test_every_rule_says_what_it_says_in_words(tokens, start, causal, prefix, window, present) -> None:
    keys_at = Positions.padded(torch.tensor([present[: tokens + start]]))
    at = keys_at.rows(slice(start, None))
    visible = Mask(causal=causal, window=window, prefix=prefix).allowed(at, keys_at)
    orders = keys_at.order[0].tolist()

    def sees(i: int, j: int) -> bool:
        if i < 0 or j < 0:
            return False
        ahead = causal and j > i and not (i < prefix and j < prefix)
        far = window is not None and abs(i - j) >= window
        return not ahead and not far

    assert visible[0, 0].tolist() == [[sees(i, j) for j in orders] for i in orders[start:]]


def test_a_boolean_tensor_adds_to_the_rule() -> None:
    given_mask = torch.tensor([[True, True, True], [False, True, True], [True, False, True]])
    assert rows(with_tensor(masks.causal(), given_mask), Positions.count(3)) == ["x..", ".x.", "x.x"]


def test_a_floating_tensor_is_added_and_forbids_where_it_is_minus_infinity() -> None:
    bias = torch.tensor([[0.0, 1.5], [-torch.inf, 2.0]])
    mask = mask_for(bias)
    at = Positions.count(2)
    assert rows(mask, at) == ["xx", ".x"]
    rule, rest = mask.split()
    assert rows(rule, at) == ["xx", ".x"] and rule.tensor is not None and rule.tensor.dtype == torch.bool
    assert rest is not None and rest.tolist() == [[0.0, 1.5], [0.0, 2.0]]
    boolean = mask_for(bias == 0)
    assert boolean.split() == (boolean, None)


def test_a_given_mask_may_differ_by_batch_and_head() -> None:
    given_mask = torch.rand(2, 3, 4, 5) > 0.5
    visible = mask_for(given_mask).allowed(Positions.count(4), Positions.count(5))
    assert torch.equal(visible, given_mask)


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4, 1), (5,), (), (2, 1, 4, 5), (2, 3, 1, 1)])
def test_masks_that_broadcast_are_taken(shape: tuple[int, ...]) -> None:
    check_mask(torch.ones(shape, dtype=torch.bool), 4, 5)


@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 3, 4, 4), (1, 1, 1, 4, 5)])
def test_masks_of_other_tokens_are_refused(shape: tuple[int, ...]) -> None:
    at, keys_at = Positions.count(4), Positions.count(5)
    for tensor in (torch.ones(shape, dtype=torch.bool), torch.zeros(shape)):
        with pytest.raises(ValueError, match=r"a mask broadcasts to \[batch, heads, 4, 5\], got shape"):
            mask_for(tensor).allowed(at, keys_at)


def test_a_mask_of_whole_numbers_is_refused_because_its_meaning_is_unclear() -> None:
    with pytest.raises(
        ValueError, match=r"boolean \(true = may see\) or floating \(added to the logits\), got torch.int64"
    ):
        check_mask(torch.ones(2, 2, dtype=torch.long), 2, 2)


def test_impossible_windows_and_prefixes_are_refused() -> None:
    with pytest.raises(ValueError, match="a window holds at least 1 token, got window=0"):
        masks.window(0)
    with pytest.raises(ValueError, match="a prefix holds 0 tokens or more, got prefix=-1"):
        masks.prefix(-1)


def test_a_rule_is_true_or_false_and_what_is_no_mask_is_refused() -> None:
    assert Mask(causal=True).causal and not Mask(causal=False).causal
    for wrong in (1, "yes", None):
        with pytest.raises(ValueError, match="causal must be True or False, got"):
            Mask(causal=wrong)
    for wrong in ("casual", 3, ["causal"]):
        with pytest.raises(
            ValueError, match=r"a mask is a Mask such as .* or one of the words causal, bidirectional; "
        ):
            mask_for(wrong)


def test_numbers_that_are_not_all_zeros_and_ones_are_added() -> None:
    bias = torch.tensor([[0.0, 0.5], [1.0, 0.0]])
    assert mask_for(bias).tensor is bias
    with pytest.raises(ValueError, match=r"got one of zeros and ones; if 1 means .* give mask\.bool\(\)"):
        mask_for(bias.round())


def test_a_mask_on_another_device_is_refused_by_its_name() -> None:
    at, elsewhere = Positions.of(torch.arange(2)), torch.ones(2, 2, dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match="all have to be on one device, got mask on 'meta', positions on 'cpu'"):
        mask_for(elsewhere).checked_tensor(at, at)


def test_a_rule_takes_one_given_tensor() -> None:
    tensor = torch.ones(2, 2, dtype=torch.bool)
    assert with_tensor(masks.causal(), None) == masks.causal() or with_tensor(masks.causal(), None).causal
    with pytest.raises(ValueError, match="already carries a tensor; combine the two tensors first"):
        with_tensor(with_tensor(masks.causal(), tensor), tensor)


def test_nothing_given_means_that_all_see_all() -> None:
    rule = masks.causal()
    assert mask_for(rule) is rule
    assert not mask_for(None).causal and mask_for(None).tensor is None


ALL_POSITIONS = [
    Positions.count(4),
    Positions.count(1, start=3),
    Positions.count(1),
    Positions.padded(torch.tensor([[0, 1, 1, 1]])),
    Positions.packed([2, 2]),
    Positions.of(torch.arange(4)),
    Positions.count(3).next(1),
    Positions.grid(2, 2),
    Positions.count(4).rows(slice(2, None)),
    Positions.count(6, start=1),
    Positions.packed([4]).with_facts(contiguous=True, unit_step=True),
]


@pytest.mark.parametrize("at", ALL_POSITIONS)
@pytest.mark.parametrize("keys_at", ALL_POSITIONS)
@pytest.mark.parametrize("mask", [masks.causal(), masks.bidirectional(), masks.window(2), masks.prefix(2)])
def test_what_is_known_without_looking_is_true(mask: Mask, at: Positions, keys_at: Positions) -> None:
    visible = mask.allowed(at, keys_at)
    if mask.sees_everything(at, keys_at):
        assert visible.all()
    if mask.is_plain_causal(at, keys_at):
        assert torch.equal(visible[0, 0], torch.ones(at.tokens, keys_at.tokens, dtype=torch.bool).tril())
    count = mask.keys_before(at, keys_at)
    if count is not None:
        assert visible[0, 0].sum(-1).tolist() == [min(keys_at.tokens, i + count + 1) for i in range(at.tokens)]
        assert torch.equal(visible[0, 0], torch.ones(at.tokens, keys_at.tokens, dtype=torch.bool).tril(count))


def test_how_many_keys_come_before_the_last_tokens_is_known() -> None:
    all_tokens, last = Positions.count(6, start=1), Positions.count(6, start=1).rows(slice(4, None))
    assert masks.causal().keys_before(last, all_tokens) == 4
    assert masks.causal().keys_before(all_tokens, all_tokens) == 0
    # The first query sees no key; the start of padded tokens is unknown; another document is masked.
    assert masks.causal().keys_before(all_tokens, last) is None
    assert masks.causal().keys_before(last, Positions.padded(torch.ones(1, 6))) is None
    packed = Positions.packed([6]).with_facts(contiguous=True, unit_step=True)
    assert masks.causal().keys_before(packed, packed) is None
    for rule in (
        masks.bidirectional(),
        masks.window(2),
        masks.prefix(1),
        with_tensor("causal", torch.ones(6, dtype=torch.bool)),
    ):
        assert rule.keys_before(last, all_tokens) is None


def test_a_token_decoded_behind_a_whole_cache_is_known_to_see_everything() -> None:
    assert masks.causal().sees_everything(Positions.count(1, start=3), Positions.count(4))
    assert not masks.causal().sees_everything(Positions.count(1, start=2), Positions.count(4))
