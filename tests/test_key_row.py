"""The key row kernel: against the readable kernel in float64, its error in float32, and what it refuses."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import Attention, Keys, Positions, Shape, build, kernels, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.encoding import Encoding
from posenc.masks import Mask

SHAPE = Shape(15, 3, 6, 21)
SPECS = [
    "alibi",
    "alibi(learned=True, bias_max=5.0)",
    "alibi(form='falcon', learned=True)",
    "on(alibi, heads=(0, 2))",
    "forgetting",
    "alibi + forgetting",
    "rotary + alibi",
]


def padded() -> Positions:
    mask = torch.ones(2, 9)
    mask[0, :3] = 0
    mask[1, [0, 4, 8]] = 0
    return Positions.padded(mask)


def both(
    encoding: Encoding, at: Positions, keys_at: Positions, mask: Mask, kv_heads: int, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of this kernel, and of the readable one."""
    q = torch.randn(2, 3, at.tokens, 6, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, keys_at.tokens, 6, dtype=dtype, requires_grad=True) for _ in range(2))
    gates = F.logsigmoid(torch.randn(2, 3, keys_at.tokens, dtype=torch.promote_types(dtype, torch.float32)))
    gates.requires_grad_()
    upstream, leaves = torch.randn_like(q), [q, k, v, gates, *encoding.parameters()]
    found = []
    for kernel in ("key_row", "reference"):
        keys = Keys(k, v, keys_at, {"forgetting": gates}, {"forgetting": gates[:, :, : at.tokens]})
        out, none = kernels.bind(kernel, encoding, scale=0.4)(encoding, q, at, keys, mask)
        slopes = torch.autograd.grad((out * upstream).sum(), leaves, allow_unused=True)
        assert none is None
        found.append([out, *(torch.zeros(()) if slope is None else slope for slope in slopes)])
    return found[0], found[1]


