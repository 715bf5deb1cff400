"""Foreign files are accepted if valid, and otherwise rejected with a clear message."""

import gzip
import json
import os
import re
import sys
from pathlib import Path

import pytest

import posenc
from posenc import foreign
from posenc.foreign import CannotRead
from posenc.foreign.text import escape_markdown, markdown_code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "it names 'a' twice"),
        ('{"a": %s}' % ("9" * 400), "a number of 400 digits; at most 40 are read"),
        ('{"a": -%s}' % ("9" * 41), "a number of 42 digits"),
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 deep"),
        ('{"a": [%s[]]}' % ("[]," * 1_000_000), "more than 2,000,000 items"),
        ("[1]", "expected a dictionary, got [1]"),
        ('{"a"', "no whole JSON"),
        (b'{"a": "\xff"}', "it is no text: byte 7 is no UTF-8"),
    ],
)
def test_what_is_no_sound_json_gets_a_sentence_that_names_the_file(text, words):
    with pytest.raises(CannotRead) as error:
        foreign.parse_json(text, "some/file.json")
    assert words in str(error.value) and str(error.value).startswith("some/file.json: ")


def test_json_keeps_its_values_and_loses_its_control_characters():
    values = {
        "deep": {"list": [1, 2.5, None, True, "tab\tand\nnewline"]},
        "largest": 10**39,
        "model\x1b[31m": "a\x9bb\u202ec",
    }
    mark = "\N{REPLACEMENT CHARACTER}"
    expected = values | {f"model{mark}[31m": f"a{mark}b{mark}c"}
    del expected["model\x1b[31m"]
    assert foreign.parse_json(json.dumps(values)) == expected


def test_a_name_that_stands_twice_is_found_in_linear_time():
    """A separate count for each name would take minutes for these inputs."""
    names = ", ".join(f'"{n}": 0' for n in range(100_000))
    with pytest.raises(CannotRead, match="'99999' twice"):
        foreign.parse_json(f'{{{names}, "99999": 1}}')


@pytest.mark.parametrize(
    "text", ["-" * 10_000 + "1", "not " * 4_000 + "a", "(" * 250 + "a" + ")" * 250, "a + " * 2_000 + "a"]
)
def test_an_expression_that_is_nested_deep_gets_a_sentence(text):
    with pytest.raises(CannotRead, match=r"nested too deep|too many nested"):
        foreign.expression(text, "spec")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a" * 30_000, "longer than 20,000 letters, the most that a spec may have"),
        ("f(x=1%s)" % ("0" * 400), "a number of 401 digits"),
        ("f(x=1%s)" % ("_0" * 60), "a number of 61 digits"),
        ("a\x00b", "is no spec"),
        ("a b", "is no spec (invalid syntax)"),
        ("\ud800", "is no spec"),
    ],
)
def test_what_is_no_expression_gets_a_short_sentence(text, words):
    with pytest.raises(CannotRead) as error:
        foreign.expression(text, "spec", "write another")
    assert words in str(error.value) and len(str(error.value)) < 500
    assert str(error.value).endswith("; write another")
    str(error.value).encode()


def test_names_of_many_letters_and_digits_are_no_long_numbers():
    assert foreign.expression("a" * 100 + "(x=0.1234567890123456789)")


@pytest.mark.parametrize(
    ("value", "form", "words"),
    [
        ({"a": True}, {"a": int}, "a: expected int, got True"),
        ({"a": "1"}, {"a": float}, "a: expected float, got '1'"),
        ({"a": [1, "x"]}, {"a": [float]}, "a[1]: expected float, got 'x'"),
        ({"a": 1}, {"a": (None, [float])}, "a: expected nothing or a list of float, got 1"),
        ({"a": {"q": 1}}, {"a": {"*": str}}, "a.q: expected str, got 1"),
        ({"b": 1}, {"a?": int}, "there is no such field as 'b'"),
        ({}, {"a": int}, "the field a is missing"),
        ([], {"a": int}, "expected a dictionary, got []"),
        ({"a": ["x" * 20_001]}, {"a": [str]}, "a[0]: it has 20,001 letters, and at most 20,000 are read"),
    ],
)
def test_a_value_of_another_form_is_named_with_its_field(value, form, words):
    with pytest.raises(CannotRead) as error:
        foreign.matches(value, form, file="run.json")
    assert str(error.value) == f"run.json: {words}"


