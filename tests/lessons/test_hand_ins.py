"""What is handed in beside answers: each lesson's own solution is right, and wrong ones are told apart."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from posenc import cli
from posenc.cli import lesson as verb
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.runs.single_run import train_run
from posenc.lessons import Lesson, lesson_of
from posenc.lessons._hand_ins import read_tensors

STORY = (
    "The hands of a clock tell where in the day we are. " * 40 + "Each token has a place, and each place a vector. "
) * 3


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the solutions of all lessons, the runs and the files that they make, and a text."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "story.txt").write_text(STORY)
    for number in (2, 3, 5, 6, 7, 8, 9, 10, 11):
        (folder / f"lesson_{number}.py").write_text(lesson_of(str(number)).solutions)
    small = {"train_length": 6, "batch": 32, "evaluate_every": 300, "test_lengths": (7,)}
    for spec, steps in (("sinusoidal", 300), ("none", 2)):
        train_run(spec, "repeat", FIRST_SEED, folder / spec, None, print, steps=steps, **small)
    arguments = {name: str(folder / name) for name in ("sinusoidal", "maps.pt", "scores.json", "curve.csv")}
    solution(6)["save_maps"](arguments["sinusoidal"], arguments["maps.pt"])
    solution(9)["save_scores"](arguments["sinusoidal"], arguments["scores.json"])
    solution(10)["save_curve"](arguments["sinusoidal"], arguments["curve.csv"])
    solution(7)["train_gpt"](str(folder / "story.txt"), str(folder / "gpt.pt"), steps=60)
    solution(8)["train_reverser"](str(folder / "reverser.pt"))
    return folder


def solution(number: int) -> dict[str, Callable]:
    names: dict = {"__name__": f"lesson_{number}"}
    exec(lesson_of(str(number)).solutions, names)
    return names


RIGHT = {
    2: "lesson_2.py:PositionalEncoding",
    3: "lesson_3.py:PositionalEncoding",
    5: "lesson_5.py:PositionalEncoding",
    6: "maps.pt --run sinusoidal",
    7: "lesson_7.py:MiniGPT --weights gpt.pt --text story.txt",
    8: "lesson_8.py:Reverser --weights reverser.pt",
    9: "scores.json --run sinusoidal",
    10: "curve.csv --run sinusoidal",
    11: "lesson_11.py:rope",
}


@pytest.fixture
def handed_in(work_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`handed_in(8, "mine.py:Mine --weights a.pt")`: the exit code and output, beside the files of `work_folder`."""
    for path in work_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "cache"))
    # A process of its own takes seconds to begin.
    monkeypatch.setattr(verb, "process_result", Lesson.check)

    def run(number: int, command: str) -> tuple[int, str]:
        code = cli.main(["lesson", str(number), "--check", *shlex.split(command)])
        out, err = capsys.readouterr()
        return code, out + err

    return run


@pytest.mark.parametrize("number", RIGHT)
def test_the_solution_of_a_lesson_is_right(number: int, handed_in) -> None:
    code, out = handed_in(number, RIGHT[number])
    assert code == 0 and "not yet" not in out, out


def test_weights_and_numbers_are_taken_in_each_format(handed_in) -> None:
    save_file(torch.load("reverser.pt", weights_only=True), "reverser.safetensors")
    assert handed_in(8, "lesson_8.py:Reverser --weights reverser.safetensors")[0] == 0
    numpy = pytest.importorskip("numpy")
    numpy.savez("maps.npz", **{name: map_.numpy() for name, map_ in torch.load("maps.pt", weights_only=True).items()})
    assert handed_in(6, "maps.npz --run sinusoidal")[0] == 0


