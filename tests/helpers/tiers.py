"""Split test cases into two tiers: a few in every run, and all of them under `run.py test --all`."""

from collections.abc import Iterable
from datetime import date
from functools import cache
from itertools import islice
from typing import Any

import pytest

from posenc import testing
from posenc.tokens.tracing import COMPILES_LAYERS

THIRD = date.today().toordinal() % 3
"""Today's third of many cases: 0, 1 or 2."""

variants = cache(testing.variants)
"""Cached for all test files, since finding the variants that can be built takes seconds."""


def rest_slow(cases: Iterable[Any], first: int) -> list[Any]:
    """Return the cases of one argument, all but the first few marked as slow."""
    cases = iter(cases)
    return [*islice(cases, first), *(pytest.param(case, marks=pytest.mark.slow) for case in cases)]


def daily_third(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of one argument, all but today's third marked as slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (n % 3 != THIRD)) for n, case in enumerate(cases)]


def slow_by_ending(cases: Iterable[str], endings: tuple[str, ...]) -> list[Any]:
    """Return the names of cases, those with one of the endings marked as slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * case.endswith(endings)) for case in cases]


in_one_graph = pytest.mark.skipif(not COMPILES_LAYERS, reason="older compilers break the graph, or take no layers")
"""Mark of a test that compiles a layer into one graph, which torch can from 2.9 on."""
