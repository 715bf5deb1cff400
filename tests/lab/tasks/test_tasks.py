"""Tasks: sequences against oracles that are written here by hand."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch

from posenc.coordinate_maps import map_of
from posenc.lab.tasks import BOS, END, LETTERS, SEPARATOR, TASKS, Batch, Rewrite, Task, task_of
from posenc.lab.tasks._symbols import LetterTask
from posenc.lab.tasks.addition import add_digits
from posenc.tokens.positions import Positions

SMALL, CAPITAL = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def make_batch(spec: str, length: int, rows: int = 40, seed: int = 3) -> Batch:
    return task_of(spec).batch(length, rows, torch.Generator().manual_seed(seed))


def words(letters: str, separator: str = "|") -> Callable[[list[int]], str]:
    """Ids as letters, by the test's own table: BOS is <, END is >."""
    return lambda ids: "".join(("<" + separator + ">" + letters)[i] for i in ids)


def read(spec: str, length: int, letters: str, separator: str = "|") -> Iterator[tuple[str, str, str]]:
    """Yield of each sequence: the input, the answers that count, and the input up to the first answer."""
    batch, word = make_batch(spec, length), words(letters, separator)
    answers = batch.answer.expand(batch.ids.shape[0], -1).tolist()
    for ids, targets, counts in zip(batch.ids.tolist(), batch.targets.tolist(), answers, strict=True):
        answer = word([target for target, is_counted in zip(targets, counts, strict=True) if is_counted])
        yield word(ids), answer, word(ids[: counts.index(True) + 1])


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize(
    "spec, oracle",
    [
        ("copy", lambda prompt: prompt),
        ("copy(times=3)", lambda prompt: prompt + prompt + prompt),
        ("repeat", lambda prompt: prompt[0] * len(prompt)),
        ("reverse", lambda prompt: prompt[::-1]),
        ("sort", lambda prompt: "".join(sorted(prompt))),
    ],
)
def test_what_is_said_of_a_prompt(spec: str, oracle: Callable[[str], str], length: int) -> None:
    for whole, answer, prompt in read(spec, length, SMALL):
        parts = re.fullmatch(r"<([a-z]+)\|", prompt)
        assert parts is not None and len(parts[1]) == length
        assert answer == oracle(parts[1]) + ">"
        assert whole == prompt + answer[:-1]


def test_repeat_has_one_symbol_a_row_and_different_rows() -> None:
    prompts = [prompt[1:-1] for _, _, prompt in read("repeat", 5, SMALL)]
    assert all(len(set(prompt)) == 1 for prompt in prompts) and len(set(prompts)) > 10


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("order", ["none", "answer", "all"])
@pytest.mark.parametrize("pad", [True, False])
def test_a_sum_is_the_sum(order: str, pad: bool, length: int) -> None:
    lengths = set()
    for _, answer, prompt in read(f"addition(reversed={order},padded={pad})", length, "0123456789+", "="):
        first, second = re.fullmatch(r"<(\d+)\+(\d+)=", prompt).groups()
        assert len(first) == len(second) == length
        if order == "all":
            first, second = first[::-1], second[::-1]
        total = str(int(first) + int(second)).rjust(length + 1 if pad else 1, "0")
        assert answer == (total if order == "none" else total[::-1]) + ">"
        assert pad or length == 1 or first[0] != "0" != second[0]
        lengths.add(len(answer))
    assert len(lengths) == (1 if pad else 2)


def test_a_carry_goes_through_all_digits() -> None:
    task = task_of("addition")
    assert add_digits(torch.tensor([[9, 9, 9], [1, 2, 3]]), torch.tensor([[1, 0, 0], [1, 1, 1]])).tolist() == [
        [0, 0, 0, 1],
        [2, 3, 4, 0],
    ]
    assert task.decode(task.encode("999+001=")) == "^999+001="


def test_the_digits_of_a_sum_stand_where_the_maps_put_them() -> None:
    ids = torch.tensor([*task_of("addition").encode("75+86="), 8, 5, 4])  # 57 + 68 = 125
    at = map_of("abacus(first_digit=3)")(Positions.count(len(ids)), ids)
    assert at.coords[0, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]
    ids = torch.tensor([*task_of("addition(reversed=answer)").encode("57+68="), 8, 5, 4])
    at = map_of("coupled(first_digit=3,equals=1,width=3)")(Positions.count(len(ids)), ids)
    assert at.coords[0, :, 0].tolist() == [5, 3, 4, 5, 3, 4, 5, 4, 3, 2]


