"""A KV cache of one layer: keys, rotated if the encoding rotates them, and values of the tokens so far."""

import torch
from torch import Tensor

SEQ_DIM = 2


class KVCache:
    """q, k = rope(q, k, offset=cache.length); k, v = cache.update(k, v)."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of tokens in the cache, which is the position of the next one."""
        return 0 if self.k is None else self.k.shape[SEQ_DIM]

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, and return those of all."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=SEQ_DIM), torch.cat((self.v, v), dim=SEQ_DIM)
        self.k, self.v = k, v
        return k, v


if __name__ == "__main__":
    cache = KVCache()
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    for token in x.split(1, dim=SEQ_DIM):
        keys, values = cache.update(token, -token)
    torch.testing.assert_close(keys, x), torch.testing.assert_close(values, -x)
