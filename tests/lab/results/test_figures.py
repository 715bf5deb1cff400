"""Figures are drawn from records and plain arrays, without a display, and are labelled."""

import io
import math
import re
import runpy
import string
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from fake_records import ENCODINGS, comparison, record, with_scores
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from tiers import slow_by_ending

from posenc.lab import figures
from posenc.lab.appearance import RAMP, places, short
from posenc.lab.board.picture import speed_and_reach
from posenc.lab.board.tables import Standing
from posenc.lab.results.figures import arrays, layout, portraits, scores, style

HOME = Path(__file__).parents[3]
TASKS = ("repeat", "copy", "text")
RECORDS = comparison(("repeat", "copy", "text"), seeds=2)
SINUSOIDAL = np.array(record("sinusoidal")["pictures"]["added"])


RANDOM = np.random.default_rng(0).normal(size=(3, 5, 5))
OF_TASKS = (figures.extrapolation, figures.learning, figures.ablation)
DRAWINGS = {
    **{f"{draw.__name__} {task}": partial(draw, RECORDS, task) for task in TASKS for draw in OF_TASKS},
    **{
        draw.__name__: partial(draw, RECORDS)
        for draw in (figures.added, figures.wavelengths, figures.similarity, figures.bias)
    },
    "depths": lambda: figures.depths([record("rotary", "pass_key"), record("t5_bias", "pass_key")]),
    "attention": lambda: figures.attention(record("rotary")),
    "heatmap": lambda: figures.heatmap(SINUSOIDAL, "a table"),
    "similarity_matrix": lambda: figures.similarity_matrix(SINUSOIDAL, "similarity"),
    "bias_curves": lambda: figures.bias_curves(range(5), [[0, -1, -2, -3, -4], [0, -2, -4, -6, -8]], "bias"),
    "clock": lambda: figures.clock([1.0, 0.3, 0.1, 0.01], 7, "clock"),
    "fingerprint": lambda: figures.fingerprint(SINUSOIDAL, (0, 1, 7), "fingerprint"),
    "attention_maps": lambda: figures.attention_maps(np.tril(np.ones((2, 3, 5, 5))), [*"abcde"], "attention"),
    "spectrum": lambda: figures.spectrum([6.3, 40.0, 240.0], [6.3, 20.0, 60.0], 32, "spectrum", "1 of 3", "positions"),
    "curves": lambda: figures.curves(
        [1, 10, 100], {"shown": [0, 1, 2], "true": [0, 2, 4]}, "c", "x", "y", log=True, mark=7
    ),
    "centre_maps": lambda: figures.centre_maps(RANDOM, "from the middle"),
    "attention_beside": lambda: figures.attention_maps({"with": np.tril(np.ones((2, 5, 5)))}, None, "attention"),
    "shift_matrix": lambda: figures.shift_matrix(np.eye(4), "shift"),
}


@cache
def cached_figure(name):
    return DRAWINGS[name]()


def gids(figure):
    return {line.get_gid() for axes in figure.axes for line in axes.lines if line.get_gid()}


def words(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_a_hidden_thing_is_shown_by_place_and_length():
    """Rows are places and columns lengths, each cell the median over the seeds that learned."""
    runs = [record("rotary", "pass_key", seed) for seed in range(3)]
    for share, run in zip((0.2, 0.5, 0.9), runs, strict=True):
        run["depths"][1]["exact_match"] = share
    (axes,) = figures.depths(runs).axes
    (image,) = axes.images
    assert image.get_array().shape == (5, 4)
    assert image.get_array()[1, 0] == pytest.approx(50) and image.get_array()[2, 3] == pytest.approx(15)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "12", "15", "20"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "25", "50", "75", "100"]
    runs[1]["learned"] = False
    (axes,) = figures.depths(runs).axes
    assert axes.images[0].get_array()[1, 0] == pytest.approx(55)
    assert figures.depths([run | {"learned": False} for run in runs]) is None
    assert figures.depths([record("rotary", "copy")]) is None


@pytest.mark.parametrize("name", slow_by_ending(DRAWINGS, TASKS[:2]))
def test_a_figure_is_not_blank(name):
    assert isinstance(cached_figure(name), Figure)
    image = matplotlib.image.imread(io.BytesIO(figures.png(cached_figure(name))))[..., :3]
    assert 0.01 < (image < 0.97).any(axis=-1).mean() < 0.95


