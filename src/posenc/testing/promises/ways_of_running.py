"""Promises on ways to run a model: torch.compile, torch.func, make_fx, and tensors without data."""

import torch
from torch import Tensor

from posenc.cache import GrowingCache, SlotCache
from posenc.testing.comparisons import agree
from posenc.testing.contract import promise
from posenc.testing.subjects import LONG, TOKENS, Net, Subject, arange, embeddings, mask_name, run_chunks
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import KEPT_WINDOWS
from posenc.verdicts import expect


@promise
def compiles_to_one_graph(subject: Subject) -> None:
    """torch.compile captures the forward pass as one graph, with one recompile when the length first changes."""
    from torch._dynamo.testing import CompileCounter

    # Positions passed by the caller add operations to the graph; one length shows them.
    for name, place, mask, lengths in (
        ("no positions given", None, masks.causal(), (TOKENS, 13, 17)),
        ("Positions given", arange, masks.bidirectional(), (TOKENS,)),
    ):
        net = subject.net()
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled_net = torch.compile(net, backend=counter, fullgraph=True)
        for T in lengths:
            x, at = embeddings(subject, T), None if place is None else place(T)
            agree(compiled_net(x, at, mask), net(x, at, mask), f"compiled, {name}, {T} tokens, {mask_name(mask)}")
        graphs = f"{counter.frame_count} graphs for the lengths {lengths} ({name})"
        expect(counter.frame_count <= 2, f"{graphs}; expected one, and one for any length")
    torch._dynamo.reset()


@promise
def every_way_of_running_is_served(subject: Subject) -> None:
    """Empty batches, meta and fake tensors, make_fx graphs, torch.func and second gradients give correct results.

    The empty batch runs through every kernel and cache, the rest through the kernel that "auto" chooses.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x, mask = subject.net(), embeddings(subject, TOKENS), masks.window(4)

    def run(x: Tensor) -> Tensor:
        return net(x, None, mask)

    expected = run(x)
    empty, empty_at = x[:0].clone().requires_grad_(), Positions.padded(torch.ones(0, TOKENS))
    for kernel in net.kernels:
        for at in (None, empty_at.with_horizon(LONG)):
            out = net.set_kernel(kernel)(empty, at, mask)
            out.sum().backward()
            agree(out, expected[:0], f"an empty batch, kernel {kernel}")
    net.set_kernel("auto")
    for cache in (GrowingCache, lambda: SlotCache(TOKENS), lambda: SlotCache(6, rolling=True)):
        with torch.no_grad():
            agree(
                run_chunks(net, empty, arange(3), (3, 3, 3), mask, cache), expected[:0], "an empty batch, with a cache"
            )

    # A cached table would hide one that is created on the wrong device.
    KEPT_WINDOWS.clear()
    with torch.device("meta"):
        agree(run(x), expected, "tensors with data, in the context of a device without")
        absent = Net(*subject.build(), subject.shape).double()
        shape = absent(torch.empty_like(x, device="meta"), None, mask).shape
    expect(shape == expected.shape, f"tensors without data give shape {list(shape)}, expected {list(expected.shape)}")

    with FakeTensorMode():
        fake, zeros = Net(*subject.build(), subject.shape), torch.zeros(x.shape)
        for at in (None, Positions.padded(torch.ones(x.shape[:2])).with_horizon(LONG)):
            fake(zeros, at, mask).sum().backward()
        with torch.no_grad():
            shape = run_chunks(fake, zeros, arange(TOKENS), (5, 1, 3), mask, lambda: SlotCache(8, rolling=True)).shape
    expect(shape == expected.shape, f"fake tensors give shape {list(shape)}, expected {list(expected.shape)}")

    other_x = embeddings(subject, TOKENS, seed=4)
    with torch.no_grad():
        agree(make_fx(run)(x)(other_x), run(other_x), "other tokens, through a graph of the operators (make_fx)")

    direction, step = embeddings(subject, TOKENS, seed=3), 1e-6
    numeric = (run(x + step * direction) - run(x - step * direction)) / (2 * step)
    agree(torch.func.jvp(run, (x,), (direction,))[1], numeric, "the slope along a direction, by torch.func.jvp", 1e-5)
    gradient = torch.func.grad(lambda x: run(x).sum())(x)
    agree((gradient * direction).sum(), numeric.sum(), "the gradient by torch.func.grad, along a direction", 1e-5)
    agree(torch.func.vmap(lambda row: run(row[None])[0])(x), expected, "row by row with torch.func.vmap")

    def loss(x: Tensor) -> Tensor:
        return run(x).tanh().sum()

    slope = torch.func.grad(loss)
    curvature = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    twice = torch.func.jvp(slope, (x,), (direction,))[1]
    agree(twice, curvature, "the curvature along a direction, by torch.func", 1e-5)
    net.set_kernel("reference")
    twice = torch.autograd.functional.vhp(loss, x, direction)[1]
    agree(twice, curvature, "the curvature along a direction, by gradients of gradients", 1e-5)
