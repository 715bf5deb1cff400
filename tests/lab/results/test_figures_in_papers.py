"""Figures in the size, the style and the axes of the caller."""

import io
import math
import re

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from fake_records import comparison, record, with_scores
from matplotlib.figure import Figure
from tiers import slow_by_ending

from posenc import Sinusoidal
from posenc.lab import figures
from posenc.lab.results import drawer, report
from posenc.lab.results.figures import speed_and_reach

RECORDS = comparison(("repeat", "copy", "text"), seeds=2)
PICTURES = (figures.added, figures.wavelengths, figures.similarity, figures.bias)


def narrow():
    for draw in (figures.extrapolation, figures.learning, figures.ablation):
        for task in ("copy", "text"):
            yield f"{draw.__name__} {task}", lambda draw=draw, task=task, **size: draw(RECORDS, task, **size)
    yield "headline", lambda **size: figures.headline(RECORDS, **size)
    yield "depths", lambda **size: figures.depths([record("rotary", "pass_key")], **size)
    for draw in PICTURES:
        yield draw.__name__, lambda draw=draw, **size: draw(RECORDS, **size)
    yield "attention", lambda **size: figures.attention(record("rotary"), **size)


NARROW = dict(narrow())


def words(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def marks(axes):
    return {line.get_gid(): line for line in axes.lines if line.get_gid() and line.get_marker() != "None"}


@pytest.mark.parametrize("name", slow_by_ending(NARROW, ("repeat", "copy", "similarity")))
def test_a_figure_fits_a_column_of_a_paper(name, tmp_path):
    figure = NARROW[name](width=3.25, height=2.2)
    path = figures.save(figure, tmp_path / "a.png")
    assert matplotlib.image.imread(path).shape[:2] == (440, 650)
    box = figure.get_tightbbox()
    assert box.x0 > -0.03 and box.y0 > -0.03 and box.x1 < 3.28 and box.y1 < 2.23


@pytest.mark.parametrize(("width", "height"), [(6.9, 3), pytest.param(3.25, 2.2, marks=pytest.mark.slow)])
def test_a_file_is_exactly_as_large_as_asked(width, height, tmp_path):
    figure = figures.extrapolation(RECORDS, "copy", width=width, height=height)
    with matplotlib.rc_context({"savefig.bbox": "tight", "savefig.dpi": 100}):
        for kind in figures.FORMATS:
            figures.save(figure, tmp_path / f"a.{kind}")
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", (tmp_path / "a.pdf").read_bytes())
    assert [float(side) / 72 for side in box.groups()] == pytest.approx([width, height])
    svg = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', (tmp_path / "a.svg").read_text())
    assert [float(side) / 72 for side in svg.groups()] == pytest.approx([width, height])
    assert matplotlib.image.imread(tmp_path / "a.png").shape[:2] == (round(height * 100), round(width * 100))


@pytest.mark.slow
def test_a_pdf_has_its_letters_as_truetype_fonts(tmp_path):
    content = figures.save(figures.learning(RECORDS, "copy"), tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in content and b"/Type3" not in content
    assert content == figures.pdf(figures.learning(RECORDS, "copy"))


def test_an_svg_has_words_as_text_where_that_is_asked_for(tmp_path):
    figure = figures.extrapolation(RECORDS, "copy")
    assert "<text" not in figures.save(figure, tmp_path / "a.svg").read_text()
    assert "<text" in figures.save(figure, tmp_path / "a.svg", svg_text=True).read_text()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert "<text" in figures.save(figure, tmp_path / "a.svg").read_text()
    with pytest.raises(ValueError, match=r"svg_text is for .svg files, got 'a.pdf'; leave it out"):
        figures.save(figure, tmp_path / "a.pdf", svg_text=True)


def test_sizes_that_leave_no_room_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"width must lie between 0.5 and 100 inches, got 825"):
        figures.extrapolation(RECORDS, "copy", width=825)
    with pytest.raises(ValueError, match=r"height must lie between .* got -1"):
        figures.extrapolation(RECORDS, "copy", height=-1)
    with pytest.raises(ValueError, match=r"3 by 0.6 inches are too few for this figure: no room is left for its axes"):
        figures.save(figures.extrapolation(RECORDS, "copy", width=3, height=0.6), tmp_path / "a.pdf")
    with pytest.raises(ValueError, match=r"3 by 0.6 inches are too few for this figure: no room is left for its axes"):
        figures.save(figures.attention(record("rotary"), width=3, height=0.6), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_records_may_be_left_out_and_encodings_renamed():
    selection = [run | {"experiment": dict(run["experiment"])} for run in RECORDS]
    for run in selection:
        run["experiment"]["spec"] = {"rotary": "RoPE"}.get(run["experiment"]["spec"], run["experiment"]["spec"])
    selection = [run for run in selection if run["experiment"]["spec"] in ("RoPE", "alibi")]
    assert {"RoPE", "alibi"} <= set(words(figures.extrapolation(selection, "copy")))


def test_a_figure_goes_into_axes_of_ones_own():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert figures.extrapolation(RECORDS, "copy", ax=left) is figure
    figures.learning(RECORDS, "copy", measure="score", against="cpu_s", ax=right)
    assert left.get_ylabel() == "exact match, %" and right.get_xlabel() == "CPU seconds"
    assert [text.get_text() for text in left.legend().get_texts()][:2] == ["sinusoidal", "learned"]
    assert not figure.legends and not figure.get_suptitle()
    axes = Figure().subplots(2, 2)
    assert figures.learning(RECORDS, "copy", ax=axes).axes == list(axes.flat)


def test_axes_that_do_not_fit_are_refused():
    axes = Figure().add_subplot()
    with pytest.raises(ValueError, match="this figure has 4 panels, so ax must be 4 matplotlib axes, got 1 of Axes"):
        figures.learning(RECORDS, "copy", ax=axes)
    with pytest.raises(ValueError, match="this figure has 1 panel, so ax must be 1 matplotlib axes, got 1 of Figure"):
        figures.extrapolation(RECORDS, "copy", ax=Figure())
    with pytest.raises(ValueError, match="axes of your own have their size and title; leave width, height and title"):
        figures.extrapolation(RECORDS, "copy", ax=axes, width=3)


def test_words_that_are_none_of_the_figures_are_refused():
    with pytest.raises(ValueError, match="no results of the task 'cpy'; there are: repeat, copy, text; did you mean"):
        figures.extrapolation(RECORDS, "cpy")
    with pytest.raises(ValueError, match="no task is given; there are: repeat, copy, text"):
        figures.learning(RECORDS)
    with pytest.raises(ValueError, match="measure must be among exact_match; got 'perplexity_ratio'"):
        figures.extrapolation(RECORDS, "copy", measure="perplexity_ratio")
    with pytest.raises(ValueError, match="against must be among step, cpu_s; got 'wall_s'"):
        figures.learning(RECORDS, "copy", against="wall_s")
    with pytest.raises(ValueError, match=r"kinds must be among intact, removed, .*; got 'gone'"):
        figures.ablation(RECORDS, "copy", kinds=["gone"])


def test_an_option_that_no_figure_has_is_refused():
    for draw in (figures.headline, figures.added, figures.wavelengths):
        with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
            draw(RECORDS, widht=3)


def test_a_title_is_ones_own_or_none():
    assert figures.extrapolation(RECORDS, "copy", title="Mine").get_suptitle() == "Mine"
    assert figures.headline(RECORDS, title="").get_suptitle() == ""


def test_a_style_is_kept_where_it_says_what_matplotlib_says(tmp_path):
    style = tmp_path / "paper.mplstyle"
    style.write_text(
        "font.size: 10\nfont.family: serif\naxes.grid: False\naxes.prop_cycle: cycler('color', ['k', 'r'])\n"
    )
    with figures.using(style):
        figure = figures.extrapolation(RECORDS, "repeat")
    (axes,) = figure.axes
    assert axes.xaxis.label.get_size() == 10 and axes.xaxis.label.get_family() == ["serif"]
    assert not any(line.get_visible() for line in axes.get_ygridlines())
    assert [marks(axes)[f"encoding-{place}"].get_color() for place in range(3)] == ["k", "r", "k"]
    # Other settings are those of the house style.
    assert axes.spines["top"].get_visible() is False and axes.xaxis.label.get_color() == figures.INK


def test_a_style_of_matplotlibs_own_goes_by_its_name():
    with figures.using("dark_background"):
        figure = figures.extrapolation(RECORDS, "repeat")
    mark = next(line for line in figure.axes[0].lines if list(line.get_xdata()) == [10, 10])
    assert figure.get_facecolor() == (0, 0, 0, 1) and mark.get_color() == "white"


def test_styles_that_there_are_not_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no matplotlib style 'ggplott': it is no file, .*; did you mean 'ggplot'"):
        with figures.using("ggplott"):
            pass
    with pytest.raises(ValueError, match=r"matplotlib does not take the setting: .*font\.syze"):
        with figures.using({"font.syze": 3}):
            pass
    with pytest.raises(ValueError, match="expected a file, got a folder"):
        with figures.using(tmp_path):
            pass


@pytest.mark.slow
def test_the_page_is_in_the_house_style_and_its_files_in_ones_own(tmp_path):
    style = tmp_path / "paper.mplstyle"
    style.write_text("axes.prop_cycle: cycler('color', ['112233', '445566'])")
    files = drawer.Files(("pdf", "svg"), str(style), 3.25, 2.2, titles=False, svg_text=True)
    with matplotlib.rc_context({"axes.edgecolor": "#abcdef"}):
        page = report.write(
            comparison(("copy",), seeds=1, encodings=("none", "rotary")), tmp_path, files=files
        ).read_text()
    assert "var(--c0)" in page and "figures/headline.pdf, figures/headline.svg" in page
    file = tmp_path / "figures" / "extrapolation-copy.svg"
    box = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', file.read_text())
    assert [float(side) / 72 for side in box.groups()] == pytest.approx([3.25, 2.2])
    assert "#abcdef" in file.read_text() and "#abcdef" not in page
    # `none` did not learn, and is not drawn; rotary has the first colour, of that style and of the house style.
    assert "#112233" in file.read_text() and "beyond the trained length" not in file.read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".pdf", ".svg"}


def test_a_figure_that_has_no_room_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the figure 'headline' cannot be drawn so: 3 by 0.7 inches are too few"):
        report.write(comparison(("copy",), seeds=1), tmp_path, files=drawer.Files(width=3, height=0.7))


def test_files_of_figures_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="a figure is written as pdf, svg or png, got 'jpg'"):
        drawer.Files(("jpg",))
    with pytest.raises(ValueError, match="height must lie between"):
        drawer.Files(height=0)
    with pytest.raises(ValueError, match="svg_text is for SVG files, and the figures are written as png, pdf"):
        drawer.Files(("png", "pdf"), svg_text=True)
    with pytest.raises(ValueError, match="no matplotlib style 'mine'"):
        drawer.Files(style="mine")


