"""User code runs only if a person names its file; reading other files never starts it."""

import hashlib
import importlib
import json
import shlex
import sys
from pathlib import Path

import pytest
import torch

from posenc import Decoder, Encoding, Shape, build, catalogue, cli
from posenc.catalogue import parse
from posenc.checkpoints.inspection.inspect import inspect
from posenc.foreign import CannotRead, code
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint as checkpoints
from posenc.lab.runs import record, single_run, train
from posenc.lab.runs import settings as settings_of_lab
from posenc.lab.sweeps import compare
from posenc.lab.sweeps.workers import make_record
from posenc.specs.syntax import code_files, split

SHAPE = Shape.of(dim=16, heads=2, max_len=8)

USER_MODULE = '''
from pathlib import Path

from posenc import Encoding

Path({ran!r}).touch()


class Mine(Encoding):
    """Adds a number to every channel."""

    def __init__(self, step: float = 1.0) -> None:
        super().__init__()
        self.step = step

    def embed(self, x, at):
        return x + self.step
'''


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write mine.py, and return the path of the file that it creates when run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(USER_MODULE.format(ran=str(tmp_path / "ran")))
    return tmp_path / "ran"


def small(spec: str) -> Experiment:
    return recipe("copy", spec, steps=1, dim=16, heads=2, layers=1, train_length=2, batch=2, evaluate_every=1)


def checkpoint(folder: Path, ran: Path, spec: str = "mine.py:Mine") -> None:
    checkpoints.save(train.train(train.start(small(spec))), folder)
    ran.unlink()
    # This simulates a new process, in which the file would be run again.
    for name in [name for name in sys.modules if name.startswith(code.MODULES)]:
        del sys.modules[name]


def facts_of(folder: Path) -> Path:
    """Return the path of the run.json of a checkpoint's last step."""
    return folder / store.generations(folder)[-1] / "run.json"


def plant(value: object, path: str) -> object:
    """Replace each string within the value by a spec of a user file."""
    if isinstance(value, dict):
        return {name: plant(item, path) for name, item in value.items()}
    if isinstance(value, list):
        return [plant(item, path) for item in value]
    return path if isinstance(value, str) else value


def with_one_string_planted(value: object, path: str) -> list:
    """Return every copy of the value with one string replaced by the spec."""
    if isinstance(value, str):
        return [path]
    if isinstance(value, dict):
        return [{**value, n: new} for n, item in value.items() for new in with_one_string_planted(item, path)]
    if isinstance(value, list):
        cases = [(place, new) for place, item in enumerate(value) for new in with_one_string_planted(item, path)]
        return [[*value[:place], new, *value[place + 1 :]] for place, new in cases]
    return []


# Files that were read run no code


def test_a_run_that_names_code_runs_none_and_says_what_to_type(ran: Path, tmp_path: Path) -> None:
    checkpoint(tmp_path / "run", ran)
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()
    with pytest.raises(CannotRead) as error:
        single_run.continue_prompt(Path("run"), "a|", 1, 0.0, None, 0)
    sentence, _, command = str(error.value).rpartition(": posenc ")
    assert sentence == (
        f"{facts_of(Path('run'))}: it asks for code from the file 'mine.py' (SHA-256 {digest[:16]} in the run, "
        f"SHA-256 {digest[:16]} here), and none is run that you have not named yourself; read the file, and if you "
        f"trust it"
    )
    assert not ran.exists()
    assert cli.main([*shlex.split(command), "--prompt", "a|", "--max-new-tokens", "1"]) == 0 and ran.exists()


@pytest.mark.parametrize("command", [["generate", "run"], ["train", "rotary", "--task", "copy", "--out", "run"]])
def test_no_verb_runs_the_code_that_a_folder_brings(command, ran: Path, tmp_path: Path, capsys) -> None:
    checkpoints.save(train.start(small("rotary")), tmp_path / "run")
    facts = store.read_checked_json(facts_of(tmp_path / "run"))
    facts["experiment"]["spec"] = "rotary + run/evil.py:Mine"
    facts_of(tmp_path / "run").write_bytes(store.dump_json(facts))
    (tmp_path / "mine.py").rename(tmp_path / "run" / "evil.py")
    assert cli.main(command) == 2
    assert "it asks for code from the file 'run/evil.py'" in capsys.readouterr().err and not ran.exists()


