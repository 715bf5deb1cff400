"""Draw figures from records and from plain arrays, never from live models.

    from posenc.lab import figures, load

    records = load("runs/compare", what="records")
    figures.save(figures.extrapolation(records, task="copy", width=3.25, height=2.2), "copy.pdf")

All use matplotlib's object interface: no pyplot, no display, no global state. A function that draws results returns
None if the records lack its data. Each encoding has one colour (`color`), and one marker among the same records: pass
all of them and name the task. The caller's settings of matplotlib are kept (`using`).
"""

from posenc.lab.results.figures.arrays import (
    bias_curves,
    centre_maps,
    clock,
    curves,
    fingerprint,
    heatmap,
    shift_matrix,
    similarity_matrix,
    spectrum,
    staircase,
)
from posenc.lab.results.figures.files import FORMATS, check_format, pdf, png, save, svg
from posenc.lab.results.figures.layout import check_size, figure, mark_trained, name_points, plain_log, wrap_title
from posenc.lab.results.figures.portraits import added, bias, exceeds_training, similarity, wavelengths
from posenc.lab.results.figures.scores import ABLATIONS, ablation, depths, extrapolation, learning, looks
from posenc.lab.results.figures.speed_and_reach import headline
from posenc.lab.results.figures.style import DIVERGING, GRID, INK, MARKERS, PAPER, SOFT, color, look, styled, using
from posenc.lab.results.figures.weights import attention, attention_maps