@pytest.mark.parametrize("length", [1, 2, 9])
def test_parity_is_whether_the_ones_are_odd(length: int) -> None:
    for _, answer, prompt in read("parity", length, "01"):
        assert len(prompt) == length + 2 and answer == "01"[prompt.count("1") % 2]
    for whole, answer, _ in read("parity(running=True)", length, "01"):
        assert len(answer) == length
        assert all(bit == "01"[whole[: i + 2].count("1") % 2] for i, bit in enumerate(answer))


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_symbol_is_said_as_often_as_it_came(length: int) -> None:
    counts = set()
    for _, answer, prompt in read("counting", length, SMALL):
        symbols, question = re.fullmatch(r"<([a-h]+)\|([a-h])", prompt).groups()
        assert len(symbols) == length and answer == question * symbols.count(question) + ">"
        counts.add(len(answer) - 1)
    assert counts >= {0, length}


@pytest.mark.parametrize("length", [2, 3, 12])
def test_what_followed_the_last_time_is_said(length: int) -> None:
    again = 0
    for _, answer, prompt in read("induction(symbols=4)", length, SMALL):
        symbols = prompt[1:-1]
        assert len(symbols) == length
        assert answer == prompt[1:][symbols.rindex(prompt[-1]) + 1]
        again += symbols.count(prompt[-1]) > 1
    assert length < 12 or again > 20


@pytest.mark.parametrize("questions", ["all", "one"])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_recall_gives_the_value_of_each_key_that_is_asked_for(length: int, questions: str) -> None:
    for whole, answer, _ in read(f"recall(questions={questions})", length, LETTERS):
        pairs, questions_part = whole[1:].split("|")
        value_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert len(value_of) == length == len(pairs) // 2
        keys = questions_part[::2]
        assert answer == "".join(value_of[key] for key in keys)
        assert sorted(keys) == sorted(value_of) if questions == "all" else len(keys) == 1


def test_recall_asks_in_another_order_than_it_told() -> None:
    orders = {tuple(whole[1:9:2].index(key) for key in whole[10::2]) for whole, _, _ in read("recall", 4, LETTERS)}
    assert len(orders) > 12
    assert {whole[1:9:2].index(whole[-1]) for whole, _, _ in read("recall(questions=one)", 4, LETTERS)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "spec, places", [("pass_key", range(7)), ("pass_key(depth=0.5)", [3]), ("pass_key(depth=1)", [6])]
)
def test_the_key_is_what_stands_behind_the_mark(spec: str, places: range | list[int]) -> None:
    key_places = set()
    for _, answer, prompt in read(spec, 6, SMALL[:16] + "*"):
        left_filler, key, right_filler = re.fullmatch(r"<([a-p]*)\*([a-p]{2})([a-p]*)\|", prompt).groups()
        assert answer == key + ">" and len(left_filler) + len(right_filler) == 6
        key_places.add(len(left_filler))
    assert key_places == set(places)


@pytest.mark.parametrize("ignore", [0, 0.8])
def test_a_read_is_what_was_written_last(ignore: float) -> None:
    kinds: dict[str, int] = {"w": 0, "r": 0, "i": 0}
    for whole, answer, _ in read(f"flip_flop(ignore={ignore})", 12, "01wri"):
        bit, answers = "", ""
        assert whole[1] == "w" and whole[-1] == "r"
        for instruction, data in zip(whole[1::2], whole[2::2] + answer[-1], strict=True):
            kinds[instruction] += 1
            bit = data if instruction == "w" else bit
            answers += bit if instruction == "r" else ""
            assert instruction != "r" or data == bit
        assert answer == answers
    share = kinds["i"] / 40 / 10
    assert abs(share - ignore) < 0.08 and kinds["w"] > 40 < kinds["r"]


def test_two_words_of_the_same_letters() -> None:
    answers = set()
    for whole, answer, prompt in read("same_set", 5, SMALL[:20] + CAPITAL[:20] + "+-"):
        first, second = whole[1:].split("|")
        assert prompt == "<" and len(set(first)) == len(set(second)) == 5 and second.isupper()
        assert len(set(first) & set(second.lower())) == (5 if answer == "+" else 4)
        answers.add(answer)
        assert first != second.lower()
    assert answers == {"+", "-"}


