"""What stands beside a token changes nothing: caches, padding, packed documents, other rows, the future."""

import torch

from posenc.cache import GrowingCache, SlotCache
from posenc.testing.comparisons import same
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    LONG,
    TOKENS,
    Subject,
    chooses_heads,
    count,
    far_enough,
    in_chunks,
    mask_name,
    tokens,
    with_gradients,
)
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.verdicts import expect


@promise
@torch.no_grad()
def a_cache_changes_nothing(subject: Subject) -> None:
    """A KV cache gives what one pass gives: growing, static or rolling, for several ways to cut."""
    # Without gradients, as texts are generated: they are other promises' part, and take a third of the time.
    reach = subject.reach
    for kv_heads in (subject.shape.heads, 1):
        try:
            net = subject.net(kv_heads=kv_heads)
            net(tokens(subject, 2), count(2))
        except ValueError:
            if chooses_heads(subject):
                continue
            raise
        for kernel in net.kernels:
            net.through(kernel)
            several = ((8, 1), (1, 8), (1,) * 9) if kv_heads == subject.shape.heads else ()
            for cuts in (*several, (4, 1, 3, 1), (5, reach - 7, 1, 1)):
                T = sum(cuts)
                at, x = count(T), tokens(subject, T)
                expected = net(x, at, masks.causal())
                for name, cache in (("growing", GrowingCache), ("static", lambda T=T: SlotCache(T + 2))):
                    got = in_chunks(net, x, at, cuts, masks.causal(), cache)
                    same(got, expected, f"{name} cache, {T} tokens cut {cuts}, kernel {kernel}, {kv_heads} key heads")
            # With one key head, as far as the slots are filled three times over.
            T = reach if kv_heads == subject.shape.heads else min(reach, 20)
            at, x, window = count(T), tokens(subject, T), masks.window(4)
            cuts = (3,) * (T // 3) + (1,) * (T % 3)
            got = in_chunks(net, x, at, cuts, window, lambda: SlotCache(4 + 3 - 1, rolling=True))
            same(got, net(x, at, window), f"rolling cache under a window, kernel {kernel}, {kv_heads} key heads")
    # Positions that are only known as tensors, and a prompt padded on the left that goes on without padding.
    mask = torch.ones(2, TOKENS)
    mask[0, :3] = 0
    net = subject.net()
    prompt, x = far_enough(Positions.padded(mask)), tokens(subject, TOKENS + 3)
    for name, cache in (("growing", GrowingCache), ("static", lambda: SlotCache(TOKENS + 3))):
        caches = [cache() for _ in net.layers]
        got, at = [net(x[:, :TOKENS], prompt, masks.causal(), caches)], prompt
        for t in range(TOKENS, TOKENS + 3):
            at = at.next()
            got.append(net(x[:, t : t + 1], at, masks.causal(), caches))
        for row, start in ((0, 3), (1, 0)):
            alone = x[row : row + 1, start:]
            expected = net(alone, count(alone.shape[1]), masks.causal())
            same(torch.cat(got, 1)[row : row + 1, start:], expected, f"{name} cache behind left padding, row {row}")
    loose = Positions.of(count(TOKENS).coords[..., 0]).with_horizon(LONG)
    x = tokens(subject, TOKENS)
    for cache in (GrowingCache, lambda: SlotCache(TOKENS)):
        what = "cut positions given as tensors"
        same(in_chunks(net, x, loose, (2, 3, 4), masks.causal(), cache), net(x, loose, masks.causal()), what)


@promise
def left_padding_changes_nothing(subject: Subject) -> None:
    """A row gives what it gives alone, wherever its padding stands and whatever the padding holds."""
    net = subject.net()
    padding = torch.ones(3, TOKENS)
    padding[0, :4] = 0
    padding[1, [0, 1, 5, 8]] = 0
    x = tokens(subject, TOKENS, batch=3)
    # Large and different in every channel: constant padding might close every gate that reads it.
    x = torch.where(padding[..., None] == 0, 40 * tokens(subject, TOKENS, batch=3, seed=1), x)
    at = far_enough(Positions.padded(padding))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            together = with_gradients(net.through(kernel), x, at, mask, rows=padding)
            for row in range(3):
                real = padding[row] == 1
                alone = with_gradients(net, x[row : row + 1, real], count(int(real.sum())), mask)
                what = f"row {row} of a padded batch, {mask_name(mask)}, kernel {kernel}"
                same(together["output"][row : row + 1, real], alone["output"], what)
                same(together["gradient of x"][row : row + 1, real], alone["gradient of x"], f"{what}, gradient")
    empty = far_enough(Positions.padded(torch.zeros(1, 4)))
    finite = net(tokens(subject, 4, batch=1), empty, masks.causal()).isfinite().all()
    expect(bool(finite), "a row that is nothing but padding gives NaN; it has to give finite numbers")


@promise
def packing_changes_nothing(subject: Subject) -> None:
    """Documents packed behind one another give what each gives alone."""
    net, lengths = subject.net(), [4, 1, 9, 3]
    x = tokens(subject, sum(lengths))
    at = far_enough(Positions.packed(lengths))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            packed, start = net.through(kernel)(x, at, mask), 0
            for document, n in enumerate(lengths):
                piece = slice(start, start + n)
                start += n
                what = f"document {document} of a packed row, {mask_name(mask)}, kernel {kernel}"
                same(packed[:, piece], net(x[:, piece], count(n), mask), what)
    # A packed row goes through a cache too, its cuts across the borders of documents.
    for cache in (GrowingCache, lambda: SlotCache(sum(lengths))):
        what = "a packed row through a cache"
        same(in_chunks(net, x, at, (3, 4, 1, 9), masks.causal(), cache), net(x, at, masks.causal()), what)


@promise
def a_neighbour_in_the_batch_changes_nothing(subject: Subject) -> None:
    """A row gives what it gives alone, whatever positions, padding and horizon its neighbours have."""
    net, T, end = subject.net(), TOKENS, subject.shape.max_len
    coords = torch.stack((torch.arange(T), torch.arange(T) + end - T, torch.arange(T).flip(0) * 2)).clamp(max=end - 1)
    order = torch.arange(T).repeat(3, 1)
    order[1, :2] = -1
    order[1, 2:] -= 2
    document = torch.tensor([[0] * T, [0] * T, [0] * 5 + [1] * (T - 5)])
    horizon = torch.tensor([end, LONG, 2 * LONG])
    at = Positions(coords[..., None], order, document, horizon)
    x = tokens(subject, T, batch=3)
    for mask in (masks.causal(), masks.bidirectional()):
        for kernel in net.kernels:
            together = net.through(kernel)(x, at, mask)
            for row in range(3):
                one = slice(row, row + 1)
                alone = net(x[one], Positions(coords[one, :, None], order[one], document[one], horizon[one]), mask)
                real = order[row] >= 0
                what = f"row {row} beside other rows, {mask_name(mask)}, kernel {kernel}"
                same(together[one, real], alone[:, real], what)
            moved = torch.tensor([2, 0, 1])
            there = Positions(coords[moved, :, None], order[moved], document[moved], horizon[moved])
            real = order[moved] >= 0
            what = f"rows in another order, {mask_name(mask)}, kernel {kernel}"
            same(net(x[moved], there, mask)[real], together[moved][real], what)


@promise
def the_future_is_invisible(subject: Subject) -> None:
    """Under a causal mask, or in a causal layer, no token reads a later one, or is changed by whether one is there."""
    net, reach = subject.net(), subject.reach
    for T in (TOKENS, reach):
        x, at = tokens(subject, T), count(T)
        for kernel in net.kernels:
            net.through(kernel)
            whole = net(x, at, masks.causal())
            for cut in (1, T // 2, T - 1):
                other = torch.cat((x[:, :cut], 7 - 3 * x[:, cut:]), 1)
                what = f"tokens from {cut} on were changed, kernel {kernel}"
                same(net(other, at, masks.causal())[:, :cut], whole[:, :cut], what)
                first = net(x[:, :cut], count(cut), masks.causal())
                same(first, whole[:, :cut], f"only the first {cut} of {T} tokens were given, kernel {kernel}")
                given = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(net(given, at, masks.causal())[:, :cut].sum(), given)
                what = f"gradient of the first {cut} outputs in later tokens, kernel {kernel}"
                same(slope[:, cut:], torch.zeros_like(slope[:, cut:]), what)
    # Earlier and later go by order, wherever the tokens stand in the tensor and whatever their coordinates are.
    shuffle = torch.tensor([5, 0, 3, 8, 1, 7, 2, 6, 4])
    x, at = tokens(subject, TOKENS), count(TOKENS)
    shuffled = Positions(at.coords[:, shuffle], at.order[:, shuffle], horizon=at.horizon)
    for kernel in net.kernels:
        expected = net.through(kernel)(x, at, masks.causal())[:, shuffle]
        what = f"the same tokens in another place of the tensor, kernel {kernel}"
        same(net(x[:, shuffle], shuffled, masks.causal()), expected, what)
        masked, windowed = net(x, at, masks.causal()), net(x, at, masks.window(3))
        for layer in net.attentions:
            layer.causal = True
        same(net(x, at), masked, f"a causal layer without a mask, kernel {kernel}")
        same(net(x, at, masks.window(3, causal=False)), windowed, f"a causal layer with a window, kernel {kernel}")
        for layer in net.attentions:
            layer.causal = False
