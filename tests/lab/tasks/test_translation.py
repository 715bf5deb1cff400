"""Translation: each target against a translation by the grammar, from the letters."""

from itertools import product

import pytest
import torch

from posenc.lab.tasks import BOS, END, task_of

NOUNS, VERBS, ADJECTIVES = "abcdefgh", "ijklmnop", "qrstuvwxyz"


def by_hand(sentence: str) -> str:
    """The translation of a sentence: the verb, then each phrase from its noun back to its first adjective."""
    phrases, phrase = [], ""
    for word in sentence[:-1]:
        phrase += word
        if word in NOUNS:
            phrases.append(phrase)
            phrase = ""
    subject, thing = phrases
    assert phrase == "" and sentence[-1] in VERBS
    assert all(word in ADJECTIVES for part in phrases for word in part[:-1])
    return "".join(f"'{word}" for word in sentence[-1] + subject[::-1] + thing[::-1])


def test_the_translation_by_hand_is_the_one_of_the_docstring() -> None:
    assert by_hand("qtasbk") == "'k'a't'q'b's" and "qtasbk -> 'k'a't'q'b's" in task_of("translation").__doc__.replace(
        "qta sb k", "qtasbk"
    )


@pytest.mark.parametrize("length", [3, 4, 9])
def test_the_target_translates_the_source(length: int) -> None:
    task = task_of("translation")
    batch = task.batch(length, 200, torch.Generator().manual_seed(length))
    assert batch.source is not None and batch.source.shape == batch.ids.shape == (200, length + 1)
    assert task.tokens(length) == length + 1 and batch.answer.all() and batch.answer.shape == (length + 1,)
    for source, read, target in zip(batch.source.tolist(), batch.ids.tolist(), batch.targets.tolist(), strict=True):
        sentence = task.decode(source)
        assert sentence[0] == "^" and source[0] == read[0] == BOS and target[-1] == END
        assert task.decode(target) == by_hand(sentence[1:]) + "."
        assert read[1:] == target[:-1] and max(target) < task.vocab


def test_every_place_of_the_first_noun_and_every_word_is_drawn_about_as_often() -> None:
    task = task_of("translation")
    batch = task.batch(7, 6000, torch.Generator().manual_seed(0))
    sentences = [task.decode(row)[1:] for row in batch.source.tolist()]
    places = [next(i for i, word in enumerate(sentence) if word in NOUNS) for sentence in sentences]
    assert all(abs(places.count(place) / 6000 - 0.2) < 0.025 for place in range(5)) and set(places) == set(range(5))
    for words in (NOUNS, VERBS, ADJECTIVES):
        counts = [sum(sentence.count(word) for sentence in sentences) for word in words]
        assert max(counts) < 1.25 * min(counts)


def test_words_come_again_within_a_sentence() -> None:
    source = task_of("translation").batch(12, 20, torch.Generator().manual_seed(0)).source
    assert source is not None and any(len(set(row)) < 12 for row in source.tolist())


@pytest.mark.parametrize("length", [3, 4, 5])
def test_the_chance_of_a_guess_is_one_of_all_sentences(length: int) -> None:
    task = task_of("translation(symbols=7)")  # two nouns, two verbs, three adjectives
    sentences = [
        words
        for words in product("abcdefg", repeat=length)
        if words[-1] in "cd" and words[-2] in "ab" and sum(word in "ab" for word in words) == 2
        if all(word in "abefg" for word in words[:-1])
    ]
    assert task.chance(length) == pytest.approx(1 / len(sentences))


def test_a_seed_gives_the_same_sentences_and_another_seed_others() -> None:
    task = task_of("translation")
    first, second, third = (task.batch(6, 5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.targets, second.targets) and not torch.equal(first.targets, third.targets)
    assert first.source is not None and second.source is not None and torch.equal(first.source, second.source)


def test_a_prompt_is_a_sentence_of_the_source() -> None:
    task = task_of("translation")
    batch = task.batch(6, 1, torch.Generator().manual_seed(3))
    assert (
        batch.source is not None and task.encode(task.decode(batch.source[0, 1:].tolist())) == batch.source[0].tolist()
    )


def test_lengths_begin_where_there_is_a_sentence() -> None:
    task = task_of("translation")
    assert list(task.lengths(6)) == [3, 4, 5, 6]
    with pytest.raises(ValueError, match=r"^translation needs 3 words, subject, object and verb, got a length of 2$"):
        task.batch(2, 1, torch.Generator())


def test_a_language_has_three_kinds_of_words() -> None:
    assert task_of("translation(symbols=3)").kinds == (1, 1, 1) and task_of("translation").kinds == (8, 8, 10)
    with pytest.raises(ValueError, match=r"^translation: symbols must be a whole number of 3 or more, got 2$"):
        task_of("translation(symbols=2)")