def test_the_first_of_two_marks() -> None:
    answers = set()
    for whole, answer, prompt in read("order_class", 6, SMALL[:8] + "+-"):
        assert prompt == "<" and answer == next(mark for mark in whole if mark in "+-")
        assert whole.count("+") == whole.count("-") == 1 and len(whole) == 7
        answers.add(answer)
    assert answers == {"+", "-"}


@pytest.mark.parametrize("length", [6, 7, 16])
def test_a_masked_symbol_follows_from_those_three_steps_away(length: int) -> None:
    batch, word = make_batch("masked_symbols", length), words(SMALL[:16] + "?")
    for ids, targets, counts in zip(batch.ids.tolist(), batch.targets.tolist(), batch.answer.tolist(), strict=True):
        seq, whole = word(ids)[1:], word(targets)[1:]
        assert [s == "?" for s in seq] == counts[1:] and not counts[0]
        assert sorted(i % 3 for i, s in enumerate(seq) if s == "?") == [0, 1, 2]
        assert all(s in ("?", target) for s, target in zip(seq, whole, strict=True))
        assert all(later == SMALL[(SMALL.index(s) + 1) % 16] for s, later in zip(whole, whole[3:], strict=False))


@pytest.mark.parametrize("side", [2, 3, 6])
def test_every_cell_says_where_the_mark_lies(side: int) -> None:
    batch, places = make_batch("grid_mark", side), set()
    assert batch.positions is not None
    assert batch.positions.coords[0].tolist() == [[row, column] for row in range(side) for column in range(side)]
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        assert sorted(ids) == [0] * (side * side - 1) + [1]
        mark_row, mark_column = divmod(ids.index(1), side)
        for cell, target in enumerate(targets):
            row, column = divmod(cell, side)
            upright = "up" if mark_row < row else "down" if mark_row > row else ""
            sideways = "left" if mark_column < column else "right" if mark_column > column else ""
            arrows = {"up left": "↖", "up": "↑", "up right": "↗", "left": "←", "": "x", "right": "→"}
            arrows |= {"down left": "↙", "down": "↓", "down right": "↘"}
            assert task_of("grid_mark").decode([target]) == arrows[f"{upright} {sideways}".strip()]
        places.add(ids.index(1))
    assert len(places) > min(3, side)


def leaves(tree: str) -> int:
    """The number of leaves of a tree in brackets; each other node must have two branches."""

    def node(at: int) -> tuple[int, int]:
        if tree[at] != "(":
            return 1, at + 1
        left, at = node(at + 1)
        right, at = node(at)
        assert tree[at] == ")"
        return left + right, at + 1

    count, end = node(0)
    assert end == len(tree)
    return count


def mirror(tree: str) -> str:
    if tree[0] != "(":
        return tree
    depth = 0
    for i, letter in enumerate(tree[1:-1], 1):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return f"({mirror(tree[i + 1 : -1])}{mirror(tree[1 : i + 1])})"
    raise AssertionError(tree)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_a_tree_is_said_again_or_mirrored(length: int) -> None:
    shapes = set()
    for _, answer, prompt in read("tree_copy", length, "abcdefgh()"):
        assert leaves(prompt[1:-1]) == length and answer == prompt[1:-1] + ">"
        shapes.add(re.sub("[a-h]", ".", answer))
    assert len(shapes) == 1 if length < 3 else len(shapes) > 10
    for _, answer, prompt in read("tree_copy(mirrored=True)", length, "abcdefgh()"):
        assert answer == mirror(prompt[1:-1]) + ">"


