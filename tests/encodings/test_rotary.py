"""Rotary encoding agrees with mpmath at large positions, however positions are given."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Positions, XPos, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.encoding.formulas import Token
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import DynamicLinear, DynamicNTK, DynamicYaRN, LongRoPE, Resonance, Schedule, YaRN

LAYOUTS = ["half", "interleaved"]


def pairs_of(width: int, layout: str) -> list[tuple[int, int]]:
    return [(k, k + width // 2) if layout == "half" else (2 * k, 2 * k + 1) for k in range(width // 2)]


def rotated(
    x: Tensor, places: list[float], *, width: int | None = None, base: float = 10_000.0, layout: str = "half"
) -> Tensor:
    """Rotate x [B, H, T, D] pair by pair in float64, with 40-digit angles."""
    width = x.shape[-1] if width is None else width
    out = x.double().clone()
    with mpmath.workdps(40):
        for k, (first, second) in enumerate(pairs_of(width, layout)):
            frequency = mpmath.mpf(base) ** (-mpmath.mpf(2 * k) / width)
            cos = torch.tensor([float(mpmath.cos(p * frequency)) for p in places], dtype=torch.float64)
            sin = torch.tensor([float(mpmath.sin(p * frequency)) for p in places], dtype=torch.float64)
            a, b = x[..., first].double(), x[..., second].double()
            out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


PLACES = [0.0, 1.0, 2.5, -7.0, 4095.0, 131_071.0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("head_dim", "partial"), [(2, 1.0), (6, 1.0), (16, 1.0), (10, 0.6), (7, 4 / 7), (16, 0.25)])
def test_queries_and_keys_are_turned_as_published(layout: str, head_dim: int, partial: float) -> None:
    encoding = Rotary(head_dim, layout=layout, partial=partial)
    width = round(head_dim * partial)
    q, k = torch.randn(2, 3, 6, head_dim, dtype=torch.float64), torch.randn(2, 1, 6, head_dim, dtype=torch.float64)
    got_q, got_k = encoding(q, k, positions=torch.tensor(PLACES, dtype=torch.float64))
    torch.testing.assert_close(got_q, rotated(q, PLACES, width=width, layout=layout), rtol=0, atol=1e-10)
    torch.testing.assert_close(got_k, rotated(k, PLACES, width=width, layout=layout), rtol=0, atol=1e-10)
    assert torch.equal(got_q[..., width:], q[..., width:])


@given(
    pairs=st.integers(1, 9),
    rest=st.integers(0, 5),
    base=st.floats(1.01, 1e8),
    layout=st.sampled_from(LAYOUTS),
    p=st.floats(-1e6, 1e6),
)
def test_any_base_width_and_position_follow_the_formula(
    pairs: int, rest: int, base: float, layout: str, p: float
) -> None:
    width, head_dim = 2 * pairs, 2 * pairs + rest
    encoding = Rotary(head_dim, base=base, layout=layout, partial=width / head_dim)
    assert encoding.width == width
    q = torch.randn(1, 1, 1, head_dim, dtype=torch.float64)
    out, _ = encoding(q, q, positions=torch.tensor([p], dtype=torch.float64))
    torch.testing.assert_close(out, rotated(q, [p], width=width, base=base, layout=layout), rtol=0, atol=1e-8)


def test_every_share_that_makes_whole_pairs_is_taken_as_meant() -> None:
    # 44 * (30/44) is 29.999999999999996 in floating point.
    assert all(
        Rotary(dim, partial=width / dim).width == width for dim in range(2, 97) for width in range(2, dim + 1, 2)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [1e4, 5e5])
def test_a_position_of_a_million_is_right_to_a_millionth(layout: str, base: float) -> None:
    # Other libraries compute float32 angles: cosines are off by 1.4e-4 at position 4,000, and by 2.5e-2 at a million.
    places = [4095.0, 131_071.0, 999_999.0, 1_000_000.0, 1_000_001.0]
    q = torch.randn(4, 8, 5, 64)
    actual, _ = Rotary(64, base=base, layout=layout)(q, q, positions=torch.tensor([int(p) for p in places]))
    assert actual.dtype == torch.float32
    assert (actual.double() - rotated(q, places, base=base, layout=layout)).abs().max().item() < 1e-6


EVERYWHERE = [0, 1, 2, 255, 256, 257, 2047, 2048, 2049, 4095, 65_535, 65_536, 99_999, 131_071, 1_000_000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_every_dtype_the_error_is_what_its_roundings_explain(dtype: torch.dtype) -> None:
    q = torch.randn(4, 8, len(EVERYWHERE), 64).to(dtype)
    actual, _ = Rotary(64)(q, q, positions=torch.tensor(EVERYWHERE))
    exact = rotated(q, [float(p) for p in EVERYWHERE])
    norm = torch.hypot(exact[..., :32], exact[..., 32:]).repeat(1, 1, 1, 2)
    error = (actual.double() - exact).abs() / (torch.finfo(dtype).eps * norm)
    # Relative to the pair's norm, the result is rounded once, to half a unit in the last place.
    assert actual.dtype == dtype and float(error.max()) <= 0.501


def test_in_float64_the_error_is_that_of_the_angle_alone() -> None:
    q = torch.randn(2, 2, len(EVERYWHERE), 64, dtype=torch.float64)
    actual, _ = Rotary(64)(q, q, positions=torch.tensor(EVERYWHERE))
    errors = (actual - rotated(q, [float(p) for p in EVERYWHERE])).abs().amax((0, 1, 3))
    assert all(error <= 4 * 2.0**-52 * (p + 2) for error, p in zip(errors.tolist(), EVERYWHERE, strict=True))


@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_the_layouts_are_one_encoding_up_to_an_order_of_channels(partial: float) -> None:
    half, interleaved = Rotary(12, partial=partial), Rotary(12, partial=partial, layout="interleaved")
    first, second = zip(*pairs_of(half.width, "interleaved"), strict=True)
    order = [*first, *second, *range(half.width, 12)]
    q, k = torch.randn(2, 3, 9, 12, dtype=torch.float64), torch.randn(2, 3, 9, 12, dtype=torch.float64)
    logits = torch.einsum("bhid,bhjd->bhij", *interleaved(q, k))
    torch.testing.assert_close(
        torch.einsum("bhid,bhjd->bhij", *half(q[..., order], k[..., order])), logits, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(half(q[..., order], k)[0], interleaved(q, k)[0][..., order], rtol=0, atol=0)


def test_the_frequencies_run_over_the_turned_width_and_not_over_the_head() -> None:
    torch.testing.assert_close(Rotary(64, partial=0.25).frequencies, Rotary(16).frequencies, rtol=0, atol=0)
    expected = [10_000 ** (-2 * k / 16) for k in range(8)]
    assert Rotary(16).frequencies.tolist() == pytest.approx(expected, rel=1e-14)
    assert Rotary(16).wavelengths.tolist() == pytest.approx([2 * math.pi / f for f in expected], rel=1e-14)


def test_strides_change_nothing() -> None:
    encoding = Rotary(8)
    q = torch.randn(2, 9, 3, 8)
    expected = encoding.query(q.transpose(1, 2).contiguous(), Positions.count(9))
    assert torch.equal(encoding.query(q.transpose(1, 2), Positions.count(9)), expected)
    wide = torch.randn(2, 3, 9, 20)
    assert torch.equal(
        encoding.query(wide[..., 5:13], Positions.count(9)), encoding.query(wide[..., 5:13].clone(), Positions.count(9))
    )
    backwards = torch.randn(2, 3, 18, 8)[:, :, ::2]
    assert torch.equal(
        encoding.query(backwards, Positions.count(9)), encoding.query(backwards.contiguous(), Positions.count(9))
    )
    expanded_x = torch.randn(1, 1, 1, 8).expand(2, 3, 9, 8)
    assert torch.equal(
        encoding.query(expanded_x, Positions.count(9)), encoding.query(expanded_x.contiguous(), Positions.count(9))
    )


def test_positions_may_be_given_in_every_way() -> None:
    encoding, q = Rotary(6), torch.randn(2, 3, 5, 6)
    expected = encoding(q, q, offset=4)[0]
    for positions in (
        Positions.count(5, 4),
        torch.arange(4, 9),
        torch.arange(4.0, 9.0),
        torch.arange(4, 9).expand(2, 5),
        torch.arange(4, 9)[None, :, None],
    ):
        assert torch.equal(encoding(q, q, positions=positions)[0], expected)
    assert torch.equal(encoding(q, q)[0][:, :, :1], q[:, :, :1])


def test_a_temperature_multiplies_queries_and_keys_and_so_logits_by_its_square() -> None:
    q = torch.randn(1, 1, 9, 8, dtype=torch.float64)
    warm = Rotary(8, schedule=YaRN(4, trained_length=512))
    plain = Rotary(8, schedule=YaRN(4, trained_length=512, attention_factor=1.0))
    temperature = 0.1 * math.log(4) + 1
    torch.testing.assert_close(warm(q, q)[0], plain(q, q)[0] * temperature, rtol=0, atol=1e-12)
    logits = [torch.einsum("bhid,bhjd->bhij", *encoding(q, q)) for encoding in (warm, plain)]
    torch.testing.assert_close(logits[0], logits[1] * temperature**2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_formula_of_a_query_turns_it_absolutely_and_warms_it(layout: str) -> None:
    encoding = Rotary(10, base=50.0, layout=layout, partial=0.6, schedule=YaRN(4, trained_length=64))
    q, k = (torch.randn(1, 1, 1, 10, dtype=torch.float64) for _ in range(2))
    q_values, k_values = q.flatten().tolist(), k.flatten().tolist()
    for m in (0.0, 2.5, -7.0, 1000.0):
        at = Positions.of(torch.tensor([m], dtype=torch.float64))
        assert encoding.formula_query(q_values, m) == pytest.approx(encoding.query(q, at).flatten().tolist(), abs=1e-12)
        product = math.fsum(
            a * b for a, b in zip(encoding.formula_query(q_values, m), encoding.formula_query(k_values, 3), strict=True)
        )
        assert encoding.formula_logit(q_values, k_values, m, 3, 0, 0.3) == pytest.approx(0.3 * product, abs=1e-12)


@pytest.mark.parametrize("head_dim", range(3, 40, 2))
def test_the_share_that_an_error_proposes_works(head_dim: int) -> None:
    with pytest.raises(ValueError) as error:
        Rotary(head_dim)
    assert Rotary(head_dim, partial=float(str(error.value).rpartition("partial=")[2])).width == head_dim - 1


def test_one_call_refuses_queries_and_keys_of_different_tokens() -> None:
    with pytest.raises(
        ValueError,
        match=r"got 2 and 3 of them; for cross-attention call query\(q, positions\) and key\(k, key_positions\)",
    ):
        Rotary(8)(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 3, 8))


def test_one_tensor_may_be_turned_alone_where_queries_and_keys_are_turned_alike() -> None:
    q = torch.randn(1, 2, 3, 8)
    assert torch.equal(Rotary(8)(q), Rotary(8)(q, q)[0])
    with pytest.raises(ValueError, match=r"xpos .*turns queries and keys each in their own way; call query\(q\)"):
        XPos(8)(q)


TRAINED_LENGTH = 16
BY_LENGTH = [
    DynamicLinear(trained_length=TRAINED_LENGTH),
    DynamicNTK(2, trained_length=TRAINED_LENGTH),
    DynamicYaRN(trained_length=TRAINED_LENGTH),
    LongRoPE(4, (1.0, 1.1, 1.3, 1.5), (1.0, 2.0, 4.0, 8.0), TRAINED_LENGTH, short_mscale=1.0, long_mscale=1.2),
    Resonance(DynamicNTK(2, trained_length=TRAINED_LENGTH)),
]
by_length = pytest.mark.parametrize("schedule", BY_LENGTH, ids=repr)


def attention(schedule: Schedule) -> Attention:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = Attention(16, heads=2, head_dim=8, kv_heads=1)
    layer.encoding = Rotary(8, schedule=schedule)
    return layer.double().eval()


def tokens(batch: int, T: int) -> Tensor:
    return torch.randn(batch, T, 16, dtype=torch.float64)


@by_length
def test_a_long_neighbour_does_not_change_a_short_row(schedule: Schedule) -> None:
    # transformers uses one base for the whole batch: a short row changes by 0.48 when batched with a long one.
    layer, x, T = attention(schedule), tokens(3, 40), 40
    length = torch.tensor([10, 40, 400])
    together = layer(x, positions=Positions.count(T).with_horizon(length), mask=masks.causal())
    for row in range(3):
        alone = Positions.count(T).with_horizon(int(length[row]))
        expected = layer(x[row : row + 1], positions=alone, mask=masks.causal())
        torch.testing.assert_close(together[row : row + 1], expected, rtol=0, atol=1e-12)
    assert (layer(x[:1], positions=Positions.count(T).with_horizon(400)) - together[:1]).abs().max() > 1e-3


@by_length
@pytest.mark.parametrize("cache", [GrowingCache, lambda: SlotCache(60)], ids=["growing", "static"])
def test_cached_keys_stay_right_when_the_horizon_moves(schedule: Schedule, cache) -> None:
    # transformers caches keys rotated with another base; llama.cpp mixes LongRoPE's two factor lists.
    layer, x, kv_cache = attention(schedule), tokens(2, 48), cache()
    for start, end, horizon in ((0, 9, 9), (9, 16, 16), (16, 17, 17), (17, 40, 40), (40, 48, 200), (47, 48, 48)):
        kv_cache = cache() if start == 47 else kv_cache
        first = 0 if start == 47 else start
        at = Positions.count(end - first, first).with_horizon(horizon)
        actual = layer(x[:, first:end], positions=at, mask=masks.causal(), cache=kv_cache)
        whole = Positions.count(end).with_horizon(horizon)
        expected = layer(x[:, :end], positions=whole, mask=masks.causal())[:, first:]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@by_length
def test_the_frequencies_shrink_back_after_a_long_sequence(schedule: Schedule) -> None:
    encoding, q = Rotary(8, schedule=schedule), torch.randn(1, 1, 9, 8)
    fresh = encoding.query(q, Positions.count(9).with_horizon(9))
    encoding.query(q, Positions.count(9).with_horizon(10_000))
    assert torch.equal(encoding.query(q, Positions.count(9).with_horizon(9)), fresh)
    assert not torch.equal(encoding.query(q, Positions.count(9).with_horizon(10_000)), fresh)


@by_length
def test_the_positions_of_one_sequence_do_not_depend_on_how_far_it_has_come(schedule: Schedule) -> None:
    encoding, q = Rotary(8, schedule=schedule), torch.randn(1, 1, 40, 8)
    whole = encoding.query(q, Positions.count(40).with_horizon(100))
    part = encoding.query(q[:, :, :5], Positions.count(5).with_horizon(100))
    assert torch.equal(whole[:, :, :5], part)


@by_length
def test_a_horizon_that_nobody_declared_is_asked_for(schedule: Schedule) -> None:
    encoding, q = Rotary(8, schedule=schedule), torch.randn(1, 1, TRAINED_LENGTH + 1, 8)
    words = rf"declare it with positions.with_horizon\(horizon\).* \(up to {TRAINED_LENGTH} positions that are counted"
    with pytest.raises(ValueError, match=words):
        encoding(q, q)
    with pytest.raises(ValueError, match=words):
        encoding.query(q[:, :, :3], Positions.of(torch.arange(3)))
    with pytest.raises(ValueError, match=words):
        encoding(q[:, :, :1], q[:, :, :1], offset=TRAINED_LENGTH)


@by_length
def test_within_the_trained_length_nothing_has_to_be_declared(schedule: Schedule) -> None:
    encoding, q = Rotary(8, schedule=schedule), torch.randn(1, 1, TRAINED_LENGTH, 8)
    rotated_q = encoding.query(q, Positions.count(TRAINED_LENGTH).with_horizon(TRAINED_LENGTH))
    assert torch.equal(encoding(q, q)[0], rotated_q)
    padded = Positions.padded(torch.ones(1, TRAINED_LENGTH))
    assert torch.equal(encoding.query(q, padded), rotated_q)
    assert encoding.frequencies.shape == encoding.wavelengths.shape == (4,)
    expected = encoding.spectrum(torch.tensor([TRAINED_LENGTH]))[0][0]
    assert torch.equal(encoding.frequencies, expected)


@by_length
def test_the_formula_reads_the_horizon_of_the_query(schedule: Schedule) -> None:
    encoding = Rotary(8, base=50.0, schedule=schedule)
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64) for _ in range(2))
    for horizon in (9, TRAINED_LENGTH, 17, 300):
        at, keys_at = (Positions.of(torch.tensor([p]), horizon=horizon) for p in (12, 5))
        expected = float((encoding.query(q, at) * encoding.key(k, keys_at)).sum())
        query = Token(q.flatten().tolist(), 12, 0, horizon=horizon)
        actual = encoding.formula_logits(query, [Token(k.flatten().tolist(), 5, 0)], 0, 1.0)
        assert actual == pytest.approx([expected], abs=1e-11)
    with pytest.raises(NotImplementedError, match="turns a query by its horizon"):
        encoding.formula_query(q.flatten().tolist(), 3.0)


def test_only_a_schedule_by_length_leaves_keys_unturned_in_the_cache() -> None:
    assert not Rotary(8).turns_when_attending and not Rotary(8, schedule=YaRN(4, 64)).turns_when_attending
    for schedule in BY_LENGTH:
        assert Rotary(8, schedule=schedule).turns_when_attending
    layer, x, cache = attention(BY_LENGTH[1]), tokens(1, 5), GrowingCache()
    layer(x, positions=Positions.count(5).with_horizon(99), cache=cache)
    assert cache.keys is not None
    torch.testing.assert_close(cache.keys.k, layer.split(layer.k_proj(x), 1), rtol=0, atol=1e-14)
