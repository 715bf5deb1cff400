"""Typeset equations: what the catalogue ships has one, it can be set, and it says what the docstring says."""

import inspect
import re
from xml.etree import ElementTree

import pytest

from posenc import catalogue, coordinate_maps, schedules
from posenc.encoding.formulas import equation_lines

convert = pytest.importorskip("latex2mathml.converter").convert

KINDS = {
    "encoding": {name: catalogue.find(name) for name in catalogue.names()},
    "schedule": schedules.SCHEDULES,
    "coordinate map": coordinate_maps.COORDINATE_MAPS,
}
EQUATIONS = [(kind, name) for kind, found in KINDS.items() for name in found]

FURTHER = {"for", "the", "to", "of", "in", "H"}
"""Words that need no explanation, and the number of heads."""

STRUCTURE = re.compile(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+")
"""Commands of LaTeX: they name no symbol, but for Greek letters."""

GREEK = {"alpha", "beta", "gamma", "delta", "zeta", "tau", "phi", "psi"}


def symbols(latex: str) -> set[str]:
    greek = {command for command in re.findall(r"\\([a-z]+)", latex) if command in GREEK}
    return greek | set(re.findall(r"[A-Za-z]+", STRUCTURE.sub(" ", latex)))


@pytest.mark.parametrize(("kind", "name"), EQUATIONS)
def test_an_equation_can_be_set_by_a_browser(kind: str, name: str) -> None:
    formulas = equation_lines(KINDS[kind][name].equation)
    assert formulas, f"{name} has no equation"
    for formula in formulas:
        # What the converter does not know it passes on as it is.
        assert "\\" not in "".join(ElementTree.fromstring(convert(formula)).itertext())


@pytest.mark.parametrize(("kind", "name"), EQUATIONS)
def test_what_an_equation_names_stands_in_the_docstring(kind: str, name: str) -> None:
    cls = KINDS[kind][name]
    explained_names = inspect.getdoc(cls) or ""
    names = set(re.findall(r"[A-Za-z]+", explained_names)) | FURTHER
    assert {symbol for symbol in symbols(cls.equation) if symbol not in names} == set()


def test_a_symbol_that_nobody_explains_is_seen() -> None:
    assert symbols(r"\text{slope}_h \, \beta \sqrt{q}") == {"slope", "h", "beta", "q"}
