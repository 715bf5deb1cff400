"""Published claims: sentences, runs and numbers of each fit together, and inequalities count as they read."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from posenc.lab.evaluation.evaluate import by_length
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.published import CLAIMS, GPU, TIERS, Claim, Inequality, Outcome, claim_of
from posenc.lab.published._trained import held_out_loss, scores_around
from posenc.lab.runs.train import Run, start, train

MEASURES = ("exact_match", "token_accuracy", "bits_per_byte", "sliding_bits_per_byte", "loss")


def fake_outcome(experiment: Experiment, *, learned: bool = True, further: tuple[str, ...] = ()) -> Outcome:
    """Return an outcome in which every measure is 0.5 at every length."""
    lengths = (experiment.train_length, *experiment.test_lengths)
    rows = [{"length": length} | dict.fromkeys(MEASURES, 0.5) for length in lengths]
    record = {"experiment": experiment.to_dict(), "lengths": rows, "learned": learned}
    return Outcome(record, dict.fromkeys(further, rows))


class AnyMeasurement(dict):
    """Extra measurements of any name."""

    def __init__(self, rows: list) -> None:
        self.rows = rows

    def __missing__(self, name: str) -> list:
        return self.rows


def outcomes(claim: Claim, tier: str, *, learned: bool = True) -> dict[str, Outcome]:
    made_outcomes = {label: fake_outcome(experiment, learned=learned) for label, experiment in claim.runs(tier).items()}
    return {
        label: replace(x, further=AnyMeasurement(x.record["lengths"])) if label in claim.looked_into else x
        for label, x in made_outcomes.items()
    }


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_measures_what_its_inequalities_ask_for(name: str, tier: str) -> None:
    claim = claim_of(name)
    numbers = claim.numbers(outcomes(claim, tier))
    assert claim.criteria
    sides = [side for line in claim.criteria for side in (line.left, line.right) if isinstance(side, str)]
    assert [label for label in sides if label not in numbers] == []
    assert None not in numbers.values()


@pytest.mark.parametrize("name", CLAIMS)
def test_nothing_is_decided_where_nothing_was_learned(name: str) -> None:
    claim = claim_of(name)
    numbers = claim.numbers(outcomes(claim, GPU, learned=False))
    assert claim.criteria
    assert [str(line) for line in claim.criteria if line.holds(numbers) is not None] == []


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_says_what_it_is(name: str) -> None:
    claim = claim_of(name)
    assert claim.says and not claim.says.endswith(".")
    assert "arXiv:" in claim.source or "github.com/" in claim.source
    assert "Source:" in (type(claim).__doc__ or "")
    assert set(claim.looked_into) <= set(claim.runs("cpu"))


@pytest.mark.parametrize("name", CLAIMS)
def test_the_larger_tier_is_the_same_claim_on_an_accelerator(name: str) -> None:
    small, large = (claim_of(name).runs(tier) for tier in TIERS)
    assert set(small) <= set(large)
    for label, run in small.items():
        assert (run.device, large[label].device) == ("cpu", "cuda")
        assert run.task == large[label].task and run.layers < large[label].layers


@pytest.mark.parametrize(
    ("line", "numbers", "holds"),
    [
        (Inequality("a", ">=", 2), {"a": 2.0}, True),
        (Inequality("a", ">=", 2), {"a": 1.99}, False),
        (Inequality("a", "<=", 2), {"a": 2.0}, True),
        (Inequality("a", "<=", 2), {"a": 2.01}, False),
        (Inequality("a", ">=", "b", times=1.5), {"a": 3.0, "b": 2.0}, True),
        (Inequality("a", ">=", "b", times=1.5), {"a": 2.9, "b": 2.0}, False),
        (Inequality("a", "<=", "b", plus=-0.25), {"a": 1.75, "b": 2.0}, True),
        (Inequality("a", "<=", "b", plus=-0.25), {"a": 1.76, "b": 2.0}, False),
        (Inequality("a", "<=", "b"), {"a": None, "b": 2.0}, None),
        (Inequality("a", "<=", "b"), {"a": 1.0, "b": None}, None),
    ],
)
def test_an_inequality_counts_as_it_reads(line: Inequality, numbers: dict, holds: bool | None) -> None:
    assert line.holds(numbers) is holds


def test_an_inequality_reads_as_it_counts() -> None:
    assert str(Inequality("a", ">=", "b", times=1.5, plus=-0.25)) == "a >= 1.5 x b - 0.25"
    assert str(Inequality("a", "<=", 0.1)) == "a <= 0.1"


def test_an_inequality_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^sign must be one of >=, <=, got '<'"):
        Inequality("a", "<", 1)


def test_an_outcome_gives_scores_at_multiples_and_only_of_what_was_learned() -> None:
    experiment = Experiment("none", "repeat", train_length=10, test_lengths=(12, 20))
    rows = [{"length": n, "bits_per_byte": bits} for n, bits in ((10, 2.0), (12, 3.0), (20, 1.0))]
    record = {"experiment": experiment.to_dict(), "lengths": rows, "learned": True}
    extra_rows = [{"length": 20, "bits_per_byte": 4.0}]
    outcome = Outcome(record, {"other": extra_rows})
    assert outcome.score("bits_per_byte", 1.2) == 3.0
    assert (outcome.ratio(1.2), outcome.ratio(2), outcome.ratio(2, "other")) == (2.0, 0.5, 4.0)
    failure = Outcome(record | {"learned": False}, {"other": extra_rows})
    assert (failure.score("bits_per_byte", 1.2), failure.ratio(2, "other")) == (None, None)
    assert failure.raw_score("bits_per_byte", 1.2) == 3.0


def test_a_claim_that_there_is_not_is_told_with_what_is_near() -> None:
    with pytest.raises(ValueError, match=r"^no claim named 'alibii'; did you mean 'alibi'\?"):
        claim_of("alibii")


def test_what_a_claim_of_ones_own_has_to_say_is_told() -> None:
    for call, method in ((lambda c: c.runs("cpu"), "runs"), (lambda c: c.numbers({}), "numbers")):
        with pytest.raises(NotImplementedError, match=f"it has no {method}"):
            call(Claim())
    with pytest.raises(NotImplementedError, match="it has no look_into"):
        Claim().look_into(SimpleNamespace())


@pytest.fixture(scope="module")
def trained_run() -> Run:
    """A small rotary model, a little trained."""
    sizes = {"dim": 16, "heads": 2, "layers": 1, "train_length": 4, "test_lengths": (6, 8), "batch": 8}
    return train(start(recipe("repeat", "rotary", steps=20, evaluate_every=20, seed=50, **sizes)))


def test_a_trained_model_is_evaluated_around_other_encodings(trained_run: Run) -> None:
    record = {row["length"]: row for row in by_length(trained_run)}
    scores = scores_around(trained_run, {"same": "rotary", "none": "none"})
    assert [row["length"] for row in scores["same"]] == [4, 6, 8]
    assert all(row["token_accuracy"] == record[row["length"]]["token_accuracy"] for row in scores["same"])


def test_a_template_is_given_how_much_longer_a_sequence_is(trained_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = []
    monkeypatch.setattr("posenc.lab.published._trained.replace_encoding", lambda *x: specs.append(x[-1]) or x[0])
    scores_around(trained_run, {"ntk": "rotary(schedule=ntk(factor={factor}))", "more": "rotary(base={twice})"})
    assert specs[:3] == [f"rotary(schedule=ntk(factor={k}))" for k in (1.0, 1.5, 2.0)]
    assert specs[3:] == [f"rotary(base={k})" for k in (2.0, 3.0, 4.0)]


def test_the_held_out_loss_is_that_of_its_answers(trained_run: Run) -> None:
    (row,) = held_out_loss(trained_run)
    assert row["length"] == 4
    # Guessing among 29 ids has 3.4 nats; a model that was trained a little has less, and no less than nothing.
    assert 0 < row["loss"] < 3.4
