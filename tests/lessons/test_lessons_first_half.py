"""Lessons 1 to 8: typical wrong answers are told what is wrong with them."""

import re
import shlex
from pathlib import Path

import pytest

from posenc import cli
from posenc.lessons import lesson_of, lessons

HEAD = "import math\n\nimport torch\n\n\n"

WRONG = {
    "attend_gives_a_softmax_of_scores": [
        ("def attend(x): return torch.softmax(x @ x.T / 8**0.5, 0) @ x", "the softmax has to run over the keys"),
        ("def attend(x): return torch.softmax(x @ x.T, -1) @ x", "have to be divided by sqrt(d), d channels"),
        ("def attend(x): return torch.softmax(x @ x.T / 8, -1) @ x", "divided by sqrt(d), and not by d"),
        ("def attend(x): return x @ x.T / 8**0.5 @ x", "without a softmax the weights do not sum to 1"),
        ("def attend(x): return torch.softmax(x @ x.T / 8**0.5, -1)", "the sum of x by them is missing"),
        ("def attend(x): x.softmax(-1)", "gives nothing; does it return its result?"),
    ],
    "last_output_is_blind_with_one_causal_layer": [
        ("def is_blind(layers): return False", "with one causal layer the last output is a sum over a set"),
        ("def is_blind(layers): return True", "from the second layer on, tokens differ"),
    ],
    "add_positions_adds_the_rows_it_needs": [
        ("def add_positions(x, table): return x + table", "take as many rows as there are tokens"),
        ("def add_positions(x, table): return x + table[:len(x)]", "6 tokens and 5 rows end in RuntimeError"),
        ("def add_positions(x, table): return x + table[1:len(x) + 1]", "position 0, so it gets row 0"),
        ("def add_positions(x, table): return x + table[-len(x):]", "the first rows are wanted"),
        ("def add_positions(x, table): return x + table[0]", "here all get row 0"),
        ("def add_positions(x, table): return x.add_(table[:len(x)])", "changes the x that it is given"),
        (
            "def add_positions(x, table):\n"
            "    if len(x) >= len(table): raise ValueError('too long')\n"
            "    return x + table[:len(x)]",
            "5 tokens and 5 rows fit",
        ),
        (
            "def add_positions(x, table): return x + table[torch.arange(len(x)) % len(table)]",
            "6 tokens and 5 rows give a result",
        ),
    ],
    "untrained_rows_are_those_past_the_longest_text": [
        ("def untrained_rows(rows, longest): return rows - longest", "a count below zero means nothing"),
        ("def untrained_rows(rows, longest): return min(rows, longest)", "these are the rows that are trained"),
        ("def untrained_rows(rows, longest): return max(rows - longest - 1, 0)", "(1024, 200) is 823, not 824"),
    ],
    "sinusoidal_is_sines_and_cosines_in_turn": [
        (
            "def sinusoidal(p, dim, base):\n"
            f"    angle = p[:, None] * base ** ({exponent})\n"
            f"    return torch.{joined}.flatten(1)",
            words,
        )
        for exponent, joined, words in (
            ("-torch.arange(dim // 2) / dim", "stack([angle.sin(), angle.cos()], -1)", "-2k/dim, and not -k/dim"),
            ("2 * torch.arange(dim // 2) / dim", "stack([angle.sin(), angle.cos()], -1)", "the exponent is negative"),
            ("-2 * torch.arange(dim // 2) / dim", "cat([angle.sin(), angle.cos()], -1)", "all cosines stand behind"),
            ("-2 * torch.arange(dim // 2) / dim", "stack([angle.cos(), angle.sin()], -1)", "begins with the sine"),
            (
                "-2 * torch.arange(dim // 2) / dim * math.log(10_000, base)",
                "stack([angle.sin(), angle.cos()], -1)",
                "base is to stand in place of 10000",
            ),
        )
    ],
    "hand_is_the_share_of_a_turn_in_degrees": [
        ("def hand(position, wavelength): return position / wavelength * 360", "whole turns do not move a hand"),
        ("def hand(position, wavelength): return position / wavelength % 1 * 2 * math.pi", "these are radians"),
        ("def hand(position, wavelength): return position / wavelength % 1", "this is the share of a turn"),
    ],
    "wavelengths_grow_by_one_factor": [
        (f"def wavelengths(dim, base):\n    k = torch.arange(dim // 2)\n    return {result}", words)
        for result, words in (
            ("2 * math.pi * base ** (2 * k.flip(0) / dim)", "the shortest wavelength comes first"),
            ("base ** (2 * k / dim)", "a turn has 2 pi radians"),
            ("base ** (-2 * k / dim)", "these are frequencies"),
            ("2 * math.pi * base ** (-2 * k / dim)", "2 pi is to be divided by the frequency"),
            ("2 * math.pi * base ** (k / (dim // 2 - 1))", "which ends at (dim - 2)/dim and not at 1"),
            ("2 * math.pi * base ** (k / dim)", "the exponent is 2k/dim, and not k/dim"),
            ("2 * math.pi * 10_000 ** (2 * k / dim)", "base is to stand in place of 10000"),
        )
    ],
    "untrained_pairs_do_not_complete_a_turn": [
        (
            "def untrained_pairs(length, dim, base):\n"
            f"    waves = {turn} * base ** (2 * torch.arange(dim // 2) / dim)\n"
            f"    return {result}",
            words,
        )
        for turn, result, words in (
            ("6.2832", "int((waves <= length).sum())", "these are the pairs that do complete a turn"),
            ("6.2832", "2 * int((waves > length).sum())", "these are channels; a pair has two of them"),
            ("6.2832", "(waves > length).float().mean()", "this is a share of the pairs; count them"),
            ("1", "int((waves > length).sum())", "a wavelength is 2 pi / f_k, and not 1 / f_k"),
        )
    ],
    "embed_looks_tokens_up_and_adds_positions": [
        (
            "def embed(ids, E):\n"
            f"    p = {places}\n"
            f"    rows = torch.stack([p.sin(), {order}, (0.01 * p).cos()], -1)\n"
            f"    return {result}",
            words,
        )
        for places, order, result, words in (
            ("torch.arange(len(ids))", "p.cos(), (0.01 * p).sin()", "E[ids]", "the positions are missing"),
            ("ids", "p.cos(), (0.01 * p).sin()", "E[ids] + rows", "where a token stands, and not its id"),
            ("torch.arange(len(ids)) + 1", "p.cos(), (0.01 * p).sin()", "E[ids] + rows", "at position 0, and not at 1"),
            ("torch.arange(len(ids))", "p.cos(), (0.01 * p).sin()", "E[:len(ids)] + rows", "not the first rows"),
            ("torch.arange(len(ids))", "(0.01 * p).sin(), p.cos()", "E[ids] + rows", "sines and cosines take turns"),
        )
    ],
    "position_over_token_is_a_ratio_of_lengths": [
        (f"def position_over_token(std, dim): return {result}", words)
        for result, words in (
            ("std * dim**0.5 / (dim / 2) ** 0.5", "this is the token over the position"),
            ("dim**0.5 / (std * dim**0.5)", "a position has the length sqrt(dim/2)"),
            ("dim / 2 / (std**2 * dim)", "lengths are square roots of sums of squares"),
        )
    ],
    "softmax_sums_to_one_and_does_not_overflow": [
        (f"def softmax(x): return {result}", words)
        for result, words in (
            ("x.exp() / x.exp().sum(-1, keepdim=True)", "exp(1000) is infinite; take the largest score away"),
            ("torch.softmax(x, 0)", "the sum runs over the last axis"),
            ("x.exp() / x.exp().sum()", "the sum has to be that of each row"),
            ("x / x.sum(-1, keepdim=True)", "exp is missing"),
            ("x.exp()", "the sum is missing"),
        )
    ],
    "causal_attention_sees_itself_and_the_past": [
        (
            "def causal_attention(q, k, v):\n"
            "    logits = q @ k.T\n"
            "    past = torch.ones_like(logits).tril().bool()\n"
            f"    return {result}",
            words,
        )
        for result, words in (
            ("torch.softmax(logits / 8**0.5, -1) @ v", "nothing is masked"),
            ("torch.softmax((logits / 8**0.5).masked_fill(past.tril(-1), -torch.inf), -1) @ v", "the other way round"),
            ("torch.softmax((logits / 8**0.5).masked_fill(~past.tril(-1), -torch.inf), -1) @ v", "sees itself too"),
            ("torch.softmax((logits / 8**0.5).masked_fill(~past, -torch.inf), 0) @ v", "run over the keys"),
            ("torch.softmax(logits.masked_fill(~past, -torch.inf), -1) @ v", "the division by sqrt(d) is missing"),
            ("torch.softmax(logits.masked_fill(~past, -torch.inf) / 8, -1) @ v", "by sqrt(d), and not by d"),
            ("torch.softmax(logits / 8**0.5, -1) * past @ v", "mask the logits with -inf before the softmax"),
            ("torch.softmax(logits / 8**0.5 * past, -1) @ v", "a logit of 0 still has weight"),
        )
    ],
    "split_heads_cuts_channels": [
        (f"def split_heads(x, heads): return {result}", words)
        for result, words in (
            ("x.view(len(x), heads, x.shape[1], -1)", "a view alone cuts the list of tokens"),
            ("x.view(*x.shape[:2], heads, -1)", "heads stand behind tokens"),
            ("x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)", "and not every third one"),
        )
    ],
    "parameters_do_not_depend_on_heads": [
        (f"def parameters(dim, heads): return {result}", words)
        for result, words in (
            ("4 * dim * dim * heads", "more heads cost no parameters"),
            ("4 * dim * dim // heads", "as many heads as fill dim again"),
            ("3 * dim * dim", "the matrix of the output is missing"),
            ("4 * dim * (dim + 1)", "the question is without biases"),
            ("dim * dim", "these are the numbers of one matrix"),
        )
    ],
    "reversed_within_leaves_the_padding": [
        (f"def reversed_within(ids, lengths): return ids{result}", words)
        for result, words in (
            (".flip(1)", "the padding has moved to the front"),
            (".flip(0)", "tokens are axis 1"),
            (".flip(0, 1)", "both axes are reversed"),
            ("", "nothing is reversed"),
        )
    ],
    "exact_match_counts_whole_sequences": [
        (f"def exact_match(predicted, target): return (predicted == target){result}", words)
        for result, words in (
            (".float().mean()", "this is the share of tokens that are right"),
            (".all(1).sum()", "this is a count"),
            (".all().float()", "one wrong token spoils the whole batch"),
            (".all(1).float().mean() * 100", "here it is in percent"),
            (".all(0).float().mean()", "only places that are right in every sequence are counted"),
        )
    ],
}
"""What an exercise asks -> answers that are wrong in a way that people are, each with a part of what they are told."""

EXERCISES = {
    exercise.__name__: lesson.name for lesson in lessons() if lesson.place <= 8 for exercise in lesson.module.EXERCISES
}


def test_every_exercise_is_answered_wrong() -> None:
    assert list(EXERCISES) == list(WRONG)


@pytest.mark.parametrize(
    ("exercise", "code", "words"), [(name, *wrong) for name, wrongs in WRONG.items() for wrong in wrongs]
)
def test_a_wrong_answer_is_told_what_is_wrong(exercise: str, code: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{HEAD}{code}\n")
    verdicts = {verdict.promise: verdict for verdict in lesson_of(EXERCISES[exercise]).check(tmp_path / "mine.py")}
    assert verdicts[exercise].word == "broken" and words in verdicts[exercise].message


def test_the_command_of_the_worked_example_adds_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = re.search(r"`posenc (show [^`]+)`", lesson_of("5").text)
    assert command and cli.main([*shlex.split(command[1]), "--tokens", "8"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.split()[1:3] == ["dog", "1"])
    assert row.split()[3:7] == ["+0.000", "+1.000", "+0.000", "+0.500"]
    assert row.split()[-4:] == ["+0.841", "+1.540", "+0.010", "+1.500"]
