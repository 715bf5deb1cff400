"""The kinds of position code that are looked for."""

from posenc.checkpoints.kinds.buckets import Buckets
from posenc.checkpoints.kinds.grid_table import GridTable
from posenc.checkpoints.kinds.kind import Kind
from posenc.checkpoints.kinds.learned_table import LearnedTable
from posenc.checkpoints.kinds.rotary_buffer import RotaryBuffer
from posenc.checkpoints.kinds.rotary_module import RotaryModule
from posenc.checkpoints.kinds.sine_module import SineModule
from posenc.checkpoints.kinds.slopes import Slopes

KINDS: tuple[type[Kind], ...] = (RotaryModule, RotaryBuffer, GridTable, LearnedTable, SineModule, Slopes, Buckets)
