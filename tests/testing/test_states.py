"""The state machine of calls, copies, casts and caches: a few encodings in every run, all of them by --all."""

import zlib
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from states import state_machine
from testing.test_wrong_encodings import KeyByHand, Turn
from tiers import rest_slow, variants
from torch import Tensor, nn

import posenc
from posenc import catalogue
from posenc.cache import Cache, SlotCache
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import module_options, once

FIXED_SPECS = ["forgetting + rotary + fourier_rotary(learned=True)", "rotary + alibi", "sinusoidal"]
"""Remembered facts with cached and learned tables; a rotation and a bias; an added table."""

OTHER_SPECS = [spec for name in catalogue.names() for spec in variants(name)[:1]]


def daily_specs(number: int) -> list[str]:
    """Return specs drawn by a hash of the core's code: the same on every machine."""
    folder = Path(posenc.__file__).parent
    core = [folder / f"{name}.py" for name in ("encoding/base", "tokens/positions", "tokens/shared_tables")]
    core += sorted((folder / "cache").glob("*.py"))
    first = zlib.crc32(b"".join(file.read_bytes().replace(b"\r", b"") for file in core))
    return [OTHER_SPECS[(first + 7 * step) % len(OTHER_SPECS)] for step in range(number)]


def run(source, examples: int, steps: int, phases=tuple(Phase)) -> None:
    machine_settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(state_machine(source), settings=machine_settings)


class LearnsOnce(Turn):
    """Caches a product of its parameter with the positions, although the parameter may change later."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return once(
            at, (type(self), id(self)), lambda: self.rate.detach().double() * super(LearnsOnce, self).angle(x, at)
        )


@pytest.mark.parametrize("spec", rest_slow([FIXED_SPECS[0], FIXED_SPECS[2], *daily_specs(1), FIXED_SPECS[1]], 3))
def test_no_order_of_calls_copies_casts_and_caches_changes_a_result(spec: str) -> None:
    run(spec, 2, 8)


def share_free_memory(patch: pytest.MonkeyPatch) -> None:
    """A copy of a static cache lets its source write on in their shared memory."""

    def copy_cache(cache: SlotCache) -> SlotCache:
        twin = SlotCache(cache.slots, rolling=cache.rolling)
        twin.stored_keys = cache.stored_keys
        return twin

    patch.setattr(SlotCache, "__copy__", copy_cache)


def share_cache_state(patch: pytest.MonkeyPatch) -> None:
    """A static cache and its copy both write on in their shared memory."""
    patch.delattr(SlotCache, "__copy__")


def share_layers(patch: pytest.MonkeyPatch) -> None:
    """A copy of a cache has the same layer objects."""
    patch.delattr(Cache, "__copy__")


def share_positions(patch: pytest.MonkeyPatch) -> None:
    """A deep copy of a cache writes into the positions of its source."""
    patch.setattr(Positions, "__deepcopy__", lambda at, memo: at.with_facts(), raising=False)


def keep_options_key(patch: pytest.MonkeyPatch) -> None:
    """Setting an option does not change the key of the cached tables."""
    patch.setattr("posenc.tokens.shared_tables.module_options", cache(module_options))


def count_padding(patch: pytest.MonkeyPatch) -> None:
    """Padding on the left is counted, so that the first token is not at 0."""

    def padded_at(mask: Tensor) -> Positions:
        order = torch.arange(mask.shape[1]).masked_fill(mask == 0, -1)
        return Positions(order.clamp(min=0)[..., None], order, unit_step=True, extent=mask.shape[1])

    patch.setattr(Positions, "padded", padded_at)


FORK = {"number": 1, "padding": "none", "mode": "no gradients"}
CALL = {"place": 0, "mode": "no gradients"}
BREAKS = [
    (share_free_memory, "go_apart", {**FORK, "crop": True, "deep": False}, "behind a static cache"),
    (share_cache_state, "go_apart", {**FORK, "crop": True, "deep": False}, "behind a static cache"),
    (share_layers, "go_apart", {**FORK, "crop": True, "deep": False}, "next tokens stand at"),
    (share_positions, "go_apart", {**FORK, "crop": False, "deep": True}, "next tokens stand at"),
    (keep_options_key, "set_one", {**CALL, "index": 1, "number": 1}, "of a call in torch.float64"),
    (count_padding, "go_apart", {**FORK, "crop": False, "deep": False, "padding": "left"}, "next tokens stand at"),
]
WRONG_ENCODINGS = [
    (KeyByHand, "call_relatives", {"place": 0}),
    (LearnsOnce, "change_one", {**CALL, "index": 1, "number": 0, "change": "data"}),
]


def step(source, rule: str, arguments: dict[str, object]) -> None:
    """Run one rule of the machine with chosen arguments."""
    state = state_machine(source)()
    state.begin(relative=0)
    getattr(state, rule)(**arguments)


@pytest.mark.parametrize(("apply", "rule", "arguments", "message"), BREAKS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_step_sees_the_break_that_it_is_for(monkeypatch, apply, rule: str, arguments, message: str) -> None:
    step("rotary", rule, arguments)
    apply(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        step("rotary", rule, arguments)


@pytest.mark.parametrize(("encoding", "rule", "arguments"), WRONG_ENCODINGS)
def test_state_that_a_stranger_keeps_wrongly_is_found(encoding, rule: str, arguments) -> None:
    step(Turn, rule, arguments)
    with pytest.raises(AssertionError, match=r"differs in \d+ of"):
        step(encoding, rule, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("apply", [apply for apply, *_ in BREAKS])
def test_a_planted_break_is_found_at_random(monkeypatch: pytest.MonkeyPatch, apply) -> None:
    apply(monkeypatch)
    # The search for the shortest failing example is left out.
    with pytest.raises((AssertionError, RuntimeError)):
        run("sinusoidal", 40, 30, [Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("stranger", [stranger for stranger, *_ in WRONG_ENCODINGS])
def test_state_that_a_stranger_keeps_wrongly_is_found_at_random(stranger) -> None:
    with pytest.raises(AssertionError, match=r"differs in \d+ of"):
        run(stranger, 40, 30, [Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*FIXED_SPECS, *OTHER_SPECS])
def test_no_long_order_of_calls_changes_a_result(spec: str) -> None:
    run(spec, 12, 30)
