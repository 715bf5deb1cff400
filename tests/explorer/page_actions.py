"""Steps that the tests of the whole page share; they take the views' names from the page."""

import json
import re
from collections.abc import Callable
from typing import Any

from posenc.lab.views import page as page_views

PAGE_NUMBERS = re.compile(r'<script type="application/json" id="posenc-data">(.*?)</script>', re.DOTALL)

WAIT_FOR_LAYOUT = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))"
"""Afterwards the drawings have their widths, and the address has the settings."""


def settle(page: Any) -> None:
    """Wait until all visible views are drawn and the address has their settings."""
    page.wait_for_function("() => !document.querySelector('.waiting:not([hidden] *)')")
    page.evaluate(WAIT_FOR_LAYOUT)


def reach(page: Any) -> None:
    """Open the sections "More", so that a test reaches every control."""
    page.locator("section details:has(.controls)").evaluate_all("(all) => all.forEach((one) => (one.open = true))")


def views_with_numbers(page: Any) -> list[str]:
    """Return the names of the views that the page has numbers for."""
    settle(page)
    return [name for name in page.evaluate("() => posenc.names") if page.locator(f"#{name} .figure").count()]


def view_sentences(page: Any) -> dict[str, str]:
    """Return the sentence of each view, by its name."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('section')]"
        ".map((view) => [view.id, view.querySelector('.sentence')?.textContent ?? '']))"
    )


def with_data(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Return a page's text after `change` has edited its numbers."""
    element = PAGE_NUMBERS.search(text)
    assert element is not None
    data = json.loads(element[1])
    change(data)
    return text[: element.start()] + str(page_views.data_element(data)) + text[element.end() :]
