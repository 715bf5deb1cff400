"""Sequences made of a prompt, a separator, and an answer of the same length that ends with END."""

import torch
from torch import Generator, Tensor

from posenc.lab.tasks import BOS, END, SEPARATOR, Batch


def prompt_and_answer(prompt: Tensor, answer: Tensor) -> Batch:
    """BOS prompt SEPARATOR answer END, for prompts and answers [B, n]; the answer and its END count."""
    rows, n = prompt.shape

    def column(token: int) -> Tensor:
        return torch.full((rows, 1), token)

    ids = torch.cat((column(BOS), prompt, column(SEPARATOR), answer, column(END)), 1)
    return Batch(ids, torch.arange(ids.shape[1] - 1) > n)


def random_symbols(length: int, rows: int, symbols: int, generator: Generator) -> Tensor:
    """Symbols [rows, length], drawn independently."""
    return torch.randint(3, 3 + symbols, (rows, length), generator=generator)
