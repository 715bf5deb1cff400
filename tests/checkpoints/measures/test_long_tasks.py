"""Tasks of long texts, by models that are known to answer right, wrong, or by guessing."""

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
from posenc.checkpoints.measures.asked import ENOUGH, LongTask, chances, sentences, task_of
from posenc.checkpoints.measures.long_tasks import FILLER, PARTS, TASKS, WORDS
from posenc.checkpoints.measures.measure import Given, Value
from posenc.checkpoints.measures.perplexity import Read, costs, likeliest
from posenc.checkpoints.measures.questions import Draw, ids_of, questions
from posenc.checkpoints.measures.work import Work

LENGTH = 2600


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def text_of(ids: Tensor) -> str:
    return "".join(tiny_llama.CHARACTERS[i] for i in ids.tolist())


def answers_in(text: str) -> list[str]:
    """The right answers of a text, read from its sentences alone."""
    body, _, asked = text.rpartition("\n\n")
    if "the value" in asked:
        of = dict(re.findall(r"The value of (\w+) is (\d+)\.", body))
        links = re.findall(r"The value of (\w+) is the value of (\w+)\.", body)
        value = re.findall(r"value (\d+)", asked)[0]
        found = [next(name for name, number in of.items() if number == value)]
        while nexts := [new for new, old in links if old == found[-1]]:
            found += nexts
        return found
    if "the list" in asked:
        counts = Counter(body.split("\n\n")[1].split()).most_common()
        return [word for word, _ in counts[: 4 if "most often" in asked else 3]]
    if "the mark" in asked:
        parts = body.split("\n\n")[1:]
        return [str(1 + next(n for n, part in enumerate(parts) if "Here is the mark." in part))]
    names = re.findall(r"[a-z]+", re.findall(r"numbers? of ([a-z ,]+?)(?:, in| is)", asked)[0].replace(" and ", ", "))
    return [number for name in names for number in re.findall(rf"number of {name} is (\d+)\.", body)]


class Answers:
    """Says the next token of what `answers` makes of the text before the answer, item by item.

    It reads its answer off the ids alone, and what was said before stands there already.
    """

    device = torch.device("cpu")
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=8)

    def __init__(self, answers) -> None:
        self.answers, self.said = answers, {}

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
        body, mark, end = text.rpartition("\n\n")
        stops = [" is", " are"]
        place = max((end.rfind(stop) + len(stop) for stop in stops if stop in end), default=-1)
        if place < 0 or not mark or "\n\n" not in body or not re.match(r"The (number|words|\d)", end):
            return 0
        said = end[place:]
        done = said.count(",")
        if (text[: len(text) - len(said)], done) not in self.said:
            before = [one.strip() for one in said.split(",")][:done]
            self.said[text[: len(text) - len(said)], done] = self.answers(text[: len(text) - len(said)], before)
        wanted = " " + self.said[text[: len(text) - len(said)], done]
        now = said.rpartition(",")[2]
        return tiny_llama.CHARACTERS.index(wanted[len(now)] if len(now) < len(wanted) else ",")


def knows(text: str, before: list[str]) -> str:
    of = answers_in(text)
    left = [one for one in of if one not in before]
    # Where any order does, another one than the next is as right.
    return left[-1] if "most often" in text.rpartition("\n\n")[2] else of[len(before)]


def errs(text: str, before: list[str]) -> str:
    return "wrong" if answers_in(text)[0].isalpha() else "0"


def draws_of(task: LongTask, tokenizer) -> list[Draw]:
    ids = ids_of(tokenizer)
    return [draw for text in range(len(task.texts)) for draw in task.draws(text, ids)]


def candidates_in(text: str) -> list[str]:
    body, _, asked = text.rpartition("\n\n")
    if "the list" in asked:
        return sorted(set(body.split("\n\n")[1].split()))
    if "the value" in asked:
        return re.findall(r"The value of (\w+) is", body)
    if "the mark" in asked:
        return [str(n + 1) for n in range(PARTS)]
    return re.findall(r" is (\d+)\.", body)


@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_knows_has_all_and_one_that_errs_nothing(name: str, tokenizer) -> None:
    task = LongTask(TASKS[name], tokenizer, trials=3)
    for answers, score in ((knows, 1.0), (errs, 0.0)):
        found = task.values({LENGTH: task.run(Answers(answers), LENGTH)}, LENGTH)
        assert {value.value for value in found.values()} == {score}
        assert all(value.each == (score,) * 3 and value.error for value in found.values())


