"""The answer of a report in sentences: which encodings learned, which are ahead, and on how much evidence."""

from collections.abc import Sequence

from posenc.lab.experiments.recipes import RECIPE_SEEDS
from posenc.lab.results import statistics
from posenc.lab.results.summary import claims, runs
from posenc.lab.results.summary.formatting import count, join_words, label_list, trained_text
from posenc.lab.results.summary.pairs import pair_tables

LEARNED_TEXT = "0.1 bits per byte better than a table of byte pairs, and than itself with the last byte alone"


def paragraphs(records: Sequence[runs.Record]) -> list[tuple[str, str]]:
    """Return (heading, sentences): the overall answer, then one paragraph for each task."""
    runs.require_records(records)
    by_task = [(task, task_paragraph(runs.results(records, task))) for task in runs.tasks(records)]
    return [("Which one do I need?", overall_paragraph(records)), *by_task]


def answer(records: Sequence[runs.Record]) -> str:
    """Return the paragraphs as plain text."""
    return "\n\n".join(f"{heading}\n{text}" for heading, text in paragraphs(records))


def overall_paragraph(records: Sequence[runs.Record]) -> str:
    """Return lines: the encodings ahead of all others, the user's own, what was not learned, the evidence."""
    by_task = {task: [r for r in runs.results(records, task) if r.learned] for task in runs.tasks(records)}
    if not any(by_task.values()):
        return "Nothing was learned, so these records support no choice. Train for more steps, or on an easier task."
    measures: dict[str, list[str]] = {}
    for task, learners in by_task.items():
        for measure in claims.task_measures(learners):
            if winners := claims.winning_results(learners, measure):
                measures.setdefault(f"{label_list(r.label for r in winners)} on {task} in", []).append(measure.name)
    clauses = [f"{winners_on_task} {join_words(words)}" for winners_on_task, words in measures.items()]
    answer_line = "No encoding is ahead of all others by more than seeds differ, so these records name no winner."
    if clauses:
        answer_line = f"Ahead of all others: {'; '.join(clauses)}."
    sentences = [answer_line, *map(external_sentence, by_task.values()), not_learned_sentence(records)]
    return "\n".join([*filter(None, sentences), scope_sentence(records)])


def not_learned_sentence(records: Sequence[runs.Record]) -> str:
    """Return which encodings did not learn a task with every seed; empty if all did."""
    clauses = [
        f"`{r.label}` on {r.task} ({len(r.runs) - len(r.learned)} of {len(r.runs)} seeds)"
        for r in runs.results(records)
        if len(r.learned) < len(r.runs)
    ]
    return f"Not learned: {join_words(clauses)}." if clauses else ""


def external_sentence(learners: Sequence[runs.Result]) -> str:
    """Return how the user's own encodings stand in a task's first two measures; empty without any."""
    external_labels = [result.label for result in learners if runs.is_external(result)]
    clauses = [
        f"`{label}` is {matrix.standing(label)} in {matrix.measure}"
        for matrix in (pair_tables(learners)[:2] if external_labels else [])
        for label in external_labels
    ]
    return f"On {learners[0].task}, {'; '.join(clauses)}." if clauses else ""


def task_paragraph(task_results: Sequence[runs.Result]) -> str:
    """Return the paragraph of a task: which encodings learned and are ahead, detectable differences, seeds."""
    mark = "99 % exact match at the trained length"
    mark += f", {trained_text(task_results)}" if runs.trained_lengths(task_results) else ""
    learners = [result for result in task_results if result.learned]
    measures = claims.task_measures(learners)
    mark = LEARNED_TEXT if any(result.is_text for result in task_results) else mark
    sentences = learned_sentences(task_results, mark)
    sentences += [claims.order_sentence(learners, measure) for measure in measures]
    return " ".join(filter(None, [*sentences, claims.power_sentence(learners, measures), seeds_sentence(task_results)]))


def learned_sentences(task_results: Sequence[runs.Result], mark: str) -> list[str]:
    learners, non_learners = ([r for r in task_results if bool(r.learned) is passes] for passes in (True, False))
    if not learners:
        advice = "in the steps given, so nothing can be said about lengths; train longer."
        return [f"No encoding reached the mark ({mark}) {advice}"]
    sentences = [f"{len(learners)} of {len(task_results)} encodings learned it ({mark})."]
    if non_learners:
        verb = "is" if len(non_learners) == 1 else "are"
        sentences.append(f"{label_list(r.label for r in non_learners)} did not, and {verb} not ranked.")
    partly = [r for r in learners if len(r.learned) < len(r.runs)]
    if shares := [f"`{r.label}` in {len(r.learned)} of {len(r.runs)} seeds" for r in partly]:
        basis = "lengths and times are compared on the seeds where both of a pair learned"
        sentences.append(f"{join_words(shares)} only; {basis}.")
    return sentences


def seeds_sentence(task_results: Sequence[runs.Result]) -> str:
    seeds = sorted({len(result.runs) for result in task_results})
    if seeds == [1]:
        return (
            "One seed each, so no encoding is called the best: scores beyond the trained length differ between seeds. "
            "Take three with --seeds 3."
        )
    numbers = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if seeds[0] < statistics.MIN_SEEDS:
        return f"Medians over {numbers} seeds. No encoding with fewer than three is called the best."
    coverage = min(95, int(100 * statistics.rank_interval(seeds[0])[1]))
    return f"Medians over {numbers} seeds; their intervals hold the true one in at least {coverage} of 100 cases."


def scope_sentence(records: Sequence[runs.Record]) -> str:
    """Return a sentence on the size of the evidence."""
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
    text = f"This rests on {join_words(parts)}; larger models and other data may answer differently."
    if seeds >= statistics.MIN_SEEDS:
        text += " An order is said only where paired seeds differ at the 5 % level, corrected for all pairs (Holm)."
    count_searched = sum(runs.get(run, "experiment", "seed") in RECIPE_SEEDS for run in records)
    if count_searched:
        part = "these runs" if count_searched == len(records) else f"{count_searched} of these {len(records)} runs"
        text += f" The recipes were chosen on seeds below {RECIPE_SEEDS.stop}, as {part} have; evidence takes others."
    return text