@pytest.mark.parametrize("wrong", [True, "1", [1.0], None])
def test_one_wrong_value_among_many_numbers_is_named_with_its_place(wrong):
    rows = [[0.5] * 50 for _ in range(3)]
    rows[2][40] = wrong
    with pytest.raises(CannotRead, match=r"^f: with\[2\]\[40\]: expected float, got "):
        foreign.matches({"with": rows}, {"with": [[float]]}, file="f")


def test_a_value_of_the_form_passes():
    form = {"a": int, "b?": [(None, float)], "c": {"*": {"d": str}}}
    foreign.matches({"a": 1, "c": {"any": {"d": "x"}}}, form)
    foreign.matches({"a": 1, "b": [None, 2, 2.5], "c": {}}, form)


@pytest.mark.parametrize("number", [0, 11, True, 2.0, "3", None, 10**30])
def test_a_count_out_of_bounds_is_refused(number):
    with pytest.raises(CannotRead, match="layers: expected a whole number from 1 to 10, got"):
        foreign.bounded_count(number, "layers", limit=10)
    assert foreign.bounded_count(10, "layers", limit=10) == 10


@pytest.mark.parametrize("sizes", [[-1], [True], [2.0], ["2"], [1] * 17, [1 << 24, (1 << 24) + 1], (2,), None])
def test_what_is_no_shape_of_a_tensor_is_refused(sizes):
    with pytest.raises(CannotRead, match=r"^f: w: expected a shape of at most 16 axes and 281,474,976,710,656 numbers"):
        foreign.shape(sizes, "w", file="f")
    assert foreign.shape([1 << 24, 1 << 24, 0], "w") == (1 << 24, 1 << 24, 0)


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "large.gz").write_bytes(gzip.compress(b"x" * 11))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 10)[:-1])
    (tmp_path / "plain.gz").write_bytes(b"x" * 10)
    (tmp_path / "whole.gz").write_bytes(gzip.compress(b"x" * 10))
    assert foreign.read(tmp_path / "whole.gz", limit=10) == b"x" * 10
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, words in (
        (tmp_path, "expected a file, got a folder"),
        (tmp_path / "pipe", "expected a file, got a device or a pipe"),
        ("/dev/zero", "expected a file, got a device or a pipe"),
        (tmp_path / "missing", "there is no such file"),
        (tmp_path / "loop", "it cannot be opened"),
        (tmp_path / ("a" * 300), "it cannot be opened"),
        ("nul\0", "it cannot be opened"),
        (tmp_path / "large", "larger than 10 bytes"),
        (tmp_path / "large.gz", "larger than 10 bytes"),
        (tmp_path / "cut.gz", "it is no whole gzip file"),
        (tmp_path / "plain.gz", "it is no whole gzip file"),
    ):
        with pytest.raises(CannotRead) as error:
            foreign.read(path, limit=10)
        assert words in str(error.value)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs special rights for links")
