"""On a GPU every encoding gives what it gives on a CPU, in every kernel that serves it there; skipped where none is."""

import copy

import pytest
import torch
from tiers import variants

from posenc import catalogue, kernels, masks
from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.encoding.base import Shape
from posenc.testing import Subject, count, in_chunks, same, tokens
from posenc.testing.comparisons import alike, near
from posenc.testing.subjects import Net, far_enough, mask_name, some_positions, with_gradients
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

DEVICE = "cuda"
JOINED = ("rotary + alibi", "on(rotary, heads=(0, 2))", "rotary + forgetting + step_temperature(interval=7)")
SUBJECTS = [*(Subject(spec) for name in catalogue.names() for spec in variants(name)[:2]), *map(Subject, JOINED)]

TOLERANCE = 1e-9
"""Of float64: other orders of sums, and other roots and exponentials, in their last digits."""


def there(net: Net) -> Net:
    return copy.deepcopy(net).to(DEVICE)


def served(net: Net) -> list[str]:
    """The kernels that take a GPU's tensors with gradients; FlexAttention has no float64."""
    q = torch.empty(1, net.shape.heads, 1, net.shape.head_dim, dtype=torch.float64, device=DEVICE, requires_grad=True)
    able = [name for name in kernels.KERNELS if all(kernels.why_not(name, one, q=q) is None for one in net.used)]
    return [name for name in able if name != "flex"]


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_values_and_gradients_are_those_of_a_cpu(subject: Subject) -> None:
    net = subject.net()
    other = there(net)
    padding = torch.ones(2, 9).index_put_((torch.tensor(1), torch.tensor([0, 1, 4])), torch.tensor(0.0))
    placed = [(name, at, masks.causal()) for name, at in some_positions(subject) if subject.serves(at)]
    placed += [
        ("bidirectional", count(9), masks.bidirectional()),
        ("window", count(9), masks.window(3)),
        ("packed", far_enough(Positions.packed([4, 5])), masks.causal()),
        ("padded", far_enough(Positions.padded(padding)), masks.causal()),
    ]
    assert "reference" in served(other)
    for name, at, mask in placed:
        x = tokens(subject, at.tokens)
        expected = with_gradients(net.through("reference"), x, at, mask)
        for kernel in served(other):
            got = with_gradients(other.through(kernel), x.to(DEVICE), at.to(DEVICE), mask)
            assert got.keys() == expected.keys()
            for what, value in expected.items():
                assert got[what].device.type == DEVICE
                same(got[what].cpu(), value, f"{name}, kernel {kernel}, {what}", TOLERANCE)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_tokens_come_one_by_one_as_on_a_cpu(subject: Subject) -> None:
    net, T = subject.net(), 12
    other, x, at = there(net), tokens(subject, T), count(T)

    def rolling() -> LayerCache:
        return SlotCache(6, rolling=True)

    with torch.no_grad():
        for mask, cache in (
            (masks.causal(), GrowingCache),
            (masks.causal(), lambda: SlotCache(T)),
            (masks.window(4), rolling),
        ):
            expected = net(x, at, mask)
            got = in_chunks(other, x.to(DEVICE), at.to(DEVICE), (3, *(1,) * (T - 3)), mask, cache)
            same(got.cpu(), expected, f"{mask}, {cache}", TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_half_precision_stays_near_double(subject: Subject, dtype: torch.dtype) -> None:
    net = subject.net().to(dtype)
    exact, other = copy.deepcopy(net).double(), there(net)
    with torch.no_grad():
        for at in (count(9), count(subject.reach)):
            x = tokens(subject, at.tokens).to(dtype)
            got = other(x.to(DEVICE), at.to(DEVICE), masks.causal())
            assert got.dtype == dtype
            near(got.cpu(), exact(x.double(), at, masks.causal()), f"{at.tokens} tokens")


WIDE = Shape(dim=128, heads=2, head_dim=64, max_len=192)
"""What the fused kernels of a GPU take."""


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(70), masks.bidirectional()], ids=mask_name)
@pytest.mark.parametrize("name", catalogue.names())
def test_half_precision_of_usual_widths_stays_near_double(name: str, mask: Mask) -> None:
    subject = Subject(name, WIDE)
    net = subject.net().to(torch.bfloat16)
    exact, other, at = copy.deepcopy(net).double(), there(net), count(WIDE.max_len)
    x = tokens(subject, at.tokens).to(torch.bfloat16)
    expected = with_gradients(exact, x.double(), at, mask)
    for kernel in served(other):
        got = with_gradients(other.through(kernel), x.to(DEVICE), at.to(DEVICE), mask)
        near(got["output"].cpu(), expected["output"], f"kernel {kernel}")
        for what, slope in expected.items():
            alike(got[what].cpu(), slope, f"{what}, kernel {kernel}")


@pytest.mark.parametrize("name", catalogue.names())
def test_compiled_it_gives_the_same(name: str) -> None:
    subject = Subject(name)
    other = there(subject.net()).float()
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True)
    for T in (9, 13):
        x = tokens(subject, T).to(DEVICE, torch.float32)
        # Matrix products may be taken in TF32.
        same(compiled(x, None, masks.causal()).cpu(), other(x, None, masks.causal()).cpu(), f"{T} tokens", 5e-3)
