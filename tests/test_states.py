"""What outlives a call, in any order: the state machine over encodings, the handful of each run and all of them."""

import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_wrong_encodings import KeyByHand, Turn
from torch import Tensor, nn

import posenc
from posenc import catalogue, testing
from posenc.positions import Positions
from posenc.testing import variants

ALWAYS = ["forgetting + rotary + fourier_rotary(learned=True)", "rotary + alibi", "sinusoidal"]
"""Facts that are remembered, and tables that are kept and learned; a rotation and a bias; a table that is added."""

OTHERS = [spec for name in catalogue.names() for spec in variants(name)[:1]]


def handful(number: int) -> list[str]:
    """Others that change whenever the core does, and are the same wherever the code is the same."""
    core = [Path(posenc.__file__).parent / f"{name}.py" for name in ("cache", "encoding", "kept_tables", "positions")]
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
    run_state_machine_as_test(testing.state_machine(source), settings=chosen)


class LearnsOnce(Turn):
    """Keeps with the positions what it made of a parameter, which may be another number by then."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def angle(self, x: Tensor, at: Positions) -> Tensor:
        return at.once(
            (type(self), id(self)), lambda: self.rate.detach().double() * super(LearnsOnce, self).angle(x, at)
        )


@pytest.mark.parametrize("spec, examples", [(ALWAYS[0], 4), *((spec, 2) for spec in [*ALWAYS[1:], *handful(1)])])
def test_no_order_of_calls_copies_casts_and_caches_changes_a_result(spec: str, examples: int) -> None:
    run(spec, examples, 12)


@pytest.mark.parametrize("wrong", [KeyByHand, LearnsOnce])
def test_state_that_a_stranger_keeps_wrongly_is_found(wrong) -> None:
    # Without the search for the shortest way to show it.
    with pytest.raises(AssertionError, match=r"differs in \d+ of"):
        run(wrong, 8, 12, [Phase.generate])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*ALWAYS, *OTHERS])
def test_no_long_order_of_calls_changes_a_result(spec: str) -> None:
    run(spec, 40, 30)
