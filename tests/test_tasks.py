"""Tasks: sequences with known answers, held to oracles written here."""

import re

import pytest
import torch

from posenc.lab import tasks
from posenc.lab.tasks import BOS, END, LETTERS, SEPARATOR

SYMBOL_TASKS = [name for name in tasks.names() if name != "text"]
TRANSFORMS = {
    "copy": lambda prompt: prompt,
    "repeat": lambda prompt: prompt[0] * len(prompt),
    "reverse": lambda prompt: prompt[::-1],
    "sort": lambda prompt: "".join(sorted(prompt)),
}


def made(name: str, length: int, rows: int = 7, seed: int = 3) -> tasks.Batch:
    return tasks.find(name)().batch(length, rows, torch.Generator().manual_seed(seed))


def words_of(row: list[int]) -> str:
    """Ids as letters, by a table of this test's own."""
    names = {BOS: "<", SEPARATOR: "|", END: ">"}
    return "".join(names.get(i) or "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[i - 3] for i in row)


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_answer_is_what_the_task_says(name: str, length: int) -> None:
    for row in made(name, length).ids.tolist():
        parts = re.fullmatch(r"<([a-zA-Z]+)\|([a-zA-Z]+)>", words_of(row))
        assert parts is not None and len(parts[1]) == length
        assert parts[2] == TRANSFORMS[name](parts[1])


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_answer_and_its_end_count_and_nothing_else(name: str, length: int) -> None:
    batch = made(name, length)
    counted = [
        word for word, counts in zip(words_of(batch.ids[0].tolist())[1:], batch.answer.tolist(), strict=True) if counts
    ]
    assert "".join(counted) == words_of(batch.ids[0].tolist()).partition("|")[2]


def test_repeat_has_one_symbol_a_row_and_different_rows() -> None:
    ids = made("repeat", 5, rows=40).ids
    assert all(len(set(words_of(row)[1:-1]) - {"|"}) == 1 for row in ids.tolist())
    assert len({row[1] for row in ids.tolist()}) > 10


@pytest.mark.parametrize("length", [1, 3, 16])
def test_recall_asks_for_every_key_once_and_gives_its_value(length: int) -> None:
    batch = made("recall", length)
    for row in batch.ids.tolist():
        pairs, _, questions = words_of(row)[1:].partition("|")
        known = {pairs[i]: pairs[i + 1] for i in range(0, len(pairs), 2)}
        asked = [(questions[i], questions[i + 1]) for i in range(0, len(questions), 2)]
        assert len(known) == length == len(pairs) // 2
        assert sorted(asked) == sorted(known.items())
    counted = [i for i, counts in enumerate(batch.answer.tolist()) if counts]
    # Behind BOS, the pairs and the separator every second token is a value, predicted one place before it stands.
    assert counted == [2 * length + 1 + 2 * i + 1 for i in range(length)]


def test_recall_asks_in_another_order_than_it_told() -> None:
    orders = set()
    for row in made("recall", 4, rows=60).ids.tolist():
        told, asked = row[1:9:2], row[10::2]
        orders.add(tuple(told.index(key) for key in asked))
    assert len(orders) > 15


def test_recall_has_sixteen_keys_and_says_so() -> None:
    with pytest.raises(
        ValueError, match=r"recall has 16 different keys, and cannot make 17 pairs; choose lengths up to 16"
    ):
        made("recall", 17)


@pytest.mark.parametrize("name", SYMBOL_TASKS)
def test_every_sequence_starts_with_bos_and_has_the_promised_length(name: str) -> None:
    task = tasks.find(name)()
    for length in (1, 4):
        ids = made(name, length).ids
        assert ids.shape == (7, task.tokens(length) + 1)
        assert (ids[:, 0] == BOS).all() and (ids[:, 1:] != BOS).all()
        assert ids.max() < task.vocab


@pytest.mark.parametrize("name", SYMBOL_TASKS)
def test_a_seed_gives_the_same_sequences_and_another_seed_others(name: str) -> None:
    assert torch.equal(made(name, 8, seed=1).ids, made(name, 8, seed=1).ids)
    assert not torch.equal(made(name, 8, seed=1).ids, made(name, 8, seed=2).ids)


@pytest.mark.parametrize("name", SYMBOL_TASKS)
def test_every_symbol_is_drawn_about_equally_often(name: str) -> None:
    task = tasks.find(name)()
    ids = made(name, 8, rows=4000).ids
    share = torch.bincount(ids[ids > END], minlength=task.vocab)[3:].double() * task.symbols / (ids > END).sum()
    assert len(share) == task.symbols and (share - 1).abs().max() < 0.25


@pytest.mark.parametrize("name", SYMBOL_TASKS)
def test_a_prompt_goes_to_ids_and_back(name: str) -> None:
    task = tasks.find(name)()
    prompt = LETTERS[: task.symbols][::-1] + "|"
    ids = task.encode(prompt)
    assert ids[0] == BOS and ids[-1] == SEPARATOR and len(ids) == len(prompt) + 1
    assert task.decode(ids[1:]) == prompt
    assert task.decode([BOS, END]) == "^."


def test_a_written_prompt_is_a_prompt_of_the_batches() -> None:
    row = made("copy", 6).ids[0].tolist()
    assert tasks.find("copy")().encode(words_of(row)[1:8]) == row[:8]


def test_letters_that_a_task_does_not_know_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"a prompt for this task is written in abcdefghij and \|, got ' ', 'k'$"):
        tasks.find("sort")().encode("ab k|")


def test_the_text_task_goes_from_words_to_bytes_and_back() -> None:
    text = tasks.find("text")(None)
    assert text.encode("é!") == [256, 0xC3, 0xA9, ord("!")]
    # A byte that is no text, as the command line hands it on.
    assert text.encode("a\udcff") == [256, ord("a"), 0xFF]
    assert text.decode(text.encode("naïve text")) == "naïve text"
    assert text.decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"


def test_an_unknown_task_lists_the_known_ones_and_the_near_one() -> None:
    known = "copy, recall, repeat, reverse, sort, text"
    with pytest.raises(ValueError, match=f"^no task named 'revers'; there are: {known}; did you mean 'reverse'\\?$"):
        tasks.find("revers")
    with pytest.raises(ValueError, match=f"^no task named 'chess'; there are: {known}$"):
        tasks.find("chess")


def test_a_new_file_is_a_new_task(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "double.py").write_text(
        '"""Say the prompt twice."""\n\nfrom posenc.lab.tasks import Symbols\n\n\n'
        'class Double(Symbols):\n    """Say the prompt twice."""\n\n    name = "double"\n'
    )
    monkeypatch.setattr(tasks, "HOME", tmp_path)
    monkeypatch.setattr(tasks, "__path__", [str(tmp_path)])
    assert tasks.names() == ["double"]
    assert tasks.find("double")().vocab == 29


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_says_what_it_is_in_one_line(name: str) -> None:
    task = tasks.find(name)
    assert task.name == name and len((task.__doc__ or "").split("\n")[0]) > 20
