"""The sines view agrees with posenc's Sinusoidal."""

import re

import pytest
import torch

from posenc import Sinusoidal
from posenc.tokens.positions import Positions


@pytest.mark.parametrize(
    ("dim", "base", "position"),
    [(6, 37.5, 1_000), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((32, 10_000.0, 12), (128, 2.0, 77)))],
)
def test_sinusoidal(visit, dim, base, position):
    page = visit("sinusoidal")
    actual = page.evaluate("([p, d, b]) => posenc.formulas.sinusoidal(p, d, b)", [position, dim, base])
    expected = (
        Sinusoidal(dim, base=base)
        .double()
        .embed(torch.zeros(1, 1, dim).double(), Positions.of(torch.tensor([position])))
    )
    assert actual == pytest.approx(expected[0, 0].tolist(), abs=1e-6)


def test_arrow_keys_move_the_cursor_of_all_drawings(visit):
    page = visit("sinusoidal", address="#sines")
    plot = page.get_by_label("Sines of 4 pairs over 64 positions")
    from playwright.sync_api import expect

    plot.focus()
    page.keyboard.press("ArrowRight")
    assert "Position 13" in page.locator("#sines .sentence").inner_text()
    expect(page).to_have_url(re.compile("position=13"))
