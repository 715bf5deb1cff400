"""`posenc lesson`: the course, and what it says of one's answers."""

import multiprocessing
import shlex
import signal
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import File, Positional, taking
from posenc.foreign import quoted
from posenc.foreign.text import told
from posenc.whole_files import users_cache

LIMIT = 60
"""Seconds that a file of answers may take."""


@dataclass
class Lesson:
    """Read a lesson of the course, or have answers checked.

    Example: posenc lesson 1 --check mine.py

    posenc lesson alone lists them. What goes into a pipe is Markdown.
    """

    lesson: Positional[Annotated[str, taking("LESSON")]] = ""
    """Its number or its name. Default: the list of all."""
    check: File = None
    """A file with your answers, .py or .ipynb: it is run, and each exercise is held against it."""
    notebook: File = None
    """Write the lesson as a Jupyter notebook, such as lesson.ipynb."""
    solutions: bool = False
    """Print the solutions of its exercises."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lessons import lesson_of, lessons

        asked = [f"--{name}" for name in ("check", "notebook", "solutions") if getattr(self, name) not in (None, False)]
        if asked and not self.lesson:
            raise ValueError(f"{asked[0]} needs to know of which lesson, such as: posenc lesson 1 {asked[0]}")
        if len(asked) > 1:
            raise ValueError(f"{' and '.join(asked)} are different things to do; give one of them")
        if not self.lesson:
            terminal.table(["lesson", ""], [[str(one.place), one.title] for one in lessons()])
            terminal.say("Read one: posenc lesson 1")
            return 0
        lesson = lesson_of(self.lesson)
        if self.check is not None:
            return self.show_verdicts(lesson, self.check)
        if self.notebook is not None:
            path = Path(self.notebook)
            if path.suffix != ".ipynb":
                raise ValueError(f"a notebook's name ends in .ipynb, got {self.notebook!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            # Whoever has worked in it loses nothing.
            with path.open("x", encoding="utf-8") as file:
                file.write(lesson.notebook)
            terminal.say(f"Notebook: {path} (pip install jupyter opens it)")
            command = f"posenc lesson {lesson.place} --check {shlex.quote(str(path))}"
            terminal.say(f"Answer in its last cells, or in others, and then: {command}")
        elif self.solutions:
            terminal.data(lesson.solutions.rstrip("\n"))
        else:
            terminal.markdown(lesson.readable)
        return 0

    def show_verdicts(self, lesson: Any, path: str) -> int:
        """Print what comes out for each exercise."""
        from posenc import terminal

        found = verdicts(lesson, path)
        again = was_checked(lesson, path)
        for verdict in found:
            terminal.say(f"{'right' if verdict.good else 'not yet':<10}  {verdict.promise.replace('_', ' ')}")
            if not verdict.good:
                terminal.say(f"    found: {verdict.message}")
            if not verdict.good and again:
                terminal.say(f"    to do: {verdict.advice}")
        right = sum(verdict.good for verdict in found)
        terminal.say(f"{right} of {len(found)} exercises right")
        if right < len(found):
            more = "" if again else "; the second time it says what to do"
            terminal.say(f"Again: posenc lesson {self.lesson} --check {shlex.quote(path)}{more}")
        return 0 if right == len(found) else 1


def was_checked(lesson: Any, path: str) -> bool:
    """Whether the answers in this file were checked before; noted in the user's cache, and true where it cannot be."""
    try:
        note = users_cache() / "answers" / sha256(f"{lesson.name} {Path(path).absolute()}".encode()).hexdigest()
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch(exist_ok=False)
    except (OSError, RuntimeError):
        return True
    return False


def verdicts(lesson: Any, path: str) -> list[Any]:
    """The verdicts on answers, run in a process of their own; raises as `Lesson.check` does, and where they go on, or
    end that process."""
    # Ctrl-C is for this process, which ends the other.
    alone = (1, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with ProcessPoolExecutor(*alone) as process:
        asked = process.submit(lesson.check, path)
        try:
            return asked.result(LIMIT)
        except ValueError as error:
            raise ValueError(str(error)) from error
        except TimeoutError:
            wrong = f"was stopped after {LIMIT} seconds; look for a loop in it that never ends"
        except BrokenProcessPool:
            wrong = "ended its own process; look for what does so, such as os._exit, or takes all memory"
        except (KeyboardInterrupt, SystemExit) as error:
            if not asked.done():
                raise
            wrong = f"could not be checked, because it raises {told(error)}; take that out"
        finally:
            for child in multiprocessing.active_children():
                child.kill()
    raise ValueError(f"{quoted(path)} {wrong}")
