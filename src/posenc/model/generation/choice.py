"""The choice of the next token: greedy or sampled, and where a text stops."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks


@dataclass(frozen=True)
class Choice:
    """The options of choosing a token: `vocab` is the number of token ids, the rest as in Decoder.stream.

    Raises ValueError for numbers out of range.
    """

    vocab: int
    temperature: float = 0.0
    top_k: int | None = None
    eos_token_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checks.number("temperature", self.temperature, 0)
        if self.top_k is not None:
            checks.whole("top_k", self.top_k, 1)
        if self.eos_token_id is not None and not 0 <= checks.whole("eos_token_id", self.eos_token_id) < self.vocab:
            raise ValueError(f"eos_token_id is the id of a token, from 0 to {self.vocab - 1}, got {self.eos_token_id}")
        checks.whole("seed", self.seed, 0)

    @property
    def greedy(self) -> bool:
        # A lower temperature gives the likeliest token all the weight.
        return self.temperature < torch.finfo(torch.float32).tiny

    def pick(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Return one id for each row of logits [B, vocab], the likeliest or sampled with the generator."""
        if self.greedy:
            return logits.argmax(-1)
        # Half precision would round close probabilities to equal ones.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.top_k is not None:
            lowest = logits.topk(min(self.top_k, logits.shape[-1])).values[..., -1:]
            logits = logits.masked_fill(logits < lowest, -torch.inf)
        weights = ((logits - logits.amax(-1, keepdim=True)) / self.temperature).softmax(-1)
        return torch.multinomial(weights, 1, generator=generator)[:, 0]
