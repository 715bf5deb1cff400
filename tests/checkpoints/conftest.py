"""The small checkpoint that most tests of extending are given, and a text for it."""

from pathlib import Path

import pytest
import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama of two layers."""
    return tiny_llama.save(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a text."""
    path = tmp_path_factory.mktemp("texts") / "novel.txt"
    path.write_text(tiny_llama.TEXT)
    return str(path)
