"""Experiments and recipes: comparisons, errors, and the original transformer's rate."""

import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from posenc import catalogue
from posenc.catalogue import build
from posenc.encoding.base import Shape
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments import experiment
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import comparison, default_test_lengths, hints, original_rate, recipe
from posenc.lab.runs.settings import Settings, encodings_of_other_axes, expand_all
from posenc.lab.tasks import TASKS, task_of


def test_the_default_comparison_names_encodings_that_ship() -> None:
    assert set(ENCODINGS) <= set(catalogue.names())


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_has_a_recipe_that_tests_longer_lengths(name: str) -> None:
    run = recipe(name, "rotary", 4)
    assert (run.task, run.spec, run.seed) == (name, "rotary", 4)
    assert (
        run.test_lengths == default_test_lengths(task_of(name), run.train_length)
        and min(run.test_lengths) > run.train_length
    )


def test_changes_override_the_recipe_and_the_tested_lengths_follow_the_trained_one() -> None:
    experiment = recipe("copy", "alibi", train_length=20, steps=7, dim=32, heads=2)
    assert (experiment.train_length, experiment.steps, experiment.dim, experiment.heads) == (20, 7, 32, 2)
    assert experiment.test_lengths == (24, 30, 40)
    assert recipe("text", "alibi", train_length=16).test_lengths == (32, 64, 128)
    assert recipe("copy", "alibi", train_length=20, test_lengths=(21,)).test_lengths == (21,)


def test_longer_lengths_are_longer_even_from_one() -> None:
    assert default_test_lengths(task_of("copy"), 1) == (2,)
    assert default_test_lengths(task_of("copy"), 2) == (3, 4)
    assert default_test_lengths(task_of("copy"), 10) == (12, 15, 20)
    assert default_test_lengths(task_of("text"), 1) == (2, 4, 8)


def test_a_comparison_is_every_encoding_on_every_task_with_every_seed() -> None:
    runs = comparison(["none", "rotary"], ["repeat", "text"], seeds=2)
    assert [(run.seed, run.task, run.spec) for run in runs] == [
        (100, "repeat", "none"), (100, "repeat", "rotary"), (100, "text", "none"), (100, "text", "rotary"),
        (101, "repeat", "none"), (101, "repeat", "rotary"), (101, "text", "none"), (101, "text", "rotary"),
    ]  # fmt: skip


def test_what_is_asked_for_twice_is_run_once() -> None:
    assert len(comparison(["none", "none"], ["repeat"])) == 1
    assert len(Settings(("none", "none"), ("repeat", "repeat"), seeds=1).experiments()) == 1


def test_the_longest_runs_of_a_comparison_come_first() -> None:
    costs = [
        run.steps * run.batch * (2 if run.task == "copy" else 1)
        for run in Settings(("none",), ("repeat", "text", "copy")).experiments()
    ]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    ("settings", "seeds"),
    [
        (Settings(("none",)), {"repeat": 3, "text": 1}),
        (Settings(("none",), ("text",), preset="full"), {"text": 3}),
        (Settings(("none",), preset="full"), dict.fromkeys(("repeat", "copy", "reverse", "sort", "recall", "text"), 3)),
        (Settings(("none",), ("copy", "text")), {"copy": 3, "text": 1}),
        (Settings(("none",), seeds=2), {"repeat": 2, "text": 2}),
    ],
)
def test_a_preset_has_three_seeds_but_for_the_quick_one_on_text(settings: Settings, seeds: dict) -> None:
    runs = settings.experiments()
    assert {run.task: [r.seed for r in runs if r.task == run.task] for run in runs} == {
        task: list(range(100, 100 + n)) for task, n in seeds.items()
    }


