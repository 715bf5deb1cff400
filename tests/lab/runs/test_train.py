"""Training: the same seed gives the same run, a resumed run is the same run; errors of checkpoints."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiers import rest_slow

import posenc
from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import train as training
from posenc.lab.runs.checkpoint import load, save
from posenc.lab.runs.single_run import continue_prompt, train_run
from posenc.lab.runs.train import Run, draw_length, rate_at, start, train
from posenc.lab.tasks import Batch, task_of

TINY = {"train_length": 3, "dim": 16, "heads": 2, "layers": 1, "batch": 4, "warmup": 2}
BOOK = "".join(f"line {i} of a book that counts its lines\n" for i in range(2000))


def tiny(spec: str | tuple[str, ...] = "rotary", task: str = "copy", **changes) -> Experiment:
    return recipe(task, spec, **(TINY | {"steps": 8, "evaluate_every": 2} | changes))


ON_A_CPU = """
from pathlib import Path
import torch
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs.checkpoint import load, save
from posenc.lab.runs.train import start, train

def begin(): raise RuntimeError("CUDA was started")

torch.cuda._lazy_init, torch.cuda.is_available, torch.cuda.device_count = begin, lambda: True, lambda: 1
for spec in ("rotary", "alibi", "forgetting"):
    run = start(recipe("copy", spec, train_length=3, dim=16, heads=2, layers=1, batch=4, warmup=1, steps=2))
    save(train(run), Path(spec))
    load(Path(spec)).model.generate(torch.tensor([[1, 2]]), 3)
