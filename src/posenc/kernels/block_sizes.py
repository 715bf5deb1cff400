"""How large the blocks are that attention is computed in: what one thread sets for itself changes no other's."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class BlockSizes(threading.local):
    """The sizes of blocks in this thread. Results do not depend on them; speed and memory do."""

    rows = 256
    """How many queries a block has at most: fewer, and PyTorch's kernel loses speed; more, and blocks on the diagonal
    hold more pairs that do not see each other."""

    rows_of_values = 128
    """How many queries it has where the bias writes a number for every pair: fewer for the caches to keep."""

    pairs = 1 << 22
    """How many pairs of all heads a block has at most, unless it is a single row of the batch."""

    rows_backwards = 128
    """How many queries a block of the backward pass has at most."""

    pairs_backwards = 1 << 19
    """How many pairs of all heads it holds at once: few enough for the caches to keep them."""

    narrowest = 128
    """How many keys it takes at least, so that matrix products keep their speed."""

    rows_counted = 64
    """How many queries are counted at once: the fewer, the fewer keys lie between where the first and the last end."""

    pairs_kept = 1 << 21
    """Up to how many pairs of all heads and rows the values of a bias are kept for the backward pass."""

    far = 300
    """How many keys far away are worth a part of their own, which has to be merged with the rest."""

    pairs_of_a_mask = 1 << 19
    """Up to how many pairs one mask of them all, the same for all heads, is faster than blocks that leave pairs out."""

    pairs_of_a_bias = 1 << 14
    """Up to how many pairs one mask with the biases of them all is faster than blocks: of distances in a row, which
    layers share, and of tokens that stand elsewhere in each row of a batch."""

    pairs_of_a_grid = 1 << 16
    """The same on several axes, where every token sees every other."""

    pairs_of_all_heads = 1 << 17
    """Up to how many pairs of all heads and rows any one mask is faster than blocks."""

    pairs_to_fuse = 1 << 20
    """From how many pairs on a fused kernel of a GPU takes biases and masks in; of fewer there is one mask."""

    keys_for_vectors = 256
    """From how many keys on vectors are added to values in blocks: of fewer all weights are had as fast or faster."""

    pairs_of_content = 1 << 20
    """How many pairs of all heads a closure is evaluated on at once: its temporaries then stay near the caches."""

    pairs_of_rules = 1 << 21
    """How many pairs of all heads and rows a rule of door 4 is given at once; fewer are not worth a block, nor
    computing twice."""

    pairs_of_rules_on_cuda = 1 << 24
    """The same on a GPU: enough to keep it busy, in 64 MiB for each number that a pair takes."""

    @contextmanager
    def set_to(self, **sizes: int) -> Generator[None]:
        """Other sizes in this thread, by name, for as long as the context is open."""
        before = dict(vars(self))
        vars(self).update(sizes)
        try:
            yield
        finally:
            vars(self).clear()
            vars(self).update(before)


SIZES = BlockSizes()


def cut(whole: slice, step: int) -> list[slice]:
    """A slice in slices of at most so many."""
    return [slice(start, min(start + step, whole.stop)) for start in range(whole.start, whole.stop, step)]
