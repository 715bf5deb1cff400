"""The benchmark measures what it says: turns, ratios, errors, goals and losses, on clocks and candidates made up."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiers import rest_slow

import bench
from posenc.foreign import CannotRead
from posenc.lab import figures
from posenc.tokens.positions import Positions
from posenc_bench import comparison, goals, measure, peers, plot, report, run, subprocesses
from posenc_bench.cases import adding, attention, decoding, gpu, memory, models, rotation, startup, weights
from posenc_bench.goals import Goal
from posenc_bench.measure import MIN_ROUNDS, WARM_UP, Group, Row

HOME = Path(__file__).resolve().parents[2]


class Clock:
    """A clock that advances only when a call advances it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu = self.wall = 0.0
        self.done: list[str] = []
        monkeypatch.setattr(measure.time, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(measure.time, "monotonic", lambda: self.wall)

    def work(self, name: str, *seconds: float, first: float = 0.0, result=None):
        """A call that takes so many seconds, one after the other and again, and more the first time."""
        calls = iter(range(10**9))

        def call():
            count = next(calls)
            self.done.append(name)
            took = seconds[count % len(seconds)] + (first if count == 0 else 0)
            self.cpu += took
            self.wall += 3 * took
            return result

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# Turns


def test_candidates_take_turns_and_the_order_moves_on(clock: Clock) -> None:
    seconds = measure.take_turns({name: clock.work(name, 0.3) for name in "abc"}, max_rounds=5)
    assert all(times == pytest.approx([0.3] * 5) for times in seconds.values())
    # The second warm-up round is left out for calls as long as these.
    rounds = ["".join(clock.done[i : i + 3]) for i in range(0, len(clock.done), 3)]
    assert rounds == ["abc", "cab", "abc", "bca", "cab", "abc"]


def test_what_the_first_call_costs_is_not_counted(clock: Clock) -> None:
    times = measure.take_turns({"a": clock.work("a", 0.3, first=60.0)}, max_rounds=6)
    assert times["a"] == pytest.approx([0.3] * 6)


def test_short_calls_are_repeated_within_a_turn_by_their_own_length(clock: Clock) -> None:
    times = measure.take_turns({"short": clock.work("short", 0.001), "long": clock.work("long", 0.5)}, max_rounds=5)
    assert times["short"] == pytest.approx([0.001] * 5)
    assert clock.done.count("short") == WARM_UP + 5 * 20
    assert clock.done.count("long") == 1 + 5


def test_no_round_begins_after_the_time_is_over_but_there_are_always_enough(clock: Clock) -> None:
    times = measure.take_turns({"a": clock.work("a", 100.0)}, seconds=1.0, max_rounds=50)
    assert len(times["a"]) == MIN_ROUNDS
    times = measure.take_turns({"a": clock.work("a", 1.0)}, seconds=30.0, max_rounds=50)
    assert MIN_ROUNDS < len(times["a"]) < 15


def test_one_thread_is_timed_by_its_cpu_and_several_by_the_wall(clock: Clock) -> None:
    assert measure.take_turns({"a": clock.work("a", 0.5)}, max_rounds=5)["a"] == pytest.approx([0.5] * 5)
    assert measure.take_turns({"a": clock.work("a", 0.5)}, clock=measure.clock_of("cpu", 2), max_rounds=5)[
        "a"
    ] == pytest.approx([1.5] * 5)


# Ratios


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    # A round in which everything took ten times as long changes nothing.
    limit = [1.0, 1.0, 10.0, 1.0, 1.0]
    assert measure.ratio([2.0, 3.0, 20.0, 2.0, 1.0], limit) == pytest.approx((2.0, 2.0, 2.0))
    low, high = measure.ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)[1:]
    assert (low, high) == (2.0, 4.0)


def test_by_the_wall_the_shortest_rounds_count() -> None:
    assert measure.ratio([6.0, 2.0, 9.0, 9.0, 9.0], [1.0, 7.0, 7.0, 7.0, 7.0], wall=True)[0] == 2.0


@pytest.mark.parametrize(("times", "limit"), [(4, 4), (5, 4), (6, 5)])
def test_a_ratio_out_of_too_few_rounds_is_refused(times: int, limit: int) -> None:
    with pytest.raises(ValueError, match=rf"needs 5 rounds of both, got {times} and {limit}"):
        measure.ratio([1.0] * times, [1.0] * limit)


def group_of(clock: Clock, *, error: float = 0.0, kind: str = "posenc") -> Group:
    group = Group("rotation", "a case", "limit", facts={"tokens": 3}, absent={"theirs": "theirs is not installed"})
    group.add("limit", "limit", clock.work("limit", 0.4))
    group.add("mine", kind, clock.work("mine", 0.6), error=lambda: error, tolerance=1e-3)
    return group


