"""Hand-outs: an encoding as the arguments of other libraries' kernels and engines.

Each target is one file, whose name is the `to` of `hand_out(..., to=...)`. An encoding that the target cannot express
is refused, so a hand-out never computes other logits than posenc's own attention.
"""

from typing import Any

import torch

from posenc import checks
from posenc.catalogue import Spec, build
from posenc.encoding.base import Shape
from posenc.hand_outs._target import HandOutRequest, Target
from posenc.specs.registry import Registry
from posenc.tokens.masks import MaskLike, mask_for
from posenc.tokens.positions import Positions, as_positions

__all__ = ["TARGETS", "Target", "hand_out"]

TARGETS = Registry(__name__, Target, "posenc.hand_outs.Target", "flash_attention")
"""The targets, by their names; each is imported at its first use."""


@torch.no_grad()
def hand_out(
    spec: Spec,
    to: str,
    *,
    shape: Shape,
    positions: Positions | torch.Tensor | int | None = None,
    mask: MaskLike = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Return an encoding as the arguments of other libraries' kernels: tables, slopes, closures, position ids.

    softmax(logits of the target with these arguments) = softmax(logits of posenc.Attention),   to rounding

    spec       a spec, or an encoding, whose parameters are read as they are now
    to         a target: flash_attention, flashinfer, flex_attention, liger, mlx, onnx, transformer_engine or vllm
    shape      heads, width of a head, trained length, and whether tokens see only the past
    positions  positions of the tokens: Positions, ids, or an int, that many tokens from 0; default: shape.max_len
               tokens. A schedule that depends on the horizon reads the declared one: the result serves that one alone
    mask       who may see whom, for the targets that take one; default: causal if the shape is, else all see all
    dtype      of tables, which are computed in float64 and rounded once; some targets take float32 alone

    Returns a dataclass of posenc.hand_outs. Its fields are named after the functions of the target, and each is a dict
    of that function's arguments, as in `apply_rotary_emb(q, **handed.apply_rotary_emb)`, or None if no call is needed.

    Raises ValueError for an encoding that the target cannot express, with the reason and a remedy; for an unknown
    target; for a mask or a dtype that it does not take; and as posenc.build does.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary + alibi", to="flash_attention", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.apply_rotary_emb["cos"].shape, handed.apply_rotary_emb["interleaved"]
    (torch.Size([128, 8]), False)
    >>> handed.flash_attn_func["alibi_slopes"]
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    target = TARGETS.find(to)
    encoding = build(spec, shape)
    checks.kind("dtype", dtype, torch.dtype)
    if dtype not in target.dtypes:
        dtypes = " or ".join(str(allowed_dtype).removeprefix("torch.") for allowed_dtype in target.dtypes)
        raise ValueError(f"{target.title} takes tables in {dtypes}, got {dtype}; leave dtype out")
    if mask is not None and not target.takes_mask:
        raise ValueError(
            f"{target.title} is handed what turns queries and keys, and no mask; give the mask to your attention, "
            f"and leave it out here"
        )
    at = as_positions(shape.max_len if positions is None else positions)
    rule = mask_for(("causal" if shape.causal else "bidirectional") if mask is None else mask)
    return target.from_request(HandOutRequest(target, encoding, shape, at, rule, dtype))


def __getattr__(name: str) -> Any:
    """Import and return the target of a class name."""
    return TARGETS.by_class_name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *TARGETS.class_names])
