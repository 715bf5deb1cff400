"""The answer in words: who learned, who is ahead of whom, and on how much that rests. The numbers are in the tables."""

from collections.abc import Sequence

from posenc.lab.experiments.recipes import SEARCHED
from posenc.lab.results import statistics
from posenc.lab.results.summary import claims, runs
from posenc.lab.results.summary.pairs import pairs
from posenc.lab.results.summary.words import count, listed, name, names_of, trained_words

LEARNED_TEXT = "0.1 bits per byte better than a table of byte pairs, and than itself with the last byte alone"


def paragraphs(records: Sequence[runs.Record]) -> list[tuple[str, str]]:
    """(heading, sentences): the overall answer, then one paragraph for each task."""
    runs.need_records(records)
    by_task = [(task, paragraph(runs.results(records, task))) for task in runs.tasks(records)]
    return [("Which one do I need?", overall(records)), *by_task]


def answer(records: Sequence[runs.Record]) -> str:
    """The answer in words, as plain text."""
    return "\n\n".join(f"{heading}\n{text}" for heading, text in paragraphs(records))


def overall(records: Sequence[runs.Record]) -> str:
    """Lines: who is ahead of all others, the user's own encodings, what was not learned, how much evidence that is."""
    by_task = {task: [r for r in runs.results(records, task) if r.learned] for task in runs.tasks(records)}
    if not any(by_task.values()):
        return "Nothing was learned, so these records support no choice. Train for more steps, or on an easier task."
    measures: dict[str, list[str]] = {}
    for task, learners in by_task.items():
        for measure in claims.measures_of(learners):
            if first := claims.ahead(learners, measure):
                measures.setdefault(f"{names_of(first)} on {task} in", []).append(measure.words)
    winners = [f"{who} {listed(words)}" for who, words in measures.items()]
    first = "No encoding is ahead of all others by more than seeds differ, so these records name no winner."
    if winners:
        first = f"Ahead of all others: {'; '.join(winners)}."
    return "\n".join([first, *filter(None, [*map(of_own, by_task.values()), not_learned(records)]), scope(records)])


def not_learned(records: Sequence[runs.Record]) -> str:
    """Which encodings did not learn a task with every seed; empty where all did."""
    lost = [
        f"{name(result.label)} on {result.task} ({len(result.runs) - len(result.learned)} of {len(result.runs)} seeds)"
        for result in runs.results(records)
        if len(result.learned) < len(result.runs)
    ]
    return f"Not learned: {listed(lost)}." if lost else ""


def of_own(learners: Sequence[runs.Result]) -> str:
    """How the user's own encodings stand on one task, in its first two measures; empty where there is none."""
    own = [result.label for result in learners if runs.is_own(result)]
    clauses = [
        f"{name(label)} is {matrix.standing(label)} in {matrix.measure}"
        for matrix in (pairs(learners)[:2] if own else [])
        for label in own
    ]
    return f"On {learners[0].task}, {'; '.join(clauses)}." if clauses else ""


def paragraph(task_results: Sequence[runs.Result]) -> str:
    """Who learned one task, who is ahead of whom, which differences would go unseen, and on how many seeds it rests."""
    mark = "99 % exact match at the trained length"
    mark += f", {trained_words(task_results)}" if runs.trained_lengths(task_results) else ""
    learners = [result for result in task_results if result.learned]
    measures = claims.measures_of(learners)
    sentences = who_learned(task_results, LEARNED_TEXT if any(result.is_text for result in task_results) else mark)
    sentences += [claims.order(learners, measure) for measure in measures]
    return " ".join(filter(None, [*sentences, claims.unseen(learners, measures), about_seeds(task_results)]))


def who_learned(task_results: Sequence[runs.Result], mark: str) -> list[str]:
    learners, others = ([r for r in task_results if bool(r.learned) is passes] for passes in (True, False))
    if not learners:
        advice = "in the steps given, so nothing can be said about lengths; train longer."
        return [f"No encoding reached the mark ({mark}) {advice}"]
    sentences = [f"{len(learners)} of {len(task_results)} encodings learned it ({mark})."]
    if others:
        sentences.append(f"{names_of(others)} did not, and {'is' if len(others) == 1 else 'are'} not ranked.")
    shares = [
        f"{name(r.label)} in {len(r.learned)} of {len(r.runs)} seeds" for r in learners if len(r.learned) < len(r.runs)
    ]
    if shares:
        basis = "lengths and times are compared on the seeds where both of a pair learned"
        sentences.append(f"{listed(shares)} only; {basis}.")
    return sentences


def about_seeds(task_results: Sequence[runs.Result]) -> str:
    seeds = sorted({len(result.runs) for result in task_results})
    if seeds == [1]:
        return (
            "One seed each, so no encoding is called the best: scores beyond the trained length differ between seeds. "
            "Take three with --seeds 3."
        )
    numbers = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if seeds[0] < statistics.FEWEST:
        return f"Medians over {numbers} seeds. No encoding with fewer than three is called the best."
    surely = min(95, int(100 * statistics.by_ranks(seeds[0])[1]))
    return f"Medians over {numbers} seeds; their intervals hold the true one in at least {surely} of 100 cases."


def scope(records: Sequence[runs.Record]) -> str:
    """How small the evidence is."""
    sizes = sorted({x for run in records if (x := runs.number(runs.get(run, "parameters", "model"))) is not None})
    steps = sorted({x for run in records if (x := runs.number(runs.get(run, "steps"))) is not None})
    parts = []
    if sizes:
        parts.append(f"models of {' to '.join(dict.fromkeys([count(sizes[0]), count(sizes[-1])]))} parameters")
    if steps:
        parts.append(f"{'at most ' if len(steps) > 1 else ''}{count(steps[-1])} steps")
    parts.append("one task" if len(runs.tasks(records)) == 1 else f"{len(runs.tasks(records))} tasks")
    seeds = max(len(result.runs) for result in runs.results(records))
    parts.append("one seed" if seeds == 1 else f"up to {seeds} seeds")
    text = f"This rests on {listed(parts)}; larger models and other data may answer differently."
    if seeds >= statistics.FEWEST:
        text += " An order is said only where paired seeds differ at the 5 % level, corrected for all pairs (Holm)."
    searched = sum(runs.get(run, "experiment", "seed") in SEARCHED for run in records)
    if searched:
        which = "these runs" if searched == len(records) else f"{searched} of these {len(records)} runs"
        text += f" The recipes were chosen on seeds below {SEARCHED.stop}, as {which} have; evidence takes others."
    return text
