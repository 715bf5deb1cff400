"""Nothing outlives a call: the order of calls, others of a kind, casts and copies, what was given."""

import copy
import io

import torch
from torch import Tensor

from posenc.cache import GrowingCache
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import index_grids
from posenc.model.seeding import seeded
from posenc.testing.comparisons import near, same
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    TOKENS,
    Net,
    Subject,
    count,
    far_positions,
    in_chunks,
    on_axes,
    tokens,
    with_gradients,
)
from posenc.testing.variants import kin
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.verdicts import expect


@promise
def the_order_of_calls_changes_nothing(subject: Subject) -> None:
    """An encoding that was used before gives what a fresh one gives, whatever the calls before were."""
    reach, far = subject.reach, far_positions(subject)
    shared = count(TOKENS)

    def call(net: Net, which: int) -> Tensor:
        if which == 0:
            return net(tokens(subject, TOKENS), shared, masks.causal())
        if which == 1:
            return net(tokens(subject, reach), count(reach), masks.bidirectional())
        if which == 2:
            return net(tokens(subject, 1), count(1, 4), masks.causal())
        if which == 3:
            with torch.inference_mode():
                return net(tokens(subject, TOKENS), shared, masks.bidirectional()).clone()
        if which == 4:
            out = net.float()(tokens(subject, TOKENS).float(), shared, masks.causal())
            net.double()
            return out
        if which == 5:
            return in_chunks(net, tokens(subject, TOKENS), count(TOKENS), (4, 5), masks.causal(), GrowingCache)
        return net(tokens(subject, far.tokens, batch=1), far, masks.bidirectional())

    # Through float32 and back once, so that a used network and a fresh one hold the same numbers.
    fresh = [call(subject.net().float().double(), which) for which in range(7)]
    for seed in range(3):
        used = subject.net().float().double()
        with seeded(seed):
            sequence = torch.randperm(14).remainder(7).tolist()
        for step, which in enumerate(sequence):
            tolerance = 1e-5 if which == 4 else 1e-10
            same(call(used, which), fresh[which], f"call {which} after calls {sequence[:step]}", tolerance)


@promise
def others_of_its_kind_change_nothing(subject: Subject) -> None:
    """Encodings that differ in one option, in turns on the positions that they share and in several dtypes, give what
    each gives alone."""
    family = [subject, *kin(subject)]
    # By how many coordinates they read: positions on as many axes are shared.
    shared: dict[int, Positions] = {}

    def call(net: Net, dtype: torch.dtype, places: dict[int, Positions]) -> Tensor:
        at = places.setdefault(net.axes, on_axes(count(TOKENS), net.axes))
        return net.to(dtype)(tokens(subject, TOKENS, batch=1).to(dtype), at, masks.causal())

    turns = [(one, dtype) for dtype in (torch.float32, torch.float64) for one in family]
    with torch.no_grad():
        got = [call(one.net(), dtype, shared) for one, dtype in turns]
        for (one, dtype), given in zip(turns, got, strict=True):
            alone = call(one.net().apart(), dtype, {})
            what = f"{one} in {dtype}, after others on the same positions"
            same(given, alone, what, 1e-5 if dtype == torch.float32 else 1e-10)


@promise
def casts_and_copies_change_nothing(subject: Subject) -> None:
    """Casts, autocast, meta, deepcopy, saving, and inference mode before training leave an encoding what it is."""
    at, x = count(subject.reach), tokens(subject, subject.reach)
    net = subject.net()
    expected = net(x, at, masks.causal())

    extra = sorted(net.state_dict().keys() - dict(net.named_parameters()).keys())
    expect(not extra, f"the state holds {extra}, which are no parameters; what can be derived is computed, not kept")
    same(copy.deepcopy(net)(x, at, masks.causal()), expected, "a deep copy")

    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = subject.net(seed=2)
    other.load_state_dict(torch.load(file))
    same(other(x, at, masks.causal()), expected, "saved and loaded into a fresh one")

    with torch.device("meta"):
        empty = Net(*subject.build(), subject.shape).double().eval()
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    same(empty(x, at, masks.causal()), expected, "built on meta, made real, and loaded")

    for dtype in (torch.bfloat16, torch.float16):
        # What a cast may change is the rounding of the parameters, and nothing else.
        rounded = subject.net(seed=2)
        rounded.load_state_dict({name: value.to(dtype).double() for name, value in net.state_dict().items()})
        back = copy.deepcopy(net).to(dtype).double()
        same(back(x, at, masks.causal()), rounded(x, at, masks.causal()), f"to {dtype} and back")

    for name, got in doors(net, subject, count(at.tokens)):
        right = name == "by_distance" or got.dtype == torch.float32
        expect(right, f"{name}, float32 given, parameters in double: {got.dtype} came out")

    single = copy.deepcopy(net).float()
    with torch.autocast("cpu", torch.bfloat16):
        near(single(x.float(), at, masks.causal()), expected, "under autocast", torch.bfloat16)
        inside = doors(single, subject, count(at.tokens))
    for (name, got), (_, outside) in zip(inside, doors(single, subject, count(at.tokens)), strict=True):
        same(got, outside, f"{name} under autocast, float32 given", 1e-6)

    for grad in (torch.inference_mode(), torch.no_grad()):
        used = copy.deepcopy(net)
        with grad:
            used(x, at, masks.causal())
        got, fresh = with_gradients(used, x, at, masks.causal()), with_gradients(net, x, at, masks.causal())
        for what, value in fresh.items():
            same(got[what], value, f"training after {type(grad).__name__}, {what}")