@pytest.mark.parametrize(
    "name",
    [name for name in DRAWINGS if name.split()[0] in ("extrapolation", "learning", "ablation", "wavelengths", "bias")],
)
def test_a_figure_of_records_can_be_read_alone(name):
    figure = cached_figure(name)
    assert figure.get_suptitle()
    labels = [axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes] + [figure.get_supxlabel()]
    assert any(labels)
    line_names = {label for label, look in figures.looks(RECORDS).items() if f"encoding-{look.place}" in gids(figure)}
    # Bars and panels have their names beside them.
    texts = {re.split(r",| \(", word)[0] for word in words(figure)}
    assert line_names <= texts or name.split()[0] in ("ablation", "bias")


@pytest.mark.parametrize("name", ["extrapolation copy", "learning text", "added", "attention"])
def test_an_svg_has_its_words_as_text(name):
    svg = figures.svg(cached_figure(name))
    assert "<text" in svg and len(svg) < 400_000


def test_an_encoding_keeps_its_colour_wherever_it_is_drawn_and_its_look_when_others_leave():
    (look,) = figures.looks(comparison(("copy",), seeds=1, encodings=("rotary",))).values()
    assert figures.looks(RECORDS)["rotary"] == look and list(figures.looks(RECORDS)) == list(ENCODINGS)
    line = next(line for line in figures.extrapolation(RECORDS, "copy").axes[0].lines if line.get_label() == "rotary")
    assert (line.get_color(), line.get_marker(), line.get_gid()) == (look.color, look.marker, look.gid)
    board = speed_and_reach([Standing("rotary", tasks=1, learned=1, reach=2.0, speed=1.0, cpu_s=1.0)])
    example = runpy.run_path(str(HOME / "examples" / "fixed_against_learned.py"))["draw"]({"rotary": [1.0] * 20})
    assert {figure.axes[0].lines[0].get_color() for figure in (board, example)} == {look.color, figures.color("rotary")}
    composition, alone = (figures.look(place) for place in places(["rotary + alibi", "rotary"]).values())
    assert composition.color == alone.color and composition.dashes != alone.dashes == look.dashes


def test_sixty_encodings_look_different():
    assert len({(figures.look(i).color, figures.look(i).marker, str(figures.look(i).dashes)) for i in range(60)}) == 60


def test_not_learned_is_said_and_not_drawn():
    figure = figures.extrapolation(RECORDS, "copy")
    assert figure is not None and "none: not learned" in words(figure)
    without_lines = figures.extrapolation([with_scores(record(), 0.5, 1, 1, 1)], "repeat")
    assert without_lines is not None and "no encoding learned the task" in words(without_lines)
    assert not [line for line in without_lines.axes[0].lines if line.get_gid()]


def test_points_are_medians_over_seeds():
    runs = [with_scores(record("alibi", seed=seed), 1, score, 0, 0) for seed, score in enumerate((0.1, 0.8, 0.6))]
    figure = figures.extrapolation(runs, "repeat")
    assert figure is not None
    (line,) = [line for line in figure.axes[0].lines if line.get_gid()]
    assert line.get_ydata() == pytest.approx([100, 60, 0, 0])


def test_bars_of_an_ablation_are_what_is_left_beside_a_tick_for_the_intact_score():
    run = record("rotary")
    run["ablation"] |= {"intact": 0.9, "removed": 0.2, "shuffled": 0.3, "shifted": 0.8, "swapped": 0.4}
    figure = figures.ablation([run], "repeat")
    assert figure is not None
    for axes, kind in zip(figure.axes, figures.ABLATIONS, strict=True):
        (bar,) = axes.patches
        assert bar.get_width() == pytest.approx(100 * run["ablation"][kind])
        ticks = [segment[0][0] for lines in axes.collections for segment in lines.get_segments()]
        assert ticks == pytest.approx([] if kind == "intact" else [90])


def test_the_median_curve_is_over_the_steps_that_all_seeds_have():
    runs = [np.array([[1, 0.1, 2.0, 0.0], [2, 0.2, 1.0, 0.5]]), np.array([[2, 0.3, 3.0, 0.1], [3, 0.4, 0.0, 1.0]])]
    assert scores.seed_band(runs)[1] == pytest.approx(np.array([[2, 0.25, 2.0, 0.3]]))


