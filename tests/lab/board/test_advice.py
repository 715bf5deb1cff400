"""Twenty questions to a small made-up board: what has to be recommended, and what must not be."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from board_rows import row, rows
from tiers import rest_slow

from posenc import cli
from posenc.lab.board import rows as kept
from posenc.lab.board.advice import Advice, Question, advise, nearest
from posenc.lab.board.costs import Cost
from posenc.lab.board.run import COMMITTED
from posenc.lab.results.summary import NOTHING

QUESTIONS = json.loads(Path(__file__).with_name("advise_questions.json").read_text(encoding="utf-8"))
COSTS = {name: Cost(name, 12, 2048, forward, 1.3) for name, forward in (("t5_bias", 1.2), ("alibi", 1.1))}

# What only two seeds say is too little, however well they do.
BOARD = [*rows(), *(row("copy", "kerple", seed, 16) for seed in (100, 101))]


def answer(asked: dict[str, Any], board: list[dict[str, Any]] = BOARD) -> Advice:
    causal, axes = not asked.get("bidirectional", False), asked.get("axes", 1)
    question = Question(asked["task"], asked["train"], asked["test"], causal, axes, asked.get("encoding"))
    return advise(question, board, COSTS)


def test_there_are_twenty_questions() -> None:
    assert len({asked["asks"] for asked in QUESTIONS}) == 20


@pytest.mark.parametrize("asked", QUESTIONS, ids=[asked["asks"] for asked in QUESTIONS])
def test_what_carried_is_recommended_and_nothing_else_is(asked: dict[str, Any]) -> None:
    if not asked["near"]:
        with pytest.raises(ValueError, match=re.escape(asked["says"])):
            answer(asked)
        return
    found = answer(asked)
    assert list(found.near) == asked["near"]
    assert set(found.recommended) == set(asked["recommended"])
    assert not set(found.recommended) & set(asked["not"])
    assert asked["says"] in "\n".join([found.answer, *found.sentences, *map(" | ".join, found.table)])


ANSWERED = [asked for asked in QUESTIONS if asked["near"]]


@pytest.mark.parametrize("asked", ANSWERED, ids=[asked["asks"] for asked in ANSWERED])
def test_rows_of_all_that_is_recommended_are_cited(asked: dict[str, Any]) -> None:
    found, known = answer(asked), {one["key"]: one["experiment"] for one in BOARD}
    cited = {(known[key]["task"], known[key]["spec"]) for key in found.rows}
    assert cited >= {(task, spec) for task in found.near for spec in found.recommended}
    for one in BOARD:
        run = one["experiment"]
        if (run["task"], run["spec"]) in cited:
            assert one["key"] in found.rows


@pytest.fixture(scope="module")
def own_rows() -> list[dict[str, Any]]:
    return kept.read(COMMITTED)


def label_of(run: dict[str, Any]) -> str:
    spec = run["experiment"]["spec"]
    return spec if isinstance(spec, str) else " / ".join(spec)


def carry_by_hand(task: str, factor: float, found: list[dict[str, Any]]) -> set[str]:
    """The encodings of which three seeds or more were run and most carry to the next tested multiple."""
    tested = sorted({at["factor"] for run in found for at in run["lengths"] if at["factor"] > 1})
    asked = next((one for one in tested if one >= factor), None)
    if factor > 1 and asked is None:
        return set()
    seeds: dict[str, list[bool]] = {}
    for run in found:
        passed = [at for at in run["lengths"] if factor > 1 and 1 < at["factor"] <= asked]
        flat = [at["perplexity_ratio"] <= 1.05 if task == "text" else at["exact_match"] >= 0.9 for at in passed]
        seeds.setdefault(label_of(run), []).append(run["learned"] is True and all(flat))
    return {label for label, right in seeds.items() if len(right) >= 3 and 2 * sum(right) > len(right)}


@pytest.mark.parametrize("asked", rest_slow(ANSWERED, 5), ids=[asked["asks"] for asked in ANSWERED])
def test_the_boards_own_rows_are_read_as_by_hand(asked: dict[str, Any], own_rows: list[dict[str, Any]]) -> None:
    found, evidence = answer(asked, own_rows), [run for run in own_rows if run["experiment"]["seed"] >= 100]
    if found.near == ("text",):
        # Told by bits, the fewest first.
        bits = [float(line[1]) for line in found.table if line[0] != asked.get("encoding")]
        assert bits == sorted(bits) and found.recommended[0] == next(
            row[0] for row in found.table if row[1] == f"{bits[0]:.3f}"
        )
        return
    of = {task: [run for run in evidence if run["experiment"]["task"] == task] for task in found.near}
    expected = [carry_by_hand(task, asked["test"] / asked["train"], runs) for task, runs in of.items()]
    assert set(found.recommended) == (set.intersection(*expected) if expected else set())
    cited = set(found.rows)
    for task, runs in of.items():
        for run in runs:
            assert run["key"] in cited or label_of(run) not in found.recommended, task


def test_the_cheapest_of_those_that_carry_comes_first() -> None:
    assert answer({"task": "copy", "train": 10, "test": 20}).recommended == ("alibi", "t5_bias", "rotary + alibi")
    found = answer(QUESTIONS[0])
    assert found.answer == "Take `alibi`: it carries from 10 to 20 on copy, with 2 more; it is the cheapest of them."
    assert found.headings == ("encoding", "seeds that carry to 2x on copy", "time of a layer", "cache, bytes", "why")
    # What was asked about stands in the first line; of what has no costs none are made up.
    assert found.table == (
        ("rotary", "0 of 5 (0.1 to 43 %)", NOTHING, NOTHING, "does not carry so far"),
        ("alibi", "5 of 5 (57 to 100 %)", "1.1x", "2,048", "the cheapest that carries"),
        ("t5_bias", "5 of 5 (57 to 100 %)", "1.2x", "2,048", "carries, and costs more"),
        ("rotary + alibi", "4 of 5 (38 to 96 %)", NOTHING, NOTHING, "carries, and costs more"),
    )


def test_on_text_the_fewest_bits_at_the_asked_length_come_first_whoever_stays_flat() -> None:
    board = [row("text", spec, seed, 16) for spec in ("alibi", "rotary", "none") for seed in range(100, 105)]
    for run in board:
        for at in run["lengths"]:
            shift = run["experiment"]["seed"] / 1e4
            at["bits_per_byte"] = {"alibi": 2.5, "rotary": 2.4, "none": 2.4 if at["factor"] < 2 else 3.0}[
                run["experiment"]["spec"]
            ] + shift
            at["perplexity_ratio"] = {"alibi": 1.0, "rotary": 1.2, "none": 1.0}[run["experiment"]["spec"]]
    found = answer({"task": "text", "train": 10, "test": 20, "encoding": "alibi"}, board)
    assert found.answer == "Take `rotary`: it needs the fewest bits per byte from 10 to 20."
    assert [line[0] for line in found.table] == ["alibi", "rotary", "none"]
    assert found.table[1][1:3] == ("2.410", "1.20") and found.table[1][-1] == "the fewest bits; does not stay flat"
    assert found.table[0][-1] == "more bits; stays flat" and found.recommended == ("rotary",)


def test_what_stands_out_is_said_and_not_called_a_tie() -> None:
    board = rows()
    for one in board:
        for at in one["lengths"]:
            # The rest answer 91 of 100 with every seed, which carries too.
            if one["experiment"]["spec"] != "alibi" and at.get("exact_match") == 0.99:
                at["exact_match"] = 0.91
    found = answer({"task": "copy", "train": 10, "test": 15}, board)
    assert [line[0] for line in found.table if line[-1] == "ahead of all others on copy"] == ["alibi"]


def test_seeds_of_the_search_are_no_evidence() -> None:
    board = [row("copy", "fire", seed, 16) for seed in range(5)] + rows()
    assert "fire" not in answer({"task": "copy", "train": 10, "test": 20}, board).recommended


def test_without_rows_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="it has none, as the board has no rows yet"):
        answer(QUESTIONS[0], [])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("copy", 0, 5), "train_length must be 1 or more, got 0"),
        (("copy", 5, -1), "test_length must be 1 or more, got -1"),
        (("copy", 5, 9, True, 3), "the board has tasks of 1 and 2 axes, got 3"),
    ],
)
def test_questions_that_cannot_be_asked(given: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Question(*given)


ASKED = {
    "text": "chatbot; code completion; write code; predict the next word of a novel; generate prose; language model "
    "for stories; serve a chat model with a long context",
    "pass_key": "find a fact in a long document; needle in a haystack; retrieve a passkey; search in documents",
    "recall": "look up the value of a key; associative recall",
    "copy": "copy a sequence; transcribe verbatim",
    "reverse": "reverse a string",
    "sort": "sort numbers",
    "addition": "add two numbers; arithmetic",
    "counting": "count characters",
    "parity": "parity of bits",
    "repeat": "repeat a symbol as often",
    "induction": "few-shot patterns in the prompt",
    "tree_copy": "parse nested brackets",
    "translation": "translate German to English; machine translation",
    "masked_symbols": "fill in masked words; BERT pretraining",
    "order_class": "classify sentences",
    "grid_mark": "recognise images; patches of a picture",
    "": "irregular time series; forecast electricity demand; weather sensors every ten minutes; stock prices; protein "
    "sequences; DNA; molecules as graphs; speech recognition; music; video; recommend products from clicks; images as "
    "a sequence; summarise long reports",
}
"""Task -> what people write who mean it; those that the board knows nothing of under no name."""


@pytest.mark.parametrize(("task", "words"), [(task, one) for task, all_ in ASKED.items() for one in all_.split("; ")])
def test_questions_in_peoples_words_find_their_task_or_are_refused(task: str, words: str, own_rows) -> None:
    on_board = list(dict.fromkeys(run["experiment"]["task"] for run in own_rows))
    causal, axes = task not in ("masked_symbols", "order_class", "grid_mark"), 2 if task == "grid_mark" else 1
    if task:
        assert nearest(Question(words, 128, 512, causal, axes), on_board) == [task]
    else:
        with pytest.raises(
            ValueError, match=f"no task of the board is near '{words}', .* it has addition, copy, |never measured"
        ):
            nearest(Question(words, 128, 512, causal, axes), on_board)


# The command


@pytest.fixture
def board(tmp_path: Path) -> Path:
    kept.add(tmp_path, rows())
    return tmp_path


def test_the_command_answers_in_words_and_in_json(board: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["advise", "--task", "copy", "--train-length", "10", "--test-length", "20", "--rows", str(board)]
    assert cli.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("Take `alibi`: it carries from 10 to 20 on copy, with 2 more; it is the cheapest of them.\n")
    assert re.search(r"^alibi +5 of 5", said, re.MULTILINE) and "Measured on small models, of two layers" in said
    assert "Not recommended: " not in said and cli.main([*asked, "--all"]) == 0
    assert "Not recommended: " in capsys.readouterr().out
    assert cli.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["near"] == ["copy"] and "alibi" in found["recommended"] and "copy-alibi-seed100" in found["rows"]


def test_the_command_says_where_there_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["advise", "--task", "copy", "--train-length", "10", "--test-length", "20", "--rows", str(tmp_path)]
    assert cli.main(asked) == 2
    assert "there is no board in" in capsys.readouterr().err


def test_other_words_for_a_task_are_known(board: Path, capsys: pytest.CaptureFixture) -> None:
    for words in ("transcribe verbatim", "a duplicate of the prompt"):
        asked = ["advise", "--task", words, "--train-length", "10", "--test-length", "20", "--rows", str(board)]
        assert cli.main(asked) == 0
        assert "on copy, " in capsys.readouterr().out


def test_a_misspelt_encoding_of_ones_own_is_told(board: Path, capsys: pytest.CaptureFixture) -> None:
    asked = ["advise", "--task", "copy", "--train-length", "10", "--test-length", "20", "--rows", str(board)]
    assert cli.main([*asked, "--encoding", "rotarry"]) == 2
    assert "no encoding named 'rotarry'" in capsys.readouterr().err
