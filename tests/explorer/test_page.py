"""The whole page, with all its views: at every size, by mouse, keys and touch, and in print."""

import contextlib
import json
import re
import time
from xml.etree import ElementTree

import pytest
from explorer.page_actions import settle, view_sentences, views_with_numbers, with_data
from matplotlib.colors import to_rgb
from tiers import rest_slow

from posenc.lab import figures

CONTROLS = """() => [...document.querySelectorAll("section input, section select")]
    .map((control) => [control.closest("section").id, control.type === "checkbox" ? control.checked : control.value])"""

TOO_WIDE = """() => {
    const out = document.scrollingElement;
    if (out.scrollWidth <= innerWidth) return [];
    return [...document.querySelectorAll("body *")]
        .filter((part) => part.getBoundingClientRect().right > innerWidth + 1 && !boxed(part))
        .map((part) => `${part.closest("section")?.id}: <${part.localName} class="${part.getAttribute("class")}">`);
    function boxed(part) {
        for (let box = part.parentElement; box && box !== out; box = box.parentElement)
            if (getComputedStyle(box).overflowX !== "visible") return true;
        return false;
    }
}"""

LOW_CONTRAST = """() => {
    const numbers = (text) => (text.match(/-?[\\d.]+(e-?\\d+)?/g) ?? []).map(Number);
    const parsed = (text) => {
        const [r, g, b, a = 1] = numbers(text.replace("srgb", ""));
        return { rgb: text.startsWith("color") ? [r, g, b] : [r / 255, g / 255, b / 255], a };
    };
    const light = ({ rgb }) => {
        const [r, g, b] = rgb.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(parsed(getComputedStyle(document.body).backgroundColor));
    const contrast = (text) => {
        const [low, high] = [paper, light(parsed(text))].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const probe = document.body.appendChild(document.createElement("i"));
    const quiet = ["--grid", "--line", "--shade", "--paper"].map((name) => {
        probe.style.color = `var(${name})`;
        return getComputedStyle(probe).color;
    });
    probe.remove();
    const found = [];
    for (const drawing of document.querySelectorAll("svg.drawing")) {
        const view = drawing.closest("section").id;
        const shapes = [...drawing.querySelectorAll("image, rect, path, circle, polygon")].filter((shape) => {
            const style = getComputedStyle(shape);
            return shape.localName === "image" || (style.fill !== "none" && style.fillOpacity * style.opacity > 0.2);
        });
        const boxes = shapes.map((shape) => shape.getBoundingClientRect());
        for (const text of drawing.querySelectorAll("text")) {
            if (!text.textContent.trim() || text.querySelector("tspan")) continue;
            const style = getComputedStyle(text), box = text.getBoundingClientRect();
            const size = parseFloat(style.fontSize) * Math.sqrt(Math.abs(det(text.getScreenCTM())));
            if (size < 10.99) found.push(`${view}: letters of ${size} px: ${text.textContent}`);
            const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
            if (boxes.some((b) => b.left <= x && x <= b.right && b.top <= y && y <= b.bottom)) continue;
            const there = contrast(style.fill);
            if (there < 4.5) found.push(`${view}: letters at ${there}: ${text.textContent}`);
        }
        for (const line of drawing.querySelectorAll("path, line, polyline")) {
            const style = getComputedStyle(line);
            if (style.stroke === "none" || style.fill !== "none" && line.localName !== "line") continue;
            if (style.strokeOpacity * style.opacity < 1 || /url/.test(style.stroke)) continue;
            if (quiet.includes(style.stroke)) continue;
            if (contrast(style.stroke) < 3) found.push(`${view}: a line at ${contrast(style.stroke)}: ${style.stroke}`);
        }
    }
    return [...new Set(found)];
    function det(m) { return m.a * m.d - m.b * m.c; }
}"""

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.mark.slow
def test_each_view_begins_with_its_picture_and_two_controls_and_a_phone_keeps_it_in_sight(visit):
    page = visit(width=390)
    page.reload()
    names = page.evaluate("() => posenc.names")
    assert names[0] == "block" and len(names) == page.locator("nav li").count()
    for view in names:
        page.evaluate("(hash) => (location.hash = hash)", f"#{view}")
        settle(page)
        controls = page.locator(f"#{view} .figure :is(input, select)").filter(visible=True).all()
        assert 1 <= len(controls) <= 2, view
        for control in controls:
            picture, place = control.evaluate("""(control) => {
                control.scrollIntoView({ block: "end" });
                const picture = control.closest(".panel").querySelector(".picture");
                return [picture, control].map((one) => one.getBoundingClientRect().toJSON());
            }""")
            assert picture["bottom"] <= place["top"] and (view == "block" or picture["top"] >= 0), view


