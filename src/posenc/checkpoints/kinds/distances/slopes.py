"""ALiBi: slopes that a model builds once and hands to its blocks, or that a function of its file makes."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.catalogue import build as built_from
from posenc.checkpoints.kinds.calls import Call, parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, NotSaid, Stack, hook
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding
from posenc.encodings.distance_biases.alibi import ALiBi


@dataclass
class Slopes(Kind):
    """ALiBi.

    spec   the catalogue's entry, whose slopes are those that the model's own code made
    built  whether a method of the module at the path builds it and blocks take it, as in BLOOM and MPT
    """

    words = "ALiBi"
    spec: str
    built: bool

    takes = (ALiBi,)
    usual = "alibi"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["Slopes"]:
        spec = said(stack)
        if spec is not None:
            built = next((path for path, module in stack.modules() if builder_of(module)), None)
            yield cls(stack, stack.node.path if built is None else built, spec, built is not None)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        if not self.built:
            raise NotSaid(f"ALiBi of {self.path or type(model).__name__} is made by a function, which stays as it is")
        encoding, build = self.one(encodings), getattr(module, builder_of(module) or "")
        blocks = [
            child
            for stack in module.children()
            if isinstance(stack, nn.ModuleList)
            for child in stack
            if {"alibi", "position_bias"} & {*parameters(type(child))}
        ]
        by_mask = "attention_mask" in inspect.signature(build).parameters
        heads, keys = module.num_heads, 64
        mask = torch.ones(1, keys, device=next(module.parameters()).device)
        theirs = build(mask, heads, torch.float32) if by_mask else build(heads, keys, device=mask.device)
        theirs = theirs.reshape(heads, keys).cpu()
        ours = encoding.by_distance(torch.arange(keys - 1, -1, -1))
        if ours.shape != theirs.shape:
            raise ValueError(f"{self.path} has {heads} heads, and {encoding} has {len(ours)}")
        far = (ours - ours[:, -1:] - theirs + theirs[:, -1:]).abs().amax(-1)
        if same and float(far.max()) > 1e-4:
            raise Differs(
                f"{self.path} and {encoding} have other slopes: head {int(far.argmax())} differs by "
                f"{float(far.max()) / (keys - 1):.3g} for each position"
            )
        added = added_by_distance if by_mask else added_by_key
        return [hook(block, partial(added, encoding, parameters(type(block)))) for block in blocks]


def added_by_distance(
    encoding: Encoding, names: Sequence[str], block: nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Before a block whose `alibi` [B*H, 1, S] grows along the keys: the bias [B*H, T, S] of each query's distances.

    Adding slope times the key's position is the same to a softmax, and in half precision loses what is near; the
    distance keeps it. Who sees whom, and so where tokens stand, is read from the block's mask.
    """
    call = Call(names, args, kwargs)
    mask = call["attention_mask"]
    seen = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]  # [B, T, S]
    place = (seen.any(1).cumsum(-1) - 1).clamp(min=0)  # [B, S]
    # A query's own key is the last one that it sees.
    own = seen.shape[-1] - 1 - seen.flip(-1).int().argmax(-1)  # [B, T]
    delta = place.gather(-1, own)[..., None] - place[:, None]
    bias = encoding.by_distance(delta)  # [H, B, T, S]
    assert bias is not None
    call["alibi"] = bias.transpose(0, 1).flatten(0, 1).to(call["hidden_states"].dtype)
    return call.changed


def added_by_key(
    encoding: Encoding, names: Sequence[str], block: nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Before a block of MPT: its `position_bias` [H, 1, S], for as many keys as there are."""
    call = Call(names, args, kwargs)
    mask = call["attention_mask"]
    behind = torch.arange(mask.shape[-1] - 1, -1, -1, device=mask.device)
    bias = encoding.by_distance(behind)
    assert bias is not None
    call["position_bias"] = bias[:, None]
    return call.changed


def builder_of(module: nn.Module) -> str | None:
    """The method by which a model builds ALiBi for its blocks."""
    if not hasattr(module, "num_heads"):
        return None
    return next((name for name in dir(type(module)) if re.fullmatch(r"build_\w*alibi\w*", name)), None)


def said(stack: Stack) -> str | None:
    """ALiBi as the keys and the dry run have it; None where there is none."""
    keys, node = stack.node.keys, stack.node
    nested = keys.open("attn_config") if isinstance(keys.peek("attn_config"), dict) else None
    if nested is not None and nested.flag("alibi", "ALiBi: {}"):
        greatest = nested.number("alibi_bias_max", "the last slope is 2^-{}", 8)
        return checked(stack, spec_of("alibi", bias_max=None if greatest == 8 else float(greatest)))
    if keys.flag("alibi", "ALiBi: {}"):
        return checked(stack, "alibi(form='falcon')")
    if node.seen.slopes and not keys.has("alibi") and nested is None:
        return checked(stack, "alibi")
    return None


def checked(stack: Stack, spec: str) -> str | None:
    """The spec, if the biases that the model's own code made have its slopes."""
    node, shape = stack.node, stack.shape
    if not node.modules:
        return spec
    encoding: Any = built_from(spec, shape)
    slopes = torch.tensor(encoding.slopes)
    for bias in node.seen.slopes:
        flat = bias.float().reshape(-1, bias.shape[-1])
        if bias.dim() == 1:
            steps = bias.float()
        elif flat.shape[0] % shape.heads == 0 and bias.shape[-1] > 1:
            steps = (flat[:, -1] - flat[:, -2]).reshape(-1, shape.heads)[0]
        else:
            continue
        # Some make them in bfloat16.
        if steps.shape == slopes.shape and torch.allclose(steps, slopes, rtol=1e-2):
            return spec
    if node.seen.slopes or node.seen.failure:
        reason = node.seen.failure or "it makes others"
        node.leave(f"ALiBi could not be held to the model's own slopes ({reason})")
    return spec if node.seen.failure and not node.seen.slopes else None