def test_a_link_out_of_its_folder_is_not_followed(tmp_path):
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("{}")
    (folder / "out.json").symlink_to(secret)
    (folder / "real.json").write_text('{"a": 1}')
    (folder / "in.json").symlink_to("real.json")
    assert foreign.read_json(folder / "in.json", folder=folder) == {"a": 1}
    assert foreign.read_json(folder / "out.json") == {}, "a file that a person names may be a link"
    with pytest.raises(CannotRead, match="outside its folder"):
        foreign.read_json(folder / "out.json", folder=folder)
    with pytest.raises(CannotRead, match="outside its folder"):
        foreign.regular_files(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs special rights for links")
def test_the_links_of_a_hubs_cache_are_followed_to_its_own_files_only(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "main", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0a").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/0a")
    (snapshot / "other.json").symlink_to("/etc/hostname")
    assert foreign.read_json(snapshot / "config.json", folder=snapshot) == {}
    with pytest.raises(CannotRead, match="outside its folder"):
        foreign.read_json(snapshot / "other.json", folder=snapshot)
    (tmp_path / "models--a--b").rename(tmp_path / "mine")
    with pytest.raises(CannotRead, match="outside its folder"):
        foreign.read_json(tmp_path / "mine/snapshots/main/config.json", folder=tmp_path / "mine/snapshots/main")


def test_what_fails_while_a_file_is_open_is_said_of_that_file(tmp_path):
    (tmp_path / "a").touch()
    for error, words in ((OSError(5, "Input/output error"), "Input/output error"), (OSError("no disk"), "no disk")):
        with pytest.raises(CannotRead) as caught_error, foreign.open_regular(tmp_path / "a"):
            raise error
        assert str(caught_error.value) == f"{tmp_path / 'a'}: it cannot be opened ({words})"


def test_the_file_that_an_error_names_stays_and_is_filled_in_where_none_is_named():
    for file, expected in (("inner", "inner"), (None, "outer")):
        with pytest.raises(CannotRead) as error, foreign.naming("outer"):
            raise CannotRead("it is wrong", file=file, field="key", remedy="mend it")
        assert str(error.value) == f"{expected}: key: it is wrong; mend it"


def test_lines_are_read_one_at_a_time_and_bounded(tmp_path):
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n" + "x" * 50)
    text_lines = foreign.lines(file, limit=20)
    assert [next(text_lines), next(text_lines)] == ["one\n", "two\n"]
    with pytest.raises(CannotRead, match="a line of more than 20 bytes"):
        next(text_lines)


def test_a_message_quotes_little_and_obeys_nothing():
    for value in ("a\x1b" * 5_000, [0] * 10_000, 10**5_000, {n: "x" * 90 for n in range(150)}, "\ud800" * 10):
        words = foreign.quote(value)
        assert len(words) <= 230 and words.isprintable()
    error = CannotRead("wrong\x1b]0;title\x07", file="f\n\x1b" * 200, field="k\u202e", remedy="do this")
    assert "\x1b" not in str(error) and "\u202e" not in str(error) and len(str(error)) < 300
    assert (error.field, error.remedy) == ("k\u202e", "do this")
    assert len(str(CannotRead("x" * 100_000, remedy="do this"))) < 900


def test_what_a_library_refuses_is_quoted_whole_on_one_line_up_to_500_letters():
    with pytest.raises(CannotRead) as error, foreign.reading_with("library", file="f"):
        raise ValueError("no\n" + "x" * 480)
    assert str(error.value) == f"f: library cannot read it (ValueError: no {'x' * 480})"
    with pytest.raises(CannotRead) as error, foreign.reading_with("library"):
        raise ValueError("x" * 10_000)
    assert len(str(error.value)) < 560 and "xxx...)" in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("](http://x)<b>|a_b*`\n# c", r"\](http://x)\<b\>\|a\_b\*\` # c"),
        ("# a title", r"\# a title"),
        ("- a line", r"\- a line"),
        ("1. first", r"1\. first"),
        ("3.5 (of 4), and -1", "3.5 (of 4), and -1"),
        ("a\x1b[0mb", "a\N{REPLACEMENT CHARACTER}\\[0mb"),
    ],
)
def test_markdown_shows_what_it_is_given(text, expected):
    assert escape_markdown(text) == expected


def test_markdown_shows_code_whatever_is_in_it():
    assert markdown_code("rotary(base=2)") == "`rotary(base=2)`"
    assert markdown_code("a`<b>``\n# c") == "``` a`<b>`` # c ```"


def test_a_long_number_behind_a_long_word_is_found():
    with pytest.raises(CannotRead, match="a number of 400 digits"):
        foreign.expression("a" * 50 + "(x=%s)" % ("9" * 400))


ALLOWED_LINES = {
    "huggingface.py": ["json.loads(text)", "json.loads(json.dumps("],
    "load.py": ["json.loads(self.config.to_json_string())"],
    "clock.py": ["status.read_text("],
    "runs.py": ["json.loads(json.dumps(", "open(file,"],
}
"""The trusted reads in the checkpoints package: its own files, or a package whose hash was checked."""


def test_files_of_a_checkpoint_come_in_through_the_boundary_alone():
    for file in sorted((Path(posenc.__file__).parent / "checkpoints").rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := re.search(r"json\.loads?\(|\.read_text\(|\.read_bytes\(|(?<![\w.])open\(", line):
                is_allowed = any(part in line for part in ALLOWED_LINES.get(file.name, []))
                assert is_allowed or "def open(" in line, f"{file.name} must not use {match.group()}: {line.strip()}"


def test_a_list_may_be_bounded() -> None:
    foreign.matches({"a": [1, 2]}, {"a": [int, 2]})
    with pytest.raises(CannotRead, match=r"^f: a: expected at most 2 entries, got 3$"):
        foreign.matches({"a": [1, 2, 3]}, {"a": [int, 2]}, file="f")
