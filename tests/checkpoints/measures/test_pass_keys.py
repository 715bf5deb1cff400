"""Pass keys, with models that are known to see so much of a text and no more."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.measures import pass_keys
from posenc.checkpoints.measures.measure import Given, TooShort
from posenc.checkpoints.measures.pass_keys import PassKeys, Retrieval

LENGTH = 700


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def text_of(ids: Tensor) -> str:
    return "".join(tiny_llama.CHARACTERS[i] for i in ids.tolist())


class Reader:
    """Says what stood behind the last place where these six characters stood, if that is within its sight."""

    device = torch.device("cpu")
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=8)

    def __init__(self, sight: int) -> None:
        self.sight = sight

    def parameters(self) -> list[Tensor]:
        return [torch.zeros(9)]

    def forward(self, input_ids: Tensor, past_key_values: list[int] | None, use_cache: bool) -> SimpleNamespace:
        text, logits = list(past_key_values or []), []
        for token in input_ids[0].tolist():
            text.append(token)
            known, said = text[-6:], 0
            for place in range(len(text) - 2, max(5, len(text) - self.sight), -1):
                if text[place - 5 : place + 1] == known:
                    said = text[place + 1]
                    break
            logits.append(torch.nn.functional.one_hot(torch.tensor(said), 101).float())
        return SimpleNamespace(past_key_values=text, logits=torch.stack(logits)[None])

    __call__ = forward


def test_a_text_is_as_long_as_asked_with_the_key_at_its_depth(tokenizer) -> None:
    filler = len(pass_keys.FILLER)
    for depth in (0.0, 0.5, 1.0):
        ids, answer = pass_keys.prompt(tokenizer, LENGTH, depth, 31337)
        text = text_of(ids)
        assert LENGTH - filler < len(ids) <= LENGTH
        assert text.endswith("The pass key is 31337") and answer == 6
        needle = text.index("The pass key is 31337. Remember it.")
        before, after = text[:needle].count(pass_keys.FILLER), text[needle:].count(pass_keys.FILLER)
        assert before == round(depth * (before + after)) and before + after == 5
        assert text.count("31337") == 3


def test_what_a_models_texts_begin_with_comes_first(tokenizer) -> None:
    ids, _ = pass_keys.prompt(tokenizer, LENGTH, 0.5, 31337, opening=(99,))
    assert ids[0] == 99 and 99 not in ids[1:] and len(ids) <= LENGTH


@pytest.mark.parametrize("chunk", [1, 4, 5, 6, 7, 100, 10_000])
def test_every_digit_has_to_be_right_wherever_chunks_end(chunk: int, tokenizer) -> None:
    ids, answer = pass_keys.prompt(tokenizer, LENGTH, 0.5, 71432)
    ids = ids[-80:] if chunk == 1 else ids
    spaced = torch.cat((torch.tensor(tokenizer("The pass key is 71432.")["input_ids"]), ids))
    assert pass_keys.says_the_key(Reader(10_000), spaced, answer, chunk=chunk)
    for digit in range(1, 6):
        wrong = spaced.clone()
        wrong[-digit] = tiny_llama.CHARACTERS.index("x")
        assert not pass_keys.says_the_key(Reader(10_000), wrong, answer, chunk=chunk)


def test_what_stands_before_the_answer_need_not_be_foreseen(tokenizer) -> None:
    # The reader has no idea of the opening sentence, nor of most of the text.
    ids, answer = pass_keys.prompt(tokenizer, LENGTH, 0.9, 71432)
    assert pass_keys.says_the_key(Reader(10_000), ids, answer, chunk=64)


def test_a_model_finds_the_keys_that_it_can_see(tokenizer) -> None:
    found = pass_keys.retrieve(Reader(300), tokenizer, LENGTH, 2, depths=(0.1, 0.9))
    assert found == [Retrieval(LENGTH, 0.1, 0, 2), Retrieval(LENGTH, 0.9, 2, 2)]


def test_the_measure_gives_the_share_and_each_depth(tokenizer) -> None:
    made = PassKeys(Given(Loaded(Reader(300), tokenizer, None, None), 300, LENGTH, passkey=2))
    raw = {LENGTH: made.run(Reader(300), LENGTH)}
    assert made.values(raw, LENGTH)["right"].value == pytest.approx(2 / 6)
    # Two of six, and one of two more: squared deviations of 1.875, seven degrees of freedom, eight samples.
    assert made.values(raw, LENGTH)["right"].error == pytest.approx((1.875 / 7 / 8) ** 0.5)
    (depths,) = made.details(raw, [LENGTH])
    assert (depths.at, depths.values) == (("10%", "50%", "90%"), (0.0, 0.0, 1.0))
    with pytest.raises(TooShort, match="more text to hide in than 60 tokens"):
        made.run(Reader(300), 60)


def test_trials_have_keys_of_their_own_and_the_same_ones_every_time(tokenizer, monkeypatch) -> None:
    keys: list[int] = []
    prompt = pass_keys.prompt

    def noted(tokenizer, length, depth, key, opening=()):
        keys.append(key)
        return prompt(tokenizer, length, depth, key, opening)

    monkeypatch.setattr(pass_keys, "prompt", noted)
    for _ in range(2):
        pass_keys.retrieve(Reader(10), tokenizer, 500, 2, depths=(0.0, 1.0))
    assert keys[:4] == keys[4:] and len(set(keys)) == 4 and all(10_000 <= key < 100_000 for key in keys)


def test_progress_goes_over_all_passes(tokenizer) -> None:
    told: list[float] = []
    pass_keys.retrieve(Reader(10), tokenizer, 500, 2, depths=(0.0, 1.0), chunk=300, tell=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == 8


@pytest.mark.parametrize(
    ("length", "depth", "message"),
    [(100, 0.5, "more text to hide in than 100 tokens"), (LENGTH, 1.5, "from 0 to 1, got 1.5")],
)
def test_impossible_texts_are_refused(length: int, depth: float, message: str, tokenizer) -> None:
    with pytest.raises(ValueError, match=message):
        pass_keys.prompt(tokenizer, length, depth, 12345)
