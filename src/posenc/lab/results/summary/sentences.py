"""The answer in words: who learned, who carries how far, who is ahead, and on how much that rests."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from posenc.lab.experiments.recipes import SEARCHED
from posenc.lab.results import statistics
from posenc.lab.results.statistics import Spread
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import CARRIES, FALLS_APART, explodes, falls_apart, stays_flat
from posenc.lab.results.summary.runs import (
    Record,
    Result,
    get,
    labels,
    need_records,
    number,
    results,
    tasks,
    trained_lengths,
)
from posenc.lab.results.summary.words import (
    ask,
    bits,
    count,
    in_range_of_all,
    listed,
    name,
    names_of,
    percent,
    ratio,
    seconds,
    times,
    trained_words,
    with_interval,
)

LEARNED_TEXT = "0.1 bits per byte better than a table of byte pairs, and than itself with the last byte alone"

Known: TypeAlias = list[tuple[Result, Spread]]


def known(found: Sequence[Result], of: Callable[[Result], Spread | None]) -> Known:
    """Those whose number is known with their numbers, in order of appearance: medians rank nobody."""
    return [(result, spread) for result in found if (spread := of(result)) is not None]


def times_to_learn(found: Sequence[Result]) -> Known:
    return known(found, lambda r: r.spread("cpu_s_to_learned"))


def bits_in_range(found: Sequence[Result]) -> Known:
    return known(found, lambda r: r.spread("in_distribution", "bits_per_byte"))


def at_longest(found: Sequence[Result]) -> Known:
    """The exact match of each at the greatest multiple of the trained length that was tested."""
    last = claims.longest_factor(found, "exact_match")
    return known(found, lambda r: next((s for _, factor, s in r.beyond("exact_match") if factor == last), None))


def fastest(found: Sequence[Result]) -> list[Result]:
    return claims.ahead(found, claims.CPU_SECONDS)


def best_in_range(found: Sequence[Result]) -> list[Result]:
    return claims.ahead(found, claims.BITS)


def best_at_longest(found: Sequence[Result]) -> list[Result]:
    last = claims.longest_factor(found, "exact_match")
    return claims.ahead(found, claims.exact_match_at(last)) if last is not None else []


def each_with(known: Known, form: Callable[[float], str], unit: str = "") -> str:
    """'`a` 4.0, `b` 4.2 (4.1 to 4.5 over 3 seeds)'."""
    return listed([f"{name(r.label)} {with_interval(spread, form, unit)}" for r, spread in known])


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
        said.append(f"{each} only; lengths and times are compared on the seeds where both of a pair learned.")
    return said


def about_seeds(found: Sequence[Result]) -> str:
    seeds = sorted({len(result.runs) for result in found})
    if seeds == [1]:
        return (
            "One seed each, so nobody is called the best: scores beyond the trained length differ between seeds. "
            "Take three with --seeds 3."
        )
    how_many = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if seeds[0] < statistics.FEWEST:
        return f"Medians over {how_many} seeds. Nobody with fewer than three is called the best."
    surely = min(95, int(100 * statistics.by_ranks(seeds[0])[1]))
    return f"Medians over {how_many} seeds; their intervals hold the true one in at least {surely} of 100 cases."


def exact_paragraph(found: Sequence[Result]) -> str:
    length = f", {trained_words(found)}" if trained_lengths(found) else ""
    said = who_learned(found, f"99 % exact match at the trained length{length}")
    learned = [result for result in found if result.learned]
    tested = sorted({(length, factor) for r in learned for length, factor, _ in r.beyond("exact_match")})
    measures = [claims.CPU_SECONDS]
    if tested:
        said.extend(how_far(learned, tested))
        measures = [claims.REACH, claims.exact_match_at(tested[-1][1]), claims.CPU_SECONDS]
    times_taken = times_to_learn(learned)
    if quick := fastest(learned):
        others = [spread.median for result, spread in times_taken if result not in quick]
        said.append(f"Fastest to 99 %, in CPU seconds: {each_with(only(quick, times_taken), seconds)}.")
        said.append(f"The others take up to {seconds(max(others))}.")
    elif times_taken:
        said.append(f"CPU seconds to 99 %: {each_with(times_taken, seconds)}.")
        said.append(claims.order(learned, claims.CPU_SECONDS))
    return sentences([*said, claims.unseen(learned, measures), about_seeds(found)])


def sentences(said: Sequence[str]) -> str:
    return " ".join(filter(None, said))


def only(chosen: Sequence[Result], known: Known) -> Known:
    return [(result, spread) for result, spread in known if result in chosen]


def how_far(learned: Sequence[Result], tested: list[tuple[float, float]]) -> list[str]:
    said = []
    last, last_factor = tested[-1]
    groups = claims.carrying(learned)
    leaders = claims.furthest(learned)
    for length, group in groups:
        if group is not groups[0][1]:
            said.append(f"{listed([in_seeds(r) for r in group])} {ask('carry', group)} to {count(length)}.")
            continue
        scores = [with_interval(spread, percent, " %") for r in group if (spread := r.at(length, "exact_match"))]
        factor = next(factor for r in group for at, factor in r.lengths() if at == length and factor)
        limit = ", the longest tested" if length == last else ""
        where = f"to {count(length)} ({times(factor)} the trained length{limit})"
        far = "furthest, " if leaders else ""
        each = listed([in_seeds(r) for r in group])
        said.append(f"{each} {ask('carry', group)} {far}{where}, with {listed(scores)} exact match.")
    if groups and not leaders:
        said.append(claims.order(learned, claims.REACH))
    if not groups:
        nearest, nearest_factor = tested[0]
        said.append(
            f"Nobody keeps {percent(CARRIES)} % exact match past the trained length, already at {count(nearest)} "
            f"({times(nearest_factor)})."
        )
    if not groups or groups[0][0] != last:
        where = f"At {count(last)} ({times(last_factor)}), the longest tested,"
        some = [(r, s) for r, s in at_longest(learned) if s.median >= FALLS_APART]
        if best := best_at_longest(learned):
            some = only(best, some)
        if some:
            crown = f"the best {ask('are', best)} " if best else ""
            said.append(f"{where} {crown}{each_with(some, percent, ' %')}.")
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


def in_seeds(result: Result) -> str:
    """The name, and in how many seeds it carries so far, where that is not in all."""
    at = claims.reach(result)
    assert at is not None
    return name(result.label) if at.count == at.of else f"{name(result.label)} (in {at.count} of {at.of} seeds)"


def text_paragraph(found: Sequence[Result]) -> str:
    said = who_learned(found, LEARNED_TEXT)
    learned = [result for result in found if result.learned]
    in_range = bits_in_range(learned)
    if best := best_in_range(learned):
        said.append(f"Best at the trained length: {each_with(only(best, in_range), bits)} bits per byte.")
    elif in_range:
        said.append(f"Bits per byte at the trained length: {each_with(in_range, bits)}.")
        said.append(claims.order(learned, claims.BITS))
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
    measures = [claims.BITS]
    if (last_factor := claims.longest_factor(learned, "perplexity_ratio")) is not None:
        measures.append(claims.growth_at(last_factor))
        said.append(claims.order(learned, measures[-1]))
    return sentences([*said, claims.unseen(learned, measures), about_seeds(found)])


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
    far = [(task, leaders) for task, found in exact.items() if (leaders := claims.furthest(found))]
    precise = [(task, leaders) for task, found in text.items() if (leaders := best_in_range(found))]
    flat = [(task, leaders) for task, found in text.items() if (leaders := [r for r in found if stays_flat(r)])]
    said = []
    if not quick and not far and not precise:
        said.append("No encoding is ahead of all others by more than seeds differ, so these records name no winner.")
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
    stuck = [task for task, found in exact.items() if not claims.carrying(found)]
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
    sizes = sorted({x for run in records if (x := number(get(run, "parameters", "model"))) is not None})
    steps = sorted({x for run in records if (x := number(get(run, "steps"))) is not None})
    parts = []
    if sizes:
        parts.append(f"models of {' to '.join(dict.fromkeys([count(sizes[0]), count(sizes[-1])]))} parameters")
    if steps:
        parts.append(f"{'at most ' if len(steps) > 1 else ''}{count(steps[-1])} steps")
    found = tasks(records)
    parts.append("one task" if len(found) == 1 else f"{len(found)} tasks")
    seeds = max(len(result.runs) for result in results(records))
    parts.append("one seed" if seeds == 1 else f"up to {seeds} seeds")
    said = [f"This rests on {listed(parts)}; larger models and other data may answer differently."]
    if seeds >= statistics.FEWEST:
        said.append("An order is said only where paired seeds differ at the 5 % level, corrected for all pairs (Holm).")
    return sentences([*said, searched(records)])


def searched(records: Sequence[Record]) -> str:
    """How many runs have seeds on which the recipes were chosen."""
    used = sum(get(run, "experiment", "seed") in SEARCHED for run in records)
    if not used:
        return ""
    which = "these runs" if used == len(records) else f"{used} of these {len(records)} runs"
    return f"The recipes were chosen on seeds below {SEARCHED.stop}, as {which} have; evidence takes others."


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
