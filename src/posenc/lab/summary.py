"""What the records of a comparison say: medians and ranges over seeds, the gate, and the answer in words.

Nothing is drawn here and nothing is marked up: plots, the page and the terminal all read these numbers and
sentences, so they cannot disagree. Names of encodings stand between backticks in sentences (`none` is one of them).
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from posenc.foreign import visible

Record: TypeAlias = dict[str, Any]

NOT_LEARNED = "not learned"
LEARNED_TEXT = "0.1 bits per byte better than a table of byte pairs, and than itself with the last byte alone"
NOTHING = "\N{EN DASH}"
# What the words mean. Exact match at a length, median over the seeds that learned:
CARRIES = 0.90
FALLS_APART = 0.10
# Perplexity at k times the trained length over perplexity at the trained length, R(k):
FLAT = 1.05
EXPLODES = 1.5
# Times nearer than this are called equal; CPU time of one run varies by about as much.
SAME_TIME = 1.10
# A difference is claimed only between encodings of which so many seeds each have learned.
SEEDS_FOR_A_CLAIM = 3
# Names in one list; the table has them all.
MOST_NAMES = 10
# Letters that are shown: of a name or any other text of a record, and of a sentence.
MOST_LETTERS = 200
MOST_OF_A_SENTENCE = 1_000
# Bits per byte nearer than this are called equal.
SAME_BITS = 0.01


def get(record: Any, *path: str) -> Any:
    """What stands at a path of keys, or None where the record does not have it."""
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def number(value: Any) -> float | None:
    """The value as a float; None for what is not a number, NaN included: a score that failed is no score."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def legible(value: Any, most: int = MOST_LETTERS) -> Any:
    """A record, or anything in it, as people are shown it: of a long text the beginning, and no control characters.

    Two texts stay two. What is written down for programs is never this.

    >>> legible({"spec": "a" * 300})["spec"][195:]
    'aaaaa... (300 letters, SHA-256 9835fa6b)'
    """
    if isinstance(value, dict):
        return {legible(key, most): legible(inner, most) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [legible(inner, most) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) <= most:
        return visible(value)
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{visible(value[:most])}... ({len(value)} letters, SHA-256 {digest})"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of one number over seeds."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Iterable[Any]) -> "Spread | None":
        """The spread of those values that are numbers, or None if there are none."""
        known = sorted(x for x in map(number, values) if x is not None)
        return Spread(statistics.median(known), known[0], known[-1], len(known)) if known else None


@dataclass(frozen=True)
class Result:
    """One encoding on one task: its runs, one for each seed."""

    label: str
    task: str
    runs: list[Record]

    @property
    def learned(self) -> list[Record]:
        """The runs that passed the gate; only these may speak about lengths and speed."""
        return [run for run in self.runs if run.get("learned") is True]

    @property
    def is_text(self) -> bool:
        return any(is_text(run) for run in self.runs)

    @property
    def trained_length(self) -> float | None:
        return next((x for x in map(trained_length, self.runs) if x is not None), None)

    def spread(self, *path: str) -> Spread | None:
        """Over the runs that learned."""
        return Spread.of(get(run, *path) for run in self.learned)

    def spread_of_all(self, *path: str) -> Spread | None:
        return Spread.of(get(run, *path) for run in self.runs)

    def lengths(self) -> list[tuple[float, float | None]]:
        """Every measured (length, factor of the trained length), shortest first."""
        found: dict[float, float | None] = {}
        for run in self.runs:
            for entry in entries(run):
                found.setdefault(entry["length"], number(get(entry, "factor")))
        return sorted(found.items())

    def at(self, length: float, measure: str) -> Spread | None:
        """One measure at one length, over the runs that learned."""
        return Spread.of(
            get(entry, measure) for run in self.learned for entry in entries(run) if entry["length"] == length
        )

    def beyond(self, measure: str) -> list[tuple[float, float, Spread]]:
        """(length, factor, spread) at every length longer than trained at which the measure is known."""
        found = [
            (length, factor, self.at(length, measure)) for length, factor in self.lengths() if factor and factor > 1
        ]
        return [(length, factor, spread) for length, factor, spread in found if spread is not None]

    def seeds(self) -> str:
        """How many learned, in words, where that needs saying."""
        if len(self.learned) == len(self.runs):
            return ""
        return f"{len(self.learned)} of {len(self.runs)} learned" if self.learned else NOT_LEARNED


