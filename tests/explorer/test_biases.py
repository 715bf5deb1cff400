"""The biases view: its formulas agree with posenc, and its sentence with them."""

import json
import math
import random

import pytest
import torch

from posenc import ALiBi, Fire, Kerple, Sandwich, Shaw, T5Bias, build
from posenc.explorer.page import SHAPE
from posenc.lab.views.sections import biases
from posenc.tokens.positions import Positions

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

DISTANCES = [*range(-40, 41), 64, 100, 127, 128, 129, 500, 4096]


def set_slider(page, name, value):
    page.locator("#biases").get_by_role("slider", name=name, exact=True).fill(str(value))


@pytest.fixture
def page(visit):
    return visit("alibi", "t5_bias", address="#biases")


@pytest.fixture(scope="module")
def evaluate(browser, write_page):
    """Call the page's own formulas; one window serves all of them."""
    window = browser.new_page()
    window.goto(write_page("alibi", "t5_bias").as_uri())
    yield window.evaluate
    window.close()


def sentence(page):
    return page.locator("#biases .sentence").inner_text().replace("\N{MINUS SIGN}", "-")


def test_slopes(evaluate):
    slopes_by_heads = evaluate("() => Array.from({ length: 40 }, (_, n) => posenc.formulas.alibiSlopes(n + 1))")
    for heads, slopes in enumerate(slopes_by_heads, 1):
        assert slopes == pytest.approx(ALiBi(heads).slopes, abs=1e-12)


