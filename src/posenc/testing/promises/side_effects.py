"""Promises on side effects: earlier calls, other encodings, casts and copies change nothing."""

import copy
import io

import torch
from torch import Tensor

from posenc.cache import GrowingCache
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import index_grids
from posenc.model.seeding import local_seed
from posenc.testing.comparisons import agree, agree_nearly
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    TOKENS,
    Net,
    Subject,
    arange,
    embeddings,
    far_positions,
    on_axes,
    run_chunks,
    with_gradients,
)
from posenc.testing.variants import siblings
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.verdicts import expect


@promise
def the_order_of_calls_changes_nothing(subject: Subject) -> None:
    """An encoding that was called before equals a fresh one, whatever the calls were."""
    reach, far = subject.reach, far_positions(subject)
    shared_at = arange(TOKENS)

    def call(net: Net, kind: int) -> Tensor:
        if kind == 0:
            return net(embeddings(subject, TOKENS), shared_at, masks.causal())
        if kind == 1:
            return net(embeddings(subject, reach), arange(reach), masks.bidirectional())
        if kind == 2:
            return net(embeddings(subject, 1), arange(1, 4), masks.causal())
        if kind == 3:
            with torch.inference_mode():
                return net(embeddings(subject, TOKENS), shared_at, masks.bidirectional()).clone()
        if kind == 4:
            output = net.float()(embeddings(subject, TOKENS).float(), shared_at, masks.causal())
            net.double()
            return output
        if kind == 5:
            return run_chunks(net, embeddings(subject, TOKENS), arange(TOKENS), (4, 5), masks.causal(), GrowingCache)
        return net(embeddings(subject, far.tokens, batch=1), far, masks.bidirectional())

    # Round to float32 and back once, so that a used network and a fresh one have the same parameters.
    fresh = [call(subject.net().float().double(), number) for number in range(7)]
    for seed in range(3):
        called_net = subject.net().float().double()
        with local_seed(seed):
            sequence = torch.randperm(14).remainder(7).tolist()
        for step, number in enumerate(sequence):
            tolerance = 1e-5 if number == 4 else 1e-10
            agree(call(called_net, number), fresh[number], f"call {number} after calls {sequence[:step]}", tolerance)


@promise
def others_of_its_kind_change_nothing(subject: Subject) -> None:
    """Encodings that differ in one option do not affect each other, on shared positions and in several dtypes."""
    family = [subject, *siblings(subject)]
    # By the number of axes.
    shared_positions: dict[int, Positions] = {}

    def call(net: Net, dtype: torch.dtype, places: dict[int, Positions]) -> Tensor:
        at = places.setdefault(net.axes, on_axes(arange(TOKENS), net.axes))
        return net.to(dtype)(embeddings(subject, TOKENS, batch=1).to(dtype), at, masks.causal())

    turns = [(member, dtype) for dtype in (torch.float32, torch.float64) for member in family]
    with torch.no_grad():
        actual = [call(member.net(), dtype, shared_positions) for member, dtype in turns]
        for (member, dtype), output in zip(turns, actual, strict=True):
            alone = call(member.net().without_kept_tables(), dtype, {})
            label = f"{member} in {dtype}, after others on the same positions"
            agree(output, alone, label, 1e-5 if dtype == torch.float32 else 1e-10)


@promise
def casts_and_copies_change_nothing(subject: Subject) -> None:
    """Casts, autocast, meta, deepcopy, saving, and inference mode before training change nothing."""
    at, x = arange(subject.reach), embeddings(subject, subject.reach)
    net = subject.net()
    expected = net(x, at, masks.causal())

    extra = sorted(net.state_dict().keys() - dict(net.named_parameters()).keys())
    expect(not extra, f"the state holds {extra}, which are no parameters; what can be derived is computed, not kept")
    agree(copy.deepcopy(net)(x, at, masks.causal()), expected, "a deep copy")

    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded_net = subject.net(seed=2)
    loaded_net.load_state_dict(torch.load(file))
    agree(loaded_net(x, at, masks.causal()), expected, "saved and loaded into a fresh one")

    with torch.device("meta"):
        empty = Net(*subject.build(), subject.shape).double().eval()
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    agree(empty(x, at, masks.causal()), expected, "built on meta, made real, and loaded")

    for dtype in (torch.bfloat16, torch.float16):
        # A cast may round the parameters, and nothing else.
        rounded_net = subject.net(seed=2)
        rounded_net.load_state_dict({name: value.to(dtype).double() for name, value in net.state_dict().items()})
        back = copy.deepcopy(net).to(dtype).double()
        agree(back(x, at, masks.causal()), rounded_net(x, at, masks.causal()), f"to {dtype} and back")

    for name, actual in door_outputs(net, subject, arange(at.tokens)):
        right = name == "by_distance" or actual.dtype == torch.float32
        expect(right, f"{name}, float32 given, parameters in double: {actual.dtype} came out")

    single = copy.deepcopy(net).float()
    with torch.autocast("cpu", torch.bfloat16):
        agree_nearly(single(x.float(), at, masks.causal()), expected, "under autocast", torch.bfloat16)
        cast_outputs = door_outputs(single, subject, arange(at.tokens))
    for (name, actual), (_, plain) in zip(cast_outputs, door_outputs(single, subject, arange(at.tokens)), strict=True):
        agree(actual, plain, f"{name} under autocast, float32 given", 1e-6)

    for grad in (torch.inference_mode(), torch.no_grad()):
        copied_net = copy.deepcopy(net)
        with grad:
            copied_net(x, at, masks.causal())
        actual, fresh = (with_gradients(copied_net, x, at, masks.causal()), with_gradients(net, x, at, masks.causal()))
        for label, value in fresh.items():
            agree(actual[label], value, f"training after {type(grad).__name__}, {label}")


