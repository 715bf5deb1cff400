"""Damaged files of runs (records, settings, run.json, cached results) are read, or refused with a message."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_records import record as fake_record
from fuzz.driver import mutate, run_cases, short_and_long

from posenc.checkpoints.extension import runs
from posenc.foreign import visible
from posenc.lab import figures, store
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint, record
from posenc.lab.runs import settings as lab_settings
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


def item_paths(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths of a value and of all values inside it."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [path, *(deeper for name, inner in items for deeper in item_paths(inner, (*path, name)))]


def with_rubbish(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with rubbish in one place, or with one field less or more."""
    copy = json.loads(json.dumps(value))
    *way, last = random.choice(item_paths(copy)[1:])
    holder = copy
    for name in way:
        holder = holder[name]
    fault = random.randrange(5)
    if fault == 0 and isinstance(holder, dict) and len(copy) > 1:
        del holder[last]
    elif fault == 1 and isinstance(holder, dict):
        holder[f"{last} too"] = random.choice(RUBBISH)
    else:
        holder[last] = random.choice(RUBBISH)
    return copy


HOSTILE_TEXTS = (
    "<script>evil()</script>",
    "</td>](http://evil)`**",
    "\x1b[31m\x9b\u202e\ud800",
    "$\\frac{",
    "x" * 20_000,
    "a\nb",
    "",
)


def with_hostile_texts(random: Random, value: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a copy with up to `count` hostile texts, and sometimes rubbish in one place."""
    copy = json.loads(json.dumps(value))
    for *way, last in random.choices(item_paths(copy)[1:], k=count):
        holder = copy
        for name in way:
            holder = holder[name]
        if isinstance(holder[last], str):
            holder[last] = random.choice(HOSTILE_TEXTS)
    return with_rubbish(random, copy) if random.random() < 0.2 else copy


def write_checkpoint(folder: Path) -> Path:
    run = training.start(recipe("copy", "learned", train_length=2, dim=4, heads=1, layers=1))
    checkpoint.save(run, folder)
    return folder / "step-000000" / "run.json"


SOUND_FILES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "a record": (
        lambda folder: record.write(fake_record("rotary") | {"key": "a"}, folder),
        lambda folder: record.read(folder / "a.json"),
    ),
    "settings": (
        lambda folder: store.write(folder / "settings.json", store.dump_json(asdict(lab_settings.Settings(seeds=2)))),
        lambda folder: lab_settings.sort_by_settings([fake_record()], lab_settings.read_settings(folder)),
    ),
    "run.json": (write_checkpoint, checkpoint.load),
}


@pytest.mark.parametrize("file_kind", SOUND_FILES)
@short_and_long(60, 3000)
def test_whatever_the_bytes_are_they_are_read_or_refused(file_kind: str, seeds: range, tmp_path: Path) -> None:
    write, read = SOUND_FILES[file_kind]
    path = write(tmp_path)
    whole = path.read_bytes()

    def case(seed: int) -> None:
        path.write_bytes(mutate(Random(seed), whole))
        read(tmp_path)

    assert run_cases(case, seeds)["refused"] > 0.9 * len(seeds)


@pytest.mark.parametrize("file_kind", SOUND_FILES)
@short_and_long(25, 1_000)
def test_whatever_a_field_holds_under_a_right_checksum_it_is_read_or_refused(
    file_kind: str, seeds: range, tmp_path: Path
) -> None:
    write, read = SOUND_FILES[file_kind]
    path = write(tmp_path)
    whole = store.read_checked_json(path)

    def case(seed: int) -> None:
        path.write_bytes(store.dump_json(with_rubbish(Random(seed), whole)))
        read(tmp_path)

    assert run_cases(case, seeds, errors=ValueError)["refused"]


@short_and_long(5, 300)
def test_whatever_records_and_settings_hold_the_page_shows_it_as_text_or_it_is_refused(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page itself has the contents of the figures, so that no figure is drawn.
    monkeypatch.setattr(figures, "save", lambda *_, **__: None)
    sound = fake_record("rotary", attention=None, pictures=None)
    sound |= {"attention": {"tokens": ["^", "a"], "with": [[[[1.0, 0.0]] * 2]], "without": [[[[1.0, 0.0]] * 2]]}}
    sound |= {"pictures": {"added": None, "wavelengths": [6.3, 63.0], "bias": None, "rotation": [1.0, 0.5]}}
    # The settings have no preset, because a preset is one of two words.
    settings = {"encodings": ["rotary", "alibi"], "task_names": ["repeat"], "changes": {"text": "a"}}

    def case(seed: int) -> None:
        random = Random(seed)
        for key, fields in (("a", sound), ("b", with_hostile_texts(random, sound, 20))):
            record.write(fields | {"key": key}, tmp_path / "records")
        store.write(tmp_path / "settings.json", store.dump_json(with_hostile_texts(random, settings, 3)))
        loaded_settings = lab_settings.read_settings(tmp_path)
        page = (
            report.write(record.read_all(tmp_path), tmp_path, loaded_settings, [*map(record.Failure, HOSTILE_TEXTS)])
            .read_text()
            .replace(script(), "")
        )
        assert visible(page) == page and len(page) < 500_000 and not re.search("<script>evil|x{1001}", page)

    counts = run_cases(case, seeds, cpu=20.0, memory=500 << 20)
    assert counts["read"] and counts["refused"]


@short_and_long(100, 3000)
def test_whatever_the_kept_results_are_they_are_used_or_made_again(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    for number in range(3):
        runs.PassResults(path).get_or_run({"number": number}, lambda value=number: {"value": value})
    whole = path.read_bytes()

    def case(seed: int) -> None:
        path.write_bytes(mutate(Random(seed), whole))
        for number in range(3):
            result = runs.PassResults(path).get_or_run({"number": number}, lambda value=number: {"value": value})
            assert result["value"] == number

    assert run_cases(case, seeds)["read"] == len(seeds)
