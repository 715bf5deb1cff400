"""The board: what stands on it, what is kept of a run, what is missing, and pages that say what the rows say."""

import gzip
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_rows import BOARD, row, rows
from fake_records import record as fake_record

from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.board import costs, page, run, scope, tables
from posenc.lab.board import rows as kept
from posenc.lab.board.costs import Cost
from posenc.lab.board.costs import read as read_costs
from posenc.lab.board.plan import plan, rate_factor, search
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.summary import results, task_of
from posenc.lab.results.summary.claims import carried
from posenc.lab.runs import record
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.workers import run_one

COSTS = {"rotary": Cost("rotary", 0, 2048, 1.1, 1.25), "path": Cost("path", 8712, 3088, 1.5, 2.26)}


# What stands on the board


@pytest.mark.slow
def test_every_encoding_that_ships_has_a_meaning_somewhere() -> None:
    found = scope.with_meaning(["copy", "grid_mark"], ())
    assert {spec for _, spec in found} == set(scope.encodings())
    assert {spec for task, spec in found if task == "grid_mark"} >= {"none", "axial_rotary", "learned_grid"}


def test_what_has_a_meaning_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scope.why_not("copy", "rotary") == ""
    assert "reads 2 axes, got positions with 1 axis" in scope.why_not("copy", "learned_grid")
    with pytest.raises(ValueError, match=r"learned_grid has no meaning on copy: learned_grid.* reads 2 axes"):
        run.Board(tmp_path, ("copy",), ("learned_grid",)).pairs()
    monkeypatch.setattr(scope, "encodings", lambda: ["rotary", "learned_grid"])
    assert run.Board(tmp_path, ("copy",)).pairs() == [("copy", "rotary")]


@pytest.mark.parametrize("task", scope.tasks())
def test_lengths_go_as_far_as_a_task_does(task: str) -> None:
    made, trained, lengths = scope.task_of(task), scope.recipes.trained_length(scope.task_of(task)), scope.lengths(task)
    assert lengths and list(lengths) == sorted(set(lengths)) and lengths[0] > trained
    assert all(made.tokens(length) <= scope.MOST_TOKENS for length in lengths)
    assert lengths[-1] <= 16 * trained


def test_all_encodings_have_the_same_steps_and_no_more_than_the_time_allows() -> None:
    runs = [scope.experiment("sort", spec, 100) for spec in ("none", "path", "rotary,none")]
    assert len({one.steps for one in runs}) == 1
    assert scope.recipes.cost(runs[0]) <= scope.TRAINING_SECONDS * scope.A_SECOND
    assert runs[0].batch == 16 and runs[0].rate == scope.recipe("sort", "none").rate
    text = scope.experiment("text", "none", 100)
    assert (text.steps, text.batch) == (scope.recipe("text", "none").steps, scope.recipe("text", "none").batch)
    assert runs[2].spec == ("rotary", "none")


# What is kept


def whole(**changes: Any) -> dict[str, Any]:
    return fake_record("rotary", "copy", 100, **changes)


def test_a_row_is_small_and_has_all_that_summaries_read() -> None:
    full = whole()
    found = kept.row_of(full)
    assert len(store.sealed(found)) < 2_000 < len(store.sealed(full)) / 4
    for one, other in zip(results([full]), results([found]), strict=True):
        assert one.lengths() == other.lengths() and carried(one) == carried(other) != []
        assert tables.cells_of(one, False, [10, 20]) == tables.cells_of(other, False, [10, 20])


def test_rows_are_read_as_they_were_written_sorted_by_key_and_each_once(tmp_path: Path) -> None:
    kept.add(tmp_path, reversed(rows()))
    kept.add(tmp_path, [row("copy", "rotary", 100, 8)])
    file = tmp_path / "rows.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    keys = [store.unsealed(line, tmp_path)["key"] for line in lines]
    assert keys == sorted(set(keys)) and len(keys) == sum(len(each) for of in BOARD.values() for each in of.values())
    before = file.read_bytes()
    kept.add(tmp_path, rows()[:3])
    assert file.read_bytes() == before
    expected = {one["key"]: one for one in [*rows(), row("copy", "rotary", 100, 8)]}
    assert {one["key"]: one for one in kept.read(tmp_path)} == expected


