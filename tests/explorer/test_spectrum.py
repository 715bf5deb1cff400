"""The spectrum view agrees with posenc's schedules."""

import math
import random
import re
from dataclasses import fields
from typing import Any

import pytest
import torch

from posenc.catalogue import build
from posenc.encoding.base import Shape
from posenc.encodings.rotations import plain_frequencies
from posenc.explorer.page import SHAPE, encoding_data
from posenc.schedules import SCHEDULES

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

INNER_SCHEDULES = ("linear(factor=3)", "ntk(factor=2.5)", "yarn(factor=4, trained_length=300)")


def random_options(name: str, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return random options of a schedule, and a random rotary for it."""
    width = 2 * rng.randint(2, 64)
    rotary = {"base": 10 ** rng.uniform(1, 7), "width": width, "horizon": float(rng.randint(16, 200_000))}
    slow = 10 ** rng.uniform(-1, 1)
    options: dict[str, Any] = {
        "factor": rng.uniform(1, 40),
        "trained_length": rng.randint(16, 20_000),
        "power": rng.uniform(0, 2),
        "truncate": rng.random() < 0.5,
        "ramp": rng.choice(("pairs", "turns")),
        "attention_factor": rng.choice((None, None, rng.uniform(0.5, 2))),
        "mscale": rng.choice((None, 0.0, 0.707, 1.0)),
        "mscale_all_dim": rng.choice((None, 0.0, 0.5, 1.0)),
        "mscale_rule": rng.choice(("together", "apart")),
        "pairs": rng.choice((None, rng.randint(0, 70))),
        "soft": rng.random() < 0.7,
        "inner": rng.choice((None, *INNER_SCHEDULES)),
        "short_factor": tuple(rng.uniform(1, 2) for _ in range(width // 2)),
        "long_factor": tuple(rng.uniform(1, 40) for _ in range(width // 2)),
    }
    options |= dict.fromkeys(("beta_slow", "low", "alpha"), slow)
    options |= dict.fromkeys(("beta_fast", "high", "beta"), slow * rng.choice((1, 2, 32)))
    if options["attention_factor"] is None:
        options |= {"short_mscale": rng.choice((None, 1.1)), "long_mscale": rng.choice((None, 1.3))}
    names = {field.name for field in fields(SCHEDULES[name])}
    return {option: value for option, value in options.items() if option in names}, rotary


def schedule_entry(schedule: Any) -> dict[str, Any]:
    """Return a schedule's options as the page stores them."""
    values = {field.name: getattr(schedule, field.name) for field in fields(schedule)}
    entries = {name: schedule_entry(value) if hasattr(value, "spec_name") else value for name, value in values.items()}
    return {"name": schedule.spec_name, **entries}


def test_each_schedule_is_that_of_posenc(visit):
    rng, settings, expected = random.Random(4), [], []
    for name in [name for name in sorted(SCHEDULES) for _ in range(30)]:
        options, rotary = random_options(name, rng)
        if options.get("inner"):
            options["inner"] = SCHEDULES.read(options["inner"])
        schedule = SCHEDULES[name](**options)
        settings.append([schedule_entry(schedule), rotary])
        horizon = torch.tensor([rotary["horizon"]]).double() if schedule.by_horizon else None
        plain = plain_frequencies(rotary["base"], rotary["width"])
        frequencies, temperature = schedule(plain, base=rotary["base"], width=rotary["width"], horizon=horizon)
        expected.append((frequencies.flatten().tolist(), float(temperature)))
    page = visit("rotary")
    results = page.evaluate("settings => settings.map(([s, r]) => posenc.formulas.scheduledSpectrum(s, r))", settings)
    for actual, (frequencies, temperature), options in zip(results, expected, settings, strict=True):
        assert actual["frequencies"] == pytest.approx(frequencies, rel=1e-6, abs=1e-300), options
        assert actual["temperature"] == pytest.approx(temperature, rel=1e-6), options


def test_an_unknown_schedule_is_refused_by_name(visit):
    page = visit("rotary")
    message = page.evaluate(
        "() => { try { posenc.formulas.scheduledSpectrum({name: 'mine'}, {base: 10, width: 8, horizon: 9}); }"
        " catch (error) { return error.message; } }"
    )
    assert message.startswith("no schedule mine here; there are: linear, ntk,")


def test_numbers_of_a_spec_are_those_of_its_schedule():
    spec = "rotary(schedule=clipped(pairs=2, inner=yarn(factor=4)))"
    (entry,) = encoding_data(spec, None)["sections"]["spectrum"]
    rotary: Any = build(spec, SHAPE)
    assert entry["wavelengths"] == rotary.wavelengths.tolist() and entry["wavelengths"][-1] == math.inf
    assert entry["plain"][1] == pytest.approx(2 * math.pi * 10_000 ** (2 / 16))
    assert (entry["schedule"]["inner"]["name"], entry["schedule"]["inner"]["factor"]) == ("yarn", 4)
    assert entry["temperature"] == pytest.approx(0.1 * math.log(4) + 1)
    assert encoding_data("alibi", None)["sections"]["spectrum"] is None


def sentence(page: Any) -> str:
    return page.locator("#spectrum .sentence").inner_text()


def test_pairs_that_do_not_complete_a_turn_are_counted(visit):
    page = visit("rotary", address="#spectrum")
    # 18 of 64 at base 10,000 and 4,096 positions.
    assert "at 16,384: plain 18, linear 0, ntk 17, yarn 0." in sentence(page)
    row = page.locator("#spectrum .figure tbody tr").first
    assert row.locator("td").all_inner_texts() == ["1", "1", "46", "18"]


def test_schedules_are_laid_over_each_other(visit):
    page = visit("rotary", address="#spectrum?spectrum.shown=linear&pair=50")
    assert page.locator("#spectrum .strips svg").count() == 2
    page.get_by_label("dynamic_ntk").check()
    (temperature, *_, unseen) = page.locator("#spectrum .figure tbody tr").last.locator("td").all_inner_texts()
    assert (temperature, page.locator("#spectrum .strips svg").count()) == ("1", 3)
    base = 10_000 * (4 * 16_384 / 4096 - 3) ** (128 / 126)
    long_waves = [16_384 * base ** (-2 * k / 128) for k in range(64)]
    trained_waves = [4096 * 10_000 ** (-2 * k / 128) for k in range(64)]
    turn = 2 * math.pi
    assert int(unseen) == sum(s < turn and m > s for m, s in zip(long_waves, trained_waves, strict=True))


def test_a_spec_of_the_page_is_followed_to_the_wanted_length(visit):
    spec = "rotary(schedule=dynamic_ntk(factor=2))"
    page = visit(spec, address=f"#spectrum?spectrum.of={spec.replace('=', '%3D')}&spectrum.wanted=1024&pair=6")
    rotary: Any = build(spec, Shape.of(64, 4, 128))
    frequency = rotary.spectrum(torch.tensor([1024.0]))[0][0, 6].item()
    wavelength = float(re.search(r"this spec ([\d,.]+)", sentence(page))[1].replace(",", ""))
    assert wavelength == pytest.approx(2 * math.pi / frequency, rel=1e-3)
    assert page.locator("#spectrum").get_by_label("trained length").count() == 0


def test_keys_and_touch_choose_a_pair_for_all_views(visit):
    page = visit("rotary", address="#spectrum", width=360)
    plot = page.get_by_label("Wavelength of each of 64 pairs")
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert sentence(page).startswith("Pair 3 of 64 has a wavelength of 9.676 positions")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + 52 + (box["width"] - 52 - 104) / 2, box["y"] + 100)
    assert re.match(r"Pair 3[12] of 64", sentence(page))
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