def test_the_person_who_names_the_file_gets_the_run(ran: Path, tmp_path: Path, capsys) -> None:
    checkpoint(tmp_path / "run", ran)
    for trusted_name in ("mine.py", "./mine.py", str(tmp_path / "mine.py"), "mine.py:Mine"):
        assert cli.main(["generate", "run", "--prompt", "a|", "--max-new-tokens", "1", "--trust", trusted_name]) == 0
        answer = capsys.readouterr()
        assert answer.out.startswith("a|") and answer.err == ""


def test_a_trusted_file_is_the_same_file_under_any_name_and_no_other_under_its_name(
    ran: Path, tmp_path: Path, capsys
) -> None:
    checkpoint(tmp_path / "run", ran)
    user_file = tmp_path / "mine.py"
    (tmp_path / "link.py").symlink_to("mine.py")
    (tmp_path / "copy.py").write_text(user_file.read_text())
    (tmp_path / "evil.py").write_text(user_file.read_text() + "# another\n")
    (tmp_path / "sub").mkdir()

    def answer(*files: str) -> tuple[int, str]:
        status = cli.main(["generate", "run", "--prompt", "a|", "--max-new-tokens", "1", "--trust", *files])
        return status, capsys.readouterr().err

    for is_same in ("link.py", "sub/../mine.py", "copy.py link.py"):
        assert answer(*is_same.split()) == (0, "")
    status, message = answer("copy.py")
    assert status == 2 and "none is run that you have not named yourself" in message
    status, message = answer("mine.py", "nowhere.py")
    assert status == 2 and message == "posenc: nowhere.py: there is no such file\n"
    # The name now resolves to another file: trust in the name gives a notice, trust in the old file is not enough.
    user_file.rename(tmp_path / "original.py")
    user_file.symlink_to("evil.py")
    for trusted_name in ("mine.py", "evil.py"):
        status, message = answer(trusted_name)
        assert status == 0 and message.startswith("mine.py is not what it was for this run (SHA-256 ")
    status, message = answer("original.py")
    assert status == 2 and "it asks for code from the file 'mine.py'" in message
    user_file.unlink()
    user_file.symlink_to("mine.py")
    status, message = answer("mine.py")
    assert status == 2 and message.startswith("posenc: mine.py: it cannot be opened (") and message.count("\n") == 1


def test_what_a_trusted_file_imports_comes_from_where_python_looks_and_never_from_the_run(
    ran: Path, tmp_path: Path, capsys
) -> None:
    checkpoint(tmp_path / "run", ran)
    (tmp_path / "mine.py").write_text("import a_sibling_of_the_run\n" + (tmp_path / "mine.py").read_text())
    for folder in (tmp_path / "run", facts_of(tmp_path / "run").parent):
        (folder / "a_sibling_of_the_run.py").write_text("")
    importlib.invalidate_caches()
    assert cli.main(["generate", "run", "--prompt", "a|", "--trust", "mine.py"]) == 2
    assert "No module named 'a_sibling_of_the_run'" in capsys.readouterr().err and not ran.exists()


def test_a_file_that_has_changed_is_said(ran: Path, tmp_path: Path, capsys) -> None:
    checkpoint(tmp_path / "run", ran)
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# another\n")
    assert cli.main(["generate", "run", "--prompt", "a|", "--max-new-tokens", "1", "--trust", "mine.py"]) == 0
    assert "mine.py is not what it was for this run (SHA-256 " in capsys.readouterr().err
    again = ["train", "mine.py:Mine", "--task", "copy", "--out", "run", "--steps", "1", "--dim", "16"]
    assert cli.main(again) == 2
    assert "then, " in (err := capsys.readouterr().err) and "put the old file back, or choose another folder" in err