def test_buckets(evaluate):
    draw = random.Random(0)
    causal = [True, False]
    cases = [(32, 128, True), (32, 128, False), (4, 3, True), (4, 5, False), (64, 1024, True)]
    for _ in range(40):
        buckets = 4 * draw.randint(1, 16)
        cases.append((buckets, draw.randint(buckets // 2 + 1, 1024), draw.choice(causal)))
    results = evaluate(
        """([cases, distances]) => cases.map(([buckets, most, causal]) => {
            const edges = posenc.formulas.t5Edges(causal ? buckets : buckets / 2, most);
            return distances.map((d) => posenc.formulas.t5Bucket(d, edges, causal));
        })""",
        [cases, DISTANCES],
    )
    for (buckets, max_distance, sees_past), actual in zip(cases, results, strict=True):
        bias = T5Bias(1, buckets=buckets, max_distance=max_distance, causal=sees_past)
        assert actual == bias.bucket(torch.tensor(DISTANCES)).tolist(), (buckets, max_distance, sees_past)


@pytest.mark.parametrize("kind", ["log", "power"])
def test_kerple(evaluate, kind):
    draw = random.Random(1)
    for _ in range(5):
        r1, r2 = draw.uniform(0.01, 2), draw.uniform(0.01, 2)
        bias = Kerple(1, kind=kind).double()
        with torch.no_grad():
            bias.r1.fill_(r1), bias.r2.fill_(r2)
        actual = evaluate(
            "([ds, kind, r1, r2]) => ds.map((d) => posenc.formulas.kerple(d, kind, r1, r2))", [DISTANCES, kind, r1, r2]
        )
        assert actual == pytest.approx(bias.by_distance(torch.tensor(DISTANCES))[0].tolist(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("heads", "width", "base"), [(8, 128, 10_000.0), (3, 2, 50.0), (5, 64, 123.0)])
def test_sandwich(evaluate, heads, width, base):
    biases = Sandwich(heads, width=width, base=base).by_distance(torch.tensor(DISTANCES).double())
    for head in range(heads):
        actual = evaluate(
            "([ds, h, n, w, b]) => ds.map((d) => posenc.formulas.sandwich(d, h, n, w, b))",
            [DISTANCES, head, heads, width, base],
        )
        assert actual == pytest.approx(biases[head].tolist(), abs=1e-6)


def test_what_fire_and_shaw_read(evaluate):
    draw = random.Random(2)
    for _ in range(5):
        length, query = draw.uniform(8, 512), draw.randint(0, 999)
        rate, clip = draw.uniform(0.01, 1), draw.randint(1, 50)
        fire = Fire(1, length=length, rate=rate).double()
        normaliser = fire.logarithm(torch.tensor(max(length, query)).double()) + fire.eps
        expected = (fire.logarithm(torch.tensor(DISTANCES).double()) / normaliser).tolist()
        actual = evaluate(
            "([ds, q, L, c]) => ds.map((d) => posenc.formulas.fireShare(d, q, L, c))", [DISTANCES, query, length, rate]
        )
        assert actual == pytest.approx(expected, abs=1e-6)
        at, key = Positions.of(torch.tensor(DISTANCES) + 40), Positions.of(torch.tensor([40]))
        rows = Shaw(2, max_distance=clip).row(at, key)[0, :, 0].tolist()
        assert evaluate("([ds, k]) => ds.map((d) => posenc.formulas.shawRow(d, k))", [DISTANCES, clip]) == rows


def test_weights_and_the_keys_that_hold_them(evaluate):
    bias = [-3.0, -0.5, 0.0, 2.0]
    weights = evaluate("(bias) => posenc.formulas.weightsOf([...bias, NaN])", bias)
    assert weights == pytest.approx([*torch.tensor(bias).double().softmax(0).tolist(), 0], abs=1e-12)
    shares = [[0.1, 0.5, 0.4], [0.25, 0.25, 0.25, 0.25], [1]]
    key_counts = evaluate(
        "(rows) => rows.map((row) => [0.5, 0.9, 1].map((s) => posenc.formulas.keysThatHold(s, row)))", shares
    )
    assert key_counts == [[1, 2, 3], [2, 4, 4], [1, 1, 1]]


@pytest.mark.parametrize("spec", ["alibi", "sandwich", "rotary + alibi", "alibi(form=asymmetric)"])
def test_what_is_known_without_training_is_in_the_page(spec):
    section = biases.bias_by_distance(build(spec, SHAPE), SHAPE)
    matrix = build(spec.removeprefix("rotary + "), SHAPE).bias(9)[0]
    for query, key in ((8, 0), (3, 3), (1, 6)):
        place = section["distance"].index(query - key)
        assert [head[place] for head in section["heads"]] == pytest.approx(matrix[:, query, key].tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "spec", ["none", "rotary", "learned", "kerple", "t5_bias", "fire", "shaw", "grid_bias", "alibi + t5_bias"]
)
def test_what_training_decides_is_not(spec):
    small = SHAPE.of(16, 2, 8)
    assert biases.bias_by_distance(build(spec, small), small) is None


def test_the_sentence_follows_pointing_keys_and_settings(page):
    assert "alibi, head 0 (slope 0.5): the bias of query 12 on key 5, 7 positions back, is -3.5." in sentence(page)
    # 1/2, 1/4, ... of what e^-d/2 leaves: (1 - e^-1) = 0.63 of the weight is on two keys, 0.92 on five.
    assert "2 of 13 keys hold half of the weight, and 5 hold 90 %" in sentence(page)
    page.get_by_label("Bias by distance").focus()
    page.keyboard.press("ArrowRight")
    assert "key 4, 8 positions back, is -4." in sentence(page)
    set_slider(page, "head", 3)
    assert "head 3 (slope 0.0625): the bias of query 12 on key 4, 8 positions back, is -0.5." in sentence(page)
    page.get_by_label("The bias of each query on each key").focus()
    page.keyboard.press("ArrowDown")
    assert "query 13 on key 4" in sentence(page)
    assert "T5: distance 9 falls into bucket 9 of 32." in sentence(page)


def test_one_chooses_encodings_and_both_sides(page):
    page.locator("#biases").get_by_role("button", name="kerple(kind=power)").click()
    assert sentence(page).startswith("kerple(kind=power): the bias of query 12 on key 5, 7 positions back, is -3.5.")
    page.locator("#biases").get_by_role("combobox", name="keys").select_option("both")
    set_slider(page, "key", 20)
    assert "key 20, 8 positions ahead, is -4." in sentence(page)
    assert "of 64 keys" in sentence(page)
    assert "T5: distance -8 falls into bucket 24 of 32." in sentence(page)


def test_the_address_keeps_it(visit):
    page = visit(
        "alibi", "t5_bias", address="#biases?biases.shown=sandwich&biases.length=16&head=1&biases.reading=shaw"
    )
    assert sentence(page).startswith("sandwich, head 1: the bias of query 12 on key 5")
    assert "Shaw: distance 7 reads row 9 of 33." in sentence(page)
    page.locator("#biases").get_by_role("combobox", name="encoding").select_option("fire")
    share = math.log1p(0.1 * 7) / math.log1p(0.1 * 64)
    assert f"FIRE, L = 64: distance 7 from query 64 is {share:.4g} to its network." in sentence(page)
    assert page.locator("#biases [aria-pressed=true]").all_inner_texts() == ["sandwich"]


def test_bad_settings_in_the_address_are_left_out(visit):
    address = "#biases?biases.buckets=10&position=3.5&biases.heads=2.5&biases.shown=x&biases.keys=both"
    page = visit("alibi", "t5_bias", address=address)
    assert sentence(page).startswith("alibi, head 0 (slope 0.5): the bias of query 12")


def test_what_is_only_known_after_training_is_said(visit):
    page = visit("fire", "shaw", "alibi(form=asymmetric)", address="#biases")
    assert "fire, shaw: their numbers exist only after training" in page.locator("#biases").inner_text()
    page.locator("#biases").get_by_role("button", name="alibi(form=asymmetric)").click()
    # 4 heads: the first slope is 1/4; keys behind the query count half a position nearer.
    assert sentence(page).startswith(
        "alibi(form=asymmetric), head 0: the bias of query 12 on key 5, 7 positions back, is -1.625."
    )


def test_trained_numbers_are_shown_where_the_page_has_them(visit, write_page, tmp_path):
    text = write_page("t5_bias").read_text(encoding="utf-8")
    start = text.index(">", text.index('id="posenc-data"')) + 1
    data = json.loads(text[start : text.index("</script>", start)])
    trained_sections = {"bias": {"distance": list(range(128)), "heads": [[-0.25 * d for d in range(128)]]}}
    data["encodings"][0]["sections"]["training"] = trained_sections
    file = tmp_path / "trained.html"
    file.write_text(text[:start] + json.dumps(data) + text[text.index("</script>", start) :], encoding="utf-8")
    page = visit("t5_bias")
    page.goto(file.as_uri() + "#biases?biases.shown=t5_bias, trained")
    page.wait_for_selector("#biases .sentence")
    assert sentence(page).startswith("t5_bias, trained: the bias of query 12 on key 5, 7 positions back, is -1.75.")
    assert "exist only after training" not in page.locator("#biases").inner_text()
