"""FlexAttention gives the readable kernel's outputs, and on a GPU its gradients."""

import re
import shutil
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from tiers import rest_slow
from torch import Tensor

from posenc import Attention, Decoder, Encoder, Keys, Positions, Shape, build, kernels, masks, testing
from posenc.cache import GrowingCache, SlotCache
from posenc.catalogue import names
from posenc.encoding.score_mods import index_grids
from posenc.testing.subjects import with_gradients
from posenc.tokens.masks import Mask

SHAPE = Shape(15, 3, 6, 21)
SPECS = [
    spec
    for spec in [*names(), "fire(length=4)", "rotary + alibi", "on(alibi, heads=(0, 2))", "rerope(alibi, window=3)"]
    if spec != "none" and kernels.why_not("flex", testing.Subject(spec).build()[1][0]) is None
]


LEARNED = ["alibi(learned=True)", "t5_bias(causal=True)", "kerple", "mlp_bias", "fire(length=4, width=5)"]
LEARNED += ["forgetting", "shaw(values=False)", "deberta", "inkling", "grid_bias", "log_grid_bias"]
"""Biases with parameters."""


@pytest.fixture
def run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run closures without tracing: the same mathematics on a CPU, in a tenth of the time."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def padded() -> Positions:
    mask = torch.ones(2, 9)
    mask[0, :3] = 0
    mask[1, [0, 4, 8]] = 0
    return Positions.padded(mask)