def test_a_row_says_all_that_was_found(clock: Clock) -> None:
    limit, posenc_row, peer_row = measure.measure(group_of(clock, error=5e-7), max_rounds=5)
    assert (limit.value, limit.unit, limit.kind) == (1.0, "x limit", "limit")
    assert posenc_row.value == pytest.approx(1.5) and posenc_row.seconds == pytest.approx(0.6)
    assert (posenc_row.rounds, posenc_row.error, posenc_row.facts, posenc_row.threads) == (5, 5e-7, {"tokens": 3}, 1)
    assert (peer_row.value, peer_row.note) == (None, "theirs is not installed")
    assert json.loads(json.dumps(posenc_row.to_dict()))["seconds"] == pytest.approx(0.6)


@pytest.mark.parametrize("error", [0.5, math.nan])
def test_what_is_wrong_is_not_timed(clock: Clock, error: float) -> None:
    _, row, _ = measure.measure(group_of(clock, error=error, kind="peer"), max_rounds=5)
    assert row.value is None and row.seconds is None and row.note == "wrong, so not timed"
    assert "mine" not in clock.done


@pytest.mark.parametrize("error", [0.5, math.nan])
def test_a_wrong_result_of_ours_ends_the_run(clock: Clock, error: float) -> None:
    with pytest.raises(RuntimeError, match=r"mine is wrong in 'a case': its error is .*, and 1.0e-03 is the most"):
        measure.measure(group_of(clock, error=error), max_rounds=5)


def test_threads_and_gradients_are_as_asked_and_then_as_before(clock: Clock) -> None:
    settings, old_settings, work = [], torch.get_num_threads(), clock.work("limit", 1.0)

    def look() -> None:
        work()
        settings.append((torch.get_num_threads(), torch.is_grad_enabled()))

    for grad in (False, True):
        group = Group("what", "case", "limit", grad=grad)
        group.add("limit", "limit", look)
        measure.measure(group, threads=2, max_rounds=5)
    assert set(settings[: len(settings) // 2]) == {(2, False)} and set(settings[len(settings) // 2 :]) == {(2, True)}
    assert torch.get_num_threads() == old_settings and torch.is_grad_enabled()


def test_a_difference_sees_nan_wherever_it_is() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, math.nan])
    assert measure.difference([good, good], [good, good + 0.5]) == 0.5
    assert math.isnan(measure.difference([good, bad], [good, good]))
    assert math.isnan(measure.difference([bad, good], [good, good]))


# Cases: small ones of every kind, each result held against an oracle written here


def values(group: Group) -> dict[str, torch.Tensor]:
    with torch.set_grad_enabled(group.grad):
        return {candidate.name: candidate.call() for candidate in group.candidates}


def errors(group: Group) -> dict[str, float]:
    with torch.set_grad_enabled(group.grad):
        return {c.name: c.error() for c in group.candidates if c.error is not None}


@pytest.fixture(scope="module")
def small() -> rotation.Case:
    return rotation.Case("training", 2, 3, 1, 5, 8, torch.float32, start=2)


