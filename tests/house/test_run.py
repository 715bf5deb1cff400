"""run.py's decisions, without making an environment."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from posenc.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "run.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("posenc_run", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that an environment is made from."""
    for name in run.MADE_FROM:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "posenc"\n')
    (tmp_path / "constraints.txt").write_text("# tested with\ntorch==2.13.0\nnumpy<3\n")
    return tmp_path


# What the caller wants


def test_without_a_verb_the_verbs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([]) == 2
    output = capsys.readouterr().out
    assert all(f"run.py {verb}" in output for verb in ("demo", "test", "check", "sanitize", "mutate", "VERB"))


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_asking_for_help_is_no_mistake(word: str) -> None:
    assert run.main([word]) == 0


def test_every_variable_that_is_read_is_explained() -> None:
    read = set(re.findall(r'environ\.get\("(POSENC_\w+)"', SOURCE.read_text(encoding="utf-8")))
    assert read == set(re.findall(r"^    (POSENC_\w+)", run.__doc__, re.MULTILINE))


def test_unset_and_empty_variables_mean_the_defaults(project: Path) -> None:
    for verb, extras in {"demo": "lab", "list": "lab", "inspect": "hf,lab", "test": run.EXTRAS_FOR["test"]}.items():
        for environ in ({}, {"POSENC_VENV": "", "POSENC_TORCH": "", "POSENC_NO_UV": "0", "POSENC_EXTRAS": ""}):
            expected = (project / ".venv", "torch==2.13.0", extras, True)
            assert run.read_choices(environ, verb, project) == expected


def test_variables_change_the_choices(project: Path) -> None:
    environ = {
        "POSENC_VENV": str(project / "other"),
        "POSENC_TORCH": "torch==2.15.0",
        "POSENC_EXTRAS": "lab, hf",
        "POSENC_NO_UV": "1",
    }
    assert run.read_choices(environ, "test", project) == (project / "other", "torch==2.15.0", "lab,hf", False)


def test_a_torch_that_is_no_requirement_is_refused(project: Path) -> None:
    with pytest.raises(SystemExit, match=r"POSENC_TORCH must be a requirement .* got '2\.15\.0'"):
        run.read_choices({"POSENC_TORCH": "2.15.0"}, "test", project)


@pytest.mark.parametrize(
    "torch", ["torch;rm", "torch;rm -rf x", "torch==2 ; python_version<'4'", "torchvision", "torch 2", "torch=="]
)
def test_a_torch_that_says_more_than_a_version_is_refused(torch: str, project: Path) -> None:
    with pytest.raises(SystemExit, match=r"POSENC_TORCH must be a requirement such as torch==2\.13\.0"):
        run.read_choices({"POSENC_TORCH": torch}, "test", project)


@pytest.mark.parametrize(
    "torch", ["torch", "torch==2.13.0+cpu", "torch >= 2.4, <3", "torch @ https://index.example/t.whl"]
)
def test_a_torch_that_is_a_requirement_is_taken(torch: str, project: Path) -> None:
    assert run.read_choices({"POSENC_TORCH": torch}, "test", project).torch == torch


def test_constraints_without_torch_are_refused(project: Path) -> None:
    (project / "constraints.txt").write_text("numpy<3\n")
    with pytest.raises(SystemExit, match=r"constraints\.txt names no torch"):
        run.read_choices({}, "test", project)


def test_an_extra_that_the_verb_needs_is_asked_for() -> None:
    with pytest.raises(SystemExit, match=r"`run\.py test` needs the extra 'test', but POSENC_EXTRAS is 'lab,dev'"):
        run.require_extra("test", "lab,dev")
    with pytest.raises(SystemExit, match=r"`run\.py mutate` needs the extra 'test', but POSENC_EXTRAS is 'dev'"):
        run.require_extra("mutate", "dev")
    for verb in ("demo", "train", *run.EXTRAS_FOR):
        run.require_extra(verb, run.EXTRAS_FOR.get(verb, "lab"))
        run.require_extra(verb, "all")


