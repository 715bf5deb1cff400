"""FoPE agrees with explicit sums of waves, and with its released code."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.encodings.rotations.fourier_rotary import FourierRotary
from posenc.encodings.rotations.rotary import Rotary
from posenc.kernels import bind


def rotated(x: Tensor, place: Tensor, encoding: FourierRotary) -> Tensor:
    """Rotate x [B, H, T, d] as published. Each wave of each pair and head is summed separately."""
    H, d = x.shape[1], x.shape[3]
    plain = [encoding.base ** (-2 * k / d) for k in range(d // 2)]
    waves = [w for w in plain if w >= 2 * math.pi / encoding.trained_length]
    A, C = encoding.mixtures.double().tolist()
    out = x.clone()
    for h in range(H):
        head = h if encoding.per_head else 0
        for t, p in enumerate(place.tolist()):
            for k in range(d // 2):
                cos, sin = 1.0, 0.0 if encoding.silenced == "passed" else 1.0
                if k < len(waves):
                    cos = sum(A[head][f][k] * math.cos(w * p) for f, w in enumerate(waves))
                    sin = sum(C[head][f][k] * math.sin(w * p) for f, w in enumerate(waves))
                a, b = (k, k + d // 2) if encoding.layout == "half" else (2 * k, 2 * k + 1)
                out[:, h, t, a] = x[:, h, t, a] * cos - x[:, h, t, b] * sin
                out[:, h, t, b] = x[:, h, t, b] * cos + x[:, h, t, a] * sin
    return out


@given(
    st.sampled_from([2, 8, 12]),
    st.integers(7, 3000),
    st.floats(2, 1e5),
    st.floats(0, 2),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["passed", "doubled"]),
    st.integers(0, 9),
)
def test_queries_and_keys_are_turned_as_published(
    d: int, max_len: int, base: float, gain: float, layout: str, per_head: bool, learned: bool, silenced: str, seed: int
) -> None:
    encoding = FourierRotary(
        2,
        d,
        max_len,
        base=base,
        layout=layout,
        gain=gain,
        per_head=per_head,
        learned=learned,
        silenced=silenced,
        seed=seed,
    ).double()
    q, k = (torch.randn(2, 2, 4, d, dtype=torch.float64) for _ in range(2))
    place = torch.tensor([0.0, 1, 17.5, 900], dtype=torch.float64)
    actual = encoding(q, k, positions=place)
    for actual_x, x in zip(actual, (q, k), strict=True):
        torch.testing.assert_close(actual_x, rotated(x, place, encoding), rtol=0, atol=1e-11)
    logit = encoding.formula_logit(q[1, 1, 3].tolist(), k[1, 1, 2].tolist(), 900, 17.5, 1, 0.3)
    assert logit == pytest.approx(0.3 * (actual[0][1, 1, 3] @ actual[1][1, 1, 2]).item(), abs=1e-10)


def test_waves_longer_than_the_trained_length_are_dropped() -> None:
    encoding = FourierRotary(8, 64, 512)
    assert len(encoding.frequencies) == 16 and encoding.wavelengths.max() <= 512
    torch.testing.assert_close(encoding.wavelengths, Rotary(64).wavelengths[:16], rtol=1e-14, atol=0)
    assert 2 * math.pi * 10_000 ** (16 / 32) > 512
    assert len(FourierRotary(8, 64, 1024).frequencies) == 18
    assert len(FourierRotary(8, 64, 10**6).frequencies) == 32
    assert FourierRotary(1, 8, 7).frequencies.tolist() == [1.0]


def test_without_noise_it_is_rotary_on_the_kept_pairs_and_nothing_on_the_others() -> None:
    q, k = (torch.randn(1, 2, 9, 64) for _ in range(2))
    actual = FourierRotary(2, 64, 512, layout="interleaved", gain=0.0)(q, k, offset=100)
    rotary = Rotary(64, layout="interleaved")(q, k, offset=100)
    for actual_x, expected, x in zip(actual, rotary, (q, k), strict=True):
        torch.testing.assert_close(actual_x[..., :32], expected[..., :32], rtol=0, atol=1e-6)
        assert actual_x[..., 32:].equal(x[..., 32:])


def test_the_noise_has_the_deviation_that_torch_gives_the_released_tensors() -> None:
    for heads in (1, 8):
        encoding = FourierRotary(heads, 64, 512)
        noise = encoding.mixtures - torch.eye(16, dtype=torch.float64)
        reference = torch.empty(heads, 16, 16)
        torch.nn.init.xavier_normal_(reference, gain=0.3)
        expected = 0.3 * math.sqrt(2 / (16 * (16 + heads)))
        assert noise.std().item() == pytest.approx(expected, rel=0.1)
        assert reference.std().item() == pytest.approx(expected, rel=0.15)
    mixtures = FourierRotary(8, 64, 512, per_head=False).mixtures
    assert mixtures.shape == (2, 1, 16, 16)
    assert (mixtures - torch.eye(16)).std().item() == pytest.approx(0.3 * math.sqrt(2 / 32), rel=0.1)


def test_the_seed_alone_decides_the_frozen_mixtures() -> None:
    torch.manual_seed(1)
    first = FourierRotary(2, 16, 512)
    state = torch.get_rng_state()
    second = FourierRotary(2, 16, 512)
    assert torch.get_rng_state().equal(state)
    assert first.mixtures.equal(second.mixtures) and not list(first.state_dict())
    assert not first.mixtures.equal(FourierRotary(2, 16, 512, seed=1).mixtures)
    learned = FourierRotary(2, 16, 512, learned=True)
    torch.testing.assert_close(learned.mixtures.double(), first.mixtures, rtol=0, atol=1e-6)
    assert [tuple(p.shape) for p in learned.parameters()] == [(2, 4, 4)] * 2
    with torch.no_grad():
        learned.sin_mixture.fill_(0.5)
    assert bool((learned.mixtures[1] == 0.5).all()), "the learned mixtures rotate"
    assert first.bfloat16().mixtures.equal(second.mixtures)
    with torch.device("meta"):
        assert FourierRotary(2, 16, 512).mixtures.equal(second.mixtures)


def test_the_released_sine_of_one_makes_silenced_pairs_count_twice() -> None:
    q, k = (torch.randn(1, 1, 3, 64, dtype=torch.float64) for _ in range(2))
    silent = torch.cat((torch.arange(16, 32), torch.arange(48, 64)))
    for silenced, times in (("passed", 1), ("doubled", 2)):
        encoding = FourierRotary(1, 64, 512, silenced=silenced)
        rotated_q, rotated_k = encoding(q, k, offset=77)
        actual = rotated_q[..., silent] @ rotated_k[..., silent].transpose(-1, -2)
        torch.testing.assert_close(actual, times * q[..., silent] @ k[..., silent].transpose(-1, -2))
    # This is a rotation by 45 degrees and a scaling by sqrt(2).
    key = FourierRotary(1, 64, 512, silenced="doubled").key(torch.eye(64)[None, None, 16:17], Positions.count(1))
    assert key[0, 0, 0, [16, 48]].tolist() == [1.0, 1.0]


def test_a_logit_depends_on_more_than_the_distance() -> None:
    q, k = torch.randn(1, 1, 1, 64), torch.randn(1, 1, 1, 64)

    def logit(encoding: FourierRotary, m: int) -> float:
        rotated_q = encoding.query(q, Positions.of(torch.tensor([m])))
        return (rotated_q @ encoding.key(k, Positions.of(torch.tensor([m - 3]))).transpose(-1, -2)).item()

    plain, noisy = FourierRotary(1, 64, 512, gain=0.0), FourierRotary(1, 64, 512)
    assert logit(plain, 3) == pytest.approx(logit(plain, 300), abs=1e-4)
    assert abs(logit(noisy, 3) - logit(noisy, 300)) > 0.05


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_a_shared_key_is_turned_for_each_query_head(kernel: str) -> None:
    encoding = FourierRotary(6, 8, 100, gain=2.0)
    place = torch.tensor([4, 0, 9, 30])
    at = Positions.of(place)
    q = torch.randn(2, 6, 4, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 4, 8, dtype=torch.float64) for _ in range(2))
    keys = Keys(encoding.key(k, at), v, at)
    assert torch.equal(keys.k, encoding.key(k.repeat_interleave(3, 1), at))
    assert torch.equal(keys.k, encoding(q, k, positions=place)[1])
    out, _ = encoding.attend(encoding.query(q, at), at, keys, masks.causal(), bind(kernel, encoding, scale=0.4))
    k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
    logits = 0.4 * rotated(q, place, encoding) @ rotated(k, place, encoding).transpose(-1, -2)
    expected = logits.masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_mixtures_shared_by_the_heads_leave_the_attention_rule_free() -> None:
    assert "attend" in FourierRotary(2, 8, 100).doors
    encoding = FourierRotary(2, 8, 100, per_head=False)
    assert encoding.doors == {"turn"}
    assert encoding.key(torch.ones(1, 1, 3, 8), Positions.count(3)).shape == (1, 1, 3, 8)


def test_key_heads_that_do_not_divide_the_query_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="built for 2 heads, got 3; build it with heads=3"):
        FourierRotary(2, 4, 100)(torch.zeros(1, 2, 3, 4), torch.zeros(1, 3, 3, 4))
