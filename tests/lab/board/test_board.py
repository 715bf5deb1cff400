"""The board: its scope, its rows, the missing runs, and pages that agree with the rows."""

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
from posenc.lab.board import rows as row_files
from posenc.lab.board.costs import Cost
from posenc.lab.board.costs import read as read_costs
from posenc.lab.board.plan import plan, rate_factor, search_runs
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.summary import results, task_of
from posenc.lab.results.summary.claims import seed_shares
from posenc.lab.runs import record
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.workers import make_record

COSTS = {"rotary": Cost("rotary", 0, 2048, 1.1, 1.25), "path": Cost("path", 8712, 3088, 1.5, 2.26)}


@pytest.mark.slow
def test_every_encoding_that_ships_has_a_meaning_somewhere() -> None:
    pairs = scope.meaningful_pairs(["copy", "grid_mark"], ())
    assert {spec for _, spec in pairs} == set(scope.board_encodings())
    assert {spec for task, spec in pairs if task == "grid_mark"} >= {"none", "axial_rotary", "learned_grid"}


def test_what_has_a_meaning_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scope.refusal("copy", "rotary") == ""
    assert "reads 2 axes, got positions with 1 axis" in scope.refusal("copy", "learned_grid")
    with pytest.raises(ValueError, match=r"learned_grid has no meaning on copy: learned_grid.* reads 2 axes"):
        run.Board(tmp_path, ("copy",), ("learned_grid",)).pairs()
    monkeypatch.setattr(scope, "board_encodings", lambda: ["rotary", "learned_grid"])
    assert run.Board(tmp_path, ("copy",)).pairs() == [("copy", "rotary")]


@pytest.mark.parametrize("task", scope.board_tasks())
def test_lengths_go_as_far_as_a_task_does(task: str) -> None:
    instance, lengths = scope.task_of(task), scope.tested_lengths(task)
    base = scope.recipes.recipe_length(instance)
    assert lengths and list(lengths) == sorted(set(lengths)) and lengths[0] > base
    assert all(instance.tokens(length) <= scope.MAX_TOKENS for length in lengths)
    assert lengths[-1] <= 16 * base


def test_all_encodings_have_the_same_steps_and_no_more_than_the_time_allows() -> None:
    runs = [scope.experiment("sort", spec, 100) for spec in ("none", "path", "rotary,none")]
    assert len({run.steps for run in runs}) == 1
    assert scope.recipes.cost(runs[0]) <= scope.TRAINING_SECONDS * scope.COST_PER_SECOND
    assert runs[0].batch == 16 and runs[0].rate == scope.recipe("sort", "none").rate
    text = scope.experiment("text", "none", 100)
    assert (text.steps, text.batch) == (scope.recipe("text", "none").steps, scope.recipe("text", "none").batch)
    assert runs[2].spec == ("rotary", "none")


# Rows


def rotary_record(**changes: Any) -> dict[str, Any]:
    return fake_record("rotary", "copy", 100, **changes)


def test_a_row_is_small_and_has_all_that_summaries_read() -> None:
    full_record = rotary_record()
    small = row_files.row_of(full_record)
    assert len(store.dump_json(small)) < 2_000 < len(store.dump_json(full_record)) / 4
    for whole, short in zip(results([full_record]), results([small]), strict=True):
        assert whole.lengths() == short.lengths() and seed_shares(whole) == seed_shares(short) != []
        assert tables.result_cells(whole, False, [10, 20]) == tables.result_cells(short, False, [10, 20])


def test_rows_are_read_as_they_were_written_sorted_by_key_and_each_once(tmp_path: Path) -> None:
    row_files.add(tmp_path, reversed(rows()))
    row_files.add(tmp_path, [row("copy", "rotary", 100, 8)])
    file = tmp_path / "rows.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    keys = [store.load_json(line, tmp_path)["key"] for line in lines]
    assert keys == sorted(set(keys)) and len(keys) == sum(len(seeds) for x in BOARD.values() for seeds in x.values())
    content = file.read_bytes()
    row_files.add(tmp_path, rows()[:3])
    assert file.read_bytes() == content
    expected = {run_row["key"]: run_row for run_row in [*rows(), row("copy", "rotary", 100, 8)]}
    assert {run_row["key"]: run_row for run_row in row_files.read(tmp_path)} == expected


