"""Which weights of a model a fine-tune trains: low-rank adapters beside attention, or all that there are."""

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 2.0
"""By what an adapter's product is multiplied, alpha / rank (unitless), as in LongLoRA and most of what followed."""


class Adapter:
    """A product of two narrow matrices beside a projection of attention: LoRA.

    y = W x + s B A x                    A: [rank, in], B: [out, rank], s = 2

    A is drawn and B is zero, so that at first nothing is changed. Both are in float32 whatever the model is in, and are
    multiplied in the dtype of what comes in. It follows the projection by a hook, so that the model stays as it was
    built and a projection may be fused, or be GPT-2's transposed one.

    Source: arXiv:2106.09685, section 4.1.
    """

    def __init__(self, projection: nn.Module, rank: int, draw: torch.Generator) -> None:
        self.projection = projection
        into, out = (self.weight.shape[axis] for axis in (1, 0))
        device, dtype = self.weight.device, torch.promote_types(self.weight.dtype, torch.float32)
        drawn = torch.empty(rank, into).uniform_(-1 / math.sqrt(into), 1 / math.sqrt(into), generator=draw)
        self.down = nn.Parameter(drawn.to(device, dtype))
        self.up = nn.Parameter(torch.zeros(out, rank, device=device, dtype=dtype))
        self.hook = projection.register_forward_hook(self.beside)

    @property
    def weight(self) -> Tensor:
        """The weight of the projection, [out, in]."""
        weight: Any = self.projection.weight
        return weight if isinstance(self.projection, nn.Linear) else weight.T

    def beside(self, projection: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """What comes out of the projection, with what the adapter makes of the same input."""
        x = given[0]
        return out + SCALE * F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))

    @torch.no_grad()
    def merge(self) -> None:
        """Add the product to the weight of the projection, in float32 and rounded once."""
        self.weight.copy_(self.weight.to(self.up.dtype) + SCALE * self.up @ self.down)


def projections_of(model: nn.Module) -> list[nn.Module]:
    """The projections of attention: every matrix product within a module of that name, fused and latent ones too.

    Raises ValueError for a model without any.
    """
    from transformers.pytorch_utils import Conv1D

    attentions = [one for one in model.modules() if any(word in type(one).__name__ for word in ("Attention", "MLA"))]
    found = [part for one in attentions for part in one.modules() if isinstance(part, (nn.Linear, Conv1D))]
    if not found:
        raise ValueError(
            f"no module of a {type(model).__name__} is named attention, so that no projections were found to put "
            f"adapters beside; tune its weights themselves with --tune-weights all"
        )
    return list(dict.fromkeys(found))


def trained_whole(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of embeddings and norms, without which adapters do not carry a model to longer texts.

    Source: arXiv:2309.12307, section 3.3 and table 2.
    """
    kinds = [one for one in model.modules() if isinstance(one, nn.Embedding) or "Norm" in type(one).__name__]
    return list(dict.fromkeys(weight for one in kinds for weight in one.parameters(recurse=False)))


@contextmanager
def trained(
    model: nn.Module, weights: str, rank: int, draw: torch.Generator
) -> Generator[tuple[list[nn.Parameter], list[nn.Parameter]]]:
    """The parameters that a fine-tune trains, of adapters and of the model; no others take a gradient.

    At the end adapters are merged.

    weights  lora: adapters of this rank beside each projection of attention, and embeddings and norms themselves
             all: every parameter

    After an error the model is half tuned and of no more use.
    """
    adapters = [Adapter(one, rank, draw) for one in projections_of(model)] if weights == "lora" else []
    chosen = trained_whole(model) if weights == "lora" else list(model.parameters())
    before = {one: one.requires_grad for one in model.parameters()}
    for one in before:
        one.requires_grad_(False)
    for one in chosen:
        one.requires_grad_(True)
    try:
        yield [part for one in adapters for part in (one.down, one.up)], chosen
        for one in adapters:
            one.merge()
    finally:
        for one in adapters:
            one.hook.remove()
        for one, asked in before.items():
            one.requires_grad_(asked)
