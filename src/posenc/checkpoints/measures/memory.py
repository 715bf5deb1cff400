"""What a pass of a decoder holds in memory, counted before there is any: the pass itself, on shapes without numbers."""

import inspect
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc.checkpoints.kinds.calls import cache_name
from posenc.checkpoints.measures.perplexity import DEVICE, ROWS


@dataclass(frozen=True)
class Memory:
    """What a pass over texts of one length holds on the device at its fullest moment (bytes).

    weights  of the model, its buffers included
    cache    keys and values, as each layer keeps them: a window ends it, latents and shared keys make it small
    layers   what the fullest layer holds beside, masks and scores where the kernel needs them included
    logits   of the last chunk, and those rows of them that are float32 while losses are taken
    total    weights, cache, and the larger of the other two: the layers are done when the logits are made
    """

    weights: int
    cache: int
    layers: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + max(self.layers, self.logits)


def of_pass(model: Any, length: int, *, chunk: int = 1024, batch: int = 1, cache: str = DEVICE) -> Memory:
    """What a model whose tensors are all shapes (on `meta`) would hold in a pass over texts of a length (tokens).

    The last chunk is the fullest: what comes before it is read at once, and of the last one every tensor that is made
    is counted until it goes. So whatever a model's own code keeps, copies or masks is in the numbers. Attention by
    `scaled_dot_product_attention` counts for its output, and for a mask that it turns into numbers: fused kernels hold
    no scores. Of a cache in the memory of the machine, the layer at work and the next one are on the device.

    Not in the numbers: the libraries, what a kernel works in, what an allocator cannot fill, and methods that attend on
    unturned keys, which turn them anew for every chunk.
    """
    read, name = length - 1, cache_name(model)
    last = min(chunk, read)
    chooses = "logits_to_keep" in inspect.signature(model.forward).parameters
    few = {"logits_to_keep": 1} if chooses else {}

    def ids(tokens: int) -> Tensor:
        return torch.empty(batch, tokens, dtype=torch.long, device="meta")

    with torch.inference_mode(), Fused():
        held = None
        if read > last:
            held = getattr(model(input_ids=ids(read - last), use_cache=True, **few), name)
        with Counted(tensors_of(held), weights_of(model)) as counted:
            out = model(input_ids=ids(last), use_cache=True, **{name: held}, **few)
    held = getattr(out, name)
    layers = [sum(one.nbytes for one in tensors_of(layer)) for layer in held.layers]
    whole, vocabulary = sum(layers), out.logits.shape[-1]
    logits = batch * last * vocabulary * out.logits.element_size()
    # Each row twice: as float32, and as what the loss makes of it.
    logits += 2 * min(ROWS, last) * vocabulary * 4
    kept = whole if cache == DEVICE else min(whole, 2 * max(layers))
    return Memory(sum(one.nbytes for one in weights_of(model)), kept, max(0, counted.peak - whole), logits)


def weights_of(model: Any) -> list[Tensor]:
    """A model's parameters and buffers, each once."""
    return list({id(one): one for one in (*model.parameters(), *model.buffers())}.values())


def tensors_of(held: Any) -> list[Tensor]:
    """The tensors of a cache, or of one layer of it."""
    layers = getattr(held, "layers", [] if held is None else [held])
    return [one for layer in layers for one in tree_leaves(list(vars(layer).values())) if isinstance(one, Tensor)]


GROUPED = {getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)} - {None}
"""Products of many matrices at once."""


class Fused(TorchFunctionMode):
    """In this thread, attention that is fused makes its output and no scores, and so do products of experts."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in GROUPED:
            # Experts: tokens [T, K] and weights [E, K, N]. Without numbers it takes bfloat16 alone.
            return args[0].new_empty(len(args[0]), args[1].shape[-1])
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        named = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        query, value, mask = named["query"], named["value"], named.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.empty_like(mask, dtype=query.dtype)
        return query.new_empty(*query.shape[:-1], value.shape[-1])


class Counted(TorchDispatchMode):
    """In this thread, the bytes of the tensors that are made, until they go: `now`, and at most `peak`.

    held     tensors that are there already, and count too
    weights  tensors whose views are not made, and do not count
    """

    def __init__(self, held: Iterable[Tensor] = (), weights: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes = {one.untyped_storage()._cdata: 0 for one in weights}
        for one in held:
            self.take(one)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                self.take(one)
        return out

    def take(self, one: Tensor) -> None:
        storage = one.untyped_storage()
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.let_go, key)

    def let_go(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
