"""Pad a list of prompts of different lengths, and cut its texts out again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc import checks


def pad_prompts(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return prompts, each [T], as ids [B, T] padded on the left, and a mask of the tokens.

    Raises ValueError for invalid prompts.
    """
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise ValueError(f"prompts are ids [batch, tokens], or a list of ids [tokens], got {checks.display(prompts)}")
    for prompt in prompts:
        if checks.tensor("a prompt", prompt).dim() != 1 or not len(prompt):
            raise ValueError(f"each prompt of a list has shape [tokens], with one at least, got {list(prompt.shape)}")
    checks.one_device(**{f"prompt {number}": prompt for number, prompt in enumerate(prompts)})
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.stack([torch.cat((prompt.new_zeros(longest - len(prompt)), prompt)) for prompt in prompts])
    length = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)
    return ids, torch.arange(longest, device=ids.device) >= longest - length[:, None]


def unpad_texts(texts: Tensor, padding: Tensor, eos_token_id: int | None) -> list[Tensor]:
    """Return each text of [B, ..., T] without its padding, up to its first `eos_token_id`."""
    out = []
    for text, prompt in zip(texts, padding, strict=True):
        length = int(prompt.sum())
        text = text[..., len(prompt) - length :]
        if eos_token_id is not None and text.dim() == 1:
            stops = (text[length:] == eos_token_id).nonzero()
            text = text[: length + int(stops[0]) + 1] if len(stops) else text
        out.append(text)
    return out
