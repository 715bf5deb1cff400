"""The code of the pages for users of another library runs.

The site's build (run.py docs) also runs the code, so these tests are slow ones.
"""

import pytest
from code_in_texts import HOME, blocks, run

PAGES = {
    "rotary-embedding-torch": "rotary_embedding_torch",
    "positional-encodings": "positional_encodings",
    "x-transformers": "x_transformers",
    "transformers": "transformers",
}
FOLDER = HOME / "docs" / "coming-from"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_of_a_library_runs_from_top_to_bottom(page: str) -> None:
    pytest.importorskip(PAGES[page], reason="the peers extra is not installed")
    run(FOLDER / f"{page}.md")


@pytest.mark.slow
def test_the_page_of_timm_runs_from_top_to_bottom(timm_layer) -> None:
    run(FOLDER / "timm.md")


def test_every_page_with_code_is_run_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.md") if blocks(path, python=True)} == {*PAGES, "timm", "tutorials"}