def test_a_damaged_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    row_files.add(tmp_path, rows())
    path = tmp_path / "rows.jsonl.gz"
    whole = path.read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    path.write_bytes(gzip.compress(lines[0] + lines[1].replace(b'"learned": true', b'"learned": false')))
    with pytest.raises(
        CannotRead, match=r"rows\.jsonl\.gz:2: it does not fit its checksum: .*; put an earlier copy back, or delete"
    ):
        row_files.read(tmp_path)
    path.write_bytes(gzip.compress(re.sub(rb', "checksum": "\w+"', b"", lines[0])))
    with pytest.raises(CannotRead, match=r"gz:1: it has lost its checksum; put an earlier"):
        row_files.read(tmp_path)
    path.write_bytes(whole[:-9])
    with pytest.raises(
        CannotRead, match=r"rows\.jsonl\.gz: it is no whole gzip file.*; put an earlier copy back, or delete"
    ):
        row_files.add(tmp_path, rows())
    assert path.read_bytes() == whole[:-9]


def test_rows_of_some_tasks_are_read_alone(tmp_path: Path) -> None:
    row_files.add(tmp_path, rows())
    path, task_lists = tmp_path / "rows.jsonl.gz", []
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    lines_with_damage = [
        line.replace(b'"learned": true', b'"learned": null') if b'"task": "copy"' not in line else line
        for line in lines
    ]
    path.write_bytes(gzip.compress(b"".join(lines_with_damage)))
    copy_rows = row_files.read_existing(tmp_path, lambda tasks: task_lists.append(tasks) or ["copy"])
    assert set(map(task_of, copy_rows)) == {"copy"} < {*task_lists[0]} == set(map(task_of, rows()))
    with pytest.raises(CannotRead, match="it does not fit its checksum"):
        row_files.read_existing(tmp_path, lambda tasks: tasks)


def test_without_a_board_it_says_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no board in .* name the folder with --rows"):
        row_files.read_existing(tmp_path)


def test_full_records_become_rows_and_are_gone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    record.write(rotary_record(), work / "records")
    (work / "records" / "damaged.json").write_text("{")
    assert row_files.fold(work, tmp_path) == 1
    assert row_files.read(tmp_path) == [row_files.row_of(rotary_record())]
    assert [path.name for path in (work / "records").iterdir()] == ["damaged.damaged"]


# Plan


PAIRS = [("copy", "rotary"), ("induction", "rotary"), ("copy", "path")]


def rows_of_search(*, best: float) -> list[dict[str, Any]]:
    """Return rows of rotary's search in which one factor learns at once and the others late."""
    search_rows = []
    for factor, runs in search_runs("rotary").items():
        for run_wanted in runs:
            key, experiment = record.key_of(run_wanted), run_wanted.to_dict()
            run_row = row(run_wanted.task, "rotary", run_wanted.seed, 1, key=key, experiment=experiment)
            run_row["steps_to_learned"] = 100 if factor == best else run_wanted.steps
            search_rows.append(run_row)
    return search_rows


@pytest.mark.parametrize("best", scope.RATE_FACTORS)
def test_the_rate_that_learns_soonest_is_taken(best: float) -> None:
    assert rate_factor(search_runs("rotary"), rows_of_search(best=best)) == best
    open_runs = plan(PAIRS[:1], rows_of_search(best=best), (100,))
    (run,) = open_runs["evidence"].values()
    assert run.rate == pytest.approx(scope.experiment("copy", "rotary", 100).rate * best)
    assert not open_runs["search"]


def test_a_search_that_is_not_over_decides_nothing() -> None:
    best = scope.RATE_FACTORS[-1]
    part = [run_row for run_row in rows_of_search(best=best) if run_row["experiment"]["task"] == "copy"]
    assert rate_factor(search_runs("rotary"), part) == 1.0


