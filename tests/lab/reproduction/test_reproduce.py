"""Reproduced claims: each verdict, resumed runs, and agreement of page and verdicts."""

import gzip
import json
import multiprocessing
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from forks import FORKS

from posenc import cli
from posenc.foreign import CannotRead
from posenc.lab.experiments import recipes
from posenc.lab.published import CPU, Claim, Inequality
from posenc.lab.reproduction import reproduce, verdict_tables
from posenc.lab.results import drawer

HOME = Path(__file__).resolve().parents[3]
VERDICT_FOLDER = HOME / "docs" / "published"

OWN_CLAIM = '''
from dataclasses import dataclass

from posenc.lab.evaluation.evaluate import scores_at_length
from posenc.lab.published import Claim, Inequality
from posenc.lab.experiments.recipes import recipe

SIZES = {"dim": 16, "heads": 2, "layers": 1, "train_length": 3, "test_lengths": (4,), "batch": 2, "steps": 2}


@dataclass(frozen=True, kw_only=True)
class Mine(Claim):
    """Two steps teach nothing.

    Source: none.
    """

    says = "two steps teach nothing"
    source = "none, arXiv:0000.00000"
    published = {"right, none": 0.25}
    criteria = (Inequality("right, none", "<=", 0.5), Inequality("again, none", "<=", "right, none", times=1.01))
    looked_into = ("none",)

    def runs(self, tier):
        return {spec: recipe("repeat", spec, **SIZES) for spec in ("none", "rotary")}

    def look_into(self, run):
        return {"again": [scores_at_length(run, 3)]}

    def numbers(self, outcomes):
        return {
            "right, none": outcomes["none"].raw_score("exact_match"),
            "again, none": outcomes["none"].raw_score("exact_match", extra="again"),
            "right, rotary": outcomes["rotary"].score("exact_match"),
        }
'''


@dataclass(frozen=True, kw_only=True)
class SmallClaim(Claim):
    says = "a is large"
    source = "none"
    published = MappingProxyType({"a": 2.0, "c": 3.0})
    criteria = (Inequality("a", ">=", 1), Inequality("a", ">=", "b", plus=0.5))


def verdict(*by_seed: dict) -> dict:
    return reproduce.verdict_record(SmallClaim(), CPU, dict(enumerate(by_seed, 100)))


GOOD, BAD, UNKNOWN = {"a": 2.0, "b": 1.0}, {"a": 1.2, "b": 1.0}, {"a": None, "b": 1.0}


def test_a_claim_is_reproduced_where_every_line_holds_with_every_seed() -> None:
    record = verdict(GOOD, GOOD, GOOD)
    assert (record["verdict"], record["why"]) == ("reproduced", "all 2 inequalities hold with every seed")
    assert [line["verdict"] for line in record["criteria"]] == ["holds", "holds"]


def test_one_seed_on_which_a_line_fails_refutes_it() -> None:
    record = verdict(GOOD, GOOD, BAD)
    assert (record["verdict"], record["why"]) == ("not reproduced", "fails: a >= b + 0.5")
    assert [line["verdict"] for line in record["criteria"]] == ["holds", "fails"]
    assert record["criteria"][1] | {"words": ""} == {
        "words": "",
        "measured": [2.0, 2.0, 1.2],
        "bounds": [1.5, 1.5, 1.5],
        "verdict": "fails",
    }


def test_what_was_not_learned_cannot_be_tested() -> None:
    record = verdict(GOOD, UNKNOWN, GOOD)
    assert record["verdict"] == "not testable at this size"
    assert record["why"] == "not every run that it needs has learned its task"
    assert [line["verdict"] for line in record["criteria"]] == ["not learned", "not learned"]


def test_a_line_that_fails_refutes_whatever_another_seed_has_not_learned() -> None:
    assert verdict(BAD, UNKNOWN, GOOD)["verdict"] == "not reproduced"