def test_the_headline_shows_time_against_reach():
    runs = [
        with_scores(record("alibi", seed=seed, cpu_s_to_learned=time), 1, *scores)
        for seed, (time, scores) in enumerate([(4.0, (1, 1, 1)), (8.0, (1, 1, 0.2)), (6.0, (1, 0, 0))])
    ]
    figure = figures.headline([*runs, record("rotary", cpu_s_to_learned=2.0)])
    line = marks(figure.axes[0])["encoding-2"]
    assert list(line.get_xdata()) == [6.0] and line.get_ydata()[0] == 1.5
    horizontal, vertical = [segments.get_segments()[0] for segments in figure.axes[0].collections[:2]]
    assert sorted(horizontal[:, 0]) == [4, 8] and sorted(vertical[:, 1]) == pytest.approx([1.2, 2.0])


def test_the_headline_names_who_has_not_learned_below_its_axis():
    failures = [with_scores(record("none", seed=seed), 0.5, 1, 1, 1) for seed in range(5)]
    partly = [with_scores(record("rotary", seed=seed), 1 if seed else 0.5, 0, 0, 0) for seed in range(3)]
    figure = figures.headline([*failures, *partly, record("alibi")])
    assert "rotary, 2 of 3" in words(figure)
    assert figure.axes[0].get_xlabel() == "CPU seconds to 99 %\nnot learned: none (0 of 5)"
    assert "not learned: none (0 of 5)" in figures.headline(failures).axes[0].get_xlabel()


