"""FlashAttention by name, with a stand-in for the package that computes the documented formula."""

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from posenc import Attention, Decoder, Positions, kernels, masks
from posenc.encodings.none import NoPE
from posenc.kernels import flash

T, CALLS = 7, []
MASKS = ["causal", None, masks.window(3), masks.window(3, causal=False), masks.window(1)]

REFUSALS = {
    "returns no attention weights": ({}, {"need_weights": True}),
    "no gradient of the sums": ({"sinks": True}, {}),
    r"up to 256 channels in half precision, got \[1, 2, 7, 264\]": ({"head_dim": 264}, {}),
    "no more of a mask than a window, and got a tensor": ({}, {"mask": torch.ones(T, T).tril().bool()}),
    "no more of a mask than a window, and got a prefix": ({}, {"mask": masks.prefix(3)}),
    "as they lie, the queries as the last, and got padding, doc": ({}, {"positions": Positions.packed([3, 4])}),
    "takes tokens as they lie": ({}, {"key": torch.zeros(1, T + 2, 16).half(), "mask": "causal"}),
    "a soft-cap adds something else": ({"softcap": 2.0}, {}),
    r"no gradient of alibi\(learned=True\)": ({"encoding": "alibi(learned=True)"}, {}),
    "a slope times the distance of tokens in a row; kerple or": ({"encoding": "kerple"}, {}),
    "a row; alibi.form='asymmetric'. or": ({"encoding": "alibi(form=asymmetric)"}, {}),
    r"a row; alibi \+ sandwich or": ({"encoding": "alibi + sandwich"}, {}),
    "a row; alibi or": ({"encoding": "alibi"}, {"positions": Positions.grid(T - 1, prefix=1)}),
}


def flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, **options) -> Tensor:
    """Compute the documented formula: masks and distances count from the last query and key."""
    CALLS.append(window_size)
    assert q.dtype == k.dtype == v.dtype == torch.float16 and not dropout_p and not options["deterministic"]
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    back = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    slopes = options.get("alibi_slopes", torch.zeros(q.shape[1]))
    assert slopes.shape == q.shape[1:2] and slopes.dtype == torch.float32
    logits = softmax_scale * q @ k.mT - slopes[:, None, None] * back.abs()
    left, right = (math.inf if size < 0 else size for size in window_size)
    visible = (back <= left) & (-back <= (0 if causal else right))
    return (logits.masked_fill(~visible, -math.inf).softmax(-1) @ v).transpose(1, 2).half()


@pytest.fixture(autouse=True)
def install_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    vars(sys.modules["flash_attn"])["flash_attn_func"] = flash_attn_func
    monkeypatch.setattr(flash, "IS_INSTALLED", True)
    monkeypatch.setattr(kernels, "device_of", lambda x: "cuda")


@pytest.mark.parametrize("spec", ["none", "rotary", "alibi", "rotary + alibi(form=falcon)", "on(alibi, heads=(3, 1))"])
def test_outputs_and_gradients_are_those_of_the_readable_kernel(spec: str) -> None:
    torch.manual_seed(0)
    layer, x = Attention(32, heads=4, kv_heads=2, encoding=spec).half(), torch.randn(2, T, 32).half()
    for mask in MASKS:
        results = []
        for layer.kernel in ("flash", "reference"):
            out = layer(x, mask=mask)
            results.append((out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
        torch.testing.assert_close(results[0], results[1], rtol=1e-2, atol=1e-2)
    assert CALLS == [(-1, -1), (-1, -1), (2, 0), (2, 2), (0, 0)]


@torch.no_grad()
def test_a_cache_is_read_to_its_end() -> None:
    torch.manual_seed(0)
    sizes = {"dim": 32, "heads": 4, "layers": 2, "window": (3, None), "encoding": "rotary + alibi(learned=True)"}
    model, readable = (Decoder(11, **sizes, kernel=kernel).half() for kernel in ("flash", "reference"))
    readable.load_state_dict(model.state_dict())
    ids, cache = torch.randint(11, (2, T)), model.cache()
    actual = torch.cat([model(part, cache=cache) for part in ids.split([4, 1, 2], 1)], 1)
    torch.testing.assert_close(actual, readable(ids), rtol=0, atol=5e-3)
    assert CALLS == [(2, 0), (-1, -1)] * 3


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_it_cannot_do_is_refused(reason: str) -> None:
    options, call = REFUSALS[reason]
    layer = Attention(16, **{"heads": 2, "encoding": "none", "kernel": "flash"} | options).half()
    with torch.set_grad_enabled("learned" in reason), pytest.raises(ValueError, match=f"{reason}.*use kernel="):
        layer(torch.zeros(1, T, 16).half(), **call)


def test_a_graph_holds_it_without_slopes_and_auto_never_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    layer, x = Attention(16, 2, encoding="rotary", kernel="flash").half(), torch.zeros(1, T, 16).half()
    assert torch.compile(layer, backend="eager", fullgraph=True)(x, mask="causal").shape == x.shape
    monkeypatch.setattr(flash, "may_be_read", lambda: False)
    with pytest.raises(ValueError, match="slopes in numbers, and nothing reads them while a graph is made; use"):
        Attention(16, 2, encoding="alibi", kernel="flash").half()(x)
    assert kernels.choose("auto", NoPE(), q=x[None], device="cuda") != "flash"
    assert "takes a batch" in str(kernels.why_not("flash", NoPE(), q=x[:0, None], device="cuda"))
    assert "is for CUDA, got queries on 'cpu'; use" in str(kernels.why_not("flash", NoPE(), device="cpu"))
    monkeypatch.setattr(flash, "IS_INSTALLED", False)
    assert "pip install flash-attn --no-build-isolation" in str(kernels.why_not("flash", NoPE(), device="cuda"))
