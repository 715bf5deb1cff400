"""Training steps and generation of whole models, compared with the same model written by hand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.model.block import Block
from posenc.model.decoder import Decoder
from posenc_bench import peers
from posenc_bench.measure import Group, difference

BY_HAND = "by hand, plain PyTorch, rotary"
VOCAB = 256
PROMPT = 16
TRAINED_TOKENS = ("none", "rotary", "alibi", "t5_bias", "sinusoidal")
GENERATED_TOKENS = ("none", "rotary", "alibi", "t5_bias", "shaw", "forgetting")


@dataclass(frozen=True)
class Size:
    """The sizes of a model and of its inputs in training and generation.

    tokens     tokens per row in training
    batch      rows per batch in training
    new_tokens tokens generated after a prompt
    """

    dim: int
    heads: int
    layers: int
    tokens: int
    batch: int
    new_tokens: int

    def __str__(self) -> str:
        return f"width {self.dim}, {self.layers} layers"

    @property
    def slots(self) -> int:
        return PROMPT + self.new_tokens


SIZES = {
    "quick": (Size(512, 8, 6, 512, 1, 32), Size(64, 4, 2, 64, 16, 128)),
    "full": (Size(512, 8, 6, 1024, 1, 256), Size(64, 4, 2, 64, 16, 256), Size(64, 4, 2, 64, 1, 256)),
}


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Yield every size, in training and in generation, built only when it is reached."""
    for size in SIZES[shapes]:
        yield training(size, with_peers, is_compiled=shapes == "full")
        yield generation(size, with_peers)


def build_model(size: Size, spec: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(VOCAB, dim=size.dim, heads=size.heads, layers=size.layers, max_len=1024, encoding=spec)


class ByHand(nn.Module):
    """The same decoder as commonly hand-written: one QKV projection, and stored rotary tables."""

    def __init__(self, model: Decoder, longest: int) -> None:
        super().__init__()
        sizes, stack = model.sizes, model.stack
        self.heads, self.head_dim = sizes.heads, sizes.shape().head_dim
        self.token, self.final_norm = model.embedding.token, stack.final_norm
        self.output = cast(nn.Linear, model.output)
        self.blocks = nn.ModuleList(ByHandBlock(cast(Block, block), sizes.heads) for block in stack.blocks)
        frequencies = 10_000.0 ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(longest), frequencies).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, ids: Tensor, start: int = 0, caches: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        here = slice(start, start + ids.shape[1])
        x, tables = self.token(ids), (self.cos[here], self.sin[here])
        for index, block in enumerate(self.blocks):
            x = block(x, tables, here, None if caches is None else caches[index])
        return self.output(self.final_norm(x))

    @torch.no_grad()
    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        """Generate greedily with a static cache."""
        cache = torch.zeros(2, len(self.blocks), ids.shape[0], self.heads, ids.shape[1] + tokens, self.head_dim)
        caches = list(zip(*cache, strict=True))
        new, start, output_ids = ids, 0, [ids]
        for _ in range(tokens):
            logits = self(new, start, caches)
            start += new.shape[1]
            new = logits[:, -1:].argmax(-1)
            output_ids.append(new)
        return torch.cat(output_ids, 1)


