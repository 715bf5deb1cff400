"""Keys hidden in long texts, for models that answer right, wrong, or by guessing."""

import random
import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.live.attach import attach
from posenc.checkpoints.measures import all_measures
from posenc.checkpoints.measures.hidden_keys import FILLER, THRESHOLD, OneKey, SeveralKeys, plain_sentences
from posenc.checkpoints.measures.measure import Inputs, TooShort, Value
from posenc.checkpoints.measures.perplexity import PrefixCache, likeliest_tokens

LENGTH = 2600

BOTH_TASKS = pytest.mark.parametrize("kind", [OneKey, SeveralKeys])


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def task(kind: Any, tokenizer, seed: int = 0, text: tuple[str, ...] = (), **options: int) -> OneKey:
    return kind(Inputs(SimpleNamespace(tokenizer=tokenizer), 96, 192, text, **options), seed)  # type: ignore[arg-type]


def text_of(ids: Tensor) -> str:
    return "".join(tiny_llama.CHARACTERS[i] for i in ids.tolist())


def numbers_in(text: str) -> dict[str, str]:
    """Return the number of each word in the sentences of a text."""
    return dict(re.findall(r"number of (\w+) is (\d+)\.", text))


def answer_in(text: str) -> str:
    """Return the right answer to a text."""
    body, _, question = text.rpartition("\n\n")
    return numbers_in(body)[re.findall(r"number of (\w+) is", question)[0]]


class Answers:
    """A model that predicts the answer of a function of the text, which it reads from the ids."""

    device = torch.device("cpu")
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=8)

    def __init__(self, answer) -> None:
        self.answer = answer

    def parameters(self) -> list[Tensor]:
        return [torch.zeros(9)]

    def forward(self, input_ids: Tensor, past_key_values: str | None, use_cache: bool) -> SimpleNamespace:
        text, logits = past_key_values or "", []
        for token in input_ids[0].tolist():
            text += tiny_llama.CHARACTERS[token]
            logits.append(torch.nn.functional.one_hot(torch.tensor(self.following(text)), 101).float())
        return SimpleNamespace(past_key_values=text, logits=torch.stack(logits)[None])

    __call__ = forward

    def following(self, text: str) -> int:
        question = re.search(r"(?s)^(.*\n\n.*\n\nThe number of \w+ is)( \d*)?$", text)
        answer, start = (" " + self.answer(question[1]), question[2] or "") if question else ("", "")
        return tiny_llama.CHARACTERS.index(answer[len(start)]) if len(start) < len(answer) else 0


def errs(text: str) -> str:
    return answer_in(text)[:-1] + "x"


@BOTH_TASKS
def test_a_model_that_knows_has_all_and_one_that_errs_in_the_last_digit_nothing(kind, tokenizer) -> None:
    measure = task(kind, tokenizer, samples=3)
    for answer, score in ((answer_in, 1.0), (errs, 0.0)):
        values = measure.values({LENGTH: measure.run(Answers(answer), LENGTH)}, LENGTH)
        assert values["right"].value == score and values["right"].each == (score,) * 3 and values["right"].error


def test_a_model_that_guesses_comes_to_the_chance(tokenizer) -> None:
    # Guesses are simulated on the answers alone; passes are tested above.
    measure, draws = task(SeveralKeys, tokenizer, samples=40), random.Random(1)
    right = []
    for question in measure.questions(LENGTH):
        text = text_of(question.ids[: -question.answer])
        candidates = list(numbers_in(text).values())
        right += [draws.choice(candidates) == answer_in(text) for _ in range(200)]
    assert sum(right) / len(right) == pytest.approx(measure.numbers[0].chance, abs=0.01) == 1 / 8


def test_one_number_alone_is_one_among_all_numbers(tokenizer) -> None:
    assert task(OneKey, tokenizer).numbers[0].chance == 1 / 90_000


