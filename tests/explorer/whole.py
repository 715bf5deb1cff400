"""What the tests of the whole page share: they ask the page for its views, and know none by name."""

import json
import re
from collections.abc import Callable
from typing import Any

from posenc.lab.views import page as made

PAGE_NUMBERS = re.compile(r'<script type="application/json" id="posenc-data">(.*?)</script>', re.DOTALL)

SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))"
"""Drawings have their widths, and the address has the settings."""


def settle(page: Any) -> None:
    """Wait until all views that are shown are drawn, and the address says what they show."""
    page.wait_for_function("() => !document.querySelector('.waiting:not([hidden] *)')")
    page.evaluate(SETTLED)


def reach(page: Any) -> None:
    """Open what waits under "More", so that a test reaches every control."""
    page.locator("section details:has(.controls)").evaluate_all("(all) => all.forEach((one) => (one.open = true))")


def views_of(page: Any) -> list[str]:
    """The views that the page has numbers for."""
    settle(page)
    return [name for name in page.evaluate("() => posenc.names") if page.locator(f"#{name} .inside").count()]


def said(page: Any) -> dict[str, str]:
    """The sentence of each view."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('section')]"
        ".map((view) => [view.id, view.querySelector('.said')?.textContent ?? '']))"
    )


def with_data(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The text of a page whose numbers are changed."""
    found = PAGE_NUMBERS.search(text)
    assert found is not None
    data = json.loads(found[1])
    change(data)
    return text[: found.start()] + str(made.numbers(data)) + text[found.end() :]
