"""Liger: the table of Hugging Face's Llama."""

from dataclasses import dataclass
from typing import Any

import torch

from posenc.hand_outs._target import HandOutRequest, Target


@dataclass(frozen=True, eq=False)
class Liger(Target):
    """The arguments of Liger's rotary (RoPE) kernel. Queries and keys are [B, H, T, D], whole heads in the half layout.

    (a, b) -> (a cos - b sin,  b cos + a sin)   for channels a = k, b = k + D/2

    liger_rotary_pos_emb  cos, sin [B or 1, T, D]: the numbers of the D/2 pairs, twice, as Hugging Face's Llama has them

    It overwrites its q and k. Hugging Face's own apply_rotary_pos_emb takes the same arguments.
    Source: linkedin/Liger-Kernel, liger_rotary_pos_emb in src/liger_kernel/transformers/rope.py at 00fb8bf2.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary", to="liger", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.liger_rotary_pos_emb["cos"].shape
    torch.Size([1, 128, 16])
    """

    title = "Liger"
    takes = "turns whole heads in the half layout"

    liger_rotary_pos_emb: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "Liger":
        rotation = request.rotation()
        if rotation.interleaved:
            request.refuse(
                "it pairs neighbouring channels",
                "reorder the channels of the weights by `posenc convert --layout half`, and hand out that layout",
            )
        if rotation.width != request.shape.head_dim:
            request.refuse(
                f"it turns {rotation.width} of {request.shape.head_dim} channels",
                "take to='flash_attention', whose kernel turns the first channels alone",
            )
        cos, sin = (torch.cat((table, table), -1).to(request.dtype) for table in (rotation.cos, rotation.sin))
        return cls({"cos": cos, "sin": sin})
