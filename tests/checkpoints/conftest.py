"""The small checkpoint and the text of most tests of extending."""

from pathlib import Path

import pytest
import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Llama of two layers."""
    return tiny_llama.save(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a text."""
    path = tmp_path_factory.mktemp("texts") / "novel.txt"
    path.write_text(tiny_llama.TEXT)
    return str(path)
