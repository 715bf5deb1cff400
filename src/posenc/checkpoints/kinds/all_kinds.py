"""The kinds of position code, in the order of the search."""

from posenc.checkpoints.kinds.added.grid_table import GridTable
from posenc.checkpoints.kinds.added.learned_table import LearnedTable
from posenc.checkpoints.kinds.added.sine_module import SineModule
from posenc.checkpoints.kinds.distances.buckets import Buckets
from posenc.checkpoints.kinds.distances.relative_sines import RelativeSines
from posenc.checkpoints.kinds.distances.slopes import Slopes
from posenc.checkpoints.kinds.distances.window_bias import WindowBias
from posenc.checkpoints.kinds.kind import Kind
from posenc.checkpoints.kinds.rotary.buffer import RotaryBuffer
from posenc.checkpoints.kinds.rotary.module import RotaryModule

# A table that is compared with queries, or read by distance, is not added to embeddings: those kinds come first.
KINDS: tuple[type[Kind], ...] = (
    *(RotaryModule, RotaryBuffer, RelativeSines, WindowBias),
    *(GridTable, LearnedTable, SineModule, Slopes, Buckets),
)
