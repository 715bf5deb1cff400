"""Lessons 9 to 15: answers that readers get wrong, and the sentence that each of them gets."""

from pathlib import Path

import pytest

from posenc.lessons import lesson_of

IMPORTS = "import math\nimport torch\n"

T5 = """
def same_to_t5(a, b):
    def bucket(d):
        return d if d < 16 else {}
    return bucket(a) == bucket(b)
"""

# (lesson, exercise) -> wrong answers, and words of what is said about each
WRONG = {
    (9, "swapped_changes_neighbours"): [
        ("def swapped(p): return p.flip(0)", "only neighbours change places"),
        (
            "def swapped(p):\n    p[0::2], p[1::2] = p[1::2].clone(), p[0::2].clone()\n    return p",
            "change a clone of it",
        ),
        (
            "def swapped(p):\n    q = p.clone()\n    q[0::2] = q[1::2]\n    q[1::2] = q[0::2]\n    return q",
            "overwritten before it was read",
        ),
        ("def swapped(p): return [11, 10, 13, 12]", "swapped(positions) gives a list, not a tensor"),
        ("def swapped(p): return p[:2]", "has the shape [2], not [4]"),
        ("def swapped(p): print(p)", "swapped gives nothing; does it return its result?"),
        ("swapped = [1, 0]", "swapped is a list, and no function"),
        ("def swapped(p): return p", "of [10, 11, 12, 13] it makes [10, 11, 12, 13]"),
        (
            "def swapped(p):\n    n = len(p) // 2 * 2\n    return p[:n].view(-1, 2).flip(1).flatten()",
            "the last one stays",
        ),
    ],
    (9, "differences_survive_a_shift"): [
        ("def survives_a_shift(spec): return spec == 'none'", "rotary sees differences"),
        ("def survives_a_shift(spec): return spec != 'none'", "none reads no position"),
        ("def survives_a_shift(spec): return True", "sinusoidal adds a vector"),
    ],
    (10, "ratio_compares_perplexities"): [
        ("def ratio(a, b): return b / a", "this divides bits"),
        ("def ratio(a, b): return 2 ** (a - b)", "the longer length stands above"),
        ("def ratio(a, b): pass", "ratio gives nothing"),
        ("def ratio(a, b): return math.exp(b - a)", "not e"),
        ("def ratio(a, b): return b - a", "this is a difference of bits"),
        ("def ratio(a, b): return 3 ** (b - a)", "ratio(2.0, 3.0) is 3, not 2"),
        ("def ratio(a, b): return b - a + 1", "ratio(3.0, 1.0) is -1, not 0.25"),
    ],
    (10, "distances_beyond_the_trained_length_are_new"): [
        ("def new_distances(a, b): return b - a - 1", "count both ends"),
        ("def new_distances(a, b): return b - a + 1", "64 is not one of them"),
        ("def new_distances(a, b): return b", "only those from 32 on are new"),
        ("def new_distances(a, b): return b - a", "a shorter window has no new distance"),
        ("def new_distances(a, b): return max(b - a, 1)", "new_distances(32, 32) is 1, not 0"),
    ],
    (11, "to_half_puts_even_channels_first"): [
        ("def to_half(n): return [*range(0, n, 2)]", "has to stand in it once"),
        ("def to_half(n): return [c for k in range(n // 2) for c in (k, k + n // 2)]", "this is the way back"),
        ("def to_half(n): return list(range(n))", "the first channel of every pair comes first"),
    ],
    (12, "slopes_are_powers_of_one_ratio"): [
        ("def slopes(H): return [2 ** -h for h in range(1, H + 1)]", "1/2 is the first"),
        ("def slopes(H): return [2 ** (-8 * h / H) for h in range(H)]", "not from 0"),
        ("def slopes(H): return [0.5]", "8 heads have 8 slopes, got 1"),
        ("def slopes(H): return [2 ** (-4 * h / H) for h in range(1, H + 1)]", "and yours with 0.707107, 0.5"),
    ],
    (12, "t5_tells_near_distances_apart"): [
        ("def same_to_t5(a, b): return True", "each distance has a bucket"),
        ("def same_to_t5(a, b): return a == b", "60 and 64 share one"),
        ("def same_to_t5(a, b): return a == b or min(a, b) > 15", "16 and 20 are told apart"),
        (T5.format("16 + int(math.log(d / 16) / math.log(8) * 16)"), "share the last bucket"),
        (T5.format("min(16 + int(math.log(d / 16) / math.log(8) * 16), 30)"), "31, begins at 113"),
        (T5.format("15"), "15 is the last exact bucket"),
    ],
    (13, "ntk_base_divides_the_slowest_pair_by_the_factor"): [
        ("def ntk_base(base, s, d): return base * s", "stretches the slowest pair by a little less"),
        ("def ntk_base(base, s, d): return base * s ** ((d - 2) / d)", "is upside down"),
        ("def ntk_base(base, s, d): return base * s ** (d / 2 / (d / 2 - 2))", "not pairs"),
        ("def ntk_base(base, s, d): return base * s ** 2", "ntk_base(10_000, 4, 128) is 1.6e+05, not 40890"),
        (
            "def ntk_base(base, s, d): return 10_000 * s ** (d / (d - 2))",
            "ntk_base(500, 8, 16) is 1.0767e+05, not 5383.6",
        ),
        ("def ntk_base(base, s, d): return base + s", "ntk_base(10_000, 4, 128) is 10004, not 40890"),
    ],
    (13, "slow_pairs_are_counted"): [
        (
            "def pairs_to_stretch(d, base, L): return sum(L * base ** (-2 * k / d) < 1 for k in range(d // 2))",
            "2 pi radians, not 1",
        ),
        (
            "def pairs_to_stretch(d, base, L): return sum(L * base ** (-2 * k / d) > 6.28 for k in range(d // 2))",
            "the others are asked for",
        ),
        ("def pairs_to_stretch(d, base, L): return 3", "pairs_to_stretch(128, 10_000, 4096) is 3, not 18"),
        ("def pairs_to_stretch(d, base, L): return 18", "it does not read the base"),
        (
            "def pairs_to_stretch(d, base, L): return 18 if base < 500_000 else 32",
            "pairs_to_stretch(16, 1000, 64) is 18, not 5",
        ),
        ("def pairs_to_stretch(d, base, L): return torch.ones(d // 2) > 0", "has the shape [64], not []"),
    ],
    (14, "grid_counts_columns_first"): [
        ("def grid(R, C): return torch.tensor([[c, r] for r in range(R) for c in range(C)])", "it says (column, row)"),
        (
            "def grid(R, C): return torch.tensor([[r, c] for r in range(C) for c in range(R)])",
            "of 2 rows and 3 columns it makes",
        ),
        ("def grid(R, C): return torch.tensor([[r, c] for c in range(C) for r in range(R)])", "go row by row"),
        (
            "def grid(R, C): return [[r, c] for r in range(R) for c in range(C)]",
            "grid(2, 3) gives a list, not a tensor",
        ),
        ("def grid(R, C): return torch.zeros(R, C, 2)", "grid(2, 3) has the shape [2, 3, 2], not [6, 2]"),
    ],
    (14, "rows_are_columns_apart"): [
        ("def seen_in_a_row(q, k, C): return q[0] - k[0]", "a whole row of patches"),
        ("def seen_in_a_row(q, k, C): return (q[0] - k[0]) * 8", "it does not read columns"),
        ("def seen_in_a_row(q, k, C): return abs(q[0] - k[0]) * C + abs(q[1] - k[1])", "the next patch"),
        ("def seen_in_a_row(q, k, C): return abs((q[0] - k[0]) * C + q[1] - k[1])", "take no absolute value"),
        ("def seen_in_a_row(q, k, C): return (k[0] - q[0]) * C + k[1] - q[1]", "this is key minus query"),
        ("def seen_in_a_row(q, k, C): return 5", "seen_in_a_row((3, 2), (2, 2), 8) is 5, not 8"),
    ],
    (15, "nothing_is_printed_of_what_was_not_learned"): [
        ("def cell(a, b): return b", "is not learned"),
        ("def cell(a, b): return a", "the cell is the number 0.4, got 1.0"),
        ("def cell(a, b): return 'not learned' if b < 0.99 else b", "however few are right beyond it"),
        ("def cell(a, b): return b if a > 0.99 else 'not learned'", "0.99 itself is learned"),
        ("def cell(a, b): return b if a >= 0.99 and b else 'not learned'", "is a result"),
    ],
    (15, "overlapping_seeds_are_a_tie"): [
        (
            "def says(a, b): return 'first' if sum(a) > sum(b) else 'second'",
            "a tie whatever the means are; got 'first'",
        ),
        (
            "def says(a, b): return 'first' if min(a) > max(b) else 'second' if min(b) > max(a) else 'tie'",
            "two seeds are too few",
        ),
        (
            "def says(a, b): return 'first' if min(a) >= max(b) else 'second' if min(b) > max(a) else 'tie'",
            "not all are above",
        ),
        ("def says(a, b): return 'tie'", "every seed of the first"),
        ("def says(a, b): return 'first' if min(a) > max(b) else 'tie'", "every seed of the second"),
    ],
}

