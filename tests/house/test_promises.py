"""Sentences that promise: each stands in a test, which carries it out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import posenc

SOURCE, TESTS = Path(posenc.__file__).parent, Path(__file__).parents[1]
PROMISE = re.compile(
    r"nothing (?:was|is) (?:written|converted|changed|measured(?! past)|lost|kept)|(?:is|are) (?:not )?kept(?! in)"
    r"|goes on (?:from|where)|mended by"
    r"|(?<!not )verified|stays as it is|left out from now on|is made again|run is the same|same command",
    re.IGNORECASE,
)


def literals(file: Path) -> Iterator[str]:
    """The strings of a file that can be shown to a person: docstrings are not among them."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def promises() -> dict[str, set[str]]:
    """Phrase -> the files of the package that say it."""
    phrases: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for text in literals(file):
            for phrase in PROMISE.findall(text):
                phrases.setdefault(phrase.lower(), set()).add(file.relative_to(SOURCE).as_posix())
    return phrases


def test_what_a_sentence_promises_is_carried_out_by_a_test() -> None:
    phrases = promises()
    assert len(phrases) > 5
    here = Path(__file__)
    tests = "".join(file.read_text(encoding="utf-8").lower() for file in TESTS.rglob("test_*.py") if file != here)
    assert not {phrase: files for phrase, files in phrases.items() if phrase not in tests}
