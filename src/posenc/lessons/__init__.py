"""The course: lessons whose code runs, with exercises that can be checked.

A lesson is two files of one name: NAME.md, a MyST notebook, and NAME.py with its place in the course and the checks of
its exercises. A new lesson is two new files. Modules with an underscore serve all lessons.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from posenc.foreign import code, quote, read, suggestion
from posenc.lessons._answers import answer, check_shape, compare, nearest_of
from posenc.lessons._cells import NotebookCell, cells, code_of, notebook, readable, solutions
from posenc.lessons._hand_ins import READERS, HandIn, Numbers, TrainedModel, definition, read_model, read_numbers
from posenc.verdicts import Checker, Verdict, promise_name

__all__ = [
    "HandIn", "Lesson", "Numbers", "TrainedModel", "answer", "check_shape", "compare", "definition", "lesson_of",
    "lessons", "nearest_of", "read_model", "read_numbers",
]  # fmt: skip

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lesson:
    """One lesson, by the name of its files."""

    name: str

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"posenc.lessons.{self.name}")

    @property
    def place(self) -> int:
        """Its place in the course, from 1 on."""
        return self.module.PLACE

    @property
    def text(self) -> str:
        """The lesson, as a MyST notebook."""
        return (HERE / f"{self.name}.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The first heading of its text."""
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))

    @property
    def cells(self) -> list[NotebookCell]:
        """Its cells of text and code, in order."""
        return list(cells(self.text))

    @property
    def readable(self) -> str:
        """Its text as Markdown for a terminal, without the solutions."""
        outputs = (HERE / f"{self.name}.out").read_text(encoding="utf-8").split("\f\n")
        return readable(self.text, outputs, f"posenc lesson {self.place} --open")

    @property
    def solutions(self) -> str:
        """A Python file with the right answers."""
        return solutions(self.text)

    @property
    def notebook(self) -> str:
        """The lesson as a Jupyter notebook, in JSON, without the solutions."""
        return notebook(self.text, self.place)

    def page(self) -> str:
        """Return the lesson as one HTML page; this runs its code, for up to half a minute."""
        from posenc.lessons._page import render_lesson

        return render_lesson(self.text, self.title, self.place)

    def check(self, hand_in: HandIn | str | Path) -> list[Verdict]:
        """Return a verdict for each exercise, or for each promise of a lesson's HAND_IN.

        Answers are a Python file or a Jupyter notebook; HAND_IN is a model or numbers.
        Raises ValueError for a file that is missing, cannot run, or is of a kind that the lesson does not take.
        """
        hand_in = hand_in if isinstance(hand_in, HandIn) else HandIn(str(hand_in))
        path = hand_in.what
        if code.is_class_path(path) or Path(path).is_dir() or Path(path).suffix in READERS:
            if not hasattr(self.module, "HAND_IN"):
                raise ValueError(f"lesson {self.place} takes answers (.py, .ipynb) alone, got {quote(path)}")
            reader, promises = self.module.HAND_IN
            subject, modules = reader(hand_in), set[str]()
        else:
            hand_in.check("what stands in it", True)
            source = code_of(read(path), path).encode() if Path(path).suffix == ".ipynb" else None
            subject, promises = code.import_file(path, source), self.module.EXERCISES
            modules = {subject.__name__}
        advice = {promise_name(promise): " ".join((promise.__doc__ or "").split()) for promise in promises}
        checker = Checker(subject, path, modules, advice)
        verdicts = [checker.verdict(promise) for promise in promises]
        # The answers' own output comes before the verdicts.
        print(end="", flush=True)
        return verdicts


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons in order."""
    entries = [Lesson(file.name) for file in pkgutil.iter_modules([str(HERE)]) if not file.name.startswith("_")]
    return tuple(sorted(entries, key=lambda lesson: lesson.place))


def lesson_of(name: str) -> Lesson:
    """Return the lesson with a number or a name.

    Raises ValueError for an unknown lesson.

    >>> lesson_of("1").name
    'order_is_lost'
    """
    matches = [lesson for lesson in lessons() if name in (str(lesson.place), lesson.name)]
    if not matches:
        names = tuple(lesson.name for lesson in lessons())
        raise ValueError(
            f"no lesson {quote(name)}{suggestion(name, names)}; they go from 1 to {len(names)}: posenc lesson"
        )
    return matches[0]
