"""The fuzz driver reports every way in which a reader can fail."""

import os
import signal
import sys
from random import Random

import pytest
from fuzz.driver import mutate, run_cases

from posenc.foreign import CannotRead


class OddMessage(CannotRead):
    def __str__(self):
        return self.wrong


def refuse(error):
    raise error


def loop():
    while True:
        pass


WAYS = {
    "loops": (loop, "it took more than 0.5 seconds of the processor"),
    "allocates": (lambda: bytearray(1 << 36), "MemoryError"),
    "raises": (lambda: {}["x"], "KeyError: \"'x'\""),
    "exits": (lambda: sys.exit(0), "SystemExit"),
    "leaves": (lambda: os._exit(3), "it left with exit code 3"),
    "dies": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "the process died by SIGSEGV"),
    "says too much": (lambda: refuse(OddMessage("x" * 2_000)), "its message has 2000 letters"),
    "colours": (lambda: refuse(OddMessage("\x1b[31m")), "control characters in"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_breaks_its_word_is_told_with_its_case_and_the_other_cases_go_on(way):
    if way == "allocates" and sys.platform != "linux":
        pytest.skip("the memory of a process is bounded on Linux only")
    # The last case fails too, and is reached only if the case before did not end the test.
    ways = WAYS | {"last": (lambda: 1 / 0, "")}
    with pytest.raises(AssertionError) as error:
        run_cases(lambda case: ways[case][0]() if case in ways else None, ["sound", way, "sound", "last"], cpu=0.5)
    assert "2 of 4 cases went wrong" in str(error.value) and "'last': ZeroDivisionError" in str(error.value)
    assert f"'{way}': {WAYS[way][1]}" in str(error.value)


def test_readings_and_refusals_are_counted():
    counts = run_cases(lambda case: refuse(CannotRead("odd")) if case % 2 else None, range(5))
    assert counts == {"read": 3, "refused": 2}


def test_what_a_case_does_stays_in_its_process():
    calls = []
    run_cases(calls.append, range(3))
    assert not calls


def test_a_mutated_input_is_another_one_and_the_same_for_the_same_seed():
    sound = bytes(range(200))
    mutants = [mutate(Random(seed), sound, end=100) for seed in range(50)]
    assert mutants == [mutate(Random(seed), sound, end=100) for seed in range(50)]
    assert len(set(mutants)) > 40 and sum(mutant != sound for mutant in mutants) > 45
