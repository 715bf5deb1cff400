"""What runs have left, broken: records, settings, run.json, pointers and kept results are read, or refused in words."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_records import record as fake_record
from fuzz.driver import hold, mutated, short_and_long

from posenc.checkpoints.extension import runs
from posenc.foreign import visible
from posenc.lab import figures, store
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint, record
from posenc.lab.runs import settings as settings_of_lab
from posenc.lab.runs import train as training
from posenc.lab.views.page import script

RUBBISH: tuple[Any, ...] = (
    None,
    True,
    3,
    1e308,
    float("nan"),
    "x",
    "\x1b[31m",
    [],
    [[]],
    {},
    {"a": 1},
    -1,
    10**30,
    [None],
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all that a value holds."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [path, *(deeper for name, inner in inside for deeper in places(inner, (*path, name)))]


def replaced(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    """The value with rubbish in one place, or one field less or more."""
    found = json.loads(json.dumps(value))
    *way, last = random.choice(places(found)[1:])
    holder = found
    for name in way:
        holder = holder[name]
    fault = random.randrange(5)
    if fault == 0 and isinstance(holder, dict) and len(found) > 1:
        del holder[last]
    elif fault == 1 and isinstance(holder, dict):
        holder[f"{last} too"] = random.choice(RUBBISH)
    else:
        holder[last] = random.choice(RUBBISH)
    return found


EVIL = (
    "<script>evil()</script>",
    "</td>](http://evil)`**",
    "\x1b[31m\x9b\u202e\ud800",
    "$\\frac{",
    "x" * 20_000,
    "a\nb",
    "",
)


def reworded(random: Random, value: dict[str, Any], most: int) -> dict[str, Any]:
    """The value with something else in place of a few of its texts, sometimes with rubbish in one place too."""
    found = json.loads(json.dumps(value))
    for *way, last in random.choices(places(found)[1:], k=most):
        holder = found
        for name in way:
            holder = holder[name]
        if isinstance(holder[last], str):
            holder[last] = random.choice(EVIL)
    return replaced(random, found) if random.random() < 0.2 else found


def trained(folder: Path) -> Path:
    run = training.start(recipe("copy", "learned", train_length=2, dim=4, heads=1, layers=1))
    checkpoint.save(run, folder)
    return folder / "step-000000" / "run.json"


SOUND: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "a record": (
        lambda folder: record.write(fake_record("rotary") | {"key": "a"}, folder),
        lambda folder: record.read(folder / "a.json"),
    ),
    "settings": (
        lambda folder: store.write(folder / "settings.json", store.sealed(asdict(settings_of_lab.Settings(seeds=2)))),
        lambda folder: settings_of_lab.in_reading_order([fake_record()], settings_of_lab.read_settings(folder)),
    ),
    "run.json": (trained, checkpoint.load),
}


@pytest.mark.parametrize("what", SOUND)
@short_and_long(60, 3000)
def test_whatever_the_bytes_are_they_are_read_or_refused(what: str, seeds: range, tmp_path: Path) -> None:
    write, read = SOUND[what]
    path = write(tmp_path)
    whole = path.read_bytes()

    def case(seed: int) -> None:
        path.write_bytes(mutated(Random(seed), whole))
        read(tmp_path)

    assert hold(case, seeds)["refused"] > 0.9 * len(seeds)


@pytest.mark.parametrize("what", SOUND)
@short_and_long(25, 1_000)
def test_whatever_a_field_holds_under_a_right_checksum_it_is_read_or_refused(
    what: str, seeds: range, tmp_path: Path
) -> None:
    write, read = SOUND[what]
    path = write(tmp_path)
    whole = store.read_json(path)

    def case(seed: int) -> None:
        path.write_bytes(store.sealed(replaced(Random(seed), whole)))
        read(tmp_path)

    assert hold(case, seeds, refused=ValueError)["refused"]


@short_and_long(5, 300)
def test_whatever_records_and_settings_hold_the_page_shows_it_as_text_or_it_is_refused(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the figures are is in the page too.
    monkeypatch.setattr(figures, "save", lambda *_, **__: None)
    sound = fake_record("rotary", attention=None, pictures=None)
    sound |= {"attention": {"tokens": ["^", "a"], "with": [[[[1.0, 0.0]] * 2]], "without": [[[[1.0, 0.0]] * 2]]}}
    sound |= {"pictures": {"added": None, "wavelengths": [6.3, 63.0], "bias": None, "rotation": [1.0, 0.5]}}
    # A preset is one of two words.
    settings = {"encodings": ["rotary", "alibi"], "task_names": ["repeat"], "changes": {"text": "a"}}

    def case(seed: int) -> None:
        random = Random(seed)
        for key, changed in (("a", sound), ("b", reworded(random, sound, 20))):
            record.write(changed | {"key": key}, tmp_path / "records")
        store.write(tmp_path / "settings.json", store.sealed(reworded(random, settings, 3)))
        chosen = settings_of_lab.read_settings(tmp_path)
        page = (
            report.write(record.read_all(tmp_path), tmp_path, chosen, [*map(record.Failure, EVIL)])
            .read_text()
            .replace(script(), "")
        )
        assert visible(page) == page and len(page) < 500_000 and not re.search("<script>evil|x{1001}", page)

    found = hold(case, seeds, cpu=20.0, memory=500 << 20)
    assert found["read"] and found["refused"]


@short_and_long(100, 3000)
def test_whatever_the_kept_results_are_they_are_used_or_made_again(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    for number in range(3):
        runs.Kept(path).once({"number": number}, lambda value=number: {"value": value})
    whole = path.read_bytes()

    def case(seed: int) -> None:
        path.write_bytes(mutated(Random(seed), whole))
        for number in range(3):
            assert runs.Kept(path).once({"number": number}, lambda value=number: {"value": value})["value"] == number

    assert hold(case, seeds)["read"] == len(seeds)