@pytest.mark.parametrize("name", [name for name in TASKS if name != "one-key"])
def test_a_model_that_guesses_comes_to_the_chance(name: str, tokenizer) -> None:
    # Guesses are simulated on the answers alone: what a pass makes of them is tested above.
    task, draws = LongTask(TASKS[name], tokenizer, trials=40), random.Random(1)
    rights, wholes = [], []
    for asked, drawn in zip(task.questions(LENGTH), draws_of(task, tokenizer), strict=True):
        text = text_of(asked.ids[: -asked.answer]).rstrip()
        truth, candidates = answers_in(text), candidates_in(text)
        any_order = drawn.any_order
        assert len(candidates) == drawn.candidates
        for _ in range(200):
            right = []
            for place, one in enumerate(truth):
                guess = draws.choice([each for each in candidates if each not in truth[:place]])
                right.append(guess in truth[place:] if any_order else guess == one)
            rights.append(sum(right) / len(right))
            wholes.append(all(right))
    chance = {number.name: number.chance for number in task.numbers}
    assert sum(rights) / len(rights) == pytest.approx(chance["right"], abs=0.01)
    assert sum(wholes) / len(wholes) == pytest.approx(chance.get("whole", chance["right"]), abs=0.01)


def test_one_number_alone_is_one_among_all_numbers(tokenizer) -> None:
    assert LongTask(TASKS["one-key"], tokenizer).numbers[0].chance == 1 / 90_000


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1700, LENGTH])
def test_texts_are_as_long_as_asked_and_end_with_their_one_answer(name: str, length: int, tokenizer) -> None:
    task = LongTask(TASKS[name], tokenizer, opening=(99,), trials=5)
    ids = ids_of(tokenizer)
    for asked, draw in zip(task.questions(length), draws_of(task, tokenizer), strict=True):
        step = sum(len(ids(piece)) for piece in draw.body(2)) - sum(len(ids(piece)) for piece in draw.body(1))
        # One more step would be too long; a step of the filler is one sentence, of them the longest here.
        assert length - max(step, max(map(len, FILLER)), PARTS * max(map(len, FILLER))) < len(asked.ids) <= length
        assert asked.ids[0] == 99 and 99 not in asked.ids[1:]
        text = text_of(asked.ids[1:])
        end = text.rpartition("\n\n")[2]
        said = re.split(r", | ", end[re.search(r" (is|are) \w+(, \w+)*$", end).start() :].strip())[1:]
        read = answers_in(text)
        assert (sorted(said) == sorted(read)) if draw.any_order else (said == read)
        assert len(asked.wanted) == len(said) == len(draw.answers)


