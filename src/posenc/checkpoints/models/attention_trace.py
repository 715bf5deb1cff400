"""Trace attention in a dry run: the keys that queries see, and the logits' scale at each softmax."""

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from posenc.checkpoints.models.rotations import OnCall, Turn

F = nn.functional

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}

PRODUCTS = {
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm),
    torch.einsum,
}
"""Functions of torch that multiply queries by keys."""

APPLIES_ATTENTION = re.compile(r"attention_forward$|attn_forward$")

FAR_POSITION = 1 << 24
"""A position (tokens) past every window and every chunk."""

FEW_TOKENS = 8
"""The number of tokens for attention that is too large to compute in full."""


@dataclass(frozen=True)
class Reach:
    """The reach of attention.

    window  a query sees keys less than so many tokens away, itself among them; None for all
    chunk   a query sees the keys of its own chunk of so many tokens; None for all
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class AttentionCall:
    """One attention of a dry run.

    path      the module that computed it
    layer     the module of its layer, such as "layers.3"
    sees      which query (row) sees which key, among the tokens of the run; None for attention in blocks
    reach     its reach: without limit if a function of indices made the mask, else within the run; or None
    channels  channels of a head
    scale     the factor of logits over the product of queries and keys as projections and norms gave them, without the
              temperature of rotary; None if it could not be measured
    """

    path: str
    layer: str
    sees: Tensor | None
    reach: Reach | None
    channels: int
    scale: float | None

    @property
    def causal(self) -> bool | None:
        """Whether no token sees a later one; None if unknown."""
        return None if self.sees is None else not bool(self.sees.triu(1).any())


@dataclass(frozen=True)
class Product:
    """A product of queries and keys, replaced by zeros whose gradients show its scale and mask.

    factor  the factor of queries and keys since their projections; 0 if a factor is zero, None if unknown
    """

    zeros: Tensor
    channels: int
    factor: float | None
    # Whether queries and keys are divided into blocks alike, if at all.
    same_blocks: bool


def multiplies_weights(func: Callable[..., Any], args: tuple) -> bool:
    """Whether a function of torch multiplies by weights of the model."""
    if func in (F.linear, torch.addmm) or (func is F.conv1d and len(args) > 1 and args[1].shape[-1] == 1):
        return True
    factors = [x for x in args if isinstance(x, Tensor)] if func in PRODUCTS else []
    return len(factors) == 2 and (factors[1].dim() == 2 < factors[0].dim() or isinstance(factors[1], nn.Parameter))


def probe_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a projection's output in a dry run: 1 and -1 in turns, of mean square 1."""
    out = torch.ones(shape, dtype=dtype)
    out[..., 1::2] = -1
    return out