def test_all_stands_for_every_encoding_that_reads_a_sequence() -> None:
    runs = Settings(("all",), ("repeat",), seeds=1, changes={"steps": 1}).experiments()
    assert sorted(run.spec for run in runs) == sorted(set(catalogue.names()) - {"grid_bias", "learned_grid"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": "rotarry"}, "no encoding named 'rotarry'; did you mean 'rotary'\\? posenc list encodings has all"),
        ({"spec": ("none", "rotary(bse=3)")}, "rotary has no option 'bse'; it has: .*; did you mean 'base'\\?"),
        ({"task": "coppy"}, "no task named 'coppy'; did you mean 'copy'\\? posenc list tasks has all"),
        ({"train_length": 0}, "train_length must be 1 or more, got 0"),
        ({"batch": -1}, "batch must be 1 or more, got -1"),
        ({"dim": 12, "heads": 5}, r"heads must divide dim=12, got heads=5; the divisors are \[1, 2, 3, 4, 6, 12\]"),
        (
            {"train_length": 10, "test_lengths": (9, 10, 11)},
            r"test lengths must exceed the trained length 10, got \[9, 10\]",
        ),
        ({"test_lengths": (20, 1_000_001)}, r"test lengths go up to 1,000,000, got \[1000001\]"),
        ({"test_lengths": tuple(range(11, 112))}, "there may be at most 100 test lengths, got 101"),
        ({"rate": 0.0}, r"rate must be above 0, got 0\.0"),
        ({"rate": float("nan")}, "rate must be above 0, got nan"),
        ({"matrix_rate": -0.01}, r"matrix_rate must be 0 or more, got -0\.01"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected_and_what_came(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        Experiment(**({"spec": "none", "task": "copy"} | changes))


def test_the_largest_numbers_are_taken() -> None:
    largest = experiment.LARGEST_SIZES | {"train_length": 999_999}
    assert Experiment("none", "copy", **largest, test_lengths=(1_000_000,)).test_lengths == (1_000_000,)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: comparison([], ["copy"]), "a comparison needs at least one encoding and one task"),
        (lambda: comparison(["none"], []), "a comparison needs at least one encoding and one task"),
        (lambda: comparison(["none"], ["copy"], seeds=0), "seeds must be 1 or more, got 0"),
        (lambda: comparison(["none"], ["copy"], seeds=10_001), "seeds must be at most 10,000, got 10001"),
        (
            lambda: Settings(preset="ful").experiments(),
            "no preset named 'ful'; there are: default, full; did you mean 'full'\\?",
        ),
        (
            lambda: Settings(("none",), ("copy",), changes={"text": "x.txt"}).experiments(),
            "--text is for a task on text; add text to the tasks, or leave --text out",
        ),
        (
            lambda: Settings(("none",), ("recall",), changes={"train_length": 10}).experiments(),
            "recall has 16 different keys, and cannot make 20 pairs; choose lengths up to 16",
        ),
        (
            lambda: Settings(("rotary",), ("copy",), changes={"dim": 12, "heads": 4}).experiments(),
            r"rotary: the rotary width must be an even number of channels to form pairs, got 3 \(head_dim=3, .*",
        ),
    ],
)
def test_a_comparison_that_cannot_be_run_is_refused_before_it_starts(ask: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        ask()


def test_a_window_longer_than_the_held_out_text_is_refused_before_it_starts(tmp_path) -> None:
    (tmp_path / "short.txt").write_text("word " * 4100)
    settings = Settings(
        ("none",), ("text",), changes={"text": str(tmp_path / "short.txt"), "train_length": 32, "test_lengths": (4096,)}
    )
    with pytest.raises(
        ValueError, match="the held-out text has 2,050 bytes, too few for a window of 4096; add text or test shorter"
    ):
        settings.experiments()
    # Also where another task comes first.
    with pytest.raises(ValueError, match="the held-out text has 2,050 bytes"):
        replace(settings, task_names=("reverse", "text")).experiments()


def test_an_experiment_goes_to_plain_data_and_back() -> None:
    for original in (recipe("copy", "rotary"), recipe("text", ("rotary", "none"), 3, text="some/folder")):
        data = original.to_dict()
        assert Experiment.from_dict(data) == original
        # As JSON has it: lists where there were tuples.
        assert Experiment.from_dict({k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}) == original


def test_data_that_is_no_experiment_is_refused_with_the_near_name() -> None:
    whole = recipe("copy", "rotary").to_dict()
    with pytest.raises(ValueError, match=r"an experiment has no 'stepps'; it has: spec, .*; did you mean 'steps'\?"):
        Experiment.from_dict(whole | {"stepps": 3})
    with pytest.raises(ValueError, match="the field task is missing"):
        Experiment.from_dict({"spec": "none"})
    with pytest.raises(ValueError, match="steps: expected int, got 'many'"):
        Experiment.from_dict(whole | {"steps": "many"})


def test_every_field_of_an_experiment_is_explained() -> None:
    words = set(re.findall(r"\w+", (Experiment.__doc__ or "")))
    assert {field.name for field in fields(Experiment)} <= words


@pytest.mark.parametrize("tokens", [4, 17, 22, 64, 512])
def test_hints_build_for_short_and_long_sequences(tokens: int) -> None:
    # The shortest wave of fourier_rotary takes 2 pi positions.
    for name in catalogue.names() if tokens > 6 else ENCODINGS:
        build(name, Shape.of(64, 4, tokens), hints=hints(tokens, 4 * tokens))


def test_the_encodings_that_need_a_grid_are_known() -> None:
    assert encodings_of_other_axes(1) == ["grid_bias", "learned_grid"]
    assert expand_all(["none", "all"])[:2] == ["none", "alibi"]


def test_hints_keep_t5_inside_the_trained_length_and_above_half_its_buckets() -> None:
    assert hints(64, 128)["t5_bias"]["max_distance"] <= 64
    assert hints(22, 44)["t5_bias"]["max_distance"] <= 22
    assert all(hints(tokens, 2 * tokens)["t5_bias"]["max_distance"] > 16 for tokens in (2, 8, 22, 64, 1000))


def test_hints_keep_the_distances_of_chunks_within_the_trained_ones() -> None:
    for tokens in (4, 22, 64):
        encoding = build("dual_chunk(rotary)", Shape.of(8, 2, tokens), hints=hints(tokens, 2 * tokens))
        assert encoding.formula_positions(10 * tokens, 0) == (tokens - 1, 0)
    assert hints(1, 2)["dual_chunk"] == {"chunk": 1, "longest": 2}, "no chunk reaches as far as `longest`"


def test_hints_let_a_learned_table_be_asked_about_the_longest_length() -> None:
    assert build("learned", Shape.of(8, 2, 10), hints=hints(10, 40)).table.shape == (40, 8)


def test_hints_fill_in_only_what_the_spec_leaves_open() -> None:
    options = hints(22, 44)
    assert build("rotary", Shape.of(64, 4, 22), hints=options).base == 1000.0
    assert build("rotary(base=77)", Shape.of(64, 4, 22), hints=options).base == 77


def rate_of_the_paper(step: int, dim: int, warmup: int) -> float:
    """Equation 3 of the paper, in scalars, for step = 1, 2, ..."""
    return 1 / dim**0.5 * min(1 / step**0.5, step / warmup**1.5)


@pytest.mark.parametrize(("dim", "warmup"), [(512, 7), (64, 1), (33, 20)])
def test_the_original_rate_is_the_formula_of_the_paper_at_every_step(dim: int, warmup: int) -> None:
    expected = [rate_of_the_paper(step, dim, warmup) for step in range(1, 51)]
    assert [original_rate(steps, dim, warmup) for steps in range(50)] == pytest.approx(expected, rel=1e-12)


def test_the_original_rate_peaks_at_step_4000_at_seven_ten_thousandths() -> None:
    rates = [original_rate(steps, 512, 4000) for steps in range(4100)]
    assert max(range(len(rates)), key=rates.__getitem__) + 1 == 4000
    assert max(rates) == pytest.approx(6.9877e-4, rel=1e-4)
    assert rates[0] == pytest.approx(max(rates) / 4000, rel=1e-9)


def test_recipes_name_no_encoding_that_does_not_exist() -> None:
    assert set(hints(10, 20)) <= set(catalogue.names())