@pytest.mark.usefixtures("run_eagerly")
@pytest.mark.parametrize("spec", rest_slow([*SPECS[::2], *SPECS[1::2]], len(SPECS) // 2))
@torch.no_grad()
def test_every_encoding_gives_what_the_readable_kernel_gives(spec: str) -> None:
    net = testing.Subject(spec).net(kv_heads=None if "on(" in spec or "mixed" in spec else 1, scale=0.7)
    x, at = torch.randn(2, 9, 15, dtype=torch.float64), padded()
    mask = Mask(causal=True, tensor=torch.randn(1, 3, 9, 9, dtype=torch.float64))
    actual, expected = net.set_kernel("flex")(x, at, mask), net.set_kernel("reference")(x, at, mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_its_closures_have_the_gradients_of_the_readable_kernel(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(q: Tensor, k: Tensor, v: Tensor, score_mod, block_mask, scale: float, return_aux, **options):
        score = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
        grids = index_grids(score)
        score = score if score_mod is None else score_mod(score, *grids)
        score = score.masked_fill(~block_mask(*grids), -torch.inf)
        sums = score.logsumexp(-1)
        weights = (score - sums.masked_fill(sums == -torch.inf, 0.0)[..., None]).exp()
        out = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return out if return_aux is None else (out, torchs.AuxOutput(lse=sums))

    monkeypatch.setattr(torchs, "create_block_mask", lambda rule, *sizes: rule)
    monkeypatch.setattr("posenc.kernels.flex.flex_attention", lambda device, name: plain)
    monkeypatch.setattr("posenc.kernels.flex.device_of", lambda x: "cuda")
    monkeypatch.setitem(kernels.KERNELS, "flex", kernels.KERNELS["flex"]._replace(why_not=lambda request: None))
    subject = testing.Subject(spec)
    net, x = subject.net(scale=0.7), torch.randn(2, 9, SHAPE.dim, dtype=torch.float64)
    for at in (testing.arange(9), Positions.packed([4, 5]), padded()) if net.axes < 2 else (Positions.grid(3, 3),):
        expected = with_gradients(net.set_kernel("reference"), x, at, masks.causal())
        for part, actual in with_gradients(net.set_kernel("flex"), x, at, masks.causal()).items():
            torch.testing.assert_close(actual, expected[part], rtol=0, atol=1e-9, msg=lambda m, n=part: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # from PyTorch's tracer
@pytest.mark.parametrize("spec", rest_slow(["fire(length=4, width=5) + t5_bias(std=1) + forgetting", *LEARNED], 1))
def test_parameters_get_the_gradients_of_the_readable_kernel(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention on a CPU gives closures' tensors gradients if q, k and v require none."""
    monkeypatch.setitem(kernels.KERNELS, "flex", kernels.KERNELS["flex"]._replace(why_not=lambda request: None))
    shape, at = Shape(32, 2, 16, 40), Positions.packed([23, 17])
    encoding = build(spec, shape)
    if encoding.axes > 1:
        at = Positions.grid(8, 5)
    gradients = []
    for kernel in ("reference", "flex"):
        q, k, v = (torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
        memo = encoding.remember(torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(4)), at)
        keys = Keys(k, v, at, memo, memo)
        out, _ = encoding.attend(q, at, keys, masks.causal(), kernels.bind(kernel, encoding, scale=0.25))
        gradients.append(torch.autograd.grad(out.square().sum(), list(encoding.parameters()), allow_unused=True))
    for actual, right in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler, which PyTorch's compiler calls")
@pytest.mark.parametrize("spec", rest_slow(["alibi + fire(length=4, width=2) + forgetting", *LEARNED], 1))
@torch.no_grad()
def test_compiled_they_give_what_the_readable_kernel_gives(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's CPU kernel is made from the closures of the GPU kernel."""
    monkeypatch.setattr("posenc.kernels.flex.device_of", lambda x: "cuda")
    attention = Attention(32, 2, encoding=spec, max_len=150, kernel="flex")
    for parameter in attention.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, two = torch.randn(1, 150, 32), attention.encoding.axes > 1
    at = Positions.grid(10, 15) if two else Positions.packed([90, 60])
    actual = attention(x, positions=at, mask=masks.causal())
    attention.kernel = "reference"
    torch.testing.assert_close(actual, attention(x, positions=at, mask=masks.causal()), rtol=0, atol=1e-5)


@torch.no_grad()
def test_biases_are_not_rounded_to_the_dtype_of_the_queries() -> None:
    """Biases stay in float32: sandwich's values near 128 differ by less than bfloat16 resolves."""
    encoding, at = build("sandwich", Shape(256, 16, 16, 70)), Positions.count(70)
    q, k, v = (torch.randn(1, 16, 70, 16, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3))

    def attend(kernel: str, dtype: torch.dtype) -> Tensor:
        bound = kernels.bind(kernel, encoding, scale=0.25)
        return encoding.attend(q.to(dtype), at, Keys(k.to(dtype), v.to(dtype), at), masks.causal(), bound)[0]

    right = attend("reference", torch.float64)
    torch.testing.assert_close(attend("flex", torch.bfloat16).double(), right, rtol=0, atol=0.03)


@pytest.mark.usefixtures("run_eagerly")
@torch.no_grad()
def test_every_mask_and_shape() -> None:
    encoding, plain = build("t5_bias(std=1)", SHAPE).double(), Positions.count(9)
    ids = torch.randint(0, 40, (2, 9))
    empty = Positions.padded(torch.tensor([[0] * 9, [1] * 9]))
    forbidding = torch.randn(9, 9, dtype=torch.float64).masked_fill(torch.rand(9, 9) < 0.4, -torch.inf)
    forbidding[4] = -torch.inf
    for at, keys_at, mask in (
        (plain, plain, masks.bidirectional()),
        (plain, plain, masks.causal()),
        (plain, plain, masks.window(3)),
        (plain, plain, masks.window(2, causal=False)),
        (plain, plain, masks.prefix(4)),
        (plain, plain, Mask(tensor=torch.rand(2, 1, 9, 9) < 0.4)),
        (plain, plain, Mask(tensor=torch.rand(3, 9, 1) < 0.5)),
        (plain, plain, Mask(causal=True, tensor=forbidding)),
        (plain, plain, Mask(tensor=torch.zeros(9, 9) > 0)),
        (Positions.packed([4, 1, 4]), None, masks.bidirectional()),
        (Positions.packed([4, 5]), None, masks.causal()),
        (padded(), None, masks.bidirectional()),
        (empty, None, masks.causal()),
        (Positions.of(ids), None, masks.causal()),
        (Positions.of(ids * 0.3), plain, masks.bidirectional()),
        (Positions.count(1, 8), plain, masks.causal()),
        (Positions.count(4, 5), plain, masks.window(3)),
        (padded(), Positions.count(5), masks.causal()),
    ):
        keys_at = at if keys_at is None else keys_at
        for kv_heads in (1, 3):
            q = torch.randn(2, 3, at.tokens, 6, dtype=torch.float64)
            k = torch.randn(2, kv_heads, keys_at.tokens, 6, dtype=torch.float64)
            keys = Keys(k, torch.randn(2, kv_heads, keys_at.tokens, 4, dtype=torch.float64), keys_at)
            actual, expected = (
                kernels.bind(kernel, encoding, scale=0.3)(encoding, q, at, keys, mask)[0]
                for kernel in ("flex", "reference")
            )
            # The readable kernel's output for padding is undefined; here it is 0 where no key is visible.
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
            assert not actual[~mask.allowed(at, keys_at).any(-1).expand(2, 3, -1)].any()


@pytest.mark.usefixtures("run_eagerly")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
@torch.no_grad()
def test_every_dtype_keeps_its_own(dtype: torch.dtype, tolerance: float) -> None:
    net, at = testing.Subject("rotary + alibi").net().to(dtype), Positions.count(9)
    x = torch.randn(2, 9, 15).to(dtype)
    actual, expected = net.set_kernel("flex")(x, at, masks.causal()), net.set_kernel("reference")(x, at, masks.causal())
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("run_eagerly")
@torch.no_grad()
def test_it_decodes_behind_every_cache() -> None:
    attention = Attention(15, 3, head_dim=6, kv_heads=1, encoding="rotary + alibi", kernel="flex").double()
    x = torch.randn(2, 9, 15, dtype=torch.float64)
    for mask, caches in (
        (masks.causal(), (GrowingCache(), SlotCache(12))),
        (masks.window(3), (SlotCache(6, rolling=True),)),
    ):
        expected = attention(x, mask=mask)
        for cache in caches:
            parts, start = [], 0
            for n in (4, 3, 1, 1):
                chunk = x[:, start : start + n]
                parts.append(attention(chunk, positions=Positions.count(n, start), mask=mask, cache=cache))
                start += n
            torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_as_pytorch_runs_it_without_a_compiler_it_says_the_same_and_nothing_else() -> None:
    # A warning would be an error here. Leaves may require gradients, as none are computed.
    attention = Attention(12, 3, encoding="alibi(learned=True)", kernel="flex")
    x = torch.randn(2, 9, 12)
    actual = attention(x, mask=masks.causal())
    attention.kernel = "reference"
    torch.testing.assert_close(actual, attention(x, mask=masks.causal()), rtol=0, atol=2e-6)
    q = torch.randn(1, 3, 5, 4, requires_grad=True)
    encoding, at = build("none", SHAPE), Positions.count(5)
    kernels.bind("flex", encoding, scale=0.5)(encoding, q, at, Keys(q, q, at), masks.bidirectional())


@pytest.mark.parametrize("spec", rest_slow(["alibi + forgetting", "none", *LEARNED], 1))
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")  # from PyTorch's tracer
@torch.no_grad()
def test_a_model_is_one_graph_for_all_lengths(spec: str) -> None:
    from torch._dynamo.testing import CompileCounter

    cls = Encoder if build(spec, Shape(32, 2, 16, 300)).axes > 1 else Decoder
    model: Any = cls(11, 32, 2, 1, spec, max_len=300, kernel="flex")
    torch._dynamo.reset()
    counter = CompileCounter()
    graph = torch.compile(model, backend=counter, fullgraph=True)
    for side in (12, 13, 14):
        ids, at = torch.randint(11, (2, side * side)), Positions.grid(side, side) if cls is Encoder else None
        torch.testing.assert_close(graph(ids, positions=at), model(ids, positions=at), rtol=0, atol=1e-5)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


@pytest.mark.usefixtures("run_eagerly")
@torch.no_grad()
def test_layers_share_the_mask_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, make = [], torchs.create_block_mask

    def count_masks(*args, **options):
        shapes.append(args[1:5])
        return make(*args, **options)

    monkeypatch.setattr(torchs, "create_block_mask", count_masks)
    at, encoding = padded(), build("alibi", SHAPE)
    q = torch.randn(2, 3, 9, 6)
    for mask in (masks.causal(), masks.causal(), masks.window(3), masks.window(3), masks.causal()):
        kernels.bind("flex", encoding, scale=0.3)(encoding, q, at, Keys(q, q, at), mask)
    assert shapes == [(2, 1, 9, 9)] * 2


@pytest.mark.parametrize(
    "spec, options, reason",
    [
        ("alibi", {"need_weights": True}, "flex returns no attention weights; use kernel='reference'"),
        ("alibi", {"dropout": 0.1}, "FlexAttention has no dropout, got 0.1"),
        ("stick_breaking", {}, "reads the attention weights, which flex does not return"),
        (
            "none",
            {"q": torch.empty(1, 3, 4, 6, requires_grad=True)},
            "has no backward pass on 'cpu', and the queries or",
        ),
        ("alibi(learned=True)", {"q": torch.empty(1, 3, 4, 6)}, "the encoding want gradients; use kernel='auto'"),
    ],
)
def test_why_not_gives_the_reason(spec: str, options: dict, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = build(spec, SHAPE)
    assert reason in str(kernels.why_not("flex", encoding, **options))
    with pytest.raises(ValueError, match=re.escape(reason)):
        kernels.choose("flex", encoding, **options)
    if "q" in options:
        with torch.no_grad():
            assert kernels.why_not("flex", encoding, **options) is None
    monkeypatch.setattr("posenc.kernels.flex.COMPILES_LAYERS", False)
    assert "serves from torch 2.9 on" in str(kernels.why_not("flex", encoding))


def test_a_layer_that_wants_gradients_on_a_cpu_is_told_before_anything_is_computed() -> None:
    attention = Attention(12, 3, encoding="alibi", kernel="flex")
    with pytest.raises(ValueError, match="kernel 'flex' cannot do this: FlexAttention has no backward pass on 'cpu'"):
        attention(torch.randn(1, 4, 12), mask=masks.causal())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "spec", ["none", "rotary", "alibi(learned=True)", "t5_bias(std=1)", "shaw(values=False)", "fire"]
)
def test_on_a_gpu_it_has_the_gradients_of_the_readable_kernel(spec: str) -> None:
    shape, at = Shape(64, 4, 16, 300), Positions.count(200, device="cuda")
    encoding = build(spec, shape).cuda()
    inputs = torch.randn(3, 2, 4, 200, 16, device="cuda")

    def gradients(kernel: str, dtype: torch.dtype, mask: Mask) -> list[Tensor]:
        cast = encoding.to(dtype)
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        rotated_q, keys = cast.query(q, at), Keys(cast.key(k, at), v, at)
        out, _ = kernels.bind(kernel, cast, scale=0.25)(cast, rotated_q, at, keys, mask)
        slopes = torch.autograd.grad(out.square().sum(), [q, k, v, *cast.parameters()], allow_unused=True)
        return [out, *(slope for slope in slopes if slope is not None)]

    for mask in (masks.causal(), masks.window(70), masks.bidirectional()):
        expected = gradients("reference", torch.float64, mask)
        for actual, right in zip(gradients("flex", torch.float32, mask), expected, strict=True):
            # Matrix products may use TF32; a gradient of 0 has the rounding error of terms that cancel.
            assert float((actual - right).norm()) < 5e-3 * float(right.norm()) + 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_new_closures_need_no_new_compilation() -> None:
    from torch._dynamo.utils import counters

    encoding, q = build("alibi", Shape(64, 4, 16, 300)), torch.randn(2, 4, 200, 16, device="cuda")
    previous = None
    for start in range(4):
        at = Positions.count(200, start, device="cuda")
        kernels.bind("flex", encoding, scale=0.25)(encoding, q, at, Keys(q, q, at), masks.causal())
        graphs = counters["stats"]["unique_graphs"]
        assert previous is None or graphs == previous
        previous = graphs
