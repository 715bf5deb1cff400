"""Tests of the Triton rotation: in the CPU interpreter, compiled for a GPU, and on a GPU if present."""

from collections.abc import Iterator

import pytest
import torch
from tiers import rest_slow
from torch import Tensor

from posenc.kernels.rotation import rotate_pairs_triton
from posenc.kernels.rotation.rotate_pairs_triton import rotate_into

triton = pytest.importorskip("triton", reason="triton is not installed (the test extra brings it on Linux)")

DEVICES = [
    "interpreter",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]

# Sizes [B, H, T, D] and pairs P: widths that are no power of two, heads beyond one program's, channels that pass.
SHAPES = [((2, 3, 9, 10), 4), ((1, 6, 1, 6), 3), ((1, 5, 300, 16), 8)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "interpreter":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    rotate_pairs_triton.program.cache_clear()
    yield "cpu" if request.param == "interpreter" else "cuda"
    rotate_pairs_triton.program.cache_clear()


def tables(x: Tensor, pairs: int, *, rows: int = 1, heads: int = 1) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else torch.float64
    angle = 3 * torch.randn(rows, heads, x.shape[2], pairs, dtype=torch.float64, device=x.device)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate_in_float64(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate in float64, each pair as a complex number."""
    width = 2 * cos.shape[-1]
    pair = x[..., :width].double()
    half = layout == "half"
    pair = pair.unflatten(-1, (2, -1)).movedim(-2, -1) if half else pair.unflatten(-1, (-1, 2))
    pair = torch.view_as_complex(pair.contiguous()) * torch.complex(cos.double(), sin.double())
    pair = torch.view_as_real(pair)
    pair = (pair.movedim(-1, -2) if half else pair).flatten(-2)
    return torch.cat((pair, x[..., width:].double()), -1)


def check(actual: Tensor, exact: Tensor) -> None:
    """Allow one rounding of the exact result, and float32 arithmetic for half precision."""
    epsilon = torch.finfo(actual.dtype).eps
    # The interpreter truncates to bfloat16, a GPU rounds.
    rounding = epsilon if actual.dtype == torch.bfloat16 and actual.device.type == "cpu" else epsilon / 2
    arithmetic = 2.0**-22 if epsilon > 1e-6 else 2.0**-51 if epsilon < 1e-9 else 2.0**-50
    tolerance = rounding * exact.abs() + arithmetic * (1 + exact.abs().amax())
    assert bool(((actual.double() - exact).abs() <= tolerance).all())


@pytest.mark.parametrize("dtype", rest_slow([torch.float32, torch.float64, torch.bfloat16, torch.float16], 1))
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_pairs_turn_into_new_memory_in_place_and_back(device: str, layout: str, dtype: torch.dtype) -> None:
    for shape, pairs in SHAPES:
        x = torch.randn(shape, device=device).to(dtype)
        cos, sin = tables(x, pairs)
        copy, out = x.clone(), torch.full_like(x, torch.nan)
        assert rotate_into(out, x, cos, sin, layout) is out
        assert torch.equal(x, copy)
        check(out, rotate_in_float64(x, cos, sin, layout))
        assert torch.equal(out[..., 2 * pairs :], x[..., 2 * pairs :])
        assert torch.equal(rotate_into(x, x, cos, sin, layout), out)
        check(rotate_into(x, x, cos, sin, layout, inverse=True), rotate_in_float64(out, cos, -sin, layout))


@pytest.mark.parametrize("layout", rest_slow(["interleaved", "half"], 1))
def test_any_strides_will_do(device: str, layout: str) -> None:
    B, H, T, D, pairs = 2, 5, 7, 12, 5
    memory = torch.randn(B, T, H, D, device=device)
    wide = torch.randn(B, H, T, 2 * D, device=device)
    one_row = torch.randn(1, H, 1, D, device=device).expand(B, H, T, D)
    # The last tensor has heads of 7 channels, with gaps in memory.
    for x in (memory.transpose(1, 2), wide[..., ::2], one_row, memory.permute(0, 3, 2, 1)):
        cos, sin = tables(x, min(pairs, x.shape[3] // 2))
        out = torch.empty(*x.shape[:2], x.shape[3], x.shape[2], device=device).transpose(2, 3)
        check(rotate_into(out, x, cos, sin, layout), rotate_in_float64(x, cos, sin, layout))
    # In place, only the view is written.
    copy, view = wide.clone(), wide[..., ::2]
    cos, sin = tables(view, pairs)
    rotate_into(view, view, cos, sin, layout)
    assert torch.equal(wide[..., 1::2], copy[..., 1::2])
    check(view, rotate_in_float64(copy[..., ::2], cos, sin, layout))


@pytest.mark.parametrize("rows, heads", [(1, 1), (1, 5), (3, 1), (3, 5)])
def test_each_row_and_head_may_have_tables_of_its_own(device: str, rows: int, heads: int) -> None:
    x = torch.randn(3, 5, 6, 8, device=device)
    cos, sin = tables(x, 4, rows=rows, heads=heads)
    # The two tables differ in memory layout, with gaps between tokens.
    sin = sin.transpose(2, 3).contiguous().transpose(2, 3)
    for layout in ("half", "interleaved"):
        check(rotate_into(torch.empty_like(x), x, cos, sin, layout), rotate_in_float64(x, cos, sin, layout))


def test_what_is_not_a_number_stays_in_its_pair(device: str) -> None:
    x = torch.randn(1, 2, 5, 8, device=device)
    cos, sin = tables(x, 3)
    x[0, 1, 2, 0], x[0, 0, 4, 7] = torch.nan, torch.inf
    out = rotate_into(torch.empty_like(x), x, cos, sin, "interleaved")
    assert out.isnan().nonzero().tolist() == [[0, 1, 2, 0], [0, 1, 2, 1]] and out[0, 0, 4, 7] == torch.inf


@pytest.mark.parametrize("elements, table", [("fp32", "fp64"), ("bf16", "fp32"), ("fp16", "fp32")])
@pytest.mark.parametrize("interleaved", rest_slow([True, False], 1))
def test_it_compiles_for_a_gpu_to_wide_reads_without_any_exchange(
    interleaved: bool, elements: str, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """The compiler accepts the kernel without a GPU, and memory traffic is minimal."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    rotate_pairs_triton.program.cache_clear()
    program = rotate_pairs_triton.program()
    rotate_pairs_triton.program.cache_clear()
    constants = {"P": 64, "D": 160, "INTERLEAVED": interleaved, "INVERSE": False, "PER_HEAD": False}
    constants |= {"HEADS": 4, "ROWS": 16, "PAIRS": 64, "PASSED": 32, "out_d": 1, "x_d": 1, "cos_p": 1, "sin_p": 1}
    pointers = {"out": f"*{elements}", "x": f"*{elements}", "cos": f"*{table}", "sin": f"*{table}"}
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in program.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name not in constants}
    kernel = triton.compile(ASTSource(program, signature, constants, attributes), target=GPUTarget("cuda", 90, 32))
    moves = [line for line in kernel.asm["ptx"].splitlines() if "ld.global" in line or "st.global" in line]
    assert moves and all(".global.v" in line for line in moves)
    assert kernel.metadata.shared == 0 and "cubin" in kernel.asm


def test_why_not_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rotate_pairs_triton.why_not() == "there is no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rotate_pairs_triton.why_not() is None
    monkeypatch.setattr(rotate_pairs_triton, "find_spec", lambda name: None)
    assert "triton is not installed" in str(rotate_pairs_triton.why_not())