ROTARY = """
def rotary(x, base):
    tokens, channels = x.shape
    frequencies = base ** (-2 * torch.arange(channels // 2).double() / {width})
    angles = torch.arange({start}, tokens + {start}).double()[:, None] * frequencies
    cos, sin = angles.cos(), {sign}angles.sin()
    {pairs}
    turned = a * cos - b * sin, b * cos + a * sin
    return {joined}
"""
NEIGHBOURS = {"pairs": "a, b = x[:, 0::2], x[:, 1::2]", "joined": "torch.stack(turned, 2).flatten(1).to(x.dtype)"}
HALVES = {"pairs": "a, b = x.chunk(2, 1)", "joined": "torch.cat(turned, 1).to(x.dtype)"}
AS_ASKED = {"width": "channels", "start": "0", "sign": "", **NEIGHBOURS}
WRONG_ROTARY = [
    (HALVES, "it pairs channel k with k + channels/2"),
    ({"sign": "-"}, "it turns the other way round"),
    ({"joined": "torch.cat(turned, 1)"}, "put out in another order"),
    ({"joined": "torch.stack(turned, 2).flatten(1).tolist()"}, "gives a list, not a tensor"),
    ({"start": "1"}, "the token at position 0 must stay"),
    ({"width": "(2 * channels)"}, "the angles are others"),
    ({"joined": "(x * 1.0).to(x.dtype) + torch.arange(tokens)[:, None]"}, "lengths change"),
    ({"joined": "x[:, :4]"}, "has the shape [12, 4], not [12, 8]"),
    ({"pairs": "a, b = x[:, 0::2], x[:, 1::2]; assert base == 100, 'base'"}, "base"),
]


