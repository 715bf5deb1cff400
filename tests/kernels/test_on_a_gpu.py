"""Every encoding gives its CPU results in every GPU kernel; skipped without a GPU."""

import copy

import pytest
import torch
from tiers import variants

from posenc import catalogue, kernels, masks
from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.encoding.base import Shape
from posenc.testing import Subject, agree, arange, embeddings, run_chunks
from posenc.testing.comparisons import agree_in_angle, agree_nearly
from posenc.testing.subjects import Net, far_enough, mask_name, some_positions, with_gradients
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

DEVICE = "cuda"
SUMS = ("rotary + alibi", "on(rotary, heads=(0, 2))", "rotary + forgetting + step_temperature(interval=7)")
SUBJECTS = [*(Subject(spec) for name in catalogue.names() for spec in variants(name)[:2]), *map(Subject, SUMS)]

TOLERANCE = 1e-9
"""In float64, orders of sums, roots and exponentials differ in their last digits."""


def on_device(net: Net) -> Net:
    return copy.deepcopy(net).to(DEVICE)


def able_kernels(net: Net) -> list[str]:
    """Return the kernels that run on a GPU with gradients; FlexAttention has no float64."""
    q = torch.empty(1, net.shape.heads, 1, net.shape.head_dim, dtype=torch.float64, device=DEVICE, requires_grad=True)
    able = [name for name in kernels.KERNELS if all(kernels.why_not(name, e, q=q) is None for e in net.layer_encodings)]
    return [name for name in able if name != "flex"]


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_values_and_gradients_are_those_of_a_cpu(subject: Subject) -> None:
    net = subject.net()
    gpu_net = on_device(net)
    padding = torch.ones(2, 9).index_put_((torch.tensor(1), torch.tensor([0, 1, 4])), torch.tensor(0.0))
    cases = [(name, at, masks.causal()) for name, at in some_positions(subject) if subject.serves(at)]
    cases += [
        ("bidirectional", arange(9), masks.bidirectional()),
        ("window", arange(9), masks.window(3)),
        ("packed", far_enough(Positions.packed([4, 5])), masks.causal()),
        ("padded", far_enough(Positions.padded(padding)), masks.causal()),
    ]
    assert "reference" in able_kernels(gpu_net)
    for name, at, mask in cases:
        x = embeddings(subject, at.tokens)
        expected = with_gradients(net.set_kernel("reference"), x, at, mask)
        for kernel in able_kernels(gpu_net):
            actual = with_gradients(gpu_net.set_kernel(kernel), x.to(DEVICE), at.to(DEVICE), mask)
            assert actual.keys() == expected.keys()
            for part, value in expected.items():
                assert actual[part].device.type == DEVICE
                agree(actual[part].cpu(), value, f"{name}, kernel {kernel}, {part}", TOLERANCE)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_tokens_come_one_by_one_as_on_a_cpu(subject: Subject) -> None:
    net, T = subject.net(), 12
    gpu_net, x, at = on_device(net), embeddings(subject, T), arange(T)

    def rolling() -> LayerCache:
        return SlotCache(6, rolling=True)

    with torch.no_grad():
        for mask, cache in (
            (masks.causal(), GrowingCache),
            (masks.causal(), lambda: SlotCache(T)),
            (masks.window(4), rolling),
        ):
            expected = net(x, at, mask)
            actual = run_chunks(gpu_net, x.to(DEVICE), at.to(DEVICE), (3, *(1,) * (T - 3)), mask, cache)
            agree(actual.cpu(), expected, f"{mask}, {cache}", TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_half_precision_stays_near_double(subject: Subject, dtype: torch.dtype) -> None:
    net = subject.net().to(dtype)
    exact, gpu_net = copy.deepcopy(net).double(), on_device(net)
    with torch.no_grad():
        for at in (arange(9), arange(subject.reach)):
            x = embeddings(subject, at.tokens).to(dtype)
            actual = gpu_net(x.to(DEVICE), at.to(DEVICE), masks.causal())
            assert actual.dtype == dtype
            agree_nearly(actual.cpu(), exact(x.double(), at, masks.causal()), f"{at.tokens} tokens")


WIDE = Shape(dim=128, heads=2, head_dim=64, max_len=192)
"""Sizes that the fused GPU kernels support."""


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(70), masks.bidirectional()], ids=mask_name)
@pytest.mark.parametrize("name", catalogue.names())
def test_half_precision_of_usual_widths_stays_near_double(name: str, mask: Mask) -> None:
    subject = Subject(name, WIDE)
    net = subject.net().to(torch.bfloat16)
    exact, gpu_net, at = copy.deepcopy(net).double(), on_device(net), arange(WIDE.max_len)
    x = embeddings(subject, at.tokens).to(torch.bfloat16)
    expected = with_gradients(exact, x.double(), at, mask)
    for kernel in able_kernels(gpu_net):
        actual = with_gradients(gpu_net.set_kernel(kernel), x.to(DEVICE), at.to(DEVICE), mask)
        agree_nearly(actual["output"].cpu(), expected["output"], f"kernel {kernel}")
        for part, slope in expected.items():
            agree_in_angle(actual[part].cpu(), slope, f"{part}, kernel {kernel}")


@pytest.mark.parametrize("name", catalogue.names())
def test_compiled_it_gives_the_same(name: str) -> None:
    subject = Subject(name)
    gpu_net = on_device(subject.net()).float()
    torch._dynamo.reset()
    graph = torch.compile(gpu_net, fullgraph=True)
    for T in (9, 13):
        x = embeddings(subject, T).to(DEVICE, torch.float32)
        # Matrix products may use TF32.
        agree(graph(x, None, masks.causal()).cpu(), gpu_net(x, None, masks.causal()).cpu(), f"{T} tokens", 5e-3)
