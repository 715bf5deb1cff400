"""Fixtures that open the built page in a real browser."""

import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from explorer.page_actions import reach, settle

from posenc.explorer.page import explore


@pytest.fixture(scope="session")
def browser() -> Generator[Any]:
    """Headless Chromium, driven by Playwright; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install posenc[test]")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: install chromium")
    with playwright.sync_playwright() as playwright_driver:
        browser = playwright_driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def write_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a page with `explore`'s arguments, once for each set of arguments, and return its path."""
    paths: dict[str, Path] = {}

    def write(*specs: str, **options: Any) -> Path:
        name = repr((specs, sorted(options.items())))
        if name not in paths:
            paths[name] = tmp_path_factory.mktemp("explorer") / "explorer.html"
            paths[name].write_text(explore(specs, **options), encoding="utf-8")
        return paths[name]

    return write


@pytest.fixture(scope="module")
def windows(browser: Any, write_page: Callable[..., Path]) -> Generator[Callable[..., tuple[Any, list[str]]]]:
    """A window for each (width, dark) on the default page, with the list of its console messages."""
    pages: dict[tuple[int, bool], tuple[Any, list[str]]] = {}

    def window(width: int, dark: bool) -> tuple[Any, list[str]]:
        if (width, dark) not in pages:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if dark else "light",
                has_touch=width < 700,
            )
            page, messages = context.new_page(), []
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.goto(write_page().as_uri())
            pages[width, dark] = page, messages
        return pages[width, dark]

    yield window
    for page, _ in pages.values():
        page.context.close()


@pytest.fixture
def shared_page(windows: Callable[..., tuple[Any, list[str]]]) -> Generator[Callable[..., Any]]:
    """A page that the tests of a file share, to draw it once; each test gets it with the settings at their start."""
    consoles: list[list[str]] = []

    def open_start(width: int = 1400, dark: bool = False) -> Any:
        page, messages = windows(width, dark)
        messages.clear()
        consoles.append(messages)
        first = page.evaluate("() => posenc.names[0]")
        page.evaluate("(hash) => (location.hash = hash)", f"#{first}?only=false")
        settle(page)
        reach(page)
        return page

    yield open_start
    assert [text for messages in consoles for text in messages] == []


@pytest.fixture
def visit(browser: Any, write_page: Callable[..., Path]) -> Generator[Callable[..., Any]]:
    """Open a page in a new browser window: `visit("rotary", address="#clock", width=1400, dark=False)`.

    The address's view is drawn alone unless `all_views` is set, with each of its controls in reach. At the end the
    test fails if a window wrote to its console.
    """
    windows: list[tuple[Any, list[str]]] = []

    def open_address(
        *specs: str,
        address: str = "",
        all_views: bool = False,
        width: int = 1400,
        height: int = 900,
        dark: bool = False,
        **options: Any,
    ) -> Any:
        if all_views:
            address += f"{'&' if '?' in address else '#?'}only=false"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", has_touch=width < 700
        )
        page, messages = context.new_page(), []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        windows.append((context, messages))
        page.goto(write_page(*specs, **options).as_uri() + address)
        page.wait_for_selector("section:not([hidden]) h2")
        settle(page)
        reach(page)
        return page

    yield open_address
    for context, _ in windows:
        context.close()
    assert [text for _, messages in windows for text in messages] == []