def test_a_damaged_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    kept.add(tmp_path, rows())
    path = tmp_path / "rows.jsonl.gz"
    whole = path.read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    path.write_bytes(gzip.compress(lines[0] + lines[1].replace(b'"learned": true', b'"learned": false')))
    with pytest.raises(
        CannotRead, match=r"rows\.jsonl\.gz:2: it does not fit its checksum: .*; put an earlier copy back, or delete"
    ):
        kept.read(tmp_path)
    path.write_bytes(gzip.compress(re.sub(rb', "checksum": "\w+"', b"", lines[0])))
    with pytest.raises(CannotRead, match=r"gz:1: it has lost its checksum; put an earlier"):
        kept.read(tmp_path)
    path.write_bytes(whole[:-9])
    with pytest.raises(
        CannotRead, match=r"rows\.jsonl\.gz: it is no whole gzip file.*; put an earlier copy back, or delete"
    ):
        kept.add(tmp_path, rows())
    assert path.read_bytes() == whole[:-9]


def test_rows_of_some_tasks_are_read_alone(tmp_path: Path) -> None:
    kept.add(tmp_path, rows())
    path, seen = tmp_path / "rows.jsonl.gz", []
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    other = [
        line.replace(b'"learned": true', b'"learned": null') if b'"task": "copy"' not in line else line
        for line in lines
    ]
    path.write_bytes(gzip.compress(b"".join(other)))
    found = kept.there(tmp_path, lambda tasks: seen.append(tasks) or ["copy"])
    assert {task_of(one) for one in found} == {"copy"} < {*seen[0]} == {task_of(one) for one in rows()}
    with pytest.raises(CannotRead, match="it does not fit its checksum"):
        kept.there(tmp_path, lambda tasks: tasks)


def test_without_a_board_it_says_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no board in .* name the folder with --rows"):
        kept.there(tmp_path)


def test_full_records_become_rows_and_are_gone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    record.write(whole(), work / "records")
    (work / "records" / "damaged.json").write_text("{")
    assert kept.fold(work, tmp_path) == 1
    assert kept.read(tmp_path) == [kept.row_of(whole())]
    assert [path.name for path in (work / "records").iterdir()] == ["damaged.damaged"]


# What is missing


PAIRS = [("copy", "rotary"), ("induction", "rotary"), ("copy", "path")]


def searched(*, best: float) -> list[dict[str, Any]]:
    """Rows of rotary's search in which one factor learns at once and the others late."""
    found = []
    for factor, runs in search("rotary").items():
        for one in runs:
            made = row(one.task, "rotary", one.seed, 1, key=record.key_of(one), experiment=one.to_dict())
            made["steps_to_learned"] = 100 if factor == best else one.steps
            found.append(made)
    return found


@pytest.mark.parametrize("best", scope.RATE_FACTORS)
def test_the_rate_that_learns_soonest_is_taken(best: float) -> None:
    assert rate_factor(search("rotary"), searched(best=best)) == best
    missing = plan(PAIRS[:1], searched(best=best), (100,))
    (found,) = missing["evidence"].values()
    assert found.rate == pytest.approx(scope.experiment("copy", "rotary", 100).rate * best)
    assert not missing["search"]


def test_a_search_that_is_not_over_decides_nothing() -> None:
    best = scope.RATE_FACTORS[-1]
    part = [one for one in searched(best=best) if one["experiment"]["task"] == "copy"]
    assert rate_factor(search("rotary"), part) == 1.0


def test_the_first_seed_of_everything_comes_before_the_second_of_anything() -> None:
    made = plan(PAIRS, [], (100, 101))
    assert [(one.seed, one.task, one.spec) for one in made["evidence"].values()] == [
        (seed, task, spec) for seed in (100, 101) for task, spec in PAIRS
    ]
    done = [row(one.task, one.spec, one.seed, 1, key=key) for key, one in list(made["evidence"].items())[:2]]
    assert list(plan(PAIRS, done, (100, 101))["evidence"]) == list(made["evidence"])[2:]


