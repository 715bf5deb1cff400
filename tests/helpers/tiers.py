"""Cases of a kind in two tiers: the first few prove it in every run, and all of them under `run.py test --all`."""

from collections.abc import Iterable
from datetime import date
from functools import cache
from itertools import islice
from typing import Any

import pytest

from posenc import testing
from posenc.tokens.watched import COMPILES

THIRD = date.today().toordinal() % 3
"""Which third of many cases is for today: 0, 1 or 2."""

variants = cache(testing.variants)
"""Made once for all files that draw their cases of them: to try which of them can be built takes seconds."""


def rest_slow(cases: Iterable[Any], first: int) -> list[Any]:
    """The cases of one argument, those behind the first few marked as slow."""
    cases = iter(cases)
    return [*islice(cases, first), *(pytest.param(case, marks=pytest.mark.slow) for case in cases)]


def a_third_each_day(cases: Iterable[Any]) -> list[Any]:
    """The cases of one argument, marked as slow but for a third, which is another one on another day."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (n % 3 != THIRD)) for n, case in enumerate(cases)]


def of_these_slow(cases: Iterable[str], endings: tuple[str, ...]) -> list[Any]:
    """The names of cases, those with one of the endings marked as slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * case.endswith(endings)) for case in cases]


in_one_graph = pytest.mark.skipif(not COMPILES, reason="older compilers break the graph, or take no layers")
"""A test that compiles what torch takes as a whole from 2.9 on."""
