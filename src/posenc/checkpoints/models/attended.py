"""Who sees whom in a dry run, and what multiplies the logits: read off what reaches each softmax of attention."""

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from posenc.checkpoints.models.turns import Turn

F = nn.functional

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}

PRODUCTS = {
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm),
    torch.einsum,
}
"""Functions of torch that multiply queries and keys."""

APPLIES_ATTENTION = re.compile(r"attention_forward$|attn_forward$")

FAR = 1 << 24
"""A position (tokens) beyond every window and every chunk."""

FEW = 8
"""As many tokens show the scale and the mask of attention that is too large to be computed."""


@dataclass(frozen=True)
class Reach:
    """How far attention reaches.

    window  it sees keys fewer than so many tokens away, itself among them, or None for all
    chunk   it sees the keys of its own chunk of so many tokens, or None
    """

    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Attended:
    """One attention, as it ran.

    path      the module that computed it
    layer     the module of the layer that it ran in, such as "layers.3"
    sees      which query (row) sees which key, among the tokens of the run; None where they attend in blocks
    reach     how far they see: to the end where a function of indices made the mask, else within the run; or None
    channels  of a head
    scale     what the logits are times the product of queries and keys as projections and norms gave them, without
              what the turns of rotary multiply; None where it could not be measured
    """

    path: str
    layer: str
    sees: Tensor | None
    reach: Reach | None
    channels: int
    scale: float | None

    @property
    def causal(self) -> bool | None:
        """Whether no token sees a later one; None where that is not known."""
        return None if self.sees is None else not bool(self.sees.triu(1).any())


@dataclass(frozen=True)
class Product:
    """Queries times keys: a tensor of zeros in their place, whose gradients tell what becomes of them.

    factor  by what queries and keys were multiplied; 0 where there is nothing to multiply, None where it is not known
    """

    zeros: Tensor
    channels: int
    factor: float | None
    # Whether queries and keys are cut into blocks in the same way, if at all.
    alike: bool


def projects(func: Any, args: tuple) -> bool:
    """Whether a function of torch multiplies by weights of the model."""
    if func in (F.linear, torch.addmm) or (func is F.conv1d and len(args) > 1 and args[1].shape[-1] == 1):
        return True
    factors = [x for x in args if isinstance(x, Tensor)] if func in PRODUCTS else []
    return len(factors) == 2 and (factors[1].dim() == 2 < factors[0].dim() or isinstance(factors[1], nn.Parameter))


