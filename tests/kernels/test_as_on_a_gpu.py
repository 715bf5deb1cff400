"""Kernels, dtypes and memory on a GPU, checked on the meta device."""

from typing import Any

import gpu_stand_in
import pytest
import torch
from tiers import THIRD, rest_slow, slow_by_ending

from posenc import ALiBi, Decoder, Encoder, NoPE, Positions, Shape, catalogue, kernels, masks

TOKENS, DIM, HEADS = 8192, 512, 8
FLEX_SPECS = ("alibi", "t5_bias", "kerple", "sandwich", "mlp_bias", "forgetting", "deberta", "fire", "inkling", "tupe")
FLEX_SPECS += ("grid_bias", "log_grid_bias", "rerope", "self_extend", "dual_chunk")
SUMS = ("alibi(learned=True)", "alibi + t5_bias", "rotary + alibi", "alibi + forgetting", "on(alibi, heads=(0, 2))")
LONGROPE = f"longrope(factor=4, short_factor={(1.0,) * 32}, long_factor={(2.0,) * 32})"
SCHEDULES = ("rotary(schedule=yarn(factor=4))", "proportional_rotary(schedule=llama3(factor=4))")
SCHEDULES += ("rotary(schedule=dynamic_ntk(factor=2))", f"rotary(schedule={LONGROPE})")

IN_ROWS = {"contextual": 12, "dape": 10, "path": 4, "shaw": 4, "stick_breaking": 2, "transformer_xl": 5}
"""Largest memory of 4,096 tokens, as a multiple of "none", where pairs are computed for some queries at a time."""

