"""Ablation: positions removed or changed at test time; the model stays unchanged."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import Positions
from posenc.foreign import CannotRead
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.evaluation import ablate as ablation
from posenc.lab.evaluation.ablate import ablate, shift_positions, shuffle_positions, swap_neighbours
from posenc.lab.experiments.models import without_position
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs.train import start, train
from posenc.lab.tasks import END, task_of
from posenc.lab.tasks.text import Text
from posenc.model.decoder import Decoder

ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = ("rotary", "alibi", "t5_bias", "shaw")
IDS = torch.tensor([[0, 5, 3, 9, 1, 7, 2, 8, 4], [1, 1, 2, 6, 6, 0, 9, 3, 5]])


def model_of(spec: str | tuple[str, ...]) -> Decoder:
    torch.manual_seed(1)
    model = Decoder(10, 24, 3, 2, spec, max_len=40).double().eval()
    for parameter in model.stack.encodings.parameters():
        # Tables that start at zero would have nothing to say.
        torch.nn.init.normal_(parameter)
    return model


def logits(model: Decoder, change=None) -> Tensor:
    at = Positions.count(IDS.shape[1])
    with torch.no_grad():
        return model(IDS, positions=at if change is None else change(at))


@pytest.mark.parametrize("spec", [*ABSOLUTE, *RELATIVE, "learned + shaw", ("rotary", "none")])
def test_removed_is_a_model_with_none_and_the_same_weights(spec) -> None:
    run = start(recipe("copy", spec, dim=24, heads=3))
    for parameter in run.model.stack.encodings.parameters():
        torch.nn.init.normal_(parameter)
    plain = Decoder(29, 24, 3, 2, "none", max_len=22).eval()
    plain.load_state_dict(
        {name: w for name, w in run.model.state_dict().items() if not name.startswith("stack.encodings.")}
    )
    bare_logits = logits(without_position(run.model, run.experiment, run.task))
    torch.testing.assert_close(bare_logits, logits(plain), rtol=0, atol=0)
    assert (bare_logits - logits(run.model.eval())).abs().max() > 1e-3


@pytest.mark.parametrize("spec", RELATIVE)
def test_a_shift_changes_nothing_for_what_reads_distances(spec: str) -> None:
    model = model_of(spec)
    torch.testing.assert_close(logits(model, shift_positions(17)), logits(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", ABSOLUTE)
def test_a_shift_changes_the_answer_of_what_reads_places(spec: str) -> None:
    model = model_of(spec)
    assert (logits(model, shift_positions(17)) - logits(model)).abs().max() > 1e-3


@pytest.mark.parametrize("change", [shuffle_positions, swap_neighbours])
@pytest.mark.parametrize("spec", [*ABSOLUTE, *RELATIVE])
def test_positions_in_another_order_change_the_answer_of_every_encoding(spec: str, change) -> None:
    model = model_of(spec)
    assert (logits(model, change) - logits(model)).abs().max() > 1e-3


def test_none_notices_no_change_of_positions() -> None:
    model = model_of("none")
    for change in (shuffle_positions, swap_neighbours, shift_positions(17)):
        assert torch.equal(logits(model, change), logits(model))


@pytest.mark.parametrize("tokens", [1, 2, 9, 10])
def test_what_each_change_does_to_the_coordinates(tokens: int) -> None:
    at = Positions.count(tokens)
    pairs = [[i + 1, i] for i in range(0, tokens - 1, 2)]
    expected = [i for pair in pairs for i in pair] + ([tokens - 1] if tokens % 2 else [])
    assert swap_neighbours(at).coords[0, :, 0].tolist() == expected
    assert shift_positions(3)(at).coords[0, :, 0].tolist() == list(range(3, tokens + 3))
    order = shuffle_positions(at).coords[0, :, 0].tolist()
    assert sorted(order) == list(range(tokens)) and (tokens < 9 or order != sorted(order))
    assert shuffle_positions(at).coords[0, :, 0].tolist() == order
    for at_changed in (swap_neighbours(at), shift_positions(3)(at), shuffle_positions(at)):
        assert torch.equal(at_changed.order, at.order)


def test_an_ablation_says_null_where_an_encoding_refuses() -> None:
    experiment = recipe("copy", "learned", train_length=3, test_lengths=(), dim=16, heads=2, layers=1, steps=1)
    scores = ablate(train(start(experiment)))
    assert scores["shifted"] is None
    assert all(scores[name] is not None for name in ("intact", "removed", "shuffled", "swapped"))


@pytest.mark.parametrize("spec", ENCODINGS)
def test_an_ablation_is_five_scores_and_leaves_the_run_as_it_was(spec: str) -> None:
    run = start(recipe("copy", spec, train_length=3, dim=16, heads=2, layers=1))
    old = {name: w.clone() for name, w in run.model.state_dict().items()}
    scores = ablate(run)
    assert list(scores) == ["intact", "removed", "shuffled", "shifted", "swapped"]
    assert all(value is None or 0 <= value <= 1 for value in scores.values())
    new = run.model.state_dict()
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)


def test_a_trained_model_that_needs_its_positions_loses_without_them() -> None:
    # Two symbols are copied after a few hundred steps; without position the two cannot be told apart.
    run = start(
        recipe("copy", "rotary", train_length=2, dim=32, heads=2, layers=2, steps=600, batch=16, warmup=10, rate=5e-3)
    )
    while run.step < 600 and (not run.curve or run.curve[-1]["score"] < 0.95):
        train(run, stop_step=run.step + 50)
    scores = ablate(run)
    assert scores["intact"] >= 0.9 and scores["shifted"] == pytest.approx(scores["intact"], abs=0.02)
    assert scores["removed"] < 0.6


class Reading:
    """A stub of a model that answers rightly where `sees` holds for the coordinates, and guesses elsewhere.

    The answers of copy: after the separator the prompt, then the end.
    """

    def __init__(self, sees, encodings: int = 1) -> None:
        self.sees, self.encodings = sees, encodings

    def eval(self) -> None:
        pass

    def parameters(self) -> tuple[()]:
        return ()

    def __call__(self, ids: Tensor, *, positions: Positions) -> Tensor:
        logits = torch.zeros_like(ids)
        if self.sees(positions.coords[0, :, 0].tolist(), self.encodings):
            n = ids.shape[1] // 2 - 1
            logits = torch.cat((logits[:, : n + 1], ids[:, 1 : n + 1], torch.full_like(ids[:, :1], END)), 1)
        return F.one_hot(logits, 29).float()


def ablation_of(monkeypatch: pytest.MonkeyPatch, task, model: Reading, length: int) -> dict:
    """The ablation of a stub that knows whether it has an encoding."""
    monkeypatch.setattr(ablation, "without_position", lambda model, *args: type(model)(model.sees, encodings=0))
    experiment = SimpleNamespace(train_length=length, map=None, test_map=None)
    return ablate(SimpleNamespace(experiment=experiment, task=task, model=model))


TOKENS = 10
"""Of copy at length 4: BOS, the prompt, the separator, and the answer without its end."""

IN_ORDER = list(range(TOKENS))
IN_PAIRS = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]


@pytest.mark.parametrize(
    ("sees", "intact"),
    [
        (lambda at, encodings: True, ["intact", "removed", "shuffled", "shifted", "swapped"]),
        (lambda at, encodings: False, []),
        # What must have its encoding, and what does best without; positions are counted for both.
        (lambda at, encodings: at == IN_ORDER and encodings == 1, ["intact"]),
        (lambda at, encodings: encodings == 0, ["removed"]),
        # What reads places, and what reads distances.
        (lambda at, encodings: at == IN_ORDER, ["intact", "removed"]),
        (lambda at, encodings: all(b - a == 1 for a, b in pairwise(at)), ["intact", "removed", "shifted"]),
        (lambda at, encodings: sorted(at) == IN_ORDER, ["intact", "removed", "shuffled", "swapped"]),
        # Each change by itself.
        (lambda at, encodings: at == IN_PAIRS, ["swapped"]),
        (lambda at, encodings: at == [place + TOKENS // 2 for place in IN_ORDER], ["shifted"]),
        (lambda at, encodings: sorted(at) == IN_ORDER and at not in (IN_ORDER, IN_PAIRS), ["shuffled"]),
    ],
)
def test_each_ablation_changes_what_its_name_says_and_nothing_else(sees, intact: list[str], monkeypatch) -> None:
    scores = ablation_of(monkeypatch, task_of("copy"), Reading(sees), 4)
    assert scores == {name: float(name in intact) for name in ("intact", "removed", "shuffled", "shifted", "swapped")}


def test_the_ablations_of_text_are_bits_per_byte_of_what_the_changed_model_says(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 30_000)

    class Certain(Reading):
        """Gives the letter a the probability 2^-1 where `sees` holds, and 2^-3 elsewhere."""

        def __call__(self, ids: Tensor, *, positions: Positions) -> Tensor:
            share = 1 / 2 if self.sees(positions.coords[0, :, 0].tolist(), self.encodings) else 1 / 8
            chances = torch.full((257,), (1 - share) / 256)
            chances[ord("a")] = share
            return chances.log().expand(*ids.shape, 257)

    task = Text(path=str(tmp_path / "a.txt"))
    model = Certain(lambda at, encodings: all(b - a == 1 for a, b in pairwise(at)))
    scores = ablation_of(monkeypatch, task, model, 8)
    expected = {"intact": 1, "removed": 1, "shuffled": 3, "shifted": 1, "swapped": 3}
    assert scores == {name: pytest.approx(bits, rel=1e-5) for name, bits in expected.items()}


def test_a_text_that_changes_meanwhile_is_no_refusal_of_the_encoding(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 30_000)
    task = Text(path=str(tmp_path / "a.txt"))
    assert task.text.files == 1
    (tmp_path / "a.txt").write_bytes(b"b" * 30_001)
    model = Reading(lambda at, encodings: True)
    with pytest.raises(CannotRead, match="was changed while it was in use"):
        ablation_of(monkeypatch, task, model, 8)