def test_the_oracle_of_rotations_is_the_formula(small: rotation.Case) -> None:
    x = torch.randn(1, 1, 5, 8)
    for layout, first, second in (("half", 1, 5), ("interleaved", 2, 3)):
        out = rotation.rotate_in_double(x, small, layout)
        for t in range(5):
            angle = (2 + t) * 10_000.0 ** (-1 / 4)
            a, b = x[0, 0, t, first].item(), x[0, 0, t, second].item()
            assert out[0, 0, t, first].item() == pytest.approx(a * math.cos(angle) - b * math.sin(angle))
            assert out[0, 0, t, second].item() == pytest.approx(b * math.cos(angle) + a * math.sin(angle))
        assert torch.allclose(rotation.rotate_in_double(out, small, layout, -1), x.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens_first", [False, True])
def test_every_rotation_is_right_and_a_wrong_one_is_seen(
    small: rotation.Case, dtype: torch.dtype, tokens_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(small, dtype=dtype, tokens_first=tokens_first)
    rows = errors(rotation.forward(case, with_peers=False, full=False))
    assert {"rotary, into new tensors", "rotary without C, into new tensors"} <= rows.keys()
    assert max(rows.values()) < (1e-5 if dtype is torch.float32 else 0.05)
    monkeypatch.setattr(rotation, "BASE", 9_000.0)
    wrong = errors(rotation.forward(case, with_peers=False, full=False))
    assert wrong["rotary, into new tensors"] > 1e-3


def test_gradients_and_single_tokens_are_held_too(small: rotation.Case) -> None:
    assert max(errors(rotation.with_backward(small, with_peers=False, full=False)).values()) < 1e-5
    single_token = replace(small, tokens=1, start=40)
    assert max(errors(rotation.decoding(single_token, with_peers=False, full=False)).values()) < 1e-4


def test_what_is_compiled_is_left_out_and_comes_back(small: rotation.Case) -> None:
    calls = []

    def turn() -> None:
        calls.append(rotation.native.load().library)

    library = rotation.native.load
    rotation.without_native_code(turn)()
    assert calls == [None] and rotation.native.load is library


def test_a_rotation_of_others_stands_in_the_same_layer(small: rotation.Case) -> None:
    q, k = small.inputs()
    at = Positions.count(5)
    peer = rotation.PeerRotation(lambda q, k: (q + 1, k + 2))
    rotated_heads = peer.turn_both(q, k, at, at)
    assert rotated_heads[0].equal(q + 1) and rotated_heads[1].equal(k + 2)


def naive(q, k, v, bias):
    """Causal attention in float64, a query at a time; bias(head, i, j)."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for h in range(q.shape[1]):
        for i in range(q.shape[2]):
            logits = torch.stack([q[0, h, i].double() @ k[0, h, j].double() / 8 + bias(h, i, j) for j in range(i + 1)])
            out[0, h, i] = logits.softmax(0) @ v[0, h, : i + 1].double()
    return out


def test_attention_with_alibi_is_what_the_paper_says() -> None:
    group = attention.causal(12, backward=False, with_peers=False, only="alibi")
    case = attention.Case(12, False)
    right = naive(*case.inputs(), lambda h, i, j: -(2.0 ** -(h + 1)) * (i - j))
    assert measure.difference(values(group)["alibi"], right) < 1e-5


def test_every_way_to_a_bias_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    # FlexAttention takes half a minute to compile.
    monkeypatch.setattr(attention, "LONGEST_COMPILED", 0)
    group = attention.causal(40, backward=False, with_peers=False)
    rows = values(group)
    for candidate in group.candidates:
        if candidate.kind == "naive":
            assert measure.difference(rows[candidate.name], rows[candidate.subject]) < 1e-4, candidate.name
    assert set(attention.SPECS) <= rows.keys()
    assert max(errors(group).values()) < 1e-4


def test_the_oracle_of_attention_sees_a_wrong_row() -> None:
    case = attention.Case(100, False)
    subject = attention.Subject("alibi", case, case.inputs())
    for row in (0, 50, 99):

        def wrong(row: int = row) -> torch.Tensor:
            out = subject.call().clone()
            out[0, 3, row, 5] += 0.25
            return out

        assert subject.error(wrong) == pytest.approx(0.25, abs=1e-4)
    assert subject.error(subject.call) < 1e-5


def test_backward_wants_the_gradient_of_everything_that_learns() -> None:
    group = attention.causal(20, backward=True, with_peers=False, only="t5_bias")
    gradients = values(group)["t5_bias"]
    assert len(gradients) == 4 and all(gradient.abs().sum() > 0 for gradient in gradients)
    group = attention.causal(20, backward=True, with_peers=False, only="forgetting")
    # q, k, v; the projection of the gates stands still, the gates do not.
    nonzero = [gradient for gradient in values(group)["forgetting"] if gradient is not None]
    assert len(nonzero) == 4 and nonzero[3].shape == (1, 8, 20)


def test_a_name_alone_makes_that_candidate_alone() -> None:
    for name in ("shaw(max_distance=64, values=False)", "alibi by hand, matrix made in each call", attention.PLAIN):
        group = attention.causal(16, backward=False, with_peers=False, only=name)
        assert {candidate.name for candidate in group.candidates} == {attention.PLAIN, name}


@pytest.mark.parametrize("start", [0, 30])
def test_what_is_added_is_right(start: int) -> None:
    case = adding.Case(2, 7, 6, start)
    assert max(errors(adding.sinusoidal(case, with_peers=False)).values()) < 1e-5
    assert max(errors(adding.learned_table(case, backward=False)).values()) < 1e-6
    group = adding.learned_table(case, backward=True)
    gradients = [gradient for (gradient,) in values(group).values()]
    assert all(gradient.equal(gradients[0]) for gradient in gradients[1:])
    position = torch.arange(start, start + 7).double()
    assert torch.allclose(case.right()[:, 3], torch.cos(position * 10_000.0 ** (-2 / 6)))


def test_a_step_behind_a_cache_is_the_last_row_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DIM", 32)
    monkeypatch.setattr(decoding, "HEADS", 4)
    group = decoding.step(24)
    assert max(errors(group).values()) < 1e-5
    with torch.no_grad():
        rows = values(group)
    assert measure.difference(rows["none"], rows[decoding.BY_HAND]) < 1e-5


@pytest.mark.parametrize("specs", rest_slow([("alibi",), gpu.FUSED_KERNELS], 1))
@pytest.mark.parametrize("backward", [False, True])
def test_the_gpu_s_cases_are_right_where_there_is_none(backward, specs, small: rotation.Case, monkeypatch) -> None:
    """The same lines on a CPU, but for what a compiler makes of them."""
    monkeypatch.setattr(gpu, "FUSED_KERNELS", specs)
    groups = [gpu.rotation(replace(small, start=0), backward, False, "cpu")]
    if not backward:
        # FlexAttention has no backward pass there.
        groups.append(gpu.attention(70, backward, "cpu"))
    for group in groups:
        with torch.set_grad_enabled(group.grad):
            for candidate in group.candidates:
                if "compiled" not in candidate.name:
                    candidate.call()
                    assert candidate.error is None or candidate.error() < 0.05, candidate.name
    assert [candidate.name for candidate in groups[0].candidates] == [
        *(rotation.CLONE, "rotary", "rotary, compiled", "by hand, compiled")
    ]


def test_without_a_gpu_a_row_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert not list(gpu.groups("quick", with_peers=False))
    (row,) = gpu.rows("quick", with_peers=False)
    assert row.note == "there is no CUDA device"


def test_work_on_a_gpu_is_timed_until_it_is_done(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(clock.wall))
    group = group_of(clock)
    group.device = "cuda"
    _, row, _ = measure.measure(group, max_rounds=5)
    # Each turn begins and ends with nothing left to do; the wall goes three times as fast as the CPU here.
    assert len(waits) % 2 == 0 and waits and row.seconds == pytest.approx(1.8)


SMALL = models.Size(32, 4, 2, 12, 2, 9)


@pytest.mark.slow
def test_a_model_by_hand_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    group = models.training(SMALL, with_peers=False, is_compiled=False)
    assert max(errors(group).values()) < 1e-5
    for candidate in group.candidates:
        candidate.call()
    group = models.generation(SMALL, with_peers=False)
    with torch.no_grad():
        rows = values(group)
    assert errors(group) == {"rotary": 0.0} and rows["rotary"].equal(rows[models.BY_HAND])
    assert all(ids.shape == (1, models.PROMPT + 9) for ids in rows.values())
    by_hand, ids = models.ByHand(models.build_model(SMALL, "rotary"), 13), torch.arange(13)[None]
    by_hand.cos = by_hand.cos.roll(1, 0)
    assert models.logits_error(by_hand, ids, models.build_model(SMALL, "rotary")(ids).detach())() > 1e-3


# Apart


def test_a_command_is_timed_whole_and_has_to_end_as_it_should(tmp_path: Path) -> None:
    assert 0 < subprocesses.seconds(str(tmp_path), code="sum(range(100_000))") < 5
    with pytest.raises(RuntimeError, match="ended with 3"):
        subprocesses.seconds(str(tmp_path), code="raise SystemExit(3)")
    subprocesses.seconds(str(tmp_path), code="raise SystemExit(3)", fails=True)
    with pytest.raises(RuntimeError, match="ended with 0"):
        subprocesses.seconds(str(tmp_path), code="pass", fails=True)


def test_commands_are_told_with_or_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def pretend(folder: str, *words: str, code: str = "", fails: bool = False) -> float:
        commands.append((words or code, fails))
        return 1.0 if code else 1.5

    monkeypatch.setattr(subprocesses, "seconds", pretend)
    monkeypatch.setattr(startup, "imports", lambda *arguments: iter(()))
    rows = {row.candidate: row.value for row in startup.rows("quick", with_peers=False)}
    assert rows["posenc list"] == 1.5 and rows["posenc show rotary"] == 0.5 and rows["import torch"] == 1.0
    assert commands[0] == (startup.BUILD_CODE, False) and (("show", "rotari"), True) in commands


def test_a_process_of_its_own_answers_in_json(tmp_path, monkeypatch) -> None:
    # Nor is anything run that lies where the command is given.
    (tmp_path / "json.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    assert subprocesses.run("import json, sys; print('noise'); print(json.dumps([sys.argv[1]]))", "one") == ["one"]
    with pytest.raises(RuntimeError, match=r"a process of its own failed: .*no such thing"):
        subprocesses.run("raise SystemExit('no such thing')")


@pytest.mark.skipif(not subprocesses.can_see_peaks(), reason=subprocesses.WHY_NOT)
def test_the_peak_of_a_call_is_what_it_holds_at_once() -> None:
    def call() -> torch.Tensor:
        large = torch.ones(16 << 20)  # 64 MiB
        return large[:10] + torch.ones(8 << 20).sum()  # and 32 more

    assert subprocesses.peak_of(call) == pytest.approx(96, abs=8)
    assert subprocesses.peak_of(lambda: None) < 8


def test_memory_is_measured_for_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    measured_cases = []

    def pretend(code: str, name: str, cases: str, threads: int) -> list[float]:
        measured_cases.append(name)
        if name == "t5_bias":
            raise RuntimeError("a process of its own failed: out of memory")
        return [65.0 if name == "alibi" else 10.0 for _ in json.loads(cases)]

    monkeypatch.setattr(subprocesses, "run", pretend)
    monkeypatch.setattr(subprocesses, "can_see_peaks", lambda: True)
    rows = {(row.candidate, row.case): row for row in memory.rows("quick", with_peers=False)}
    assert measured_cases == [attention.PLAIN, *memory.QUICK, memory.BY_HAND[0]]
    assert rows["alibi", "T 4096: forward"].value == 65.0
    assert rows[memory.QUICK[2], "T 2048: forward and backward"].value == 10.0
    assert rows["t5_bias", "all"].note.endswith("out of memory") and rows["t5_bias", "all"].value is None
    measured_cases.clear()
    assert len(list(memory.rows("full", with_peers=True))) > len(list(memory.rows("full", with_peers=False)))
    assert set(attention.SPECS) | set(memory.BY_HAND) <= set(measured_cases)
    monkeypatch.setattr(subprocesses, "can_see_peaks", lambda: False)
    (row,) = memory.rows("quick", with_peers=False)
    assert row.note == subprocesses.WHY_NOT
    assert all(row.note == subprocesses.WHY_NOT for row in weights.rows("quick", with_peers=False))


@pytest.mark.parametrize("name", ["alibi", "t5_bias", attention.PLAIN, "alibi as attn_mask made in each call"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_peak_is_found_for_every_candidate(name: str, backward: bool) -> None:
    if not subprocesses.can_see_peaks():
        pytest.skip(subprocesses.WHY_NOT)
    assert -4 < memory.peak(name, 48, backward) < 64


def test_an_import_is_what_it_takes_beyond_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first round of each is dropped, and the shortest of the others counts.
    costs = {"Rotary": iter([9.0, *[0.3, 0.2, 0.3, 0.4, 0.5]]), "posenc": iter([9.0, *[0.5, 0.5, 0.5, 0.5, 0.04]])}

    def pretend(code: str) -> list[float]:
        return [1.0, next(next(times for name, times in costs.items() if name in code))]

    monkeypatch.setattr(subprocesses, "run", pretend)
    monkeypatch.setattr(peers, "versions", dict)
    rows = {row.candidate: row for row in startup.imports("quick", with_peers=True, threads=1)}
    assert rows[startup.TORCH].value == 1.0
    assert rows["import posenc"].value == 0.04
    assert rows["import posenc, make a Rotary"].value == 0.2
    assert rows["x-transformers"].note == "x-transformers is not installed"


# Peers


def test_a_library_that_is_not_installed_is_absent_by_name(
    small: rotation.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str):
        raise peers.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(peers.importlib.metadata, "version", nowhere)
    monkeypatch.setattr(peers.importlib.metadata, "distribution", nowhere)
    monkeypatch.delitem(sys.modules, "torchtune_position_embeddings", raising=False)
    group = rotation.decoding(small, with_peers=True, full=True)
    assert set(group.absent) == set(peers.ROTATIONS)
    assert group.absent["torchtune"] == "torchtune is not installed"
    assert group.absent["x-transformers"] == "x-transformers is not installed"
    assert not [candidate for candidate in group.candidates if candidate.kind == "peer"]
    assert peers.versions() == {}


# Report


def row(candidate: str, value: float | None, kind: str = "peer", **columns) -> dict:
    values = {"unit": "x limit", "low": value, "high": value, "seconds": value} | columns
    return Row(
        values.pop("what", "rotation"), values.pop("case", "a case"), candidate, kind, value=value, **values
    ).to_dict()


@pytest.fixture
def write_goals(monkeypatch: pytest.MonkeyPatch):
    """Sets what is wanted of rows, in place of goals.json."""

    def goals_of_case(*sentences: str, case: str = "a case", candidate: str = "ours") -> None:
        monkeypatch.setattr(goals, "read_goals", lambda: {"rotation": {case: {candidate: list(sentences)}}})

    return goals_of_case


def test_what_we_lose_at_is_read_from_the_rows(write_goals) -> None:
    write_goals("at most 1 x limit", "at most 3 x limit", "at most 4 x what is not here")
    rows = [
        row("limit", 1.0, "limit"),
        row("ours", 2.0, "posenc", subject="s"),
        row("faster", 1.5, subject="s"),
        row("slower", 2.5, subject="s"),
        row("another thing", 0.1, subject="t"),
        row("wrong", None, subject="s", note="wrong, so not timed"),
        row("elsewhere", 0.1, subject="s", case="another case"),
        row("written by hand", 1.0, "naive", subject="s"),
    ]
    assert report.losses(rows) == [
        "rotation: a case: ours misses its goal, at most 1 x limit: 2.00",
        "rotation: a case: faster takes 0.750 of the time of ours",
        "rotation: a case: written by hand takes 0.500 of the time of ours",
    ]
    assert report.losses(rows[3:]) == []


def test_goals_are_told_as_they_are_said(write_goals) -> None:
    write_goals("at least 20 x as fast as theirs", "error at most 2e-06", "at least 3 x as fast as another", case="a *")
    rows = [row("ours", 1.0, "posenc", error=3e-6, threads=2), row("theirs", 25.0, threads=2), row("theirs", 3.0)]
    headers, lines = report.goals(rows)
    assert len(headers) == 5
    assert [line[2:] for line in lines] == [
        ["at least 20 x as fast as theirs", "25.0", "met"],
        ["error at most 2e-06", "3.0e-06", "missed"],
        ["at least 3 x as fast as another", "", "not measured"],
    ]
    assert lines[0][0] == "rotation: a case (2 threads)"


def test_a_goal_is_judged_to_the_figures_that_are_shown(write_goals) -> None:
    write_goals("at most 1.1 x limit")
    verdicts = []
    for value in (1.1, 1.104, 1.106):
        case = [row("ours", value, "posenc"), row("limit", 1.0, "limit")]
        verdicts += [verdict.is_met for verdict in goals.verdicts(case[0], case)]
    assert verdicts == [True, True, False]
    assert not goals.verdicts(row("ours", None, "posenc"), [])


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("at most 1.1 x plain causal SDPA", Goal(1.1, "plain causal SDPA")),
        ("at least 20 x as fast as transformers", Goal(1 / 20, "transformers")),
        ("at most 64 MiB", Goal(64.0, quantity="MiB")),
        ("at most 0.05 s of CPU", Goal(0.05, quantity="s of CPU")),
        ("error at most 2e-06", Goal(2e-6, quantity="error")),
    ],
)
def test_a_goal_is_read_from_its_sentence_and_said_as_it_was(sentence: str, goal: Goal) -> None:
    assert Goal.parse(sentence) == goal and str(goal) == sentence


def test_a_sentence_that_says_no_goal_is_named() -> None:
    with pytest.raises(ValueError, match=r"no goal is said by 'as fast as can be'; write 'at most 1.1 x NAME'"):
        Goal.parse("as fast as can be")


def test_every_goal_that_is_kept_is_of_something_that_is_measured() -> None:
    """A candidate that is renamed would leave its goal behind, never met and never missed."""
    names_by_case = {
        "attention": {*attention.SPECS, *attention.ON_A_GRID},
        "models": {*models.TRAINED_TOKENS, *models.GENERATED_TOKENS, "rotary, compiled"},
        "memory": set(attention.SPECS),
        "weights": set(weights.SPECS["full"]),
        "decoding": {"rotary", "alibi", "t5_bias", "learned", "sinusoidal"},
        "startup": {*startup.POSENC_IMPORTS, *startup.COMMANDS, *startup.WITH_TORCH},
        "adding": {"sinusoidal", "learned"},
        "rotation": of_rotation(),
    }
    goal_candidates = {
        name_of_case: {name for case in cases.values() for name in case}
        for name_of_case, cases in goals.read_goals().items()
    }
    assert goal_candidates.keys() <= set(run.CASE_NAMES) and all(
        names <= names_by_case[name_of_case] for name_of_case, names in goal_candidates.items()
    )
    for cases in goals.read_goals().values():
        for candidates in cases.values():
            assert all(str(Goal.parse(line)) == line for lines in candidates.values() for line in lines)


def of_rotation() -> set[str]:
    small = rotation.Case("training", 1, 1, 1, 3, 4, torch.float32)
    row = (
        rotation.forward(small, False, False),
        rotation.with_backward(small, False, True),
        rotation.decoding(small, False, False),
        rotation.tables(small),
        rotation.in_a_layer(False, False, False),
    )
    return {candidate.name for group in row for candidate in group.candidates}


def test_a_case_of_a_pattern_has_its_goals() -> None:
    quick = row("alibi", 1.0, "posenc", what="attention", case="T 2048: forward")
    assert [str(goal) for goal in goals.goals_of(quick)] == ["at most 1.1 x plain causal SDPA", "error at most 2e-06"]
    assert [str(goal) for goal in goals.goals_of(quick | {"case": "T 2048: forward and backward"})] == [
        "at most 1.1 x plain causal SDPA"
    ]
    assert not list(goals.goals_of(quick | {"candidate": "alibi by hand"}))


# Two results


def test_two_results_are_told_apart_beyond_their_spread(tmp_path: Path, write_goals) -> None:
    write_goals("at most 1.5 x limit", candidate="better")
    names = {"better": (2.0, 1.0), "worse": (1.0, 2.0), "the same": (1.0, 1.05), "hardly": (1.0, 0.95)}
    old, new = (
        result_of([row("limit", 1.0, "limit")] + [spread_out(name, values[i]) for name, values in names.items()])
        for i in (0, 1)
    )
    new["rows"].append(row("new", 1.0, "posenc"))
    pairs = comparison.pairs(old, new)
    assert [(pair.after["candidate"], pair.word) for pair in pairs] == [
        ("better", "better"),
        ("worse", "worse"),
        ("the same", ""),
        ("hardly", ""),
    ]
    page, picture = comparison.save(old, new | {"commit": "abc, changed"}, tmp_path)
    text = page.read_text()
    assert "Of 4 rows in both, 1 became cheaper and 1 dearer" in text
    assert "0.500 | better | at most 1.5 x limit: met |" in text and "After: Commit abc, changed." in text
    assert picture.stat().st_size > 1000
    assert comparison.save(result_of([]), result_of([]), tmp_path) == [page]


def spread_out(name: str, value: float) -> dict:
    return row(name, value, "posenc") | {"low": 0.9 * value, "high": 1.1 * value}


def test_only_rows_that_changed_most_are_drawn() -> None:
    rows = [spread_out(f"row {i}", 1.0) for i in range(comparison.MAX_ROWS + 9)]
    old = result_of(rows)
    new = result_of([row_of_pair | {"value": 1 + i / 100} for i, row_of_pair in enumerate(rows)])
    fig = comparison.change_figure(old, new)
    assert fig is not None and len(fig.axes[0].get_yticks()) == comparison.MAX_ROWS


@pytest.mark.parametrize("arguments", [["--compare", "one.json"], ["rotation", "--compare", "one.json", "two.json"]])
def test_comparing_takes_two_results_and_measures_nothing(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(arguments)
    assert re.search("expected 2 arguments|--compare measures nothing, got 'rotation'", capsys.readouterr().err)


def result_of(rows: list[dict]) -> dict:
    return {
        "schema": report.SCHEMA,
        "settings": {"what": ["rotation"], "shapes": "quick", "threads": [1], "peers": True},
        "hardware": run.hardware(),
        "versions": run.versions(),
        "load": [0.5, 1.0],
        "began": "2026-11-21T00:00:00+00:00",
        "rows": rows,
    }


def test_a_page_holds_machine_goals_losses_and_every_case() -> None:
    rows = [row("limit", 1.0, "limit"), row("wrong | one", None, error=3.5, note="wrong, so not timed")]
    page = report.markdown(result_of(rows))
    assert f"torch {torch.__version__}" in page and "load 0.5 to 1.0" in page
    assert "Nothing that was measured." in page
    assert "| wrong \\| one | wrong, so not timed |  | 3.5e+00 |  |" in page
    assert "## rotation: a case" in page


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "0"), (1.0, "1.00"), (12.34, "12.3"), (1234.5, "1,234"), (0.01234, "0.0123")]
)
def test_numbers_have_three_figures(value: float, words: str) -> None:
    assert report.number(value) == words


def attention_rows() -> list[dict]:
    rows = []
    for passes in plot.PASSES:
        for tokens in (512, 1024):
            facts = {"tokens": tokens, "pass": passes}
            for name, kind in ((attention.PLAIN, "limit"), ("alibi", "posenc"), ("alibi by hand", "naive")):
                rows.append(row(name, tokens / 512, kind, what="attention", case=f"T {tokens}: {passes}", facts=facts))
    return rows


def test_the_plot_has_a_line_with_its_name_for_every_candidate(tmp_path: Path) -> None:
    fig = plot.cost(result_of(attention_rows()))
    assert fig is not None and len(fig.axes) == 2
    for ax, passes in zip(fig.axes, plot.PASSES, strict=True):
        assert ax.get_title(loc="left") == passes
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert [text.get_text() for text in ax.texts] == [attention.PLAIN, "alibi", "alibi by hand"]
        assert [list(line.get_ydata()) for line in ax.lines] == [[1000.0, 2000.0]] * 3
    assert figures.save(fig, tmp_path / "cost.png").stat().st_size > 1000


def test_what_was_measured_at_one_length_or_on_a_grid_has_no_line() -> None:
    facts = {"tokens": 1024, "pass": "forward"}
    alone = [
        row("fire", 1.0, "posenc", what="attention", case="T 1024: forward", facts=facts),
        *(
            row(
                "grid_bias",
                1.0,
                "posenc",
                what="attention",
                case=f"{n} x {n}: forward",
                facts=facts | {"tokens": n * n},
            )
            for n in (8, 16)
        ),
    ]
    fig = plot.cost(result_of([*attention_rows(), *alone]))
    assert fig is not None
    assert [text.get_text() for text in fig.axes[0].texts] == [attention.PLAIN, "alibi", "alibi by hand"]


def test_nothing_is_drawn_of_a_run_without_lengths() -> None:
    assert plot.cost(result_of([row("limit", 1.0, "limit")])) is None
    assert plot.cost(result_of([r for r in attention_rows() if r["facts"]["tokens"] == 512])) is None


# A whole run


@pytest.fixture
def tiny(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark of one made-up group, and one row of a process of its own."""
    monkeypatch.setattr(run, "IN_TURNS", {"rotation": lambda shapes, with_peers: iter([group_of(clock)])})
    apart = Row("startup", "import", "import posenc", "posenc", "s", value=0.01, low=0.01, high=0.01)
    monkeypatch.setattr(run, "APART", {"startup": lambda shapes, with_peers: iter([apart])})
    monkeypatch.setattr(run, "CASE_NAMES", ("rotation", "startup"))


def test_the_command_says_what_it_lost_and_where_results_lie(tiny: None, tmp_path: Path, capsys) -> None:
    assert bench.main(["rotation", "--no-peers", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "What we lose at:" in out and f"Written: {tmp_path / 'bench.json'}" in out
    assert bench.main(["--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["what"] == ["rotation", "startup"]


def test_a_run_keeps_machine_versions_settings_and_rows(tiny: None, tmp_path: Path) -> None:
    displayed_tables, messages = [], []
    result = run.bench(threads=(1, 2), show=displayed_tables.append, doing=messages.append)
    assert [row["threads"] for row in result["rows"]] == [1, 1, 1, 2, 2, 2, 1]
    assert result["settings"] == {"what": ("rotation", "startup"), "shapes": "quick", "threads": (1, 2), "peers": True}
    assert result["versions"]["torch"] == torch.__version__ and result["hardware"]["cores"] >= 1
    assert result["kernels"] and result["began"] <= result["ended"]
    assert len(displayed_tables) == 3 and messages[1:] == ["a case, 1 thread", "a case, 2 threads", "startup"]
    whole, tables = report.save(result, tmp_path)
    assert report.read(whole)["rows"][1]["candidate"] == "mine"
    assert "## rotation: a case (2 threads)" in tables.read_text()
    assert str(tmp_path) not in whole.read_text() + tables.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ("speed",)}, "'speed' is not measured; choose from rotation, startup"),
        ({"shapes": "huge"}, "'huge' is not measured; choose from quick, full"),
        ({"threads": (0,)}, r"threads are whole numbers from 1, got \[0\]"),
        ({"threads": ()}, r"threads are whole numbers from 1, got \[\]"),
    ],
)
def test_what_cannot_be_measured_is_said(tiny: None, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run.bench(**options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no whole JSON"),
        ("[]", "expected a dictionary"),
        ("[" * 100_000, "it is nested more than 100 deep"),
        ('{"schema": 0, "rows": []}', "it holds no results of this version's benchmark; make them with run.py bench"),
        ('{"schema": 1}', "it holds no results of this version's benchmark; make them with run.py bench"),
    ],
)
def test_a_file_without_results_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(CannotRead, match=f"bench.json: {words}"):
        report.read(tmp_path / "bench.json")


def test_every_word_that_help_names_is_measured() -> None:
    assert run.CASE_NAMES == (
        *("rotation", "attention", "adding", "decoding", "models", "gpu", "startup", "memory", "weights"),
    )


# Counts


@pytest.fixture(scope="module")
def counts():
    spec = importlib.util.spec_from_file_location("instructions", HOME / "benchmarks" / "instructions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROFILE = """\
ob=(1) somewhere/libmine.so
fn=(1) turn_avx2
0 100
+3 20
cob=(2) somewhere/libc.so
cfn=(2) memcpy
calls=4 0
0 5000
* 7
fn=(3) start
0 11
ob=(2)
fn=(2)
0 5000
ob=(1)
fn=(1)
-1 1
"""


def test_only_a_library_s_own_instructions_are_counted(counts) -> None:
    assert counts.calls_of_functions(PROFILE, "libmine.so") == {"the walk": 11, "turn_avx2": 128}


def test_more_than_the_margin_is_told(counts) -> None:
    old_counts = {"a": 100, "b": 100, "c": 100}
    assert counts.increases({"a": 102, "b": 80, "c": 103, "d": 1}, old_counts, 0.02) == [
        "c: 103, 3.0% more than the 100 that are kept",
        "d: 1, and no count is kept; run again with --update",
    ]


def test_python_calls_are_counted_after_a_warm_up(counts) -> None:
    def twice() -> None:
        len([])
        len([])

    assert counts.python_calls(twice) == 3


def test_operators_are_counted_with_those_that_they_are_made_of(counts) -> None:
    x = torch.ones(3)
    assert counts.operators(lambda: x + x) == 1
    # A clone is a new tensor and a copy.
    assert counts.operators(lambda: (x + x, x.clone())) > 3


def test_nothing_costs_more_instructions_or_calls_than_before(counts) -> None:
    """In a process of its own: what this one has loaded, or patched, would be counted too."""
    command = [sys.executable, str(HOME / "benchmarks" / "instructions.py")]
    environment = {**subprocesses.os.environ, "PYTHONPATH": str(HOME / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr
    if "not compared: instructions" in process.stdout and "not compared: calls" in process.stdout:
        pytest.skip(process.stdout)


def test_results_that_are_kept_can_be_read() -> None:
    files = sorted((HOME / "benchmarks").glob("results/*.json"))
    for path in files:
        assert report.read(path)["rows"]