@pytest.mark.parametrize("name", TASKS)
def test_trials_come_from_the_seed_and_ask_the_same_at_every_length(name: str, tokenizer) -> None:
    one, same, other = (LongTask(TASKS[name], tokenizer, seed=seed) for seed in (0, 0, 1))
    texts = [[text_of(asked.ids) for asked in task.questions(LENGTH)] for task in (one, same, other)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 8
    assert not set(texts[0]) & set(texts[2])
    for asked, draw in zip(one.questions(LENGTH // 2 + 500), draws_of(one, tokenizer), strict=True):
        assert text_of(asked.ids).endswith(", ".join(draw.answers))


@pytest.mark.parametrize("name", ["one-key", "several-keys", "several-queries", "several-values", "variables"])
def test_what_is_asked_lies_at_every_depth(name: str, tokenizer) -> None:
    task, places = LongTask(TASKS[name], tokenizer, trials=5), []
    trials = [trial for text in task.texts for trial in text]
    assert sorted(trials) == list(range(5))
    for _, asked, draw in sorted(zip(trials, task.questions(LENGTH), draws_of(task, tokenizer), strict=True)):
        body = text_of(asked.ids).split("\n\n")[1]
        of = [body.index(f" {one}.") if one.isdigit() else body.index(f"of {one} is") for one in draw.answers]
        places.append([place / len(body) for place in sorted(of)])
    # Each of n lies in a share of its own, from the beginning of the share to its end.
    for item in range(len(places[0])):
        shares = [(place[item] * len(place)) - item for place in places]
        assert shares == sorted(shares) and shares[0] < 0.35 and shares[-1] > 0.6
        assert all(0.05 < b - a < 0.45 for a, b in pairwise(shares))


def test_the_mark_stands_in_every_part(tokenizer) -> None:
    task = LongTask(TASKS["mark"], tokenizer, trials=PARTS)
    parts = [answers_in(text_of(asked.ids))[0] for asked in task.questions(LENGTH)]
    assert parts == [str(n + 1) for n in range(PARTS)]
    parts = text_of(next(task.questions(LENGTH)).ids).split("\n\n")[1:-1]
    assert len(parts) == PARTS and max(map(len, parts)) - min(map(len, parts)) < 30


@pytest.mark.parametrize("name", TASKS)
def test_order_tells_nothing_of_the_answer(name: str, tokenizer) -> None:
    """Where the first answer stands among the candidates, in the order of the text, is any place."""
    task = LongTask(TASKS[name], tokenizer, trials=60)
    if name == "one-key":
        return
    places = Counter()
    for asked, draw in zip(task.questions(LENGTH), draws_of(task, tokenizer), strict=True):
        text = text_of(asked.ids[: -asked.answer])
        candidates = list(dict.fromkeys(candidates_in(text.rstrip())))
        places[candidates.index(draw.answers[0])] += 1
    most = places.most_common(1)[0][1]
    # Four keys have four values, and four chains four steps: one in four of the first of them is the one.
    assert most < (27 if name in ("several-values", "variables") else 20), places


def test_sentences_of_a_text_fill_where_no_number_is_in_them(tokenizer) -> None:
    filler = sentences("One. Two lines\nof it! Was it 7? A mark. Three.")
    assert filler == ("One. ", "Two lines of it! ", "Three. ")
    task = LongTask(TASKS["one-key"], tokenizer, filler=filler, trials=1)
    text = text_of(next(task.questions(400)).ids)
    assert "One. Two lines of it! Three. One. " in text and len(text) <= 400
    assert task.facts["filler"] != LongTask(TASKS["one-key"], tokenizer).facts["filler"]
    with pytest.raises(ValueError, match="no sentence without a number"):
        sentences("1. 2. 3.")


def test_chances_by_hand() -> None:
    draw = Draw("", lambda n: [], "", ("a", "b"), 4)
    assert chances(draw) == [1 / 4, 1 / 3]
    assert chances(Draw("", lambda n: [], "", ("a", "b"), 4, any_order=True)) == [2 / 4, 1 / 3]


def test_errors_are_those_of_the_trials_with_one_right_and_one_wrong_more(tokenizer) -> None:
    task = LongTask(TASKS["several-queries"], tokenizer, trials=2)
    raw = {9: {"right": [[True, True, False, False], [True, True, True, True]], "depths": [0.0, 1.0], "tokens": [9, 9]}}
    found = task.values(raw, 9)
    # Of 0.5, 1, 0 and 1: mean 0.625, squared deviations 0.6875, three degrees of freedom, four samples.
    assert found["right"] == Value(0.75, pytest.approx((0.6875 / 3 / 4) ** 0.5), (0.5, 1.0))
    assert found["whole"].value == 0.5 and ENOUGH == 0.856
    (detail,) = task.details(raw, (9,))
    assert detail.at == (0.0, 1.0) and detail.values == (0.5, 1.0)


@pytest.mark.parametrize("chunk", [1, 7, 2599, 5000])
def test_answers_are_marked_wherever_chunks_end(chunk: int, tokenizer) -> None:
    task = LongTask(TASKS["several-queries"], tokenizer, trials=1, chunk=chunk)

    def half(text: str, before: list[str]) -> str:
        return knows(text, before) if len(before) % 2 else errs(text, before)

    assert task.run(Answers(half), 1500)["right"] == [[False, True, False, True]]


def test_progress_goes_over_all_trials(tokenizer) -> None:
    told: list[float] = []
    LongTask(TASKS["one-key"], tokenizer, trials=2, chunk=300).run(Answers(errs), 500, tell=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == 4


def test_each_length_takes_texts_of_its_own(tokenizer) -> None:
    assert LongTask(TASKS["one-key"], tokenizer, trials=3).passes((100, 200), False) == (100, 200)


def test_a_tokenizer_that_cannot_tell_words_apart_is_refused() -> None:
    def alike(text: str, **options) -> dict:
        return {"input_ids": [len(text)]}

    assert len({len(word) for word in WORDS}) < 24
    with pytest.raises(ValueError, match="begin with different tokens, and this tokenizer has"):
        next(LongTask(TASKS["common-words"], alike).questions(500))


def test_impossible_questions_are_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match=r"takes \d+ tokens at least, got 100"):
        next(LongTask(TASKS["one-key"], tokenizer).questions(100))
    with pytest.raises(ValueError, match="one trial or more, got 0"):
        LongTask(TASKS["one-key"], tokenizer, trials=0)
    with pytest.raises(ValueError, match=r"no task named 'one-kee'.*did you mean 'one-key'"):
        task_of("one-kee")
    with pytest.raises(ValueError, match="asked of the whole text alone, not of 'windows'"):
        LongTask(TASKS["one-key"], tokenizer).run(Answers(errs), 500, "windows")


def test_the_shortest_text_is_found_exactly(tokenizer) -> None:
    ids = ids_of(tokenizer)
    draw = Draw("a", lambda n: ["b"] * n, "c", ("d",), 2)
    # a, b, c and " d": five characters.
    assert text_of(questions([draw], ids, 5)[0].ids) == "abc d"
    assert text_of(questions([draw], ids, 9)[0].ids) == "abbbbbc d"
    with pytest.raises(ValueError, match="5 tokens at least, got 4"):
        questions([draw], ids, 4)


def test_texts_that_answer_several_questions_are_the_same_up_to_them(tokenizer) -> None:
    task = LongTask(TASKS["several-keys"], tokenizer, trials=11)
    assert [list(trials) for trials in task.texts] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]]
    texts = [text_of(asked.ids).rpartition("\n\n")[0] for asked in task.questions(LENGTH)]
    assert len(set(texts[:6])) == len(set(texts[6:])) == 1 and texts[0] != texts[6]
    # Of 11 trials the model reads two texts, and the questions.
    model, one = tiny_llama.model(), LongTask(task.task, tokenizer, trials=1)
    assert 2 < task.work(model, LENGTH) / one.work(model, LENGTH) < 2.4


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
    taken, read, held = [], [], Read()
    model.model.register_forward_pre_hook(
        lambda _, args, given: taken.append(given["inputs_embeds" if args else "input_ids"].shape[1]), with_kwargs=True
    )
    for ids in texts:
        with torch.inference_mode():
            expected = model(input_ids=ids[None]).logits[0, -4:-1].argmax(-1)
        taken.clear()
        assert likeliest(model, ids, 3, 7, read=held).equal(expected)
        read.append(sum(taken))
    # A text is read up to its last token but one, and again from where it differs, or from where it is predicted.
    assert read == ([39, 41, 41, 32, 19] if kind == "windows" else [39, 11, 3, 3, 19])
    # What is foreseen counts a text to its end, and nothing that was read before.
    work, lengths = Work.of(model), [40, 42, 42, 33, 52]
    kept = [0] * 5 if kind == "windows" else [0, 30, 42, 30, 33]
    expected = [work.total(whole) - work.total(first) for whole, first in zip(lengths, kept, strict=True)]
    assert costs(model, texts) == pytest.approx(expected, abs=1e-9)
    assert costs(model, texts, "cpu") == [work.total(whole) for whole in lengths]


def test_the_work_of_a_task_is_what_is_read_of_its_texts(tokenizer) -> None:
    task, model = LongTask(TASKS["one-key"], tokenizer, trials=3), tiny_llama.model()
    texts = [one.ids for one in task.questions(LENGTH)]
    assert task.work(model, LENGTH) == pytest.approx(sum(costs(model, texts)))
    # The keys lie at the beginning, in the middle and at the end.
    one = Work.of(model).total(len(texts[0]))
    assert 1.4 * one < task.work(model, LENGTH) < 2.8 * one and task.work(model, 10) == 0
    told: list[float] = []
    task.run(model, LENGTH, tell=told.append)
    assert told == sorted(told) and told[-1] == pytest.approx(1)


def test_extend_asks_them_with_its_own_options(tokenizer, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Rain falls. It is 7. Snow melts.", encoding="utf-8")
    loaded = SimpleNamespace(tokenizer=tokenizer, model=None, path=tmp_path)
    made = all_measures.MEASURES["mark"]
    plain, own = made(Given(loaded, 96, 192)), made(Given(loaded, 96, 192, (str(text),), samples=3, chunk=50))
    assert (plain.name, plain.trials, plain.filler, plain.chunk) == (made.name, 8, FILLER, 1024)
    assert (own.trials, own.filler, own.chunk) == (3, ("Rain falls. ", "Snow melts. "), 50)
    assert made.options == {"text", "samples", "chunk", "cache"} and plain.needs == ENOUGH and not made.baselines
    assert set(TASKS) <= set(all_measures.OF_DECODERS) and not set(TASKS) & set(all_measures.UNASKED)
