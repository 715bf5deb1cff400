"""The kinds of position code that are looked for."""

from posenc.checkpoints.kinds.buckets import Buckets
from posenc.checkpoints.kinds.grid_table import GridTable
from posenc.checkpoints.kinds.kind import Kind
from posenc.checkpoints.kinds.learned_table import LearnedTable
from posenc.checkpoints.kinds.relative_buckets import RelativeBuckets
from posenc.checkpoints.kinds.relative_sines import RelativeSines
from posenc.checkpoints.kinds.rotary_buffer import RotaryBuffer
from posenc.checkpoints.kinds.rotary_module import RotaryModule
from posenc.checkpoints.kinds.sine_module import SineModule
from posenc.checkpoints.kinds.slopes import Slopes
from posenc.checkpoints.kinds.window_bias import DistanceIndex, WindowBias

# What is compared with queries, or read by distance, is no table that is added.
KINDS: tuple[type[Kind], ...] = (
    *(RotaryModule, RotaryBuffer, RelativeSines, RelativeBuckets, WindowBias, DistanceIndex),
    *(GridTable, LearnedTable, SineModule, Slopes, Buckets),
)
