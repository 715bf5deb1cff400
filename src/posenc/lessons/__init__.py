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
from posenc.lessons._answers import answer, nearest, same, tensor
from posenc.lessons._cells import Cell, cells, code_of, notebook, readable, solutions
from posenc.lessons._hand_ins import READERS, HandIn, Numbers, TrainedModel, definition, model_of, numbers
from posenc.verdicts import Held, Verdict, name_of

__all__ = [
    "HandIn", "Lesson", "Numbers", "TrainedModel", "answer", "definition", "lesson_of", "lessons", "model_of",
    "nearest", "numbers", "same", "tensor",
]  # fmt: skip

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
        outputs = (HERE / f"{self.name}.out").read_text(encoding="utf-8").split("\f\n")
        return readable(self.text, outputs, f"posenc lesson {self.place} --open")

    @property
    def solutions(self) -> str:
        """A file of answers that are right."""
        return solutions(self.text)

    @property
    def notebook(self) -> str:
        """The lesson as a Jupyter notebook, in JSON, without the solutions."""
        return notebook(self.text, self.place)

    def page(self) -> str:
        """The lesson as a page of HTML, whole in one file: its code is run, which takes seconds, or half a minute."""
        from posenc.lessons._page import page

        return page(self.text, self.title, self.place)

    def check(self, hand_in: HandIn | str | Path) -> list[Verdict]:
        """The verdicts on answers in a file of Python or a Jupyter notebook, one for each exercise, or on what else the
        lesson takes (HAND_IN), one for each of its promises.

        Raises ValueError for what is missing, cannot be run, or is nothing that the lesson takes.
        """
        hand_in = hand_in if isinstance(hand_in, HandIn) else HandIn(str(hand_in))
        what = hand_in.what
        if code.is_own(what) or Path(what).is_dir() or Path(what).suffix in READERS:
            if not hasattr(self.module, "HAND_IN"):
                raise ValueError(f"lesson {self.place} takes answers (.py, .ipynb) alone, got {quoted(what)}")
            reader, promises = self.module.HAND_IN
            subject, modules = reader(hand_in), set[str]()
        else:
            hand_in.check("what stands in it", True)
            source = code_of(read(what), what).encode() if Path(what).suffix == ".ipynb" else None
            subject, promises = code.imported(what, source), self.module.EXERCISES
            modules = {subject.__name__}
        advice = {name_of(promise): " ".join((promise.__doc__ or "").split()) for promise in promises}
        held = Held(subject, what, modules, advice)
        found = [held.to(promise) for promise in promises]
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