MODULE = """
import torch
from torch import nn
from lesson_3 import sinusoidal
class Mine(nn.Module):
    def __init__(self, d_model, max_len=5000, dropout=0.1):
        super().__init__()
        self.table = sinusoidal(torch.arange(max_len), d_model, 10_000.0).float()
        self.learned = nn.Embedding(max_len, d_model)
    def forward(self, x{more}):
        return {result}
"""
ROPE = """
import torch
from lesson_11 import rope
def half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
def mine({parameters}):
    return {result}
"""
REVERSER = """
import torch
from torch import nn
from lesson_8 import Encoder, Reverser
class Mine(Reverser):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder(26, 64, heads=4, layers=1, max_len=600, encoding="{encoding}")
    def forward(self, ids):
        return self.read_out({result})
torch.save(Mine().state_dict(), "mine.pt")
"""
GPT = """
import torch
from torch import nn
from lesson_7 import Decoder
class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.out = {layers}, nn.Linear(32, 256)
        self.tokens = nn.Embedding(256, 32)
    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = x + layer(x){mixed}
        return self.out(x)
torch.save(Mine().state_dict(), "mine.pt")
"""
WRONG = [
    (2, MODULE, {"result": "x + self.learned(torch.arange(len(x)))[:, None]"}, "the batch axis is numbered"),
    (
        2,
        MODULE,
        {"result": "x + self.learned(torch.arange(x.shape[1])[None]).transpose(0, 1)"},
        "is the batch axis numb",
    ),
    (2, MODULE, {"result": "x + nn.Embedding(9, 16)(torch.arange(6))"}, "called twice, it adds other vectors"),
    (2, MODULE, {"result": "x + self.table[: x.shape[1]]"}, "is not trained"),
    (2, MODULE, {"result": "x + self.learned(torch.zeros(6).long())"}, "every position gets the same vector"),
    (3, MODULE, {"result": "x + self.table[1 : x.shape[1] + 1]"}, "stands at position 0, and not at 1"),
    (3, MODULE, {"result": "x * (1 + self.table[: x.shape[1]])"}, "every position gets the same vector"),
    (3, MODULE, {"result": "x + self.table[: x.shape[1]]", "more": ", offset=0"}, "not shifted behind a cache"),
    (5, MODULE, {"result": "x + self.table[: x.shape[1]]"}, "it takes no ids"),
    (11, ROPE, {"parameters": "x", "result": "x"}, "nothing is turned"),
    (
        11,
        ROPE,
        {"parameters": "q, k, v", "result": "(rope(q) @ rope(k).T / 8**0.5).softmax(-1) @ rope(v)"},
        "values are t",
    ),
    (11, ROPE, {"parameters": "x, offset=0", "result": "rope(x)"}, "positions are not shifted"),
    (11, ROPE, {"parameters": "x", "result": "rope(x, 1)"}, "positions begin at 0, and not at 1"),
    (11, ROPE, {"parameters": "x", "result": "2 * x - rope(x) + 0 * half(x)"}, "differs in"),
    (8, REVERSER, {"encoding": "none", "result": "self.encoder(ids)"}, "it was trained without positions"),
    (
        8,
        REVERSER,
        {"encoding": "sinusoidal", "result": "self.encoder(ids, mask='causal')"},
        "leave out the causal mask",
    ),
    (8, REVERSER, {"encoding": "sinusoidal", "result": "self.encoder(ids)"}, "it guesses"),
    (8, REVERSER, {"encoding": "learned", "result": "self.encoder(ids.T).transpose(0, 1)"}, "positions number axis 0"),
    (
        8,
        REVERSER,
        {"encoding": "sinusoidal", "result": "torch.dropout(self.encoder(ids), 0.5, True)"},
        "has to end dropout",
    ),
    (
        7,
        GPT,
        {"layers": "nn.ModuleList(nn.Linear(32, 32) for _ in range(2))"},
        "six layers are asked for, and it has 2",
    ),
    (7, GPT, {"layers": "nn.ModuleList([nn.Linear(32, 32)] * 6)"}, "6 layers share 1"),
    (7, GPT, {"layers": "nn.ModuleList(nn.Linear(32, 32) for _ in range(6))"}, "positions are missing"),
    (
        7,
        GPT,
        {"layers": "nn.ModuleList(nn.Linear(32, 32) for _ in range(6))", "mixed": " + x.flip(1)"},
        "it sees the future",
    ),
]


@pytest.mark.parametrize(("number", "code", "parts", "words"), WRONG)
def test_code_that_is_wrong_is_told_what_is_wrong(number: int, code: str, parts: dict, words: str, handed_in) -> None:
    Path("mine.py").write_text(
        "import sys\nsys.path.insert(0, '.')\n" + code.format(**{"more": "", "mixed": ""} | parts)
    )
    name = "mine" if code is ROPE else "Mine"
    options = {7: " --weights mine.pt --text story.txt", 8: " --weights mine.pt"}
    if number in options:
        __import__("runpy").run_path("mine.py")
    code, out = handed_in(number, f"mine.py:{name}{options.get(number, '')}")
    assert code == 1 and words in out, out
    assert "to do: " not in out and "to do: " in handed_in(number, f"mine.py:{name}{options.get(number, '')}")[1]