@pytest.mark.parametrize("spec", SPECS)
def test_it_gives_what_the_readable_kernel_gives(spec: str) -> None:
    encoding, plain = build(spec, SHAPE).double(), Positions.count(9)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    given = torch.randn(1, 3, 1, 9, dtype=torch.float64)
    given[..., :2] = -torch.inf
    for at, keys_at, mask, kv_heads in (
        (plain, plain, masks.causal(), 3),
        (plain, plain, masks.causal(), 1),
        (padded(), padded(), masks.causal(), 3),
        (Positions.count(1, 8), plain, masks.causal(), 1),
        (Positions.count(1, 5), plain, masks.window(3), 3),
        (Positions.count(1, 8), padded(), masks.causal(), 3),
        (Positions.count(1, 8), plain, Mask(causal=True, given=given), 3),
        (Positions.count(1, 8), plain, Mask(causal=True, given=torch.rand(2, 3, 1, 9) < 0.5), 3),
        (Positions.count(1, 8), plain, Mask(causal=True, given=torch.zeros(2, 1, 1, 9) > 0), 3),
    ):
        if at is not keys_at and at.tokens == keys_at.tokens:
            at = keys_at
        got, expected = both(encoding, at, keys_at, mask, kv_heads)
        for mine, other in zip(got, expected, strict=True):
            # The published slopes of the other kernel are rounded to float32.
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6 if "falcon" in spec else 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
def test_every_dtype_keeps_its_own(dtype: torch.dtype, tolerance: float) -> None:
    encoding, at = build("alibi(learned=True) + forgetting", SHAPE).to(dtype), Positions.count(9)
    for mine, other in zip(*both(encoding, at, at, masks.causal(), 3, dtype), strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spec", ["alibi", "alibi + forgetting"])
def test_a_layer_decodes_behind_every_cache(spec: str) -> None:
    attention = Attention(15, 3, head_dim=6, kv_heads=1, encoding=spec, kernel="key_row").double()
    x, mask = torch.randn(2, 9, 15, dtype=torch.float64), masks.causal()
    expected = Attention.forward(attention, x, mask=mask)
    attention.kernel = "reference"
    torch.testing.assert_close(attention(x, mask=mask), expected, rtol=0, atol=1e-12)
    attention.kernel = "key_row"
    for cache, first, seen in (
        (GrowingCache(), 5, mask),
        (SlotCache(12), 5, mask),
        (SlotCache(9, rolling=True), 1, masks.window(9)),
    ):
        parts = [attention(x[:, :first], positions=Positions.count(first), mask=seen, cache=cache)]
        for t in range(first, 9):
            parts.append(attention(x[:, t : t + 1], positions=Positions.count(1, t), mask=seen, cache=cache))
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


def test_its_error_is_what_its_page_says_and_none_for_the_newest_query() -> None:
    encoding, T = build("alibi", Shape(12 * 8, 12, 8, 21)), 700
    at = Positions.count(T)
    q, k, v = torch.randn(3, 1, 12, T, 8)
    found = {}
    for name, rows in (("all", slice(0, T)), ("newest", slice(T - 1, T))):
        some = at if name == "all" else Positions.count(1, T - 1)
        outs = []
        for dtype, kernel in ((torch.float32, "key_row"), (torch.float64, "reference")):
            keys = Keys(k.to(dtype), v.to(dtype), at)
            outs.append(
                kernels.bind(kernel, encoding, scale=0.3)(
                    encoding, q[:, :, rows].to(dtype), some, keys, masks.causal()
                )[0]
            )
        found[name] = float((outs[0] - outs[1]).abs().max())
    assert 5e-6 < found["all"] < 3e-4, found
    assert found["newest"] < 2e-6, found


def test_nothing_as_large_as_the_logits_is_held() -> None:
    encoding, at = build("alibi(learned=True)", Shape(16, 2, 8, 21)), Positions.count(4096)
    q, k, v = torch.randn(3, 1, 2, 4096, 8, requires_grad=True).unbind()
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kernels.bind("key_row", encoding, scale=0.3)(encoding, q, at, Keys(k, v, at), masks.causal())
    assert sizes and max(sizes) <= 2 * q.nbytes


@pytest.mark.parametrize(
    "spec, asked, reason",
    [
        ("alibi", {"weights": True}, "key_row returns no attention weights"),
        ("alibi", {"dropout": 0.1}, "key_row has no dropout, got 0.1"),
        ("alibi", {"q": torch.empty(1, 3, 4, 6, device="meta")}, "key_row runs on the CPU, got queries on 'meta'"),
        ("stick_breaking", {}, "reads the attention weights, which key_row does not return"),
        ("rotary", {}, "rotary has no bias; kernel='sdpa' is as fast, and exact"),
        ("t5_bias", {}, "the bias of t5_bias(causal=True) is not a number for each key and one for each query"),
        ("alibi + shaw(values=False)", {}, "the bias of shaw(values=False) is not a number for each key"),
    ],
)
def test_why_not_gives_the_reason(spec: str, asked: dict, reason: str) -> None:
    encoding = build(spec, SHAPE)
    assert reason in str(kernels.why_not("key_row", encoding, **asked))
    with pytest.raises(ValueError, match=re.escape(reason)):
        kernels.choose("key_row", encoding, **asked)


@pytest.mark.parametrize("encoding", ["alibi", "alibi + forgetting", "alibi(form='falcon')"])
def test_what_it_can_do_it_says(encoding: str) -> None:
    assert kernels.why_not("key_row", build(encoding, SHAPE)) is None
    assert kernels.choose("auto", build(encoding, SHAPE)) != "key_row"


def refused(encoding: Encoding, at: Positions, keys_at: Positions, mask: Mask, width: int = 6) -> str:
    q, k = torch.randn(2, 3, at.tokens, 6), torch.randn(2, 3, keys_at.tokens, 6)
    keys = Keys(k, torch.randn(2, 3, keys_at.tokens, width), keys_at)
    with pytest.raises(ValueError, match="kernel 'key_row' cannot do this") as error:
        kernels.bind("key_row", encoding, scale=0.4)(encoding, q, at, keys, mask)
    return str(error.value)


def test_masks_and_positions_that_a_row_cannot_say_are_refused() -> None:
    alibi, at = build("alibi", SHAPE), Positions.count(9)
    packed = Positions.packed([4, 5])
    shuffled = Positions(at.coords.flip(1), at.order.flip(1), unit_step=True)
    loose = Positions.of(torch.arange(9) * 1.5)
    assert "takes a causal mask" in refused(alibi, at, at, masks.bidirectional())
    assert "without a prefix" in refused(alibi, at, at, masks.prefix(2))
    assert "a plain causal mask" in refused(alibi, at, at, masks.window(3))
    assert "a plain causal mask" in refused(alibi, at, at, Mask(causal=True, given=torch.zeros(9, 9)))
    assert "attend to each by itself" in refused(alibi, packed, packed, masks.causal())
    assert "the keys' own tokens, in sequence" in refused(alibi, shuffled, shuffled, masks.causal())
    assert "the keys' own tokens, in sequence" in refused(alibi, Positions.count(3, 6), at, masks.causal())
    assert "the keys' own tokens, in sequence" in refused(alibi, at, Positions.count(3), masks.causal())
    assert "the keys' own tokens, in sequence" in refused(alibi, Positions.count(4), at, masks.causal())
    assert "count up by one" in refused(alibi, loose, loose, masks.causal())
    assert "treats all keys alike" in refused(build("alibi(form='asymmetric')", SHAPE), at, at, masks.causal())
    assert "count up by one" in refused(build("on(t5_bias, heads=(1,))", SHAPE), at, at, masks.causal())
    some = build("alibi + on(t5_bias, heads=(1,))", SHAPE)
    assert "count up by one" in refused(some, at, at, masks.causal()), "one part alone has a row"
    assert "values must be as wide as queries, got 5 and 6" in refused(alibi, at, at, masks.causal(), width=5)
    # One and the same tokens, said twice, are found to be the same.
    again = replace(at, contiguous=False, _tables={})
    got, expected = both(alibi.double(), at, again, masks.causal(), 3)
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["alibi", "alibi(learned=True)"])
def test_it_compiles_to_one_graph(spec: str) -> None:
    from torch._dynamo.testing import CompileCounter

    attention = Attention(12, 3, encoding=spec, kernel="key_row").double()
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(attention, backend=counter, fullgraph=True)
    for T in (9, 13, 17):
        x = torch.randn(2, T, 12, dtype=torch.float64)
        got, expected = compiled(x, mask=masks.causal()), attention(x, mask=masks.causal())
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            *(torch.autograd.grad(out.square().sum(), attention.to_query.weight) for out in (got, expected))
        )
    assert counter.frame_count <= 2
    torch._dynamo.reset()
