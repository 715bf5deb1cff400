"""The built page in a real browser."""

import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from explorer.whole import reach, settle

from posenc.explorer.page import explore


@pytest.fixture(scope="session")
def browser() -> Generator[Any]:
    """Headless Chromium, driven by Playwright; skipped aloud where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install posenc[test]")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A page of these encodings, and so on as `explore` takes them, written once for each question."""
    made: dict[str, Path] = {}

    def write(*chosen: str, **options: Any) -> Path:
        name = repr((chosen, sorted(options.items())))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("explorer") / "explorer.html"
            made[name].write_text(explore(chosen, **options), encoding="utf-8")
        return made[name]

    return write


@pytest.fixture(scope="module")
def windows(browser: Any, written: Callable[..., Path]) -> Generator[Callable[..., tuple[Any, list[str]]]]:
    """A window on the page of the best known encodings for each (width, dark), with what it says to its console."""
    made: dict[tuple[int, bool], tuple[Any, list[str]]] = {}

    def window(width: int, dark: bool) -> tuple[Any, list[str]]:
        if (width, dark) not in made:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if dark else "light",
                has_touch=width < 700,
            )
            page, said = context.new_page(), []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(written().as_uri())
            made[width, dark] = page, said
        return made[width, dark]

    yield window
    for page, _ in made.values():
        page.context.close()


@pytest.fixture
def kept(windows: Callable[..., tuple[Any, list[str]]]) -> Generator[Callable[..., Any]]:
    """A page that the tests of a file share, which saves drawing it for each: with all settings as they start."""
    used: list[list[str]] = []

    def page_of(width: int = 1400, dark: bool = False) -> Any:
        page, said = windows(width, dark)
        said.clear()
        used.append(said)
        first = page.evaluate("() => posenc.names[0]")
        page.evaluate("(hash) => (location.hash = hash)", f"#{first}?only=false")
        settle(page)
        reach(page)
        return page

    yield page_of
    assert [words for said in used for words in said] == []


@pytest.fixture
def opened(browser: Any, written: Callable[..., Path]) -> Generator[Callable[..., Any]]:
    """Open a page in a browser window of its own: `opened("rotary", address="#clock", width=1400, dark=False)`.

    The view of the address is drawn then, alone but for `whole`, and each of its controls is in reach. At the end no
    window may have said anything to its console.
    """
    windows: list[tuple[Any, list[str]]] = []

    def open_page(
        *chosen: str,
        address: str = "",
        whole: bool = False,
        width: int = 1400,
        height: int = 900,
        dark: bool = False,
        **options: Any,
    ) -> Any:
        if whole:
            address += f"{'&' if '?' in address else '#?'}only=false"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", has_touch=width < 700
        )
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        windows.append((context, said))
        page.goto(written(*chosen, **options).as_uri() + address)
        page.wait_for_selector("section:not([hidden]) h2")
        settle(page)
        reach(page)
        return page

    yield open_page
    for context, _ in windows:
        context.close()
    assert [words for _, said in windows for words in said] == []
