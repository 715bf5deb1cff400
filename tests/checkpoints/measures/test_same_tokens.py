"""The same tokens behind more and more text, against losses of one pass and numbers worked out by hand."""

import math

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.measures.measure import TooShort, Value
from posenc.checkpoints.measures.perplexity import Tokens, losses
from posenc.checkpoints.measures.same_tokens import BLOCK, SameTokens, difference, of_blocks, useful_length


@pytest.fixture(scope="module")
def model():
    return tiny_llama.model()


@pytest.fixture(scope="module")
def text() -> Tokens:
    return Tokens("digits", "abc", torch.randint(0, 99, (500,), generator=torch.Generator().manual_seed(3)), (99,))


def test_each_length_predicts_the_same_tokens(model, text: Tokens) -> None:
    measure = SameTokens(text, longest=100, start=7, texts=2, last=20)
    raw = {length: measure.run(model, length) for length in (40, 100)}
    for number in range(2):
        # The opening token takes one place; texts end at token 7 + 100 and 7 + 200 of what is counted with it.
        end = 7 + 100 * (number + 1) - 1
        for length in (40, 100):
            ids = torch.cat((torch.tensor([99]), text.ids[end - length + 1 : end]))
            wanted = losses(model, ids)[-20:]
            torch.testing.assert_close(torch.tensor(raw[length]["losses"][number]), wanted, rtol=0, atol=2e-5)
    value = measure.values(raw, 100)["last"].value
    assert value == pytest.approx(math.exp(torch.tensor(raw[100]["losses"]).double().mean()), rel=1e-6)


def test_the_error_is_that_of_means_over_blocks() -> None:
    steps = torch.tensor([1.0, 1.0, 3.0, 3.0]).repeat_interleave(BLOCK)
    found = of_blocks([steps[: 2 * BLOCK], steps[2 * BLOCK :]])
    assert found.each == (1.0, 1.0, 3.0, 3.0)
    # A deviation of 1 in each: sqrt(4 / 3) over sqrt(4).
    assert found.value == pytest.approx(math.exp(2)) and found.error == pytest.approx(math.exp(2) * (1 / 3) ** 0.5)
    assert of_blocks([torch.ones(5)]) == Value(math.e, None, (1.0,))


def test_errors_of_blocks_see_what_neighbours_share() -> None:
    """Of losses that go up and down together, the error is near the true one, and that of single tokens far below."""
    draws = torch.Generator().manual_seed(0)
    shared = torch.randn(400, 16, generator=draws).repeat_interleave(8, 1) + 3
    true = float(shared.mean(1).std())
    blocks = torch.tensor(
        [math.log(of_blocks([row]).value) and of_blocks([row]).error / of_blocks([row]).value for row in shared]
    )
    single = float((shared.std(1) / 128**0.5).mean())
    assert float(blocks.mean()) == pytest.approx(true, rel=0.2) and single < 0.5 * true


def test_where_text_helps_and_where_it_harms() -> None:
    def value(*each: float) -> Value:
        return Value(0.0, None, each)

    flat = {8: value(3, 5, 4), 16: value(2, 4, 3.1), 32: value(2.5, 3.5, 3.1), 64: value(2, 4.1, 3.1)}
    assert useful_length(flat) == (16, None)
    assert useful_length(flat | {128: value(4, 6, 5), 256: value(9, 9, 9)}) == (16, 128)
    # What harms and then helps again does not harm.
    assert useful_length({8: value(3, 4, 5), 16: value(4, 5, 6), 32: value(1, 2, 3)}) == (32, None)
    assert difference(value(1, 2, 3), value(2, 2, 5)) == (1.0, pytest.approx((1 / 3) ** 0.5))


def test_what_cannot_be_measured_is_refused(model, text: Tokens) -> None:
    measure = SameTokens(text, longest=100, last=20)
    with pytest.raises(TooShort, match="need more before them than 21 in all"):
        measure.run(model, 21)
    with pytest.raises(ValueError, match="no other way to use the model, got 'windows'"):
        measure.run(model, 60, "windows")
    with pytest.raises(ValueError, match="digits has 500 tokens"):
        SameTokens(text, longest=300, texts=2, last=20).run(model, 60)


def test_progress_and_cost_are_those_of_all_texts(model, text: Tokens) -> None:
    told: list[float] = []
    measure = SameTokens(text, longest=100, last=20, texts=2)
    measure.run(model, 60, tell=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == 2
    assert measure.work(model, 60) == 2 * SameTokens(text, longest=100, last=20, texts=1).work(model, 60)
    assert measure.passes((50, 100), False) == (50, 100) and measure.details({}, ()) == ()
