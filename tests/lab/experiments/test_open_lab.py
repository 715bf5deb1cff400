"""Models of every kind, the user's own models, rates, ends of training, stretches, seeds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from posenc import Decoder
from posenc.lab.evaluation import evaluate
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.models import Tagger, label_of, logits_of, model_of, stretched_model, without_position
from posenc.lab.experiments.places import natural
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import checkpoint, record, train
from posenc.lab.runs.settings import Settings, with_labels
from posenc.lab.sweeps import compare as comparing
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.compare import at_best_rates, compare
from posenc.lab.sweeps.sweep import Sweep
from posenc.lab.sweeps.workers import make_record
from posenc.lab.tasks import TASKS, Batch, task_of

SMALL = {"dim": 16, "heads": 2, "layers": 1, "steps": 4, "batch": 4, "evaluate_every": 2}
MODEL = """
from torch import nn

from posenc import Decoder


class Mine(nn.Module):
    def __init__(self, vocab, encoding, dim, heads, *, wide=2, **others):
        super().__init__()
        self.inner = Decoder(vocab, dim=dim, heads=heads, layers=1, encoding=encoding)

    def forward(self, ids, positions):
        return self.inner(ids, positions=positions)


class Deaf(nn.Module):
    def __init__(self, vocab, encoding):
        super().__init__()

    def forward(self, ids):
        return ids


class Short(Mine):
    def forward(self, ids, positions):
        return super().forward(ids, positions)[..., :-1]


class Wanting(nn.Module):
    def __init__(self, vocab, encoding, tokenizer):
        super().__init__()


class Fixed(nn.Module):
    def __init__(self, vocab):
        super().__init__()
