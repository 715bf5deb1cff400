"""The similarity view agrees with posenc's tables."""

import pytest
import torch

from posenc import Sinusoidal
from posenc.explorer import page as explorer

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow


def sentence(page):
    return page.locator("#similarity .sentence").inner_text()


def rise_count(dim, length):
    table = Sinusoidal(dim).table(length, dtype=torch.float64)[0]
    profile = table @ table[0]
    return int((profile.diff() > 0).sum())


def test_it_is_that_of_the_tables_of_posenc(visit):
    page = visit("sinusoidal")
    for dim, base, cosine in ((8, 100.0, True), (64, 10_000.0, True), (6, 20.0, False)):
        table = Sinusoidal(dim, base=base).table(20, dtype=torch.float64)[0] * torch.arange(1, 21)[:, None]
        actual = page.evaluate("([t, c]) => posenc.formulas.similarity(t, c)", [table.tolist(), cosine])
        unit = torch.nn.functional.normalize(table, dim=-1) if cosine else table
        assert torch.tensor(actual, dtype=torch.float64).allclose(unit @ unit.T, atol=1e-6)


def test_of_sines_the_distance_alone_decides_and_the_profile_rises_often(visit):
    assert rise_count(512, 200) == 54
    page = visit("sinusoidal", address="#similarity?similarity.dim=512&similarity.length=200&position=50&other=40")
    assert "Positions 50 and 40, 10 apart: cosine 0." in sentence(page)
    assert "All positions 10 apart have the same. The mean rises at 54 of 199 steps" in sentence(page)
    assert sentence(page).endswith("the distance alone decides.")


def test_pointing_at_a_distance_moves_the_other_position(visit):
    page = visit("sinusoidal", address="#similarity?position=12&other=5")
    page.get_by_label("The cosine by distance").press("ArrowRight")
    assert sentence(page).startswith("Positions 12 and 4, 8 apart")
    page.get_by_label("The cosine by distance").press("PageUp")
    assert sentence(page).startswith("Positions 12 and 30, 18 apart")
    page.get_by_label("The cosine of the vectors").press("ArrowDown")
    assert sentence(page).startswith("Positions 13 and 30, 17 apart")


def test_of_an_untrained_table_nothing_is_drawn(visit):
    page = visit("learned(max_len=40)", address="#similarity?encoding=learned(max_len%3D40)")
    assert sentence(page) == "This page has no numbers for learned(max_len=40)."
    assert "made by training" in page.locator("#similarity .unknown").inner_text()
    assert page.locator("#similarity svg").count() == 0


def test_a_trained_table_has_a_band(visit, monkeypatch):
    table = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [3.0, 4.0]]
    plain = explorer.page.data_element

    def numbers_with_training(data):
        data["encodings"][0]["sections"]["training"] = {"added": table, "task": "text"}
        return plain(data)

    monkeypatch.setattr(explorer.page, "data_element", numbers_with_training)
    page = visit("learned(max_len=4)", address="#similarity?encoding=learned(max_len%3D4)&position=3&other=2")
    assert sentence(page) == (
        "Positions 3 and 2, 1 apart: cosine 0.6. All positions 1 apart have between 0 and 0.6. "
        "The mean rises at 1 of 3 steps of the distance."
    )
    view = page.locator("#similarity")
    assert "learned(max_len=4), trained on text" in view.get_by_label("encoding").inner_text()
    view.get_by_label("measure").select_option("dot")
    assert "dot product 9. All positions 1 apart have between 0 and 9." in sentence(page)


def test_what_is_fixed_is_known_without_training(visit):
    page = visit("sinusoidal(base=20.0)", address="#similarity?encoding=sinusoidal(base%3D20.0)&position=9&other=6")
    table = Sinusoidal(64, base=20.0).table(10, dtype=torch.float64)[0]
    assert f"cosine {float(table[9] @ table[6]) / 32:.4g}" in sentence(page)
