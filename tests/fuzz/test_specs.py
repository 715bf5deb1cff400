"""Random specs are built, or refused with one message, in time linear in their length."""

import inspect
from random import Random

import pytest
from fuzz.driver import mutate, run_cases, short_and_long

from posenc import Shape, build, catalogue
from posenc.catalogue import parse
from posenc.schedules import SCHEDULES
from posenc.specs.syntax import code_files, quote_paths, split

SHAPE = Shape.of(dim=16, heads=2, max_len=8)

NUMBERS = (0, 1, 2, 3, -1, 7, 16, 1_000_003, 2**31, 2**63, 10**12, 10**39, -(10**39), 10**400)
VALUES = (
    *map(str, NUMBERS),
    *("0.5", "-0.0", "1e308", "-1e308", "1e-320", "1e999", "-1e999", "True", "False", "None", "half", "interleaved"),
    *(
        "yes",
        "''",
        "'\\x1b[31m'",
        "'mine.py:Mine'",
        "mine.py:Mine",
        "mine.py:Mine(factor=2)",
        "'linear(factor=2)'",
        "\"'mine\\x2epy:Mine'(x=1)\"",
        "(1, 2)",
        "(0.5,) * 3",
        "[]",
        "()",
        "((),)",
        "{}",
    ),
    *("((1, 2), (3, 4))", "[0, 1]", "lambda: 0", "__import__('os')", "...", "b'x'", "1j", "x.y", "x[0]", "-x", "not x"),
    *("(" + "1, " * 3_000 + ")", "'" + "x" * 9_000 + "'"),
)
NAMES = (*catalogue.names(), "on", "_path_0", "rotery", "x", "mine.py:Mine", "'mine.py:Mine'", "a b/mine.py:Mine")


def random_value(random: Random) -> str:
    if random.random() < 0.2:
        name = random.choice(list(SCHEDULES))
        return f"{name}({random_options(random, list(inspect.signature(SCHEDULES[name]).parameters))})"
    return random.choice(VALUES)


def random_options(random: Random, known_names: list[str]) -> str:
    names = [random.choice([*known_names, "x"]) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    return ", ".join(f"{name}={random_value(random)}" for name in names)


def random_spec(random: Random, depth: int = 0) -> str:
    """Return a spec by the grammar, with names and values that are mostly wrong."""
    name = random.choice(NAMES)
    if depth < 4 and random.random() < 0.2:
        return random.choice((" + ", "+", ", ", " - ")).join(random_spec(random, depth + 1) for _ in range(2))
    if depth < 4 and random.random() < 0.15:
        return f"on({random_spec(random, depth + 1)}, heads={random_value(random)})"
    parts = [random_spec(random, depth + 1)] if depth < 4 and random.random() < 0.2 else []
    option_names = list(catalogue.options_of(name)) if name in catalogue.names() else []
    arguments = ", ".join([*parts, *filter(None, [random_options(random, option_names)])])
    return f"{name}({arguments})" if arguments or random.random() < 0.3 else name


SOUND_SPECS = (
    "rotary(base=500_000, schedule=yarn(factor=4, truncate=False), layout=interleaved) + alibi",
    "on(rotary + t5_bias(buckets=8), heads=(0, 1)) + learned(overrun=clamp)",
    "rerope(rotary(schedule=longrope(short_factor=(1, 2, 3, 4), long_factor=(1, 2, 3, 4))), window=512)",
    "dape(kerple, width=3) + none",
    "rotary + some folder/mine.py:Mine(step=3)",
    "'a (b), c+d/mine.py:Mine'(step=3) + alibi",
)


def read_spec(spec: str) -> None:
    for door in (parse, code_files, split, quote_paths):
        try:
            door(spec)
        except ValueError:
            pass
    build(spec, SHAPE)


@short_and_long(100)
def test_a_spec_by_the_grammar_is_built_or_refused(seeds):
    counts = run_cases(lambda seed: read_spec(random_spec(Random(seed))), seeds, errors=ValueError)
    assert counts["read"] and counts["refused"]


@short_and_long(600)
def test_a_spec_with_faults_is_built_or_refused(seeds):
    def read(seed):
        random = Random(seed)
        data = mutate(random, random.choice(SOUND_SPECS).encode())
        read_spec(data.decode(errors=random.choice(("replace", "surrogateescape"))))

    counts = run_cases(read, seeds, errors=ValueError)
    assert counts["read"] and counts["refused"]


LONG_SPECS = {
    "a word": "a" * 20_000,
    "a path": "a" * 19_000 + ".py:B",
    "many paths": "+".join(["a.py:B"] * 2_800),
    "paths that are none": "a.py:" * 4_000,
    "quotes": "\"'" * 10_000,
    "an open quote": "'" + "a" * 19_000,
    "blanks": " " * 20_000,
    "points": ".py" * 6_600,
    "parentheses": "(" * 20_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "signs": "-" * 19_000 + "1",
    "a sum": "+".join(["rotary"] * 2_800),
    "names of options": "rotary(" + ", ".join(f"o{n}=1" for n in range(1_700)) + ")",
    "one option": "rotary(" + "base=2," * 2_500 + ")",
    "a value": "rotary(base=(" + "1," * 9_900 + "))",
    "strings": "rotary(base=(" + "'x', " * 3_900 + "))",
    "strings in a string": "rotary(base=" + repr("(" + "'x', " * 3_900 + ")") + ")",
    "digits": "rotary(base=" + "9" * 19_000 + ")",
    "a million letters": "rotary + " * 111_112,
    "a million quotes": "'" * 1_000_001,
}


@pytest.mark.parametrize("label", LONG_SPECS)
def test_a_long_spec_is_answered_in_time_that_grows_with_its_letters(label):
    assert run_cases(lambda spec: read_spec(spec), [LONG_SPECS[label]], errors=ValueError, cpu=2.0) == {"refused": 1}