NUMBERS = [
    (6, lambda maps: maps | {"with": maps["without"]}, "the map with positions: this is the map without positions"),
    (6, lambda maps: maps | {"without": maps["with"]}, "the map without positions: this is the map with positions"),
    (6, lambda maps: maps | {"head": torch.tensor(1)}, "this is head 0 of layer 0, and not head 1 of layer 0"),
    (6, lambda maps: maps | {"with": maps["with"].T}, "each row is a query, and sums to 1"),
    (6, lambda maps: maps | {"with": maps["with"][None]}, "has the shape"),
    (6, lambda maps: maps | {"ids": maps["ids"] + 90}, "ids of this run go from 0 to 28"),
    (6, lambda maps: {"ids": maps["ids"]}, "there is no 'with' in it; it has ids"),
    (9, lambda scores: scores | {"intact": scores["removed"]}, "intact: this is the score with positions removed"),
    (9, lambda scores: scores | {"intact": 100.0}, "in percent"),
    (10, lambda curve: curve | {"score": 100 * curve["score"]}, "in percent"),
    (10, lambda curve: curve | {"score": torch.tensor([1.0, 0.8, 0.5, 0.37])}, "these are shares of tokens"),
    (10, lambda curve: {name: column[1:] for name, column in curve.items()}, "the trained length 6 is missing"),
    (10, lambda curve: {name: column[:2] for name, column in curve.items()}, "it stops at length 7"),
]


@pytest.mark.parametrize(("number", "change", "words"), NUMBERS)
def test_numbers_that_are_wrong_are_told_what_is_wrong(number: int, change: Callable, words: str, handed_in) -> None:
    messages = read_tensors({6: "maps.pt", 9: "scores.json", 10: "curve.csv"}[number])
    torch.save({name: torch.as_tensor(value) for name, value in change(messages).items()}, "mine.pt")
    code, out = handed_in(number, "mine.pt --run sinusoidal")
    assert code == 1 and words in out, out


@pytest.mark.parametrize("number", [6, 9])
def test_a_run_without_positions_has_none_to_take_away(number: int, handed_in) -> None:
    code, out = handed_in(number, RIGHT[number].replace("sinusoidal", "none"))
    assert code == 1 and "its encoding is none" in out


def test_a_run_is_taken_where_a_model_is(handed_in) -> None:
    code, out = handed_in(8, "sinusoidal")
    assert code == 1 and "the run is of the task repeat, and not of reverse" in out
    assert handed_in(7, "sinusoidal")[1].startswith(
        "posenc: this lesson asks for a language model, and 'sinusoidal' is"
    )


REFUSALS = [
    (1, "sinusoidal", "lesson 1 takes answers (.py, .ipynb) alone, got 'sinusoidal'"),
    (1, "lesson_2.py --weights gpt.pt", "--weights has no use here"),
    (8, "lesson_8.py:Reverser", "'lesson_8.py:Reverser' needs --weights; this lesson takes a run's folder, or"),
    (8, "lesson_8.py:Nowhere --weights reverser.pt", "'lesson_8.py' has no module named 'Nowhere'"),
    (8, "lesson_8.py:Reverser --weights gpt.pt", "gpt.pt does not fit lesson_8.py:Reverser: "),
    (8, "lesson_8.py:Reverser --weights story.txt", "story.txt: numbers are in a file of .safetensors, .pt, .pth,"),
    (8, "lesson_8.py:Reverser --weights nowhere.pt", "nowhere.pt: there is no such file"),
    (8, "lesson_8.py:Reverser --weights whole.pt", "save a dict of tensors, such as model.state_dict()"),
    (8, "sinusoidal --weights reverser.pt", "--weights has no use here"),
    (8, ".", "no checkpoint in '.'"),
    (7, "lesson_7.py:MiniGPT --weights gpt.pt", "'lesson_7.py:MiniGPT' needs --text"),
    (6, "maps.pt", "'maps.pt' needs --run"),
    (
        11,
        "maps.pt",
        "this lesson takes answers (.py, .ipynb) or path/to/mine.py:Name, a function or class of yours, got",
    ),
    (11, "lesson_11.py:nothing", "'lesson_11.py' has no function or class named 'nothing'"),
]


@pytest.mark.parametrize(("number", "command", "words"), REFUSALS)
def test_what_a_lesson_does_not_take_is_refused(number: int, command: str, words: str, handed_in) -> None:
    torch.save(torch.nn.Linear(2, 2), "whole.pt")
    code, out = handed_in(number, command)
    assert code == 2 and out.startswith("posenc: ") and words in out and out.count("\n") == 1, out


def test_a_weights_file_runs_no_code(handed_in) -> None:
    class Code:
        def __reduce__(self):
            return Path.touch, (Path("ran"),)

    torch.save({"weight": Code()}, "code.pt")
    code, out = handed_in(8, "lesson_8.py:Reverser --weights code.pt")
    assert code == 2 and "save a dict of tensors" in out and not Path("ran").exists()


@pytest.mark.slow
def test_a_model_that_never_answers_is_stopped(work_folder, monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(verb, "CHECK_SECONDS", 8)
    (tmp_path / "mine.py").write_text("def mine(x):\n    while True: pass\n")
    assert cli.main(["lesson", "11", "--check", f"{tmp_path / 'mine.py'}:mine"]) == 2
    assert "was stopped after 8 seconds; look for a loop" in capsys.readouterr().err
