"""ALiBi slopes that a model builds once for its blocks, or by a function of its file."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.catalogue import build as built_from
from posenc.checkpoints.kinds.calls import HookedCall, parameter_names
from posenc.checkpoints.kinds.kind import CannotFill, Kind, LayerStack, Mismatch, Undo, hook
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding
from posenc.encodings.distance_biases.alibi import ALiBi


@dataclass
class Slopes(Kind):
    """ALiBi.

    spec         the catalogue's entry, with the slopes of the model's own code
    has_builder  whether a method of the module at the path builds it and blocks take it, as in BLOOM and MPT
    """

    description = "ALiBi"
    spec: str
    has_builder: bool

    takes = (ALiBi,)
    default_spec = "alibi"
    door = "bias"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["Slopes"]:
        spec = alibi_spec(stack)
        if spec is not None:
            builder_path = next((path for path, module in stack.modules() if builder_of(module)), None)
            yield cls(stack, stack.node.path if builder_path is None else builder_path, spec, builder_path is not None)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module: Any = model.get_submodule(self.path)
        if not self.has_builder:
            name = self.path or type(model).__name__
            raise CannotFill(f"ALiBi of {name} is made by a function, which stays as it is")
        encoding, build = self.single_encoding(encodings), getattr(module, builder_of(module) or "")
        blocks = [
            child
            for stack in module.children()
            if isinstance(stack, nn.ModuleList)
            for child in stack
            if {"alibi", "position_bias"} & {*parameter_names(type(child))}
        ]
        by_mask = "attention_mask" in inspect.signature(build).parameters
        heads, keys = module.num_heads, 64
        mask = torch.ones(1, keys, device=next(module.parameters()).device)
        model_biases = build(mask, heads, torch.float32) if by_mask else build(heads, keys, device=mask.device)
        model_biases = model_biases.reshape(heads, keys).cpu()
        encoding_biases = encoding.by_distance(torch.arange(keys - 1, -1, -1))
        if encoding_biases.shape != model_biases.shape:
            raise ValueError(f"{self.path} has {heads} heads, and {encoding} has {len(encoding_biases)}")
        far = (encoding_biases - encoding_biases[:, -1:] - model_biases + model_biases[:, -1:]).abs().amax(-1)
        if exact and float(far.max()) > 1e-4:
            raise Mismatch(
                f"{self.path} and {encoding} have other slopes: head {int(far.argmax())} differs by "
                f"{float(far.max()) / (keys - 1):.3g} for each position"
            )
        add_bias = add_bias_by_distance if by_mask else add_bias_by_key
        return [hook(block, partial(add_bias, encoding, parameter_names(type(block)))) for block in blocks]


def add_bias_by_distance(
    encoding: Encoding, names: Sequence[str], block: nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Replace `alibi` [B*H, 1, S] by biases of distances [B*H, T, S], in a hook before a block.

    `alibi` grows along the keys: slope times position. To a softmax that is the same, but half precision does not keep
    near keys apart, and distances do. The block's mask says where tokens are.
    """
    call = HookedCall(names, args, kwargs)
    mask = call["attention_mask"]
    visible = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]  # [B, T, S]
    place = (visible.any(1).cumsum(-1) - 1).clamp(min=0)  # [B, S]
    # A query's own key is the last one that it sees.
    own_key = visible.shape[-1] - 1 - visible.flip(-1).int().argmax(-1)  # [B, T]
    delta = place.gather(-1, own_key)[..., None] - place[:, None]
    bias = encoding.by_distance(delta)  # [H, B, T, S]
    assert bias is not None
    call["alibi"] = bias.transpose(0, 1).flatten(0, 1).to(call["hidden_states"].dtype)
    return call.arguments


def add_bias_by_key(
    encoding: Encoding, names: Sequence[str], block: nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Replace MPT's `position_bias` [H, 1, S] of S keys, in a hook before a block."""
    call = HookedCall(names, args, kwargs)
    mask = call["attention_mask"]
    distances = torch.arange(mask.shape[-1] - 1, -1, -1, device=mask.device)
    bias = encoding.by_distance(distances)
    assert bias is not None
    call["position_bias"] = bias[:, None]
    return call.arguments


def builder_of(module: nn.Module) -> str | None:
    """Return the name of the method that builds ALiBi for a model's blocks, or None."""
    if not hasattr(module, "num_heads"):
        return None
    return next((name for name in dir(type(module)) if re.fullmatch(r"build_\w*alibi\w*", name)), None)


def alibi_spec(stack: LayerStack) -> str | None:
    """Return the spec of ALiBi as the keys and the dry run have it; None without it."""
    keys, node = stack.node.keys, stack.node
    attn_config = keys.open("attn_config") if isinstance(keys.peek("attn_config"), dict) else None
    if attn_config is not None and attn_config.flag("alibi", "ALiBi: {}"):
        greatest = attn_config.number("alibi_bias_max", "the last slope is 2^-{}", 8)
        return confirm_slopes(stack, new_spec("alibi", bias_max=None if greatest == 8 else float(greatest)))
    if keys.flag("alibi", "ALiBi: {}"):
        return confirm_slopes(stack, "alibi(form='falcon')")
    if node.trace.slopes and not keys.has("alibi") and attn_config is None:
        return confirm_slopes(stack, "alibi")
    return None


def confirm_slopes(stack: LayerStack, spec: str) -> str | None:
    """Return the spec if the biases of the model's own code have its slopes, else None."""
    node, shape = stack.node, stack.shape
    if not node.modules:
        return spec
    encoding: Any = built_from(spec, shape)
    slopes = torch.tensor(encoding.slopes)
    for bias in node.trace.slopes:
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
    if node.trace.slopes or node.trace.failure:
        reason = node.trace.failure or "it makes others"
        node.leave(f"ALiBi could not be held to the model's own slopes ({reason})")
    return spec if node.trace.failure and not node.trace.slopes else None
