"""The order test, with and without position."""

import math
from typing import Any

import pytest
import torch

from posenc import catalogue
from posenc.lab.evaluation import order
from posenc.lab.evaluation.order import order_test, order_tests
from posenc.lab.runs.settings import encodings_of_other_axes

# A temperature tells the last token nothing of the others' order, and a grid is no sequence.
GRIDS = encodings_of_other_axes(1)
WITH_POSITION = [
    name
    for name, cls in catalogue.ENCODINGS.items()
    if cls.doors and not ("turn" in cls.doors and cls.turns == "queries") and name not in GRIDS
]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_without_position_reordered_tokens_give_reordered_outputs_at_any_depth(layers: int) -> None:
    result = order_test("none", layers=layers, is_causal=False)
    assert result["equivariance"] < 1e-12 and result["difference"] < 1e-12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_causal_layer_without_position_cannot_tell_the_order_of_what_came_before(seed: int) -> None:
    result = order_test("none", layers=1, is_causal=True, seed=seed)
    assert result["difference"] < 1e-12
    # The causal mask itself is not equivariant: other tokens see other prefixes.
    assert result["equivariance"] > 1e-3


@pytest.mark.parametrize("layers", [2, 3])
def test_a_second_causal_layer_without_position_can(layers: int) -> None:
    assert order_test("none", layers=layers, is_causal=True)["difference"] > 1e-6


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spec", [*WITH_POSITION, "rotary + alibi", "on(rotary, heads=(0,))"])
def test_every_encoding_tells_the_order_with_one_layer(spec: str, is_causal: bool) -> None:
    result = order_test(spec, layers=1, is_causal=is_causal)
    assert result["difference"] > 1e-6 and result["equivariance"] > 1e-6


def test_layers_that_mix_encodings_are_tested_as_they_are() -> None:
    assert order_test(("none", "rotary"), layers=1, is_causal=True)["difference"] < 1e-12
    assert order_test(("rotary", "none"), layers=1, is_causal=True)["difference"] > 1e-6


def test_the_order_tests_are_both_directions_one_and_two_layers_with_and_without_position() -> None:
    results = order_tests("alibi")
    assert [(t["attention"], t["layers"], t["position"]) for t in results] == [
        (attention, layers, position)
        for attention in ("bidirectional", "causal") for layers in (1, 2) for position in (True, False)
    ]  # fmt: skip
    plain_results = [t for t in order_tests("none") if not t["position"]]
    assert [t for t in results if not t["position"]] == plain_results


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert order_tests("shaw") == order_tests("shaw")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_numbers_are_the_largest_differences_of_a_stack_whose_answers_are_planted(
    sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[torch.Tensor] = []

    class KnownStack(torch.nn.Module):
        """Returns weighted sums over the prefix; later tokens weigh more."""

        encodings, input_encodings = torch.nn.ModuleList(), ()

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
            inputs.append(x)
            return (sign * (x.exp() * torch.arange(1.0, x.shape[1] + 1)[:, None]).cumsum(1),)

    monkeypatch.setattr(order, "Stack", KnownStack)
    result = order_test("none", layers=1, is_causal=True, seed=4)
    plain, shuffled_row = (x[0].tolist() for x in inputs)
    perm = [plain.index(token) for token in shuffled_row]
    assert perm[-1] == len(plain) - 1 and perm != sorted(perm)

    def answer(tokens: list[list[float]], place: int, channel: int) -> float:
        return sign * math.fsum((t + 1) * math.exp(tokens[t][channel]) for t in range(place + 1))

    channels = range(len(plain[0]))
    equivariance = max(
        abs(answer(plain, perm[t], c) - answer(shuffled_row, t, c)) for t in range(len(plain)) for c in channels
    )
    difference = max(abs(answer(plain, len(plain) - 1, c) - answer(shuffled_row, len(plain) - 1, c)) for c in channels)
    assert result["equivariance"] == pytest.approx(equivariance, rel=1e-9)
    assert result["difference"] == pytest.approx(difference, rel=1e-9)
