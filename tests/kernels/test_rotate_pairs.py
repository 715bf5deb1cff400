"""Every implementation of the rotation operator agrees with complex numbers in float64."""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from tiers import rest_slow
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posenc import Rotary, kernels
from posenc.kernels.rotation import native, rotate_pairs_triton
from posenc.kernels.rotation import rotate_pairs as operator
from posenc.kernels.rotation.rotate_pairs import rotate_both, rotate_pairs, rotate_readably, rotation_dtype

LAYOUTS = ["half", "interleaved"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NATIVE = native.load()
WAYS = ["readable", *native.INSTRUCTION_SETS[: NATIVE.instruction_set + 1 if NATIVE.library else 0]]


def forget_plans() -> None:
    operator.rotation_plan.cache_clear()
    operator.plan_for_both.cache_clear()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Select each instruction set of this machine, and PyTorch's own operators."""
    forget_plans()
    library = native.Native(None, why_not="not asked for")
    if request.param != "readable":
        library = native.Native(NATIVE.library, native.INSTRUCTION_SETS.index(request.param))
    monkeypatch.setattr(native, "load", lambda: library)
    monkeypatch.setattr(native, "MIN_CHANNELS_FOR_AVX512", 0)
    yield request.param
    forget_plans()


def tables(x: Tensor, pairs: int, batch: int = 1, heads: int = 1) -> tuple[Tensor, Tensor]:
    angle = 9 * torch.randn(batch, heads, x.shape[2], pairs, dtype=torch.float64)
    return (1.5 * angle.cos()).to(rotation_dtype(x)), (1.5 * angle.sin()).to(rotation_dtype(x))


def rotate_exactly(x: Tensor, cos: Tensor, sin: Tensor, layout: str, inverse: bool = False) -> Tensor:
    """Rotate pairs in float64, and pass the other channels on."""
    P = cos.shape[-1]
    out = x.double().clone()
    first = slice(0, P) if layout == "half" else slice(0, 2 * P, 2)
    second = slice(P, 2 * P) if layout == "half" else slice(1, 2 * P, 2)
    factor = torch.complex(cos.double(), -sin.double() if inverse else sin.double())
    pair = torch.complex(out[..., first], out[..., second]) * factor
    out[..., first], out[..., second] = pair.real, pair.imag
    return out


def heads(B: int, H: int, T: int, D: int, storage: str, dtype: torch.dtype) -> Tensor:
    """Return heads [B, H, T, D] in one of several memory layouts."""
    if storage == "bhtd":
        return torch.randn(B, H, T, D).to(dtype)
    if storage == "bthd":
        return torch.randn(B, T, H, D).to(dtype).transpose(1, 2)
    if storage == "part of a wider one":
        return torch.randn(B, T, H, 2 * D + 1).to(dtype).transpose(1, 2)[..., 1 : D + 1]
    if storage == "channels apart":
        return torch.randn(B, H, D, T).to(dtype).transpose(2, 3)
    return torch.randn(B, 1, T, D).to(dtype).expand(B, H, T, D)


STORAGES = ["bhtd", "bthd", "part of a wider one", "channels apart", "one head for all"]
# Sizes [B, H, T, D], pairs P, and whether batch rows and heads have separate tables. 37 pairs leave a
# remainder after any vector, and 300 tokens after any block.
SIZES = [
    ((2, 3, 9, 11), 4, False, False),
    ((1, 2, 300, 16), 8, False, False),
    ((3, 1, 1, 80), 37, True, False),
    ((2, 4, 5, 74), 37, True, True),
    ((1, 5, 3, 2), 1, False, True),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_result_is_the_exact_one_rounded_once(way: str, dtype: torch.dtype, layout: str) -> None:
    for (B, H, T, D), P, rows, per_head in SIZES:
        for storage in STORAGES:
            for inverse in (False, True):
                x = heads(B, H, T, D, storage, dtype)
                copy = x.clone()
                cos, sin = tables(x, P, B if rows else 1, H if per_head else 1)
                exact = rotate_exactly(x, cos, sin, layout, inverse)
                actual = rotate_pairs(x, cos, sin, layout, inverse=inverse)
                # The gradient of the inverse rotation is the rotation.
                leaf = torch.zeros_like(x).requires_grad_()
                (slope,) = torch.autograd.grad(rotate_pairs(leaf, cos, sin, layout, inverse=not inverse), leaf, x)
                # Half a unit of the dtype is allowed, and the arithmetic's own rounding, thrice in float64.
                unit = torch.finfo(dtype).eps / 2 * exact.abs().clamp(min=torch.finfo(dtype).tiny)
                slack = 3e-7 * 9 if dtype in (torch.bfloat16, torch.float16) else 2e-15 * 9
                case = f"{way} {dtype} {layout} {storage} {(B, H, T, D)} {P} {inverse}"
                for result in (actual, slope):
                    assert bool(((result.double() - exact).abs() <= unit * 1.001 + slack).all()), case
                    assert result.dtype == dtype and torch.equal(result[..., 2 * P :], x[..., 2 * P :]), case
                assert torch.equal(x, copy), case


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_and_keys_in_one_call_are_turned_as_in_two(way: str, layout: str) -> None:
    for dtype in DTYPES:
        q, k = heads(2, 6, 5, 10, "bthd", dtype), heads(2, 2, 5, 10, "bhtd", dtype)
        table = torch.stack(tables(q, 4))
        expected = [rotate_pairs(x, *table, layout) for x in (q, k)]
        assert all(map(torch.equal, rotate_both(q, k, table, layout), expected))


@pytest.mark.parametrize("names", ["q k", "q", "k", "table", "q k table"])
def test_queries_and_keys_turned_at_once_have_the_gradients_of_each(way: str, names: str) -> None:
    tensors = {"q": heads(2, 6, 5, 10, "bthd", torch.float64), "k": heads(2, 2, 5, 10, "bhtd", torch.float64)}
    tensors["table"] = torch.stack(tables(tensors["q"], 4))
    leaves = {name: x.requires_grad_(name in names.split()) for name, x in tensors.items()}

    def gradients(turn: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        q, k = turn(leaves["q"], leaves["k"], leaves["table"])
        assert q.requires_grad == bool({"q", "table"} & set(names.split()))
        inputs = [leaves[name] for name in names.split()]
        first = torch.autograd.grad(q.square().sum() + (k**3).sum(), inputs, create_graph=True)
        return [q, k, *first, *torch.autograd.grad(sum(x.square().sum() for x in first), inputs)]

    actual = gradients(lambda q, k, table: rotate_both(q, k, table, "half"))
    expected = gradients(lambda q, k, table: (rotate_readably(q, *table, "half"), rotate_readably(k, *table, "half")))
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_has_a_plan_for_heads_as_attention_makes_them(dtype: torch.dtype) -> None:
    q, k = heads(2, 6, 5, 10, "bthd", dtype), heads(2, 2, 5, 10, "bthd", dtype)
    table = torch.stack(tables(q, 5)).to(rotation_dtype(q))
    of_q, of_k, of_table = ((x.dtype, x.shape, x.stride()) for x in (q, k, table))
    assert operator.plan_for_both(*of_q, *of_k, *of_table, "half") is not None


@pytest.mark.parametrize("best", native.INSTRUCTION_SETS)
def test_few_channels_are_turned_without_avx512(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    library = native.Native(NATIVE.library, native.INSTRUCTION_SETS.index(best))
    monkeypatch.setattr(native, "load", lambda: library)
    narrow = "AVX2" if best == "AVX-512" else best
    for tokens, expected in ((1, narrow), (7, narrow), (8, best), (4096, best)):
        forget_plans()
        q, k = torch.empty(1, 32, tokens, 128), torch.empty(1, 8, tokens, 128)
        table = torch.empty(2, 1, 1, tokens, 64, dtype=torch.float64)
        facts = ((x.dtype, x.shape, x.stride()) for x in (q, k))
        plan = operator.plan_for_both(*itertools.chain(*facts), table.dtype, table.shape, table.stride(), "half")
        assert plan is not None and native.INSTRUCTION_SETS[plan.q.set] == expected
        assert tokens > 7 or native.INSTRUCTION_SETS[plan.k.set] == narrow
    forget_plans()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_half_precision_is_rounded_as_pytorch_does(way: str, dtype: torch.dtype, layout: str) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    x = torch.stack((bits, torch.zeros_like(bits)), -1).view(1, 1, -1, 2 * 64)
    if layout == "half":
        x = x.unflatten(-1, (64, 2)).transpose(-1, -2).flatten(-2)
    for factor in (1.0, 1 + 2.0**-8, 1 + 2.0**-9, 1 - 2.0**-12, 3.0, 2.0**-16):
        cos = torch.full((1, 1, x.shape[2], 64), factor)
        actual = rotate_pairs(x, cos, torch.zeros_like(cos), layout)
        a, expected = (
            y.unflatten(-1, (2, 64))[..., 0, :] if layout == "half" else y[..., ::2]
            for y in (actual, (x.float() * factor).to(dtype))
        )
        assert bool(((a == expected) | (a.isnan() & expected.isnan())).all()), factor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_finite_stays_where_the_readable_form_has_it(way: str, dtype: torch.dtype, layout: str) -> None:
    x = heads(1, 2, 6, 40, "bhtd", dtype)
    x[0, 0, 1, 3], x[0, 1, 2, 21], x[0, 1, 4, 39] = float("nan"), float("inf"), -float("inf")
    cos, sin = tables(x, 20)
    cos[0, 0, 5, 7] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # NaN as CUDA writes it
    actual, expected = rotate_pairs(x, cos, sin, layout), rotate_readably(x, cos, sin, layout)
    assert torch.equal(actual.isnan(), expected.isnan()) and torch.equal(actual.isinf(), expected.isinf())


def test_many_threads_turn_what_one_does(way: str) -> None:
    for lie in ("bhtd", "bthd"):
        x = heads(2, 5, 300, 64, lie, torch.float32)
        cos, sin = tables(x, 32)
        alone = rotate_pairs(x, cos, sin, "half")
        torch.set_num_threads(3)
        try:
            together = rotate_pairs(x, cos, sin, "half")
        finally:
            torch.set_num_threads(1)
        assert torch.equal(alone, together)


# Gradients


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inverse", rest_slow([True, False], 1))
def test_gradients_of_any_order_are_those_of_small_steps(way: str, layout: str, inverse: bool) -> None:
    x = torch.randn(2, 2, 1, 5, dtype=torch.float64, requires_grad=True)
    for rows, per_head in ((1, 1), (2, 2), (1, 2)):
        angle = torch.randn(rows, per_head, 1, 2, dtype=torch.float64)
        cos, sin = angle.cos().requires_grad_(), angle.sin().requires_grad_()

        def function(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return rotate_pairs(x, cos, sin, layout, inverse=inverse)

        assert torch.autograd.gradcheck(function, (x, cos, sin))
        assert torch.autograd.gradgradcheck(function, (x, cos, sin))
        assert torch.autograd.gradcheck(function, (x, cos.detach(), sin))
        assert torch.autograd.gradgradcheck(function, (x, cos.detach(), sin.detach()))


def projection(x: Tensor, weight: Tensor) -> Tensor:
    """Return heads [2, 3, 5, 8] in attention's memory layout."""
    return (x @ weight).unflatten(-1, (3, 8)).transpose(1, 2)


@pytest.mark.parametrize("grad", [False, True])
def test_heads_of_another_width_are_refused_however_they_are_turned(way: str, grad: bool) -> None:
    q, k = torch.randn(1, 2, 5, 12, requires_grad=grad), torch.randn(1, 2, 5, 8, requires_grad=grad)
    for tensors in ((q, q), (q, k), (k, q)):
        with pytest.raises(ValueError, match="is built for heads of 8 channels, got 12"):
            Rotary(8)(*tensors)


def test_nothing_but_the_tables_is_kept_for_the_gradient(way: str) -> None:
    tensors: list[Tensor] = []
    q = torch.randn(2, 3, 5, 8, requires_grad=True)
    cos, sin = tables(q, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: tensors.append(x) or x, lambda x: x):
        rotate_pairs(q, cos, sin, "half")
    assert [x.data_ptr() for x in tensors] == [cos.data_ptr(), sin.data_ptr()]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_computes_it_again(way: str, reentrant: bool) -> None:
    x, weight = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(6, 24, dtype=torch.float64, requires_grad=True)
    cos, sin = tables(torch.zeros(2, 3, 5, 8, dtype=torch.float64), 4)

    def loss(weight: Tensor) -> Tensor:
        return rotate_pairs(projection(x, weight), cos, sin, "half").square().sum()

    (expected,) = torch.autograd.grad(loss(weight), weight)
    checkpoint(loss, weight, use_reentrant=reentrant).backward()
    torch.testing.assert_close(weight.grad, expected, rtol=0, atol=1e-12)


# Transforms that trace every step


def test_functional_transforms_and_tracing_see_every_step(way: str) -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    cos, sin = tables(x, 4)

    def turn(x: Tensor) -> Tensor:
        return rotate_pairs(x, cos, sin, "half")

    expected = rotate_readably(x, cos, sin, "half")
    close = {"rtol": 0, "atol": 1e-13}
    torch.testing.assert_close(torch.func.vmap(turn)(x[None])[0], expected, **close)
    gradient = torch.func.grad(lambda x: turn(x).square().sum())(x)
    torch.testing.assert_close(gradient, 2 * rotate_readably(expected, cos, sin, "half", inverse=True), **close)
    graph = torch.fx.experimental.proxy_tensor.make_fx(turn)(torch.zeros_like(x))
    torch.testing.assert_close(graph(x), expected, **close)
    assert rotate_pairs(*(t.to("meta") for t in (x, cos, sin)), "half").shape == x.shape
    with torch._subclasses.FakeTensorMode() as mode:
        fake = rotate_pairs(*(mode.from_tensor(t) for t in (x, cos, sin)), "half")
    assert fake.shape == x.shape


def test_forward_derivatives_are_left_to_the_readable_form(monkeypatch: pytest.MonkeyPatch) -> None:
    # A first forward derivative costs torch seconds of imports, so the test only sets the level.
    assert operator.is_plain(torch.zeros(1))
    monkeypatch.setattr(torch.autograd.forward_ad, "_current_level", 0)
    assert not operator.is_plain(torch.zeros(1))


def test_a_compiled_model_is_one_graph_with_one_operator(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PRESENT", way != "readable")
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    q, k = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 8, requires_grad=True)
    table = torch.stack(tables(q, 4))

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_both(q, k, table, "half")

    actual = torch.compile(turn, backend=backend, fullgraph=True)(q, k)
    for x, y in zip(actual, (q, k), strict=True):
        torch.testing.assert_close(x, rotate_readably(y, *table, "half"), rtol=1e-6, atol=1e-6)
    gradient = torch.autograd.grad(actual[0].sum(), q)[0]
    torch.testing.assert_close(gradient, rotate_readably(torch.ones_like(q), *table, "half", inverse=True))
    (graph,) = graphs
    assert ("posenc.rotate_pairs" in graph.code) == (way != "readable")


def test_the_operator_keeps_the_rules_of_operators() -> None:
    x = torch.randn(2, 3, 5, 10, requires_grad=True)
    cos, sin = (t.requires_grad_() for t in tables(x, 4))
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (cos, sin, "interleaved", True, x.transpose(1, 2).contiguous().transpose(1, 2))
    torch.library.opcheck(torch.ops.posenc.rotate_pairs.default, arguments, test_utils=rules)


# The library


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    native.load.cache_clear()
    forget_plans()
    yield monkeypatch
    monkeypatch.undo()
    native.load.cache_clear()
    forget_plans()


def test_the_status_says_what_serves(fresh: pytest.MonkeyPatch) -> None:
    expected = "compiled code: " if native.LIBRARY.exists() else "no compiled code, it was not compiled"
    assert expected in kernels.status()["rotate_pairs on cpu"]
    for reason, status in ((None, "Triton"), ("it is Sunday", "PyTorch's own operators: it is Sunday")):
        fresh.setattr(rotate_pairs_triton, "why_not", lambda reason=reason: reason)
        assert kernels.status()["rotate_pairs on cuda"] == status


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"TURNED_OFF": True}, "POSENC_NATIVE=0 turns it off"),
        ({"LIBRARY": native.LIBRARY.with_name("nowhere.so")}, "no C compiler was found when posenc was installed"),
        ({"LIBRARY": native.LIBRARY.with_name("__init__.py")}, "it cannot be loaded (.*); install posenc again"),
        ({"INTERFACE": -1}, "it has interface 2, and -1 is needed; install posenc again"),
    ],
)
def test_without_the_library_it_works_and_says_why(
    fresh: pytest.MonkeyPatch, change: dict[str, object], reason: str
) -> None:
    if "INTERFACE" in change and NATIVE.library is None:
        pytest.skip("the library was not compiled here")
    for name, value in change.items():
        fresh.setattr(native, name, value)
    library = native.load()
    assert library.library is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(library.why_not)
    assert f"PyTorch's own operators: no compiled code, {library.why_not}" == native.status()
    x = torch.randn(2, 3, 5, 8)
    cos, sin = tables(x, 4)
    torch.testing.assert_close(
        rotate_pairs(x, cos, sin, "half"), rotate_readably(x, cos, sin, "half"), rtol=0, atol=2e-7
    )


@pytest.mark.parametrize("times", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_no_size_or_stride_reads_or_writes_beside_its_rows(way: str, times: int) -> None:
    """Only the rotated view of a larger tensor changes, at any sizes and gaps. `run.py sanitize` checks it."""
    draw = random.Random(times)
    for layout, dtype, inverse in times * [*itertools.product(LAYOUTS, DTYPES, (False, True))]:
        B, H, T, P = draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 40), draw.randint(1, 40)
        whole = torch.randn(B + 1, H + draw.randint(0, 2), T + draw.randint(0, 3), 2 * P + draw.randint(0, 20)).to(
            dtype
        )
        x = whole[1:, :H, -T:, : 2 * P + draw.randint(0, whole.shape[3] - 2 * P)]
        x = x if draw.random() < 0.5 else x.transpose(0, 1) if draw.random() < 0.5 else x[:, :, ::2]
        cos, sin = tables(x, P, draw.choice([1, x.shape[0]]), draw.choice([1, x.shape[1]]))
        copy, exact = whole.clone(), rotate_exactly(x, cos, sin, layout, inverse)
        actual = rotate_pairs(x, cos, sin, layout, inverse=inverse)
        case = f"{way} {tuple(x.shape)} {x.stride()} {P} {layout} {dtype}"
        torch.testing.assert_close(actual.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5, msg=case)
        assert torch.equal(whole, copy), case
