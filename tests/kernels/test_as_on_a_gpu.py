"""What a GPU is asked for, proved without one: which kernel serves, in which dtype, and what is held meanwhile."""

from typing import Any

import gpu_stand_in
import pytest
import torch
from tiers import rest_slow

from posenc import ALiBi, Decoder, Encoder, NoPE, Positions, Shape, catalogue, kernels, masks

TOKENS, DIM, HEADS = 8192, 512, 8
BIASED = ("alibi", "t5_bias", "kerple", "sandwich", "mlp_bias", "forgetting", "deberta")
SUMS = ("alibi(learned=True)", "alibi + t5_bias", "rotary + alibi", "alibi + forgetting", "on(alibi, heads=(0, 2))")

WRITTEN_OUT = {"contextual", "fire", "inkling", "transformer_xl", "tupe", "grid_bias", "log_grid_bias"}
WRITTEN_OUT |= {"dual_chunk", "rerope", "self_extend"}
"""Biases that a fused kernel cannot take in yet: a pair takes a product, or a distance on several axes."""

OWN_RULES = {"dape", "path", "shaw", "stick_breaking"}
"""Encodings with a rule of their own, or whose rule reads the weights."""

MORE = {"polar": 1.7, "selective_rotary": 2.9, "mixed_rotary": 1.7, "deberta": 6.2}
"""Encodings of content, or with a table for each head, that hold more than 1.3 of what a step holds without them."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[gpu_stand_in.Served]:
    return gpu_stand_in.stand_in(monkeypatch)


def axes_of(spec: str) -> int:
    return catalogue.build(spec, Shape(DIM, HEADS, DIM // HEADS, 256)).axes


def memory(spec: str, dtype: torch.dtype, work: str, *, tokens: int = TOKENS, **options: Any) -> gpu_stand_in.Memory:
    """What two layers hold in a step of training, for a prompt, or for a token behind it."""
    made: dict[str, Any] = {"device": "meta", "dtype": dtype}
    given = {name: options.pop(name) for name in ("positions", "mask") if name in options}
    if axes_of(spec) > 1:
        model = Encoder(50, DIM, HEADS, 2, spec, max_len=256, **made, **options)
        given["positions"] = Positions.grid(64, tokens // 64, device="meta")
    else:
        model = Decoder(50, DIM, HEADS, 2, spec, max_len=2 * TOKENS, **made, **options)
    model.train(work == "train")
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.set_grad_enabled(work == "train"):
        if work == "decode":
            given["cache"] = model.cache()
            model(ids, **given)
            ids = ids[:, :1]
        with gpu_stand_in.Memory() as held:
            out = model(ids, **given)
            if work == "train":
                out.sum().backward()
    return held


WORK = [(work, dtype) for work in ("train", "prefill", "decode") for dtype in (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("case", rest_slow([*WORK[::2], *WORK[1::2]], 4), ids=str)
def test_no_matrix_of_pairs_is_made_and_nothing_is_widened(case: tuple[str, torch.dtype], calls) -> None:
    work, dtype = case
    plain = memory("none", dtype, work)
    for spec in [*catalogue.names(), *SUMS]:
        if spec in WRITTEN_OUT | OWN_RULES or (work == "decode" and axes_of(spec) > 1):
            continue
        calls.clear()
        held = memory(spec, dtype, work)
        attention = [call for call in calls if call.kernel != "triton"][-2:]
        fused = work != "decode" and (spec in BIASED or spec in SUMS)
        assert [(call.kernel, call.dtypes) for call in attention] == [("flex" if fused else "sdpa", {dtype})] * 2, spec
        assert held.largest < TOKENS * TOKENS, spec
        assert held.peak <= MORE.get(spec, 1.3) * plain.peak, (spec, held.peak / plain.peak)


def test_the_proof_sees_a_matrix_of_pairs_and_queries_that_are_widened(calls, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "AUTO_ON_CUDA", ("sdpa", "reference"))
    held = memory("alibi", torch.bfloat16, "prefill")
    assert held.largest >= HEADS * TOKENS * TOKENS and calls[0].beside[0].shape == (1, HEADS, TOKENS, TOKENS)
    calls.clear()
    made = torch.zeros(1, HEADS, 4, 64, device="meta", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(made.float(), made.float(), made.float())
    assert calls[0].dtypes == {torch.float32}


@pytest.mark.parametrize("spec", sorted(WRITTEN_OUT))
def test_what_is_written_out_is_known(spec: str, calls) -> None:
    assert memory(spec, torch.bfloat16, "prefill", tokens=1024).largest >= 1024 * 1024


@pytest.mark.parametrize(
    "asked",
    [
        {"mask": masks.window(300)},
        {"mask": masks.prefix(40)},
        {"positions": Positions.packed([5000, 3192]).to("meta")},
        {"sinks": True},
        {"softcap": 30.0},
    ],
    ids=str,
)
def test_masks_sinks_and_soft_caps_are_fused(asked: dict[str, Any], calls) -> None:
    for spec in ("none", "rotary", "alibi"):
        calls.clear()
        held = memory(spec, torch.bfloat16, "train", **asked)
        assert {call.kernel for call in calls} - {"triton"} == {"flex"}, spec
        assert held.largest < TOKENS * TOKENS


def test_short_sequences_take_one_mask_in_the_dtype_of_the_queries(calls) -> None:
    for spec in ("alibi", "forgetting", "t5_bias"):
        memory(spec, torch.bfloat16, "train", tokens=512)
        assert {call.kernel for call in calls} == {"sdpa"} and {x.dtype for x in calls[0].beside} == {torch.bfloat16}


def test_the_choice_takes_the_device_as_an_argument() -> None:
    assert kernels.choose("auto", ALiBi(4)) == "blocked"
    assert kernels.choose("auto", ALiBi(4), device="cuda") == "flex"
    assert kernels.choose("auto", NoPE(), device="cuda", dropout=0.1) == "sdpa"
    q = torch.empty(1, 2, 4, 8)
    assert kernels.choose("auto", NoPE(), q=q, device="cuda") == "sdpa"
    reason = kernels.why_not("flex", NoPE(), q=q, device="cuda")
    assert reason is not None and "takes heads of 16 channels or more in single or half precision, got 8 in" in reason
    assert "for the CPU, got queries on 'cuda'" in str(kernels.why_not("blocked", NoPE(), device="cuda"))
