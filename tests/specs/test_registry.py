"""Schedules and coordinate maps are found by file name, and user-defined ones by path."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

import posenc
from posenc import Positions, Shape, build, catalogue, cli, coordinate_maps, schedules, testing
from posenc.checkpoints.vocabulary.reading import names_no_code
from posenc.coordinate_maps import COORDINATE_MAPS, CoordinateMap, map_of
from posenc.foreign import CannotRead
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import checkpoint, train
from posenc.schedules import SCHEDULES, Schedule, schedule_of
from posenc.specs.registry import Registry

SHAPE = Shape.of(dim=16, heads=2, max_len=8)

SCHEDULE = '''
"""Half as fast."""

from dataclasses import dataclass

from posenc.schedules import Schedule


@dataclass(frozen=True)
class {name}(Schedule):
    """Divide every frequency by a number.

    Source: none.
    """

    example = "added(factor=4)"

    factor: float
    trained_length: int | None = None

    def __call__(self, frequencies, *, base, width, horizon=None):
        return frequencies / self.factor, 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        return [f / self.factor for f in frequencies], 1.0
'''

MAP = '''
"""Positions with gaps."""

from dataclasses import dataclass

from posenc import checks
from posenc.coordinate_maps import CoordinateMap


@dataclass(frozen=True, kw_only=True)
class {name}(CoordinateMap):
    """Leave places free between tokens.

    Source: none.
    """

    also_called = ("gappy",)

    step: int = 3

    def __post_init__(self):
        self.hold(checks.whole, step=1)

    def place(self, coords, ids, draw):
        return coords * self.step
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a user-defined schedule and map, and return it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SCHEDULE.format(name="Slow"))
    (tmp_path / "gaps.py").write_text(MAP.format(name="Gaps"))
    return tmp_path


# Built-in names


@pytest.mark.parametrize(("registry", "package"), [(SCHEDULES, schedules), (COORDINATE_MAPS, coordinate_maps)])
def test_the_names_are_those_of_the_files(registry: Registry, package) -> None:
    files = {file.stem for file in Path(*package.__path__).glob("[!_]*.py")}
    assert list(registry) == sorted(files) and len(registry) == len(files) and "_schedule" not in registry
    for name, cls in registry.items():
        assert cls.spec_name == name and registry.find(name) is cls and getattr(package, cls.__name__) is cls
        assert cls.__name__ in dir(package) and "Source:" in (cls.__doc__ or "")
    with pytest.raises(KeyError):
        registry["nothing"]
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Nothing'"):
        _ = package.Nothing


@pytest.mark.parametrize(
    ("folder", "source", "spec"),
    [("schedules", SCHEDULE, "added(factor=4)"), ("coordinate_maps", MAP, "added(step=4)")],
)
def test_a_new_file_is_found_with_no_other_edit(folder: str, source: str, spec: str, here: Path, monkeypatch) -> None:
    package = getattr(posenc, folder)
    shutil.copytree(Path(*package.__path__), here / folder)
    (here / folder / "added.py").write_text(source.format(name="Added"))
    monkeypatch.setattr(package, "__path__", [str(here / folder)])
    try:
        read = schedule_of if folder == "schedules" else map_of
        assert repr(read(spec)) == spec and "Added" in dir(package)
        assert package.Added is type(read(spec))
        if folder == "schedules":
            assert (
                repr(build(f"rotary(schedule={spec})", SHAPE)) == "rotary(schedule=added(factor=4, trained_length=8))"
            )
            assert any("schedule=added(" in variant for variant in testing.variants("rotary"))
    finally:
        sys.modules.pop(f"posenc.{folder}.added", None)


def test_other_names_of_a_map_lead_to_it() -> None:
    with pytest.raises(ValueError, match=r"no coordinate map named 'pose'; did you mean 'skipped_chunks'"):
        map_of("pose(longest=9)")


# User-defined schedules


FREQUENCIES = ["slow.py:Slow(factor=2)", "linear(factor=2)"]


@pytest.mark.parametrize("name", ["rotary", "proportional_rotary", "multimodal_rotary"])
def test_a_schedule_of_ones_own_goes_wherever_one_that_ships_goes(name: str) -> None:
    encoding, ships = (
        build(f"{name}(schedule={schedule})", Shape(dim=128, heads=2, head_dim=64, max_len=8))
        for schedule in FREQUENCIES
    )
    assert encoding.schedule.trained_length == 8 and encoding.wavelengths.equal(ships.wavelengths)
    q = torch.randn(1, 2, 3, 64)
    assert encoding.query(q, Positions.count(3, start=9)).equal(ships.query(q, Positions.count(3, start=9)))
    rebuilt = type(encoding)(64, schedule=FREQUENCIES[0])
    assert rebuilt.schedule.factor == 2 and rebuilt.wavelengths.equal(encoding.wavelengths)


def test_a_schedule_of_ones_own_is_printed_as_it_is_read() -> None:
    for spec in (
        "rotary(schedule=slow.py:Slow(factor=2, trained_length=8))",
        "rotary(schedule=resonance(inner=slow.py:Slow(factor=2, trained_length=8)))",
        "on(rotary(schedule=slow.py:Slow(factor=2, trained_length=8)), heads=(0,)) + alibi",
    ):
        assert repr(build(spec, SHAPE)) == spec and repr(build(repr(build(spec, SHAPE)), SHAPE)) == spec
    assert build("rotary(schedule=slow.py:Slow(factor=2))", SHAPE).schedule == schedule_of(
        "slow.py:Slow(factor=2, trained_length=8)"
    )


def test_a_schedule_of_ones_own_keeps_the_promises() -> None:
    promises = [
        "says_what_the_paper_says",
        "a_cache_changes_nothing",
        "packing_changes_nothing",
        "the_spec_round_trips",
    ]
    verdicts = testing.check("rotary(schedule=slow.py:Slow(factor=2))", promises)
    assert verdicts and all(verdict.good for verdict in verdicts), testing.describe(verdicts)


def test_what_the_file_holds_now_is_what_is_run(here: Path) -> None:
    q, at = torch.randn(1, 1, 2, 8), Positions.count(2)
    first = build("rotary(schedule=slow.py:Slow(factor=2))", SHAPE).query(q, at)
    (here / "slow.py").write_text(SCHEDULE.format(name="Slow").replace("frequencies / self", "0 * frequencies / self"))
    assert build("rotary(schedule=slow.py:Slow(factor=2))", SHAPE).query(q, at).equal(q) and not first.equal(q)


def test_what_is_wrong_with_a_schedule_of_ones_own_is_said(here: Path) -> None:
    (here / "empty.py").write_text("")
    for spec, words in (
        ("slow.py:Slo(factor=2)", r"'slow.py' has no schedule named 'Slo'; it has: Slow"),
        ("empty.py:Slow(factor=2)", r"has no schedule named 'Slow'; it has: no subclass of posenc.schedules.Schedule"),
        ("gaps.py:Gaps(step=2)", r"has no schedule named 'Gaps'; it has: no subclass of posenc.schedules.Schedule"),
        ("gone.py:Slow(factor=2)", "no file 'gone.py' to take 'Slow' from"),
        (
            "slow.py:Slow(faktor=2)",
            r"slow.py:Slow has no option 'faktor'; it has: factor, trained_length; did you mean",
        ),
        ("slow.py:Slow()", r"slow.py:Slow needs factor by name, as in yarn\(factor=4\)"),
        (
            "slow.py:Slow(factor=0.5)",
            r"slow.py:Slow: factor must be 1 or more \(target length / trained length\), got 0.5",
        ),
        ("slow.py:Slow(factor=two)", "slow.py:Slow: factor must be a finite number, got 'two'"),
        ("slow.py:Slow", r"slow.py:Slow needs factor by name, as in yarn\(factor=4\)"),
    ):
        with pytest.raises(ValueError, match=words):
            schedule_of(spec)
        with pytest.raises(ValueError, match=words):
            build(f"rotary(schedule={spec})", SHAPE)


def test_a_run_with_a_schedule_of_ones_own_is_gone_on_with_where_its_file_is_named(here: Path, capsys) -> None:
    spec = "rotary(schedule=slow.py:Slow(factor=2))"
    experiment = recipe("copy", spec, steps=1, dim=16, heads=2, layers=1, train_length=2, batch=2, evaluate_every=1)
    assert dict(experiment.own_files or ()).keys() == {"slow.py"}
    checkpoint.save(train.train(train.start(experiment)), here / "run")
    generate = ["generate", "run", "--prompt", "a|", "--max-new-tokens", "1"]
    assert cli.main(generate) == 2
    assert "it asks for code from the file 'slow.py'" in capsys.readouterr().err
    assert cli.main([*generate, "--trust", "gaps.py"]) == 2 and cli.main([*generate, "--trust", "slow.py"]) == 0
    (here / "slow.py").write_text(SCHEDULE.format(name="Slow") + "# another\n")
    capsys.readouterr()
    assert cli.main([*generate, "--trust", "slow.py"]) == 0
    assert "slow.py is not what it was for this run" in capsys.readouterr().err
    with pytest.raises(CannotRead, match=r"asks for code from the file 'slow.py'"):
        Experiment.from_dict(experiment.to_dict())
    with pytest.raises(CannotRead, match="none is run that a checkpoint names"):
        names_no_code(spec)


# User-defined maps


def test_a_map_is_written_as_it_is_printed() -> None:
    for cls, options in (
        ("randomised", "longest=2048"),
        ("randomised_continuous", "longest=8.0, even=True"),
        ("shifted", "by=-0.5"),
        ("shifted_at_random", "most=50, seed=3"),
        ("augmented", "shift=5.0"),
        ("skipped_chunks", "longest=64, chunks=3"),
        ("abacus", "first_digit=0"),
        ("coupled", "first_digit=0, equals=11, width=3"),
        ("restarted", "separator=9"),
        ("interpolated", "factor=4"),
        ("gaps.py:Gaps", "step=5"),
        ("gaps.py:Gaps", ""),
    ):
        rule = map_of(f"{cls}({options})")
        assert isinstance(rule, CoordinateMap) and repr(rule) == str(rule) == f"{cls}({options})"
        assert map_of(repr(rule)) == rule and map_of(rule) is rule and hash(map_of(repr(rule))) == hash(rule)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "interpolate(factor=4)",
            "no coordinate map named 'interpolate'; did you mean 'interpolated'",
        ),
        ("interpolated", r"interpolated needs factor by name, as in interpolated\(factor=4\); got 'interpolated\(\)'"),
        ("linear(factor=4)", "no coordinate map named 'linear'"),
        (
            "interpolated(4)",
            r"interpolated needs factor by name, as in interpolated\(factor=4\); got 'interpolated\(4\)'",
        ),
        ("interpolated(by=4)", "interpolated has no option 'by'; it has: factor"),
        ("interpolated(factor=0)", "interpolated: factor must be a finite number above 0, got 0"),
        ("interpolated(", r"'interpolated\(' is no coordinate map"),
        ("gaps.py:Gaps(step=0)", "gaps.py:Gaps: step must be a whole number of 1 or more, got 0"),
        ("gaps.py:Gap(step=1)", "'gaps.py' has no coordinate map named 'Gap'; it has: Gaps"),
        ("slow.py:Slow(factor=2)", r"it has: no subclass of posenc.coordinate_maps.CoordinateMap"),
        (3, "a coordinate map must be one of posenc.coordinate_maps, such as .* got 3"),
        (None, "a coordinate map must be one of posenc.coordinate_maps, such as .* got None"),
    ],
)
def test_what_is_no_map_is_refused_with_the_reason(value, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        map_of(value)


@pytest.mark.parametrize("spec", ["sinusoidal", "rotary", "alibi", "t5_bias", "learned(overrun=clamp)"])
def test_a_map_of_ones_own_goes_wherever_one_that_ships_goes(spec: str) -> None:
    at = Positions.packed([2, 4])
    out, ships = map_of("gaps.py:Gaps(step=2)")(at), map_of("interpolated(factor=0.5)")(at)
    assert out.coords.tolist() == ships.coords.tolist() and out.order is at.order and out.document is at.document
    net, x = testing.Subject(spec).net(), torch.randn(1, 6, testing.SHAPE.dim, dtype=torch.float64)
    assert net(x, out).equal(net(x, ships)) and not net(x, out).equal(net(x, at))


def test_the_overview_names_what_ships_alone() -> None:
    from posenc.lab.description.describe import build_other_kinds

    assert [item["name"] for item in build_other_kinds()["coordinate_maps"]] == list(COORDINATE_MAPS)
    assert not any(isinstance(name, str) and ":" in name for name in (*SCHEDULES, *catalogue.names()))
    assert issubclass(SCHEDULES["yarn"], Schedule)