def doors(net: Net, subject: Subject, at: Positions) -> list[tuple[str, Tensor]]:
    """What doors 1 to 3 give for float32 input, each with its name; door 3 only where no matrix product is inside."""
    shape, out, at = subject.shape, [], on_axes(at, net.axes)
    with seeded(6), torch.no_grad():
        q = torch.randn(2, shape.heads, at.tokens, shape.head_dim)
        x = torch.randn(2, at.tokens, shape.dim)
    for encoding in net.used:
        out += [("embed", encoding.embed(x, at)), ("query", encoding.query(q, at)), ("key", encoding.key(q, at))]
        if "by_distance" in encoding.doors and "biases" not in encoding.doors:
            delta = torch.arange(-5, 70)
            values = encoding.by_distance(delta if encoding.axes == 1 else delta[:, None].expand(-1, net.axes))
            assert values is not None
            out.append(("by_distance", values))
    return out


@promise
def nothing_given_is_changed(subject: Subject) -> None:
    """No tensor that is given, no parameter and no random state is changed, and any strides will do."""
    net = subject.net()
    at, shape = on_axes(count(TOKENS), net.axes), subject.shape
    with seeded(3):
        given = torch.randn(2, TOKENS, shape.heads, shape.head_dim, dtype=torch.float64)
    x = tokens(subject, TOKENS)
    held = {"x": x, "q": given, "coords": at.coords, "order": at.order, **dict(net.named_parameters())}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    random = torch.get_rng_state()
    for encoding in net.used:
        q = given.transpose(1, 2)  # [B, H, T, D], not contiguous
        turned = encoding.query(q, at), encoding.key(q, at), encoding.embed(x, at)
        biases = [] if "remember" in encoding.doors else encoding.biases(q, at, Keys(q, q, at))
        for modify in (bias.closure() for bias in biases):
            score = torch.zeros(2, shape.heads, TOKENS, TOKENS, dtype=torch.float64)
            modify(score, *index_grids(score))
            expect(bool((score == 0).all()), f"a bias of {encoding} changes the scores it was given")
        unchanged(held, before)
        row, wide = q.contiguous(), x.transpose(0, 1).contiguous().transpose(0, 1)
        for door, got, one in zip(("query", "key", "embed"), turned, (row, row, wide), strict=True):
            same(getattr(encoding, door)(one, at), got, f"{door} of {encoding} with other strides")
    for kernel in net.kernels:
        net.through(kernel)(x, at, masks.causal())
    unchanged(held, before)
    words = "the global random state was used; draw from a generator with a seed of your own"
    expect(torch.get_rng_state().equal(random), words)

    # A growing cache hands out what it holds: the next step must not reach into it.
    caches = [GrowingCache() for _ in net.layers]
    net(x, at, masks.causal(), caches)
    old = [cache.keys for cache in caches if cache.keys is not None]
    copies = [keys.k.clone() for keys in old]
    net(x[:, :2], count(2, TOKENS), masks.causal(), caches)
    for keys, kept in zip(old, copies, strict=True):
        same(keys.k, kept, "the keys of an earlier step")


def unchanged(held: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """Raises AssertionError if a tensor is not what it was before."""
    for name, tensor in held.items():
        expect(tensor.equal(before[name]), f"{name} was changed in place")
