"""The texts are true: their code runs, their commands parse, their links lead somewhere, and the map is true."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from code_in_texts import BLOCK, HOME, blocks, name, prose, run
from tiers import daily_third

from posenc import cli, testing
from posenc.lab.evaluation import evaluate
from posenc.lab.experiments import experiment, recipes
from posenc.lab.runs import train
from posenc.lab.texts import data

FIRST = [
    HOME / name
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")
]
GENERATED_FOLDERS = [HOME / "docs" / folder for folder in ("_build", "encodings", "lessons", "reference")]
"""Folders of docs that the site's build fills: what is in them stands in the code."""
NO_PAGES = [*GENERATED_FOLDERS, HOME / "docs" / "changes" / "fragments"]
TEXTS = [*FIRST, *sorted(path for path in (HOME / "docs").rglob("*.md") if not {*path.parents} & {*NO_PAGES})]
COMING_FROM = HOME / "docs" / "coming-from"
"""Pages that need another library, but for the tutorials': tests/peers/test_coming_from.py runs them."""


RUN = [path for path in TEXTS if blocks(path, python=True) and (path.parent != COMING_FROM or path.stem == "tutorials")]


@pytest.mark.parametrize("path", [*FIRST[:1], *daily_third(path for path in RUN if path != FIRST[0])], ids=name)
def test_the_code_of_a_text_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(path)


@pytest.mark.slow
@pytest.mark.parametrize("class_name", ["Ramp", "Fading", "Harmonic"])
def test_the_encodings_that_contributing_shows_keep_every_promise(class_name: str, tmp_path: Path) -> None:
    classes = blocks(HOME / "CONTRIBUTING.md", python=True)[:3]
    (tmp_path / "shown.py").write_text("\n\n".join(classes))
    verdicts = testing.check(f"{tmp_path / 'shown.py'}:{class_name}")
    assert [verdict.message for verdict in verdicts if not verdict.good] == []


