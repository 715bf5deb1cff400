"""Divisors for the pairs of a rotary encoding, found by evolution, in the manner of LongRoPE."""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from posenc.foreign import quoted

EXCESS = 2.0
"""By how much divisors from the critical pair on may exceed the stretch; those that Phi-3 is shipped with do by so much
(64.8 at most, for a stretch of 32)."""

BROOD, ASKED, PARENTS = 12, 3, 6
"""Lists that are made in a generation; of these, those whose loss at the target is asked for; lists that have young."""

NEAREST = 3
"""How many lists whose loss at the target is known say by how much the screen errs beside them."""

APART = 0.01
"""How far (in ln of a divisor, of any pair) a list has to lie from all that were tried to be tried itself."""

PATIENCE = 20
"""After so many generations without a list that was not tried yet, the space is taken for searched."""

SEED = 0

Factors = tuple[float, ...]


@dataclass(frozen=True)
class Budget:
    """How long a search takes: so many minutes of its passes together, or so many passes at the target.

    Only the second gives the same factors on every machine.
    """

    minutes: float = math.inf
    evaluations: float = math.inf

    @classmethod
    def of(cls, words: str) -> "Budget":
        """The budget that is said, such as minutes=60 or evaluations=40; raises ValueError for anything else.

        >>> Budget.of("minutes=60")
        Budget(minutes=60.0, evaluations=inf)
        """
        name, _, number = words.partition("=")
        try:
            value = float(number) if name == "minutes" else int(number) if name == "evaluations" else 0
        except ValueError:
            value = 0
        if not 0 < value < math.inf:
            raise ValueError(
                f"--budget takes minutes=60 or evaluations=40, each with a number above 0 (evaluations: a whole one), "
                f"got {quoted(words)}"
            )
        return cls(**{name: value})

    def spent(self, seconds: float, evaluations: int) -> bool:
        return seconds >= 60 * self.minutes or evaluations >= self.evaluations

    def left(self, seconds: float, evaluations: int) -> float:
        """About how many seconds are left, by what the passes have taken so far."""
        rest = (self.evaluations - evaluations) * seconds / max(1, evaluations)
        return max(0.0, rest if self.minutes == math.inf else 60 * self.minutes - seconds)


@dataclass(frozen=True)
class Trial:
    """A list of divisors that was tried.

    kind     where it comes from: a schedule's name, or what was done to an earlier list
    factors  one divisor for each pair, fastest first (unitless)
    screen   its loss in short texts whose parts stand far apart (nats)
    loss     its loss at the target (nats); None where others promised more
    """

    kind: str
    factors: Factors
    screen: float
    loss: float | None = None


@dataclass(frozen=True)
class Space:
    """The lists that are searched: 1 <= factors[0] <= factors[1] <= ..., each at most what its pair allows.

    pairs     how many
    stretch   target / the length before (unitless)
    critical  the first pair that does not turn once within the length before: training did not show all of its angles.
              Pairs before it are divided by the stretch at most, those from it on by EXCESS times that
    """

    pairs: int
    stretch: float
    critical: int

    def nearest(self, factors: Sequence[float]) -> Factors:
        """The list of the space next to this one: each divisor at least that of the pair before, and within bounds.

        >>> Space(4, 2.0, 2).nearest((0.9, 1.5, 1.2, 9.0))
        (1.0, 1.5, 1.5, 4.0)
        """
        most = [self.stretch * (EXCESS if pair >= self.critical else 1.0) for pair in range(self.pairs)]
        rising = accumulate((max(1.0, one) for one in factors), max)
        return tuple(round(min(one, high), 4) for one, high in zip(rising, most, strict=True))

    def ramp(self, low: float, high: float) -> Factors:
        """1 up to pair `low`, the stretch from pair `high` on, and equal ratios between neighbours on the way."""
        rise = max(high - low, 1e-9)
        return self.nearest([self.stretch ** min(1.0, max(0.0, (k - low) / rise)) for k in range(self.pairs)])

    def starts(self) -> dict[str, Factors]:
        """Ramps that end at the critical pair or before, because pairs just before it were seldom seen to turn either.

        For each end one that begins at the first pair, as NTK-aware scaling does, and a steep one.
        """
        found = {}
        for part in range(4):
            end = max(1, self.critical - round(self.pairs * part / 16))
            found |= {f"ntk to {end}": self.ramp(0, end), f"steep to {end}": self.ramp(max(0, end / 2), end)}
        return found


