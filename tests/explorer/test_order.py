"""The order view: moving words changes the outputs as `output_changes` computes."""

import re
from itertools import permutations

import pytest
import torch

from posenc.lab.evaluation.order import BLIND, output_changes

ORDERS = list(permutations(range(4)))


def sentence(page):
    return page.locator("#order .sentence").inner_text()


def word(page, name):
    return page.locator("#order").get_by_role("button", name=re.compile(f"^{name}, place"))


def test_a_layer_without_position_moves_its_outputs_with_the_words():
    """By hand: a softmax reads a set; under a causal mask, the set of the prefix."""
    for layers in (1, 2):
        assert torch.tensor(output_changes("none", tokens=4, layers=layers, is_causal=False)).max() == 0
    one_layer, two_layers = (torch.tensor(output_changes("none", tokens=4, layers=n, is_causal=True)) for n in (1, 2))
    for place, order in enumerate(ORDERS):
        for token in range(4):
            prefix = set(order[: order.index(token)])
            same_set = prefix == set(range(token))
            assert (one_layer[place, token] == 0) == same_set
            same_prefix = order[: order.index(token)] == tuple(range(token))
            assert (two_layers[place, token] == 0) == same_prefix


@pytest.mark.parametrize("spec", ["rotary", "learned", "alibi"])
def test_every_order_is_noticed_but_the_mirrored_one_by_what_reads_distances_without_their_sign(spec):
    changes = torch.tensor(output_changes(spec, tokens=4, layers=1, is_causal=False)).max(1).values
    blind_orders = {ORDERS[place] for place in (changes < BLIND).nonzero().flatten().tolist()}
    assert blind_orders == {(0, 1, 2, 3)} | ({(3, 2, 1, 0)} if spec == "alibi" else set())


def test_keys_move_a_word(visit):
    page = visit("rotary", address="#order")
    assert sentence(page).startswith("“man bites old dog”") and "man changed by" not in sentence(page)
    page.get_by_role("button", name="as it was").click()
    assert "Nothing has moved yet" in sentence(page)
    word(page, "man").focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    start = "“man dog bites old”, bidirectional, 1 layer. no position: every output is exactly"
    assert sentence(page).startswith(start)
    page.locator("#order").get_by_label("attention").select_option("causal")
    expected = output_changes("none", tokens=4, layers=1, is_causal=True)[ORDERS.index((3, 0, 1, 2))]
    assert "no position: " + ", ".join(
        f"{name} changed by {100 * expected[n]:.2g} %" for n, name in ((3, "man"), (0, "dog"), (1, "bites"), (2, "old"))
    ) in sentence(page)
    from playwright.sync_api import expect

    expect(page).to_have_url(re.compile(r"order\.order=3012"))


def test_two_causal_layers_notice_what_one_does_not(visit):
    page = visit("rotary", address="#order?order.order=1023&order.attention=causal")
    assert "old exactly as before, man exactly as before" in sentence(page)
    page.locator("#order").get_by_label("layers").select_option(label="two")
    assert "exactly" not in sentence(page)


@pytest.mark.slow
def test_the_mouse_drags_a_word_and_a_row_is_pointed_at(visit):
    page = visit("rotary", "alibi", address="#order?order.order=0123")
    begin, end = word(page, "dog").bounding_box(), word(page, "old").bounding_box()
    page.mouse.move(begin["x"] + 20, begin["y"] + 20)
    page.mouse.down()
    page.mouse.move(end["x"] + 20, end["y"] + 20, steps=5)
    page.mouse.up()
    assert sentence(page).startswith("“bites old dog man”")
    page.locator("#order svg").get_by_text("alibi").hover()
    expected = output_changes("alibi", tokens=4, layers=1, is_causal=False)[ORDERS.index((1, 2, 0, 3))]
    assert f"alibi: bites changed by {100 * expected[1]:.2g} %" in sentence(page)


@pytest.mark.slow
def test_an_order_of_the_address_that_is_none_is_left(visit):
    assert sentence(visit("rotary", address="#order?order.order=0012")).startswith("“man bites old dog”")


@pytest.mark.slow
def test_an_encoding_of_grids_is_named_and_not_tested(visit):
    page = visit("learned_grid", address="#order")
    assert "do not read sequences: learned_grid." in page.locator("#order .note").inner_text()
