"""The rotation of pairs of channels."""

import torch
from torch import Tensor

LAYOUT = "half"


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with each pair of channels (a, b) as (a cos - b sin, b cos + a sin)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(x.device, dtype), sin.to(x.device, dtype)
    if LAYOUT == "interleaved":
        a, b = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)  # pairing "interleaved" (GPT-J): 2i, 2i + 1
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)
    elif LAYOUT == "swapped":
        b, a = x.to(dtype).chunk(2, dim=-1)  # pairing "swapped": channel i + n / 2 with i, of n
        return torch.cat((b * cos + a * sin, a * cos - b * sin), dim=-1).to(x.dtype)
    else:
        a, b = x.to(dtype).chunk(2, dim=-1)  # pairing "half" (Llama in Hugging Face): channel i with i + n / 2, of n
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def rotate_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with its first channels rotated, two for each angle; the others pass."""
    width = 2 * cos.shape[-1]
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), dim=-1)