"""


def test_training_on_a_cpu_starts_nothing_on_a_gpu(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", ON_A_CPU], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def book(tmp_path: Path) -> str:
    (tmp_path / "book.txt").write_text(BOOK)
    return str(tmp_path / "book.txt")


def points(run: Run) -> list[tuple[float, float, float]]:
    """The curve without its times."""
    return [(point["step"], point["loss"], point["score"]) for point in run.curve]


def same_weights(a: Run, b: Run) -> bool:
    pairs = zip(a.model.state_dict().items(), b.model.state_dict().items(), strict=True)
    return all(name == name_b and torch.equal(x, y) for (name, x), (name_b, y) in pairs)


@pytest.mark.parametrize("task", ["copy", "text"])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(task: str, book: str) -> None:
    settings = {"text": book} if task == "text" else {}
    first, second, third = (train(start(tiny("learned", task, seed=seed, **settings))) for seed in (1, 1, 2))
    assert points(first) == points(second) and same_weights(first, second)
    assert points(first) != points(third)


def test_the_curve_has_a_point_at_every_interval_and_at_the_end() -> None:
    run = train(start(tiny(steps=7, evaluate_every=3)))
    assert [point["step"] for point in run.curve] == [3, 6, 7]
    assert all(math.isfinite(point["loss"]) and 0 <= point["score"] <= 1 for point in run.curve)
    times = [point["cpu_s"] for point in run.curve]
    assert times == sorted(times) and times[0] > 0 and run.cpu_s == times[-1]


def test_training_lowers_the_loss() -> None:
    curve = train(start(tiny("none", "repeat", train_length=1, steps=60, evaluate_every=20, batch=16))).curve
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]


def batches_of(spec: str, monkeypatch: pytest.MonkeyPatch) -> list[list]:
    run, batches = start(tiny(spec, curriculum=0.5)), []
    plain = run.task.batch

    def batch(length, rows, generator) -> Batch:
        new_batch = plain(length, rows, generator)
        batches.append(new_batch.ids.tolist())
        return new_batch

    vars(run.task)["batch"] = batch
    train(run)
    return batches


def test_every_encoding_sees_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = batches_of("none", monkeypatch)
    assert len(expected) > 8
    for spec in ENCODINGS:
        assert batches_of(spec, monkeypatch) == expected


@pytest.mark.parametrize("spec", [*ENCODINGS, "learned + shaw"])
def test_every_encoding_starts_from_the_same_weights_around_it(spec: str) -> None:
    plain = start(tiny("none")).model.state_dict()
    weights = {
        name: w for name, w in start(tiny(spec)).model.state_dict().items() if not name.startswith("stack.encodings.")
    }
    assert weights.keys() == plain.keys()
    assert all(torch.equal(weights[name], plain[name]) for name in plain)


@pytest.mark.parametrize("stop_at", rest_slow([2, 1, 7], 1))
@pytest.mark.parametrize("spec", ["learned", ("rotary", "shaw")])
@pytest.mark.parametrize("matrix_rate", [0.0, 0.02])
def test_a_run_resumed_at_any_step_ends_in_the_same_weights_bit_for_bit(
    spec, matrix_rate: float, stop_at: int, tmp_path: Path
) -> None:
    experiment = tiny(spec, curriculum=0.5, layers=2, matrix_rate=matrix_rate)
    whole = train(start(experiment))
    save(train(start(experiment), stop_step=stop_at), tmp_path)
    second = load(tmp_path)
    assert second.step == stop_at and second.experiment == experiment
    assert same_weights(train(second), whole)
    assert torch.equal(second.generator.get_state(), whole.generator.get_state())
    if stop_at % 2 == 0:
        assert points(second) == points(whole)


def test_muon_has_the_matrices_of_the_blocks_and_adamw_everything_else(monkeypatch) -> None:
    run = start(tiny("learned + shaw", layers=2, matrix_rate=0.02))
    names = {id(weight): name for name, weight in run.model.named_parameters()}
    adamw, muon = (
        {names[id(p)] for group in optimizer.param_groups for p in group["params"]} for optimizer in run.optimizers
    )
    assert type(run.optimizers[0]) is torch.optim.AdamW and type(run.optimizers[1]) is torch.optim.Muon
    linear = ("q_proj", "k_proj", "v_proj", "o_proj")
    inner = {f"attention.{name}.weight" for name in linear} | {
        "feed_forward.up_proj.weight",
        "feed_forward.down_proj.weight",
    }
    assert muon == {f"stack.blocks.{layer}.{name}" for layer in (0, 1) for name in inner}
    assert adamw == set(names.values()) - muon
    assert {"embedding.token.weight", "output.weight"} < adamw and any("encodings" in name for name in adamw)
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"Muon, which torch has from 2\.9 on"):
        start(tiny("learned", matrix_rate=0.02))


def test_muon_moves_every_direction_of_a_matrix_equally_far_and_decays_nothing() -> None:
    run = start(tiny(matrix_rate=0.02))
    muon = run.optimizers[1]
    weight = run.model.stack.blocks[0].feed_forward.up_proj.weight
    old_weight, (rows, columns) = weight.detach().clone(), weight.shape
    weight.grad = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    muon.param_groups[0]["lr"] = 0.02
    muon.step()
    speeds = torch.linalg.svdvals((old_weight - weight.detach()) / (0.02 * math.sqrt(rows / columns)))
    assert speeds.min() > 0.6 and speeds.max() < 1.3
    still, weight.grad = weight.detach().clone(), torch.zeros(rows, columns)
    muon.state.clear()
    muon.step()
    assert torch.equal(weight, still)


def test_a_step_moves_what_adamw_has_and_what_muon_has() -> None:
    run, old_state = start(tiny("learned", matrix_rate=0.02)), start(tiny("learned")).model.state_dict()
    train(run, stop_step=1)
    still = {name for name, weight in run.model.state_dict().items() if torch.equal(weight, old_state[name])}
    # A key's bias adds the same to all logits of a query, which the softmax ignores.
    assert still <= {"stack.blocks.0.attention.k_proj.bias"}


def test_without_a_rate_of_their_own_the_matrices_belong_to_adamw() -> None:
    run = start(tiny(matrix_rate=0.0))
    (adamw,) = run.optimizers
    assert len(adamw.param_groups[0]["params"]) == len(list(run.model.parameters()))


def test_both_rates_follow_the_same_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(tiny(rate=4e-3, matrix_rate=0.02))
    monkeypatch.setattr(training, "rate_at", lambda run: 0.25)
    train(run, stop_step=1)
    assert [group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups] == [1e-3, 5e-3]


def test_a_checkpoint_from_before_matrices_had_a_rate_goes_on_as_it_was(tmp_path: Path) -> None:
    experiment = tiny(matrix_rate=0.0)
    save(train(start(experiment), stop_step=4), tmp_path)
    file = tmp_path / "step-000004" / "run.json"
    facts = store.read_checked_json(file)
    del facts["experiment"]["matrix_rate"]
    file.write_bytes(store.dump_json(facts))
    assert load(tmp_path).experiment == experiment
    assert same_weights(train(load(tmp_path)), train(start(experiment)))


def test_a_resumed_text_run_is_the_same_run(tmp_path: Path, book: str) -> None:
    experiment = tiny("sinusoidal", "text", text=book, test_lengths=())
    save(train(start(experiment), stop_step=4), tmp_path)
    assert points(train(load(tmp_path))) == points(train(start(experiment)))


def test_saving_changes_nothing_in_the_run_that_goes_on(tmp_path: Path) -> None:
    saved_run = train(start(tiny()), lambda run: save(run, tmp_path))
    assert same_weights(saved_run, train(start(tiny())))


def test_the_lengths_of_a_round_are_each_length_once() -> None:
    run = start(tiny(train_length=5, curriculum=0.0, steps=20))
    lengths = []
    for run.step in range(20):
        lengths.append(draw_length(run))
    assert all(sorted(lengths[i : i + 5]) == [1, 2, 3, 4, 5] for i in range(0, 20, 5))
    assert lengths[:5] != lengths[5:10] or lengths[5:10] != lengths[10:15]


def test_lengths_grow_from_two_while_the_curriculum_lasts() -> None:
    run = start(tiny(train_length=10, curriculum=0.5, steps=200, test_lengths=()))
    lengths = []
    for run.step in range(200):
        lengths.append(draw_length(run))
    assert max(lengths[:10]) <= 2 and max(lengths[:50]) <= 6 and max(lengths[100:]) == 10


def test_the_rate_warms_up_falls_as_a_cosine_and_ends_at_its_share() -> None:
    run = start(tiny(steps=102, warmup=2, final_rate=0.1))
    shares = []
    for run.step in range(103):
        shares.append(rate_at(run))
    assert shares[:2] == [0.5, 1.0]
    assert shares[52] == pytest.approx(0.1 + 0.9 / 2) and shares[102] == pytest.approx(0.1)
    assert shares[2:] == sorted(shares[2:], reverse=True)


def run_with_scores(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    """Replace the scores of the curve's points; the last one repeats."""
    remaining = list(scores)
    monkeypatch.setattr(training, "score", lambda run: remaining.pop(0) if len(remaining) > 1 else remaining[0])


