"""Associative recall: after pairs of key and value, say the value of each key that is asked for: axby|by -> y."""

import torch
from torch import Generator

from posenc.lab.tasks import BOS, SEPARATOR, Batch, Symbols


class Recall(Symbols):
    """Associative recall: after pairs of key and value, say the value of each key that is asked for: axby|by -> y.

    The length is the number of pairs. Keys are different symbols of the first half, values symbols of the second half;
    every key is asked for once, in another order. All that matters is what stands next to what.
    """

    name = "recall"
    symbols = 32

    def tokens(self, length: int) -> int:
        return 4 * length + 1  # BOS, the pairs, SEPARATOR, and the questions without the last value

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        half = self.symbols // 2
        if length > half:
            raise ValueError(
                f"recall has {half} different keys, and cannot make {length} pairs; choose lengths up to {half}"
            )
        keys = 3 + torch.rand(rows, half, generator=generator).argsort(1)[:, :length]
        values = 3 + half + torch.randint(0, half, (rows, length), generator=generator)
        asked = torch.rand(rows, length, generator=generator).argsort(1)
        pairs = torch.stack((keys, values), -1).flatten(1)
        questions = torch.stack((keys.gather(1, asked), values.gather(1, asked)), -1).flatten(1)

        def column(token: int) -> torch.Tensor:
            return torch.full((rows, 1), token)

        ids = torch.cat((column(BOS), pairs, column(SEPARATOR), questions), 1)
        place = torch.arange(ids.shape[1] - 1)
        first = 2 * length + 2  # the prediction of the first asked value
        return Batch(ids, (place >= first) & ((place - first) % 2 == 0))