def test_the_first_seed_of_everything_comes_before_the_second_of_anything() -> None:
    stages = plan(PAIRS, [], (100, 101))
    assert [(run.seed, run.task, run.spec) for run in stages["evidence"].values()] == [
        (seed, task, spec) for seed in (100, 101) for task, spec in PAIRS
    ]
    done_rows = [row(run.task, run.spec, run.seed, 1, key=key) for key, run in list(stages["evidence"].items())[:2]]
    assert list(plan(PAIRS, done_rows, (100, 101))["evidence"]) == list(stages["evidence"])[2:]


# Filling the board


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs tiny, and run them in this process."""
    whole_run: Callable[..., Any] = scope.experiment

    def experiment(*arguments: Any) -> Any:
        sizes = {"train_length": 2, "test_lengths": (3, 4), "dim": 16, "heads": 4, "layers": 1, "batch": 2, "steps": 2}
        return replace(whole_run(*arguments), **sizes)

    def run_here(runs: Sequence[Experiment], folder: Path, *, workers: int, show: Callable, go_on: Callable) -> None:
        state = sweep.Sweep()
        for each_run in runs:
            key = record.key_of(each_run)
            state.runs[key] = sweep.Progress(key, str(each_run.spec), each_run.task, each_run.seed, each_run.steps)
            if go_on():
                make_record(each_run, key, folder / "records", lambda **changes: None)
                state.runs[key].state = "done"
                show(state)

    monkeypatch.setattr(scope, "experiment", experiment)
    monkeypatch.setattr(run, "run_all", run_here)
    monkeypatch.setattr(costs, "DIM", 16)


OWN_ENCODING = '''
from posenc import Encoding


class Mine(Encoding):
    """Does nothing."""
'''


@pytest.mark.usefixtures("tiny")
def test_the_board_is_filled_resumed_and_joined_by_an_encoding_of_ones_own(tmp_path: Path) -> None:
    base = run.Board(tmp_path / "board", ("copy",), ("none",), (100, 101), base=tmp_path / "board")
    assert run.fill(base, workers=1, seconds=0) == {} and base.rows() == []
    assert run.fill(base, workers=1) == {}
    base_rows = base.rows()
    # Four of the search, on two tasks, and two that count.
    assert [run_row["experiment"]["seed"] for run_row in base_rows].count(scope.SEARCH_SEED) == 4
    assert sorted(run_row["experiment"]["seed"] for run_row in tables.evidence(base_rows)) == [100, 101]
    assert not list((base.out / "work" / "records").iterdir())
    status = (base.out / "rows.jsonl.gz").stat()
    assert run.fill(base, workers=1) == {}
    assert (base.out / "rows.jsonl.gz").stat().st_mtime_ns == status.st_mtime_ns
    assert set(read_costs(base.out)) == {"none"}

    (tmp_path / "mine.py").write_text(OWN_ENCODING)
    name = f"{tmp_path / 'mine.py'}:Mine"
    own_board = run.Board(tmp_path / "own", ("copy",), (name,), (100,), base=base.out)
    assert run.fill(own_board, workers=1) == {}
    assert {run_row["experiment"]["spec"] for run_row in row_files.read(own_board.out)} == {name}
    assert [run_row for run_row in own_board.rows() if run_row["experiment"]["spec"] == "none"] == base_rows
    page.write(own_board.rows(), own_board.costs(), own_board.out)
    text = (own_board.out / "README.md").read_text()
    assert "mine.py:Mine" in text and "| `none` |" in text
    # Reading rows does not run the code of a file.
    (tmp_path / "mine.py").unlink()
    assert row_files.read(own_board.out)


def cells_of(text: str, title: str) -> dict[str, list[str]]:
    """Return label -> cells of a table of the README."""
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {label.strip("`"): cells for label, *cells in lines}


def test_the_page_says_what_the_rows_say(tmp_path: Path) -> None:
    page.write(rows(), COSTS, tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for task, by_spec in BOARD.items():
        cells = cells_of(text, task)
        assert cells.keys() == by_spec.keys()
        for spec, reaches in by_spec.items():
            assert cells[spec][0] == f"{sum(reach > 0 for reach in reaches)} of 5"
            if task != "text":
                shares = [f"{sum(reach >= factor for reach in reaches)} of 5" for factor in (1.2, 1.5, 2, 4, 8, 16)]
                assert cells[spec][2:8] == shares
    assert cells_of(text, "text")["rotary"][2:4] == ["1.00", "2.00"]
    all_tasks = cells_of(text, "All tasks")
    # Of 1, 1.5, 1.2 and 1.2 the geometric mean.
    assert all_tasks["rotary"] == ["3 of 3", "1.21x", "0.67x", "9.5", "0", "2,048", "1.1x", "1.25x"]
    # An encoding that was measured on few tasks comes after the others, however far it carries.
    order = ["alibi", "rotary", "learned", "none", "forgetting", "t5_bias"]
    assert [label for label in all_tasks if label in order] == order
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
    run_rows = [
        row(task, spec, seed, reach)
        for spec, spec_reaches in reaches.items()
        for task, reach in zip(tasks, spec_reaches, strict=False)
        for seed in (100, 101, 102)
    ]
    # Each run on text counts as learned, without steps to learn.
    run_rows += [row("text", spec, 100, 1) for spec in reaches]
    by_label = {standing.label: standing for standing in tables.standings(run_rows)}
    counts = {label: (standing.learned, standing.tasks) for label, standing in by_label.items()}
    assert counts == {"one": (1, 4), "half": (2, 4), "most": (3, 4), "nowhere": (0, 2)}
    assert {label for label, standing in by_label.items() if math.isfinite(standing.speed)} == {"half", "most"}


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    page.write([row("copy", "a|b`<i>.py:Mine", 100, 1)], COSTS, tmp_path)
    assert list(cells_of((tmp_path / "README.md").read_text(encoding="utf-8"), "copy")) == [r" a\|b`<i>.py:Mine "]
    assert "<i>.py" not in (tmp_path / "board.html").read_text(encoding="utf-8")


def test_a_page_without_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no rows to show yet; run some with posenc board --out"):
        page.write([row("copy", "rotary", 0, 1)], COSTS, tmp_path)


def test_fewer_seeds_than_asked_are_said() -> None:
    sentences = tables.gaps([row("copy", "rotary", 100, 1), row("copy", "alibi", 100, 1)], 5)
    assert sentences[0] == "copy: fewer than 5 seeds of `rotary` (1), `alibi` (1)."


def test_what_comes_nowhere_near_is_run_with_the_first_seeds_only() -> None:
    seeds = (100, 101, 102, 103, 104)
    pairs = [("copy", "rotary"), ("copy", "path")]
    stages = plan(pairs, [], seeds)
    done_rows = [
        row(run.task, run.spec, run.seed, 0 if run.spec == "path" else 1, key=key)
        for key, run in stages["evidence"].items()
        if run.seed < 103
    ]
    open_runs = plan(pairs, done_rows, seeds)["evidence"].values()
    assert [(run.spec, run.seed) for run in open_runs] == [("rotary", 103), ("rotary", 104)]
    sentences = tables.gaps(done_rows, 5)
    assert sentences[0] == "copy: fewer than 5 seeds of `rotary` (3)."
    assert sentences[1].startswith("Where none of 3 seeds answers 50 % of the sequences of the trained length, no more")
    near_rows = [run | {"in_distribution": {"exact_match": 0.51, "token_accuracy": 0.9}} for run in done_rows[-1:]]
    assert len(plan(pairs, [*done_rows[:-1], *near_rows], seeds)["evidence"]) == 4
    assert len(plan(pairs, done_rows[:-1], seeds)["evidence"]) == 5


@pytest.mark.skipif(not (run.COMMITTED / "README.md").exists(), reason="the repository has no board yet")
def test_the_committed_page_is_what_the_committed_rows_make() -> None:
    committed_rows = page.sorted_by_task(row_files.read(run.COMMITTED))
    has_picture = (run.COMMITTED / "figures" / "speed-and-reach.png").exists()
    text = page.readme(committed_rows, read_costs(run.COMMITTED), has_picture=has_picture)
    assert (run.COMMITTED / "README.md").read_text(encoding="utf-8") == text
