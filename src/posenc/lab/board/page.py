"""Write the pages of the board from its rows and costs: README.md for GitHub, and board.html."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from posenc.lab import store
from posenc.lab.board import picture, scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.tables import Table, evidence, gaps, share_intervals, standings, summary_table, task_table
from posenc.lab.results import summary
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.summary import Cell, Record
from posenc.lab.results.tables import markdown_code, markdown_table
from posenc.lab.tasks import TASKS
from posenc.lab.views import page

TEMPLATE = Path(__file__).with_name("board.html.jinja")

FIGURES = "figures"
PICTURE = "speed-and-reach"
PAGES = ("README.md", "board.html")

TITLE = "Which positional encoding, and how far does it carry?"


def write(rows: Sequence[Record], costs: Costs, folder: Path) -> list[Path]:
    """Write both pages and the picture into the folder; return the paths of the pages.

    Raises ValueError without rows of evidence, and CannotWrite.
    """
    rows = summary.for_display(sorted_by_task(rows))
    if not evidence(rows):
        raise ValueError(f"there are no rows to show yet; run some with posenc board --out {folder}")
    drawer = Drawer(store.subfolder(folder, FIGURES))
    draw = partial(picture.speed_and_reach, standings(rows))
    figure = drawer(PICTURE, draw, PICTURE_CAPTION, "Its numbers are in the first table.")
    store.write(folder / PAGES[0], readme(rows, costs, has_picture=figure is not None).encode())
    store.write(folder / PAGES[1], html_page(rows, costs, figure).encode())
    return [folder / name for name in PAGES]


PICTURE_CAPTION = (
    "Every encoding: the steps it takes to learn, their median over all tasks, or at the side, where it learns fewer "
    "than half of them; and the multiple of the trained length to which most seeds carry, its geometric mean over all "
    "tasks. The usual ones have names; grey points are the others, which the table of all tasks has."
)


CARRIES = summary.percent(summary.CARRY_THRESHOLD)
HOW_TO_READ = (
    "Small models of two layers, trained alike but for the encoding, then asked about longer inputs. A cell says how "
    f"many seeds carry to a length: they learned the task (99 %), and answer at least {CARRIES} % of the sequences of "
    "that length and of all shorter ones. For text a cell is R, the perplexity over that at the trained length, with "
    "its interval. Lines are sorted by reach; neighbours whose intervals overlap are ties."
)


def sorted_by_task(rows: Sequence[Record]) -> list[Record]:
    """Sort the rows by task, in the order of TASKS, and by key."""
    names = list(TASKS)

    def place(row: Record) -> tuple[int, str, str]:
        task = summary.task_of(row)
        return names.index(task) if task in names else len(names), task, row["key"]

    return sorted(rows, key=place)


def board_tables(rows: Sequence[Record], costs: Costs) -> list[Table]:
    """Return the table over all tasks, and one for each task."""
    return [summary_table(rows, costs), *(task_table(rows, task) for task in summary.tasks(evidence(rows)))]


def provenance_items(rows: Sequence[Record]) -> list[tuple[str, str]]:
    """Return (name, text): how the rows were made."""
    counted_rows = evidence(rows)

    def all_of(*path: str) -> str:
        return ", ".join(map(str, sorted({value for row in rows if (value := summary.get(row, *path)) is not None})))

    seconds = sum(summary.number(row["cpu_s"]) or 0.0 for row in rows)
    return [
        ("command", "posenc board --out docs/board"),
        ("runs", f"{len(counted_rows)}, and {len(rows) - len(counted_rows)} to search learning rates"),
        ("seeds", all_of("experiment", "seed")),
        ("CPU time", f"{seconds / 3600:.1f} hours"),
        ("processor", all_of("versions", "processor")),
        ("posenc", all_of("versions", "posenc")),
        ("torch", all_of("versions", "torch")),
        ("Python", all_of("versions", "python")),
    ]


def readme(rows: Sequence[Record], costs: Costs, *, has_picture: bool) -> str:
    """Return README.md; names and cells are escaped for its tables."""
    lines = [f"# {TITLE}", "", HOW_TO_READ, ""]
    if has_picture:
        lines += [f"![{PICTURE_CAPTION}]({FIGURES}/{PICTURE}.png)", ""]
    for table in board_tables(rows, costs):
        lines += [f"## {table.title}", "", table.says, ""]
        cells = [[markdown_code(label).replace("|", r"\|"), *map(cell_markdown, cells)] for label, cells in table.rows]
        lines += [markdown_table(table.headings, cells), ""]
    shares = markdown_table(("seeds", "95 % interval of the share of all"), share_intervals(rows))
    lines += ["## What so many seeds say", "", shares, ""]
    lines += ["## What was not measured", "", *(f"- {words}" for words in gaps(rows, len(scope.SEEDS))), ""]
    lines += ["## How it was made", "", *(f"- {item}: {words}" for item, words in provenance_items(rows)), ""]
    lines += ["The rows are in `rows.jsonl.gz`, a line of JSON for each run. Written from them by `posenc board`.", ""]
    return "\n".join(lines)


def cell_markdown(cell: Cell) -> str:
    return f"{cell.text}<br><sub>{cell.detail}</sub>" if cell.detail else cell.text


def html_page(rows: Sequence[Record], costs: Costs, figure: dict | None) -> str:
    return page.template(TEMPLATE).render(
        title=TITLE,
        lead=HOW_TO_READ,
        intervals=share_intervals(rows),
        usual=scope.USUAL,
        picture=figure,
        tables=board_tables(rows, costs),
        unmeasured=gaps(rows, len(scope.SEEDS)),
        made=provenance_items(rows),
    )