@pytest.mark.parametrize(
    "spec, length, share",
    [
        ("copy", 2, 1 / 676),
        ("copy(times=2)", 2, 1 / 676),
        ("repeat", 9, 1 / 26),
        ("sort", 2, 2 / 100),
        ("sort(symbols=2)", 4, 6 / 16),
        ("sort(symbols=2)", 3, 3 / 8),
        ("addition", 3, 1 / 1000),
        ("addition(padded=False)", 3, 1 / 900),
        ("addition(padded=False)", 1, 1 / 10),
        ("parity", 9, 1 / 2),
        ("parity(running=True)", 3, 1 / 8),
        ("counting", 4, 1 / 5),
        ("induction", 9, 1 / 16),
        ("recall", 2, 1 / 256),
        ("recall(questions=one)", 2, 1 / 16),
        ("recall(symbols=9)", 1, 1 / 4),
        ("pass_key", 9, 1 / 256),
        ("flip_flop", 2, 1 / 2),
        # One instruction between: it reads a 0, writes one or another bit, or ignores.
        ("flip_flop(ignore=0.6)", 3, 0.6 / 2 + 0.2 / 2 + 0.2 / 2),
        # Two: both are writes, a write and a read in either order, or two reads.
        ("flip_flop(ignore=0)", 4, 0.25 / 2 + 0.25 / 2 + 0.25 / 4 + 0.25 / 2),
        ("same_set", 5, 1 / 2),
        ("order_class", 5, 1 / 2),
        ("grid_mark", 3, 1 / 9),
        ("masked_symbols", 9, 1 / 4096),
        # Three of the four-leaf trees' shapes are drawn with 1/6, the even one with 1/3.
        ("tree_copy(symbols=1)", 4, 1 / 3),
        ("tree_copy", 2, 1 / 64),
    ],
)
def test_chance_is_the_share_of_the_best_guess(spec: str, length: int, share: float) -> None:
    assert task_of(spec).chance(length) == pytest.approx(share)


SEQUENCES = [name for name in TASKS if name not in ("grid_mark", "translation") and hasattr(TASKS[name], "letters")]


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_sequence_begins_with_bos_and_no_other_token_is_one(name: str) -> None:
    ids = make_batch(name, 6).ids
    assert (ids[:, 0] == BOS).all() and (ids[:, 1:] != BOS).all()


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_letter_is_drawn(name: str) -> None:
    batch = make_batch(name, 8, rows=2000)
    ids = torch.cat((batch.ids.flatten(), batch.targets.flatten())).unique().tolist()
    assert set(ids) >= set(range(3, task_of(name).vocab))


@pytest.mark.parametrize("name", ["copy", "repeat", "reverse", "sort", "induction", "tree_copy"])
def test_every_symbol_is_drawn_about_equally_often(name: str) -> None:
    task = task_of(name)
    ids = make_batch(name, 8, rows=4000).ids
    symbols = ids[(ids > END) & (ids < 3 + task.symbols)]
    share = torch.bincount(symbols, minlength=3 + task.symbols)[3:].double() * task.symbols / symbols.numel()
    assert len(share) == task.symbols and (share - 1).abs().max() < 0.25


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_prompt_goes_to_ids_and_back(name: str) -> None:
    task = task_of(name)
    prompt = task.letters[::-1] + task.separator
    ids = task.encode(prompt)
    assert ids == [BOS, *range(task.vocab - 1, 2, -1), SEPARATOR]
    assert task.decode(ids[1:]) == prompt
    assert task.decode([BOS, END]) == "^."


def test_a_square_goes_to_ids_and_back() -> None:
    task = task_of("grid_mark")
    assert task.encode(".x/..") == [0, 1, 0, 0] and task.decode([0, 1, 0, 0]) == ".x/.."
    assert task.decode([0, 1, 0]) == ".x."


@pytest.mark.parametrize("text", [".x/.", "..x", ".o/..", ""])
def test_what_is_no_square_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"^a prompt for grid_mark is a square of .x with / between its rows, got '{text}'$"
    ):
        task_of("grid_mark").encode(text)


def test_letters_that_a_task_does_not_know_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^a prompt for this task is written in abcdefghij and \|, got ' ', 'k'$"):
        task_of("sort").encode("ab k|")
    with pytest.raises(ValueError, match=r"^a prompt for this task is written in 0123456789\+ and =, got '-'$"):
        task_of("addition").encode("7-3=")