def entries(run: Record) -> list[dict[str, Any]]:
    """The length entries that have a length."""
    found = get(run, "lengths")
    return [e for e in found if number(get(e, "length")) is not None] if isinstance(found, list) else []


def trained_length(run: Record) -> float | None:
    given = number(get(run, "experiment", "train_length"))
    return given if given is not None else next((number(e["length"]) for e in entries(run)), None)


def trained_tokens(run: Record) -> float | None:
    """How many positions training has shown: the tokens of the longest sequence, of which an item may take several."""
    given = number(get(run, "trained_tokens"))
    return given if given is not None else trained_length(run)


def is_text(run: Record) -> bool:
    """Whether the run is measured in bits per byte, where lower is better, and not in exact match."""
    return number(get(run, "in_distribution", "exact_match")) is None and get(run, "text") is not None


def shown_positions(found: Sequence[Result]) -> list[float]:
    """How many positions training has shown, one number for each task."""
    return sorted({x for result in found for run in result.runs if (x := trained_tokens(run)) is not None})


def trained_lengths(found: Sequence[Result]) -> list[float]:
    return sorted({x for result in found if (x := result.trained_length) is not None})


def trained_words(found: Sequence[Result]) -> str:
    return listed([count(x) for x in trained_lengths(found)] or ["the trained length"], "or")


def spec_of(run: Record) -> str:
    spec = get(run, "experiment", "spec") or get(run, "encoding") or "unnamed"
    # Specs that are cycled over the layers.
    return " / ".join(map(str, spec)) if isinstance(spec, (list, tuple)) else str(spec)


def task_of(run: Record) -> str:
    return str(get(run, "experiment", "task") or "unnamed task")


def distinct(records: Sequence[Record]) -> list[Record]:
    """The records, a later one with the same key taking the place of an earlier one."""
    kept: dict[Any, Record] = {}
    for place, record in enumerate(records):
        kept[get(record, "key") or place] = record
    return list(kept.values())


def labelled(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Each record with the name that it goes by: its spec, and the settings in which its runs on a task differ."""
    records = distinct(records)

    def settings(run: Record) -> dict[str, Any]:
        experiment = get(run, "experiment") or {}
        return {k: v for k, v in experiment.items() if k not in ("spec", "task", "seed")}

    groups: dict[tuple[str, str], list[Record]] = {}
    for run in records:
        groups.setdefault((spec_of(run), task_of(run)), []).append(run)
    differ: dict[str, list[str]] = {}
    for (spec, _), runs in groups.items():
        for name in dict.fromkeys(name for run in runs for name in settings(run)):
            if len({json.dumps(settings(run).get(name), default=str) for run in runs}) > 1:
                names = differ.setdefault(spec, [])
                names.extend([name] if name not in names else [])
    out = []
    for run in records:
        spec = spec_of(run)
        given = {name: settings(run).get(name) for name in differ.get(spec, [])}
        extra = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        out.append((f"{spec} [{extra}]" if extra else spec, run))
    return out


def labels(records: Sequence[Record]) -> list[str]:
    """The names of all encodings, in order of appearance."""
    return list(dict.fromkeys(label for label, _ in labelled(records)))


def tasks(records: Sequence[Record]) -> list[str]:
    """The tasks, in order of appearance."""
    return list(dict.fromkeys(task_of(run) for run in records))


def results(records: Sequence[Record], task: str | None = None) -> list[Result]:
    """One result for each encoding and task, in order of appearance."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for label, run in labelled(records):
        if task is None or task_of(run) == task:
            groups.setdefault((task_of(run), label), []).append(run)
    order = tasks(records)
    return [
        Result(label, name, runs) for (name, label), runs in sorted(groups.items(), key=lambda x: order.index(x[0][0]))
    ]


# How numbers are printed. Each keeps the digits that a reader can use, and never rounds a miss up to a hit.


def plain(value: float, digits: int) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.{digits}f}"


