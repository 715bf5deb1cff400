"""Decoding with a static cache: the cost of one layer's step and the graph count."""

import json
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import masks
from posenc.cache import SlotCache
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder
from posenc.tokens.positions import Positions
from posenc_bench import subprocesses
from posenc_bench.measure import Group, Row, difference

BY_HAND = "by hand, without position"
DIM, HEADS = 1024, 16
SPECS = ("none", "rotary", "alibi", "t5_bias")
SLOTS = {"quick": (4096,), "full": (1024, 4096, 16384)}
STEPS = 1000


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Yield a decoding step with a nearly full cache, for each number of slots."""
    for slots in SLOTS[shapes]:
        yield step(slots)


def step(slots: int) -> Group:
    """Measure one token in one attention layer with projections. Each call rewrites the last slot but one."""
    place = slots - 2
    group = Group("decoding", f"one step of a layer, {slots} slots", BY_HAND, facts={"slots": slots})
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, DIM, generator=generator)
    prompt = torch.randn(1, place, DIM, generator=generator)
    torch.manual_seed(0)
    layers = {spec: Attention(DIM, HEADS, encoding=spec, max_len=slots, causal=True).eval() for spec in SPECS}
    for layer in layers.values():
        layer.load_state_dict(layers["none"].state_dict(), strict=False)
    layer = layers["none"]
    with torch.no_grad():
        keys, values = (room(layer, project(prompt), slots) for project in (layer.k_proj, layer.v_proj))
    tokens = (torch.arange(slots) <= place)[None, None, None]
    here = torch.tensor([place])

    def by_hand() -> Tensor:
        q, k, v = (layer.split(project(x), HEADS) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
        keys.index_copy_(2, here, k)
        values.index_copy_(2, here, v)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=tokens)
        return layer.o_proj(out.transpose(1, 2).flatten(2))

    group.add(BY_HAND, "limit", by_hand)
    for spec, posenc_cache in layers.items():
        cache = SlotCache(slots)
        with torch.no_grad():
            whole = posenc_cache(torch.cat((prompt, x), 1), mask=masks.causal())[:, -1:]
            posenc_cache(prompt, cache=cache, mask=masks.causal())
        call = once(posenc_cache, x, place, cache)
        group.add(spec, "posenc", call, error=lambda call=call, whole=whole: difference(call(), whole), tolerance=1e-4)
    return group


def room(layer: Attention, projection: Tensor, slots: int) -> Tensor:
    """Return projected tokens [1, T, DIM] split into heads, in a cache of `slots` slots."""
    tokens = layer.split(projection, HEADS)
    return F.pad(tokens, (0, 0, 0, slots - tokens.shape[2]))


def once(layer: Attention, x: Tensor, place: int, cache: SlotCache) -> Callable[[], Tensor]:
    def step() -> Tensor:
        assert cache.keys is not None
        cache.keys.at.order[:, place] = -1  # the token is removed, so that it can be written again
        return layer(x, positions=Positions.count(1, place), cache=cache, mask=masks.causal())

    return step


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """Yield the number of graphs compiled while a thousand tokens follow a prompt."""
    case = f"{STEPS} compiled steps"
    for spec in ("rotary", "alibi", "t5_bias", "learned", "sinusoidal") if shapes == "full" else ("rotary", "alibi"):
        try:
            graphs = subprocesses.run(CODE, spec, threads=threads)
        except RuntimeError as error:
            yield Row("decoding", case, spec, "posenc", "graphs", threads, note=str(error))
            continue
        yield Row("decoding", case, spec, "posenc", "graphs", threads, graphs, graphs, graphs)


CODE = "from posenc_bench.cases import decoding; decoding.in_a_process_of_its_own()"


@torch.inference_mode()
def in_a_process_of_its_own() -> None:
    """Print the number of graphs compiled for the steps after a prompt. A graph break is an error."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        graphs.append(graph)
        return graph.forward

    prompt = 7
    model = Decoder(16, dim=32, heads=4, layers=1, encoding=sys.argv[1], max_len=prompt + STEPS).eval()
    cache = model.cache(slots=prompt + STEPS)
    logits = model(torch.randint(16, (1, prompt)), cache=cache)
    is_compiled = torch.compile(model, backend=keep, fullgraph=True)
    for _ in range(STEPS):
        logits = is_compiled(logits[:, -1:].argmax(-1), cache=cache)
    print(json.dumps(len(graphs)))