def test_a_path_of_a_run_means_the_file_that_was_named_or_none(ran: Path, tmp_path: Path, monkeypatch) -> None:
    """The same relative path names another file in another folder."""
    checkpoint(tmp_path / "run", ran)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "elsewhere" / "original.py")
    (tmp_path / "elsewhere" / "mine.py").write_text("raise SystemExit('the wrong file')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(CannotRead, match=r"it asks for code from the file 'mine.py'"):
        single_run.continue_prompt(tmp_path / "run", "a|", 1, 0.0, None, 0, trusted_files=["original.py"])
    assert not ran.exists()


def test_the_same_command_goes_on_and_a_worker_gets_the_same_trust(ran: Path, tmp_path: Path, capsys) -> None:
    again = ["train", "mine.py:Mine(step=2)", "--task", "copy", "--steps", "2", "--dim", "16", "--heads", "2"]
    again += ["--train-length", "2", "--out", "run"]
    assert cli.main(again) == 0 and cli.main(again) == 0
    assert "going on at step 2 of 2" in capsys.readouterr().err
    experiment = small("mine.py:Mine")
    make_record(experiment, "key", tmp_path / "records", lambda **news: None)
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# another\n")
    with pytest.raises(ValueError, match=r"mine.py is not what it was for this run"):
        make_record(experiment, "key", tmp_path / "records", lambda **news: None)


def test_runs_and_records_carry_the_hash_of_the_file(ran: Path, tmp_path: Path) -> None:
    checkpoint(tmp_path / "run", ran)
    files = {"mine.py": hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()}
    assert json.loads(facts_of(tmp_path / "run").read_text())["experiment"]["own_files"] == files
    assert small("mine.py:Mine").to_dict()["own_files"] == files and "own_files" not in small("rotary").to_dict()
    data = json.loads(json.dumps(small("mine.py:Mine").to_dict()))
    assert Experiment.from_dict(data, ["mine.py"]) == small("mine.py:Mine")
    del data["own_files"]
    assert Experiment.from_dict(data, ["mine.py"]) == small("mine.py:Mine")
    with pytest.raises(CannotRead, match=rf"'mine\.py' \(SHA-256 {files['mine.py'][:16]} here\), and none is run"):
        Experiment.from_dict(data)


def test_a_spec_anywhere_in_what_was_read_runs_nothing(ran: Path, tmp_path: Path) -> None:
    """Each string of a run, record and settings file in turn becomes a runnable spec."""
    run = train.train(train.start(small("rotary")))
    checkpoints.save(run, tmp_path / "run")
    file = facts_of(tmp_path / "run")
    facts = store.read_checked_json(file)
    for data in with_one_string_planted(facts, "mine.py:Mine"):
        # Anyone who can write a folder can also write its checksums.
        file.write_bytes(store.dump_json(data))
        try:
            checkpoints.load(tmp_path / "run")
        except ValueError:
            pass
    assert not ran.exists()


@pytest.mark.slow
def test_a_report_runs_nothing_that_records_and_settings_name(ran: Path, tmp_path: Path) -> None:
    run = train.train(train.start(small("rotary")))
    run_record = json.loads(json.dumps(record.run_record(run, 0.0)))
    settings = json.loads(json.dumps(settings_of_lab.Settings(("rotary",), ("copy",)).to_dict()))
    for data in (plant(run_record, "mine.py:Mine"), *with_one_string_planted(run_record, "mine.py:Mine")):
        for config in (plant(settings, "mine.py:Mine"), settings):
            try:
                report.write(settings_of_lab.sort_by_settings([data], config), tmp_path / "out", config)
            except (ValueError, KeyError, TypeError):
                pass
    assert not ran.exists()


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "posenc_encoding": "rotary",
}


def test_a_config_runs_nothing_wherever_it_names_code(ran: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for data in with_one_string_planted(CONFIG, "rotary + mine.py:Mine"):
        (tmp_path / "config.json").write_text(json.dumps(data))
        try:
            inspect(tmp_path)
        except CannotRead:
            pass
    assert not ran.exists()


def test_a_config_that_names_code_is_answered_with_a_sentence(ran: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"posenc_encoding": ["mine.py:Mine"]}))
    with pytest.raises(
        CannotRead, match=r"it asks for code from the file 'mine.py', and none is run that a checkpoint"
    ):
        inspect(tmp_path)
    assert not ran.exists()


