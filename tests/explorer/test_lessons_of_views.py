"""The lessons and pages that the views name exist."""

from pathlib import Path

import pytest

from posenc.lessons import lessons

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_view_names_a_lesson_by_its_place_and_files_or_a_page(shared_page):
    page = shared_page()
    places = {f"src/posenc/lessons/{lesson.name}.md": f"posenc lesson {lesson.place}" for lesson in lessons()}
    lesson_files = {}
    for view in page.evaluate("() => posenc.names"):
        *lesson, page_path = page.locator(f"#{view} > details").last.locator("code").all_text_contents()
        assert (ROOT / page_path).is_file(), view
        if lesson:
            command, file = lesson
            assert places[file] == command, view
            lesson_files[view] = file
    assert set(page.evaluate("() => posenc.names")) - set(lesson_files) == {"cache", "precision"}
