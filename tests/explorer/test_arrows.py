"""The arrows view's query and key agree with Rotary, and its controls move them."""

import math
import random
import re

import pytest
import torch

from posenc import Rotary

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

ANGLE_AND_LOGIT = re.compile(r"stands (\S+)° from the key's; the logit of all \d+ pairs is (\S+)\.")


def sentence(page):
    return page.locator("#arrows .sentence").inner_text()


def angle_and_logit(page):
    """Return the angle between the arrows, in degrees, and the logit."""
    match = ANGLE_AND_LOGIT.search(sentence(page))
    assert match, sentence(page)
    return tuple(float(number.replace("\N{MINUS SIGN}", "-")) for number in match.groups())


def rotated_vector(vector, position, base, layout):
    rotary = Rotary(len(vector), base=base, layout=layout)
    x = torch.tensor(vector, dtype=torch.float64)[None, None, None]
    return rotary(x, x, positions=torch.tensor([position]))[0][0, 0, 0]


def test_turned_vectors_and_logits_are_those_of_posenc(visit):
    page, chance = visit("sinusoidal"), random.Random(5)
    for layout in ("half", "interleaved", "half", "interleaved"):
        width, base = 2 * chance.randint(1, 32), 10 ** chance.uniform(0.5, 6)
        q, k = ([chance.gauss(0, 1) for _ in range(width)] for _ in "qk")
        m, n = chance.randint(0, 4096), chance.randint(0, 4096)
        expected = rotated_vector(q, m, base, layout)
        actual = page.evaluate("a => posenc.formulas.rotate(...a)", [q, m, base, layout])
        assert actual == pytest.approx(expected.tolist(), abs=1e-6)
        logit = float(expected @ rotated_vector(k, n, base, layout)) / math.sqrt(width)
        actual = page.evaluate("a => posenc.formulas.logits(...a)", [q, k, [m - n], base, layout])
        assert actual == pytest.approx([logit], abs=1e-6)

    # Random vectors are normal, independent, and come back with their seed.
    first, again, other_seed = (page.evaluate("s => posenc.formulas.normals(s, 5000)", seed) for seed in (7, 7, 8))
    assert first == again != other_seed
    normals = torch.tensor(first, dtype=torch.float64)
    assert abs(float(normals.mean())) < 0.05
    assert abs(float(normals.std()) - 1) < 0.05
    assert abs(float((normals.abs() < 1).double().mean()) - 0.6827) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([normals[:-1], normals[1:]]))[0, 1])) < 0.05


def test_moving_both_changes_neither_angle_nor_logit(visit):
    page = visit("sinusoidal", address="#arrows?position=12&other=5")
    start = angle_and_logit(page)
    page.locator("#arrows").get_by_role("button", name="Both 10 on").click()
    assert sentence(page).startswith("Query at 22, key at 15: distance 7.")
    assert angle_and_logit(page) == start
    page.get_by_role("slider", name="both, by the same amount").press("ArrowLeft")
    assert sentence(page).startswith("Query at 21, key at 14: distance 7.")
    page.get_by_role("slider", name="position of the query").press("ArrowRight")
    assert sentence(page).startswith("Query at 22, key at 14: distance 8.")
    assert angle_and_logit(page) != start
    # Pointing at a distance in the logit plot moves the key, and the query too at the start of the line.
    logit = page.get_by_label("The logit of query and key by their distance")
    logit.press("ArrowRight")
    assert sentence(page).startswith("Query at 22, key at 13: distance 9.")
    logit.press("PageUp")
    logit.press("PageUp")
    assert sentence(page).startswith("Query at 29, key at 0: distance 29.")
    # At the end of the line both stop together.
    for _ in range(5):
        page.locator("#arrows").get_by_role("button", name="Both 10 on").click()
    assert sentence(page).startswith("Query at 63, key at 34: distance 29.")


def test_tokens_are_dragged_along_the_line(visit):
    page = visit("sinusoidal", address="#arrows?position=12&other=5")
    line = page.locator("#arrows .tokens").bounding_box()
    query_grip = page.get_by_role("slider", name="position of the query").bounding_box()
    both_grip = page.get_by_role("slider", name="both, by the same amount").bounding_box()
    step = (line["width"] - 32) / 63

    def drag(grip, steps):
        x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + steps * step, y, steps=3)
        page.mouse.up()
        page.mouse.move(x, y)

    drag(both_grip, 20)
    assert sentence(page).startswith("Query at 32, key at 25: distance 7.")
    drag(both_grip | {"x": query_grip["x"] + 20 * step, "y": query_grip["y"], "width": query_grip["width"]}, 9)
    assert sentence(page).startswith("Query at 41, key at 25: distance 16.")


def test_a_key_made_for_a_distance_has_its_highest_logit_there(visit):
    page = visit("sinusoidal", address="#arrows?arrows.vectors=peak&arrows.peak=30&position=40&other=10")
    assert angle_and_logit(page) == pytest.approx((0, math.sqrt(32)), abs=1e-3)


def test_vectors_are_typed_one_number_for_each_channel(visit):
    page = visit(
        "sinusoidal",
        address="#arrows?arrows.vectors=own&arrows.dim=4&arrows.query=1 2 0 1&arrows.key=1 1 3 0&pair=0"
        "&position=9&other=4",
    )
    q, k = (rotated_vector([float(n) for n in x], p, 10_000.0, "half") for x, p in (("1201", 9), ("1130", 4)))
    angle, logit = angle_and_logit(page)
    assert logit == pytest.approx(float(q @ k) / 2, abs=1e-3)
    difference = math.degrees(math.atan2(q[2], q[0]) - math.atan2(k[2], k[0]))
    assert math.remainder(angle - difference, 360) == pytest.approx(0, abs=0.1)
    key = page.locator("#arrows").get_by_role("textbox", name="key")
    for entry, problem in (
        ("1 1 3", "The key needs 4 numbers, one for each channel, but has 3: add 1."),
        ("1 1 3 x", "The key needs numbers, but entry 4 is not a number: correct it."),
        ("1, 1; 3 0 5", "The key needs 4 numbers, one for each channel, but has 5: remove 1."),
    ):
        key.fill(entry)
        assert sentence(page) == problem
    page.get_by_role("button", name="Write ones").click()
    assert key.input_value() == "1 1 1 1"


def test_pulling_an_arrow_makes_the_vectors_the_readers_own(visit):
    page = visit(
        "sinusoidal", address="#arrows?arrows.vectors=ones&arrows.dim=4&pair=0&position=0&other=0", height=1400
    )
    face = page.locator("#arrows .face").bounding_box()
    x, y = face["x"] + face["width"] / 2, face["y"] + face["height"] / 2
    # Both arrows stand at (1, 1), and the rim at 1.5: the query's lies above.
    unit = 130 / 1.5 * face["width"] / 320
    page.mouse.move(x + unit, y - unit)
    page.mouse.down()
    page.mouse.move(x - unit, y, steps=3)
    page.mouse.up()
    query, key = (page.locator("#arrows").get_by_role("textbox", name=name) for name in ("query", "key"))
    assert [float(n) for n in query.input_value().split()] == pytest.approx([-1, 1, 0, 1], abs=0.03)
    assert key.input_value() == "1 1 1 1"
    assert angle_and_logit(page)[0] == pytest.approx(135, abs=1)