def test_the_text_task_goes_from_words_to_bytes_and_back() -> None:
    text = task_of("text")
    assert text.encode("é!") == [256, 0xC3, 0xA9, ord("!")]
    # A byte that is no text, as the command line hands it on.
    assert text.encode("a\udcff") == [256, ord("a"), 0xFF]
    assert text.decode(text.encode("naïve text")) == "naïve text"
    assert text.decode([0xC3]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "spec, length, message",
    [
        ("recall", 17, "recall has 16 different keys, and cannot make 17 pairs; choose lengths up to 16"),
        ("induction", 1, "induction needs a symbol that another one followed: lengths of 2 or more, got 1"),
        ("flip_flop", 1, "flip_flop needs a write and a read: lengths of 2 or more, got 1"),
        ("same_set", 20, r"same_set\(\) has words of 1 to 19 letters, got 20"),
        ("order_class", 1, "order_class needs room for two marks: lengths of 2 or more, got 1"),
        ("masked_symbols", 5, r"masked_symbols\(\) needs two symbols of each sequence: lengths of 6 or more, got 5"),
        ("grid_mark", 1, "grid_mark needs a cell beside the mark: sides of 2 or more, got 1"),
    ],
)
def test_a_length_that_cannot_be_made_is_refused(spec: str, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_batch(spec, length)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("copy(symbols=0)", "copy: symbols must be a whole number of 1 or more, got 0"),
        ("copy(symbols=53)", "copy: symbols must be at most 52, got 53"),
        ("copy(times=0)", "copy: times must be a whole number of 1 or more, got 0"),
        ("addition(reversed=both)", "addition: reversed must be one of none, answer, all, got 'both'"),
        ("addition(padded=2)", "addition: padded must be True or False, got 2"),
        ("parity(running=yes)", "parity: running must be True or False, got 'yes'"),
        ("counting(symbols=1)", "counting: symbols must be a whole number of 2 or more, got 1"),
        ("recall(symbols=1)", "recall: symbols must be a whole number of 2 or more, got 1"),
        ("recall(questions=two)", "recall: questions must be one of all, one, got 'two'"),
        ("pass_key(key=0)", "pass_key: key must be a whole number of 1 or more, got 0"),
        ("pass_key(depth=2)", "pass_key: depth must be a share from 0 to 1, got 2"),
        ("pass_key(depth=deep)", "pass_key: depth must be a finite number, got 'deep'"),
        ("flip_flop(ignore=1)", "flip_flop: ignore must be at least 0 and below 1, got 1"),
        ("same_set(symbols=27)", "same_set: symbols must be at most 26, got 27"),
        ("same_set(symbols=1)", "same_set: symbols must be a whole number of 2 or more, got 1"),
        ("masked_symbols(offset=0)", "masked_symbols: offset must be a whole number of 1 or more, got 0"),
        ("tree_copy(mirrored=1.5)", "tree_copy: mirrored must be True or False, got 1.5"),
    ],
)
def test_an_option_that_makes_no_task_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        task_of(spec)


def test_what_a_task_of_ones_own_leaves_out_is_told() -> None:
    with pytest.raises(NotImplementedError, match=r"^_symbols\(\) does not say its letters: how its ids from 3 on are"):
        _ = LetterTask().vocab
    with pytest.raises(NotImplementedError, match=r"^_symbols\(\) has no rewrite\(prompt\)"):
        Rewrite().batch(3, 2, torch.Generator())
    with pytest.raises(NotImplementedError, match=r"^_task\(\) makes no sequences: it has no batch\(length, rows, gen"):
        Task().batch(3, 2, torch.Generator())
    with pytest.raises(NotImplementedError, match=r"^_task\(\) does not say its vocab: how many token ids there are$"):
        _ = Task().vocab
    with pytest.raises(
        ValueError, match=r"^_task\(\) has no prompts that a person can write; it has no encode\(text\)$"
    ):
        Task().encode("a")


def test_an_unknown_task_is_told_the_near_one_and_what_lists_all() -> None:
    hint = "posenc list tasks has all"
    with pytest.raises(ValueError, match=f"^no task named 'revers'; did you mean 'reverse'\\? {hint}$"):
        task_of("revers")
    with pytest.raises(ValueError, match=f"^no task named 'chess'; {hint}$"):
        task_of("chess")


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^a task must be one of posenc.lab.tasks, such as copy\(symbols=10\), got '7'$"
    ):
        task_of("7")


def test_a_file_of_ones_own_is_a_task(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n\nfrom posenc.lab.tasks import Rewrite\n\n\n"
        '@dataclass(frozen=True, kw_only=True)\nclass Double(Rewrite):\n    """Say the prompt twice."""\n\n'
        "    def rewrite(self, prompt):\n        return prompt.repeat(1, 2)\n"
    )
    task = task_of(f"{file}:Double(symbols=3)")
    assert task.vocab == 6 and repr(task).endswith("mine.py:Double(symbols=3)")
    assert task.batch(2, 1, torch.Generator().manual_seed(0)).ids.shape == (1, 8)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_says_what_it_is_in_one_line(name: str) -> None:
    assert len((TASKS[name].__doc__ or "").split("\n")[0]) > 20 and repr(TASKS[name]()) == f"{name}()"
