"""The search of longrope's factors: evolution where the best list is known, and a whole run of a tiny model."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.extension import extend as module
from posenc.checkpoints.extension import report
from posenc.checkpoints.extension.changes import Goal
from posenc.checkpoints.extension.clock import Clock
from posenc.checkpoints.extension.extend import extend
from posenc.checkpoints.extension.methods import read_factors
from posenc.checkpoints.extension.search import evolution
from posenc.checkpoints.extension.search.evolution import EXCESS, Budget, Space, best, search
from posenc.checkpoints.extension.search.longrope_factors import FILE, Search
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.spread_out import SpreadOut
from posenc.encodings.rotary import Rotary

SPACE = Space(pairs=16, stretch=4.0, critical=10)


class Landscape:
    """The mean squared distance of ln(divisors) from a list that no ramp of the space is; counts who asks."""

    def __init__(self, seed: int, noise: float = 0.3) -> None:
        self.draw, self.noise, self.asked = random.Random(seed), noise, 0
        low, rise, top = (self.draw.uniform(*ends) for ends in ((1, 5), (3, 6), (1, 1.8)))
        logs = [min(1, max(0, (k - low) / rise)) * math.log(4 * top) + self.draw.gauss(0, 0.1) for k in range(16)]
        self.best = SPACE.nearest(list(map(math.exp, logs)))

    def height(self, factors: evolution.Factors) -> float:
        return sum(math.log(a / b) ** 2 for a, b in zip(factors, self.best, strict=True)) / 16

    def loss(self, factors: evolution.Factors) -> float:
        self.asked += 1
        return self.height(factors)

    def screen(self, factors: evolution.Factors) -> float:
        return self.height(factors) * math.exp(self.draw.gauss(0, self.noise))

    def searched(self, evaluations: int) -> list[evolution.Trial]:
        starts = {"yarn": SPACE.ramp(4, 10), "linear": (4.0,) * 16}
        return search(SPACE, starts, self.screen, self.loss, lambda: self.asked >= evaluations)


# Evolution


@pytest.mark.parametrize("seed", range(5))
def test_evolution_comes_near_and_beats_as_many_lists_at_random(seed: int) -> None:
    land, draw = Landscape(seed), random.Random(seed)
    trials = land.searched(40)
    ends = [math.log(4.0 * EXCESS)] * 16
    drawn = [SPACE.nearest([math.exp(one) for one in sorted(map(draw.uniform, [0.0] * 16, ends))]) for _ in range(40)]
    found = best(trials).loss
    assert found is not None and found < 0.5 * min(map(land.height, drawn))
    assert found < 0.25 * min(one.loss for one in trials[:13] if one.loss is not None)


def test_a_budget_is_kept_and_the_same_losses_give_the_same_lists() -> None:
    land = Landscape(3)
    trials = land.searched(17)
    assert land.asked == 17 == sum(one.loss is not None for one in trials)
    assert trials == Landscape(3).searched(17) and trials != Landscape(4).searched(17)
    assert len({one.factors for one in trials}) == len(trials)
    # Where one loss is known, it says nothing of the screen, whose best are asked for.
    assert trials[0].kind == "yarn" and trials[0].loss is not None
    first = sorted(trials[1:10], key=lambda one: one.screen)
    assert [one.loss is not None for one in first] == [True] * 3 + [False] * 6


def test_a_screen_that_likes_other_lists_does_not_lead_to_them() -> None:
    """Who asks for what it likes best ends at 0.07."""
    elsewhere, found = SPACE.ramp(6, 12), []
    for seed in range(10):
        land, other = Landscape(seed), Landscape(seed)
        other.best = elsewhere
        land.screen = lambda factors, a=land, b=other: 0.5 * a.height(factors) + b.height(factors)
        found.append(best(land.searched(40)).loss)
    assert math.exp(sum(map(math.log, found)) / 10) < 0.06


def test_every_list_rises_within_the_bounds_of_its_pairs() -> None:
    trials = Landscape(1).searched(60)
    for one in trials:
        assert all(a <= b for a, b in zip((1.0, *one.factors), one.factors, strict=False)), one
        assert max(one.factors[:10]) <= 4 and max(one.factors) <= 8, one
    assert {one.kind for one in trials} >= {"yarn", "ntk to 10", "moved", "widened", "raised", "bent", "crossed"}
    assert max(one.factors[-1] for one in trials) > 4


def test_a_space_of_one_list_is_searched_once() -> None:
    trials = search(Space(1, 1.0, 1), {"yarn": (1.0,)}, sum, sum, lambda: False)
    assert [one.factors for one in trials] == [(1.0,)]


def test_budgets() -> None:
    minutes, evaluations = Budget.of("minutes=1.5"), Budget.of("evaluations=4")
    assert not minutes.spent(89, 1000) and minutes.spent(90, 0)
    assert not evaluations.spent(1e9, 3) and evaluations.spent(0, 4)
    assert (minutes.left(30, 7), minutes.left(91, 7), evaluations.left(30, 3)) == (60, 0, 10)


@pytest.mark.parametrize("words", ["60", "minutes", "minutes=0", "minutes=inf", "evaluations=1.5", "hours=1"])
def test_no_budget(words: str) -> None:
    with pytest.raises(ValueError, match=f"--budget takes minutes=60 or evaluations=40, .* got '{words}'"):
        Settings("it", 2.0, budget=words)


# Short texts over the positions of a long one


def spread(**sizes: int) -> SpreadOut:
    ids = torch.randint(0, 99, (200,), generator=torch.Generator().manual_seed(5))
    return SpreadOut(perplexity.Tokens("it", "0", ids), 96, **{"texts": 2, "last": 20, **sizes})


def test_parts_stand_far_apart() -> None:
    of = spread(parts=3)
    at = of.positions(96)
    assert at.tolist() == [*range(20), *range(38, 58), *range(76, 96)]
    model, found = tiny_llama.model(), of.run(tiny_llama.model(), 96)
    for number in range(2):
        ids = of.text.ids[60 * number :][:60]
        # A mask of pairs leaves nothing to be guessed.
        pairs = torch.ones(60, 60, dtype=torch.bool).tril()[None, None]
        with torch.no_grad():
            logits = model(input_ids=ids[None], position_ids=at[None], attention_mask=pairs).logits[0]
        expected = torch.nn.functional.cross_entropy(logits[39:-1], ids[40:], reduction="none")
        torch.testing.assert_close(torch.tensor(found["losses"][number]), expected, rtol=0, atol=2e-5)
    near = spread(parts=3).run(model, 60)["losses"]
    torch.testing.assert_close(
        torch.tensor(near[0]), perplexity.losses(model, of.text.ids[:60])[-20:], atol=2e-5, rtol=0
    )
    assert found["read"] == 120 and found["losses"] != near


# A search


def test_minutes_are_those_of_all_passes() -> None:
    """Kept passes bring their seconds, so that a run that goes on does not begin its minutes again."""
    rotary, made = Rotary(16, base=500.0), []

    def one_pass(measure: Any, lists: Any, length: int) -> dict[str, Any]:
        made.append((measure.name, length))
        # Up to the trained length nothing counts.
        return {"losses": [[0.0] * 95 * (measure is whole) + [float(sum(lists["long_factor"]))] * 96], "seconds": 30.0}

    whole = SimpleNamespace(name="whole", trained=96, count=1)
    short = SimpleNamespace(name="short", texts=2, tokens=48)
    clock = Clock(lambda words: None)
    of: Any = Search(rotary, Goal(2.0, 96), Budget.of("minutes=3"), whole, short)
    found = of.made(lambda lists: lists, one_pass, clock)
    assert made == [("short", 192), ("whole", 192), *[("short", 192)] * 4] and found["seconds"] == 180
    assert clock.besides == 0 and found["critical"] == 4 and found["stretch"] == 2
    assert found["words"].endswith("beyond 96 tokens, and it is yarn's own: nothing better was found.")
    of.budget = Budget.of("evaluations=4")
    found = of.made(lambda lists: lists, one_pass, clock)
    assert "and 4 of them in 1 of all 192 tokens. The best (ntk) has" in found["words"]
    assert f"; yarn's have {sum(found['starts']['yarn']):.4f}. {FILE} holds them" in found["words"]


def settings(model: Path, text: str, **changes: Any) -> Settings:
    given = {"methods": ("longrope",), "text": (text,), "samples": 1, "passkey": 0, "budget": "evaluations=2"}
    return Settings(str(model), 2.0, **{**given, **changes})


def test_a_search_is_cut_goes_on_and_is_written(model: Path, text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Space, "starts", lambda self: {"steep": self.ramp(1, 4)})
    monkeypatch.setattr(evolution, "BROOD", 2)
    monkeypatch.setattr(report, "write", lambda record, folder: None)
    run, passes = module.Run.one_pass, []

    def one_pass(self, measure, method, length, name="") -> dict[str, Any]:
        passes.append((measure.name, getattr(measure, "start", None)))
        if len(passes) == 4:
            raise KeyboardInterrupt
        return run(self, measure, method, length, name)

    monkeypatch.setattr(module.Run, "one_pass", one_pass)
    asked, out = settings(model, text), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        extend(asked, out)
    before = (out / "measurements.jsonl").read_text().splitlines()
    record = extend(asked, out)
    assert (out / "measurements.jsonl").read_text().splitlines()[:3] == before and len(before) == 3
    # The search reads windows from the beginning, and ends where what is measured begins.
    start = record["measures"][0]["facts"]["start"]
    assert start == len(tiny_llama.TEXT) - 192 and ("perplexity", 0) in passes
    facts = [json.loads(line)["facts"].get("of", {}) for line in (out / "measurements.jsonl").read_text().splitlines()]
    ends = [of["windows"] * of["stride"] for of in facts if of.get("start") == 0 and "windows" in of]
    assert len(ends) == 2 and max(ends) <= start
    found = record["search"]
    assert [one["kind"] for one in found["trials"]][:5] == ["yarn", "ntk", "linear", "llama3", "steep"]
    assert read_factors(out / FILE) == found["factors"] and found["factors"]["short_factor"] == [1.0] * 8
    chosen = min((one["loss"], one["factors"]) for one in found["trials"] if one["loss"] is not None)[1]
    assert list(chosen) == found["factors"]["long_factor"]
    config = json.loads((out / "checkpoint" / "config.json").read_text())
    assert config["rope_parameters"]["long_factor"] == found["factors"]["long_factor"]
    headers, rows = report.search_table(record)
    assert len(rows) == 2 and {len(row) for row in rows} == {len(headers)}
    assert found["words"] in report.sentences(record)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("yarn",)}, "--budget is for the method longrope; name it with --method"),
        ({"budget": None, "factors": "yes", "methods": ("yarn",)}, "--longrope-factors is for the method longrope"),
        ({"factors": "yes"}, "--budget searches for the factors that --longrope-factors gives; leave one"),
        ({"start": 191}, "begin at token 191 of .*: too few for a window of 192 tokens; give a longer --text, a later"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_a_folder_is_made(
    changes: dict[str, Any], message: str, model: Path, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "factors.json"
    file.write_text(json.dumps({"short_factor": [1.0] * 8, "long_factor": [1.0] * 8}))
    changes = {name: str(file) if value == "yes" else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=message):
        extend(settings(model, text, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_scaled_model_is_searched_from_the_length_before(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Space, "starts", lambda self: {})
    monkeypatch.setattr(report, "write", lambda record, folder: None)
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "original_max_position_embeddings": 48}
    tiny_llama.model(rope_parameters=yarn).save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer().save_pretrained(tmp_path / "model")
    asked = settings(tmp_path / "model", text, methods=("all",), budget="evaluations=1")
    with pytest.raises(ValueError, match="longrope, and it is left out: the model's frequencies are already scaled"):
        extend(asked, tmp_path / "run")
    asked = settings(tmp_path / "model", text, replace=True, budget="evaluations=1")
    found = extend(asked, tmp_path / "run")["search"]
    assert found["stretch"] == 4
    # What the model does up to its first length stays.
    inside = Rotary(16, base=500.0, schedule="yarn(factor=2, trained_length=48)").spectrum()[0]
    plain = Rotary(16, base=500.0).spectrum()[0]
    assert found["factors"]["short_factor"] == pytest.approx((plain / inside).tolist())