def test_the_trained_length_is_marked_in_items_on_curves_and_in_positions_on_pictures():
    one_task = comparison(("repeat",), seeds=1)
    for figure, mark in (
        (figures.extrapolation(one_task, "repeat"), "trained to 10"),
        (figures.bias(comparison(("text",), seeds=1)), "trained to 32"),
        (figures.wavelengths(one_task), "trained to 22"),
    ):
        assert figure is not None and mark in words(figure)


def test_pairs_that_never_complete_a_turn_are_hollow():
    figure = figures.spectrum([6.3, 20.0, 60.0, 200.0], None, 32, "", "", "positions")
    _, solid, hollow, *_ = figure.axes[0].lines
    assert list(solid.get_ydata()) == [6.3, 20.0] and list(hollow.get_ydata()) == [60.0, 200.0]
    assert hollow.get_markerfacecolor() == figures.PAPER


def test_a_spectrum_marks_the_context_and_what_completes_no_turn():
    figure = figures.spectrum([6.3, 40.0, math.inf], [6.3, 20.0, 60.0], 32, "", "2 of 3 pairs do not", "positions")
    _, turning, hollow, _, later, incomplete, context = figure.axes[0].lines
    assert list(turning.get_ydata()) == [6.3, 20.0] and list(hollow.get_ydata()) == [60.0]
    assert list(later.get_ydata()) == [6.3] and incomplete.get_markerfacecolor() == figures.PAPER
    assert list(context.get_ydata()) == [32, 32] and "context: 32 positions" in words(figure)
    assert any("2 of 3 pairs do not" in text for text in words(figure))
    assert len(figures.spectrum([6.3], None, 32, "", "", "positions").axes[0].lines) == 4


def test_titles_that_are_too_long_are_folded():
    figure = figures.bias_curves([-1, 0, 1], [[1, 0, 1]], "a long title " * 18)
    assert figure.axes[0].get_title(loc="left").count("\n") == 2
    assert "left of 0" in figure.axes[0].get_xlabel()


def test_each_encoding_has_one_picture_of_a_run_that_saw_most():
    pictures = portraits.best_pictures(RECORDS, "added")
    assert {label: len(table) for label, _, table in pictures} == {"learned": 128, "sinusoidal": 128}


def test_similarity_is_the_cosine_between_rows():
    table = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert arrays.cosines(table)[0] == pytest.approx([1, 1, 0, -1])


def test_nothing_to_draw_is_none():
    bare = [record("none") | {"pictures": None, "curve": None, "ablation": None, "lengths": None, "attention": None}]
    assert figures.extrapolation(bare, "repeat") is None and figures.learning(bare, "repeat") is None
    assert figures.ablation(bare, "repeat") is None and figures.attention(bare[0]) is None
    assert [draw(bare) for draw in (figures.added, figures.wavelengths, figures.similarity, figures.bias)] == [None] * 4


@pytest.mark.parametrize(
    "weights", [np.full((2, 4, 6, 6), np.nan), np.ones((7, 20, 3, 3)), np.ones((1, 1, 1, 1)), np.ones((3, 40, 32))]
)
def test_attention_of_any_size_is_drawn(weights):
    figures.png(figures.attention_maps(weights, None, "attention"))


def test_tokens_of_any_kind_become_labels():
    assert [layout.token_label(token) for token in (" ", "\n", "ä", "<bos>", 7)] == ["␣", "\\n", "\\xe4", "<bos>", "7"]


def test_labels_are_shortened_from_the_folders_on():
    assert short("path/to/mine.py:Mine(option=3)") == "…/mine.py:Mine(option=3)"
    assert len(short("rotary" * 30)) == 30


def test_a_letter_that_the_font_lacks_does_no_harm():
    figures.png(figures.heatmap(np.eye(3), "位置 $x_"))


def test_wrong_arrays_are_refused_with_their_shape():
    with pytest.raises(ValueError, match=r"two axes .* got shape \(3,\)"):
        figures.heatmap(np.ones(3), "")
    with pytest.raises(ValueError, match="0 to 19"):
        figures.fingerprint(SINUSOIDAL, (0, 20), "")
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        figures.attention_maps(np.ones(3), None, "")
    with pytest.raises(ValueError, match=r"\[heads, rows, columns\].* got shape \(3, 3\)"):
        figures.centre_maps(np.eye(3), "")