def test_numbers_stand_beside_those_published() -> None:
    headers, rows = verdict_tables.numbers_table(verdict(GOOD, BAD, UNKNOWN))
    assert headers == ["", "published", "here"]
    assert rows == [["a", "2", "1.6 (1.2 to 2); not learned with 1"], ["b", "-", "1"], ["c", "3", "-"]]
    none_learned = verdict_tables.numbers_table(verdict(UNKNOWN, UNKNOWN))[1]
    assert none_learned[0] == ["a", "2", "not learned"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a user's claim that was run with one seed, and the claim's name."""
    home = tmp_path_factory.mktemp("claim")
    (home / "mine.py").write_text(OWN_CLAIM)
    name = f"{home / 'mine.py'}:Mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "SEEDS", 1)
        patch.setattr("posenc.lab.sweeps.sweep.cores", lambda: 1)
        patch.setattr(multiprocessing, "get_context", lambda kind: FORKS)
        patch.setattr(drawer.Drawer, "__call__", lambda *_: None)
        assert cli.main(["lab", "run", name, "--out", str(home / "out"), "--seed-from", "7"]) == 0
    return home / "out", name


@pytest.mark.slow
def test_a_claim_of_ones_own_is_run_and_its_verdict_kept(ran: tuple[Path, str]) -> None:
    folder, name = ran
    record = reproduce.read(folder / "Mine-cpu-7.json")
    assert (record["claim"], record["verdict"], record["seeds"], record["tier"]) == ("Mine", "reproduced", [7], "cpu")
    assert record["command"] == f"posenc lab run {name} --tier cpu --seed-from 7"
    assert {number["name"]: number["published"] for number in record["numbers"]}["right, none"] == 0.25
    # No run learned: two numbers use raw scores, and the third has none.
    assert {number["name"]: number["here"] for number in record["numbers"]}["right, rotary"] == [None]
    records = {path.stem for path in (folder / "records").glob("*.json")}
    assert records == set(record["runs"]) and len(records) == 2
    assert (folder / "report.html").exists()
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one seed, forked runs, and no figures, which take longest."""
    monkeypatch.setattr(reproduce, "SEEDS", 1)
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: FORKS)
    monkeypatch.setattr(reproduce.report, "write", lambda records, folder: None)