class AttentionTracer:
    """Follow each product of queries and keys in a dry run to its softmax.

    Every operation on logits counts, wherever its code is: a scale, a cap, a bias, sinks. Models differ in where they
    scale, so the scale is the gradient of the logits for the product. The products are replaced by zeros, so that caps
    act as the identity and biases drop out.

    stack      paths of the running modules, outermost first; the caller updates it
    turns      the calls of rotary code so far; the caller updates it
    padding    number of padding tokens at the end
    records    each attention so far
    too_short  whether the model left out a mask that it needs for longer inputs
    """

    def __init__(self, stack: list[str], turns: list[Turn], padding: int = 0) -> None:
        self.stack, self.turns, self.padding = stack, turns, padding
        self.too_short = False
        self.records: list[AttentionCall] = []
        self.open: list[Product] = []
        self.rules: list[tuple[Tensor, Callable[..., Any]]] = []
        self.rule_stack: list[Callable[..., Any] | None] = [None]
        self.pending_rule: Callable[..., Any] | None = None
        self.rule_masks: dict[tuple[int, int], tuple[Tensor, Reach | None]] = {}
        self.weights = torch.zeros(1)
        self.squared_gains: dict[int, float] = {}

    @property
    def layer(self) -> str:
        """The outermost running module with a number, such as "layers.3"; "" outside of layers."""
        return next((match.group() for path in self.stack if (match := re.match(r"(.*?\.)?\d+(?=\.|$)", path))), "")

    # Masks, and the modules that get them

    def start_mask(self, arguments: dict[str, Any]) -> None:
        """Record that transformers starts a mask."""
        self.pending_rule = arguments["mask_function"]

    def finish_mask(self, mask: object) -> None:
        """Record the mask; transformers leaves it out if every token sees all in a short run."""
        if self.pending_rule is not None and isinstance(mask, Tensor):
            self.rules.append((mask, self.pending_rule))
        elif self.pending_rule is not None:
            self.too_short |= rule_reach(self.pending_rule) not in (None, Reach())

    def enter(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Record that a module starts."""
        # Some models pass on a view of the mask.
        storages = {x.untyped_storage().data_ptr() for x in (*args, *kwargs.values()) if isinstance(x, Tensor)}
        rules = (rule for mask, rule in self.rules if mask.untyped_storage().data_ptr() in storages - {0})
        self.rule_stack.append(next(rules, self.rule_stack[-1]))

    def leave(self) -> None:
        """Record that a module ends."""
        self.rule_stack.pop()

    # Products, and the logits made from them

    def product(self, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        """Return zeros in place of queries times keys; None for another product."""
        addend = None
        if getattr(func, "__name__", "") == "baddbmm":
            args = (*args, *(kwargs[name] for name in ("batch1", "batch2") if name in kwargs))
            addend, func, args = args[0], torch.bmm, args[1:]
        factors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        if len(factors) != 2 or not self.layer or factors[0].dim() < 3:
            return None
        q, k = factors
        if q.untyped_storage().data_ptr() == self.weights.untyped_storage().data_ptr():
            return None
        values = func(*args)
        if values.dim() < 3 or q.shape[-1] < 2:
            return None
        zeros = torch.zeros_like(values).requires_grad_()
        same_blocks = any(x.shape == q.shape and x.stride() == q.stride() for x in (k, k.mT))
        self.open.append(Product(zeros, q.shape[-1], self.factor(values, q.shape[-1]), same_blocks))
        with torch.enable_grad():
            # The model may write to the product, and autograd forbids that for a leaf.
            out = zeros.clone()
            return out if addend is None else kwargs.get("beta", 1) * addend + kwargs.get("alpha", 1) * out

    def factor(self, values: Tensor, channels: int) -> float | None:
        """Return the factor of queries times keys since their projections, without that of rotary code."""
        square = values.shape[-1] == values.shape[-2]
        # Rotary cancels between a token and itself; with blocks, some products are of that kind.
        products = values.diagonal(dim1=-2, dim2=-1).abs() if square else values.abs().max()
        # The temperature of YaRN is part of its spec.
        turn = next((turn for turn in reversed(self.turns) if turn.path == self.stack[-1]), None)
        if turn is not None and id(turn.matrices) not in self.squared_gains:
            self.squared_gains[id(turn.matrices)] = float(turn.matrices[0].square().sum() - turn.matrices.shape[-1])
        low, high = float(products.min()), float(products.max())
        if not high:
            return 0.0
        is_constant = 0 < low and high - low <= 1e-4 * high < torch.inf
        gain = 0 if turn is None else self.squared_gains[id(turn.matrices)]
        return high / (channels + gain) if is_constant else None

    def softmax(self, logits: Tensor, weights: Tensor) -> None:
        """Record an attention at its softmax."""
        self.weights = weights
        column = min(logits.shape[-2:]) - 1
        # Some models append a sink to the keys.
        zeros = [product.zeros for product in self.open]
        shapes = {(x.shape[-2], x.shape[-1] + sink) for x in zeros for sink in (0, 1)}
        blocks = tuple(logits.shape[-2:]) not in shapes or logits.shape[-1] >= 2 * logits.shape[-2]
        # The difference of two logits of a query: a constant subtracted from all does not count.
        with torch.enable_grad():
            row = logits.reshape(-1, *logits.shape[-2:])[0]
            # In a band of keys around each query, the middle ones always exist.
            line = logits.reshape(-1, len(row.T))[logits[..., 0].numel() // 2] if blocks else row[-1]
            difference = line[len(line) // 2] - line[len(line) // 2 - 1] if blocks else line[column] - line[0]
        parts = torch.autograd.grad(difference, zeros, allow_unused=True, retain_graph=blocks)
        contributions = [(product, part) for product, part in zip(self.open, parts, strict=True) if part is not None]
        self.open.clear()
        if not contributions or not column:
            return
        # Some models also multiply queries by a table of distances: zeros here, or of another number than keys.
        width = logits.shape[-1]
        product, part = min(contributions, key=lambda pair: (pair[0].factor == 0, pair[0].zeros.shape[-1] != width))
        scale = None if product.factor is None else product.factor * float(part.clamp(min=0).sum())
        # Sinks follow the keys, and may take all of the weight in float32.
        sees = band(line, product) if blocks else row[:, : len(row)].double().softmax(-1) != 0
        self.add(sees, product.channels, scale or None)

    def fused_attention(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, **kwargs: Any
    ) -> None:
        """Record a call of scaled_dot_product_attention."""
        sees = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        if attn_mask is not None:
            mask = attn_mask.reshape(-1, *attn_mask.shape[-2:])[0].expand_as(sees)
            sees = mask if mask.dtype == torch.bool else mask.double().softmax(-1) != 0
        factor = self.factor(q[:, :1] @ k[:, :1].mT, q.shape[-1])
        scale = kwargs.get("scale") or q.shape[-1] ** -0.5
        sees = sees.tril() if kwargs.get("is_causal") else sees
        self.add(sees, q.shape[-1], None if factor is None else factor * scale)

    def add(self, sees: Tensor | None, channels: int, scale: float | None) -> None:
        tokens = 0 if sees is None else len(sees) - self.padding
        sees = None if sees is None else sees[:tokens, :tokens]
        rule = self.rule_stack[-1]
        if rule is not None and (id(rule), tokens) not in self.rule_masks:
            self.rule_masks[id(rule), tokens] = rule_mask(rule, tokens), rule_reach(rule)
        rule_sees, reach = (None, None) if rule is None else self.rule_masks[id(rule), tokens]
        if sees is not None and (rule_sees is None or not rule_sees.equal(sees) or reach is None):
            visible = sees.tolist()
            reach = sight_reach(lambda query, key: visible[query][key], tokens - 1)
        self.records.append(AttentionCall(self.stack[-1], self.layer, sees, reach if tokens else None, channels, scale))

    def small_probe(self, function: Callable[..., Any], large: int) -> OnCall:
        """Return a function that repeats too large a call of attention with a few tokens."""

        def probe(arguments: dict[str, Any]) -> None:
            q, k = arguments.get("query"), arguments.get("key")
            if not isinstance(q, Tensor) or not isinstance(k, Tensor) or q.dim() != 4 or "value" not in arguments:
                return
            if q.shape[1] * q.shape[2] * k.shape[2] <= large:
                return
            inputs = {name: arguments[name][:, :, :FEW_TOKENS] for name in ("query", "key", "value")}
            mask = arguments.get("attention_mask")
            inputs["attention_mask"] = mask[..., :FEW_TOKENS, :FEW_TOKENS] if isinstance(mask, Tensor) else mask
            function(**arguments | inputs)

        return probe


@torch.enable_grad()
def band(line: Tensor, product: Product) -> Tensor | None:
    """Return which query sees which key, from a row of logits around one query; None if blocks differ."""
    if not product.same_blocks:
        return None
    (part,) = torch.autograd.grad(line.sum(), product.zeros)
    # Blocks of queries and of keys start alike; overlapping blocks share queries.
    queries, keys = part.abs().flatten(0, -3).sum(0).nonzero().T
    ahead = keys - queries
    at = torch.arange(2 * int(ahead.abs().max()) + 3)
    distance = at - at[:, None]
    return (ahead.min() <= distance) & (distance <= ahead.max())


@torch.no_grad()
def rule_mask(rule: Callable[..., Any], tokens: int) -> Tensor:
    """Return which query sees which key by a function of indices; empty if it fails."""
    at = torch.arange(tokens)
    try:
        return rule_at(rule, at[:, None], at).expand(tokens, tokens)
    except (IndexError, RuntimeError):
        # The function reads the tokens of the run.
        return torch.zeros(0)


def rule_at(rule: Callable[..., Any], query: Tensor, key: Tensor) -> Tensor:
    """Return which queries see which keys, for the first row and head of a batch."""
    with ClampedLookup():
        return rule(torch.tensor(0), torch.tensor(0), query, key)


class ClampedLookup(TorchFunctionMode):
    """A mode for mask rules: a lookup past the last token of the run reads the first token.

    So a mask with exceptions for image tokens also shows its reach in a longer text.
    """

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        with torch._C.DisableTorchFunction():
            indices = args[1] if func is Tensor.__getitem__ else None
            if isinstance(indices, tuple) and all(isinstance(i, Tensor) for i in indices):
                places = (i.where(i < size, 0) for i, size in zip(indices, args[0].shape, strict=False))
                return args[0][tuple(places)]
            return func(*args, **(kwargs or {}))


@torch.no_grad()
def rule_reach(rule: Callable[..., Any]) -> Reach | None:
    """Return the reach of a function of indices; None if it reads the tokens of the run."""
    try:
        return sight_reach(lambda query, key: bool(rule_at(rule, torch.tensor(query), torch.tensor(key))), FAR_POSITION)
    except (IndexError, RuntimeError):
        return None


def sight_reach(sees: Callable[[int, int], bool], far: int) -> Reach:
    """Return the reach of `sees(query, key)`, by bisection up to position `far`."""
    if sees(far, 0) or not sees(far, far):
        return Reach()
    first, previous = oldest(sees, far), oldest(sees, far - 1) if not sees(far - 1, 0) else 0
    if first == previous + 1:
        return Reach(window=far - first + 1)
    if first == far:
        return Reach(chunk=far - previous)
    chunk_end = bisect.bisect_left(range(far, 2 * far), True, key=lambda query: not sees(query, first))
    return Reach(chunk=far + chunk_end - first)


def oldest(sees: Callable[[int, int], bool], query: int) -> int:
    """Return the oldest key that a query sees. It has to see all keys from there on, and not key 0."""
    return bisect.bisect_left(range(query), True, key=lambda key: sees(query, key))