def test_two_learned_points_in_a_row_cool_a_run_down_and_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_scores(monkeypatch, 0.2, 1.0, 0.9, 1.0, 0.99)
    run = start(tiny(steps=100, cool_down=6))
    rates = []
    plain = training.rate_at
    monkeypatch.setattr(training, "rate_at", lambda run: rates.append(plain(run)) or rates[-1])
    train(run)
    # Points at 2, 4, 6, 8, 10 score .2, 1, .9, 1, .99: two in a row at step 10, then six steps.
    assert run.cool_down_start == 10 and run.step == 16 and run.curve[-1]["step"] == 16
    # Without the cool-down a hundred steps' cosine would hardly have begun.
    assert rates[9] > 0.9 and rates[15] < 0.3


def test_without_a_cool_down_a_learned_run_trains_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_scores(monkeypatch, 1.0)
    assert train(start(tiny(cool_down=0))).step == 8


def test_a_cool_down_does_not_outlast_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_scores(monkeypatch, 1.0)
    assert train(start(tiny(cool_down=100))).step == 8


def test_learned_means_learned_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(tiny())
    run.curve = [
        {"step": s, "loss": 0.0, "score": v, "cpu_s": 0.0} for s, v in ((2, 1.0), (4, 0.98), (6, 0.99), (8, 1.0))
    ]
    point = training.learned_at(run)
    assert point is not None and point["step"] == 6
    run.curve[-1]["score"] = 0.989
    assert training.learned_at(run) is None
    # Of a text the score is bits, and a high one is no match.
    run.curve[-1]["score"] = 1.0
    run.task = task_of("text")
    assert training.learned_at(run) is None