def test_a_live_model_whose_config_names_code_is_not_attached_to(ran: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from posenc.checkpoints import attach

    sizes = {name: CONFIG[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")}
    config = transformers.LlamaConfig(**sizes, intermediate_size=8, vocab_size=8, posenc_encoding="mine.py:Mine")
    with pytest.raises(CannotRead, match="none is run that a checkpoint names"):
        attach(transformers.LlamaForCausalLM(config))
    assert not ran.exists()


def test_a_spec_that_was_read_may_name_only_what_a_person_has_named(ran: Path) -> None:
    for spec in (
        "mine.py:Mine",
        "rotary + 'mine.py:Mine'(step=2)",
        "rerope(mine.py:Mine)",
        "on(mine.py:Mine, heads=0)",
    ):
        with pytest.raises(CannotRead, match=r"'mine.py:Mine', and code that a file names is run only where you name"):
            parse(spec, trusted_files=())
    assert not ran.exists()
    assert parse("rotary + mine.py:Mine", trusted_files=["./mine.py"]).parts[1].name == "mine.py:Mine" and ran.exists()


# Paths in specs


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("mine.py", "{}:Mine"),
        ("a folder with spaces/mine.py", "{}:Mine"),
        ("a+b (c), d/mine.py", "'{}:Mine'"),
        ("it's/mine.py", '"{}:Mine"'),
        ("_path_0.py", "{}:Mine"),
        ("päth=日本/mine.py", "{}:Mine"),
    ],
)
def test_any_path_can_be_named_and_is_printed_as_it_is_read(path: str, source: str, ran: Path, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text((tmp_path / "mine.py").read_text())
    spec = source.format(path)
    for whole in (spec, f"{spec}(step=3.0)", f" rotary +{spec} + alibi"):
        encoding = build(whole, SHAPE)
        assert code_files(whole) == [path] and repr(build(repr(encoding), SHAPE)) == repr(encoding)
    assert parse(f"rerope({spec}(step=2), window=3)").parts[0].name == f"{path}:Mine"
    assert split(f"rotary(base=3), {spec}(step=2),none") == ["rotary(base=3)", f"{spec}(step=2)", "none"]
    assert Decoder(5, dim=16, heads=2, layers=1, encoding=spec).stack.input_encodings[0].step == 1.0


@pytest.mark.parametrize("spec", ["_path_0", "rotary + _path_3", "_path_x(a=1)", "mine.py:Mine + _path_0"])
def test_a_name_that_stood_for_a_path_once_is_a_name_like_any_other(spec: str, ran: Path) -> None:
    with pytest.raises(ValueError, match=r"no encoding named '_path_\w'"):
        parse(spec)


def test_a_string_that_names_no_file_is_no_encoding() -> None:
    for spec in ("'rotary'", "'rotary'(base=3)", "rotary + 'mine.py'"):
        with pytest.raises(ValueError, match="is not an encoding; write for example"):
            parse(spec)


# Errors in user files


def test_what_a_file_holds_now_is_what_is_run(ran: Path, tmp_path: Path) -> None:
    first = build("mine.py:Mine", SHAPE)
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("x + self.step", "x - self.step"))
    second = build("mine.py:Mine", SHAPE)
    x = torch.zeros(1, 2, 16)
    assert first(x)[0, 0, 0] == 1 and second(x)[0, 0, 0] == -1


BROKEN_MODULES = {
    "forgets its base": ("    def __init__(self):\n        pass", "mine.py:Mine: its __init__ has to begin with super"),
    "leaves at once": ("    raise SystemExit(0)", "'mine.py' could not be imported: SystemExit: 0"),
    "leaves silently": ("    import sys; sys.exit()", "'mine.py' could not be imported: SystemExit"),
    "leaves later": ("    def embed(self, x, at):\n        raise SystemExit(0)", "'mine.py:Mine' fails, in line "),
    "knows no name": (
        "    def embed(self, x, at):\n        return unknown",
        "NameError: name 'unknown' is not defined",
    ),
    "cannot be built": ("    def __init__(self):\n        1 / 0", "fails, in line "),
    "returns nothing": ("    def by_distance(self, delta):\n        return None", "'mine.py:Mine' fails"),
    "is told at length": ("    raise ArithmeticError('far too long' * 999)", "'mine.py' could not be imported: Arith"),
    "is not Python": ("    def", "'mine.py' could not be imported: SyntaxError: "),
}


@pytest.mark.parametrize("verb", ["order", "show", "check", "train", "compare"])
@pytest.mark.parametrize("fault", BROKEN_MODULES)
def test_a_broken_file_of_ones_own_is_one_sentence_for_every_verb(
    verb, fault, ran, tmp_path, capsys, monkeypatch
) -> None:
    source, words = BROKEN_MODULES[fault]
    (tmp_path / "mine.py").write_text(f"from posenc import Encoding\n\n\nclass Mine(Encoding):\n    'x'\n{source}\n")
    monkeypatch.setattr(compare, "run_all", lambda runs, *_, **__: train.train(train.start(runs[0])))
    sizes = ["--steps", "1", "--dim", "16", "--heads", "2", "--train-length", "2"]
    extra = {
        "check": ["--promise", "a_cache_changes_nothing"],
        "show": ["--tokens", "4", "--dim", "16", "--heads", "2"],
        "train": ["--task", "copy", *sizes],
        "compare": ["--tasks", "copy", *sizes],
    }
    arguments = ["compare", "--encodings", "mine.py:Mine"] if verb == "compare" else [verb, "mine.py:Mine"]
    status = cli.main([*arguments, *extra.get(verb, [])])
    answer = capsys.readouterr()
    if verb in ("check", "show") and status != 2:
        # Contract checks report errors themselves, and plots need not call the broken method.
        assert fault in ("leaves later", "knows no name", "returns nothing")
        return
    assert status == 2 and len(answer.err.splitlines()) == 1 and len(answer.err) < 600
    assert answer.err.startswith("posenc: ") and words in answer.err


@pytest.mark.parametrize("wrong", ["int('x')", "raise ValueError('heads must be even')"])
def test_a_value_error_of_a_file_of_ones_own_is_told_with_its_line(wrong: str, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(f"def make():\n    {wrong}\n")
    make = code.import_file(str(tmp_path / "mine.py")).make
    with pytest.raises(ValueError, match=r"'mine.py:Mine' fails, in line 2 of '.*mine.py': ValueError: (inv|heads m)"):
        with code.user_code_errors(["order", "mine.py:Mine"]):
            make()


def test_errors_of_ours_stay_what_they_are() -> None:
    with pytest.raises(ArithmeticError), code.user_code_errors(["order", "rotary"]):
        raise ArithmeticError
    with pytest.raises(SystemExit), code.user_code_errors(["order", "rotary"]):
        raise SystemExit(0)
    home = catalogue.ENCODINGS.home
    assert issubclass(catalogue.find(f"{home}/rotations/rotary.py:Rotary"), Encoding)


@pytest.mark.parametrize(
    ("source", "module", "is_for_user"),
    [
        ("raise ValueError('a sentence')", "posenc.lab.runs.train", True),
        ("raise ValueError('a sentence')", f"{code.MODULES}mine_1", True),
        (
            "try:\n    int('x')\nexcept ValueError as error:\n    raise ValueError('a sentence') from error",
            "posenc",
            True,
        ),
        ("raise ValueError('not ours')", "posencoder.lab", False),
        ("raise ValueError('not ours')", "torch.nn", False),
        ("int('x')", "torch.nn", False),
        ("import json; json.loads('{')", "posenc.lab.runs.train", False),
        ("import torch; torch.zeros(2).view(3)", "posenc.lab.runs.train", True),
        ("def more():\n    yield int('x')\nlist(more())", f"{code.MODULES}mine_1", True),
        (
            "def more():\n    raise ValueError('a sentence')\nlist(map(lambda x: more(), 'x'))",
            "posenc.lab.runs.train",
            True,
        ),
    ],
)
def test_an_error_is_meant_for_a_person_where_code_of_ours_or_theirs_began_it(source, module, is_for_user) -> None:
    with pytest.raises((ValueError, RuntimeError)) as error:
        exec(source, {"__name__": module})
    assert code.is_for_user(error.value) is is_for_user


def test_an_error_that_nobody_raised_is_not_meant() -> None:
    assert not code.is_for_user(ValueError("never raised"))
