"""The precision view: its rounding and angles agree with torch, and its cosines with posenc."""

import itertools
import random
from typing import Any

import pytest
import torch

from posenc import Rotary

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def numbers() -> list[float]:
    """Return numbers of every size: ties, neighbours of powers of two, and subnormal ones."""
    rng = random.Random(5)
    numbers = [rng.choice((-1, 1)) * 2 ** rng.uniform(-150, 127.9) for _ in range(3000)]
    numbers += [float(rng.randint(0, 1 << 20)) for _ in range(1000)]
    numbers += [sign * 2.0**n * (1 + m / 256) for n in range(-30, 20) for m in (0, 1, 3, 255) for sign in (-1, 1)]
    return [*numbers, 0.0, 256.0, 257.0, 65_504.0, 65_519.9, 65_520.0, 3.4e38, 2048.5, 6e-8, 3e-8, 2.9e-8]


def test_rounding_is_that_of_torch(visit):
    page, values = visit("rotary"), numbers()
    for format, dtype in DTYPES.items():
        actual = page.evaluate("([v, f]) => v.map((one) => posenc.formulas.roundToFormat(one, f))", [values, format])
        expected = torch.tensor(values, dtype=torch.float64).to(dtype).double().tolist()
        # A whole number comes from the browser as an int, with no more correct digits than a float has.
        assert [float(value) for value in actual] == expected, format


def test_angles_are_those_of_torch(visit):
    rng, page = random.Random(6), visit("rotary")
    cases = [[int(10 ** rng.uniform(0, 7)), 10 ** rng.uniform(-5, 0)] for _ in range(500)]
    position, frequency = torch.tensor(cases, dtype=torch.float64).unbind(1)
    call = "([g, f, k]) => g.map(([p, w]) => posenc.formulas.angleIn(f, p, w, k))"
    for (format, dtype), rounding in itertools.product(DTYPES.items(), ("all", "position", "frequency")):
        p = position if rounding == "frequency" else position.to(dtype).double()
        f = frequency if rounding == "position" else frequency.to(dtype).double()
        angle = (p * f).to(dtype).double() if rounding == "all" else p * f
        assert page.evaluate(call, [cases, format, rounding]) == angle.tolist(), (format, rounding)


def test_the_cosine_of_posenc_is_what_posenc_gives(visit):
    rng, rotary, page = random.Random(7), Rotary(16), visit("rotary")
    position = [int(10 ** rng.uniform(0, 7)) for _ in range(60)]
    call = (
        "([ps, f]) => ps.map((p) => posenc.formulas.frequencies(16, 10000)"
        ".map((w) => posenc.formulas.roundToFormat(Math.cos(p * w), f)))"
    )
    for format, dtype in DTYPES.items():
        heads = torch.zeros(1, 1, len(position), 16, dtype=dtype)
        heads[..., :8] = 1
        rotated, _ = rotary(heads, heads, positions=torch.tensor(position))
        cosines = torch.tensor(page.evaluate(call, [position, format]), dtype=torch.float64)
        assert cosines.equal(rotated[0, 0, :, :8].double()), format


def sentence(page: Any) -> str:
    return page.locator("#precision .sentence").inner_text()


def test_bfloat16_has_one_angle_for_two_neighbours(visit):
    page = visit("rotary", address="#precision?precision.position=256&precision.kept=position&pair=0")
    assert "bfloat16 has one angle for 2 positions here." in sentence(page)
    assert "bfloat16: off by 0 rad" in sentence(page)
    plot = page.get_by_label("Neighbours of position 256")
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert sentence(page).startswith("Position 257, pair 0: the angle is 257 radians.")
    assert "bfloat16: off by 1 rad" in sentence(page)


def test_a_million(visit):
    page = visit("rotary", address="#precision", width=360)
    page.get_by_role("button", name="1,000,000").tap()
    assert "Position 1,000,000, pair 2" in sentence(page) and "float16: overflow" in sentence(page)
    frequency = 10_000 ** (-4 / 128)
    error = abs(torch.tensor(1e6 * torch.tensor(frequency).item()).item() - 1e6 * frequency)
    assert f"float32: off by {error:.4g} rad" in sentence(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_a_near_position_is_pointed_at_in_all_views(visit):
    page = visit("rotary", address="#precision", all_views=True)
    page.get_by_role("button", name="100", exact=True).click()
    assert page.locator("#sines .sentence").inner_text().startswith("Position 63")
    page.get_by_role("button", name="1,000,000").click()
    assert "100 in other views" in page.locator("#precision").inner_text()
