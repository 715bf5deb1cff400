"""The factors of longrope for one model: searched by evolution, on text that is never measured on."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from posenc.checkpoints.extension.changes import Goal, change_of, divisors_of, with_options
from posenc.checkpoints.extension.clock import Clock
from posenc.checkpoints.extension.methods import Method
from posenc.checkpoints.extension.search.evolution import Budget, Factors, Space, Trial, best, ranked, search
from posenc.checkpoints.measures.measure import Given, Measure
from posenc.checkpoints.measures.perplexity import SHORT, Perplexity, windows_of
from posenc.checkpoints.measures.spread_out import SpreadOut
from posenc.checkpoints.vocabulary.reading import Part
from posenc.encoding import parts_of
from posenc.lab import store
from posenc.lab.results.summary import duration

STARTS = ("yarn", "ntk", "linear", "llama3")
"""The methods whose divisors a search begins with, the first of which it is compared with."""

FILE = "longrope-factors.json"
"""In the folder of a run: what was found, as --longrope-factors takes it."""

MOST_WINDOWS = 4
"""The most windows of text that a list is tried on at the target."""

LAST, TEXTS = 512, 2
"""Tokens of a part of the short texts, and how many there are."""

Lists = dict[str, Factors]

OnePass = Callable[[Measure, Method, int], Mapping[str, Any]]
"""(measure, method, length) -> the raw result of a pass, made once and kept, with the seconds that it took."""


def rotary_of(part: Part, served: int) -> Any:
    """The rotary encoding of the first layer that sees beyond what is served now; None where there is none."""
    layers = (layer for layer, of in enumerate(part.layers) if of.reach > served)
    found = (one for layer in layers for one in parts_of(part.encoding(layer)) if hasattr(one, "schedule"))
    return next(found, None)


def first_lists(part: Part, to: Goal) -> Lists:
    """Lists to plan with before any search; of one pair where the plan says why longrope does not apply."""
    rotary = rotary_of(part, to.served)
    if rotary is None or (rotary.schedule is not None and not to.replace):
        return {"short_factor": (1.0,), "long_factor": (1.0,)}
    return lists(rotary, begun(rotary, to, STARTS[0]))


def lists(rotary: Any, long: Factors) -> Lists:
    """Both lists of longrope: texts up to the length before keep their frequencies, and longer ones have `long`."""
    return {"short_factor": divisors_of(rotary), "long_factor": long}


def begun(rotary: Any, to: Goal, name: str) -> Factors:
    """The divisors of a method."""
    return divisors_of(change_of(name, to)(rotary), rotary)


def space_of(rotary: Any, to: Goal) -> Space:
    """The lists that are searched for a rotary encoding."""
    plain: Any = with_options(rotary, schedule=None)
    start, waves = to.start(rotary.schedule), 2 * math.pi / plain.spectrum()[0]
    return Space(len(waves), to.target / start, int((waves <= start).sum()))


@dataclass
class Search:
    """A search under way.

    whole  the loss that counts: of the tokens beyond the trained length, in windows of the target's length
    short  the screen: the loss in short texts over the target's positions
    """

    rotary: Any
    to: Goal
    budget: Budget
    whole: Perplexity
    short: SpreadOut

    @classmethod
    def of(cls, part: Part, to: Goal, given: Given, before: int, budget: Budget) -> "Search":
        """The search for a model, on the first `before` tokens of a text; raises ValueError where they are too few."""
        windows = min(MOST_WINDOWS, max(1, SHORT // given.longest), before // given.longest)
        if not windows:
            raise ValueError(
                f"a search takes the text before the measured windows, which begin at token {before:,} of "
                f"{len(given.tokens.ids):,}: too few for a window of {given.longest:,} tokens; give a longer --text, a "
                f"later --start, or fewer --samples"
            )
        whole = Perplexity(replace(given, start=0, samples=windows))
        last = max(1, min(LAST, given.trained // 4))
        short = SpreadOut(given.tokens, given.longest, texts=TEXTS, last=last)
        return cls(rotary_of(part, to.served), to, budget, whole, short)

    def made(self, method: Callable[[Lists], Method], one_pass: OnePass, clock: Clock) -> dict[str, Any]:
        """Search, and return the record of it.

        method  longrope with such lists
        """
        taken, evaluations = 0.0, 0
        trained, target = self.whole.trained, self.to.target

        def passed(measure: Measure, factors: Factors) -> Mapping[str, Any]:
            nonlocal taken
            clock.besides = self.budget.left(taken, evaluations)
            raw = one_pass(measure, method(lists(self.rotary, factors)), target)
            taken += raw["seconds"]
            return raw

        def screen(factors: Factors) -> float:
            return mean([torch.tensor(one) for one in passed(self.short, factors)["losses"]])

        def loss(factors: Factors) -> float:
            nonlocal evaluations
            raw = passed(self.whole, factors)
            evaluations += 1
            return mean([one[trained - 1 :] for one in windows_of({target: raw}, target)])

        space = space_of(self.rotary, self.to)
        starts = {name: begun(self.rotary, self.to, name) for name in STARTS}
        try:
            trials = search(space, starts, screen, loss, lambda: self.budget.spent(taken, evaluations))
        finally:
            clock.besides = 0.0
        found = best(trials)
        return {
            "trials": [asdict(one) for one in trials],
            "starts": {name: list(one) for name, one in starts.items()},
            "stretch": space.stretch,
            "critical": space.critical,
            "factors": {name: list(one) for name, one in lists(self.rotary, found.factors).items()},
            "seconds": taken,
            "words": self.words(trials, taken),
        }

    def words(self, trials: Sequence[Trial], taken: float) -> str:
        """What was found."""
        found, first, asked = best(trials), trials[0], ranked(trials)
        said = (
            f"longrope's divisors were searched for {duration(taken)} in the text before the measured windows: "
            f"{len(trials):,} lists in {self.short.texts} texts of {self.short.tokens:,} tokens over the positions of "
            f"{self.to.target:,}, and {len(asked):,} of them in {self.whole.count} of all {self.to.target:,} "
            f"tokens. The best ({found.kind}) has a loss of {found.loss:.4f} nats beyond {self.whole.trained:,} tokens"
        )
        if found is first:
            return f"{said}, and it is {first.kind}'s own: nothing better was found."
        return f"{said}; {first.kind}'s have {first.loss:.4f}. {FILE} holds them, as --longrope-factors takes them."


def mean(losses: Sequence[torch.Tensor]) -> float:
    return float(torch.cat(list(losses)).double().mean())


def write(found: Mapping[str, Any], out: Path) -> None:
    """Write what was found to the folder of a run."""
    store.write(out / FILE, (json.dumps(found["factors"], indent=1) + "\n").encode())
