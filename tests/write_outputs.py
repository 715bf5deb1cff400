"""Write what the code of each lesson prints into NAME.out, beside it: what a terminal shows below the code."""

import sys

from posenc.lessons import HERE, Lesson, lessons
from posenc.lessons._cells import PICTURE
from posenc.lessons._page import run


def write_output(lesson: Lesson) -> str:
    """The outputs of the code cells of a lesson, as its .out file has them."""
    return "\f\n".join(PICTURE * bool(output.pictures) + output.text for output in run(lesson.cells))


if __name__ == "__main__":
    for lesson in lessons():
        if lesson.name in sys.argv[1:] or not sys.argv[1:]:
            (HERE / f"{lesson.name}.out").write_text(write_output(lesson), encoding="utf-8")