def test_the_headline_has_a_panel_for_each_task_that_has_right_answers():
    assert [axes.get_title(loc="left") for axes in figures.headline(RECORDS).axes] == ["repeat", "copy"]
    assert figures.headline(comparison(("text",), seeds=1)) is None
    assert len(figures.headline(RECORDS, "copy").axes) == 1


def test_ticks_that_would_touch_are_left_out():
    assert speed_and_reach.spaced_ticks([1, 1.1, 2, 3.9, 4], 0.5) == [1, 2, 4]
    assert speed_and_reach.spaced_ticks([3], 1) == [3] and speed_and_reach.spaced_ticks([], 1) == []


def test_a_band_reaches_from_the_lowest_to_the_highest_seed():
    runs = [record(seed=seed) for seed in range(3)]
    figure = figures.learning(runs, measure="score", against="step")
    (band,) = figure.axes[0].collections
    scores = [[100 * point["score"] for point in run["curve"]] for run in runs]
    corners = band.get_paths()[0].vertices
    for step, low, high in zip(range(50, 1001, 50), np.min(scores, 0), np.max(scores, 0), strict=True):
        heights = corners[corners[:, 0] == step][:, 1]
        assert [heights.min(), heights.max()] == pytest.approx([low, high])


def test_a_caption_names_a_dashed_line_only_where_one_is_drawn():
    def captions(run):
        contexts = report.pictures_of([run], lambda name, draw, says, shows: draw() and {"says": says})
        return " ".join(figure["says"] for figure in contexts)

    for trained_tokens, is_drawn in ((22, False), (8, True)):
        run = record("learned", trained_tokens=trained_tokens)
        assert ("trained" in words(figures.added([run]))) is is_drawn
        assert ("Rows below the dashed line" in captions(run)) is is_drawn
    for trained_tokens, is_drawn in ((500, False), (9, True)):
        run = record("alibi", trained_tokens=trained_tokens)
        assert (f"trained to {trained_tokens}" in words(figures.bias([run]))) is is_drawn
        assert ("Right of the dashed line" in captions(run)) is is_drawn