def check_messages(lesson: int, promise: str, answers: str, folder: Path) -> str:
    """What is said about one exercise of a file of answers."""
    path = folder / "mine.py"
    path.write_text(IMPORTS + answers)
    messages = {verdict.promise: verdict for verdict in lesson_of(str(lesson)).check(path)}
    assert messages[promise].word == "broken"
    return messages[promise].message


@pytest.mark.parametrize(
    ("exercise", "answer", "words"), [(key, *wrong) for key, answers in WRONG.items() for wrong in answers]
)
def test_a_wrong_answer_is_told_what_is_wrong(
    exercise: tuple[int, str], answer: str, words: str, tmp_path: Path
) -> None:
    assert words in check_messages(*exercise, answer, tmp_path)


@pytest.mark.parametrize(("changes", "words"), WRONG_ROTARY)
def test_a_wrong_rotation_is_told_what_is_wrong(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    answer = ROTARY.format(**AS_ASKED | changes)
    assert words in check_messages(11, "rotary_turns_neighbouring_channels", answer, tmp_path)


@pytest.mark.parametrize("dtype", ["", ".to(x.dtype)"])
def test_the_rotation_that_was_asked_for_is_kept_in_any_precision(dtype: str, tmp_path: Path) -> None:
    joined = {"joined": f"torch.stack(turned, 2).flatten(1){dtype}"}
    (tmp_path / "mine.py").write_text(IMPORTS + ROTARY.format(**AS_ASKED | joined))
    first = next(iter(lesson_of("11").check(tmp_path / "mine.py")))
    assert first.word == "kept"