def commands() -> list[str]:
    """Every `posenc ...` that a text or an example tells people to type."""
    lines = [line for path in TEXTS for block in blocks(path, python=False) for line in block.splitlines()]
    lines += [
        line
        for path in sorted((HOME / "examples").glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return sorted({line.strip() for line in lines if line.strip().startswith("posenc ")})


def test_there_are_commands_to_look_at() -> None:
    assert len(commands()) > 5


@pytest.mark.parametrize("command", commands())
def test_a_command_in_a_text_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in cli.VERBS.values():
        monkeypatch.setattr(verb, "run", lambda self: 0)
    # Files of settings that a command names are read.
    monkeypatch.chdir(HOME)
    assert cli.main(shlex.split(command, comments=True)[1:]) == 0


RESOLVE = """
import ast, json, sys
import posenc
for text in json.loads(sys.argv[1]):
    # What an earlier text has imported is no help to this one.
    [delattr(posenc, name) for name in set(vars(posenc)) & set(posenc.modules())]
    call = ast.parse(text.replace(", ...", ""), mode="eval").body
    try:
        eval(ast.unparse(call.func) if isinstance(call, ast.Call) and (call.args or call.keywords) else text)
    except Exception as error:
        print(f"{text}: {error}")
"""


def test_the_inline_code_of_the_readme_and_the_guides_is_there_after_a_bare_import() -> None:
    texts = [HOME / "README.md", *(HOME / "docs" / "guides").glob("*.md"), *(HOME / "docs" / "start").glob("*.md")]
    names = sorted({code for path in texts for code in re.findall(r"`(posenc\.[a-z_][^`]*\))`", prose(path))})
    assert {"posenc.kernels.status()", "posenc.checkpoints.attach(model)"} <= set(names)
    ran = subprocess.run([sys.executable, "-c", RESOLVE, json.dumps(names)], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_the_inline_commands_of_the_readme_are_verbs() -> None:
    commands = re.findall(r"`(?:posenc|python3 run\.py) ([a-z]+)[^`]*`", prose(HOME / "README.md"))
    assert {"compare", "lesson", "docs"} <= set(commands) <= {*cli.VERBS, "docs", "demo", "test", "help"}


def test_the_map_of_the_house_names_every_room_and_stays_a_map() -> None:
    text = (HOME / "ARCHITECTURE.md").read_text(encoding="utf-8")
    home = HOME / "src" / "posenc"
    folders = {
        path.parent for pattern in ("*", "lab/*", "checkpoints/*") for path in home.glob(f"{pattern}/__init__.py")
    }
    rooms = {folder.relative_to(home).as_posix() for folder in folders} - {"lab", "checkpoints"}
    table = text[text.index("## Rooms") : text.index("Beside `src`")]
    assert rooms <= set(re.findall(r"`([a-z_/]+)/`", table))
    assert not [path for path in re.findall(r"`([a-z_/]+(?:/|\.py))`", table) if not (home / path).exists()]
    assert len(text.splitlines()) <= 200


LONGEST_GUIDE = 900
"""Words, without code and tables."""
REFERENCE_TABLES = "known-defects.md"


def words(text: str) -> int:
    lines = BLOCK.sub("", re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)).splitlines()
    return sum(len(line.split()) for line in lines if not line.startswith("|"))


@pytest.mark.parametrize("path", sorted((HOME / "docs" / "guides").glob("*.md")), ids=name)
def test_a_guide_is_short(path: Path) -> None:
    assert path.name == REFERENCE_TABLES or words(path.read_text(encoding="utf-8")) <= LONGEST_GUIDE


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose(path))]
    local_targets = [path.parent / target for target in targets if target and "://" not in target]
    # Links to pages that the site's build makes are followed by it.
    assert [
        target for target in local_targets if not target.exists() and target.resolve().parent not in GENERATED_FOLDERS
    ] == []


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_no_text_speaks_of_one_machine_or_of_an_issue(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert (
        re.findall(r"(?<![\w.~-])/(?:home|work|tmp|root|Users|usr|opt|mnt|var|private)/\S*|\b[A-Z]:\\\S*", text) == []
    )
    assert re.findall(r"(?i)(?<![\w&])#\d+\b|\b(?:issue|issues|pull request|PR) ?#?\d+\b", text) == []


TEXT_OF_THE_README = "fa4e38a90a039ab62860246c7a132886e455c52147cd57e49708ace377e08dc0"
"""The standard library that README's numbers of text were made with."""


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["alibi", "rotary"])
def test_the_numbers_of_text_in_the_readme_come_out_again(spec: str) -> None:
    if data.load_text(None).sha256 != TEXT_OF_THE_README:
        pytest.skip("this Python has another standard library, so another text")
    row = re.search(rf"^\| `{spec}` \|[^|]*\|(.*)\|$", (HOME / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    matches = evaluate.by_length(train.train(train.start(recipes.recipe("text", spec))))
    numbers = [matches[0]["bits_per_byte"], *(point["perplexity_ratio"] for point in matches[1:])]
    assert [cell.strip() for cell in row[1].split("|")] == [f"{number:.2f}" for number in numbers]


def test_what_security_promises_names_tests_that_exist_and_bounds_that_hold() -> None:
    from posenc.checkpoints.files import tensors
    from posenc.checkpoints.vocabulary import reading
    from posenc.foreign import files, gguf, values
    from posenc.lab import safetensors_file

    text = (HOME / "SECURITY.md").read_text(encoding="utf-8")
    test_names = set(re.findall(r"(?:tests/)?(?:checkpoints/|fuzz/)?test_\w+\.py", text))
    tests = {file.name for file in (HOME / "tests").rglob("test_*.py")}
    assert len(test_names) > 8 and {Path(name_of_test).name for name_of_test in test_names} <= tests
    limit = experiment.LARGEST_SIZES
    bounds = [
        f"{files.MOST_BYTES >> 20} MiB, {values.MOST_ITEMS:,} items, {values.DEPTH} levels, "
        f"whole numbers of {values.DIGITS} digits",
        f"{safetensors_file.LONGEST_HEADER >> 20} MiB; {tensors.LONGEST_INDEX >> 20} MiB",
        f"{gguf.LONGEST_HEADER >> 20} MiB, {gguf.MOST_ITEMS:,} items in arrays, "
        f"texts of {gguf.LONGEST_TEXT >> 20} MiB, names of {gguf.LONGEST_NAME:,} bytes",
        f"{reading.MOST_LAYERS:,}; {reading.WIDEST_HEAD:,}",
        f"{values.LETTERS:,} letters, {values.DEPTH} levels, whole numbers of {values.DIGITS} digits",
        f"{limit['layers']:,} layers, width {limit['dim']:,}, lengths of {limit['train_length']:,}, "
        f"batches of {limit['batch']:,}",
    ]
    assert not [bound for bound in bounds if f"| {bound} |" not in text]
