"""`posenc lesson`: the course, and what it says of one's answers."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from posenc.cli.options import Folder


@dataclass
class Lesson:
    """Read a lesson of the course, take it as a notebook, or have your answers looked at.

    Example: posenc lesson 1 --check mine.py
    """

    lesson: Positional[str] = ""
    """Its number or its name. Default: the list of all."""
    check: Annotated[str, arg(metavar="PATH", help_behavior_hint="(optional)")] = ""
    """A file with your answers: it is run, and each exercise is held against it."""
    notebook: Folder = None
    """Write the lesson as a Jupyter notebook, NAME.ipynb."""

    def run(self) -> int:
        from posenc import terminal, testing
        from posenc.lessons import lesson_of, lessons

        if not self.lesson:
            terminal.table(["lesson", ""], [[str(one.place), one.title] for one in lessons()])
            terminal.say("Read one: posenc lesson 1")
            return 0
        lesson = lesson_of(self.lesson)
        if self.check:
            found = []
            for verdict in lesson.check(self.check):
                found.append(verdict)
                terminal.verdict(verdict)
            terminal.say(testing.total(found))
            return 0 if all(verdict.good for verdict in found) else 1
        terminal.data(lesson.text)
        return 0
