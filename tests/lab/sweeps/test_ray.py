"""Sweeps on a cluster of Ray of two machines: what dies is tried again or set aside, and what is finished stays."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import filled_stores
import planted_runs
import pytest
from planted_runs import began, runs
from ray_cluster import STORE, Cluster, until

from posenc.lab.runs import record

pytest.importorskip("ray", reason="sweeps on a cluster need ray: pip install 'posenc[ray]'")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        yield made
    finally:
        made.end()


class Story:
    """A folder for records, a home for marks, and commands on the cluster."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster, self.folder, self.home = cluster, path / "out", path / "home"
        self.home.mkdir()

    def begin(self, count: int, kinds: dict[int, str]) -> subprocess.Popen:
        given = (self.cluster.address, str(self.folder), str(self.home), str(count), json.dumps(kinds))
        return self.cluster.driver(planted_runs.__file__, *given)

    def end(self, process: subprocess.Popen) -> tuple[dict[int, list[str]], str]:
        """(state and failure of the run of each seed, what was said)"""
        try:
            out, err = process.communicate(timeout=150)
        finally:
            process.kill()
        assert process.returncode == 0, err
        return {int(seed): ended for seed, ended in json.loads(out.splitlines()[-1]).items()}, err

    def seeds(self) -> list[int]:
        """Those of the records, each of which is held to its checksum and form."""
        return sorted(record.read(path)["experiment"]["seed"] for path in (self.folder / "records").glob("*.json"))

    def running(self, seed: int) -> bool:
        return began(self.home)[seed] > 0


@pytest.fixture
def story(cluster: Cluster, tmp_path: Path) -> Story:
    return Story(cluster, tmp_path)


@pytest.mark.slow
def test_every_run_ends_once_in_the_records_and_one_that_kills_its_worker_twice_is_set_aside(story: Story) -> None:
    kinds = {0: "killed once", 1: "killed", 2: "failing", 3: "big"}
    ended, said = story.end(story.begin(7, kinds))
    assert story.seeds() == [0, 3, 4, 5, 6]
    assert began(story.home) == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    died = "its process was killed (out of memory?)"
    assert ended[1] == ["failed", f"{died}, twice"] and ended[2] == ["failed", "ArithmeticError: planted"]
    assert f"none on repeat, seed 0: {died}; it is tried once more" in said
    failures = record.failures(story.folder)
    assert sorted(failure.words for failure in failures.values()) == [
        f"none on repeat, seed 1: {died}, twice",
        "none on repeat, seed 2: ArithmeticError: planted",
    ]


@pytest.mark.slow
def test_a_machine_that_is_lost_costs_its_run_and_takes_others_when_it_returns(story: Story) -> None:
    process = story.begin(6, {0: "waiting", 1: "waiting"})
    until(lambda: story.running(0) and story.running(1), process)
    story.cluster.tell("lose")
    # One of the two goes on on the machine that stays, the other one waits there in line.
    story.cluster.tell("return")
    until(lambda: sum(began(story.home).values()) >= 3, process)
    (story.home / "open").touch()
    ended, said = story.end(process)
    assert "its machine was lost (NodeDiedError); it is tried again" in said
    assert {state for state, _ in ended.values()} == {"done"} and story.seeds() == list(range(6))
    assert sorted(began(story.home).values()) == [1, 1, 1, 1, 1, 2]


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_where_it_was(story: Story) -> None:
    process = story.begin(5, {4: "waiting"})
    until(lambda: len(list((story.folder / "records").glob("*.json"))) == 4 and story.running(4), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {path.name: path.stat().st_mtime_ns for path in (story.folder / "records").glob("*.json")}
    (story.home / "open").touch()
    ended, _ = story.end(story.begin(5, {}))
    assert [ended[seed][0] for seed in range(5)] == ["kept"] * 4 + ["done"]
    assert all((story.folder / "records" / name).stat().st_mtime_ns == at for name, at in kept.items())
    assert began(story.home) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2} and story.seeds() == list(range(5))


@pytest.mark.slow
def test_object_stores_that_are_full_take_nothing_from_a_sweep(story: Story) -> None:
    # What is left of each holds no record of some megabytes, and the head has a store too.
    filling = story.cluster.driver(filled_stores.__file__, story.cluster.address, str(99 * STORE // 100))
    try:
        assert filling.stdout and filling.stdout.readline() == "3 are full\n"
        ended, said = story.end(story.begin(2, {0: "big"}))
        assert filling.poll() is None
    finally:
        filling.communicate("")
    assert ended == {0: ["done", ""], 1: ["done", ""]} and "tried again" not in said
    assert story.seeds() == [0, 1] and began(story.home) == {0: 1, 1: 1}


@pytest.mark.slow
def test_the_command_itself_runs_on_the_cluster_and_refuses_what_it_cannot_do(story: Story) -> None:
    small = ["--tasks", "repeat", "--seeds", "2", "--steps", "4", "--train-length", "2", "--dim", "8", "--heads", "1"]
    words = ["compare", "--encodings", "none", "alibi", *small, "--layers", "1", "--out", str(story.folder)]
    words += ["--engine", "ray", "--address", story.cluster.address]
    done = story.cluster.driver("-m", "posenc", *words)
    out, err = done.communicate(timeout=200)
    assert done.returncode == 0 and "4 of 4 runs done" in err and "Report: " in out, err
    assert len(story.seeds()) == 4
    gpu = story.cluster.driver("-m", "posenc", *words, "--log", "jsonl", "--seed-from", "500")
    assert "posenc: --log is for --engine local: a logger writes on the machine" in gpu.communicate(timeout=100)[1]


def test_planted_runs_have_keys_of_their_own() -> None:
    assert len({record.key_of(one) for one in runs(7)}) == 7