def test_a_loss_that_is_not_a_number_ends_the_run_with_what_to_do() -> None:
    run = start(tiny())
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
        run.model.embedding.token.weight.fill_(math.nan)
    with pytest.raises(RuntimeError, match=r"^the loss of rotary on copy is nan at step 2; lower the rate$"):
        train(run)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The folder of a step."""
    save(train(start(tiny()), stop_step=4), tmp_path / "run")
    return tmp_path / "run" / "step-000004"


def test_a_checkpoint_is_safetensors_and_json_and_nothing_else(checkpoint: Path) -> None:
    assert sorted(file.name for file in checkpoint.iterdir()) == [
        "model.safetensors",
        "optimizer.safetensors",
        "run.json",
    ]
    assert sorted(file.name for file in checkpoint.parent.iterdir()) == ["step-000004"]
    facts = json.loads((checkpoint / "run.json").read_text())
    assert facts["step"] == 4 and facts["versions"]["torch"] == torch.__version__


def test_the_last_two_steps_are_kept_and_each_can_be_gone_on_from(tmp_path: Path) -> None:
    run = start(tiny())
    for step in (2, 4, 6):
        save(train(run, stop_step=step), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-000004", "step-000006"]
    assert load(tmp_path).step == 6 and load(tmp_path / "step-000004").step == 4
    save(run, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-000006", "step-000006.2"]
    assert load(tmp_path).step == 6


def test_a_damaged_step_names_the_one_before(tmp_path: Path) -> None:
    run = start(tiny())
    for step in (2, 4):
        save(train(run, stop_step=step), tmp_path)
    (tmp_path / "step-000004" / "model.safetensors").write_bytes(b"")
    words = r"model\.safetensors: it does not fit its checksum.*; the step before is kept: go on from it with "
    with pytest.raises(CannotRead, match=rf"{words}--out .*step-000002$"):
        load(tmp_path)
    assert load(tmp_path / "step-000002").step == 2


def test_a_checkpoint_is_read_while_its_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, plain = start(tiny()), store.read_checked_json
    save(train(run, stop_step=2), tmp_path)

    def overtaken(path: Path):
        if path.parent.name == "step-000002":
            for step in (4, 6):
                save(train(run, stop_step=step), tmp_path)
        return plain(path)

    monkeypatch.setattr(store, "read_checked_json", overtaken)
    assert load(tmp_path).step == 6


def test_a_text_that_has_changed_since_a_checkpoint_was_made_is_refused(tmp_path: Path, book: str) -> None:
    def go_on(steps: list[str]) -> Run:
        settings = {**TINY, "text": book, "steps": 4, "evaluate_every": 2, "test_lengths": ()}
        return train_run("rotary", "text", 0, tmp_path / "run", None, steps.append, **settings)

    messages: list[str] = []
    go_on(messages)
    assert go_on(messages).step == 4 and "going on at step 4 of 4" in messages
    Path(book).write_text(BOOK.replace("7", "8"))
    with pytest.raises(
        ValueError, match=r"book\.txt is another text than the one that '.*run' was trained on; put that"
    ):
        go_on(messages)
    # What it has learned it still knows.
    Path(book).unlink()
    assert continue_prompt(tmp_path / "run", "line", 3, 0.0, None, 0).startswith("line")


def test_a_point_is_on_the_disk_before_it_is_told(tmp_path: Path) -> None:
    def full(words: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        train_run("learned", "copy", 0, tmp_path, None, full, **TINY, steps=4, evaluate_every=2)
    assert load(tmp_path).step == 2


def imported_or_called(tree: ast.AST) -> set[str]:
    """All imported modules and used attributes, except torch.load with weights_only."""
    names, safe = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "weights_only=True" in map(ast.unparse, node.keywords):
            safe.add(node.func)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute) and node not in safe:
            names.add(ast.unparse(node))
    return names


def test_nothing_in_the_package_can_run_code_from_a_file_of_weights() -> None:
    forbidden = {
        "pickle",
        "cloudpickle",
        "dill",
        "joblib",
        "marshal",
        "shelve",
        "torch.load",
        "torch.save",
        "torch.package",
    }
    sources = list(Path(posenc.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    for source in sources:
        # The contract suite sends a state dict through memory and back, to show that it survives; it opens no file.
        if "testing" in source.parts:
            continue
        unsafe_names = imported_or_called(ast.parse(source.read_text(encoding="utf-8"))) & forbidden
        assert not unsafe_names, source


def test_a_folder_without_a_checkpoint_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^no checkpoint in '.*': run\.json is missing; train one with posenc train --out "
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"experiment": {"spec": "none", "task": "copy"}}', '{"experiment": {"spe": 1}}']
)
def test_a_damaged_run_file_is_named(checkpoint: Path, content: str) -> None:
    (checkpoint / "run.json").write_text(content)
    with pytest.raises(CannotRead, match=r"run\.json: .*; train again into another folder$"):
        load(checkpoint)


@pytest.mark.parametrize("name", ["model", "optimizer"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage"])
def test_damaged_tensors_are_named(checkpoint: Path, name: str, damage: str) -> None:
    file = checkpoint / f"{name}.safetensors"
    whole = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes({"empty": b"", "truncated": whole[:-100], "garbage": b"no tensors " * 50}[damage])
    wrong = "there is no such file" if damage == "missing" else "it does not fit its checksum"
    with pytest.raises(CannotRead, match=rf"{name}\.safetensors: {wrong}.*; train again into another folder$"):
        load(checkpoint)


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_tensors_of_another_step_are_refused(checkpoint: Path, name: str, tmp_path: Path) -> None:
    save(train(start(tiny()), stop_step=6), tmp_path / "later")
    later = tmp_path / "later" / "step-000006" / f"{name}.safetensors"
    (checkpoint / later.name).write_bytes(later.read_bytes())
    with pytest.raises(CannotRead, match=rf"{name}\.safetensors: it does not fit its checksum"):
        load(checkpoint)


def test_a_model_of_another_shape_is_refused(checkpoint: Path) -> None:
    facts = store.read_checked_json(checkpoint / "run.json")
    facts["experiment"]["dim"] = 8
    (checkpoint / "run.json").write_bytes(store.dump_json(facts))
    with pytest.raises(
        CannotRead, match=r"model\.safetensors: it does not fit its run\.json: size mismatch for [^\n]*$"
    ):
        load(checkpoint)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def train_into(folder: Path, messages: list[str], **changes) -> Run:
    return train_run("learned", "copy", 0, folder, None, messages.append, **(TINY | {"steps": 8} | changes))


def test_the_same_command_goes_on_and_at_the_end_does_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    first = train_into(tmp_path, messages)
    assert first.step == 8 and any(words.startswith("step 8/8  loss ") for words in messages)
    messages.clear()
    assert same_weights(train_into(tmp_path, messages), first)
    assert messages == ["going on at step 8 of 8"]


def test_a_checkpoint_of_another_torch_is_gone_on_with_and_that_is_said(tmp_path: Path, monkeypatch) -> None:
    train_into(tmp_path, [])
    monkeypatch.setattr(torch, "__version__", "1.0")
    words: list[str] = []
    train_into(tmp_path, words)
    assert "the checkpoint was made with posenc" in words[1] and "the end may differ in its last digits" in words[1]


def test_a_folder_with_a_run_of_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    train_into(tmp_path, [])
    content = files_of(tmp_path)
    words = r"^'.*' holds a run of other settings \(steps 8 -> 9, dim 16 -> 8\); choose another folder with --out$"
    with pytest.raises(ValueError, match=words.replace("steps 8 -> 9, dim 16 -> 8", "dim 16 -> 8, steps 8 -> 9")):
        train_into(tmp_path, [], dim=8, steps=9)
    assert files_of(tmp_path) == content


@pytest.mark.parametrize("device", ["x:y", "cuda:99", "meta", ""])
def test_a_run_of_a_device_that_is_not_here_is_asked_on_the_cpu_and_not_trained(device: str, tmp_path: Path) -> None:
    train_into(tmp_path, [])
    file = next(tmp_path.glob("step-*/run.json"))
    facts = store.read_checked_json(file)
    facts["experiment"]["device"] = device
    file.write_bytes(store.dump_json(facts))
    messages: list[str] = []
    assert continue_prompt(tmp_path, "ab|", 3, 0.0, None, 0, say=messages.append).startswith("ab|")
    wrong = f"{file}: it was trained on {device!r}, which is not here"
    assert messages == [f"{wrong}; its model is asked on the CPU"]
    with pytest.raises(CannotRead, match=f"{wrong}; go on where that is, or train into another folder with --out"):
        train_into(tmp_path, [])


@pytest.mark.parametrize("claim", [{"spec": "learned(max_len=100000000000)"}, {"dim": 65_536, "layers": 1_000}])
def test_what_a_run_claims_takes_no_memory_before_its_weights_bear_it_out(claim: dict, tmp_path: Path) -> None:
    save(start(tiny("learned")), tmp_path)
    file = next(tmp_path.glob("step-*/run.json"))
    facts = store.read_checked_json(file)
    facts["experiment"] |= claim
    file.write_bytes(store.dump_json(facts))
    with pytest.raises(CannotRead, match=r"model\.safetensors: it does not fit its run\.json: ") as error:
        load(tmp_path)
    assert len(str(error.value)) < 600
