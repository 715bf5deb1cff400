"""Defects that users of other libraries met, each as a promise here; docs/guides/known-defects.md is the list."""

import inspect
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiers import rest_slow
from torch import Tensor

from posenc import Attention, Decoder, Encoding, Keys, Positions, Shape, build, kernels, masks, names, testing
from posenc.catalogue import find
from posenc.encodings.added.learned import Learned
from posenc.encodings.distance_biases.t5_bias import T5Bias
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import (
    NTK,
    Clipped,
    DynamicLinear,
    DynamicNTK,
    DynamicYaRN,
    Linear,
    Llama3,
    LongRoPE,
    NTKByParts,
    NTKFixed,
    NTKMixed,
    PartNTK,
    Schedule,
    YaRN,
)
from posenc.testing import Subject, embeddings

HOME = Path(__file__).resolve().parents[2]
SHAPE = Shape(dim=24, heads=3, head_dim=8, max_len=32)
FAMILIES = ("sinusoidal", "learned(std=1)", "rotary", "alibi", "t5_bias(std=1)")
"""One of each kind: added to embeddings, without and with a table; turning; bias, without and with one."""

TURNING_OR_ADDED = [name for name in names() if find(name).doors & {"embed", "turn"}]


def model(encoding: str, **options) -> Decoder:
    """A small decoder, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Decoder(13, 16, 2, 2, encoding, max_len=32, **options).eval()


def turned_ones(position: int, frequencies: Tensor) -> list[float]:
    """A query of ones at a position, in the half layout, from Python's own cosine and sine."""
    angles = [position * frequency for frequency in frequencies.tolist()]
    return [math.cos(a) - math.sin(a) for a in angles] + [math.cos(a) + math.sin(a) for a in angles]