def test_numbers_that_are_none_are_drawn_as_nothing():
    figures.png(figures.heatmap([[1.0, math.nan], [math.inf, None]], ""))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_saving_leaves_one_whole_file(tmp_path, ending):
    path = figures.save(figures.heatmap(np.eye(3), "identity"), tmp_path / "new" / f"figure.{ending}")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    with pytest.raises(ValueError, match="a figure is written as pdf, svg or png, got 'jpg'"):
        figures.save(figures.heatmap(np.eye(3), ""), tmp_path / "figure.jpg")


def test_the_same_records_give_the_same_files():
    assert figures.svg(figures.extrapolation(RECORDS, "copy")) == figures.svg(figures.extrapolation(RECORDS, "copy"))


def test_the_callers_settings_are_kept_and_left_alone():
    """The caller's settings win, and the house style sets the rest."""
    with matplotlib.rc_context({"axes.facecolor": "yellow", "font.size": 31.0}):
        figure = figures.heatmap(np.eye(3), "identity")
        assert figure.axes[0].get_facecolor() == (1.0, 1.0, 0.0, 1.0)
        assert figure.axes[0].xaxis.label.get_size() == 31.0
        assert figure.axes[0].xaxis.label.get_color() == figures.INK
        assert matplotlib.rcParams["axes.labelcolor"] == "black"


@pytest.mark.slow
def test_drawing_needs_no_pyplot():
    draw = "import sys; from posenc.lab import figures; figures.png(figures.heatmap([[1.0]], ''))"
    code = f"{draw}; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_in_pictures_are_letters_and_never_markup_or_control_characters(tmp_path):
    name = "a<script>&]]>\"'$x$\\frac{\x00\x1b[31m\x9b\u202e\ud800\n%s{0}日本"
    figure = figures.bias_curves([0, 1], [[0.0, 1.0]], name)
    document = ElementTree.fromstring(figures.svg(figure).encode())
    words = "".join(document.itertext())
    assert "a<script>&]]>\"'$x$\\frac{" in words and "%s{0}日本" in words
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", words)
    assert figures.save(figure, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(figures.save(figure, tmp_path / "a.svg"))


def test_no_line_goes_through_the_words_of_trained_lengths_that_are_near():
    figure = figures.wavelengths([record("sinusoidal", "repeat"), record("sinusoidal", "text", trained_tokens=32)])
    figure.canvas.draw()
    marks = [mark for mark in figure.findobj(matplotlib.text.Text) if mark.get_text().startswith("trained to ")]
    assert [mark.get_text() for mark in marks] == ["trained to 22 and 32"]
    for length in (22, 32):
        height = figure.axes[0].transData.transform((0, length))[1]
        assert not [
            mark.get_text() for mark in marks if mark.get_window_extent().y0 < height < mark.get_window_extent().y1
        ]


def boxes(figure, names):
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() in names and text.get_visible()]
    # The extent of an annotation would include its arrow.
    return {text.get_text(): matplotlib.text.Text.get_window_extent(text) for text in texts}


def test_lines_are_named_in_a_legend_under_the_figure_that_covers_nothing():
    runs = [with_scores(record(spec), 1, 1, 1, last) for spec, last in (("alibi", 0.2), ("rotary", 0.9), ("fire", 0.5))]
    figure = figures.extrapolation([*runs, with_scores(record("shaw"), 1, 1, 1, 0.5)], "repeat")
    figures.png(figure)
    text_boxes = boxes(figure, {"alibi", "rotary", "fire", "shaw"})
    label = figure.axes[0].xaxis.label.get_window_extent()
    assert len(text_boxes) == 4 and all(
        box.y1 < label.y0 and 0 < box.x0 and box.x1 < figure.bbox.x1 for box in text_boxes.values()
    )
    assert not any(a.overlaps(b) for a in text_boxes.values() for b in text_boxes.values() if a is not b)


