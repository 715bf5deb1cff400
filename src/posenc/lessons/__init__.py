"""The course: one lesson after another, each a text whose code runs, with exercises that can be checked.

A lesson is two files of one name: NAME.md, a notebook in MyST's form, and NAME.py, which says its place in the course
and holds what its exercises owe. A new lesson is two new files. What begins with an underscore carries all of them.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from posenc.foreign import code, near, quoted, read
from posenc.lessons._answers import answer as answer
from posenc.lessons._answers import same as same
from posenc.lessons._answers import tensor as tensor
from posenc.lessons._cells import Cell, cells, code_of, notebook, readable, solutions
from posenc.verdicts import Held, Verdict, name_of

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    name  of its files
    """

    name: str

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"posenc.lessons.{self.name}")

    @property
    def place(self) -> int:
        """Where it stands in the course, from 1 on."""
        return self.module.PLACE

    @property
    def text(self) -> str:
        """The lesson, as a MyST notebook."""
        return (HERE / f"{self.name}.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """What its text is called."""
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))

    @property
    def cells(self) -> list[Cell]:
        """Its words and its code, in their order."""
        return list(cells(self.text))

    @property
    def readable(self) -> str:
        """Its text as Markdown for a terminal, without the solutions."""
        return readable(self.text)

    @property
    def solutions(self) -> str:
        """A file of answers that are right."""
        return solutions(self.text)

    @property
    def notebook(self) -> str:
        """The lesson as a Jupyter notebook, in JSON, without the solutions."""
        return notebook(self.text, self.place)

    def check(self, path: str | Path) -> list[Verdict]:
        """The verdicts on the answers in a file of Python or a Jupyter notebook, one for each exercise.

        An exercise that is not in the file yet is told so.

        Raises ValueError for a file that is missing, or that cannot be run.
        """
        source = code_of(read(path), path).encode() if Path(path).suffix == ".ipynb" else None
        theirs = code.imported(str(path), source)
        exercises = self.module.EXERCISES
        advice = {name_of(exercise): (exercise.__doc__ or "").strip() for exercise in exercises}
        held = Held(theirs, str(path), {theirs.__name__}, advice)
        found = [held.to(exercise) for exercise in exercises]
        # What the answers print comes before what is said of them.
        print(end="", flush=True)
        return found


@cache
def lessons() -> tuple[Lesson, ...]:
    """All of them, in their order."""
    found = [Lesson(file.name) for file in pkgutil.iter_modules([str(HERE)]) if not file.name.startswith("_")]
    return tuple(sorted(found, key=lambda lesson: lesson.place))


def lesson_of(asked: str) -> Lesson:
    """The lesson of a number or a name.

    Raises ValueError for one that there is not.

    >>> lesson_of("1").name
    'order_is_lost'
    """
    found = [lesson for lesson in lessons() if asked in (str(lesson.place), lesson.name)]
    if not found:
        names = tuple(lesson.name for lesson in lessons())
        raise ValueError(
            f"no lesson {quoted(asked)}{near(asked, names)}; they go from 1 to {len(names)}: posenc lesson"
        )
    return found[0]
