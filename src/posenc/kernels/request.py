"""What a kernel is asked for, by which it is chosen."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from posenc.biases import Bias
from posenc.encoding import Encoding
from posenc.masks import Mask
from posenc.positions import Positions


class Call(NamedTuple):
    """One call of attention, beside its queries.

    biases       all that is added to the logits
    at, keys_at  where queries and keys are
    mask         who may see whom
    """

    biases: Sequence[Bias]
    at: Positions
    keys_at: Positions
    mask: Mask


class Request(NamedTuple):
    """What a kernel is asked for.

    encoding  the encoding, whose rule may read the weights
    weights   whether the weights are wanted
    dropout   share of the weights dropped
    q         the queries [B, H, T, D]; None where nobody knows them yet
    call      the rest of one call; None where nobody knows it yet
    """

    encoding: Encoding
    weights: bool = False
    dropout: float = 0.0
    q: Tensor | None = None
    call: Call | None = None
