"""Kernels return each query's log-sum-exp with gradients, so that other keys can be merged."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from posenc import Encoding, Keys, Positions, Shape, build, kernels, masks
from posenc.tokens.masks import Mask

SPECS = [
    "none",
    "alibi",
    "t5_bias + kerple",
    "shaw(max_distance=3)",
    "deberta",
    "rerope(rotary, window=3)",
    "tupe",
    "fire + alibi",
    "dape(kerple)",
]
PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])
PLACES: dict[str, tuple[Positions, Positions, Mask]] = {
    "in a row": (Positions.count(9), Positions.count(9), masks.causal()),
    "keys before": (Positions.count(9, 30), Positions.count(9, 3), masks.causal()),
    "keys behind": (Positions.count(9), Positions.count(9, 9), masks.causal()),
    "far in a window": (Positions.count(9, 9), Positions.count(9), masks.window(4)),
    "padded": (Positions.padded(PADDED), Positions.padded(PADDED), masks.causal()),
    "one query": (Positions.count(1, 8), Positions.count(9), masks.causal()),
}


def encoding_of(spec: str) -> Encoding:
    torch.manual_seed(2)
    encoding = build(spec, Shape(18, 3, 6, 64)).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return encoding


def run_kernel(name: str, encoding: Encoding, at: Positions, keys_at: Positions, mask: Mask) -> list[Tensor]:
    """Return the output, the sums, and gradients of both in queries, keys, values and parameters."""
    torch.manual_seed(3)
    q, k, v = (
        torch.randn(2, 3, where.tokens, 6, dtype=torch.float64, requires_grad=True) for where in (at, keys_at, keys_at)
    )
    sums: list[Tensor] = []
    kernel = replace(kernels.bind(name, encoding, scale=0.4), sums=sums)
    out, _ = encoding.attend(q, at, Keys(k, v, keys_at), mask, kernel)
    (total,) = sums
    weigh = torch.linspace(1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    loss = (out * weigh).sum() + (total.masked_fill(total == -math.inf, 0.0) * weigh[..., 0]).sum()
    inputs = [q, k, v, *encoding.parameters()]
    slopes = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [out, total, *(torch.zeros(()) if slope is None else slope for slope in slopes)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spec", SPECS)
def test_attention_in_blocks_notes_the_sums_of_the_readable_kernel(spec: str, place: str) -> None:
    encoding = encoding_of(spec)
    for actual, expected in zip(
        run_kernel("auto", encoding, *PLACES[place]), run_kernel("reference", encoding, *PLACES[place]), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def test_the_sums_are_those_of_the_logits() -> None:
    encoding, (at, keys_at, mask) = encoding_of("alibi"), PLACES["padded"]
    torch.manual_seed(3)
    q, k, _ = (torch.randn(2, 3, 9, 6, dtype=torch.float64) for _ in range(3))
    logits = 0.4 * q @ k.mT - torch.tensor([1 / 16, 1 / 256, 1 / 4]).view(3, 1, 1) * (
        at.coords[:, None, :, None, 0] - at.coords[:, None, None, :, 0]
    )
    visible = (at.order[:, None, :, None] >= at.order[:, None, None, :]) & (at.order[:, None, None, :] >= 0)
    expected = logits.exp().masked_fill(~visible, 0.0).sum(-1).log()
    assert expected.isneginf().any()
    actual = run_kernel("blocked", encoding, at, keys_at, mask)[1]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_heads_that_look_no_further_than_they_reach_have_sums_too() -> None:
    at, encoding = Positions.count(700), build("alibi", Shape(18, 3, 6, 64))
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 3, 700, 6) for _ in range(3))
    results = []
    for name in ("blocked", "reference"):
        sums: list[Tensor] = []
        encoding.attend(
            q, at, Keys(k, v, at), masks.causal(), replace(kernels.bind(name, encoding, scale=0.4), sums=sums)
        )
        results += sums
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)


def test_a_head_whose_reach_ends_before_the_keys_has_no_sum_of_them() -> None:
    """Distant keys, which a steep head skips, have no weight beside near ones."""
    encoding, far, near_at = build("alibi", Shape(18, 3, 6, 64)), Positions.count(512), Positions.count(512, 9_000)
    torch.manual_seed(4)
    q, k, v, far_k, far_v = (torch.randn(1, 3, 512, 6) for _ in range(5))
    parts = []
    for at, keys in ((near_at, Keys(k, v, near_at)), (near_at, Keys(far_k, far_v, far))):
        sums: list[Tensor] = []
        kernel = replace(kernels.bind("blocked", encoding, scale=0.4), sums=sums)
        out, _ = encoding.attend(q, at, keys, masks.causal(), kernel)
        parts.append((out, sums[0]))
    shares = torch.stack([total for _, total in parts]).softmax(0)
    actual = sum(share[..., None] * out for share, (out, _) in zip(shares, parts, strict=True))
    torch.testing.assert_close(actual, parts[0][0], rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_flex_notes_its_sums() -> None:
    encoding, (at, keys_at, mask) = encoding_of("alibi"), PLACES["padded"]
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 3, 9, 6, dtype=torch.float64) for _ in range(3))
    results = []
    with torch.no_grad():
        for name in ("flex", "reference"):
            sums: list[Tensor] = []
            kernel = replace(kernels.bind(name, encoding, scale=0.4), sums=sums)
            encoding.attend(q, at, Keys(k, v, keys_at), mask, kernel)
            results += sums
    torch.testing.assert_close(results[0], results[1].to(results[0].dtype), rtol=0, atol=1e-6)


def test_sdpa_says_that_it_has_none() -> None:
    q, at, encoding = torch.zeros(1, 2, 3, 4), Positions.count(3), build("none", Shape(8, 2, 4, 8))
    kernel = replace(kernels.bind("sdpa", encoding, scale=1.0), sums=[])
    with pytest.raises(ValueError, match="sdpa does not return the sums of its exponentials; use kernel='auto'"):
        encoding.attend(q, at, Keys(q, q, at), masks.causal(), kernel)