def test_heads_are_named_in_a_legend_beside_each_panel():
    figure = figures.bias([record("alibi"), record("t5_bias")])
    figures.png(figure)
    for axes in figure.axes:
        legend = axes.get_legend()
        assert [text.get_text() for text in legend.get_texts()] == [f"head {head}" for head in range(4)]
        assert legend.get_window_extent().x0 >= axes.bbox.x1


def test_a_legend_holds_any_number_of_names():
    long = [record(f"mine.py:Mine(option={place}, another={'x' * 20})", "text") for place in range(3)]
    assert len(figures.extrapolation(long, "text").legends[0].get_texts()) == 3
    forty = [record(f"a{place}") for place in range(40)]
    assert len(figures.extrapolation(forty, "repeat").legends[0].get_texts()) == 40


def test_names_beside_points_touch_no_others():
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], linestyle="none")
    names = [f"encoding {place}" for place in range(6)]
    layout.name_points(axes, [(0.5 + 0.001 * place, 0.5, name, "") for place, name in enumerate(names)])
    text_boxes = list(boxes(figure, names).values())
    assert len(text_boxes) == 6
    assert not any(a.shrunk(0.8, 0.7).overlaps(b) for a in text_boxes for b in text_boxes if a is not b)


def test_thousands_are_parted_on_every_axis():
    runs = [record("sinusoidal", "text", trained_tokens=32)]
    tables = figures.heatmap(np.ones((3000, 4)), "")
    for figure in (figures.learning(RECORDS, "repeat"), figures.wavelengths(runs), tables):
        svg = figures.svg(figure)
        assert re.search(r">\d,\d{3}</text>", svg) and not re.search(r">\d{4,}</text>", svg)


@pytest.mark.parametrize("tokens", [9, 22, 32])
def test_the_tokens_stand_beside_every_map_of_attention(tokens):
    weights = np.tril(np.ones((2, 4, tokens, tokens))).tolist()
    letters = [*string.ascii_letters[:tokens]]
    run = record("alibi") | {"attention": {"with": weights, "without": weights, "tokens": letters}}
    figure = figures.attention(run)
    for axes in (axes for axes in figure.axes if axes.get_ylabel() == "queries"):
        key_labels, query_labels = axes.collections
        # Under each of 4 heads, and beside each of 2 layers.
        assert (len(key_labels.get_offsets()), len(query_labels.get_offsets())) == (4 * tokens, 2 * tokens)
        assert [*key_labels.get_offsets()[:tokens, 0]] == [*range(tokens)]
        for collection in (key_labels, query_labels):
            shapes = [TextPath((0, 0), letter, size=4.4) for letter in letters]
            assert len(collection.get_paths()) == tokens
            for shape, path in zip(shapes, collection.get_paths(), strict=True):
                at_least, size = shape.get_extents(), path.get_extents()
                assert size.width / size.height == pytest.approx(at_least.width / at_least.height)
                assert size.height >= at_least.height


def test_of_tokens_without_room_some_are_named_and_it_says_so():
    weights = np.tril(np.ones((1, 8, 64, 64))).tolist()
    run = record("alibi") | {"attention": {"with": weights, "tokens": ["a", "b"] * 32}}
    figure = figures.attention(run)
    assert re.search(r"one token in \d", " ".join(words(figure)))
    assert 0 < len(figure.axes[0].collections[0].get_offsets()) < 8 * 64


def test_a_picture_has_two_hundred_dots_to_the_inch():
    image = matplotlib.image.imread(io.BytesIO(figures.png(figures.heatmap(np.eye(3), ""))))
    assert image.shape[:2] == (4.2 * 200, 8 * 200)


def test_heads_have_shades_of_their_own_whatever_their_number():
    for count in (1, 4, 8, 12, 32):
        looks = [str(sorted(style.shade(head, count).items())) for head in range(count)]
        assert len(set(looks)) == count
    colours = {line.get_color() for line in figures.bias_curves(range(3), np.eye(4, 3), "").axes[0].lines}
    assert colours <= {*RAMP} and len(colours) == 4


def test_a_staircase_says_from_where_all_share_a_row():
    assert "from 3 on: one row" in words(figures.staircase([0, 1, 2, 3, 4, 5], [0, 1, 2, 7, 7, 7], "", "x", "y"))
    alone = words(figures.staircase([0, 1, 2], [0, 1, 2], "", "x", "y"))
    assert not [text for text in alone if "one row" in text]