MEMORY_RATIOS = {"polar": 1.7, "selective_rotary": 2.9, "mixed_rotary": 1.7, "log_grid_bias": 2.8, "deberta": 6.2}
MEMORY_RATIOS |= {"inkling": 7.4, "tupe": 1.6, "rerope": 2.2, "self_extend": 2.2, "dual_chunk": 3.1}
"""Largest memory of a step, as a multiple of "none", where it is over 1.3."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[gpu_stand_in.KernelCall]:
    return gpu_stand_in.install_gpu_stand_in(monkeypatch)


def axes_of(spec: str) -> int:
    return catalogue.build(spec, Shape(DIM, HEADS, DIM // HEADS, 256)).axes


def memory(
    spec: str, dtype: torch.dtype, work: str, *, tokens: int = TOKENS, layers: int = 2, **options: Any
) -> gpu_stand_in.MemoryMeter:
    """Measure the memory of some layers in a training step, a prefill or a decoding step."""
    factory: dict[str, Any] = {"device": "meta", "dtype": dtype}
    call = {name: options.pop(name) for name in ("positions", "mask") if name in options}
    if axes_of(spec) > 1:
        model = Encoder(50, DIM, HEADS, layers, spec, max_len=256, **factory, **options)
        call["positions"] = Positions.grid(64, tokens // 64, device="meta")
    else:
        model = Decoder(50, DIM, HEADS, layers, spec, max_len=2 * TOKENS, **factory, **options)
    model.train(work == "train")
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.set_grad_enabled(work == "train"):
        if work == "decode":
            call["cache"] = model.cache()
            model(ids, **call)
            ids = ids[:, :1]
        with gpu_stand_in.MemoryMeter() as meter:
            out = model(ids, **call)
            if work == "train":
                out.sum().backward()
    return meter


WORK = [(work, dtype) for work in ("train", "prefill", "decode") for dtype in (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("case", rest_slow([*WORK[::2], *WORK[1::2]], 3), ids=str)
def test_no_matrix_of_pairs_is_made_and_nothing_is_widened_or_copied(case: tuple[str, torch.dtype], calls) -> None:
    work, dtype = case
    plain = memory("none", dtype, work)
    # FoPE draws its random numbers on the CPU, once for each device: a first call keeps them out of the count.
    memory("fourier_rotary", dtype, "prefill", tokens=1)
    for spec in [*catalogue.names(), *SUMS, *SCHEDULES]:
        if spec in IN_ROWS or (work == "decode" and axes_of(spec) > 1):
            continue
        calls.clear()
        meter = memory(spec, dtype, work)
        in_flex = work != "decode" and (spec in FLEX_SPECS or spec in SUMS)
        attention = [call for call in calls if call.kernel != "triton"]
        attention = attention if in_flex else attention[-2:]
        assert {(call.kernel, *call.dtypes) for call in attention} == {("flex" if in_flex else "sdpa", dtype)}, spec
        # Inkling computes 1,024 distances for each query of 8 heads: as many numbers as pairs of one head.
        assert meter.largest < (2 if spec == "inkling" else 1) * TOKENS * TOKENS, spec
        assert meter.peak <= MEMORY_RATIOS.get(spec, 1.3) * plain.peak, (spec, meter.peak / plain.peak)
        assert not meter.from_cpu, spec


@torch.no_grad()
def test_neither_given_ids_nor_the_places_in_a_cache_are_read(calls) -> None:
    ids = torch.zeros(1, 40, dtype=torch.long, device="meta")
    for spec in catalogue.names()[THIRD::3]:
        if axes_of(spec) == 1:
            model = Decoder(50, 64, 4, 1, spec, max_len=2048, device="meta")
            for cache, positions in ((model.cache(slots=50), None), (model.cache(), ids), (model.cache(slots=50), ids)):
                model(ids, cache=cache, positions=positions)
                with gpu_stand_in.MemoryMeter() as meter:
                    model(ids[:, :2], cache=cache, positions=None if positions is None else positions[:, :2])
                assert not meter.from_cpu, spec


@torch.no_grad()
def test_a_gpu_stops_at_what_a_cpu_refuses(monkeypatch) -> None:
    def stop(holds: torch.Tensor, words: str) -> None:
        if not holds:
            raise RuntimeError(words)

    monkeypatch.setattr(torch, "_assert_async", stop)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    ids = torch.tensor([[1, 2]])
    far, model = Positions.of(9000 * ids), Decoder(50, 64, 4, 1, "rotary", max_len=8)
    cache = model.cache(slots=3)
    model(ids, positions=Positions.of(ids, order=ids), cache=cache)
    for words, call in {
        "token ids must lie in 0..49; check": lambda: model(ids + 49),
        "position ids must not be negative; say which": lambda: Positions.of(ids - 2),
        "out of the 8 rows of learned": lambda: Decoder(50, 64, 4, 1, "learned", max_len=8)(ids, positions=far),
        "out of the 8 rows of tupe": lambda: Decoder(50, 64, 4, 1, "tupe", max_len=8)(ids, positions=far),
        "tables of learned_factorised": lambda: Decoder(50, 64, 4, 1, "learned_factorised")(ids, positions=far),
        "positions from the centre of xpos": lambda: Decoder(50, 64, 4, 1, "xpos(scale_base=1)")(ids, positions=far),
        "behind those that the cache holds": lambda: model(ids, positions=Positions.of(ids, order=ids), cache=cache),
        "no slot in a cache of 3": lambda: model(ids, positions=Positions.of(ids, order=ids + 4), cache=cache),
    }.items():
        with pytest.raises(RuntimeError, match=words):
            call()


@pytest.mark.parametrize("work", ["prefill", "decode"])
def test_a_layer_turns_queries_and_keys_in_one_launch_each(work: str, calls) -> None:
    launches = {}
    for spec in ("none", "rotary"):
        single, double = (memory(spec, torch.bfloat16, work, tokens=512, layers=layers).operators for layers in (1, 2))
        launches[spec] = double - single
    # Beside the launches, rotary adds only a view of the table and the two outputs.
    assert launches["rotary"] <= launches["none"] + 3 and launches["none"] <= 51, launches
    assert [call.kernel for call in calls[-3:]] == ["triton", "triton", "sdpa"]


@pytest.mark.parametrize("spec", slow_by_ending(IN_ROWS, ("path",)))
def test_what_does_not_fuse_is_written_out_for_some_queries_at_a_time(spec: str, calls) -> None:
    meter, plain = (memory(name, torch.bfloat16, "prefill", tokens=4096) for name in (spec, "none"))
    assert not meter.from_cpu
    assert meter.largest <= HEADS // 2 * 4096 * 4096
    assert meter.peak <= IN_ROWS[spec] * plain.peak, meter.peak / plain.peak


def test_the_proof_sees_a_matrix_of_pairs_and_queries_that_are_widened(calls, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "AUTO_ON_CUDA", ("sdpa", "reference"))
    meter = memory("alibi", torch.bfloat16, "prefill")
    assert meter.largest >= HEADS * TOKENS * TOKENS and calls[0].other_inputs[0][0] == (1, HEADS, TOKENS, TOKENS)
    calls.clear()
    q = torch.zeros(1, HEADS, 4, 64, device="meta", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q.float(), q.float(), q.float())
    assert calls[0].dtypes == {torch.float32}


@pytest.mark.parametrize(
    "options",
    [
        {"mask": masks.window(300)},
        {"mask": masks.prefix(40)},
        {"positions": Positions.packed([5000, 3192]).to("meta")},
        {"sinks": True},
        {"softcap": 30.0},
    ],
    ids=str,
)
def test_masks_sinks_and_soft_caps_are_fused(options: dict[str, Any], calls) -> None:
    for spec in ("none", "rotary", "alibi"):
        calls.clear()
        meter = memory(spec, torch.bfloat16, "train", **options)
        assert {call.kernel for call in calls} - {"triton"} == {"flex"}, spec
        assert meter.largest < TOKENS * TOKENS


def test_a_bias_at_given_ids_is_spread_for_some_queries_at_a_time(calls) -> None:
    at = Positions.of(torch.zeros(1, TOKENS, dtype=torch.long, device="meta"))
    plain = memory("none", torch.bfloat16, "train")
    for spec in ("alibi", "fire", "rotary + t5_bias"):
        meter = memory(spec, torch.bfloat16, "train", positions=at)
        assert meter.largest < TOKENS * TOKENS and meter.peak < 4 * plain.peak, meter.peak / plain.peak


def test_short_sequences_take_one_mask_in_the_dtype_of_the_queries(calls) -> None:
    for spec in ("alibi", "forgetting", "t5_bias"):
        memory(spec, torch.bfloat16, "train", tokens=512)
        assert {call.kernel for call in calls} == {"sdpa"}
        assert {dtype for _, dtype in calls[0].other_inputs} == {torch.bfloat16}


def test_the_choice_takes_the_device_as_an_argument() -> None:
    assert kernels.choose("auto", ALiBi(4)) == "blocked"
    assert kernels.choose("auto", ALiBi(4), device="cuda") == "flex"
    assert kernels.choose("auto", NoPE(), device="cuda", dropout=0.1) == "sdpa"
    q = torch.empty(1, 2, 4, 8)
    assert kernels.choose("auto", NoPE(), q=q, device="cuda") == "sdpa"
    reason = kernels.why_not("flex", NoPE(), q=q, device="cuda")
    assert reason is not None and "takes heads of 16 channels or more in single or half precision, got 8 in" in reason
    assert "for the CPU, got queries on 'cuda'" in str(kernels.why_not("blocked", NoPE(), device="cuda"))
