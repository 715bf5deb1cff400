"""Positions in training and at evaluation, by an experiment's coordinate map."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.coordinate_maps import COORDINATE_MAPS, Randomised, map_of
from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.evaluation import evaluate
from posenc.lab.evaluation.ablate import ablate
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.places import eval_places, natural, train_places
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import summary
from posenc.lab.runs import record
from posenc.lab.runs.checkpoint import load, save
from posenc.lab.runs.settings import Settings
from posenc.lab.runs.single_run import continue_prompt, train_run
from posenc.lab.runs.train import start, train
from posenc.lab.sweeps.compare import compare

TINY = {"train_length": 3, "dim": 16, "heads": 2, "layers": 1, "batch": 4, "warmup": 2, "steps": 4}
IDS = torch.randint(3, 29, (5, 8))

OWN_FILE = """
from dataclasses import dataclass
from posenc.coordinate_maps import CoordinateMap

@dataclass(frozen=True, kw_only=True)
class Doubled(CoordinateMap):
    by: int = 2

    def place(self, coords, ids, draw):
        return self.by * coords
"""


def tiny(map: str | None, spec: str = "rotary", **changes) -> Experiment:
    return recipe("copy", spec, map=map, **(TINY | changes))


def coords(at: Positions) -> list[list[float]]:
    return at.coords[..., 0].tolist()


def test_without_a_map_tokens_are_counted() -> None:
    plain = tiny(None)
    assert train_places(plain, 3) is eval_places(plain) is natural
    assert coords(natural(IDS)) == [list(range(8))]
    assert "map" not in plain.to_dict() and Experiment.from_dict(plain.to_dict()) == plain


def test_each_row_and_step_is_another_draw_of_the_seed_and_the_step_alone() -> None:
    experiment = tiny("randomised(longest=64)")
    first, again, later = (coords(train_places(experiment, step)(IDS)) for step in (3, 3, 4))
    assert first == again != later and len({tuple(row) for row in first}) == 5
    assert first != coords(train_places(replace(experiment, seed=1), 3)(IDS))
    held_out = eval_places(experiment)(IDS)
    assert coords(held_out) == coords(eval_places(experiment)(IDS)) == coords(Randomised(longest=64)(natural(IDS), IDS))


@pytest.mark.parametrize(
    ("of_training", "of_evaluation"),
    [
        ("randomised(longest=64)", "randomised(longest=64)"),
        ("randomised_continuous(longest=9)", "randomised_continuous(longest=9, even=True)"),
        ("abacus(first_digit=3, most=5)", "abacus(first_digit=3)"),
        ("coupled(first_digit=3, equals=1, width=9, most=4)", "coupled(first_digit=3, equals=1, width=9, most=4)"),
        ("interpolated(factor=2)", "interpolated(factor=2)"),
        ("shifted_at_random(most=9)", None),
        ("skipped_chunks(longest=64)", None),
        ("augmented(shift=3)", None),
    ],
)
def test_evaluation_takes_what_the_paper_takes(of_training: str, of_evaluation: str | None) -> None:
    evaluation_map = map_of(of_training).for_evaluation()
    assert (None if evaluation_map is None else str(evaluation_map)) == of_evaluation
    expected = natural(IDS) if of_evaluation is None else map_of(of_evaluation)(natural(IDS), IDS)
    assert coords(eval_places(tiny(of_training))(IDS)) == coords(expected)
    # The docstring of a map agrees with its evaluation map.
    docstring = COORDINATE_MAPS[of_training.partition("(")[0]].__doc__ or ""
    assert ("At evaluation: none" in docstring) == (of_evaluation is None)


class PositionRecorder(torch.nn.Module):
    """A stub of a model that stores the positions of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[list[list[float]]] = []

    def forward(self, ids: Tensor, *, positions: Positions, only: slice = slice(None)) -> Tensor:
        self.positions.append(coords(positions))
        return torch.zeros(*ids.shape, 29)[:, only]


def test_every_measure_of_a_run_asks_the_model_where_the_map_says() -> None:
    run = start(tiny("interpolated(factor=2)", test_lengths=(5,)))
    run.model = PositionRecorder()  # type: ignore[assignment]
    evaluate.by_length(run)
    tokens = [run.task.tokens(n) for n in (3, 5)]
    assert run.model.positions == [
        [[place / 2 for place in range(n)]] * len(rows) for n, rows in zip(tokens, run.model.positions, strict=True)
    ]