@BOTH_TASKS
@pytest.mark.parametrize("length", [1700, LENGTH])
def test_texts_are_as_long_as_asked_and_end_with_their_one_answer(kind, length: int, tokenizer) -> None:
    measure = task(kind, tokenizer, samples=5)
    measure.opening = (99,)
    for question in measure.questions(length):
        assert length - max(map(len, FILLER)) < len(question.ids) <= length
        assert question.ids[0] == 99 and 99 not in question.ids[1:]
        text = text_of(question.ids[1:])
        assert text[: -question.answer] + " " + answer_in(text[: -question.answer]) == text
        assert len(numbers_in(text)) == kind.keys


@BOTH_TASKS
def test_trials_come_from_the_seed_and_ask_the_same_at_every_length(kind, tokenizer) -> None:
    first, again, fresh = (task(kind, tokenizer, seed) for seed in (0, 0, 1))
    texts = [[text_of(question.ids) for question in measure.questions(LENGTH)] for measure in (first, again, fresh)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 8
    assert not set(texts[0]) & set(texts[2])
    for question, text in zip(first.questions(LENGTH // 2 + 500), texts[0], strict=True):
        assert text_of(question.ids).rpartition("\n\n")[2] == text.rpartition("\n\n")[2]


def test_the_texts_of_a_seed_are_those_of_earlier_versions(tokenizer) -> None:
    """Results stay comparable: the texts are pinned, as in posenc 0.2.0."""
    ends = [text_of(question.ids).rpartition("\n\n")[2] for question in task(OneKey, tokenizer).questions(600)]
    assert ends[:2] == ["The number of needle is 85229", "The number of paper is 12051"]
    ends = [text_of(question.ids).rpartition("\n\n")[2] for question in task(SeveralKeys, tokenizer).questions(1700)]
    assert ends[:2] == ["The number of velvet is 10324", "The number of bridge is 42232"]


@BOTH_TASKS
def test_what_is_asked_lies_at_every_depth(kind, tokenizer) -> None:
    measure, places = task(kind, tokenizer, samples=5), []
    trials = [trial for text in measure.texts for trial in text]
    assert sorted(trials) == list(range(5))
    for _, question in sorted(zip(trials, measure.questions(LENGTH), strict=True), key=lambda pair: pair[0]):
        text = text_of(question.ids[: -question.answer])
        body = text.split("\n\n")[1]
        places.append(body.index(f" {answer_in(text)}.") / len(body))
    assert places == sorted(places) and places[0] < 0.35 and places[-1] > 0.6
    assert all(0.05 < b - a < 0.45 for a, b in pairwise(places))


def test_order_tells_nothing_of_the_answer(tokenizer) -> None:
    """The answer is at any place among the candidates, in the order of the text."""
    places = Counter()
    for question in task(SeveralKeys, tokenizer, samples=60).questions(LENGTH):
        text = text_of(question.ids[: -question.answer])
        places[list(numbers_in(text).values()).index(answer_in(text))] += 1
    assert places.most_common(1)[0][1] < 20, places


def test_sentences_of_a_text_fill_where_no_number_is_in_them(tokenizer, tmp_path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("One. Two lines\nof it! Was it 7? Three.", encoding="utf-8")
    measure = task(OneKey, tokenizer, text=(str(path),), samples=1)
    assert measure.filler == ("One. ", "Two lines of it! ", "Three. ")
    text = text_of(next(measure.questions(400)).ids)
    assert "One. Two lines of it! Three. One. " in text and len(text) <= 400
    assert measure.facts["filler"] != task(OneKey, tokenizer).facts["filler"]
    assert measure.source.endswith("in sentences of text.txt")
    with pytest.raises(ValueError, match=r"no sentence without a number.*another --text, or --measures perplexity"):
        plain_sentences("1. 2. 3.")


def test_errors_are_those_of_the_trials_with_one_right_and_one_wrong_more(tokenizer) -> None:
    raw = {9: {"right": [True, False, True]}}
    measure = task(OneKey, tokenizer, samples=3)
    # Of 1, 0, 1, 0 and 1: mean 0.6, squared deviations 1.2, four degrees of freedom, five samples.
    assert measure.values(raw, 9) == {"right": Value(2 / 3, pytest.approx((1.2 / 4 / 5) ** 0.5), (1.0, 0.0, 1.0))}


@pytest.mark.parametrize("chunk", [1, 7, 1499, 5000])
def test_answers_are_marked_wherever_chunks_end(chunk: int, tokenizer) -> None:
    measure = task(SeveralKeys, tokenizer, samples=2, chunk=chunk)
    first_answer = text_of(next(measure.questions(1500)).ids)[-5:]

    def knows_one(text: str) -> str:
        return first_answer if answer_in(text) == first_answer else errs(text)

    assert measure.run(Answers(knows_one), 1500)["right"] == [True, False]


def test_progress_goes_over_all_trials(tokenizer) -> None:
    shares: list[float] = []
    task(OneKey, tokenizer, samples=2, chunk=300).run(Answers(errs), 500, tell=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 4


def test_a_part_of_a_text_is_not_asked(tokenizer) -> None:
    with pytest.raises(ValueError, match="asked of the whole text alone, not of 'windows'"):
        task(OneKey, tokenizer).run(Answers(errs), 500, "windows")


def test_the_shortest_text_is_found_exactly(tokenizer) -> None:
    measure = task(OneKey, tokenizer, samples=1)
    with pytest.raises(TooShort) as error:
        next(measure.questions(1))
    least = int(re.findall(r"takes (\d+) tokens at least, got 1$", str(error.value))[0])
    for length in (least, least + len(FILLER[1])):
        assert len(next(measure.questions(length)).ids) == len(next(measure.questions(length + 1)).ids) == length
    with pytest.raises(TooShort, match=f"{least} tokens at least, got {least - 1}"):
        next(measure.questions(least - 1))


def test_texts_that_answer_several_questions_are_the_same_up_to_them(tokenizer) -> None:
    measure = task(SeveralKeys, tokenizer, samples=11)
    assert [list(trials) for trials in measure.texts] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]
    texts = [text_of(question.ids).rpartition("\n\n")[0] for question in measure.questions(LENGTH)]
    assert len(set(texts[:6])) == len(set(texts[6:])) == 1 and texts[0] != texts[6]


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=1, vocab_size=101, sliding_window=16)).eval()


@pytest.mark.parametrize("kind", ["llama", "attached", "windows"])
def test_what_texts_begin_with_alike_is_read_once(kind: str) -> None:
    model = mistral() if kind == "windows" else tiny_llama.model()
    if kind == "attached":
        attach(model, "self_extend(rotary(base=500.0), window=8, group=4)")
    first, end = torch.randint(100, (40,)), torch.randint(100, (12,))
    texts = [first, torch.cat((first[:30], end)), torch.cat((first[:30], end)), first[:33], torch.cat((first, end))]
    counts, read, prefix = [], [], PrefixCache()
    model.model.register_forward_pre_hook(
        lambda _, args, kw: counts.append(kw["inputs_embeds" if args else "input_ids"].shape[1]), with_kwargs=True
    )
    for ids in texts:
        with torch.inference_mode():
            expected = model(input_ids=ids[None]).logits[0, -4:-1].argmax(-1)
        counts.clear()
        assert likeliest_tokens(model, ids, 3, 7, prefix).equal(expected)
        read.append(sum(counts))
    # A text is read up to its last token but one, and again from where it differs, or from where it is predicted.
    assert read == ([39, 41, 41, 32, 19] if kind == "windows" else [39, 11, 3, 3, 19])


def test_extend_asks_them_with_its_own_options(tokenizer) -> None:
    kind = all_measures.MEASURES["one-key"]
    assert kind.options == {"text", "samples", "chunk", "cache"}
    assert not kind.baselines and kind.needs == THRESHOLD == 0.856
    plain, changed_task = task(kind, tokenizer), task(kind, tokenizer, samples=3, chunk=50)
    assert (plain.name, plain.trials, plain.filler, plain.chunk) == ("one-key", 8, FILLER, 1024)
    assert (changed_task.trials, changed_task.chunk) == (3, 50)
    assert "one-key" in all_measures.DEFAULT_MEASURES and "several-keys" not in all_measures.DEFAULT_MEASURES