def rerun_states(ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the same command again; return the final states of its runs."""
    folder, name = ran
    without_report(monkeypatch)
    sweeps = []
    reproduce.reproduce(name, folder, seed_from=7, show=sweeps.append)
    return sorted(run.state for run in sweeps[-1].runs.values())


def test_the_same_command_trains_nothing_again(ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert rerun_states(ran, monkeypatch) == ["kept", "kept"]


def test_a_run_of_which_something_was_not_measured_is_made_again(
    ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (ran[0] / "further" / "Mine").glob("*.json")
    content = file.read_bytes()
    file.unlink()
    assert rerun_states(ran, monkeypatch) == ["done", "kept"]
    assert file.read_bytes() == content


def test_what_was_measured_and_is_damaged_is_told_with_what_to_do(
    ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (ran[0] / "further" / "Mine").glob("*.json")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"again", b"other"))
    with pytest.raises(CannotRead, match=r"it does not fit its checksum.*; delete it and give the command again"):
        rerun_states(ran, monkeypatch)
    file.write_bytes(content)


def test_the_command_prints_the_numbers_and_each_inequality(
    ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder, name = ran
    without_report(monkeypatch)
    assert cli.main(["lab", "run", name, "--out", str(folder), "--seed-from", "7"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("two steps teach nothing (none, arXiv:0000.00000); seeds 7 to 7, cpu\n")
    assert re.search(r"right, none +0\.25 +\d", output)
    assert re.search(r"right, none <= 0\.5 +\S+ +0\.5 +holds", output)
    assert "Reproduced: all 2 inequalities hold with every seed." in output
    assert f"Verdict: {folder / 'Mine-cpu-7.json'}" in output
    assert cli.main(["lab", "run", name, "--out", str(folder), "--seed-from", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "reproduced"


@pytest.mark.slow
def test_runs_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = OWN_CLAIM.replace('return {"again"', 'raise ValueError("it is no good")\n        return {"again"')
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.setattr(reproduce, "SEEDS", 1)
    monkeypatch.setattr("posenc.lab.sweeps.sweep.cores", lambda: 1)
    message = r"^1 of 2 runs failed, and all are needed; the first: none on repeat, seed 100: ValueError: it is no good"
    with pytest.raises(RuntimeError, match=message):
        reproduce.reproduce(f"{tmp_path / 'mine.py'}:Mine", tmp_path / "out")
    assert not list((tmp_path / "out").glob("Mine*"))
    assert len(list((tmp_path / "out" / "records").glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "no claim named 'nothing'; posenc list claims has all"),
        (["run", "alibi", "--tier", "large"], "--tier must be one of cpu, gpu, got 'large'"),
        (["run", "alibi", "--tier", "cpu", "--tier", "gpu"], "--tier is given more than once"),
        (["page", "."], "no verdicts in '.'; make one with posenc lab run NAME, and put its JSON file there"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"posenc: {message}")


def test_the_list_has_every_claim(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["lab", "list", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert [claim["claim"] for claim in claims] == sorted(claim["claim"] for claim in claims)
    assert {"alibi", "t5_buckets"} <= {claim["claim"] for claim in claims}
    assert cli.main(["lab", "list"]) == 0
    assert "Press et al. 2021, arXiv:2108.12409" in capsys.readouterr().out


def test_a_page_has_every_verdict_of_its_folder(ran: tuple[Path, str], tmp_path: Path) -> None:
    whole = (ran[0] / "Mine-cpu-7.json").read_bytes()
    (tmp_path / "Mine-cpu-7.json.gz").write_bytes(gzip.compress(whole))
    assert cli.main(["lab", "page", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "| [Mine](#Mine) | two steps teach nothing | reproduced (seeds 7 to 7, cpu) |" in page
    assert "**Reproduced** with seeds 7 to 7, cpu: all 2 inequalities hold with every seed." in page
    assert re.search(r"\| right, none <= 0\.5 \| \S+ \| 0\.5 \| holds \|", page)


def test_a_verdict_under_another_name_or_without_its_checksum_is_refused(ran: tuple[Path, str], tmp_path: Path) -> None:
    whole = (ran[0] / "Mine-cpu-7.json").read_bytes()
    (tmp_path / "Other-cpu-7.json").write_bytes(whole)
    with pytest.raises(CannotRead, match=r"it holds the verdict of Mine-cpu-7\.json; give it that name"):
        verdict_tables.verdict_page(tmp_path)
    content = json.loads(whole)
    del content["checksum"]
    (tmp_path / "Other-cpu-7.json").write_text(json.dumps(content))
    with pytest.raises(CannotRead, match="it has lost its checksum"):
        verdict_tables.verdict_page(tmp_path)


def test_the_page_of_the_repository_is_that_of_its_verdicts() -> None:
    assert (VERDICT_FOLDER / "README.md").read_text() == verdict_tables.verdict_page(VERDICT_FOLDER)


def test_the_verdicts_of_the_repository_are_what_their_numbers_say() -> None:
    for path in sorted(VERDICT_FOLDER.glob("*.json.gz")):
        verdict_on_disk = reproduce.read(path)
        claim = reproduce.claim_of(verdict_on_disk["claim"])
        numbers = {
            seed: {number["name"]: number["here"][index] for number in verdict_on_disk["numbers"] if number["here"]}
            for index, seed in enumerate(verdict_on_disk["seeds"])
        }
        verdict_again = reproduce.verdict_record(claim, verdict_on_disk["tier"], numbers)
        assert verdict_again == {name: verdict_on_disk[name] for name in verdict_again}, path.name


def test_evidence_rests_on_seeds_that_nothing_was_chosen_on() -> None:
    for path in sorted(VERDICT_FOLDER.glob("*.json.gz")):
        seeds = reproduce.read(path)["seeds"]
        assert min(seeds) >= recipes.FIRST_SEED and len(seeds) == reproduce.SEEDS
