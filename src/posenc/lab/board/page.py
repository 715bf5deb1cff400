"""The pages of the board, from its rows and costs alone: README.md as GitHub shows it, and board.html."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from posenc.lab import store
from posenc.lab.board import picture, scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.tables import Table, evidence, intervals, standings, summary_table, task_table, unmeasured
from posenc.lab.results import summary
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.summary import Cell, Record
from posenc.lab.results.tables import as_markdown, markdown_code
from posenc.lab.tasks import TASKS
from posenc.lab.views import page

TEMPLATE = Path(__file__).with_name("board.html.jinja")

FIGURES = "figures"
PICTURE = "speed-and-reach"
PAGES = ("README.md", "board.html")

TITLE = "Which positional encoding, and how far does it carry?"


def write(rows: Sequence[Record], costs: Costs, folder: Path) -> list[Path]:
    """Write both pages and the picture into the folder; the paths of the pages.

    Raises ValueError without any rows of evidence, and CannotWrite.
    """
    rows = summary.legible(in_order(rows))
    if not evidence(rows):
        raise ValueError(f"there are no rows to show yet; run some with posenc board --out {folder}")
    drawer = Drawer(store.inside(folder, FIGURES))
    draw = partial(picture.speed_and_reach, standings(rows))
    drawn = drawer(PICTURE, draw, PICTURE_SAYS, "Its numbers are in the first table.")
    store.write(folder / PAGES[0], markdown(rows, costs, pictured=drawn is not None).encode())
    store.write(folder / PAGES[1], html(rows, costs, drawn).encode())
    return [folder / name for name in PAGES]


PICTURE_SAYS = (
    "Every encoding: the steps it takes to learn, their median over all tasks, or at the side, where it learns fewer "
    "than half of them; and the multiple of the trained length to which most seeds carry, its geometric mean over all "
    "tasks. The usual ones have names; grey points are the others, which the table of all tasks has."
)


HOW_TO_READ = (
    "Small models of two layers, trained alike but for the encoding, then asked about longer inputs. A cell says how "
    "many seeds carry to a length: they learned the task (99 %), and answer at least "
    f"{summary.percent(summary.CARRIES)} % of the sequences of that length and of all shorter ones. For text a cell is "
    "R, the perplexity over that at the trained length, with its interval. Lines are sorted by reach; neighbours whose "
    "intervals overlap are ties."
)


def in_order(rows: Sequence[Record]) -> list[Record]:
    """Task by task, as the laboratory lists them, and by key."""
    known = list(TASKS)

    def place(row: Record) -> tuple[int, str, str]:
        task = summary.task_of(row)
        return known.index(task) if task in known else len(known), task, row["key"]

    return sorted(rows, key=place)


def tables(rows: Sequence[Record], costs: Costs) -> list[Table]:
    """The table of all tasks, and one for each."""
    return [summary_table(rows, costs), *(task_table(rows, task) for task in summary.tasks(evidence(rows)))]


def made(rows: Sequence[Record]) -> list[tuple[str, str]]:
    """How the rows came about: (what, words)."""
    kept = evidence(rows)

    def all_of(*path: str) -> str:
        return ", ".join(map(str, sorted({value for row in rows if (value := summary.get(row, *path)) is not None})))

    seconds = sum(summary.number(row["cpu_s"]) or 0.0 for row in rows)
    return [
        ("command", "posenc board --out docs/board"),
        ("runs", f"{len(kept)}, and {len(rows) - len(kept)} to search learning rates"),
        ("seeds", all_of("experiment", "seed")),
        ("CPU time", f"{seconds / 3600:.1f} hours"),
        ("processor", all_of("versions", "processor")),
        ("posenc", all_of("versions", "posenc")),
        ("torch", all_of("versions", "torch")),
        ("Python", all_of("versions", "python")),
    ]


def markdown(rows: Sequence[Record], costs: Costs, *, pictured: bool) -> str:
    """README.md. Names and cells hold no signs that a table would read."""
    lines = [f"# {TITLE}", "", HOW_TO_READ, ""]
    if pictured:
        lines += [f"![{PICTURE_SAYS}]({FIGURES}/{PICTURE}.png)", ""]
    for table in tables(rows, costs):
        lines += [f"## {table.title}", "", table.says, ""]
        cells = [[markdown_code(label).replace("|", r"\|"), *map(in_words, cells)] for label, cells in table.rows]
        lines += [as_markdown(table.headings, cells), ""]
    shares = as_markdown(("seeds", "95 % interval of the share of all"), intervals(rows))
    lines += ["## What so many seeds say", "", shares, ""]
    lines += ["## What was not measured", "", *(f"- {words}" for words in unmeasured(rows, len(scope.SEEDS))), ""]
    lines += ["## How it was made", "", *(f"- {what}: {words}" for what, words in made(rows)), ""]
    lines += ["The rows are in `rows.jsonl.gz`, a line of JSON for each run. Written from them by `posenc board`.", ""]
    return "\n".join(lines)


def in_words(cell: Cell) -> str:
    return f"{cell.text}<br><sub>{cell.detail}</sub>" if cell.detail else cell.text


def html(rows: Sequence[Record], costs: Costs, drawn: dict | None) -> str:
    return page.template(TEMPLATE).render(
        title=TITLE,
        lead=HOW_TO_READ,
        intervals=intervals(rows),
        usual=scope.USUAL,
        picture=drawn,
        tables=tables(rows, costs),
        unmeasured=unmeasured(rows, len(scope.SEEDS)),
        made=made(rows),
    )