def test_an_encoding_has_its_colour_of_the_figures(shared_page):
    swatch = shared_page().locator("header label", has_text="rotary").locator("i")
    red, green, blue = (round(255 * part) for part in to_rgb(figures.color("rotary")))
    assert swatch.evaluate("(one) => getComputedStyle(one).borderTopColor") == f"rgb({red}, {green}, {blue})"


def test_a_view_without_numbers_is_not_there(visit, write_page, tmp_path):
    page, file = visit("rotary"), tmp_path / "page.html"
    file.write_text(with_data(write_page("rotary").read_text(), lambda data: data["sections"].pop("attention")))
    page.goto(f"{file.as_uri()}#attention")
    assert "attention" not in page.locator("section").evaluate_all("(all) => all.map((one) => one.id)")
    assert "Attention" not in page.locator("nav").inner_text() and page.locator("#block svg.drawing").is_visible()


@pytest.mark.slow
def test_nothing_is_wider_than_the_window_whatever_that_is(shared_page):
    page = shared_page()
    for width in (3840, 768, 360, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        assert page.evaluate(TOO_WIDE) == [], width
        assert page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth"), width


@pytest.mark.parametrize(
    ("width", "look"), [(1400, "light"), (1400, "dark"), pytest.param(360, "dark", marks=pytest.mark.slow)]
)
def test_letters_and_lines_can_be_told_from_the_paper(shared_page, width, look):
    page = shared_page(width)
    page.get_by_label("Colours").select_option(look)
    settle(page)
    assert page.evaluate(LOW_CONTRAST) == []


@pytest.mark.slow
def test_a_reader_chooses_light_or_dark_whatever_the_system_is(visit):
    page = visit("none", dark=True)
    colour = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.get_by_label("Colours").select_option("light")
    light = page.evaluate(colour)
    assert (dark, light) == ("rgb(18, 22, 27)", "rgb(255, 255, 255)")


@pytest.mark.parametrize("look", rest_slow(["light", "dark", "only"], 1))
def test_a_screen_reader_finds_its_way(visit, shared_page, look):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install posenc[test]")
    page = visit() if look == "only" else shared_page()
    if look == "dark":
        page.get_by_label("Colours").select_option("dark")
    # Tables of thousands of cells would take a minute.
    opening = "(open) => document.querySelectorAll('details:not(.numbers)').forEach((one) => (one.open = open))"
    page.evaluate(opening, True)
    # The dark page differs from the light one by its colours alone.
    rules = ["color-contrast"] if look == "dark" else TAGS
    report = axe.Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
    page.evaluate(opening, False)
    violations = [
        f"{violation['id']}: {violation['help']}: {[node['html'][:200] for node in violation['nodes']]}"
        for violation in report.response["violations"]
    ]
    assert violations == []


@pytest.mark.slow
def test_every_slider_is_moved_by_keys(shared_page):
    page = shared_page()
    for view in views_with_numbers(page):
        for slider in page.locator(f"#{view} input[type=range]:visible:enabled").all():
            start = slider.input_value()
            slider.press("ArrowRight")
            if slider.input_value() == start:
                slider.press("ArrowLeft")
            assert slider.input_value() != start, f"{view}: {slider.evaluate('(one) => one.labels[0].textContent')}"


@pytest.mark.slow
def test_every_drawing_that_can_be_pointed_at_is_moved_by_a_finger_and_by_keys(shared_page):
    page = shared_page(360)
    now = """() => JSON.stringify([posenc.settingsNow(),
        [...document.querySelectorAll(".sentence")].map((sentence) => sentence.textContent)])"""
    for view in views_with_numbers(page):
        for plot in page.locator(f"#{view} svg.drawing[role=application]").all():
            plot.scroll_into_view_if_needed()
            box = plot.bounding_box()
            states = []
            for x, y in ((0.2, 0.3), (0.4, 0.45), (0.65, 0.6)):
                plot.tap(position={"x": x * box["width"], "y": y * box["height"]}, force=True)
                states.append(page.evaluate(now))
            assert len(set(states)) > 1, f"{view}: a finger on {plot.get_attribute('aria-label')}"
            plot.focus()
            for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
                page.keyboard.press(key)
                states.append(page.evaluate(now))
            assert len(set(states[2:])) > 1, f"{view}: arrow keys in {plot.get_attribute('aria-label')}"


def test_what_is_pointed_at_in_one_view_is_pointed_at_in_all(shared_page):
    page = shared_page()
    places = """(name) => [...document.querySelectorAll("section label")]
        .filter((label) => label.querySelector("input[type=range]") && label.innerText.split(" ")[0] === name)
        .map((label) => label.querySelector("input"))
        .map((slider) => [slider.closest("section").id, Number(slider.value), Number(slider.max), Number(slider.min)])
        .filter(([view, value, most, least]) => Number.isInteger(most - least))"""  # a slider of logarithms is no count
    for name in ("position", "pair", "head"):
        sliders = page.evaluate(places, name)
        for view, *_ in sliders:
            page.locator(f"#{view} label", has_text=re.compile(f"^{name} ")).locator("input").first.press("ArrowLeft")
            setting = page.evaluate("() => posenc.settingsNow()")[name]
            moved_sliders = page.evaluate(places, name)
            expected = [min(high, max(low, setting)) for *_, high, low in moved_sliders]
            assert [value for _, value, *_ in moved_sliders] == expected, view


@pytest.mark.slow
def test_an_address_shows_what_it_was_copied_from(shared_page, visit):
    page = shared_page()
    for view in views_with_numbers(page):
        for control in page.query_selector_all(f"#{view} :is(input, select):not([disabled])"):
            if not control.evaluate("(one) => one.isConnected && one.checkVisibility()"):
                continue  # another control took its place
            if control.evaluate("(one) => one.localName") == "select":
                choices = control.evaluate(
                    "(one) => [...one.options].map((o) => o.value).filter((v) => v !== one.value)"
                )
                if choices:
                    control.select_option(choices[-1])
            elif control.get_attribute("type") == "checkbox":
                control.click()
            else:
                control.press("ArrowRight")
    settle(page)
    address, settings, controls, sentences = (
        page.evaluate("() => location.hash"),
        page.evaluate("() => posenc.settingsNow()"),
        page.evaluate(CONTROLS),
        view_sentences(page),
    )
    copy = visit(address=address, all_views=True)
    settle(copy)
    assert copy.evaluate("() => posenc.settingsNow()") == settings
    assert copy.evaluate(CONTROLS) == controls
    assert view_sentences(copy) == sentences


@pytest.mark.slow
def test_a_link_that_sets_what_stands_under_more_opens_it(browser, write_page):
    page = browser.new_page()
    for address, is_open in (("#arrows?position=40", False), ("#arrows?arrows.layout=interleaved", True)):
        page.goto("about:blank")
        page.goto(f"{write_page().as_uri()}{address}")
        settle(page)
        assert page.locator("#arrows details.more").evaluate("(details) => details.open") is is_open, address
    page.close()


@pytest.mark.slow
def test_an_address_that_says_nonsense_is_a_page_all_the_same(visit):
    page = visit()
    views = views_with_numbers(page)
    names = page.evaluate("() => Object.keys(posenc.settingsNow())")
    for value in ("-1", "1e9", "0.5", "", "%FF<script>window.hit=1</script>"):
        page.evaluate("(hash) => (location.hash = hash)", f"#nowhere?{'&'.join(f'{name}={value}' for name in names)}")
        settle(page)
        alert_texts = "(all) => all.map((one) => `${one.closest('section').id}: ${one.textContent}`)"
        assert page.locator("section [role=alert]").evaluate_all(alert_texts) == [], value
        assert views_with_numbers(page) == views, value
        assert page.evaluate("() => location.hash").startswith(f"#{views[0]}"), value
    assert page.evaluate("() => window.hit") is None


def download_from(page, button):
    """Return the download that a button starts; Chromium holds back each eleventh of many in a row."""
    from playwright.sync_api import TimeoutError as Late

    for patience in (4_000, 60_000):
        with contextlib.suppress(Late), page.expect_download(timeout=patience) as download:
            button.click()
        with contextlib.suppress(Late):
            return download.value
    pytest.fail(f"nothing was saved: {page.locator('.tools [role=status]').all_inner_texts()}")


@pytest.mark.slow
def test_every_view_is_saved_as_a_drawing_a_picture_and_numbers(shared_page, tmp_path):
    page = shared_page()
    for view in views_with_numbers(page):
        for format_name in ("SVG", "PNG", "Data"):
            button = page.locator(f"#{view} .tools button", has_text=re.compile(f"^{format_name}$"))
            download = download_from(page, button)
            file = tmp_path / download.suggested_filename
            download.save_as(file)
            assert file.stem == f"posenc-{view}"
            if format_name == "SVG":
                root = ElementTree.parse(file).getroot()
                parts = {part.tag.rpartition("}")[2] for part in root.iter()}
                assert float(root.attrib["width"]) > 200 and float(root.attrib["height"]) > 50, view
                assert parts & {"path", "image", "circle", "line", "rect"} and "text" in parts, view
                assert "var(" not in file.read_text() and "color(" not in file.read_text(), view
            elif format_name == "PNG":
                head = file.read_bytes()[:24]
                assert head[:8] == b"\x89PNG\r\n\x1a\n"
                assert int.from_bytes(head[16:20], "big") > 600 and int.from_bytes(head[20:24], "big") > 150, view
                assert len(set(file.read_bytes())) > 50, view
            else:
                data = json.loads(file.read_text())
                assert data["view"] == view and data["said"] == view_sentences(page)[view]
                assert data["rows"] and {len(row) for row in data["rows"]} == {len(data["columns"])}, view


@pytest.mark.slow
def test_numbers_stand_in_a_table_that_keys_reach(shared_page):
    page = shared_page()
    for view in views_with_numbers(page):
        page.locator(f"#{view} .numbers > summary").press("Enter")
        table = page.locator(f"#{view} .numbers [role=region]")
        table.wait_for()
        page.keyboard.press("Tab")
        assert table.evaluate("(one) => one === document.activeElement"), view
        assert table.locator("tbody tr").count() >= 1, view
        page.locator(f"#{view} .numbers > summary").click()


@pytest.mark.slow
def test_nothing_moves_by_itself_for_who_asked_for_that(shared_page):
    page = shared_page()
    page.emulate_media(reduced_motion="reduce")
    settle(page)
    # The text for screen readers comes half a second after the page rests.
    page.wait_for_timeout(800)
    html = "() => document.querySelector('main').innerHTML"
    first_html = page.evaluate(html)
    page.wait_for_timeout(400)
    assert page.evaluate(html) == first_html
    assert page.evaluate("() => document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="null")


@pytest.mark.slow
def test_paper_has_the_drawings_and_no_buttons(shared_page):
    page = shared_page()
    page.get_by_label("Colours").select_option("dark")
    page.emulate_media(media="print")
    for selector in ("nav", ".skip", ".tools", "section input", "header input", "header details"):
        visible_views = "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.closest('section')?.id)"
        assert page.locator(selector).evaluate_all(visible_views) == [], selector
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("svg.drawing").first.is_visible()
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") >= 1
    page.emulate_media(media="null")


def test_the_page_asks_for_nothing_but_itself_and_is_small_and_quick(visit, browser, write_page):
    file = write_page()
    assert file.stat().st_size < 3_000_000
    context = browser.new_context()
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    start = time.monotonic()
    page.goto(file.as_uri(), wait_until="commit")
    page.locator("section select").first.select_option("rotary")
    seconds = time.monotonic() - start
    settle(page)
    context.close()
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    # 0.3 s on an idle machine; other processes of a test run slow it down.
    assert seconds < 8