def percent(value: float) -> str:
    """In percent, without the sign; 100 and 0 only where it is really so.

    >>> [percent(x) for x in (1.0, 0.996, 0.83, 0.004, 0.0)]
    ['100', '99.6', '83', '0.4', '0']
    """
    exact = value * 100
    if math.isinf(value):
        return plain(value, 0)
    rounded = f"{exact:.0f}"
    if (rounded == "100" and exact != 100) or (rounded == "0" and exact != 0):
        near = f"{exact:.1f}"
        return {"100.0": "99.9", "0.0": "0.1"}.get(near, near)
    return rounded


def bits(value: float) -> str:
    return plain(value, 2)


def ratio(value: float) -> str:
    return plain(value, 2 if abs(value) < 10 else 0)


def seconds(value: float) -> str:
    return plain(value, 1 if abs(value) < 100 else 0)


def count(value: float) -> str:
    return plain(value, 0 if float(value).is_integer() or math.isinf(value) else 1)


def times(factor: float) -> str:
    return f"{factor:.2f}".rstrip("0").rstrip(".") + "x"


def with_range(spread: Spread, form: Callable[[float], str], unit: str = "") -> str:
    """The median, and the range where there is one to speak of."""
    low, high = form(spread.low), form(spread.high)
    middle = f"{form(spread.median)}{unit}"
    return middle if low == high else f"{middle} ({low} to {high}{unit} over {spread.count} seeds)"


def name(label: str) -> str:
    return f"`{label}`"


