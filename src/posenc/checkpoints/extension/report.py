"""The record of an extension to a page and to Markdown: the tables, the curves, what it cost, and how it was made."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posenc.checkpoints.extension.choice import digits, first, value
from posenc.checkpoints.extension.choice import shown as in_digits
from posenc.checkpoints.measures import plan as plans
from posenc.checkpoints.measures.measure import Value
from posenc.foreign.text import markdown as shown
from posenc.foreign.text import markdown_code
from posenc.lab import store
from posenc.lab.results import figures
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.report import TEMPLATE as PAGE
from posenc.lab.results.report import pages
from posenc.lab.results.summary import duration
from posenc.lab.results.tables import as_markdown

TEMPLATE = Path(__file__).with_name("report.html.jinja")

Record = Mapping[str, Any]

FEWEST = 6
"""Of fewer pairs of numbers a rank correlation says nothing: three of them are in order by chance once in six."""


def write(record: Record, folder: Path) -> Path:
    """Write report.html, report.md and figures/*.png into the folder, each whole, and return the path of the page."""
    drawer = Drawer(store.inside(folder, "figures"))
    measures = [measure for measure in record["measures"] if drawable(record, measure)]
    drawn = [
        drawer(
            f"{measure['name']}-by-length",
            partial(by_length, record, measure),
            f"{numbers_in_words(measure)} A dashed line marks the trained length; bars are standard errors.",
            row_by_row(*table(record, measure)),
        )
        for measure in measures
    ]
    drawn += [
        drawer(f"curve-{place}", partial(curve, record, words), f"{words}. The input is the same for all.", "")
        for place, words in enumerate(captions(record, curves=True), 1)
    ]
    drawn += [
        drawer(
            "tuning" if entry is record["tuned"] else f"tuning-{entry['name']}",
            partial(tuning, entry),
            f"The loss of each step of fine-tuning {entry['name'].partition(',')[0]}, and its running mean.",
            tuning_in_words(entry),
        )
        for entry in tuned(record)
    ]
    drawn.append(
        drawer(
            "divisors",
            partial(divisors, record),
            "By what each pair's frequency is divided: what the search found, and what it began with. The dotted lines "
            "are the stretch, and the first pair that does not turn once within the length before.",
            row_by_row(*found_divisors(record)),
        )
    )
    shown = [figure for figure in drawn if figure]
    store.write(folder / "report.md", markdown(record, shown).encode())
    store.write(folder / "report.html", page(record, shown).encode())
    return folder / "report.html"


def entries(record: Record) -> list[Record]:
    """The methods, and the winner again where it was tuned."""
    return [*record["methods"], *([record["tuned"]] if record.get("tuned") else [])]


def of(entry: Record, measure: Record) -> dict[tuple[str, int], Value]:
    """What a method has of a measure: by number and length."""
    return {
        (one["number"], one["length"]): Value(one["value"], one["error"])
        for one in entry["values"]
        if one["measure"] == measure["name"]
    }


def lengths_of(record: Record, measure: Record) -> list[int]:
    return sorted({length for entry in entries(record) for _, length in of(entry, measure)})


def drawable(record: Record, measure: Record) -> bool:
    """Whether a measure was asked at several lengths of more than one method."""
    most = [len({length for _, length in of(entry, measure)}) for entry in entries(record)]
    return sum(count > 1 for count in most) > 1 and len(lengths_of(record, measure)) > 1


def table(record: Record, measure: Record, lengths: Sequence[int] | None = None) -> tuple[list[str], list[list[str]]]:
    """The numbers of each method at each length, with their errors: headers and rows."""
    lengths = lengths_of(record, measure) if lengths is None else lengths
    at = [(number["name"], length) for number in measure["numbers"] for length in lengths]
    found = [(entry["name"], of(entry, measure)) for entry in entries(record)]
    rows = [[name, *(said(values[key]) if key in values else "" for key in at)] for name, values in found if values]
    return ["method", *(f"{name} at {length:,}" for name, length in at)], rows


def in_short(record: Record) -> list[tuple[str, tuple[list[str], list[list[str]]]]]:
    """The tables for a terminal, with their captions: the trained length and the target alone."""
    ends = [record["trained"], record["target"]]
    found = [(numbers_in_words(one), table(record, one, ends)) for one in record["measures"]]
    return [(caption, rows) for caption, rows in found if rows[1]]


def numbers_in_words(measure: Record) -> str:
    """What the numbers of a measure are, which way is better, and what guessing gives."""
    parts = []
    for number in measure["numbers"]:
        guess = "" if number["chance"] is None else f", {digits(number['chance'])} by guessing"
        parts.append(
            f"{number['name']}: {number['words']} ({'more' if number['more_is_better'] else 'less'} is better{guess})"
        )
    return "; ".join(parts) + "."


def captions(record: Record, *, curves: bool) -> list[str]:
    """The captions of what is shown beside the numbers: of curves, or of tables."""
    found = [one for entry in entries(record) for one in entry["details"]]
    return list(dict.fromkeys(one["words"] for one in found if isinstance(one["at"][0], str) != curves))


def detailed(record: Record, words: str) -> dict[str, Record]:
    """What the methods have under a caption, by name."""
    return {entry["name"]: one for entry in entries(record) for one in entry["details"] if one["words"] == words}


def detail_table(record: Record, words: str) -> tuple[list[str], list[list[str]]]:
    """What is shown beside the numbers under a caption: headers and rows."""
    found = detailed(record, words)
    columns = list(dict.fromkeys(column for one in found.values() for column in one["at"]))
    rows = []
    for name, one in found.items():
        at = dict(zip(one["at"], map(digits, one["values"]), strict=True))
        rows.append([name, *(at.get(column, "") for column in columns)])
    return ["method", *columns], rows


def cost(record: Record) -> tuple[list[str], list[list[str]]]:
    """What the longest pass costs each method, and how its checkpoint is had: headers and rows."""
    headers = ["method", f"{record['unit'].split()[0]}/s", "seconds", "CPU seconds", "peak MiB", "checkpoint"]
    rows = []
    for entry in entries(record):
        numbers = [entry["per_second"], entry["seconds"], entry["cpu_seconds"], entry["peak_mib"]]
        as_it_is = entry["name"] == "none" or entry["baseline"]
        how = "as it is" if as_it_is else "config" if entry["config"] is not None else "attach only"
        rows.append([entry["name"], *("" if value is None else counted(value) for value in numbers), how])
    return headers, rows


def counted(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def sentences(record: Record) -> list[str]:
    """All that is said of a run, a paragraph each."""
    written = record["written"]
    out = [record["in_words"], record["stretch"], *filter(None, record["price"])]
    if record.get("search"):
        out.append(record["search"]["words"])
    out.append(
        f"The extended checkpoint ({written['method']}): {written['words']}" if written["path"] else written["words"]
    )
    out += [one["words"] for one in record["further"]]
    out += agreement(record)
    out += map(tuning_in_words, tuned(record))
    out += [f"Left out, {name}: {why}." for name, why in record["left_out"].items()]
    return [*out, *plan_in_words(record)]


def plan_in_words(record: Record) -> list[str]:
    """What was planned of memory and time, and the largest peak that was measured."""
    if not record.get("plan"):
        return []
    peaks = [one["peak_mib"] for one in entries(record) if one["peak_mib"] is not None]
    words = [f"The largest peak that was measured is {plans.size(max(peaks) * 2**20)}."] if peaks else []
    return [" ".join([*plans.sentences(record["plan"]), *words])]


def tried(record: Record) -> list[tuple[int, Record]]:
    """The lists of divisors of a search whose loss at the target was asked for, with their places in its order."""
    trials = record["search"]["trials"] if record.get("search") else []
    return [(place, one) for place, one in enumerate(trials, 1) if one["loss"] is not None]


def search_table(record: Record) -> tuple[list[str], list[list[str]]]:
    """How the search went: headers and rows."""
    of = tried(record)
    least = accumulate((one["loss"] for _, one in of), min)
    rows = [
        [f"{place}: {one['kind']}", *(f"{loss:.4f}" for loss in (one["screen"], one["loss"], best))]
        for (place, one), best in zip(of, least, strict=True)
    ]
    return ["list", "loss in short texts (nats)", "loss at the target (nats)", "best so far"], rows


def found_divisors(record: Record) -> tuple[list[str], list[list[str]]]:
    """What the search found and what it began with, by pair: headers and rows."""
    if not (search := record.get("search")):
        return [], []
    lists = {"longrope, searched": search["factors"]["long_factor"], **search["starts"]}
    pairs = [f"pair {pair}" for pair in range(len(search["factors"]["long_factor"]))]
    return ["list", *pairs], [[name, *(f"{one:.3g}" for one in of)] for name, of in lists.items()]


def agreement(record: Record) -> list[str]:
    """How far measures rank methods and lengths alike: Spearman's correlation, better with better being above 0."""
    out = []
    for one, other in combinations(record["measures"], 2):
        found = [(graded(entry, one), graded(entry, other)) for entry in entries(record)]
        pairs = [(first[length], second[length]) for first, second in found for length in first if length in second]
        what = f"{one['name']} and {other['name']} rank the {len(pairs)} pairs of method and length"
        out += alike(what, pairs)
    both = [(one["screen"], one["loss"]) for _, one in tried(record)]
    return out + alike(f"In the search short texts and the target rank the {len(both)} lists tried in both", both)


def alike(what: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """A sentence of what ranks pairs of numbers, and how far alike; none where they are too few, or do not differ."""
    from scipy.stats import spearmanr

    if len(pairs) < FEWEST or any(len(set(column)) == 1 for column in zip(*pairs, strict=True)):
        return []
    rho = float(spearmanr(pairs).statistic)
    order = "Spearman's: 1 in the same order, 0 in none in common, -1 in the opposite one"
    return [f"{what} with a correlation of {rho:.2f} ({order})."]


def graded(entry: Record, measure: Record) -> dict[int, float]:
    """The first number of a measure by length, more being better."""
    number = measure["numbers"][0]
    sign = 1.0 if number["more_is_better"] else -1.0
    found = {length: one.value for (name, length), one in of(entry, measure).items() if name == number["name"]}
    return {length: sign * value for length, value in found.items() if value is not None}


def tuned(record: Record) -> list[Record]:
    """The methods that were tuned."""
    return [entry for entry in entries(record) if "tuning" in entry]


def tuning_in_words(entry: Record) -> str:
    """How the loss went, of how many weights, and what a recalibration lost."""
    first, final = (sum(part) / len(part) for part in ends(entry["loss"]))
    cost = entry["tuning"]
    words = (
        f"{entry['name'].partition(',')[0]} was tuned for {len(entry['loss'])} steps in {duration(cost['seconds'])}, "
        f"{cost['trained']:,} numbers among or beside the {cost['parameters']:,} of the model "
        f"({cost['trained'] / cost['parameters']:.1%}): its loss went from {first:.3f} to {final:.3f} nats (means of "
        f"the first and the last tenth of the steps)."
    )
    if "recalibration" not in entry:
        return words
    before, changed, now = entry["recalibration"].values()
    return (
        f"{words} At the trained length the measured text cost {before:.3f} nats a token before, {changed:.3f} with "
        f"the change alone, and {now:.3f} once tuned: {now - before:+.3f} in all."
    )


def row_by_row(headers: list[str], rows: list[list[str]]) -> str:
    """A table in one line of words, for who does not see its picture.

    >>> row_by_row(["method", "at 8", "at 16"], [["none", "2.1", "9.0"], ["yarn", "2.1", "2.2"]])
    'none: at 8 2.1, at 16 9.0; yarn: at 8 2.1, at 16 2.2.'
    """
    said = [f"{name}: {', '.join(map(' '.join, zip(headers[1:], cells, strict=True)))}" for name, *cells in rows]
    return f"{'; '.join(said)}." if said else ""


def ends(losses: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    tenth = max(1, len(losses) // 10)
    return losses[:tenth], losses[-tenth:]


def said(value: Value) -> str:
    return "" if value.value is None else in_digits(value)


@figures.styled
def by_length(record: Record, measure: Record) -> Figure:
    """Each number of a measure against the length, a line for each method."""
    numbers, lengths = measure["numbers"], lengths_of(record, measure)
    fig, axes = figures.panels(len(numbers), 2, 4.6, 3.6, f"{title(record).partition(':')[0]}, by {record['unit']}")
    for ax, number in zip(axes, numbers, strict=True):
        for place, entry in enumerate(entries(record)):
            own, found = figures.look(place), of(entry, measure)
            xs = [length for length in lengths if (number["name"], length) in found]
            at = [found[number["name"], length] for length in xs]
            ys, errors = figures.numbers([one.value for one in at]), figures.numbers([one.error or 0.0 for one in at])
            drawn = ax.errorbar(
                xs, ys, errors, color=own.color, linestyle=own.dashes, marker=own.marker, elinewidth=0.8
            )
            drawn[0].set_gid(f"encoding-{place}")
        finish(ax, record, number["words"], log=not number["more_is_better"])
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    named(fig, record)
    return fig


@figures.styled
def curve(record: Record, words: str) -> Figure:
    """What lies beside the numbers along an axis, a line for each method."""
    fig = figures.figure(9, 4.2, words)
    ax = fig.add_subplot()
    found = detailed(record, words)
    for place, entry in enumerate(entries(record)):
        if (one := found.get(entry["name"])) is None:
            continue
        own = figures.look(place)
        ys = figures.numbers(one["values"])
        drawn = ax.plot(one["at"], ys, color=own.color, linestyle=own.dashes, linewidth=1.3)
        drawn[0].set_gid(f"encoding-{place}")
    finish(ax, record, words.partition(" ")[0].lower(), log=True)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    named(fig, record)
    return fig


def finish(ax: Any, record: Record, ylabel: str, *, log: bool) -> None:
    if log:
        ax.set_yscale("log")
        figures.plain_log(ax.yaxis)
    figures.mark_trained(ax, [record["trained"]])
    ax.set(xlabel=record["unit"], ylabel=figures.wrapped(ylabel, 4))


def named(fig: Figure, record: Record) -> None:
    handles = [figures.handle(entry["name"], figures.look(n)) for n, entry in enumerate(entries(record))]
    figures.legend(fig, handles, columns=6)


@figures.styled
def divisors(record: Record) -> Figure | None:
    """The divisors against the pair."""
    if not (search := record.get("search")):
        return None
    fig = figures.figure(7, 3.4, "Divisors of the frequencies")
    ax, handles = fig.add_subplot(), []
    for place, (name, of) in enumerate({"searched": search["factors"]["long_factor"], **search["starts"]}.items()):
        own = figures.look(place)
        ax.plot(range(len(of)), figures.numbers(of), color=own.color, linestyle=own.dashes, marker=own.marker)
        handles.append(figures.handle(name, own))
    ax.axhline(search["stretch"], color=figures.SOFT, linestyle=":", linewidth=0.8)
    ax.axvline(search["critical"], color=figures.SOFT, linestyle=":", linewidth=0.8)
    ax.set(xlabel="pair, fastest first", ylabel="divisor")
    figures.legend(fig, handles, columns=6)
    return fig


@figures.styled
def tuning(entry: Record) -> Figure:
    """The loss of every step of fine-tuning."""
    losses = figures.numbers(entry["loss"])
    wide = max(1, len(losses) // 10)
    means = [losses[max(0, n - wide + 1) : n + 1].mean() for n in range(len(losses))]
    fig = figures.figure(7, 3.4, "Fine-tuning")
    ax = fig.add_subplot()
    ax.plot(losses, color=figures.LIGHT[7], linewidth=0.8)
    ax.plot(means, color=figures.LIGHT[0])
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    return fig


def tables(record: Record) -> list[tuple[str, str, tuple[list[str], list[list[str]]]]]:
    """All tables, with their captions and what else is said of them."""
    found = [(one["name"], numbers_in_words(one), table(record, one)) for one in record["measures"]]
    found += [(words, "", detail_table(record, words)) for words in captions(record, curves=False)]
    found.append(("What the pass at the longest length costs", "", cost(record)))
    if record.get("plan"):
        found.append(("What was planned for a pass", "", plans.table(record["plan"])))
    found.append(("The search of longrope's divisors", "", search_table(record)))
    return [one for one in found if one[2][1]]


def markdown(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The run as a page of Markdown."""
    parts = [f"# {shown(title(record))}", *map(shown, sentences(record))]
    for caption, words, rows in tables(record):
        parts += [f"{shown(words.rstrip('.') or caption)}:", in_markdown(*rows)]
    parts += [f"![{shown(figure['says'])}](figures/{figure['name']}.png)" for figure in drawn]
    specs = [
        f"- {shown(entry['name'])}: {shown(entry['words'])}: {markdown_code(entry['spec'])}"
        for entry in entries(record)
    ]
    parts += ["## The methods", "\n".join(specs), "## How it was made", how(record)]
    return "\n\n".join(parts) + "\n"


def in_markdown(headers: list[str], rows: list[list[str]]) -> str:
    return as_markdown(list(map(shown, headers)), [list(map(shown, row)) for row in rows])


def how(record: Record) -> str:
    """How the run was made, as a list in Markdown."""
    said = {name: (markdown_code if name == "command" else shown)(value) for name, value in record["made"].items()}
    return "\n".join(f"- {shown(name)}: {value}" for name, value in said.items())


def title(record: Record) -> str:
    name = Path(record["model"]).name
    return f"{name}: from {record['trained']:,} to {record['target']:,} {record['unit']}"


def page(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The run as an HTML page that needs nothing beside it."""
    number = first(record)
    best = record["tuned"] or next(entry for entry in entries(record) if entry["name"] == record["winner"])
    before, after = (value(entry, record, record["target"]) for entry in (record["methods"][0], best))
    facts = [
        (f"trained to, {record['unit']}", f"{record['trained']:,}"),
        (f"extended to, {record['unit']}", f"{record['target']:,}"),
        ("methods", str(len(record["methods"]) - 1)),
        (f"{number['name']} before", "none" if before is None else said(before)),
        (f"{number['name']} after", "none" if after is None else said(after)),
        ("for the longest passes", duration(sum(entry["seconds"] for entry in entries(record)))),
    ]
    looks = [(one["name"], figures.look(n), one["spec"], one["words"]) for n, one in enumerate(entries(record))]
    return rendered(
        TEMPLATE,
        record,
        title=title(record),
        facts=facts,
        said=sentences(record),
        tables=tables(record),
        figures=drawn,
        looks=looks,
        winner=record["winner"],
    )


def rendered(template: Path, record: Record, **shown: Any) -> str:
    """A page by its template, with how its record was made."""
    made = [(name, f"`{told}`" if name == "command" else told) for name, told in record["made"].items()]
    return pages(template.parent, PAGE.parent).get_template(template.name).render(made=made, **shown)