def door_outputs(net: Net, subject: Subject, at: Positions) -> list[tuple[str, Tensor]]:
    """Return the outputs of doors 1 to 3 for float32 input, with their names. Door 3's matrix products are left out."""
    shape, outputs, at = subject.shape, [], on_axes(at, net.axes)
    with local_seed(6), torch.no_grad():
        q = torch.randn(2, shape.heads, at.tokens, shape.head_dim)
        x = torch.randn(2, at.tokens, shape.dim)
    for encoding in net.layer_encodings:
        outputs += [("embed", encoding.embed(x, at)), ("query", encoding.query(q, at)), ("key", encoding.key(q, at))]
        if "by_distance" in encoding.doors and "biases" not in encoding.doors:
            delta = torch.arange(-5, 70)
            values = encoding.by_distance(delta if encoding.axes == 1 else delta[:, None].expand(-1, net.axes))
            assert values is not None
            outputs.append(("by_distance", values))
    return outputs


@promise
def nothing_given_is_changed(subject: Subject) -> None:
    """No input tensor, parameter or random state is changed, and inputs may have any strides."""
    net = subject.net()
    at, shape = on_axes(arange(TOKENS), net.axes), subject.shape
    with local_seed(3):
        heads = torch.randn(2, TOKENS, shape.heads, shape.head_dim, dtype=torch.float64)
    x = embeddings(subject, TOKENS)
    inputs = {"x": x, "q": heads, "coords": at.coords, "order": at.order, **dict(net.named_parameters())}
    copies_before = {name: tensor.detach().clone() for name, tensor in inputs.items()}
    random = torch.get_rng_state()
    for encoding in net.layer_encodings:
        q = heads.transpose(1, 2)  # [B, H, T, D], not contiguous
        outputs = encoding.query(q, at), encoding.key(q, at), encoding.embed(x, at)
        biases = [] if "remember" in encoding.doors else encoding.biases(q, at, Keys(q, q, at))
        for modify in (bias.closure() for bias in biases):
            score = torch.zeros(2, shape.heads, TOKENS, TOKENS, dtype=torch.float64)
            modify(score, *index_grids(score))
            expect(bool((score == 0).all()), f"a bias of {encoding} changes the scores it was given")
        check_unchanged(inputs, copies_before)
        row, wide = q.contiguous(), x.transpose(0, 1).contiguous().transpose(0, 1)
        for door, output, view in zip(("query", "key", "embed"), outputs, (row, row, wide), strict=True):
            agree(getattr(encoding, door)(view, at), output, f"{door} of {encoding} with other strides")
    for kernel in net.kernels:
        net.set_kernel(kernel)(x, at, masks.causal())
    check_unchanged(inputs, copies_before)
    words = "the global random state was used; draw from a generator with a seed of your own"
    expect(torch.get_rng_state().equal(random), words)

    # A growing cache returns its own tensors: the next step must not write into them.
    caches = [GrowingCache() for _ in net.layers]
    net(x, at, masks.causal(), caches)
    old = [cache.keys for cache in caches if cache.keys is not None]
    copies = [keys.k.clone() for keys in old]
    net(x[:, :2], arange(2, TOKENS), masks.causal(), caches)
    for keys, old_k in zip(old, copies, strict=True):
        agree(keys.k, old_k, "the keys of an earlier step")


def check_unchanged(inputs: dict[str, Tensor], copies: dict[str, Tensor]) -> None:
    """Raise AssertionError if a tensor differs from its earlier copy."""
    for name, tensor in inputs.items():
        expect(tensor.equal(copies[name]), f"{name} was changed in place")
