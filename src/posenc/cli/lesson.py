"""`posenc lesson`: the course, and the check of a learner's answers."""

import importlib
import shlex
import signal
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import posenc
from posenc.cli.options import File, Positional, Usage
from posenc.foreign import quote
from posenc.foreign.text import error_text
from posenc.foreign.whole_files import users_cache, write

if TYPE_CHECKING:
    from posenc import lessons as course

CHECK_SECONDS = 60
"""The time limit of an answer's code (seconds)."""


@dataclass
class Lesson:
    """Read a lesson of the course, or check your answers.

    Example: posenc lesson 1 --check mine.py

    posenc lesson alone lists them. In a pipe the lesson is Markdown.
    """

    lesson: Positional[Annotated[str, Usage("LESSON")]] = ""
    """Its number or its name. Default: the list of all."""
    check: File = None
    """Your work: answers (.py, .ipynb), or the file of the lesson's last exercise. Code in it is run."""
    weights: File = None
    """The trained weights of your model path/to/mine.py:Class: a state dict, .safetensors or .pt."""
    run_folder: Annotated[str | None, Usage("PATH", name="run")] = None
    """The folder of the run in which you measured your numbers."""
    text: File = None
    """The text on which your language model was trained."""
    open: bool = False
    """Open the lesson in the browser, with pictures and formulas. The first time, its code is run for this."""
    notebook: File = None
    """Write the lesson as a Jupyter notebook, such as lesson.ipynb."""
    solutions: bool = False
    """Print the solutions of its exercises."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lessons import HandIn, lesson_of, lessons

        tasks = ("check", "open", "notebook", "solutions")
        options = [f"--{name}" for name in tasks if getattr(self, name) not in (None, False)]
        if options and not self.lesson:
            raise ValueError(f"{options[0]} needs to know of which lesson, such as: posenc lesson 1 {options[0]}")
        if len(options) > 1:
            raise ValueError(f"{' and '.join(options)} are different things to do; give one of them")
        if self.check is None and not (self.weights is self.run_folder is self.text is None):
            raise ValueError("--weights, --run and --text belong to what is handed in; give --check too")
        if not self.lesson:
            terminal.table(["lesson", ""], [[str(entry.place), entry.title] for entry in lessons()])
            terminal.say("Read one: posenc lesson 1")
            return 0
        lesson = lesson_of(self.lesson)
        if self.check is not None:
            return self.show_verdicts(lesson, HandIn(self.check, self.weights, self.run_folder, self.text))
        if self.open:
            terminal.open_page(page_of(lesson))
        elif self.notebook is not None:
            path = Path(self.notebook)
            if path.suffix != ".ipynb":
                raise ValueError(f"a notebook's name ends in .ipynb, got {self.notebook!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            # Never overwrite a notebook with answers.
            with path.open("x", encoding="utf-8") as file:
                file.write(lesson.notebook)
            terminal.say(f"Notebook: {path} (pip install jupyter opens it)")
            command = f"posenc lesson {lesson.place} --check {shlex.quote(str(path))}"
            terminal.say(f"Answer in its last cells, or in others, and then: {command}")
        elif self.solutions:
            terminal.write_text(lesson.solutions.rstrip("\n"))
        else:
            terminal.markdown(lesson.readable)
        return 0

    def show_verdicts(self, lesson: "course.Lesson", hand_in: "course.HandIn") -> int:
        """Print the verdict on each exercise, or on each promise of the work handed in."""
        from posenc.cli import terminal

        verdicts = process_result(lesson, hand_in)
        second_try = was_checked(lesson, hand_in.what)
        for verdict in verdicts:
            terminal.say(f"{'right' if verdict.good else 'not yet':<10}  {verdict.promise.replace('_', ' ')}")
            if not verdict.good:
                terminal.say(f"    found: {verdict.message}")
            if not verdict.good and second_try:
                terminal.say(f"    to do: {verdict.advice}")
        right = sum(verdict.good for verdict in verdicts)
        terminal.say(f"{right} of {len(verdicts)} right")
        if right < len(verdicts):
            hint = "" if second_try else "; the second time it says what to do"
            inputs = {"check": hand_in.what, "weights": hand_in.weights, "run": hand_in.run, "text": hand_in.text}
            options = [f"--{name} {shlex.quote(value)}" for name, value in inputs.items() if value is not None]
            terminal.say(f"Again: posenc lesson {self.lesson} {' '.join(options)}{hint}")
        return 0 if right == len(verdicts) else 1


def page_of(lesson: "course.Lesson") -> Path:
    """Return a lesson's page in the user's cache; write it if missing or outdated."""
    from posenc.cli import terminal

    digest = sha256(f"{lesson.text}{posenc.__version__}".encode()).hexdigest()[:16]
    path = users_cache() / "lessons" / f"{lesson.name}-{digest}.html"
    if not path.exists():
        for module in ("matplotlib", "jinja2", "markdown_it", "latex2mathml"):
            importlib.import_module(module)
        with terminal.show_status(f"running the code of lesson {lesson.place} ..."):
            text = process_result(lesson)
        write(path, text.encode())
    return path


def was_checked(lesson: Any, path: str) -> bool:
    """Note in the user's cache that this file is checked. Return whether it was before, or a note cannot be written."""
    try:
        note = users_cache() / "answers" / sha256(f"{lesson.name} {Path(path).absolute()}".encode()).hexdigest()
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch(exist_ok=False)
    except (OSError, RuntimeError):
        return True
    return False


def process_result(lesson: "course.Lesson", hand_in: "course.HandIn | None" = None) -> Any:
    """Return the verdicts on the work handed in, or the lesson's page, computed in a separate process.

    Raises as `Lesson.check` does, and if the work runs longer than the limit, or ends its process.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, TimeoutError
    from concurrent.futures.process import BrokenProcessPool

    # Ctrl-C is for this process, which ends the other.
    alone = (1, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with ProcessPoolExecutor(*alone) as process:
        future = process.submit(lesson.page) if hand_in is None else process.submit(lesson.check, hand_in)
        try:
            return future.result(CHECK_SECONDS if hand_in else None)
        except ValueError as error:
            raise ValueError(str(error)) from error
        except TimeoutError:
            wrong = f"was stopped after {CHECK_SECONDS} seconds; look for a loop in it that never ends"
        except BrokenProcessPool:
            wrong = "ended its own process; look for what does so, such as os._exit, or takes all memory"
        except (KeyboardInterrupt, SystemExit) as error:
            if not future.done():
                raise
            wrong = f"could not be checked, because it raises {error_text(error)}; take that out"
        finally:
            for child in multiprocessing.active_children():
                child.kill()
    raise ValueError(f"{quote(hand_in.what if hand_in else lesson.name)} {wrong}")
