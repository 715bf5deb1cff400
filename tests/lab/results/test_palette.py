"""The colours of lines contrast with their background and are distinct, also with colour blindness."""

import re
from pathlib import Path

import numpy as np
import pytest

from posenc.lab import appearance, figures
from posenc.lab.views import page

TEMPLATE = Path(page.__file__).with_name("page.css.jinja")
CSS = TEMPLATE.read_text()
PAPERS = re.search(r"--paper: light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS).groups()
PALETTES = {"light": (appearance.LIGHT, PAPERS[0]), "dark": (appearance.DARK, PAPERS[1])}
RAMPS = {"light": (appearance.RAMP, PAPERS[0]), "dark": (appearance.RAMP_DARK, PAPERS[1])}

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SEEN_WITH = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# The least distance between two colours, in hundredths of OKLab; the eye tells 2 apart side by side.
LEAST = {"all cones": 13, "protanopia": 8.5, "deuteranopia": 8.5, "tritanopia": 8.5}


def linear(colours):
    srgb = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(colours, paper):
    """WCAG 2: from 1 to 21."""
    light = linear([*colours, paper]) @ [0.2126, 0.7152, 0.0722] + 0.05
    return np.maximum(light[:-1], light[-1]) / np.minimum(light[:-1], light[-1])


def distances(colours, matrix):
    """Return distances [colours, colours] in OKLab (Ottosson 2020)."""
    rgb = np.clip(linear(colours) @ np.array(matrix).T, 0, 1)
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones = np.cbrt(rgb @ np.array([*to_cones, [0.0883024619, 0.2817188376, 0.6299787005]]).T)
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
    lab = 100 * cones @ np.array([*to_lab, [0.0259040371, 0.7827717662, -0.8086757660]]).T
    return np.linalg.norm(lab[:, None] - lab[None], axis=-1)


def test_the_formulas_give_the_published_numbers():
    assert contrast(["#000000", "#777777"], "#ffffff") == pytest.approx([21, 4.48], abs=0.01)
    assert distances(["#ffffff", "#000000"], SEEN_WITH["all cones"])[0, 1] == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("mode", PALETTES)
def test_every_line_is_seen_on_its_background(mode):
    for colours, paper in (PALETTES[mode], RAMPS[mode]):
        assert contrast(colours, paper).min() >= 3
    assert contrast([figures.SOFT if mode == "light" else "#9aa4af"], PALETTES[mode][1])[0] >= 4.5


@pytest.mark.parametrize("eye", SEEN_WITH)
@pytest.mark.parametrize("mode", PALETTES)
def test_any_two_encodings_are_told_apart(mode, eye):
    colours, _ = PALETTES[mode]
    apart = distances(colours, SEEN_WITH[eye]) + 1000 * np.eye(len(colours))
    assert apart.min() >= LEAST[eye]


@pytest.mark.parametrize("eye", SEEN_WITH)
@pytest.mark.parametrize("mode", RAMPS)
def test_heads_that_are_neighbours_are_told_apart(mode, eye):
    colours, _ = RAMPS[mode]
    assert np.diagonal(distances(colours, SEEN_WITH[eye]), 1).min() >= 4


def test_the_page_has_a_light_and_a_dark_value_for_every_colour():
    css = page.template(TEMPLATE).render()
    for place, (light, dark) in enumerate(
        zip((*appearance.LIGHT, *appearance.RAMP), (*appearance.DARK, *appearance.RAMP_DARK), strict=True)
    ):
        assert re.findall(rf"--c{place}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\)", css) == [(light, dark)]
    assert len({*appearance.LIGHT, *appearance.RAMP}) == len(appearance.LIGHT) + len(appearance.RAMP)