def test_the_extras_of_a_verb_are_those_of_the_project() -> None:
    declared_extras = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {extra for extras in run.EXTRAS_FOR.values() for extra in extras.split(",")}
    assert names <= set(declared_extras["project"]["optional-dependencies"])
    assert set(run.EXTRAS_FOR) <= {*run.SCRIPTS, *VERBS, "test", "check", "sanitize", "docs"}


def test_an_environment_that_has_more_than_a_verb_needs_serves_it_and_one_that_has_less_gets_the_rest(
    environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs = []
    monkeypatch.setattr(run, "succeeds", lambda command, quiet: True)

    def install(choices) -> None:
        installs.append(choices.extras)
        run.write_stamp(choices.folder, run.finished_stamp(choices))

    monkeypatch.setattr(run, "install", install)
    for verb in ("demo", "check", "demo", "test", "export", "demo", "test", "list"):
        run.set_up(environment._replace(extras=run.EXTRAS_FOR.get(verb, "lab")))
    assert installs == ["dev,docs,hf,lab,onnx,peers,test"]
    run.write_stamp(environment.folder, run.finished_stamp(environment._replace(extras="lab")))
    for verb in ("demo", "inspect", "demo", "list"):
        run.set_up(environment._replace(extras=run.EXTRAS_FOR.get(verb, "lab")))
    assert installs[1:] == ["hf,lab"]


def test_an_old_python_is_told_what_it_takes() -> None:
    assert run.python_complaint((3, 9)).startswith("posenc needs Python 3.10 or newer, this is 3.9")
    assert run.python_complaint((3, 10)) == ""
    assert run.python_complaint((4, 0)) == ""


def test_an_old_python_can_read_far_enough_to_be_told() -> None:
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 7))


def test_the_oldest_python_is_the_one_that_the_project_names() -> None:
    oldest = ".".join(map(str, run.OLDEST_PYTHON))
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# The jobs


def test_the_demo_is_the_comparison() -> None:
    assert run.posenc_arguments("demo", ["--seeds", "3"]) == ["compare", "--seeds", "3"]


def test_any_other_verb_goes_through_untouched() -> None:
    assert run.posenc_arguments("train", ["--all", "-n", "2"]) == ["train", "--all", "-n", "2"]