def plain_frequencies(head_dim: int) -> Tensor:
    return torch.tensor([10_000.0 ** (-2 * k / head_dim) for k in range(head_dim // 2)], dtype=torch.float64)


def on_axes_of(encoding: Encoding, ids: list[int]) -> Positions:
    """The same number on every axis that an encoding reads."""
    return Positions.of(torch.tensor(ids)[None, :, None].expand(1, -1, max(1, encoding.axes)))


def added_or_turned(encoding: Encoding, at: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    """What an encoding makes of ones: embeddings if it adds, else queries."""
    if "embed" in encoding.doors:
        return encoding.embed(torch.ones(1, at.tokens, SHAPE.dim, dtype=dtype), at)
    return encoding.query(torch.ones(1, SHAPE.heads, at.tokens, SHAPE.head_dim, dtype=dtype), at)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_of_a_model_leaves_its_angles_exact(dtype: torch.dtype) -> None:
    """huggingface/transformers#25681, #29496, #29285: a cast rounded the frequencies, and positions fell together."""
    encoding = model("rotary").to(dtype).stack.encoding_of[0]
    for position in (0, 257, 1857, 8191):
        actual = encoding.query(torch.ones(1, 2, 1, 8), Positions.count(1, position))[0, 0, 0].tolist()
        assert actual == pytest.approx(turned_ones(position, plain_frequencies(8)), abs=1e-6)


def test_float16_counts_past_2048_and_past_its_own_largest_number() -> None:
    """EleutherAI/gpt-neox#1003: position times frequency in float16 gave a cosine off by 0.78 at position 1857."""
    ids = [1857, 1858, 2049, 8191, 70_001]
    actual = Rotary(64).query(torch.ones(1, 1, len(ids), 64, dtype=torch.float16), Positions.of(torch.tensor(ids)))
    assert actual.dtype == torch.float16
    for row, position in zip(actual[0, 0].tolist(), ids, strict=True):
        # Half a unit in the last place of a number below 2.
        assert row == pytest.approx(turned_ones(position, plain_frequencies(64)), abs=2**-11 + 1e-6)


@pytest.mark.parametrize("name", TURNING_OR_ADDED)
def test_autocast_does_not_touch_the_angles_of_an_encoding(name: str) -> None:
    """huggingface/diffusers#13920: under autocast all positions from 65,536 on were one, and images one colour."""
    encoding = testing.make(find(name), SHAPE)
    ids = [65_536, 65_537, 65_538]
    try:
        expected = added_or_turned(encoding, on_axes_of(encoding, ids))
    except ValueError:
        # A learned table does not reach so far.
        ids = [11, 12, 13]
        expected = added_or_turned(encoding, on_axes_of(encoding, ids))
    # New positions, which hold no table from outside of autocast.
    with torch.autocast("cpu", torch.bfloat16):
        actual = added_or_turned(encoding, on_axes_of(encoding, ids))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TURNING_OR_ADDED)
def test_bfloat16_in_gives_bfloat16_out_whatever_was_called_before(name: str) -> None:
    """lucidrains/rotary-embedding-torch#9: bfloat16 came out as float32, and a float32 call before changed results."""
    encoding = testing.make(find(name), SHAPE).bfloat16()
    fresh = added_or_turned(encoding, on_axes_of(encoding, [3, 4, 5]), torch.bfloat16)
    assert fresh.dtype == torch.bfloat16
    used_encoding = on_axes_of(encoding, [3, 4, 5])
    added_or_turned(encoding, used_encoding)
    assert torch.equal(added_or_turned(encoding, used_encoding, torch.bfloat16), fresh)


@pytest.mark.parametrize("name", ["rotary", "xpos(centre=1000)", "sinusoidal", "axial_rotary"])
def test_bfloat16_tells_neighbours_apart_past_1000(name: str) -> None:
    """lucidrains/rotary-embedding-torch#9: positions were counted in bfloat16, and rows 1000, 1001, 1002 were one."""
    encoding = build(name, SHAPE)
    rows = added_or_turned(encoding, on_axes_of(encoding, [1000, 1001, 1002]), torch.bfloat16)
    assert rows.flatten(0, -3).select(0, 0).unique(dim=0).shape[0] == 3


@pytest.mark.parametrize("encoding", [*FAMILIES, "rotary(schedule=yarn(factor=4))", "fourier_rotary", "sandwich"])
def test_a_model_built_on_meta_needs_its_weights_and_no_further_call(encoding: str) -> None:
    """huggingface/transformers#45902, meta-pytorch/torchtune#1544: after meta and to_empty, angles were whatever lay
    in memory, or an error asked for a call that rebuilds a cache."""
    ids = torch.randint(13, (2, 9))
    real = model(encoding)
    with torch.device("meta"):
        empty = model(encoding)
    # A first use on meta must not leave anything there either.
    empty(ids.to("meta"))
    empty.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(math.nan)
    empty.load_state_dict(real.state_dict())
    assert torch.equal(empty(ids), real(ids))


@pytest.mark.parametrize("encoding", FAMILIES)
def test_a_left_padded_prompt_predicts_what_it_predicts_alone(encoding: str) -> None:
    """huggingface/transformers#22161, #18478: left padding shifted the positions of every shorter prompt."""
    decoder, ids = model(encoding), torch.randint(13, (3, 8))
    lengths = (8, 3, 5)
    together = decoder(ids, padding=torch.stack([torch.arange(8) >= 8 - n for n in lengths]))
    for row, n in enumerate(lengths):
        alone = decoder(ids[row : row + 1, 8 - n :])
        torch.testing.assert_close(together[row : row + 1, 8 - n :], alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("encoding", FAMILIES)
def test_every_packed_document_counts_from_0_and_predicts_what_it_predicts_alone(encoding: str) -> None:
    """pytorch/torchtitan#2559, allenai/OLMo-core#503: the second document went on counting where the first ended."""
    lengths = [4, 1, 6]
    at = Positions.packed(lengths)
    assert at.coords.flatten().tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5]
    decoder, ids = model(encoding), torch.randint(13, (1, sum(lengths)))
    packed = decoder(ids, positions=at).split(lengths, 1)
    for document, alone in zip(packed, ids.split(lengths, 1), strict=True):
        torch.testing.assert_close(document, decoder(alone), rtol=0, atol=2e-6)


@pytest.mark.parametrize("encoding", ["rotary", "alibi", "t5_bias(std=1)", "rotary + shaw(max_distance=3)"])
def test_the_position_of_a_token_travels_with_it_to_any_shard(encoding: str) -> None:
    """NVIDIA/Megatron-LM#5243: with packing and a split context, later documents got the angles of the first one.

    Tokens 0, 3, 4, 7 of two documents of four stood at 0, 3, 0, 3 of the whole row."""
    layer = Attention(24, 3, encoding=encoding, causal=True).eval()
    x, mask = torch.randn(1, 8, 24), masks.causal()
    one_count = Positions(torch.arange(8)[None, :, None], torch.arange(8)[None], torch.tensor([[0] * 4 + [1] * 4]))
    for at in (one_count, Positions.packed([4, 4])):
        whole = layer(x, positions=at, mask=mask)
        shards = torch.tensor([0, 3, 4, 7]), torch.tensor([1, 2, 5, 6])
        all_positions = torch.cat(shards)
        keys_at = Positions(at.coords[:, all_positions], at.order[:, all_positions], at.document[:, all_positions])
        for shard in shards:
            own_positions = Positions(at.coords[:, shard], at.order[:, shard], at.document[:, shard])
            actual = layer(x[:, shard], x[:, all_positions], positions=own_positions, key_positions=keys_at, mask=mask)
            torch.testing.assert_close(actual, whole[:, shard], rtol=0, atol=2e-6)
    assert one_count.coords[0, shards[0], 0].tolist() == [0, 3, 4, 7]


@pytest.mark.parametrize("name", names())
def test_a_position_past_the_trained_length_is_served_or_refused_with_position_and_remedy(name: str) -> None:
    """vllm-project/vllm#9965, meta-pytorch/torchtune, mosaicml's MPT: past a table the device asserted, the engine
    ended, or a shape did not fit. Here a request ends in numbers or in a ValueError, and the next one is served."""
    subject = Subject(name)
    net, x = subject.net(), embeddings(subject, 4)
    state = net(x, Positions.count(4).with_horizon(6000), masks.causal())
    at = Positions.of(torch.tensor([0, 1, 2, 5000])).with_horizon(6000)
    try:
        assert net(x, at, masks.causal()).isfinite().all()
    except ValueError as error:
        assert re.search(r"position \(?5000\b", str(error)) and re.search(r"\b5001\b|scale_base", str(error))
    assert torch.equal(net(x, Positions.count(4).with_horizon(6000), masks.causal()), state)


def test_a_learned_table_is_checked_before_anything_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface/transformers#97, facebookresearch/fairseq#757: "device-side assert triggered", far from the cause."""
    encoding = Learned(8, max_len=4)

    def gather(*_: object) -> None:
        raise AssertionError("the table was read")

    monkeypatch.setattr(F, "embedding", gather)
    for past in (Positions.count(5), Positions.of(torch.tensor([0, 4])), Positions.of(torch.tensor([0.0, 3.5]))):
        with pytest.raises(ValueError, match=r"position (4|3\.5) is past the learned table of 4 rows; .*max_len=5"):
            encoding.embed(torch.zeros(1, past.tokens, 8), past)


@pytest.mark.parametrize("spec", rest_slow(["alibi", "t5_bias", "deberta(buckets=8, max_distance=12)"], 2))
def test_dense_bias_closure_and_values_by_distance_are_one_definition(spec: str) -> None:
    """Dao-AILab/flash-attention#179, #606, huggingface/transformers#26350: every fast path needed the bias anew."""
    assert [verdict.word for verdict in testing.check(spec, ["evaluators_and_kernels_agree"])] == ["kept"]


# Both are torch's own: the first says that eager FlexAttention is slow, the second comes of tracing it.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The .grad attribute")
@pytest.mark.parametrize(
    "spec",
    rest_slow(
        [
            "t5_bias(std=1)",
            "deberta(buckets=8, max_distance=12, std=1)",
            "alibi",
            "shaw(max_distance=3, values=False, std=1)",
        ],
        1,
    ),
)
def test_the_closure_of_a_bias_is_one_that_flex_attention_takes(spec: str) -> None:
    """huggingface/transformers#31167, meta-pytorch/attention-gym#20: T5's and DeBERTa's bias inside FlexAttention."""
    from torch.nn.attention.flex_attention import flex_attention

    encoding, at = build(spec, SHAPE), Positions.count(9)
    q, k, v = torch.randn(3, 2, 3, 9, 8)
    keys = Keys(k, v, at)
    actual = flex_attention(q, k, v, score_mod=encoding.biases(q, at, keys)[0].closure())
    expected, _ = kernels.bind("reference", encoding, scale=8**-0.5)(encoding, q, at, keys, masks.bidirectional())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    plain = F.scaled_dot_product_attention(q, k, v)
    assert (actual - plain).abs().max() > 0.01


def test_t5_looks_up_one_bucket_for_each_distance_of_tokens_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface/transformers#47014: buckets, and gradients through them, for each pair of tokens in each layer."""
    lookups: list[int] = []
    bucket = T5Bias.bucket
    monkeypatch.setattr(T5Bias, "bucket", lambda self, delta: (lookups.append(delta.numel()), bucket(self, delta))[1])
    encoding, at = T5Bias(3), Positions.count(50)
    q = torch.zeros(2, 3, 50, 8)
    encoding.bias(at)
    kernels.bind("sdpa", encoding, scale=1.0)(encoding, q, at, Keys(q, q, at), masks.causal())
    assert lookups == [99, 50]


@pytest.mark.parametrize(
    "spec",
    ["t5_bias(buckets=8, max_distance=12)", "alibi(learned=True)", "fire", "deberta(buckets=8, max_distance=12)"],
)
def test_a_learned_bias_gets_the_same_gradients_through_every_kernel_and_every_time(spec: str) -> None:
    """meta-pytorch/attention-gym#20, pytorch/pytorch#145208: a bias with gradients was refused, crashed, or gave other
    gradients each time."""
    encoding, at = build(spec, SHAPE), Positions.count(9)
    q, k, v = torch.randn(3, 2, 3, 9, 8)
    weight = torch.randn(2, 3, 9, 8)

    def slopes(kernel: str) -> list[Tensor]:
        out, _ = kernels.bind(kernel, encoding, scale=0.3)(encoding, q, at, Keys(k, v, at), masks.causal())
        return list(torch.autograd.grad((out * weight).sum(), list(encoding.parameters())))

    expected = slopes("reference")
    assert all(slope.isfinite().all() for slope in expected) and any(bool((slope != 0).any()) for slope in expected)
    for kernel in kernels.KERNELS:
        if kernels.why_not(kernel, encoding, q=q) is not None:
            continue
        for actual, again, right in zip(slopes(kernel), slopes(kernel), expected, strict=True):
            torch.testing.assert_close(actual, right, rtol=1e-4, atol=1e-5)
            assert torch.equal(actual, again)


@pytest.mark.parametrize("spec", ["rotary", "rotary + alibi", "t5_bias(std=1)", "shaw(max_distance=3, values=False)"])
def test_weights_on_request_are_those_that_the_fused_kernel_applied(spec: str) -> None:
    """Dao-AILab/flash-attention#159, pytorch/pytorch#119811: how do I get the attention map of a fused kernel?"""
    encoding, at = build(spec, SHAPE), Positions.count(9)
    q, k = torch.randn(2, 2, 3, 9, 8)
    q, keys = encoding.query(q, at), Keys(encoding.key(k, at), torch.eye(9).expand(2, 3, 9, 9), at)
    # With the values of an identity, the output of the fused kernel is its weights.
    product, no_weights = kernels.bind("sdpa", encoding, scale=0.3)(encoding, q, at, keys, masks.causal())
    _, weights = kernels.bind("auto", encoding, scale=0.3, need_weights=True)(encoding, q, at, keys, masks.causal())
    assert no_weights is None
    torch.testing.assert_close(weights, product, rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", [*FAMILIES, "rotary(schedule=dynamic_ntk(factor=2)) + alibi"])
def test_no_sequence_of_lengths_offsets_dtypes_and_modes_leaves_anything_behind(encoding: str) -> None:
    """lucidrains/rotary-embedding-torch#11, #27, #48, lucidrains/x-transformers#90, Dao-AILab/flash-attention#299.

    A cache ignored the offset, the shape or the dtype, or was made in inference mode and could not be trained."""
    called_encoding, ids = model(encoding), torch.randint(13, (2, 30))

    def call(decoder: Decoder, length: int, offset: int, dtype: torch.dtype, inference: bool) -> Tensor:
        at = Positions.count(length, offset).with_horizon(32)
        decoder.to(dtype)
        with torch.inference_mode(inference):
            out = decoder(ids[:, :length], positions=at).clone()
        if not inference:
            out.sum().backward()
        decoder.float()
        return out.detach()

    full, half = torch.float32, torch.bfloat16
    calls = [(5, 0, full, True), (30, 0, full, False), (5, 0, full, False), (5, 7, full, False)]
    calls += [(1, 29, half, True), (9, 0, half, False), (9, 0, full, True), (9, 3, half, False), (5, 0, full, False)]
    # The first cast rounds the weights, which is what a cast is for.
    called_encoding.bfloat16().float()
    for number, expected in enumerate(calls):
        fresh = model(encoding).bfloat16().float()
        assert torch.equal(call(called_encoding, *expected), call(fresh, *expected)), f"call {number}: {expected}"


@pytest.mark.parametrize("spec", rest_slow(["rotary", "alibi", "t5_bias", "sinusoidal"], 1))
def test_ten_lengths_compile_to_at_most_two_graphs(spec: str) -> None:
    """huggingface/transformers#36484, Dao-AILab/quack#150: a graph for every length, until the compiler gives up."""
    from torch._dynamo.testing import CompileCounter

    encoding = build(spec, SHAPE)

    def use(x: Tensor) -> Tensor:
        at = Positions.count(x.shape[1])
        x = encoding.embed(x, at)
        q = x.unflatten(-1, (3, 8)).transpose(1, 2)
        keys = Keys(encoding.key(q, at), q, at)
        return kernels.bind("sdpa", encoding, scale=1.0)(encoding, encoding.query(q, at), at, keys, masks.causal())[0]

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled_model = torch.compile(use, backend=counter, fullgraph=True)
    with torch.no_grad():
        for length in (33, 70, 129, 257, 300, 511, 40, 200, 64, 17):
            x = torch.randn(1, length, 24)
            torch.testing.assert_close(compiled_model(x), use(x))
    torch._dynamo.reset()
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("head_dim", range(1, 10))
@pytest.mark.parametrize("partial", [1.0, 0.5, 0.25])
def test_an_odd_or_tiny_rotary_width_is_refused_at_construction_or_passes_the_remainder(
    head_dim: int, partial: float
) -> None:
    """huggingface/transformers#35233, #48217, lucidrains/rotary-embedding-torch#45: odd and tiny widths crashed deep
    inside, or heads narrower than 32 were advised against."""
    width = int(head_dim * partial)
    if width < 2 or width % 2:
        with pytest.raises(ValueError, match=f"rotary width must be an even number .* got {width}"):
            Rotary(head_dim, partial=partial)
        return
    q = torch.randn(1, 1, 1, head_dim)
    rotated_x = Rotary(head_dim, partial=partial).query(q, Positions.count(1, 1))
    assert torch.equal(rotated_x[..., width:], q[..., width:]) and not torch.equal(
        rotated_x[..., :width], q[..., :width]
    )
    torch.testing.assert_close(rotated_x.norm(), q.norm())


SCHEDULES = [
    Linear(4),
    DynamicLinear(4096),
    NTK(4),
    NTKFixed(4),
    NTKMixed(4),
    NTKByParts(4, 4096),
    PartNTK(4, 4096),
    DynamicNTK(4, 4096),
    DynamicYaRN(2, 4096),
    YaRN(4, 4096),
    YaRN(4, 4096, mscale=1.0, mscale_all_dim=0.5),
    YaRN(4, 4096, attention_factor=1.1),
    Llama3(4, 4096),
    LongRoPE(4, tuple(1 + k / 99 for k in range(32)), tuple(1 + k / 9 for k in range(32)), 4096),
    Clipped(trained_length=4096),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_no_number_of_a_schedule_is_ignored(schedule: Schedule) -> None:
    """keras-team/keras-hub: a scaling factor that changed nothing; vllm-project/vllm#46280: an explicit one ignored."""
    horizon = torch.tensor([4096, 30_000]) if schedule.by_horizon else None

    def spectrum(schedule: Schedule) -> Tensor:
        frequencies, temperature = schedule(plain_frequencies(64), base=10_000.0, width=64, horizon=horizon)
        return torch.cat((frequencies.flatten(), torch.as_tensor(temperature).double().flatten()))

    plain = spectrum(schedule)
    for field in fields(schedule):
        value = getattr(schedule, field.name)
        if value is None or isinstance(value, str):
            continue
        changed_value = (*value[:-1], value[-1] * 2) if isinstance(value, tuple) else value * 2
        new_value = not value if isinstance(value, bool) else changed_value
        changed_schedule = spectrum(replace(schedule, **{field.name: new_value}))
        assert changed_schedule.shape != plain.shape or not torch.equal(changed_schedule, plain), (
            f"{field.name}={new_value} changes nothing"
        )


def test_tokens_past_the_trained_length_are_turned_however_their_offset_is_known() -> None:
    """flash-attention, flash-linear-attention: past the table, tokens with tensor offsets were not rotated or zeroed.

    torchtune's docstring promises a longer cache that nothing builds."""
    encoding = model("rotary").stack.encoding_of[0]
    starts, q = torch.tensor([5000, 31]), torch.ones(2, 2, 3, 8)
    rows = encoding.query(q, Positions.of(starts[:, None] + torch.arange(3)))
    for row, start in enumerate(starts.tolist()):
        alone = encoding(q[:1], q[:1], offset=start)[0]
        assert torch.equal(rows[row : row + 1], alone)
        for token in range(3):
            expected = turned_ones(start + token, plain_frequencies(8))
            assert rows[row, 1, token].tolist() == pytest.approx(expected, abs=1e-6)


def rows_of_the_guide() -> list[tuple[str, str, str]]:
    """What goes wrong elsewhere, the promise, and the tests, of every row of the guide's tables.

    In front of them one table also has the library and its release.
    """
    text = (HOME / "docs" / "guides" / "known-defects.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    rows = [tuple(cell.strip() for cell in row) for row in rows]
    assert all(len(row) == 3 or (len(row) == 5 and row[0] and row[1]) for row in rows)
    return [row[-3:] for row in rows if row[-1] != "tests"]


def test_every_test_that_the_guide_names_exists() -> None:
    names = [name for *_, tests in rows_of_the_guide() for name in re.findall(r"`([\w/]+\.py::\w+)`", tests)]
    assert len(set(names)) > 40
    for name in names:
        file, function = name.split("::")
        assert re.search(rf"^def {function}\(", (HOME / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_every_row_of_the_guide_names_a_test_or_says_why_there_is_none() -> None:
    rows = rows_of_the_guide()
    assert len(rows) >= 43
    for elsewhere, promise, tests in rows:
        assert re.search(r"\w", promise), elsewhere
        assert "::" in tests or tests.startswith("none yet: "), elsewhere


def test_every_test_of_this_file_stands_in_the_guide() -> None:
    names = {name for name, value in globals().items() if name.startswith("test_") and inspect.isfunction(value)}
    guide_names = {name for *_, tests in rows_of_the_guide() for name in re.findall(r"known_defects\.py::(\w+)", tests)}
    assert {name for name in names if "guide" not in name} == guide_names