def planted(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a projection gives in a dry run: 1 and -1 in turns, whose length no norm changes."""
    out = torch.ones(shape, dtype=dtype)
    out[..., 1::2] = -1
    return out


class Attention:
    """Follows the products of queries and keys through a dry run, each to its softmax.

    Whatever is done to logits on the way counts, wherever it stands: a scale, a cap, a bias, sinks beside them. The
    products are zeros that gradients are taken of, so that no cap is reached and no bias of a table's is in the way.

    stack    the modules that are running, outermost first; its owner keeps it
    turns    what rotary code did so far; its owner keeps it
    padding  how many tokens at the end are padding
    seen     what was found
    skipped  whether the run was too short for some mask with an edge to be made at all
    """

    def __init__(self, stack: list[str], turns: list[Turn], padding: int = 0) -> None:
        self.stack, self.turns, self.padding = stack, turns, padding
        self.skipped = False
        self.seen: list[Attended] = []
        self.open: list[Product] = []
        self.rules: list[tuple[Tensor, Callable[..., Any]]] = []
        self.given: list[Callable[..., Any] | None] = [None]
        self.making: Callable[..., Any] | None = None
        self.told: dict[tuple[int, int], tuple[Tensor, Reach | None]] = {}
        self.weights = torch.zeros(1)
        self.warm: dict[int, float] = {}

    @property
    def layer(self) -> str:
        """The outermost running module that is one of several in a row; "" outside of layers."""
        return next((found.group() for path in self.stack if (found := re.match(r"(.*?\.)?\d+(?=\.|$)", path))), "")

    # Masks, and which module is given which of them.

    def makes_mask(self, given: dict[str, Any]) -> None:
        """transformers begins to make a mask."""
        self.making = given["mask_function"]

    def made_mask(self, mask: Any) -> None:
        """It is made, unless everything is seen in so short a run."""
        if self.making is not None and isinstance(mask, Tensor):
            self.rules.append((mask, self.making))
        elif self.making is not None:
            self.skipped |= reach_by(self.making) not in (None, Reach())

    def enter(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """A module begins to run."""
        # Some models hand on a view of the mask.
        held = {x.untyped_storage().data_ptr() for x in (*args, *kwargs.values()) if isinstance(x, Tensor)}
        rules = (rule for mask, rule in self.rules if mask.untyped_storage().data_ptr() in held - {0})
        self.given.append(next(rules, self.given[-1]))

    def leave(self) -> None:
        """It has run."""
        self.given.pop()

    # Products, and what becomes of them.

    def product(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        """The stand-in for queries times keys; None where it is none."""
        added = None
        if getattr(func, "__name__", "") == "baddbmm":
            args = (*args, *(kwargs[name] for name in ("batch1", "batch2") if name in kwargs))
            added, func, args = args[0], torch.bmm, args[1:]
        factors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        if len(factors) != 2 or not self.layer or factors[0].dim() < 3:
            return None
        if factors[0].untyped_storage().data_ptr() == self.weights.untyped_storage().data_ptr():
            return None
        honest = func(*args)
        if honest.dim() < 3 or factors[0].shape[-1] < 2:
            return None
        zeros = torch.zeros_like(honest).requires_grad_()
        alike = any(
            k.shape == factors[0].shape and k.stride() == factors[0].stride() for k in (factors[1], factors[1].mT)
        )
        self.open.append(Product(zeros, factors[0].shape[-1], self.factor(honest, factors[0].shape[-1]), alike))
        with torch.enable_grad():
            # What is asked for gradients may not be overwritten itself.
            out = zeros.clone()
            return out if added is None else kwargs.get("beta", 1) * added + kwargs.get("alpha", 1) * out

    def factor(self, honest: Tensor, channels: int) -> float | None:
        """By what queries and keys were multiplied since their projections, together, and apart from rotary code."""
        square = honest.shape[-1] == honest.shape[-2]
        # A token meets itself unturned; where tokens come in blocks, some of it does.
        products = honest.diagonal(dim1=-2, dim2=-1).abs() if square else honest.abs().max()
        # A yarn's temperature is part of its spec.
        turn = next((turn for turn in reversed(self.turns) if turn.path == self.stack[-1]), None)
        if turn is not None and id(turn.matrices) not in self.warm:
            self.warm[id(turn.matrices)] = float(turn.matrices[0].square().sum() - turn.matrices.shape[-1])
        low, high = float(products.min()), float(products.max())
        if not high:
            return 0.0
        return (
            high / (channels + (0 if turn is None else self.warm[id(turn.matrices)]))
            if 0 < low and high - low <= 1e-4 * high < torch.inf
            else None
        )

    def softmax(self, logits: Tensor, weights: Tensor) -> None:
        """Logits became weights."""
        self.weights = weights
        column = min(logits.shape[-2:]) - 1
        # Some models put a sink behind the keys.
        shapes = {(one.zeros.shape[-2], one.zeros.shape[-1] + sink) for one in self.open for sink in (0, 1)}
        blocks = tuple(logits.shape[-2:]) not in shapes or logits.shape[-1] >= 2 * logits.shape[-2]
        products = [one.zeros for one in self.open]
        # Of two logits of one query: a number that is taken from all of them is none of the scale.
        with torch.enable_grad():
            row = logits.reshape(-1, *logits.shape[-2:])[0]
            # Of a band of keys around each query, those in the middle are there.
            line = logits.reshape(-1, len(row.T))[logits[..., 0].numel() // 2] if blocks else row[-1]
            difference = line[len(line) // 2] - line[len(line) // 2 - 1] if blocks else line[column] - line[0]
        parts = torch.autograd.grad(difference, products, allow_unused=True, retain_graph=blocks)
        used = [(product, part) for product, part in zip(self.open, parts, strict=True) if part is not None]
        self.open.clear()
        if not used or not column:
            return
        # Queries are compared with distances too: with a table, of zeros here, or with other numbers of them than keys.
        wide = logits.shape[-1]
        product, part = min(used, key=lambda one: (one[0].factor == 0, one[0].zeros.shape[-1] != wide))
        scale = None if product.factor is None else product.factor * float(part.clamp(min=0).sum())
        # Sinks stand behind the keys, and may take all that float32 has.
        sees = band(line, product) if blocks else row[:, : len(row)].double().softmax(-1) != 0
        self.add(sees, product.channels, scale or None)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, **asked: Any
    ) -> None:
        """PyTorch is asked for attention in one piece."""
        sees = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        if attn_mask is not None:
            mask = attn_mask.reshape(-1, *attn_mask.shape[-2:])[0].expand_as(sees)
            sees = mask if mask.dtype == torch.bool else mask.double().softmax(-1) != 0
        factor = self.factor(q[:, :1] @ k[:, :1].mT, q.shape[-1])
        scale = asked.get("scale") or q.shape[-1] ** -0.5
        sees = sees.tril() if asked.get("is_causal") else sees
        self.add(sees, q.shape[-1], None if factor is None else factor * scale)

    def add(self, sees: Tensor | None, channels: int, scale: float | None) -> None:
        tokens = 0 if sees is None else len(sees) - self.padding
        sees = None if sees is None else sees[:tokens, :tokens]
        rule = self.given[-1]
        if rule is not None and (id(rule), tokens) not in self.told:
            self.told[id(rule), tokens] = told_by(rule, tokens), reach_by(rule)
        told, reach = (None, None) if rule is None else self.told[id(rule), tokens]
        if sees is not None and (told is None or not told.equal(sees) or reach is None):
            seen = sees.tolist()
            reach = reach_of(lambda query, key: seen[query][key], tokens - 1)
        self.seen.append(Attended(self.stack[-1], self.layer, sees, reach if tokens else None, channels, scale))

    def small(self, function: Callable[..., Any], large: int) -> Callable[[dict[str, Any]], None]:
        """What tries a function of attention on a few tokens, where it was called with more than can be computed."""

        def called(given: dict[str, Any]) -> None:
            q, k = given.get("query"), given.get("key")
            if not isinstance(q, Tensor) or not isinstance(k, Tensor) or q.dim() != 4 or "value" not in given:
                return
            if q.shape[1] * q.shape[2] * k.shape[2] <= large:
                return
            few = {name: given[name][:, :, :FEW] for name in ("query", "key", "value")}
            mask = given.get("attention_mask")
            few["attention_mask"] = mask[..., :FEW, :FEW] if isinstance(mask, Tensor) else mask
            function(**given | few)

        return called


@torch.enable_grad()
def band(line: Tensor, product: Product) -> Tensor | None:
    """Who sees whom by a row of logits for the keys around one query; None where blocks hide which keys these are."""
    if not product.alike:
        return None
    (part,) = torch.autograd.grad(line.sum(), product.zeros)
    # Blocks of queries and of keys begin alike, and where they overlap, a query stands in two of them.
    queries, keys = part.abs().flatten(0, -3).sum(0).nonzero().T
    ahead = keys - queries
    at = torch.arange(2 * int(ahead.abs().max()) + 3)
    distance = at - at[:, None]
    return (ahead.min() <= distance) & (distance <= ahead.max())


@torch.no_grad()
def told_by(rule: Callable[..., Any], tokens: int) -> Tensor:
    """Which query sees which key by a function of indices; nothing where it cannot be asked."""
    at = torch.arange(tokens)
    try:
        return asked(rule, at[:, None], at).expand(tokens, tokens)
    except (IndexError, RuntimeError):
        # It looks its tokens up in those of the run.
        return torch.zeros(0)


def asked(rule: Callable[..., Any], query: Tensor, key: Tensor) -> Tensor:
    """Which queries see which keys, of the first row and head of a batch."""
    with Beyond():
        return rule(torch.tensor(0), torch.tensor(0), query, key)


class Beyond(TorchFunctionMode):
    """What a rule looks up of the tokens of a run is, for those beyond its end, what it is for the first of them.

    So a mask that lets the tokens of an image see one another says of a longer text how far it sees.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            if (
                func is Tensor.__getitem__
                and isinstance(args[1], tuple)
                and all(isinstance(i, Tensor) for i in args[1])
            ):
                places = (i.where(i < size, 0) for i, size in zip(args[1], args[0].shape, strict=False))
                return args[0][tuple(places)]
            return func(*args, **(kwargs or {}))


@torch.no_grad()
def reach_by(rule: Callable[..., Any]) -> Reach | None:
    """How far a function of indices sees; None where it looks its tokens up in those of a run."""
    try:
        return reach_of(lambda query, key: bool(asked(rule, torch.tensor(query), torch.tensor(key))), FAR)
    except (IndexError, RuntimeError):
        return None


def reach_of(sees: Callable[[int, int], bool], far: int) -> Reach:
    """The same of what says whether the query at one position sees the key at another, up to a position."""
    if sees(far, 0) or not sees(far, far):
        return Reach()
    first, before = oldest(sees, far), oldest(sees, far - 1) if not sees(far - 1, 0) else 0
    if first == before + 1:
        return Reach(window=far - first + 1)
    if first == far:
        return Reach(chunk=far - before)
    beyond = bisect.bisect_left(range(far, 2 * far), True, key=lambda query: not sees(query, first))
    return Reach(chunk=far + beyond - first)


def oldest(sees: Callable[[int, int], bool], query: int) -> int:
    """The oldest key that a query sees, where it does not see the very first, and none is left out in between."""
    return bisect.bisect_left(range(query), True, key=lambda key: sees(query, key))