def listed(words: Sequence[str], last: str = "and") -> str:
    """'a, b and c'; of a long list the beginning, and how many more there are."""
    if len(words) > MOST_NAMES:
        words = [*words[: MOST_NAMES - 1], f"{len(words) - MOST_NAMES + 1} others"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def names_of(found: Sequence[Result]) -> str:
    return listed([name(result.label) for result in found])


def ask(verb: str, found: Sequence[Any]) -> str:
    """The verb in the third person: 'carries' for one subject, 'carry' for several."""
    one = {"carry": "carries", "do": "does", "are": "is", "have": "has", "stay": "stays", "explode": "explodes"}
    return one.get(verb, verb + "s") if len(found) == 1 else verb


# Who leads. Every claim in words goes through these, and each looks only at runs that learned.

Ranked: TypeAlias = list[tuple[Result, Spread]]


def ranked(found: Sequence[Result], measured: Callable[[Result], Spread | None]) -> Ranked:
    """Those whose number is known with their numbers, the smallest median first."""
    known = [(result, spread) for result in found if (spread := measured(result)) is not None]
    return sorted(known, key=lambda x: x[1].median)


def unbeaten(known: Ranked, beats: Callable[[Spread, Spread], bool]) -> list[Result]:
    """Those that no other beats: one beats another only with three seeds or more each, and by their ranges."""

    def beaten(own: Spread) -> bool:
        return any(min(own.count, s.count) >= SEEDS_FOR_A_CLAIM and beats(s, own) for _, s in known)

    return [result for result, spread in known if not beaten(spread)]


def ahead(known: Ranked, beats: Callable[[Spread, Spread], bool]) -> list[Result]:
    """Those that no other beats, where they have beaten somebody; within the spread of the seeds nobody is ahead."""
    first = unbeaten(known, beats)
    return first if len(first) < len(known) else []


def higher(one: Spread, other: Spread) -> bool:
    """Whether even the lowest seed of one is above the highest of the other."""
    return one.low > other.high


def sooner(one: Spread, other: Spread) -> bool:
    return one.high * SAME_TIME < other.low


def fewer_bits(one: Spread, other: Spread) -> bool:
    return one.high + SAME_BITS < other.low


def reach(result: Result) -> tuple[float, float, Spread] | None:
    """The longest (length, factor, exact match) up to which it carries, if that is past the trained length."""
    furthest = None
    for length, factor, spread in result.beyond("exact_match"):
        if spread.median < CARRIES:
            break
        furthest = (length, factor, spread)
    return furthest


def reaches(result: Result) -> Spread | None:
    """Over the seeds: the multiple of the trained length up to which each carries, 1 where it carries no further."""
    own = [reach(Result(result.label, result.task, [run])) for run in result.learned]
    return Spread.of(1.0 if got is None else got[1] for got in own) if result.beyond("exact_match") else None


def falls_apart(result: Result) -> tuple[float, float, Spread] | None:
    """The first (length, factor, exact match) past the trained length at which next to nothing is right."""
    return next((x for x in result.beyond("exact_match") if x[2].median < FALLS_APART), None)


def explodes(result: Result) -> tuple[float, float, Spread] | None:
    """The first (length, factor, R) at which perplexity has risen by half."""
    return next((x for x in result.beyond("perplexity_ratio") if x[2].median >= EXPLODES), None)


def stays_flat(result: Result) -> bool:
    ratios = result.beyond("perplexity_ratio")
    return bool(ratios) and all(spread.median <= FLAT for _, _, spread in ratios)


def carrying(found: Sequence[Result]) -> list[tuple[float, list[Result]]]:
    """(length, those that carry to it and no further), the longest first; nobody who does not carry beyond training."""
    groups: dict[float, list[Result]] = {}
    for result in found:
        if (got := reach(result)) is not None:
            groups.setdefault(got[0], []).append(result)
    return sorted(groups.items(), reverse=True)


def furthest(found: Sequence[Result]) -> list[Result]:
    """Those that carry to the greatest length, if with every seed they carry further than all others with any."""
    first = ahead(ranked(found, reaches), higher)
    groups = carrying(found)
    return first if groups and {r.label for r in first} == {r.label for r in groups[0][1]} else []


def at_longest(found: Sequence[Result]) -> Ranked:
    """The exact match of each at the greatest multiple of the trained length that was tested."""
    last = max((factor for result in found for _, factor, _ in result.beyond("exact_match")), default=None)
    return ranked(found, lambda r: next((s for _, factor, s in r.beyond("exact_match") if factor == last), None))


def best_at_longest(found: Sequence[Result]) -> list[Result]:
    """Those that are ahead there."""
    return ahead(at_longest(found), higher)


def times_to_learn(found: Sequence[Result]) -> Ranked:
    return ranked(found, lambda r: r.spread("cpu_s_to_learned"))


def fastest(found: Sequence[Result]) -> list[Result]:
    """Those that are ahead in CPU time to 99 %."""
    return ahead(times_to_learn(found), sooner)


def bits_in_range(found: Sequence[Result]) -> Ranked:
    return ranked(found, lambda r: r.spread("in_distribution", "bits_per_byte"))


def best_in_range(found: Sequence[Result]) -> list[Result]:
    """Those that are ahead in bits per byte at the trained length."""
    return ahead(bits_in_range(found), fewer_bits)


def each_with(known: Ranked, form: Callable[[float], str], unit: str = "") -> str:
    """'`a` 4.0, `b` 4.2 (4.1 to 4.5 over 3 seeds)'."""
    return listed([f"{name(r.label)} {with_range(spread, form, unit)}" for r, spread in known])


def who_learned(found: Sequence[Result], what: str) -> list[str]:
    learned = [result for result in found if result.learned]
    missed = [result for result in found if not result.learned]
    said = []
    if not missed:
        said.append(f"{f'All {len(found)} encodings' if len(found) > 1 else names_of(found)} learned it ({what}).")
    elif learned:
        said.append(f"{len(learned)} of {len(found)} encodings learned it ({what}): {names_of(learned)}.")
    else:
        said.append(
            f"Nobody reached the mark ({what}) in the steps given, so nothing can be said about lengths; train longer."
        )
    if missed and learned:
        scores = [in_range_of_all(result) for result in missed]
        each = listed(
            [
                f"{name(r.label)}{f' ({score} in range)' if score else ''}"
                for r, score in zip(missed, scores, strict=True)
            ]
        )
        said.append(f"{each} did not, and {'is' if len(missed) == 1 else 'are'} not ranked.")
    partly = [r for r in learned if len(r.learned) < len(r.runs)]
    if partly:
        each = listed([f"{name(r.label)} in {len(r.learned)} of {len(r.runs)} seeds" for r in partly])
        said.append(f"{each} only; the seeds that did not learn are left out.")
    return said


def in_range_of_all(result: Result) -> str:
    if (spread := result.spread_of_all("in_distribution", "exact_match")) is not None:
        return f"{percent(spread.median)} % exact match"
    if (spread := result.spread_of_all("in_distribution", "bits_per_byte")) is not None:
        return f"{bits(spread.median)} bits per byte"
    return ""


def about_seeds(found: Sequence[Result]) -> str:
    seeds = sorted({len(result.runs) for result in found})
    if seeds == [1]:
        return (
            "One seed each, so nobody is called the best: scores beyond the trained length differ between seeds. "
            "Take three with --seeds 3."
        )
    how_many = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    few = " Nobody with fewer than three is called the best." if seeds[0] < SEEDS_FOR_A_CLAIM else ""
    return f"Medians over {how_many} seeds.{few}"


def exact_paragraph(found: Sequence[Result]) -> str:
    length = f", {trained_words(found)}" if trained_lengths(found) else ""
    said = who_learned(found, f"99 % exact match at the trained length{length}")
    learned = [result for result in found if result.learned]
    tested = sorted({(length, factor) for r in learned for length, factor, _ in r.beyond("exact_match")})
    if tested:
        said.extend(how_far(learned, tested))
    times_taken = times_to_learn(learned)
    if quick := fastest(learned):
        said.append(f"Fastest to 99 %, in CPU seconds: {each_with(only(quick, times_taken), seconds)}.")
        said.append(f"The others take up to {seconds(times_taken[-1][1].median)}.")
    elif times_taken:
        said.append(f"CPU seconds to 99 %: {each_with(times_taken, seconds)}.")
    return " ".join([*said, about_seeds(found)])


def only(chosen: Sequence[Result], known: Ranked) -> Ranked:
    return [(result, spread) for result, spread in known if result in chosen]


def how_far(learned: Sequence[Result], tested: list[tuple[float, float]]) -> list[str]:
    said = []
    last, last_factor = tested[-1]
    groups = carrying(learned)
    leaders = furthest(learned)
    for length, group in groups:
        if group is not groups[0][1]:
            said.append(f"{names_of(group)} {ask('carry', group)} to {count(length)}.")
            continue
        reached = [got for r in group if (got := reach(r)) is not None]
        each = listed([with_range(spread, percent, " %") for *_, spread in reached])
        limit = ", the longest tested" if length == last else ""
        where = f"to {count(length)} ({times(reached[0][1])} the trained length{limit})"
        far = "furthest, " if leaders else ""
        said.append(f"{names_of(group)} {ask('carry', group)} {far}{where}, with {each} exact match.")
    if groups and not leaders and len(tied := unbeaten(ranked(learned, reaches), higher)) > 1:
        if all(len(r.learned) >= SEEDS_FOR_A_CLAIM for r in tied):
            said.append(f"In how far they carry, the seeds do not tell {names_of(tied)} apart.")
    if not groups:
        nearest, nearest_factor = tested[0]
        said.append(
            f"Nobody keeps {percent(CARRIES)} % exact match past the trained length, already at {count(nearest)} "
            f"({times(nearest_factor)})."
        )
    if not groups or groups[0][0] != last:
        where = f"At {count(last)} ({times(last_factor)}), the longest tested,"
        scores = at_longest(learned)[::-1]
        some = [(r, s) for r, s in scores if s.median >= FALLS_APART]
        if best := best_at_longest(learned):
            some = only(best, some)
        if some:
            said.append(f"{where} {'the best is ' if best else ''}{each_with(some, percent, ' %')}.")
        else:
            said.append(f"{where} nobody gets {percent(FALLS_APART)} %.")
    broken: dict[float, list[Result]] = {}
    for result in learned:
        if (at := falls_apart(result)) is not None:
            broken.setdefault(at[0], []).append(result)
    if broken:
        each = [f"{names_of(group)} at {count(length)}" for length, group in sorted(broken.items())]
        said.append(f"Falling apart (under {percent(FALLS_APART)} %): {'; '.join(each)}.")
    return said


def text_paragraph(found: Sequence[Result]) -> str:
    said = who_learned(found, LEARNED_TEXT)
    learned = [result for result in found if result.learned]
    in_range = bits_in_range(learned)
    if best := best_in_range(learned):
        said.append(f"Best at the trained length: {each_with(only(best, in_range), bits)} bits per byte.")
    elif in_range:
        said.append(f"Bits per byte at the trained length: {each_with(in_range, bits)}.")
    measured = [r for r in learned if r.beyond("perplexity_ratio")]
    if measured:
        said.append("Beyond it, R(k) says how many times larger perplexity is at k times the trained length:")
    flat = [r for r in measured if stays_flat(r)]
    burst = [r for r in measured if explodes(r) is not None]
    rise = [r for r in measured if r not in flat and r not in burst]

    def last(r: Result) -> str:
        _, factor, spread = r.beyond("perplexity_ratio")[-1]
        return f"R({times(factor)[:-1]}) = {ratio(spread.median)}"

    clauses = []
    if flat:
        clauses.append(f"{listed([f'{name(r.label)} ({last(r)})' for r in flat])} {ask('stay', flat)} flat")
    elif measured:
        clauses.append("nobody stays flat")
    if rise:
        clauses.append(f"{listed([f'{name(r.label)} ({last(r)})' for r in rise])} {ask('get', rise)} worse slowly")
    if burst:
        each = []
        for r in burst:
            at = explodes(r)
            assert at is not None
            first = f"R({times(at[1])[:-1]}) = {ratio(at[2].median)}"
            each.append(f"{name(r.label)} ({first}{'' if at == r.beyond('perplexity_ratio')[-1] else f', {last(r)}'})")
        clauses.append(f"{listed(each)} {ask('explode', burst)}")
    if clauses:
        said.append(f"{'; '.join(clauses)}.")
    return " ".join([*said, about_seeds(found)])


def by_winner(won: list[tuple[str, list[Result]]]) -> str:
    """'`a` on copy and reverse, `b` or `c` on repeat'."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for task, leaders in won:
        groups.setdefault(tuple(leader.label for leader in leaders), []).append(task)
    return listed([f"{listed([name(x) for x in who], 'or')} on {listed(where)}" for who, where in groups.items()])


def overall(records: Sequence[Record]) -> str:
    """Which one do I need: only what the records support, and how much that is."""
    by_task = {task: [r for r in results(records, task) if r.learned] for task in tasks(records)}
    exact = {task: found for task, found in by_task.items() if found and not found[0].is_text}
    text = {task: found for task, found in by_task.items() if found and found[0].is_text}
    if not exact and not text:
        return "Nothing was learned, so these records support no choice. Train for more steps, or on an easier task."
    quick = [(task, leaders) for task, found in exact.items() if (leaders := fastest(found))]
    far = [(task, leaders) for task, found in exact.items() if (leaders := furthest(found))]
    precise = [(task, leaders) for task, found in text.items() if (leaders := best_in_range(found))]
    flat = [(task, leaders) for task, found in text.items() if (leaders := [r for r in found if stays_flat(r)])]
    said = []
    if not quick and not far and not precise:
        said.append("No encoding is ahead of the others by more than seeds differ, so these records name no winner.")
    if quick or precise:
        parts = [f"the fastest to learn {'were' if len(quick) > 1 else 'was'} {by_winner(quick)}"] if quick else []
        parts += [f"the best prediction came from {by_winner(precise)}"] if precise else []
        said.append(f"If your inputs never outgrow the trained length: {'; '.join(parts)}.")
    if far or flat:
        parts = [f"{by_winner(far)} carried furthest"] if far else []
        parts += [f"{by_winner(flat)} stayed flat"] if flat else []
        said.append(
            f"If {'they do' if quick or precise else 'your inputs outgrow the trained length'}: {'; '.join(parts)}."
        )
        ends = {task: only(best_at_longest(exact[task]), at_longest(exact[task])) for task, _ in far}
        others = [
            f"{each_with(best, percent, ' %')} on {task}"
            for task, leaders in far
            if (best := ends[task])
            and best[-1][1].median >= FALLS_APART
            and not {r.label for r, _ in best} & {r.label for r in leaders}
        ]
        if others:
            said.append(f"At the longest length tested, though, the best was {listed(others)}.")
    stuck = [task for task, found in exact.items() if not carrying(found)]
    if stuck:
        said.append(
            f"On {listed(stuck)} nobody carried past the trained length, so there the records name no choice for "
            f"longer inputs."
        )
    near, longer = ([{r.label for r in leaders} for _, leaders in won] for won in (quick + precise, far + flat))
    questions = len(near) + len(longer)
    if questions > 1 and near and longer and not stuck:
        everywhere = [label for label in labels(records) if all(label in who for who in near + longer)]
        far_everywhere = [label for label in labels(records) if all(label in who for who in longer)]
        if everywhere:
            said.append(f"So {listed([name(x) for x in everywhere])} led everywhere: the one to try first.")
        elif far_everywhere and len(longer) > 1:
            said.append(
                f"{listed([name(x) for x in far_everywhere])} did so on every task; being quick and carrying far are "
                f"different things here."
            )
        elif not set.union(*near) & set.union(*longer):
            said.append("Being quick or precise and carrying far are different things here: no encoding does both.")
        else:
            said.append("No encoding led everywhere: choose by the task that is nearest to yours.")
    fragile = []
    for label in labels(records):
        own = [
            r
            for found in by_task.values()
            for r in found
            if r.label == label and (r.beyond("exact_match") or r.beyond("perplexity_ratio"))
        ]
        if own and all(explodes(r) if r.is_text else falls_apart(r) for r in own):
            fragile.append(label)
    if fragile:
        whole = "every task that they learned" if len(fragile) > 1 else "every task that it learned"
        said.append(
            f"{listed([name(x) for x in fragile])} broke beyond the trained length on "
            f"{whole if len(by_task) > 1 else 'this task'}."
        )
    return " ".join([*said, scope(records)])


def scope(records: Sequence[Record]) -> str:
    """How small the evidence is."""
    sizes = Spread.of(get(run, "parameters", "model") for run in records)
    steps = Spread.of(get(run, "steps") for run in records)
    parts = []
    if sizes:
        about = count(sizes.low) if sizes.low == sizes.high else f"{count(sizes.low)} to {count(sizes.high)}"
        parts.append(f"models of {about} parameters")
    if steps:
        parts.append(f"{'at most ' if steps.low != steps.high else ''}{count(steps.high)} steps")
    found = tasks(records)
    parts.append("one task" if len(found) == 1 else f"{len(found)} tasks")
    seeds = max(len(result.runs) for result in results(records))
    parts.append("one seed" if seeds == 1 else f"up to {seeds} seeds")
    return f"This rests on {listed(parts)}; larger models and other data may answer differently."


def paragraphs(records: Sequence[Record]) -> list[tuple[str, str]]:
    """(heading, sentences): the overall answer, then one paragraph for each task."""
    need_records(records)
    out = [("Which one do I need?", overall(records))]
    for task in tasks(records):
        found = results(records, task)
        out.append((task, text_paragraph(found) if any(r.is_text for r in found) else exact_paragraph(found)))
    return out


def answer(records: Sequence[Record]) -> str:
    """The answer in words, as plain text."""
    return "\n\n".join(f"{heading}\n{text}" for heading, text in paragraphs(records))


def need_records(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("there are no records to report on: the list is empty; run a comparison first")


@dataclass(frozen=True)
class Column:
    """A column: its heading, the heading above it that it shares with its neighbours, and what it means."""

    heading: str
    group: str = ""
    meaning: str = ""

    @property
    def title(self) -> str:
        return f"{self.group} {self.heading}".strip()


@dataclass(frozen=True)
class Cell:
    """What a cell says, the range behind it, and where it lies between bad (0) and good (1), if that has a sense."""

    text: str
    detail: str = ""
    goodness: float | None = None
    missing: bool = False

    @property
    def plain(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


def cell(spread: Spread | None, form: Callable[[float], str], goodness: Callable[[float], float] | None = None) -> Cell:
    if spread is None:
        return Cell(NOTHING, missing=True)
    low, high = form(spread.low), form(spread.high)
    good = None if goodness is None else min(1.0, max(0.0, goodness(spread.median)))
    return Cell(form(spread.median), "" if low == high else f"{low}..{high}", good)


def how_flat(value: float) -> float:
    """R(k) on the way from exploding to flat."""
    return (EXPLODES - value) / (EXPLODES - FLAT)


def task_table(records: Sequence[Record], task: str) -> tuple[list[Column], list[tuple[Result, list[Cell]]]]:
    """A row for each encoding on one task. Whatever rests on having learned says so where it did not."""
    found = results(records, task)
    text = any(result.is_text for result in found)
    lengths = sorted(
        {(length, factor) for r in found for length, factor in r.lengths() if not factor or factor > 1},
        key=lambda x: x[0],
    )
    columns = [
        Column("encoding"),
        Column("parameters", meaning="of the whole model, and of the encoding alone"),
        Column("seeds"),
    ]
    measures: list[tuple[float, str, Callable[[float], str], Callable[[float], float] | None]] = []
    trained = listed([count(x) for x in trained_lengths(found)] or ["in range"], "or")
    if text:
        columns.append(
            Column(
                "bits per byte", f"{trained} (trained)", "held-out text, windows of the trained length; lower is better"
            )
        )
        for length, factor in lengths:
            group = f"{count(length)} ({times(factor)})" if factor else count(length)
            columns.append(Column("windows", group, "bits per byte, windows side by side"))
            columns.append(Column("sliding", group, "bits per byte, sliding windows: every byte has a full context"))
            columns.append(Column("R", group, "perplexity over that at the trained length; 1 is flat"))
            measures += [(length, "bits_per_byte", bits, None), (length, "sliding_bits_per_byte", bits, None)]
            measures.append((length, "perplexity_ratio", ratio, how_flat))
        columns.append(Column("CPU s", meaning="of training, all steps"))
    else:
        columns.append(Column(f"{trained} (trained)", "exact match, %"))
        for length, factor in lengths:
            columns.append(Column(f"{count(length)} ({times(factor)})" if factor else count(length), "exact match, %"))
            measures.append((length, "exact_match", percent, lambda x: x))
        columns += [Column("steps", "to 99 %"), Column("CPU s", "to 99 %")]
    rows = []
    for r in found:
        closed = Cell(NOT_LEARNED, missing=True)
        model, own = r.spread_of_all("parameters", "model"), r.spread_of_all("parameters", "encoding")
        size = cell(model, count)
        if own:
            size = Cell(size.text, f"{count(own.median)} its own")
        row = [Cell(r.label), size, Cell(str(len(r.runs)), r.seeds())]
        # The score at the trained length is what the gate looks at, so it is shown for every run.
        if text:
            row.append(cell(r.spread_of_all("in_distribution", "bits_per_byte"), bits))
        else:
            row.append(cell(r.spread_of_all("in_distribution", "exact_match"), percent, lambda x: x))
        for length, measure, form, goodness in measures:
            shown = cell(r.at(length, measure), form, goodness) if r.learned else closed
            # Of three columns for each length of a text, R carries the range; three would not fit a page.
            row.append(Cell(shown.text, missing=shown.missing) if measure.endswith("bits_per_byte") else shown)
        if text:
            row.append(Cell(cell(r.spread_of_all("train_cpu_s"), seconds).text))
        else:
            row.append(cell(r.spread("steps_to_learned"), count) if r.learned else closed)
            row.append(cell(r.spread("cpu_s_to_learned"), seconds) if r.learned else closed)
        rows.append((r, row))
    return columns, rows


def table(records: Sequence[Record], task: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as plain words: of one task with all its lengths, or of all tasks side by side.

    Side by side, a column stands for a multiple of the trained length, and a cell says what it is: '97 %' is exact
    match, 'R 1.02' a ratio of perplexities.
    """
    need_records(records)
    if task is None and len(tasks(records)) == 1:
        task = tasks(records)[0]
    if task is not None:
        columns, rows = task_table(records, task)
        return [column.title for column in columns], [[cell.plain for cell in row] for _, row in rows]
    found = results(records)
    factors = sorted({factor for r in found for _, factor in r.lengths() if factor and factor > 1})
    headings = ["task", "encoding", "parameters", "seeds", "trained length", *map(times, factors), "CPU s to 99 %"]
    out = []
    for r in found:
        size = cell(r.spread_of_all("parameters", "model"), count).text
        seeds = f"{len(r.learned)} of {len(r.runs)} learned" if r.seeds() else str(len(r.runs))
        line = [r.task, r.label, size, seeds, in_range_of_all(r).replace(" exact match", "") or NOTHING]
        measure, form = (
            ("perplexity_ratio", lambda x: f"R {ratio(x)}")
            if r.is_text
            else ("exact_match", lambda x: f"{percent(x)} %")
        )
        at = {factor: length for length, factor in r.lengths()}
        for factor in factors:
            if factor not in at:
                line.append("")
            else:
                line.append(cell(r.at(at[factor], measure), form).plain if r.learned else NOT_LEARNED)
        if r.is_text:
            line.append("")
        else:
            line.append(cell(r.spread("cpu_s_to_learned"), seconds).plain if r.learned else NOT_LEARNED)
        out.append(line)
    return headings, out