# Filling it


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that take no time, in this process."""
    whole_run: Callable[..., Any] = scope.experiment

    def experiment(*given: Any) -> Any:
        small = {"train_length": 2, "test_lengths": (3, 4), "dim": 16, "heads": 4, "layers": 1, "batch": 2, "steps": 2}
        return replace(whole_run(*given), **small)

    def run_here(runs: Sequence[Experiment], folder: Path, *, workers: int, show: Callable, more: Callable) -> None:
        state = sweep.Sweep()
        for one in runs:
            key = record.key_of(one)
            state.runs[key] = sweep.Progress(key, str(one.spec), one.task, one.seed, one.steps)
            if more():
                run_one(one, key, folder / "records", lambda **changes: None)
                state.runs[key].state = "done"
                show(state)

    monkeypatch.setattr(scope, "experiment", experiment)
    monkeypatch.setattr(run, "run_all", run_here)
    monkeypatch.setattr(costs, "DIM", 16)


OWN = '''
from posenc import Encoding


class Mine(Encoding):
    """Does nothing."""
'''


@pytest.mark.usefixtures("tiny")
def test_the_board_is_filled_resumed_and_joined_by_an_encoding_of_ones_own(tmp_path: Path) -> None:
    base = run.Board(tmp_path / "board", ("copy",), ("none",), (100, 101), base=tmp_path / "board")
    assert run.fill(base, workers=1, seconds=0) == {} and base.rows() == []
    assert run.fill(base, workers=1) == {}
    found = base.rows()
    # Four of the search, on two tasks, and two that count.
    assert [one["experiment"]["seed"] for one in found].count(scope.SEARCH_SEED) == 4
    assert sorted(one["experiment"]["seed"] for one in tables.evidence(found)) == [100, 101]
    assert not list((base.out / "work" / "records").iterdir())
    before = (base.out / "rows.jsonl.gz").stat()
    assert run.fill(base, workers=1) == {}
    assert (base.out / "rows.jsonl.gz").stat().st_mtime_ns == before.st_mtime_ns
    assert set(read_costs(base.out)) == {"none"}

    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path / 'mine.py'}:Mine"
    own = run.Board(tmp_path / "own", ("copy",), (name,), (100,), base=base.out)
    assert run.fill(own, workers=1) == {}
    assert {one["experiment"]["spec"] for one in kept.read(own.out)} == {name}
    assert [one for one in own.rows() if one["experiment"]["spec"] == "none"] == found
    page.write(own.rows(), own.costs(), own.out)
    text = (own.out / "README.md").read_text()
    assert "mine.py:Mine" in text and "| `none` |" in text
    # Nothing that is read runs the code of a file.
    (tmp_path / "mine.py").unlink()
    assert kept.read(own.out)


# Pages


def cells_of(text: str, title: str) -> dict[str, list[str]]:
    """label -> cells, of a table of the README."""
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {first.strip("`"): rest for first, *rest in lines}


def test_the_page_says_what_the_rows_say(tmp_path: Path) -> None:
    page.write(rows(), COSTS, tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for task, by_spec in BOARD.items():
        found = cells_of(text, task)
        assert found.keys() == by_spec.keys()
        for spec, reaches in by_spec.items():
            assert found[spec][0] == f"{sum(reach > 0 for reach in reaches)} of 5"
            if task != "text":
                shares = [f"{sum(reach >= factor for reach in reaches)} of 5" for factor in (1.2, 1.5, 2, 4, 8, 16)]
                assert found[spec][2:8] == shares
    assert cells_of(text, "text")["rotary"][2:4] == ["1.00", "2.00"]
    together = cells_of(text, "All tasks")
    # Of 1, 1.5, 1.2 and 1.2 the geometric mean.
    assert together["rotary"] == ["3 of 3", "1.21x", "0.67x", "9.5", "0", "2,048", "1.1x", "1.25x"]
    # Whoever was measured on few tasks stands behind the others, however far it carries.
    order = ["alibi", "rotary", "learned", "none", "forgetting", "t5_bias"]
    assert [label for label in together if label in order] == order
    assert "| 4 of 5 | 38 to 96 % |" in text
    assert "- seeds: 100, 101, 102, 103, 104" in text
    assert "grid_mark: `alibi`, `learned`" in text.split("## What was not measured")[1]
    assert (tmp_path / "figures" / "speed-and-reach.png").stat().st_size > 10_000
    html = (tmp_path / "board.html").read_text(encoding="utf-8")
    for words in ("axial_rotary", "order_class", "<svg", "AMD EPYC"):
        assert words in html


def test_half_of_the_tasks_learned_is_not_fewer_than_half() -> None:
    tasks = ("copy", "pass_key", "order_class", "grid_mark")
    reaches = {"one": (1, 0, 0, 0), "half": (1, 1, 0, 0), "most": (1, 1, 1, 0), "nowhere": (0, 0)}
    found = [
        row(task, spec, seed, reach)
        for spec, each in reaches.items()
        for task, reach in zip(tasks, each, strict=False)
        for seed in (100, 101, 102)
    ]
    # Every run on text counts as learned, and has no steps to it.
    found += [row("text", spec, 100, 1) for spec in reaches]
    by_label = {one.label: one for one in tables.standings(found)}
    counts = {label: (one.learned, one.tasks) for label, one in by_label.items()}
    assert counts == {"one": (1, 4), "half": (2, 4), "most": (3, 4), "nowhere": (0, 2)}
    assert {label for label, one in by_label.items() if math.isfinite(one.speed)} == {"half", "most"}


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    page.write([row("copy", "a|b`<i>.py:Mine", 100, 1)], COSTS, tmp_path)
    assert list(cells_of((tmp_path / "README.md").read_text(encoding="utf-8"), "copy")) == [r" a\|b`<i>.py:Mine "]
    assert "<i>.py" not in (tmp_path / "board.html").read_text(encoding="utf-8")


def test_a_page_without_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no rows to show yet; run some with posenc board --out"):
        page.write([row("copy", "rotary", 0, 1)], COSTS, tmp_path)


def test_fewer_seeds_than_asked_are_said() -> None:
    said = tables.unmeasured([row("copy", "rotary", 100, 1), row("copy", "alibi", 100, 1)], 5)
    assert said[0] == "copy: fewer than 5 seeds of `rotary` (1), `alibi` (1)."


def test_what_comes_nowhere_near_is_run_with_the_first_seeds_only() -> None:
    seeds = (100, 101, 102, 103, 104)
    pairs = [("copy", "rotary"), ("copy", "path")]
    made = plan(pairs, [], seeds)
    done = [
        row(one.task, one.spec, one.seed, 0 if one.spec == "path" else 1, key=key)
        for key, one in made["evidence"].items()
        if one.seed < 103
    ]
    missing = plan(pairs, done, seeds)["evidence"].values()
    assert [(one.spec, one.seed) for one in missing] == [("rotary", 103), ("rotary", 104)]
    said = tables.unmeasured(done, 5)
    assert said[0] == "copy: fewer than 5 seeds of `rotary` (3)."
    assert said[1] == ("Where none of 3 seeds answers 50 % of the sequences of the trained length, no more were run.")
    near = [one | {"in_distribution": {"exact_match": 0.51, "token_accuracy": 0.9}} for one in done[-1:]]
    assert len(plan(pairs, [*done[:-1], *near], seeds)["evidence"]) == 4
    assert len(plan(pairs, done[:-1], seeds)["evidence"]) == 5


@pytest.mark.skipif(not (run.COMMITTED / "README.md").exists(), reason="the repository has no board yet")
def test_the_committed_page_is_what_the_committed_rows_make() -> None:
    found = page.in_order(kept.read(run.COMMITTED))
    pictured = (run.COMMITTED / "figures" / "speed-and-reach.png").exists()
    made = page.markdown(found, read_costs(run.COMMITTED), pictured=pictured)
    assert (run.COMMITTED / "README.md").read_text(encoding="utf-8") == made
