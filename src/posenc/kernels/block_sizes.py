"""Sizes of the blocks of attention, for each thread."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class BlockSizes(threading.local):
    """The sizes of blocks in this thread. Results do not depend on them; speed and memory do."""

    rows = 256
    """Maximum queries of a block: with fewer PyTorch's kernel is slower; more waste pairs on the diagonal."""

    rows_of_values = 128
    """Maximum queries of a block if the bias writes a number for every pair, so that the block fits the cache."""

    pairs = 1 << 22
    """Maximum pairs of a block over all heads, unless it is a single row of the batch."""

    rows_backwards = 128
    """Maximum queries of a block in the backward pass."""

    pairs_backwards = 1 << 19
    """Maximum pairs of a block over all heads in the backward pass, so that they fit the cache."""

    narrowest = 128
    """Minimum keys of a block in the backward pass, so that matrix products stay fast."""

    rows_counted = 64
    """Queries for which gates are counted together: fewer queries read fewer keys beyond the end of their tables."""

    pairs_kept = 1 << 21
    """Maximum pairs over all heads and rows whose bias is kept for the backward pass."""

    far = 300
    """Minimum far keys that are worth a separate part, which has to be merged with the rest."""

    pairs_of_a_mask = 1 << 19
    """Maximum pairs for which one mask, shared by all heads, is faster than blocks that skip pairs."""

    pairs_of_a_bias = 1 << 14
    """Maximum pairs for which one mask with all biases is faster than blocks."""

    pairs_of_a_grid = 1 << 16
    """Maximum pairs for which one mask is faster on several axes without masking."""

    pairs_of_all_heads = 1 << 17
    """Maximum pairs over all heads and rows for which any mask is faster than blocks."""

    pairs_to_fuse = 1 << 20
    """Minimum pairs for which a fused GPU kernel computes biases and masks; for fewer, one mask is faster."""

    keys_for_vectors = 256
    """Minimum keys for which vectors are added to values in blocks; for fewer, all weights are as fast."""

    pairs_of_content = 1 << 20
    """Maximum pairs over all heads of one evaluation of a closure, so that temporaries stay near the cache."""

    pairs_of_rules = 1 << 21
    """Maximum pairs over all heads and rows of one block of a rule of door 4; fewer are not worth recomputing."""

    pairs_of_rules_on_cuda = 1 << 24
    """The same on a GPU: enough to keep it busy, 64 MiB for each float32 of a pair."""

    @contextmanager
    def set_to(self, **sizes: int) -> Generator[None]:
        """Set sizes by name, in this thread, while the context is open."""
        old = dict(vars(self))
        vars(self).update(sizes)
        try:
            yield
        finally:
            vars(self).clear()
            vars(self).update(old)


SIZES = BlockSizes()


def cut(whole: slice, step: int) -> list[slice]:
    """Return a slice as slices of at most `step`."""
    return [slice(start, min(start + step, whole.stop)) for start in range(whole.start, whole.stop, step)]
