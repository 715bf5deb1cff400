"""Several processes train as one: the same losses, weights and checkpoints; one output, one end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import FORKS, ForkedCli

import posenc
from posenc.lab import store
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import checkpoint
from posenc.lab.runs.ranks import SOLO, DistributedRanks, is_lost, join_ranks
from posenc.lab.runs.train import Run, start, train
from posenc.lab.tasks import Batch
from posenc.tokens.positions import Positions

pytestmark = pytest.mark.skipif(
    not FORKS or not dist.is_available(), reason="processes are forked, and speak through torch.distributed"
)

SIZES = {"train_length": 20, "dim": 16, "heads": 2, "layers": 2, "batch": 7, "warmup": 2}
# Masks fall where they fall: ranks have unequal numbers of answers.
RECIPE = {"task": "masked_symbols", "spec": "learned + kerple", "seed": 3, **SIZES}
SENTENCE = "posenc: another process of this training has ended in the middle of it; what was finished is kept"

MEETINGS: list[dist.TCPStore] = []

ROUNDING = 2e-5
"""What sums in another order, and some steps of AdamW behind them, may differ by."""


def start_ranks(size: int, folder: Path, *extra: str, steps: int = 12, rest: tuple[str, ...] = ()) -> list[ForkedCli]:
    """Start `posenc train` in several processes, as torchrun does; `rest` are options of all ranks but the first."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    options += ["--task=masked_symbols", "--seed=3", f"--steps={steps}", "--evaluate-every=4", "--threads=1"]
    # As torchrun's own process keeps what its ranks meet through, so that it outlives each of them.
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    MEETINGS.append(meeting)
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)}
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [
        ForkedCli(
            *("train", "learned + kerple", f"--out={folder}", *options, *extra, *(rest if rank else ())),
            environment={} if size == 1 else variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]


def wait_for(ranks: list[ForkedCli], seconds: float = 60) -> list[tuple[int, str, str]]:
    """The exit code and output of each rank, within a bounded time."""
    try:
        deadline = time.monotonic() + seconds
        while any(rank.poll() is None for rank in ranks):
            assert time.monotonic() < deadline, "they did not end"
            time.sleep(0.02)
        return [rank.outcome() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def trained_alone(steps: int) -> Run:
    return train(start(recipe(**RECIPE, steps=steps, evaluate_every=4)))


@pytest.fixture(scope="module")
def alone() -> Run:
    return trained_alone(12)


def expect_same_run(run: Run, folder: Path, loss: float = 1e-5, weights: float = ROUNDING) -> None:
    """Assert that the run in a folder is this one, up to rounding."""
    copy = checkpoint.load(folder)
    assert copy.step == run.step and copy.tokens == run.tokens
    assert torch.equal(copy.generator.get_state(), run.generator.get_state())
    for point, expected in zip(copy.curve, run.curve, strict=True):
        assert point["step"] == expected["step"]
        assert point["loss"] == pytest.approx(expected["loss"], abs=loss)
        assert point["score"] == pytest.approx(expected["score"], abs=0.02)
    same_weights(copy, run, weights)


def same_weights(copy: Run, run: Run, rounding: float = ROUNDING) -> None:
    for (name, actual), expected in zip(copy.model.state_dict().items(), run.model.state_dict().values(), strict=True):
        # A number that is added to all keys changes no softmax: its gradient is rounding, and AdamW takes full steps.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(actual, expected, rtol=0, atol=rounding, msg=name)


WAYS = [
    pytest.param(2, ("--parallel=ddp",), marks=pytest.mark.slow),
    (3, ("--parallel=fsdp", "--accumulation=2", "--activation-checkpointing")),
    pytest.param(3, ("--accumulation=2",), marks=pytest.mark.slow),
    pytest.param(2, ("--parallel=fsdp", "--matrix-rate=0.02"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "options"), WAYS)
def test_several_processes_train_what_one_does(size: int, options: tuple[str, ...], tmp_path: Path, alone: Run) -> None:
    rounding: tuple[float, ...] = ()
    if "--matrix-rate=0.02" in options:
        alone = train(start(recipe(**RECIPE, matrix_rate=0.02, steps=12, evaluate_every=4)))
        # Muon multiplies in bfloat16: one process with another number of parts differs by as much.
        rounding = (1e-3, 2e-2)
    first, *silent_ranks = wait_for(start_ranks(size, tmp_path, *options))
    assert first[0] == 0, first[2]
    assert "step 12/12" in first[2] and "Checkpoint:" in first[1]
    # One of them speaks.
    assert silent_ranks == [(0, "", "")] * (size - 1)
    expect_same_run(alone, tmp_path, *rounding)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size_1", "size_2"),
    [((2, "fsdp"), (1, None)), ((1, None), (3, "fsdp"))],
    ids=["two to one", "one to three"],
)
def test_a_rank_that_is_killed_loses_the_step_and_any_number_of_them_goes_on(size_1, size_2, tmp_path: Path) -> None:
    def parallel(how: str | None) -> tuple[str, ...]:
        return (f"--parallel={how}",) if how else ()

    size, how = size_1
    ranks = start_ranks(size, tmp_path, *parallel(how), steps=60)
    ranks[0].wait_for(lambda: (tmp_path / "step-000008").exists())
    ranks[-1].kill(signal.SIGKILL)
    *left, last_rank = wait_for(ranks)
    assert last_rank[0] == -signal.SIGKILL
    for code, _, words in left:
        assert code == 1 and words.splitlines()[-1].startswith(SENTENCE), words
    step = checkpoint.load(tmp_path).step
    assert 4 <= step < 60
    size, how = size_2
    first, *_ = wait_for(start_ranks(size, tmp_path, *parallel(how), steps=60))
    assert first[0] == 0 and f"going on at step {step} of 60" in first[2]
    expect_same_run(trained_alone(60), tmp_path)


@pytest.mark.slow
def test_torchrun_starts_them_and_starts_them_again_where_one_is_killed(tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    options += ["--task=masked_symbols", "--seed=3", "--steps=200", "--evaluate-every=4", "--threads=1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [*torchrun, "-m", "posenc", "train", "learned + kerple", f"--out={tmp_path / 'run'}", *options]
    environment = os.environ | {"PYTHONPATH": str(Path(posenc.__file__).parents[1])}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "step-000012").exists():
            assert run.poll() is None and time.monotonic() < deadline, "it ended, or came to nothing"
            time.sleep(0.02)
        os.kill(worker_of(run.pid), signal.SIGKILL)
        _, words = run.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, words
    assert "going on at step" in words and words.count("posenc: ") == 1
    expect_same_run(trained_alone(200), tmp_path / "run")


def worker_of(agent: int) -> int:
    """The process id of a worker of torchrun, from /proc."""
    children = Path(f"/proc/{agent}/task/{agent}/children")
    if not children.exists():
        pytest.skip("this system does not say which processes belong to another")
    pids = [int(child) for child in children.read_text().split()]
    return next(pid for pid in pids if b"posenc\0train" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_what_one_rank_has_alone_is_told_once_and_ends_all(tmp_path: Path) -> None:
    results = wait_for(start_ranks(3, tmp_path, rest=("--dropout=0.5",)))
    assert all(code for code, _, _ in results)
    words = "".join(stderr for _, _, stderr in results)
    assert words.count("posenc: ") == 1 and "rank 1 has another experiment than rank 0 (" in words
    assert "all of them need the same files and the same Python" in words
    assert not checkpoint.has_checkpoint(tmp_path)


def test_a_folder_is_held_by_the_first_rank_for_all(tmp_path: Path) -> None:
    with store.locked_folder(tmp_path):
        results = wait_for(start_ranks(2, tmp_path))
    assert [code for code, _, _ in results] == [2, 1], results[1][2]
    assert "another posenc is at work in" in results[0][2] and results[1][2] == ""


def test_a_batch_without_a_row_for_each_part_is_refused(tmp_path: Path) -> None:
    results = wait_for(start_ranks(2, tmp_path, "--accumulation=4"))
    words = "".join(stderr for _, _, stderr in results)
    assert "the batch must have a row for each of 2 processes x accumulation 4, got 7; enlarge it, or acc" in words
    assert words.count("posenc: ") == 1 and all(code for code, _, _ in results)


@pytest.mark.parametrize(("size", "accumulation", "rows"), [(1, 1, 5), (1, 3, 5), (3, 1, 5), (2, 3, 6), (4, 2, 11)])
def test_every_row_is_in_one_part_of_one_rank(size: int, accumulation: int, rows: int) -> None:
    parts = [part for rank in range(size) for part in DistributedRanks(rank, size).parts(rows, accumulation)]
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == size * accumulation and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_rows_of_a_batch_take_along_what_is_of_each_row() -> None:
    ids = torch.arange(12).view(4, 3)
    shared_positions = Positions.of(torch.arange(3))
    row_positions = Positions.of(ids)
    batch = Batch(ids, ids + 1, torch.tensor([False, True, True]), shared_positions, ids + 2, None, row_positions)
    part = batch.rows(slice(1, 3))
    assert part.ids.tolist() == [[3, 4, 5], [6, 7, 8]] and part.targets.tolist() == [[4, 5, 6], [7, 8, 9]]
    assert part.answer.tolist() == [False, True, True] and part.positions is shared_positions
    assert part.source is not None and part.source.tolist() == [[5, 6, 7], [8, 9, 10]]
    assert part.source_positions is not None and part.source_positions.coords[..., 0].tolist() == part.ids.tolist()
    assert batch.answer_count == 8 and part.answer_count == 4
    pair = Batch(ids, ids, ids % 2 == 0)
    assert pair.rows(slice(0, 1)).answer.tolist() == [[True, False, True]] and pair.rows(slice(0, 1)).answer_count == 2


def test_one_process_keeps_what_it_is_given() -> None:
    model, tensor = torch.nn.Linear(2, 2), torch.ones(2)
    assert SOLO.first and SOLO.training_module(model) is model and SOLO.distribute(model, [], "cpu") is model
    assert SOLO.broadcast(3) == 3 and SOLO.total(0.5) == 0.5 and SOLO.device("cuda") == "cuda"
    assert SOLO.gather(tensor) is tensor and SOLO.shard(tensor, model.weight) is tensor


def test_a_way_for_several_processes_is_refused_to_one() -> None:
    words = r"^parallel=fsdp is for several processes, and this is one; start them with torchrun --nproc-per-node 2 -m"
    with pytest.raises(ValueError, match=words), join_ranks("fsdp"):
        pass
    with pytest.raises(ValueError, match=r"^parallel must be ddp or fsdp, got 'dp'$"), join_ranks("dp"):
        pass
    with join_ranks() as ranks:
        assert ranks is SOLO


def test_a_fault_of_ours_is_no_lost_rank() -> None:
    assert is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"))
    assert not is_lost(RuntimeError("shapes do not fit")) and not is_lost(ValueError("gloo"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Each row is placed by a draw of its own.
        pytest.param({"task": "copy", "spec": "rotary", "map": "randomised(longest=64)"}, marks=pytest.mark.slow),
        {"task": "translation", "spec": "rotary", "map": "randomised(longest=64)"},
    ],
    ids=["masked", "placed at random", "with a source"],
)
def test_parts_of_a_batch_have_the_gradient_of_the_whole(changes: dict) -> None:
    settings = RECIPE | {"train_length": 10 if changes else 20} | changes
    whole, parts = (
        train(start(recipe(**settings, steps=6, evaluate_every=3), execution=Execution(accumulation=count)))
        for count in (1, 5)
    )
    assert [p["loss"] for p in parts.curve] == pytest.approx([p["loss"] for p in whole.curve], abs=1e-5)
    # A tied table begins narrow: the first gradients of what reads the source are small, and AdamW divides by them.
    same_weights(parts, whole, 10 * ROUNDING if changes.get("task") == "translation" else ROUNDING)
