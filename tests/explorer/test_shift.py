"""The shift view's matrix agrees with posenc's `shift_matrix`."""

import random
import re

import pytest

from posenc import Sinusoidal
from posenc.lab.description.shift import shift_matrix

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow


def sentence(page):
    return page.locator("#shift .sentence").inner_text().replace("\N{MINUS SIGN}", "-")


def picture(page):
    return page.get_by_label(re.compile("The matrix M of a shift")).locator("image").first.get_attribute("href")


def test_the_matrix_is_that_of_posenc(visit):
    page, chance = visit("sinusoidal"), random.Random(3)
    for _ in range(6):
        k, dim, base = chance.randint(-64, 64), 2 * chance.randint(1, 32), 10 ** chance.uniform(0.5, 6)
        actual = page.evaluate("([k, d, b]) => posenc.formulas.shift(k, d, b)", [k, dim, base])
        expected = shift_matrix(Sinusoidal(dim, base=base), k).tolist()
        assert [x for row in actual for x in row] == pytest.approx([x for row in expected for x in row], abs=1e-6)


def test_it_moves_the_vector_of_any_position_up_to_rounding(visit):
    page = visit("sinusoidal", address="#shift?position=7&shift.k=-9")
    match = re.match(r"\|PE\(-2\) - M PE\(7\)\| is at most (\S+); .* 1,000 positions at most (\S+)\.", sentence(page))
    assert match, sentence(page)
    here, anywhere = map(float, match.groups())
    assert here < 1e-14
    assert 0 < anywhere < 1e-12


def test_the_position_moves_and_the_matrix_stays(visit):
    page = visit("sinusoidal", address="#shift?position=7")
    start = picture(page)
    page.locator("#shift").get_by_role("slider", name="position p").press("ArrowRight")
    assert "PE(8)" in sentence(page)
    assert picture(page) == start
    page.locator("#shift").get_by_role("slider", name="k", exact=True).press("ArrowRight")
    assert "|PE(12) - M PE(8)|" in sentence(page)
    assert picture(page) != start


def test_pointing_at_a_block_chooses_its_pair_everywhere(visit):
    page = visit("sinusoidal", address="#shift?pair=0&shift.base=10000&shift.k=10", all_views=True)
    page.get_by_label("The matrix M of a shift by 10 positions").press("ArrowDown")
    assert "Pair 1 turns by kθ = 3.162 radians" in sentence(page)
    page.wait_for_selector("#clock .sentence")
    assert "pair 1 has made" in page.locator("#clock .sentence").inner_text()