def test_training_hears_the_map_and_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    experiment = tiny("randomised(longest=64)", evaluate_every=1)
    whole, plain = train(start(experiment)), train(start(replace(experiment, map=None)))
    losses, plain_losses = ([point["loss"] for point in run.curve] for run in (whole, plain))
    assert losses != plain_losses
    half = train(start(experiment), stop_step=2)
    save(half, tmp_path)
    second = train(load(tmp_path))
    assert [point["loss"] for point in second.curve] == losses and second.experiment.map == experiment.map


def test_ablations_change_the_places_of_the_map() -> None:
    run = train(start(tiny("shifted(by=100.0)", "learned(max_len=64, overrun=clamp)")))
    scores = ablate(run)
    # Every coordinate is past the table, so that a shift finds the same row.
    assert scores["shifted"] == scores["intact"]


def test_compare_trains_each_encoding_with_each_map_and_tells_them_apart(tmp_path: Path) -> None:
    small = {"train_length": 3, "layers": 1, "dim": 16, "heads": 2}
    maps = ("none", "randomised(longest=64)")
    settings = Settings(("rotary", "alibi"), ("copy",), seeds=1, maps=maps, changes=small | {"steps": 2})
    runs = settings.experiments()
    assert {(run.spec, run.map) for run in runs} == {
        (spec, map) for spec in ("rotary", "alibi") for map in (None, "randomised(longest=64)")
    }
    records = [record.run_record(train(start(run)), 0.0) for run in runs if run.spec == "rotary"]
    assert [label for label, _ in summary.labelled_records(records)] == [
        "rotary",
        "rotary [map=randomised(longest=64)]",
    ]
    assert record.read(record.write(records[1], tmp_path))["experiment"]["map"] == "randomised(longest=64)"


@pytest.mark.parametrize(
    ("map", "spec", "words"),
    [
        ("abcus(first_digit=3)", "rotary", r"no coordinate map named 'abcus'; did you mean 'abacus'\?"),
        ("rotary", "rotary", "no coordinate map named 'rotary'"),
        ("randomised", "rotary", "randomised needs longest by name, as in interpolated"),
        ("randomised(longest=9)", "rotary", r"randomised\(longest=9\) has 9 positions, too few for a document of 12"),
        ("shifted(by=50.0)", "learned", "is past the learned table of"),
        ("shifted_at_random(most=9999)", "learned", "is past the learned table of"),
    ],
)
def test_a_map_that_cannot_serve_is_refused_before_a_step_is_trained(
    tmp_path: Path, map: str, spec: str, words: str
) -> None:
    changes = {"train_length": 3, "test_lengths": (5,), "steps": 1}
    settings = Settings((spec,), ("copy",), seeds=1, maps=(map,), changes=changes)
    with pytest.raises(ValueError, match=words):
        compare(settings, tmp_path / "runs")
    assert not (tmp_path / "runs" / "records").exists()


def test_a_map_of_ones_own_goes_by_its_path_and_is_run_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(OWN_FILE)
    monkeypatch.chdir(tmp_path)
    run = train_run(
        "rotary", "copy", 0, tmp_path / "run", None, lambda words: None, map="mine.py:Doubled(by=3)", **TINY
    )
    assert [path for path, _ in run.experiment.own_files] == ["mine.py"]
    assert coords(eval_places(run.experiment)(IDS))[0] == [3 * place for place in range(8)]
    with pytest.raises(CannotRead, match=r"asks for code from the file 'mine\.py'"):
        load(tmp_path / "run")
    assert load(tmp_path / "run", ["mine.py"]).experiment == run.experiment


def test_generation_says_that_it_cannot_know_the_places(tmp_path: Path) -> None:
    for number, (map, fails) in enumerate({"interpolated(factor=2)": True, "augmented(shift=3)": False}.items()):
        folder = tmp_path / str(number)
        train_run("rotary", "copy", 0, folder, None, lambda words: None, map=map, **TINY)
        if fails:
            with pytest.raises(
                ValueError, match=r"generation counts its tokens .* the places that interpolated\(factor=2\) gives to"
            ):
                continue_prompt(folder, "ab|", 2, 0.0, None, 0)
        else:
            assert continue_prompt(folder, "ab|", 2, 0.0, None, 0).startswith("ab|")


def test_a_folder_with_another_map_is_another_run(tmp_path: Path) -> None:
    train_run("rotary", "copy", 0, tmp_path, None, lambda words: None, **TINY)
    with pytest.raises(ValueError, match=r"map None -> interpolated\(factor=2\)"):
        train_run("rotary", "copy", 0, tmp_path, None, lambda words: None, map="interpolated(factor=2)", **TINY)
    assert store.generations(tmp_path)