def test_the_tree_shows_what_each_file_says_that_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it does about pipes is for a process that ends: here a later test would die of one that closes.
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    assert run.main(["tree", "src/posenc/cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "src/posenc/cache/" and len(lines) == 1 + len(list((ROOT / "src/posenc/cache").glob("*.py")))
    words = ast.get_docstring(ast.parse((ROOT / "src/posenc/cache/layer.py").read_text(encoding="utf-8"))) or ""
    assert [line.split(maxsplit=1)[1] for line in lines if "layer.py" in line] == [words.splitlines()[0]]


@pytest.mark.parametrize("rest", [["src/no_such"], ["src", "tests"]])
def test_the_tree_of_what_is_no_folder_is_refused(rest: list[str]) -> None:
    with pytest.raises(SystemExit, match="takes one folder of the project"):
        run.main(["tree", *rest])


def test_tests_get_workers_and_the_rest_passes_through() -> None:
    arguments = ["tests/house/test_run.py", "-x"]
    assert run.pytest_arguments(arguments, 2) == ["pytest", "-n", "2", "--dist", "worksteal", *arguments]


def test_all_lifts_the_selection_unless_one_is_given() -> None:
    assert run.pytest_arguments(["--all"], 2) == ["pytest", "-n", "2", "--dist", "worksteal", "-m", ""]
    assert run.pytest_arguments(["--all", "-m", "slow"], 2)[-2:] == ["-m", "slow"]


@pytest.mark.parametrize("arguments", [["-n", "3"], ["-n3"], ["-n=3"], ["--numprocesses", "3"], ["--numprocesses=3"]])
def test_a_number_of_workers_that_was_asked_for_stays(arguments: list[str]) -> None:
    assert run.names_workers(arguments)
    assert run.pytest_arguments(arguments, None) == ["pytest", *arguments]


def test_other_options_name_no_workers() -> None:
    assert not run.names_workers(["--no-header", "-k", "run", "tests"])


@pytest.mark.parametrize(
    ("variables_in", "expected"),
    [({"PYTHONDONTWRITEBYTECODE": "1"}, "bytecode"), ({}, None), ({"PYTHONPYCACHEPREFIX": "mine"}, "mine")],
)
def test_what_tests_compile_is_kept_and_never_beside_sources_where_that_is_not_wanted(
    variables_in: dict[str, str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables_in.items():
        monkeypatch.setenv(name, value)
    variables: list[dict[str, str]] = []
    monkeypatch.setattr(run, "run_to_the_end", lambda command, folder, environment: variables.append(environment))
    run.run_tests([], tmp_path / "bin" / "python")
    assert "PYTHONDONTWRITEBYTECODE" not in variables[0]
    assert variables[0].get("PYTHONPYCACHEPREFIX") == (
        str(tmp_path / "bytecode") if expected == "bytecode" else expected
    )


def test_every_check_runs_and_the_failed_ones_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def fake(command: list[str], folder: Path) -> int:
        ran.append(command)
        return int("ruff" in command)

    monkeypatch.setattr(run, "run_to_the_end", fake)
    assert run.check([], Path("python")) == 1
    assert len(ran) == 5
    assert "failed: ruff check, ruff format --check" in capsys.readouterr().err


def test_the_site_is_built_with_warnings_as_faults_and_its_place_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [0, 2, 0]
    ran: list[list[str]] = []
    monkeypatch.setattr(run, "run_to_the_end", lambda command, **_: ran.append(command) or codes.pop(0))
    assert run.docs([], Path("python")) == 0 and {"-W", "--keep-going"} < set(ran[0])
    assert str(Path("docs", "_build", "html", "index.html")) in capsys.readouterr().err
    assert run.docs([], Path("python")) == 2 and "the site has faults" in capsys.readouterr().err
    run.docs(["-D", "nb_execution_mode=off"], Path("python"))
    assert ran[-1][-4:-2] == ["-D", "nb_execution_mode=off"]


# The environment


def test_the_stamp_changes_with_everything_the_environment_is_made_from(project: Path) -> None:
    choices = run.read_choices({}, "test", project)
    stamps = [run.stamp_text(choices, project)]
    for name in run.MADE_FROM:
        with open(project / name, "a") as file:
            file.write("# changed\n")
        stamps.append(run.stamp_text(choices, project))
    for change in ({"torch": "torch==2.15.0"}, {"folder": project / "moved"}):
        stamps.append(run.stamp_text(choices._replace(**change), project))
    assert len(set(stamps)) == len(stamps) == 7


def test_the_stamp_stays_when_nothing_changed(project: Path) -> None:
    choices = run.read_choices({}, "test", project)
    again = run.read_choices({"POSENC_NO_UV": "1"}, "test", project)
    assert run.stamp_text(choices, project) == run.stamp_text(again, project)


@pytest.fixture
def environment(project: Path) -> run.Choices:
    """An environment that was set up, made of empty files."""
    choices = run.read_choices({}, "test", project)
    packages = choices.folder / ("Lib" if run.os.name == "nt" else "lib/python3.11") / "site-packages"
    for path in (choices.python, choices.folder / "pyvenv.cfg", packages / "rich" / "a.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (packages / "rich-14.0.dist-info").mkdir()
    # A Python that runs, as far as the checks here go.
    run.write_stamp(choices.folder, run.finished_stamp(choices))
    return choices


@pytest.mark.parametrize("lost_path", ["pyvenv.cfg", "rich", "rich-14.0.dist-info", "python"])
def test_an_environment_that_lost_something_is_made_anew(
    lost_path: str, environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "succeeds", lambda command, quiet: True)
    assert run.is_ready(environment) and run.is_worth_keeping(environment)
    (path,) = [path for path in environment.folder.rglob("*") if path.name == lost_path]
    path.rename(environment.folder / "elsewhere")
    assert not run.is_ready(environment) and not run.is_worth_keeping(environment)
    name = re.sub("-14.0", "", lost_path)
    assert f"is damaged: {name} is gone" in capsys.readouterr().err


def test_packages_that_were_added_or_updated_by_hand_are_no_damage(environment) -> None:
    (info,) = environment.folder.rglob("rich-14.0.dist-info")
    info.rename(info.with_name("rich-15.0.dist-info"))
    (info.parent / "more").mkdir()
    assert run.is_ready(environment)


def test_an_environment_of_an_older_stamp_is_brought_up_to_date(environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "succeeds", lambda command, quiet: True)
    run.write_stamp(environment.folder, run.stamp_text(environment))
    assert not run.is_ready(environment) and run.is_worth_keeping(environment)


def test_an_environment_where_no_folder_can_be_made_is_one_sentence(project: Path) -> None:
    (project / "file").touch()
    choices = run.read_choices({"POSENC_VENV": str(project / "file" / "x" / "y")}, "test", project)
    with pytest.raises(SystemExit, match=r"nothing can be written into .*x \(.*\); name another place in POSENC_VENV$"):
        run.set_up(choices)


@pytest.mark.skipif(run.os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_request_to_end_is_handed_on(name: str) -> None:
    number = getattr(run.signal, name)
    # The command asks its parent to end, and ends when the request comes back.
    script = f"import os, signal; os.kill(os.getppid(), {int(number)}); signal.pause()"
    handler = run.signal.getsignal(number)
    assert run.run_to_the_end([run.sys.executable, "-c", script]) == 128 + number
    assert run.signal.getsignal(number) is handler


def test_an_unfinished_or_moved_environment_is_not_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "succeeds", lambda command, quiet: True)  # its interpreter runs
    choices = run.read_choices({}, "test", project)
    choices.folder.mkdir()
    new_place = choices._replace(folder=project / "before")
    older = choices._replace(torch="torch==2.12.0")
    for stamp, is_kept in ((run.UNFINISHED, False), (run.stamp_text(new_place), False), (run.stamp_text(older), True)):
        run.write_stamp(choices.folder, stamp)
        assert not run.is_ready(choices)
        assert run.is_worth_keeping(choices) == is_kept


def test_an_environment_whose_interpreter_is_gone_is_not_kept(project: Path) -> None:
    choices = run.read_choices({}, "test", project)
    choices.folder.mkdir()
    run.write_stamp(choices.folder, run.stamp_text(choices))
    assert not run.is_ready(choices)
    assert not run.is_worth_keeping(choices)


def test_only_an_environment_is_erased(tmp_path: Path) -> None:
    somebodys = tmp_path / "thesis"
    somebodys.mkdir()
    (somebodys / "chapter1.tex").write_text("...")
    with pytest.raises(SystemExit, match="is no virtual environment"):
        run.erase(somebodys)
    assert (somebodys / "chapter1.tex").exists()

    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text("")
    run.erase(folder)
    assert not folder.exists()


def test_another_torch_takes_the_place_of_the_pinned_one(project: Path) -> None:
    lines = run.constraint_lines(project)
    assert run.constraints_with("torch==2.15.0", lines) == ["torch==2.15.0", "numpy<3"]


def test_uv_looks_where_pip_was_told_to_look() -> None:
    pip = {"PIP_FIND_LINKS": "wheels more-wheels", "PIP_INDEX_URL": "https://index.example/simple"}
    variables = run.uv_environment(pip)
    assert variables["UV_FIND_LINKS"] == "wheels,more-wheels"
    assert variables["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert run.uv_environment({**pip, "UV_FIND_LINKS": "own"})["UV_FIND_LINKS"] == "own"
    assert run.uv_environment({}) == {}


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with run.locked(path), open(path, "w") as second:
        assert not run.try_lock(second.fileno())
    with open(path, "w") as third:
        assert run.try_lock(third.fileno())


def test_a_command_that_cannot_start_has_not_succeeded(tmp_path: Path) -> None:
    assert not run.succeeds([str(tmp_path / "no-such-python")])
