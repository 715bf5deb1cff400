"""What outlives a call, in any order: the state machine over encodings, the handful of each run and all of them."""

import zlib
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from states import machine_of
from testing.test_wrong_encodings import KeyByHand, Turn
from tiers import rest_slow, variants
from torch import Tensor, nn

import posenc
from posenc import catalogue
from posenc.cache import Cache, SlotCache
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once, options_of

ALWAYS = ["forgetting + rotary + fourier_rotary(learned=True)", "rotary + alibi", "sinusoidal"]
"""Facts that are remembered, and tables that are kept and learned; a rotation and a bias; a table that is added."""

OTHERS = [spec for name in catalogue.names() for spec in variants(name)[:1]]


def handful(number: int) -> list[str]:
    """Others that change whenever the core does, and are the same wherever the code is the same."""
    folder = Path(posenc.__file__).parent
    core = [folder / f"{name}.py" for name in ("encoding/base", "tokens/positions", "tokens/shared_tables")]
    core += sorted((folder / "cache").glob("*.py"))
    first = zlib.crc32(b"".join(file.read_bytes().replace(b"\r", b"") for file in core))
    return [OTHERS[(first + 7 * step) % len(OTHERS)] for step in range(number)]


def run(source, examples: int, steps: int, phases=tuple(Phase)) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine_of(source), settings=chosen)


class LearnsOnce(Turn):
    """Keeps with the positions what it made of a parameter, which may be another number by then."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return once(
            at, (type(self), id(self)), lambda: self.rate.detach().double() * super(LearnsOnce, self).angle(x, at)
        )


@pytest.mark.parametrize("spec", rest_slow([ALWAYS[0], ALWAYS[2], *handful(1), ALWAYS[1]], 3))
def test_no_order_of_calls_copies_casts_and_caches_changes_a_result(spec: str) -> None:
    run(spec, 2, 8)


def leaves_the_mark(patch: pytest.MonkeyPatch) -> None:
    """A copy of a static cache lets its source go on in the memory that both hold."""

    def copied(cache: SlotCache) -> SlotCache:
        twin = SlotCache(cache.slots, rolling=cache.rolling)
        twin.stored = cache.stored
        return twin

    patch.setattr(SlotCache, "__copy__", copied)


def shares_the_mark(patch: pytest.MonkeyPatch) -> None:
    """Both go on in it."""
    patch.delattr(SlotCache, "__copy__")


def shares_the_layers(patch: pytest.MonkeyPatch) -> None:
    """A copy of all layers holds the very same ones."""
    patch.delattr(Cache, "__copy__")


def shares_the_positions(patch: pytest.MonkeyPatch) -> None:
    """A deep copy of a cache writes into the positions of its source."""
    patch.setattr(Positions, "__deepcopy__", lambda at, memo: at.changed(), raising=False)


def keeps_the_key(patch: pytest.MonkeyPatch) -> None:
    """An option that is set anew leaves the key of the tables as it was."""
    patch.setattr("posenc.tokens.shared_tables.options_of", cache(options_of))


def counts_padding(patch: pytest.MonkeyPatch) -> None:
    """Padding on the left is counted, so that the first token is not at 0."""

    def padded(mask: Tensor) -> Positions:
        order = torch.arange(mask.shape[1]).masked_fill(mask == 0, -1)
        return Positions(order.clamp(min=0)[..., None], order, unit_step=True, extent=mask.shape[1])

    patch.setattr(Positions, "padded", padded)


APART = {"number": 1, "padding": "none", "mode": "no gradients"}
CALL = {"place": 0, "mode": "no gradients"}
PLANTED = [
    (leaves_the_mark, "go_apart", {**APART, "crop": True, "deep": False}, "behind a static cache"),
    (shares_the_mark, "go_apart", {**APART, "crop": True, "deep": False}, "behind a static cache"),
    (shares_the_layers, "go_apart", {**APART, "crop": True, "deep": False}, "next tokens stand at"),
    (shares_the_positions, "go_apart", {**APART, "crop": False, "deep": True}, "next tokens stand at"),
    (keeps_the_key, "set_one", {**CALL, "which": 1, "number": 1}, "of a call in torch.float64"),
    (counts_padding, "go_apart", {**APART, "crop": False, "deep": False, "padding": "left"}, "next tokens stand at"),
]
STRANGERS = [
    (KeyByHand, "call_relatives", {"place": 0}),
    (LearnsOnce, "change_one", {**CALL, "which": 1, "number": 0, "change": "data"}),
]


def step(source, rule: str, given: dict[str, object]) -> None:
    """One step of the machine, chosen by hand."""
    state = machine_of(source)()
    state.begin(other=0)
    getattr(state, rule)(**given)


@pytest.mark.parametrize(("broken", "rule", "given", "said"), PLANTED, ids=lambda given: getattr(given, "__name__", ""))
def test_a_step_sees_the_break_that_it_is_for(monkeypatch: pytest.MonkeyPatch, broken, rule, given, said: str) -> None:
    step("rotary", rule, given)
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=said):
        step("rotary", rule, given)


@pytest.mark.parametrize(("stranger", "rule", "given"), STRANGERS)
def test_state_that_a_stranger_keeps_wrongly_is_found(stranger, rule: str, given) -> None:
    step(Turn, rule, given)
    with pytest.raises(AssertionError, match=r"differs in \d+ of"):
        step(stranger, rule, given)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [broken for broken, *_ in PLANTED])
def test_a_planted_break_is_found_at_random(monkeypatch: pytest.MonkeyPatch, broken) -> None:
    broken(monkeypatch)
    # Without the search for the shortest way to show it.
    with pytest.raises((AssertionError, RuntimeError)):
        run("sinusoidal", 40, 30, [Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("stranger", [stranger for stranger, *_ in STRANGERS])
def test_state_that_a_stranger_keeps_wrongly_is_found_at_random(stranger) -> None:
    with pytest.raises(AssertionError, match=r"differs in \d+ of"):
        run(stranger, 40, 30, [Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*ALWAYS, *OTHERS])
def test_no_long_order_of_calls_changes_a_result(spec: str) -> None:
    run(spec, 12, 30)