"""


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    return "mine.py"


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("text", "masked_text")])
def test_every_task_is_trained_measured_and_recorded_by_the_model_that_it_asks_for(name: str, tmp_path: Path) -> None:
    spec = "axial_rotary" if task_of(name).axes == 2 else "rotary"
    shape = {"dim": 32, "heads": 2} if task_of(name).axes == 2 else {}
    run = train.train(train.start(recipe(name, spec, test_lengths=(), **SMALL | shape | {"steps": 2})))
    kinds = {"decoder": "Decoder", "encoder": "Tagger", "encoder_decoder": "EncoderDecoder"}
    assert type(run.model).__name__ == kinds[run.task.reads]
    run_record = record.run_record(run, 0.0)
    assert record.read(record.write(run_record, tmp_path))["key"] == run_record["key"]
    assert run_record["lengths"][0]["sequences"] > 400 and run_record["ablation"]["removed"] is not None


def test_a_tagger_sees_both_sides_and_a_decoder_one() -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    changed_ids = torch.tensor([[3, 4, 5, 9]])
    torch.manual_seed(0)
    for model, sees in (
        (Tagger(11, Experiment("none", "copy", dim=16, heads=2).config(8), "rotary"), True),
        (Decoder(11, dim=16, heads=2, layers=1, encoding="rotary"), False),
    ):
        batches = [Batch(x, x, torch.ones(4, dtype=torch.bool)) for x in (ids, changed_ids)]
        first = [logits_of(model, batch)[:, 0] for batch in batches]
        assert (not torch.equal(*first)) == sees


def test_sizes_reach_the_model() -> None:
    experiment = recipe(
        "copy", "rotary", **SMALL | {"heads": 4, "layers": 2, "norm_first": False, "kv_heads": 2, "head_dim": 6}
    )
    experiment = replace(experiment, intermediate_size=24, feed_forward="swiglu", window=(3, None), dropout=0.25)
    config = model_of(experiment, experiment.build_task()).config
    assert (config.norm_first, config.kv_heads, config.head_dim, config.inner, config.dropout) == (
        False,
        2,
        6,
        24,
        0.25,
    )
    assert config.windows == (3, None)
    with pytest.raises(ValueError, match=r"^kv_heads must divide heads=4, got 3$"):
        replace(experiment, kv_heads=3)


def test_a_model_of_ones_own_is_trained_ablated_and_recorded(own_file: str, tmp_path: Path) -> None:
    experiment = recipe("copy", "rotary", model="mine.py:Mine", **SMALL)
    run = train.train(train.start(experiment))
    assert type(run.model).__name__ == "Mine" and run.model.inner.stack.encoding_of[0].spec_name == "rotary"
    run_record = record.run_record(run, 0.0)
    assert run_record["attention"] is None and run_record["ablation"]["removed"] is not None
    assert record.read(record.write(run_record, tmp_path))["experiment"]["model"] == "mine.py:Mine"
    checkpoint.save(run, tmp_path / "run")
    with pytest.raises(ValueError, match=r"it asks for code from the file 'mine\.py'"):
        checkpoint.load(tmp_path / "run")
    assert checkpoint.load(tmp_path / "run", ["mine.py"]).experiment == experiment


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mine.py:Deaf", r"the forward of mine\.py:Deaf takes no positions; it is called as model\(ids, positions=.*"),
        (
            "mine.py:Wanting",
            r"mine\.py:Wanting needs tokenizer; a model is made with any of vocab, config, .*, by name",
        ),
        ("mine.py:Fixed", r"mine\.py:Fixed does not take encoding, its spec; a model is made .*"),
        (
            "mine.py:Short",
            r"mine\.py:Short must give logits \[batch, tokens, vocab=29\] for ids \[batch, tokens\]; for the last "
            r"token it gave \[1, 1, 28\] where \[1, 1, 29\] was expected",
        ),
        ("mine", r"model must be a module of your own, path/to/mine\.py:Mine, got 'mine'"),
    ],
)
def test_a_model_that_cannot_serve_is_refused_before_a_step_is_trained(own_file: str, model: str, words: str) -> None:
    settings = Settings(("rotary",), ("copy",), seeds=1, changes=SMALL | {"model": model})
    with pytest.raises(ValueError, match=f"^{words}$"):
        settings.experiments()


def test_a_training_ends_by_the_tokens_that_were_read() -> None:
    run = train.train(train.start(recipe("repeat", "none", tokens=2000, **{k: SMALL[k] for k in ("dim", "heads")})))
    per_step = 16 * 22  # the most that a batch can read
    assert 2000 <= run.tokens < 2000 + per_step and run.progress >= 1 and run.step < 100
    assert run.curve[-1]["step"] == run.step


def test_a_training_ends_by_cpu_seconds() -> None:
    run = train.train(train.start(recipe("repeat", "none", seconds=0.2, dim=16, heads=2, layers=1)))
    assert 0.2 <= run.cpu_s < 5 and 1 <= run.step < 5000


def test_the_rate_of_a_run_that_ends_by_tokens_falls_to_its_end() -> None:
    run = train.start(recipe("repeat", "none", tokens=100_000, warmup=10))
    run.step = 10
    rates = []
    for share in (0.0, 0.5, 1.0):
        run.tokens = int(100_000 * share)
        rates.append(train.rate_at(run))
    assert rates[0] == pytest.approx(1, abs=1e-3)
    assert rates[1] == pytest.approx((1 + 0.05) / 2, abs=1e-3) and rates[2] == pytest.approx(0.05, abs=1e-3)


def test_the_rate_of_the_original_transformer_rises_and_falls() -> None:
    run = train.start(recipe("copy", "sinusoidal", schedule="original", warmup=100, rate=1.0))
    rates = {}
    for step in (0, 49, 99, 399):
        run.step = step
        rates[step] = train.rate_at(run)
    peak = 64**-0.5 * 100**-0.5
    assert rates[99] == pytest.approx(peak) and rates[0] == pytest.approx(peak / 100)
    assert rates[49] == pytest.approx(peak / 2) and rates[399] == pytest.approx(peak / 2)
    (adam,) = run.optimizers
    assert type(adam) is torch.optim.Adam and adam.defaults["betas"] == (0.9, 0.98) and adam.defaults["eps"] == 1e-9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 0}, "tokens must be above 0, got 0"),
        ({"seconds": -1.0}, r"seconds must be above 0, got -1\.0"),
        ({"schedule": "linear"}, "schedule must be one of cosine, original, got 'linear'"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, got 'float16'"),
        (
            {"text": "a.txt"},
            "a text is for a task on text, without a path of its own; copy cannot take one: it reads none",
        ),
        (
            {"text": "a.txt", "task": "text(path='b.txt')"},
            r"a text is for .*; text\(path='b.txt'\) cannot take one: it has 'b.txt' already",
        ),
        ({"stretch": "yarn(factor=2)"}, "stretch=yarn.*is for encodings with frequencies .*, such as rotary; got none"),
        (
            {"stretch": "yarn(factor=2)", "spec": "rotary(schedule=ntk(factor=2))"},
            r"stretch=yarn.*leaves their schedule open, such as rotary; got rotary\(schedule=ntk\(factor=2\)\)",
        ),
        ({"stretch": "yarm(factor=2)", "spec": "rotary"}, "no schedule named 'yarm'; .*"),
    ],
)
def test_what_an_experiment_cannot_be_is_said(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        Experiment(**({"spec": "none", "task": "copy"} | changes))


def test_matrix_products_are_computed_in_what_is_asked_for_and_weights_stay() -> None:
    losses = {}
    for dtype in ("float32", "bfloat16"):
        run = train.train(train.start(recipe("copy", "rotary", **SMALL | {"dtype": dtype})))
        assert {p.dtype for p in run.parameters} == {torch.float32}
        losses[dtype] = run.curve[-1]["loss"]
    assert losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_a_stretch_is_what_the_encoding_has_beyond_the_trained_length_alone() -> None:
    experiment = recipe("copy", "rotary + alibi", stretch="linear(factor=2)", **SMALL)
    run = train.train(train.start(experiment))
    longer = stretched_model(run.model, experiment, run.task)
    assert "schedule=linear(factor=2)" in str(longer.stack.encoding_of[0])
    assert "schedule" not in str(run.model.stack.encoding_of[0])
    calls = []

    def exact_match(model: nn.Module, task, length: int, **options) -> evaluate.Match:
        calls.append((length, "schedule" in str(model.stack.encoding_of[0])))
        return evaluate.Match(1.0, 1.0, 512)

    patch = pytest.MonkeyPatch()
    patch.setattr(evaluate, "exact_match", exact_match)
    evaluate.by_length(run)
    patch.undo()
    assert calls == [(10, False), (12, True), (15, True), (20, True)]


def test_only_what_has_frequencies_is_stretched_in_a_comparison() -> None:
    settings = Settings(
        ("rotary", "alibi", "rotary(schedule=ntk(factor=2))"),
        ("copy",),
        seeds=1,
        stretches=("none", "linear(factor=2)"),
    )
    assert sorted((run.spec, run.stretch) for run in settings.experiments() if run.stretch) == [
        ("rotary", "linear(factor=2)")
    ]
    assert len(settings.experiments()) == 4
    with pytest.raises(ValueError, match=r"^--stretch is for encodings with frequencies .*; none of alibi is one$"):
        replace(settings, encodings=("alibi",)).experiments()


def test_held_out_positions_may_stand_elsewhere() -> None:
    run = train.start(recipe("copy", "learned(max_len=64)", test_map="shifted(by=7)", **SMALL))
    positions = []
    run.model.register_forward_pre_hook(
        lambda model, args, kwargs: positions.append(kwargs["positions"].coords[0, 0, 0].item()), with_kwargs=True
    )
    train.train(run, stop_step=1)
    assert positions[0] == 0 and set(positions[1:]) == {7}


def test_without_position_is_the_trained_weights_around_none() -> None:
    run = train.train(
        train.start(recipe("grid_mark", "axial_rotary", dim=32, heads=2, layers=1, steps=2, test_lengths=()))
    )
    plain = without_position(run.model, run.experiment, run.task)
    assert not plain.encoder.stack.encoding_of[0].doors
    assert torch.equal(plain.output.weight, run.model.output.weight)
    batch = run.task.batch(4, 2, torch.Generator().manual_seed(0))
    assert not torch.equal(logits_of(plain, batch, natural), logits_of(run.model.eval(), batch, natural))


def in_this_process(experiments, folder: Path, *, log=(), show=lambda sweep: None):
    state = Sweep()
    for run in experiments:
        key = record.key_of(run)
        state.runs[key] = sweep.Progress(key, str(run.spec), run.task, run.seed, run.steps)
        if not sweep.kept_record(folder / "records" / f"{key}.json"):
            make_record(run, key, folder / "records", lambda **changes: None, log)
        state.runs[key].state = "done"
    return state


def test_each_encoding_gets_the_rate_with_which_it_learns_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = []

    def run_stub(experiments, folder: Path, **options):
        for run in experiments:
            trials.append((run.spec, run.seed, run.rate))
        return in_this_process([], folder)

    best = {"none": 3e-3, "rotary": 1e-2}
    monkeypatch.setattr(comparing, "run_all", run_stub)
    monkeypatch.setattr(comparing, "final_loss", lambda run, sweep, folder: abs(run.rate - best[run.spec]) + run.seed)
    runs = [recipe("copy", spec, seed) for spec in best for seed in (100, 101)]
    best_runs = at_best_rates(runs, (1e-3, 3e-3, 1e-2), tmp_path, lambda sweep: None)
    assert [(run.spec, run.seed, run.rate) for run in best_runs] == [(r.spec, r.seed, best[r.spec]) for r in runs]
    assert {seed for _, seed, _ in trials} == {90, 91} and len(trials) == 2 * 2 * 3


def test_seeds_of_the_search_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = Settings(("none",), ("copy",), seed_from=91, rates=(1e-3,), seeds=1)
    words = r"^the seeds \[91\] are those on which rates are chosen; begin with --seed-from 100$"
    with pytest.raises(ValueError, match=words):
        compare(settings, tmp_path / "run")
    assert not [*tmp_path.iterdir()]


def test_a_rate_that_fails_is_beaten_and_where_all_fail_it_is_said(tmp_path: Path, monkeypatch) -> None:
    failed_sweep = Sweep(failures={"a": "its loss is nan"})
    monkeypatch.setattr(comparing, "run_all", lambda runs, folder, **options: failed_sweep)
    monkeypatch.setattr(comparing, "final_loss", lambda run, sweep, folder: None if run.rate > 1e-3 else 2.0)
    (best_run,) = at_best_rates([recipe("copy", "none")], (1e-3, 3e-3), tmp_path, lambda sweep: None)
    assert best_run.rate == 1e-3
    with pytest.raises(RuntimeError, match=r"^none on copy failed at every rate; the first: its loss is nan$"):
        at_best_rates([recipe("copy", "none")], (3e-3,), tmp_path, lambda sweep: None)


@pytest.mark.slow
def test_rates_are_searched_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "run_all", in_this_process)
    settings = Settings(
        ("none",), ("repeat",), seeds=1, rates=(1e-9, 5e-3), changes=SMALL | {"train_length": 2, "steps": 30}
    )
    records, _, _ = compare(settings, tmp_path / "out")
    assert [row["experiment"]["rate"] for row in records] == [5e-3]
    assert len(list((tmp_path / "out" / "search" / "records").glob("*.json"))) == 4


OWN_FILE = """
from posenc import Encoding


