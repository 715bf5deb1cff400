"""PyTorch's ways of running a model are served: torch.compile, torch.func, make_fx, and tensors without data."""

import torch
from torch import Tensor

from posenc.cache import GrowingCache, SlotCache
from posenc.testing.comparisons import same
from posenc.testing.contract import promise
from posenc.testing.subjects import LONG, TOKENS, Net, Subject, count, in_chunks, mask_name, tokens
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import KEPT
from posenc.verdicts import expect


@promise
def compiles_to_one_graph(subject: Subject) -> None:
    """torch.compile takes the whole forward pass as one graph, with at most one more when the length first changes."""
    from torch._dynamo.testing import CompileCounter

    # The second way is for what only given Positions bring into the graph, and one length shows it.
    for name, place, mask, lengths in (
        ("no positions given", None, masks.causal(), (TOKENS, 13, 17)),
        ("Positions given", count, masks.bidirectional(), (TOKENS,)),
    ):
        net = subject.net()
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(net, backend=counter, fullgraph=True)
        for T in lengths:
            x, at = tokens(subject, T), None if place is None else place(T)
            same(compiled(x, at, mask), net(x, at, mask), f"compiled, {name}, {T} tokens, {mask_name(mask)}")
        graphs = f"{counter.frame_count} graphs for the lengths {lengths} ({name})"
        expect(counter.frame_count <= 2, f"{graphs}; expected one, and one for any length")
    torch._dynamo.reset()


@promise
def every_way_of_running_is_served(subject: Subject) -> None:
    """An empty batch, tensors without data (meta, fake), a written-down graph (make_fx), the transforms of torch.func,
    and gradients of gradients give what one would expect.

    The empty batch goes through every kernel and cache, the rest through the kernel that "auto" chooses.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x, mask = subject.net(), tokens(subject, TOKENS), masks.window(4)

    def run(x: Tensor) -> Tensor:
        return net(x, None, mask)

    expected = run(x)
    empty, nobody = x[:0].clone().requires_grad_(), Positions.padded(torch.ones(0, TOKENS))
    for kernel in net.kernels:
        for at in (None, nobody.with_horizon(LONG)):
            out = net.through(kernel)(empty, at, mask)
            out.sum().backward()
            same(out, expected[:0], f"an empty batch, kernel {kernel}")
    net.through("auto")
    for cache in (GrowingCache, lambda: SlotCache(TOKENS), lambda: SlotCache(6, rolling=True)):
        with torch.no_grad():
            same(in_chunks(net, empty, count(3), (3, 3, 3), mask, cache), expected[:0], "an empty batch, with a cache")

    # What this process keeps would hide a table that is made on the wrong device.
    KEPT.clear()
    with torch.device("meta"):
        same(run(x), expected, "tensors with data, in the context of a device without")
        absent = Net(*subject.build(), subject.shape).double()
        shape = absent(torch.empty_like(x, device="meta"), None, mask).shape
    expect(shape == expected.shape, f"tensors without data give shape {list(shape)}, expected {list(expected.shape)}")

    with FakeTensorMode():
        fake, given = Net(*subject.build(), subject.shape), torch.zeros(x.shape)
        for at in (None, Positions.padded(torch.ones(x.shape[:2])).with_horizon(LONG)):
            fake(given, at, mask).sum().backward()
        with torch.no_grad():
            shape = in_chunks(fake, given, count(TOKENS), (5, 1, 3), mask, lambda: SlotCache(8, rolling=True)).shape
    expect(shape == expected.shape, f"fake tensors give shape {list(shape)}, expected {list(expected.shape)}")

    other = tokens(subject, TOKENS, seed=4)
    with torch.no_grad():
        same(make_fx(run)(x)(other), run(other), "other tokens, through a graph of the operators (make_fx)")

    direction, step = tokens(subject, TOKENS, seed=3), 1e-6
    measured = (run(x + step * direction) - run(x - step * direction)) / (2 * step)
    same(torch.func.jvp(run, (x,), (direction,))[1], measured, "the slope along a direction, by torch.func.jvp", 1e-5)
    gradient = torch.func.grad(lambda x: run(x).sum())(x)
    same((gradient * direction).sum(), measured.sum(), "the gradient by torch.func.grad, along a direction", 1e-5)
    same(torch.func.vmap(lambda row: run(row[None])[0])(x), expected, "row by row with torch.func.vmap")

    def loss(x: Tensor) -> Tensor:
        return run(x).tanh().sum()

    slope = torch.func.grad(loss)
    curvature = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    twice = torch.func.jvp(slope, (x,), (direction,))[1]
    same(twice, curvature, "the curvature along a direction, by torch.func", 1e-5)
    net.through("reference")
    twice = torch.autograd.functional.vhp(loss, x, direction)[1]
    same(twice, curvature, "the curvature along a direction, by gradients of gradients", 1e-5)
