"""The course: every lesson runs, its solutions pass its own checks, and it opens as a notebook."""

import json
import re
import shlex
import time
import webbrowser
from pathlib import Path

import matplotlib
import nbformat
import pytest
import torch
from matplotlib import pyplot
from write_outputs import write_output

from posenc import cli, lessons
from posenc.cli import lesson as verb
from posenc.lessons import Lesson, lesson_of
from posenc.lessons._cells import PICTURE
from posenc.verdicts import Verdict

LESSONS = lessons.lessons()
for_each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def test_the_course_is_numbered_without_gaps() -> None:
    assert [lesson.place for lesson in LESSONS] == list(range(1, len(LESSONS) + 1))


@for_each_lesson
def test_a_lesson_has_a_formula_its_faults_and_two_exercises(lesson: Lesson) -> None:
    text = lesson.text
    assert re.findall("^# .+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE) == [f"# {lesson.title}"]
    assert re.search(r"^\$\$\n.+?\n\$\$$", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^## (Where it goes wrong|Exercises)$", text, re.MULTILINE) == [
        "Where it goes wrong",
        "Exercises",
    ]
    exercises = text.partition("## Exercises")[2]
    questions = 2 + hasattr(lesson.module, "HAND_IN")
    assert re.findall(r"^\*\*(\d)\.\*\*", exercises, re.MULTILINE) == ["1", "2", "3"][:questions]
    assert len(lesson.module.EXERCISES) == 2
    assert exercises.count("<details><summary>Solution</summary>") == exercises.count("</details>") == questions
    assert f"posenc lesson {lesson.place} --check mine.py" in exercises


@for_each_lesson
def test_the_solutions_pass_the_lessons_own_checks(lesson: Lesson, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(lesson.solutions)
    assert [(verdict.word, verdict.message) for verdict in lesson.check(tmp_path / "mine.py")] == [("kept", "")] * 2


@for_each_lesson
def test_a_file_without_answers_is_told_so(lesson: Lesson, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    verdicts = list(lesson.check(tmp_path / "mine.py"))
    assert [verdict.good for verdict in verdicts] == [False, False]
    assert all(re.fullmatch(r"there is no \w+ in it yet", verdict.message) and verdict.advice for verdict in verdicts)


LONG = ("choosing", "beyond_the_trained_length", "taking_position_away", "stretching", "two_axes")
"""Lessons that train for ten seconds and more: the build of the site runs them, and `run.py test --all`."""


@pytest.mark.parametrize(
    "lesson",
    [pytest.param(lesson, marks=[pytest.mark.slow] * (lesson.name in LONG), id=lesson.name) for lesson in LESSONS],
)
def test_the_code_of_a_lesson_runs_in_under_a_minute_and_gives_what_a_terminal_shows(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start, threads, began = matplotlib.get_backend(), torch.get_num_threads(), time.process_time()
    try:
        outputs = write_output(lesson)
    finally:
        torch.set_num_threads(threads)
        pyplot.switch_backend(start)
    assert time.process_time() - began < 60 and PICTURE in outputs
    committed_outputs = (lessons.HERE / f"{lesson.name}.out").read_text(encoding="utf-8")
    assert without_numbers(outputs) == without_numbers(committed_outputs), (
        "write them again: python tests/write_outputs.py"
    )


def without_numbers(text: str) -> list[str]:
    """The words of outputs: numbers differ between machines, and seconds between runs."""
    return re.sub(r"[-+]?\d[\d.,e+-]*", " # ", text).split()


@for_each_lesson
def test_a_lesson_is_a_notebook_that_opens(lesson: Lesson) -> None:
    notebook = nbformat.reads(lesson.notebook, as_version=4)
    nbformat.validate(notebook)
    *cells, answers, check = notebook.cells
    assert [cell.source for cell in cells[:-1]] == [cell.source for cell in lesson.cells[:-1]]
    assert "Solution" not in cells[-1].source and "mine.py" not in cells[-1].source
    assert answers.source.startswith(f"%%writefile lesson_{lesson.place}.py\n")
    assert check.source == f"!posenc lesson {lesson.place} --check lesson_{lesson.place}.py"
    assert notebook.cells[0].source.startswith(f"# {lesson.title}")
    assert not any("{code-cell}" in cell.source or "kernelspec" in cell.source for cell in notebook.cells)


@for_each_lesson
def test_what_a_terminal_shows_has_no_notebook_form_and_no_solutions(lesson: Lesson) -> None:
    text = lesson.readable
    assert text.startswith(f"# {lesson.title}\n")
    assert not re.search(r"\$\$|\{code-cell\}|kernelspec|<details>|Solution", text)
    assert text.count("```python\n") >= sum(cell.kind == "code" for cell in lesson.cells)
    # No LaTeX, and outputs and a hint at pictures below the code.
    assert not re.search(
        r"\\(frac|text|cdot|sum|theta|sqrt|mathrm|left|begin|[,;])",
        re.sub(r"```python.*?```", "", text, flags=re.DOTALL),
    )
    assert f"`posenc lesson {lesson.place} --open`" in text


def test_options_of_a_cell_are_not_its_code() -> None:
    (cell,) = lessons.cells("```{code-cell} python\n:tags: [remove-output]\nx = 1\n\ny = 2\n```\n")
    assert cell.source == "x = 1\n\ny = 2"


# Numbers held to those that are right


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("text", "f\\(1\\) gives a str, and no numbers"),
        ([1.0, 2.0], "f\\(1\\) has the shape \\[2\\], not \\[3\\]"),
        ([3.0, 2.0, 1.0], "f\\(1\\): they are turned round"),
        ([1.0, 2.0, 4.0], "f\\(1\\) differs in 1 of 3 numbers; the first stands at \\[2\\]: 4, not 3"),
    ],
)
def test_an_answer_is_told_how_it_differs(result: object, words: str) -> None:
    expected = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(AssertionError, match=f"^{words}$"):
        lessons.compare("f(1)", result, expected, {"they are turned round": expected.flip(0)})


def test_single_numbers_are_compared_too_and_rounding_is_no_difference() -> None:
    lessons.compare("f(1)", 1 / 3, torch.tensor(1 / 3))
    with pytest.raises(AssertionError, match=r"^f\(1\) is 2, not 3$"):
        lessons.compare("f(1)", 2, 3.0)


# The command line


@pytest.fixture
def posenc(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command in an empty folder: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "cache"))
    # A process of its own takes seconds to begin.
    monkeypatch.setattr(verb, "process_result", Lesson.check)

    def run(command: str) -> tuple[int, str, str]:
        code = cli.main(shlex.split(command))
        return code, *capsys.readouterr()

    return run


def test_the_lessons_are_listed_in_their_order(posenc) -> None:
    code, out, err = posenc("lesson")
    rows = [line.split(maxsplit=1) for line in out.splitlines()[1:-1]]
    assert (code, err) == (0, "") and rows == [[str(lesson.place), lesson.title] for lesson in LESSONS]


def test_a_lesson_is_read_by_its_number_and_by_its_name(posenc) -> None:
    code, out, _ = posenc("lesson 1")
    assert code == 0 and out == f"{lesson_of('1').readable}\n" == posenc("lesson order_is_lost")[1]


def test_solutions_are_a_file_of_answers_that_passes(posenc, tmp_path: Path) -> None:
    _, out, _ = posenc("lesson 1 --solutions")
    (tmp_path / "mine.py").write_text(out)
    code, out, _ = posenc("lesson 1 --check mine.py")
    assert code == 0 and "2 of 2 right" in out


@pytest.mark.parametrize(
    ("answers", "limit", "words"),
    [
        ("while True: pass", 4, r"'mine\.py' was stopped after 4 seconds; look for a loop in .*"),
        ("import os\nos._exit(3)", 60, r"'mine\.py' ended its own process; look for what does so, .*"),
        pytest.param("import os\nos.kill(os.getpid(), 9)", 60, r"'mine\.py' ended its own .*", marks=pytest.mark.slow),
        pytest.param(
            "raise KeyboardInterrupt",
            60,
            r"'mine\.py' could not be checked, because it raises KeyboardInterrupt; take .*",
            marks=pytest.mark.slow,
        ),
        (
            "def attend(x): exit(3)",
            60,
            r"'mine\.py' could not be checked, because it raises SystemExit: 3; take that out",
        ),
        ("print('begun')\nimport no_such", 60, r"'mine\.py' could not be imported: ModuleNotFoundError: .*"),
    ],
)
def test_answers_run_process_result_of_their_own_which_ends_in_time(
    answers: str, limit: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "CHECK_SECONDS", limit)
    (tmp_path / "mine.py").write_text(answers)
    assert cli.main(["lesson", "1", "--check", "mine.py"]) == 2
    out, err = capfd.readouterr()
    assert out == "begun\n" * answers.count("begun") and re.fullmatch(f"posenc: {words}\n", err)


def test_what_is_wrong_is_told_at_once_and_what_to_do_the_second_time(posenc, tmp_path: Path) -> None:
    (tmp_path / "my answers.py").write_text("def is_blind(layers):\n    return layers < 2\n")
    code, out, _ = posenc("lesson 1 --check 'my answers.py'")
    assert code == 1 and "right       last output is blind" in out and "1 of 2 right" in out
    assert "found: there is no attend in it yet" in out and "to do:" not in out
    again = "Again: posenc lesson 1 --check 'my answers.py'"
    assert out.endswith(f"{again}; the second time it says what to do\n")
    _, out, _ = posenc("lesson 1 --check 'my answers.py'")
    assert out.count("to do: attend(x) is softmax") == 1 and out.endswith(f"{again}\n")


def test_a_notebook_is_written_and_never_over_another(posenc, tmp_path: Path) -> None:
    code, out, err = posenc("lesson 1 --notebook new/mine.ipynb")
    assert (code, err) == (0, "") and out.startswith("Notebook: new/mine.ipynb (pip install jupyter opens it)\n")
    assert out.endswith("posenc lesson 1 --check new/mine.ipynb\n")
    assert (tmp_path / "new" / "mine.ipynb").read_text() == lesson_of("1").notebook
    (tmp_path / "mine.ipynb").write_text("work")
    assert posenc("lesson 1 --notebook mine.ipynb") == (1, "", "posenc: File exists: 'mine.ipynb'\n")
    assert (tmp_path / "mine.ipynb").read_text() == "work"


IN_CELLS = [
    "%matplotlib inline\nimport torch\n!pip list\ntorch.roll?\nif True:\n    %time torch.ones(1)",
    "%%bash\nls -l",
    "%%time\ndef is_blind(layers):\n    return (layers\n    % 1024) < 2\n",
]


def in_notebook(*code: str) -> str:
    cells = [{"cell_type": "code", "source": source} for source in code]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "1 +"}, *cells]})