class Wave(Encoding):
    label = {label}

    def by_distance(self, delta):
        return -delta.abs().float()[None]
"""


def test_a_class_says_what_it_is_called_and_a_user_says_otherwise(tmp_path: Path) -> None:
    own_file = tmp_path / "mine.py"
    own_file.write_text(OWN_FILE.format(label='"Ripple"'))
    run = replace(recipe("copy", f"{own_file}:Wave + rotary"), **SMALL)
    model = model_of(run, run.build_task())
    assert label_of(run, model) == "Ripple + rotary" and label_of(replace(run, spec="rotary"), model) is None
    records = [{"experiment": {"spec": ["rotary", "none"]}}, {"experiment": {"spec": "alibi"}, "label": "A"}]
    assert [row.get("label") for row in with_labels(records, {"rotary / none": "Mixed"})] == ["Mixed", "A"]
    own_file.write_text(OWN_FILE.format(label='"two\\nlines"'))
    with pytest.raises(ValueError, match=r"a label must be one line of 1 to 40 letters, got 'two\\nlines'"):
        Settings((f"{own_file}:Wave",), ("copy",), changes=SMALL).experiments()


@pytest.mark.slow
def test_loggers_hear_of_every_run_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "run_all", in_this_process)
    settings = Settings(("none", "rotary"), ("repeat",), seeds=1, changes=SMALL | {"train_length": 2})
    records, _, _ = compare(settings, tmp_path / "out", log=["jsonl"])
    for row in records:
        lines = (tmp_path / "out" / "logs" / row["key"] / "log.jsonl").read_text().splitlines()
        assert len(lines) == 2 + len(row["curve"])
    with pytest.raises(ValueError, match="no logger named 'jsonx'"):
        compare(settings, tmp_path / "other", log=["jsonx"])
    assert not (tmp_path / "other").exists()


def test_evidence_begins_behind_the_seeds_of_the_search() -> None:
    assert recipes.FIRST_SEED == 100 and set(comparing.SEARCH_SEEDS) <= set(recipes.RECIPE_SEEDS)
    assert {run.seed for run in Settings(("none",), ("copy",)).experiments()} == {100, 101, 102}
    assert {run.seed for run in Settings(("none",), ("copy",), seeds=2, seed_from=500).experiments()} == {500, 501}