def search(
    space: Space,
    starts: Mapping[str, Sequence[float]],
    screen: Callable[[Factors], float],
    loss: Callable[[Factors], float],
    spent: Callable[[], bool],
    seed: int = SEED,
) -> list[Trial]:
    """Lists of divisors, in the order in which they were made, until the budget is spent; see `best`.

    starts  lists to begin with, besides the ramps of the space; of the first one both losses are asked in any case
    screen  a cheap loss that tells which lists of a generation are worth the dear one
    loss    the loss that counts
    spent   asked before each of both

    Of each generation of BROOD lists, those ASKED for at the target are those that promise most. What the screen likes
    best of all is not what the target does, but it errs alike on lists that are alike, so what it says is put right by
    the NEAREST of those whose loss is known. The next generation is made from the PARENTS best so far: a curve of
    ln(divisor) against the pair is moved along the pairs, drawn wider or narrower, made higher or lower, bent around a
    pair, or put together from two, its fast pairs from the one and its slow ones from the other. Steps shrink while
    nothing gets better. The same losses and the same answers of `spent` give the same lists.

    How it differs from the papers: generations are small, and screened, because a pass at the target takes minutes;
    curves are changed as a whole, and no pair alone; and the first tokens of a text are scaled like all others.
    Source: Ding et al. 2024, arXiv:2402.13753, section 3 (evolution over divisors that do not fall from pair to pair);
    Shang et al. 2025, arXiv:2502.20082 (the critical pair lies before its theoretical place, and the pairs from it on
    may be divided by more than the stretch).
    """
    draw = random.Random(seed)
    (name, first), *others = [(name, space.nearest(one)) for name, one in {**starts, **space.starts()}.items()]
    trials = [Trial(name, first, screen(first), loss(first))]
    brood = others
    step, fruitless = 1.0, 0
    while not spent() and fruitless < PATIENCE:
        made: list[Trial] = []
        for kind, factors in brood:
            if not spent() and all(apart(factors, one.factors) for one in (*trials, *made)):
                made.append(Trial(kind, factors, screen(factors)))
        before = best(trials)
        promises = [promise(one, trials) for one in made]
        for place in sorted(range(len(made)), key=promises.__getitem__)[:ASKED]:
            if not spent():
                made[place] = replace(made[place], loss=loss(made[place].factors))
        trials += made
        now = best(trials)
        step = min(1.0, step * 1.2) if now is not before else max(0.1, step * 0.7)
        fruitless = 0 if made else fruitless + 1
        parents = ranked(trials)[:PARENTS]
        brood = [young(space, parents, step, draw) for _ in range(BROOD)]
    return trials


def promise(trial: Trial, trials: Sequence[Trial]) -> float:
    """What the loss of a list may be: what the screen says, and by how much it erred on the nearest lists (nats)."""
    near = sorted(ranked(trials), key=partial(distance, trial))[:NEAREST]
    return trial.screen + statistics.fmean((one.loss or 0.0) - one.screen for one in near)


def distance(one: Trial, other: Trial) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one.factors, other.factors, strict=True))


def apart(factors: Factors, others: Factors) -> bool:
    """Whether two lists are more than the same one again."""
    return any(abs(math.log(one / other)) > APART for one, other in zip(factors, others, strict=True))


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Those whose loss at the target was asked for, the lowest first."""
    return sorted((one for one in trials if one.loss is not None), key=lambda one: one.loss or 0.0)


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the lowest loss at the target; of equal ones the first."""
    return ranked(trials)[0]


def young(space: Space, parents: Sequence[Trial], step: float, draw: random.Random) -> tuple[str, Factors]:
    """What is done to one of the parents, the better ones more often, and what comes of it."""
    parent, other = (parents[min(draw.choices(range(len(parents)), k=2))] for _ in range(2))
    logs, others = ([math.log(one) for one in of.factors] for of in (parent, other))
    kind = draw.choice(("moved", "widened", "raised", "bent", "bent", "crossed"))
    pairs, size = range(space.pairs), step * draw.gauss(0.0, 1.0)
    middle = next((k for k in pairs if logs[k] >= logs[-1] / 2), 0)
    centre, width = draw.uniform(0, space.pairs), draw.uniform(1, space.pairs / 6 + 1)

    def bent(k: int) -> float:
        return logs[k] + 0.3 * size * math.log(space.stretch) * math.exp(-0.5 * ((k - centre) / width) ** 2)

    curves: dict[str, Callable[[int], float]] = {
        "moved": lambda k: at(logs, k - size * space.pairs / 12),
        "widened": lambda k: at(logs, middle + (k - middle) * math.exp(0.4 * size)),
        "raised": lambda k: logs[k] * math.exp(0.2 * size),
        "bent": bent,
        "crossed": lambda k: (logs if k < centre else others)[k],
    }
    return kind, space.nearest([math.exp(curves[kind](k)) for k in pairs])


def at(curve: Sequence[float], place: float) -> float:
    """A curve between its points; beyond its ends it goes on as it ends.

    >>> at([0.0, 1.0, 3.0], 1.5), at([0.0, 1.0, 3.0], 9.0)
    (2.0, 3.0)
    """
    place = min(max(place, 0.0), len(curve) - 1.0)
    low = min(int(place), len(curve) - 2)
    return curve[low] + (place - low) * (curve[low + 1] - curve[low]) if len(curve) > 1 else curve[0]