class ByHandBlock(nn.Module):
    def __init__(self, block: Block, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, block.attention.head_dim
        projections = (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
        dim = block.attention.dim
        self.to_all = nn.Linear(dim, 3 * dim)
        with torch.no_grad():
            self.to_all.weight.copy_(torch.cat([projection.weight for projection in projections]))
            self.to_all.bias.copy_(torch.cat([projection.bias for projection in projections]))
        self.to_output, self.feed_forward = block.attention.o_proj, block.feed_forward
        self.attention_norm, self.feed_forward_norm = block.attention_norm, block.feed_forward_norm

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], here: slice, cache: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (
            part.view(B, T, self.heads, self.head_dim).transpose(1, 2)
            for part in self.to_all(self.attention_norm(x)).chunk(3, -1)
        )
        q, k = (rotate(part, *tables) for part in (q, k))
        if cache is not None:
            keys, values = cache
            keys[:, :, here], values[:, :, here] = k, v
            k, v = keys[:, :, : here.stop], values[:, :, : here.stop]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        x = x + self.to_output(out.transpose(1, 2).reshape(B, T, -1))
        return x + self.feed_forward(self.feed_forward_norm(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def training(size: Size, with_peers: bool, is_compiled: bool) -> Group:
    """Measure forward, backward and a step of fused AdamW."""
    case = f"{size}: a training step, {size.batch} x {size.tokens} tokens"
    group = Group("models", case, BY_HAND, facts={"dim": size.dim, "tokens": size.tokens}, grad=True)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (size.batch, size.tokens + 1), generator=generator)
    by_hand = ByHand(build_model(size, "rotary"), ids.shape[1])
    right = build_model(size, "rotary")(ids).detach()
    group.add(BY_HAND, "limit", step(by_hand, ids), error=logits_error(by_hand, ids, right), tolerance=1e-3)
    for spec in TRAINED_TOKENS:
        group.add(spec, "posenc", step(build_model(size, spec), ids))
    if is_compiled:
        group.add("rotary, compiled", "posenc", step(cast(Any, torch.compile(build_model(size, "rotary"))), ids))
        group.add(f"{BY_HAND}, compiled", "naive", step(cast(Any, torch.compile(by_hand)), ids))
    add_llama(group, with_peers, size, lambda llama: step(lambda ids: llama(ids).logits, ids, llama))
    return group


def logits_error(model: Callable[[Tensor], Tensor], ids: Tensor, right: Tensor) -> Callable[[], float]:
    return lambda: difference(model(ids).detach(), right)


def step(model: Callable[[Tensor], Tensor], ids: Tensor, module: nn.Module | None = None) -> Callable[[], None]:
    """Return a training step of a model. If `model` is a plain function, `module` holds the parameters."""
    module = cast(nn.Module, model) if module is None else module
    # A learning rate of 0 leaves the model unchanged at the full cost of a step.
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)

    def once() -> None:
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return once


def generation(size: Size, with_peers: bool) -> Group:
    """Measure greedy generation after a prompt, one token at a time."""
    case = f"{size}: {size.new_tokens} tokens generated"
    group = Group("models", case, BY_HAND, facts={"dim": size.dim, "tokens": size.new_tokens})
    ids = torch.randint(VOCAB, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    by_hand = ByHand(build_model(size, "rotary"), size.slots).eval()
    group.add(BY_HAND, "limit", lambda: by_hand.generate(ids, size.new_tokens))
    for spec in GENERATED_TOKENS:
        model = build_model(size, spec).eval()

        def call(model: Decoder = model) -> Tensor:
            return model.generate(ids, size.new_tokens)

        def error(call: Callable[[], Tensor] = call) -> float:
            return differing_ids(call(), by_hand.generate(ids, size.new_tokens))

        # If two ids are equally likely within rounding, either may be chosen, and later ids then differ.
        group.add(spec, "posenc", call, error=error if spec == "rotary" else None, tolerance=size.new_tokens / 2)
    model = build_model(size, "rotary").eval()  # a new model, since a compiled graph would be reused by the next call
    if hasattr(model, "stream"):  # older versions lack it
        group.add("rotary, compiled", "posenc", lambda: model.generate(ids, size.new_tokens, compiled=True))
    options = {"max_new_tokens": size.new_tokens, "min_new_tokens": size.new_tokens, "do_sample": False}
    add_llama(group, with_peers, size, lambda llama: lambda: llama.generate(ids, pad_token_id=0, **options))
    return group


def differing_ids(ids: Tensor, right: Tensor) -> float:
    """Return the number of ids that differ from another run's."""
    return float((ids != right).sum())


def add_llama(group: Group, with_peers: bool, size: Size, call: Callable[[Any], Callable[[], Any]]) -> None:
    """Add transformers' Llama of the same size if transformers is installed."""
    if not with_peers:
        return
    name = "transformers: Llama"
    try:
        llama = peers.llama(VOCAB, size.dim, size.heads, size.layers)
    except peers.AbsentPeer as reason:
        group.absent[name] = str(reason)
        return
    group.add(name, "peer", call(llama.train() if group.grad else llama.eval()))
