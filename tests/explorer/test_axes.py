"""The axes view, for patches of an image: its numbers agree with posenc, and its sentence with them."""

import random

import pytest
import torch

from posenc import AxialRotary, Rotary, Sinusoidal, build
from posenc.encodings.rotations.image_rotary import normalised_grid
from posenc.explorer import picture
from posenc.explorer.page import SHAPE
from posenc.model import seeding
from posenc.tokens.positions import Positions


def sentence(page):
    return page.locator("#axes .sentence").inner_text().replace("\N{MINUS SIGN}", "-")


def logit(encoding, positions, patch, target):
    """Return the formula's logit of a query and a key of ones, over the logit of a patch with itself."""
    vector = [1.0] * SHAPE.head_dim
    places = [tuple(positions.coords[0, n].tolist()) for n in (patch, target)]
    return encoding.formula_logit(vector, vector, *places, 0, 1) / SHAPE.head_dim


@pytest.fixture(scope="module")
def maps():
    return {map["name"]: map for map in picture.offset_maps(["rotary"], SHAPE)["maps"]}


def value_at_offset(table, side, patch, target):
    rows, columns = target // side - patch // side, target % side - patch % side
    return table[15 + rows][15 + columns]


PAIRS = [(8, 0, 63), (8, 12, 5), (16, 17, 240), (12, 30, 31), (16, 255, 0)]


@pytest.mark.parametrize(("side", "patch", "target"), PAIRS)
def test_numbers_by_offset_are_those_of_any_two_patches(maps, side, patch, target):
    grid = Positions.grid(side, side)
    ((axial,),) = maps["axial_rotary"]["offsets"].values()
    expected = logit(AxialRotary(16), grid, patch, target)
    assert value_at_offset(axial, side, patch, target) == pytest.approx(expected, abs=6e-5)
    (video,) = maps["multimodal_rotary"]["offsets"]["0"]
    expected = logit(build("multimodal_rotary", SHAPE), Positions.grid(1, side, side), patch, target)
    assert value_at_offset(video, side, patch, target) == pytest.approx(expected, abs=6e-5)
    (image,) = maps["image_rotary"]["offsets"][str(side)]
    expected = logit(build("image_rotary", SHAPE), normalised_grid(side, side), patch, target)
    assert value_at_offset(image, side, patch, target) == pytest.approx(expected, abs=6e-5)
    (sines,) = maps["sinusoidal(axes=2)"]["offsets"]["0"]
    table = Sinusoidal(SHAPE.dim, axes=2).table(grid, dtype=torch.float64)[0]
    cosine = torch.nn.functional.cosine_similarity(table[patch], table[target], dim=0).item()
    assert value_at_offset(sines, side, patch, target) == pytest.approx(cosine, abs=6e-5)


def test_what_is_drawn_and_what_is_trained_is_said(maps):
    assert maps["mixed_rotary"]["is_random"] and len(maps["mixed_rotary"]["offsets"]["0"]) == SHAPE.heads
    assert not maps["axial_rotary"]["is_random"]
    assert maps["learned_grid"]["offsets"] is None and maps["grid_bias"]["offsets"] is None


def test_directions_are_the_same_each_time(maps):
    with seeding.local_seed(7):
        second_maps = picture.offset_maps(["mixed_rotary"], SHAPE)["maps"]
    assert [map["name"] for map in second_maps] == ["mixed_rotary"]
    rng_state = torch.get_rng_state()
    assert picture.build_maps(["mixed_rotary"], SHAPE) == second_maps
    assert rng_state.equal(torch.get_rng_state())


def test_live_logits(visit):
    draw, cases, expected = random.Random(0), [], []
    for _ in range(20):
        side, base, head_dim = draw.choice([8, 12, 16]), draw.uniform(2, 1e6), 4 * draw.randint(1, 16)
        patch, target = (draw.randrange(side**2) for _ in range(2))
        rows, columns, vector = target // side - patch // side, target % side - patch % side, [1.0] * head_dim
        axial = AxialRotary(head_dim, base=base).formula_logit(vector, vector, (0, 0), (rows, columns), 0, 1 / head_dim)
        raster = Rotary(head_dim, base=base).formula_logit(vector, vector, patch, target, 0, 1 / head_dim)
        cases.append([rows, columns, side, head_dim, base])
        expected += [axial, raster]
    actual = visit("axial_rotary").evaluate(
        """(cases) => cases.flatMap(([rows, columns, side, width, base]) => [
            posenc.formulas.axialLogit(rows, columns, width, base),
            posenc.formulas.rasterLogit(rows, columns, side, width, base),
        ])""",
        cases,
    )
    assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_keys_and_pointing_choose_patches(visit, maps):
    page = visit("rotary", address="#axes?axes.base=100&head=3")
    start = "Patch 12 is in row 1, column 4; patch 5 in row 0, column 5, so 1 row and 1 column away"
    assert sentence(page).startswith(start)
    assert "and 7 patches in raster order" in sentence(page)
    scene = page.get_by_label("An image of 8 by 8 patches")
    scene.focus()
    page.keyboard.press("ArrowDown")
    assert "Patch 20 is in row 2, column 4; patch 5 in row 0, column 5, so 2 rows and 1 column away" in sentence(page)
    expected = maps["axial_rotary"]["offsets"]["0"][0][13][16]
    # The slider's map has the base of axial_rotary, 100.
    for name in ("axial_rotary", "axial rotary, base 100"):
        assert f"{name}: {expected:.4g};" in sentence(page)
    assert f"mixed_rotary: {maps['mixed_rotary']['offsets']['0'][3][13][16]:.4g};" in sentence(page)
    box = scene.bounding_box()
    scene.click(position={"x": box["width"] * 0.99, "y": box["height"] * 0.99})
    assert sentence(page).startswith("Patch 63 is in row 7, column 7")
    page.get_by_label("axial_rotary: the chosen patch with all patches").focus()
    page.keyboard.press("ArrowDown")
    assert "patch 13 in row 1, column 5" in sentence(page)
    page.locator("#axes").get_by_role("combobox", name="image").select_option("16")
    assert "Patch 63 is in row 3, column 15" in sentence(page)
    words = page.locator("#axes").inner_text()
    assert "learned_grid, grid_bias: all their numbers come from training" in words
    assert "head 3, as initialised, before training" in words


@pytest.mark.slow
def test_it_fits_a_phone_and_shows_what_was_asked_for(visit):
    page = visit("axial_rotary(base=50)", address="#axes", width=360, dark=True)
    page.wait_for_selector("#axes .sentence")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    names = page.locator("#axes .map b").all_inner_texts()
    titles = ["The image", "axial rotary, base 10,000", "axial_rotary(base=50)", "rotary row by row, base 10,000"]
    assert names == titles
    plot = page.locator("#axes .map svg").nth(1).bounding_box()
    assert plot["x"] + plot["width"] <= 360