def test_what_has_no_numbers_to_draw_is_refused_with_what_would_have_them():
    with pytest.raises(ValueError, match=r"frequencies must be at least one number, in a row; got Sinusoidal; an enc"):
        figures.clock(Sinusoidal(8), 3, "")
    with pytest.raises(ValueError, match=r"frequencies must be .* got ndarray of shape \(2, 2\)"):
        figures.clock(np.ones((2, 2)), 3, "")
    with pytest.raises(ValueError, match="wavelengths must be at least one number, in a row; got list"):
        figures.spectrum([], None, 32, "", "", "positions")
    figures.clock([math.nan], 1, "")


def test_every_point_stands_at_its_own_length_and_reach():
    """Points are never moved apart, however many are equal."""
    for task, lengths in (("repeat", [10, 12, 15, 20]), ("text", [64, 128, 256, 512])):
        for axes in figures.extrapolation(comparison((task,), seeds=1), task).axes:
            assert len(marks(axes)) == 7 and all(list(line.get_xdata()) == lengths for line in marks(axes).values())
    equal = [with_scores(record(spec), 1, 1, 1, 0) for spec in ("alibi", "rotary", "fire")]
    assert {line.get_ydata()[0] for line in marks(figures.headline(equal).axes[0]).values()} == {1.5}


def test_intervals_at_one_length_lie_one_inside_the_other():
    runs = [with_scores(record(spec, seed=seed), 1, 1, 1, 0.3 * seed) for spec in ("alibi", "fire") for seed in (0, 1)]
    wide, narrow = figures.extrapolation(runs, "repeat").axes[0].collections
    assert wide.get_linewidth()[0] > narrow.get_linewidth()[0]


def test_a_png_is_written_in_the_dots_of_the_style():
    with figures.using({"savefig.dpi": 50}):
        image = matplotlib.image.imread(io.BytesIO(figures.png(figures.heatmap(np.eye(3), ""))))
    assert image.shape[:2] == (4.2 * 50, 8 * 50)
