"""Promises on sequences: caches, padding, packed documents, other rows and the future change nothing."""

import torch

from posenc.cache import GrowingCache, SlotCache
from posenc.testing.comparisons import agree
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    LONG,
    TOKENS,
    Subject,
    arange,
    chooses_heads,
    embeddings,
    far_enough,
    mask_name,
    run_chunks,
    with_gradients,
)
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.verdicts import expect


@promise
@torch.no_grad()
def a_cache_changes_nothing(subject: Subject) -> None:
    """Decoding with a growing, static or rolling KV cache equals one pass, for several chunk sizes."""
    # Without gradients, which other promises test and which take a third of the time.
    reach = subject.reach
    for kv_heads in (subject.shape.heads, 1):
        try:
            net = subject.net(kv_heads=kv_heads)
            net(embeddings(subject, 2), arange(2))
        except ValueError:
            if chooses_heads(subject):
                continue
            raise
        for kernel in net.kernels:
            net.set_kernel(kernel)
            more_cuts = ((8, 1), (1, 8), (1,) * 9) if kv_heads == subject.shape.heads else ()
            for cuts in (*more_cuts, (4, 1, 3, 1), (5, reach - 7, 1, 1)):
                T = sum(cuts)
                at, x = arange(T), embeddings(subject, T)
                expected = net(x, at, masks.causal())
                for name, cache in (("growing", GrowingCache), ("static", lambda T=T: SlotCache(T + 2))):
                    out = run_chunks(net, x, at, cuts, masks.causal(), cache)
                    agree(out, expected, f"{name} cache, {T} tokens cut {cuts}, kernel {kernel}, {kv_heads} key heads")
            # With one key head, the sequence ends when the slots have been filled three times.
            T = reach if kv_heads == subject.shape.heads else min(reach, 20)
            at, x, window = arange(T), embeddings(subject, T), masks.window(4)
            cuts = (3,) * (T // 3) + (1,) * (T % 3)
            out = run_chunks(net, x, at, cuts, window, lambda: SlotCache(4 + 3 - 1, rolling=True))
            agree(out, net(x, at, window), f"rolling cache under a window, kernel {kernel}, {kv_heads} key heads")
    # Positions that are tensors, and a prompt padded on the left that continues without padding.
    mask = torch.ones(2, TOKENS)
    mask[0, :3] = 0
    net = subject.net()
    prompt, x = far_enough(Positions.padded(mask)), embeddings(subject, TOKENS + 3)
    for name, cache in (("growing", GrowingCache), ("static", lambda: SlotCache(TOKENS + 3))):
        caches = [cache() for _ in net.layers]
        out, at = [net(x[:, :TOKENS], prompt, masks.causal(), caches)], prompt
        for t in range(TOKENS, TOKENS + 3):
            at = at.next()
            out.append(net(x[:, t : t + 1], at, masks.causal(), caches))
        for row, start in ((0, 3), (1, 0)):
            alone = x[row : row + 1, start:]
            expected = net(alone, arange(alone.shape[1]), masks.causal())
            agree(torch.cat(out, 1)[row : row + 1, start:], expected, f"{name} cache behind left padding, row {row}")
    loose = Positions.of(arange(TOKENS).coords[..., 0]).with_horizon(LONG)
    x = embeddings(subject, TOKENS)
    for cache in (GrowingCache, lambda: SlotCache(TOKENS)):
        label = "cut positions given as tensors"
        agree(run_chunks(net, x, loose, (2, 3, 4), masks.causal(), cache), net(x, loose, masks.causal()), label)


@promise
def left_padding_changes_nothing(subject: Subject) -> None:
    """A padded row equals the row alone, wherever its padding is and whatever the padding contains."""
    net = subject.net()
    padding = torch.ones(3, TOKENS)
    padding[0, :4] = 0
    padding[1, [0, 1, 5, 8]] = 0
    x = embeddings(subject, TOKENS, batch=3)
    # Padding is large and differs in each channel: a constant might close every gate that reads it.
    x = torch.where(padding[..., None] == 0, 40 * embeddings(subject, TOKENS, batch=3, seed=1), x)
    at = far_enough(Positions.padded(padding))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            together = with_gradients(net.set_kernel(kernel), x, at, mask, rows=padding)
            for row in range(3):
                real = padding[row] == 1
                alone = with_gradients(net, x[row : row + 1, real], arange(int(real.sum())), mask)
                label = f"row {row} of a padded batch, {mask_name(mask)}, kernel {kernel}"
                agree(together["output"][row : row + 1, real], alone["output"], label)
                agree(together["gradient of x"][row : row + 1, real], alone["gradient of x"], f"{label}, gradient")
    empty = far_enough(Positions.padded(torch.zeros(1, 4)))
    finite = net(embeddings(subject, 4, batch=1), empty, masks.causal()).isfinite().all()
    expect(bool(finite), "a row that is nothing but padding gives NaN; it has to give finite numbers")


@promise
def packing_changes_nothing(subject: Subject) -> None:
    """Documents packed into one row equal each document alone."""
    net, lengths = subject.net(), [4, 1, 9, 3]
    x = embeddings(subject, sum(lengths))
    at = far_enough(Positions.packed(lengths))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            packed, start = net.set_kernel(kernel)(x, at, mask), 0
            for document, n in enumerate(lengths):
                piece = slice(start, start + n)
                start += n
                label = f"document {document} of a packed row, {mask_name(mask)}, kernel {kernel}"
                agree(packed[:, piece], net(x[:, piece], arange(n), mask), label)
    # A packed row goes through a cache too, its cuts across the borders of documents.
    for cache in (GrowingCache, lambda: SlotCache(sum(lengths))):
        label = "a packed row through a cache"
        agree(run_chunks(net, x, at, (3, 4, 1, 9), masks.causal(), cache), net(x, at, masks.causal()), label)


@promise
def a_neighbour_in_the_batch_changes_nothing(subject: Subject) -> None:
    """A row of a batch equals the row alone, whatever positions, padding and horizon the other rows have."""
    net, T, end = subject.net(), TOKENS, subject.shape.max_len
    coords = torch.stack((torch.arange(T), torch.arange(T) + end - T, torch.arange(T).flip(0) * 2)).clamp(max=end - 1)
    order = torch.arange(T).repeat(3, 1)
    order[1, :2] = -1
    order[1, 2:] -= 2
    document = torch.tensor([[0] * T, [0] * T, [0] * 5 + [1] * (T - 5)])
    horizon = torch.tensor([end, LONG, 2 * LONG])
    at = Positions(coords[..., None], order, document, horizon)
    x = embeddings(subject, T, batch=3)
    for mask in (masks.causal(), masks.bidirectional()):
        for kernel in net.kernels:
            together = net.set_kernel(kernel)(x, at, mask)
            for row in range(3):
                pick = slice(row, row + 1)
                alone = net(x[pick], Positions(coords[pick, :, None], order[pick], document[pick], horizon[pick]), mask)
                real = order[row] >= 0
                label = f"row {row} beside other rows, {mask_name(mask)}, kernel {kernel}"
                agree(together[pick, real], alone[:, real], label)
            swap = torch.tensor([2, 0, 1])
            there = Positions(coords[swap, :, None], order[swap], document[swap], horizon[swap])
            real = order[swap] >= 0
            label = f"rows in another order, {mask_name(mask)}, kernel {kernel}"
            agree(net(x[swap], there, mask)[real], together[swap][real], label)


@promise
def the_future_is_invisible(subject: Subject) -> None:
    """Under a causal mask or layer, no token depends on a later one or on its presence."""
    net, reach = subject.net(), subject.reach
    for T in (TOKENS, reach):
        x, at = embeddings(subject, T), arange(T)
        for kernel in net.kernels:
            net.set_kernel(kernel)
            whole = net(x, at, masks.causal())
            for cut in (1, T // 2, T - 1):
                changed_x = torch.cat((x[:, :cut], 7 - 3 * x[:, cut:]), 1)
                label = f"tokens from {cut} on were changed, kernel {kernel}"
                agree(net(changed_x, at, masks.causal())[:, :cut], whole[:, :cut], label)
                first = net(x[:, :cut], arange(cut), masks.causal())
                agree(first, whole[:, :cut], f"only the first {cut} of {T} tokens were given, kernel {kernel}")
                leaf = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(net(leaf, at, masks.causal())[:, :cut].sum(), leaf)
                label = f"gradient of the first {cut} outputs in later tokens, kernel {kernel}"
                agree(slope[:, cut:], torch.zeros_like(slope[:, cut:]), label)
    # `order` decides what is earlier, not the index in the tensor or the coordinates.
    shuffle = torch.tensor([5, 0, 3, 8, 1, 7, 2, 6, 4])
    x, at = embeddings(subject, TOKENS), arange(TOKENS)
    shuffled_at = Positions(at.coords[:, shuffle], at.order[:, shuffle], horizon=at.horizon)
    for kernel in net.kernels:
        expected = net.set_kernel(kernel)(x, at, masks.causal())[:, shuffle]
        label = f"the same tokens in another place of the tensor, kernel {kernel}"
        agree(net(x[:, shuffle], shuffled_at, masks.causal()), expected, label)
        causal_x, windowed_x = net(x, at, masks.causal()), net(x, at, masks.window(3))
        for layer in net.attentions:
            layer.causal = True
        agree(net(x, at), causal_x, f"a causal layer without a mask, kernel {kernel}")
        agree(net(x, at, masks.window(3, causal=False)), windowed_x, f"a causal layer with a window, kernel {kernel}")
        for layer in net.attentions:
            layer.causal = False