def test_answers_in_the_cell_for_them_are_checked(posenc, tmp_path: Path) -> None:
    lesson = lesson_of("1")
    notebook = json.loads(lesson.notebook)
    notebook["cells"][-2]["source"].append(lesson.solutions)
    (tmp_path / "lesson.ipynb").write_text(json.dumps(notebook))
    # As a person runs them: the cell writes the file, and the command reads it or the notebook.
    (tmp_path / "lesson_1.py").write_text("".join(notebook["cells"][-2]["source"][1:]))
    for file in ("lesson.ipynb", "lesson_1.py"):
        assert posenc(f"lesson 1 --check {file}")[1].endswith("2 of 2 right\n")


def test_answers_in_a_notebook_are_checked(posenc, tmp_path: Path) -> None:
    (tmp_path / "mine.ipynb").write_text(in_notebook(*IN_CELLS, lesson_of("1").solutions.splitlines(keepends=True)))
    assert posenc("lesson 1 --check mine.ipynb")[1].endswith("\n2 of 2 right\n")
    (tmp_path / "mine.ipynb").write_text(in_notebook(*IN_CELLS))
    code, out, _ = posenc("lesson 1 --check mine.ipynb")
    assert code == 1 and "right       last output is blind" in out and "there is no attend in it yet" in out


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.ipynb", "", "a.ipynb: it is no Jupyter notebook; save it again in Jupyter, or write the answers into a .p"),
        ("a.ipynb", '{"cells": 1}', "a.ipynb: it is no Jupyter notebook; "),
        ("a.ipynb", '["cells"]', "a.ipynb: it is no Jupyter notebook; "),
        ("a.ipynb", '{"cells": [{"cell_type": "code"}]}', "a.ipynb: it is no Jupyter notebook; "),
        ("a.ipynb", "[" * 100_000, "a.ipynb: it is no Jupyter notebook; "),
        ("a.ipynb", in_notebook("x = ("), "'a.ipynb' could not be imported: SyntaxError: '(' was never closed"),
        ("a.txt", "a word and more", "'a.txt' could not be imported: SyntaxError: "),
        ("a", "import no_such", "'a' could not be imported: ModuleNotFoundError: No module named 'no_such'"),
        ("a.py", "\0", "'a.py' could not be imported: SyntaxError: source code string cannot contain null bytes"),
        ("b/a.py", "", "lesson 1 takes answers (.py, .ipynb) alone, got 'b'"),
    ],
)
def test_a_file_that_holds_no_answers_is_one_line(file: str, content: str, words: str, posenc, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    code, out, err = posenc(f"lesson 1 --check {file.partition('/')[0]}")
    assert (code, out) == (2, "") and err.startswith(f"posenc: {words}") and err.count("\n") == 1


def test_a_page_is_made_once_and_opened_with_pictures_and_formulas(posenc, tmp_path: Path, monkeypatch) -> None:
    pages, run = [], []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda address: pages.append(address) or True)
    monkeypatch.setattr(verb, "process_result", lambda lesson: run.append(lesson) or lesson.page())
    for _ in range(2):
        assert posenc("lesson 1 --open") == (0, "", "")
    (page,) = (tmp_path / "cache" / "lessons").iterdir()
    assert pages == [page.as_uri()] * 2 and run == [lesson_of("1")]
    text = page.read_text()
    assert "<math" in text and 'src="data:image/png;base64,' in text and '<pre class="output">' in text
    assert not re.search(r"https?://(?!www\.w3\.org)|Solution|\$\$", text)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("lesson 1 --weights a.pt", "--weights, --run and --text belong to what is handed in; give --check too"),
        ("lesson 99", f"no lesson '99'; they go from 1 to {len(LESSONS)}: posenc lesson"),
        ("lesson order_is_lots", "no lesson 'order_is_lots'; did you mean 'order_is_lost'?"),
        ("lesson --check mine.py", "--check needs to know of which lesson, such as: posenc lesson 1 --check"),
        ("lesson --check ''", "--check needs to know of which lesson, such as: posenc lesson 1 --check"),
        ("lesson 1 --text ''", "--weights, --run and --text belong to what is handed in; give --check too"),
        ("lesson 1 --check a.py --solutions", "--check and --solutions are different things to do; give one of them"),
        ("lesson 1 --notebook mine.md", "a notebook's name ends in .ipynb, got 'mine.md'"),
        ("lesson 1 --check nowhere.py", "nowhere.py: there is no such file"),
    ],
)
def test_what_cannot_be_done_is_told(command: str, words: str, posenc) -> None:
    code, out, err = posenc(command)
    assert (code, out) == (2, "") and words in err


def test_a_verdict_of_a_lesson_is_one_of_all_verdicts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def attend(x):\n    return x.nothing\n")
    verdict = next(iter(lesson_of("1").check(tmp_path / "mine.py")))
    assert isinstance(verdict, Verdict) and verdict.word == "broken" and verdict.message.startswith("AttributeError: ")
    assert verdict.advice.startswith("look at attend, line 2 of mine.py; attend(x) is softmax")
