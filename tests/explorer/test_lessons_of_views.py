"""The lessons and pages that the views name are there."""

from pathlib import Path

import pytest

from posenc.lessons import lessons

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_view_names_a_lesson_by_its_place_and_files_or_a_page(kept):
    page = kept()
    places = {f"src/posenc/lessons/{one.name}.md": f"posenc lesson {one.place}" for one in lessons()}
    named = {}
    for view in page.evaluate("() => posenc.names"):
        *lesson, more = page.locator(f"#{view} > details").last.locator("code").all_text_contents()
        assert (ROOT / more).is_file(), view
        if lesson:
            command, file = lesson
            assert places[file] == command, view
            named[view] = file
    assert set(page.evaluate("() => posenc.names")) - set(named) == {"cache", "precision"}
