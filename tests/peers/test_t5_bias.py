"""T5Bias against transformers and x_transformers."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.encodings.distance_biases.t5_bias import T5Bias

REASON = "the peers extra is not installed"


def is_an_edge(distance: int, side: int, max_distance: int) -> bool:
    """Return whether a logarithmic bucket begins exactly at a distance, where a logarithm may round either way."""
    exact = side // 2
    power = side - exact
    return any(
        Fraction(distance, exact) ** power == Fraction(max_distance, exact) ** step for step in range(1, power + 1)
    )


@given(quarter=st.integers(1, 16), room=st.integers(1, 1000), causal=st.booleans(), start=st.integers(-3000, 3000))
def test_buckets_are_those_of_transformers_up_to_rounding_at_an_edge(
    quarter: int, room: int, causal: bool, start: int
) -> None:
    peer = pytest.importorskip("transformers.models.t5.modeling_t5", reason=REASON)
    buckets, delta = 4 * quarter, torch.arange(start, start + 200)
    side = buckets if causal else buckets // 2
    max_distance = side // 2 + room
    posenc_buckets = T5Bias(1, buckets=buckets, max_distance=max_distance, causal=causal).bucket(delta)
    t5_buckets = peer.T5Attention._relative_position_bucket(-delta, not causal, buckets, max_distance)
    for d, actual, reference in zip(delta.tolist(), posenc_buckets.tolist(), t5_buckets.tolist(), strict=True):
        # Known difference: a logarithm in float32 puts some distances at an edge one bucket too low.
        assert actual == reference or (is_an_edge(abs(d), side, max_distance) and abs(actual - reference) == 1)


@pytest.mark.parametrize("factor", range(2, 12))
def test_a_distance_at_an_edge_falls_into_the_exact_bucket(factor: int) -> None:
    # transformers' bucket at an edge depends on the machine's logarithm.
    for buckets in range(4, 68, 8):
        exact = buckets // 2
        # The square root of the largest ratio is at half of the logarithmic buckets.
        actual = T5Bias(1, buckets=2 * buckets, max_distance=2 * exact * factor**2).bucket(
            torch.tensor([2 * exact * factor])
        )
        assert actual.item() == 3 * exact


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_of_transformers_is_added_to_logits_without_a_scale(causal: bool) -> None:
    transformers = pytest.importorskip("transformers", reason=REASON)
    peer = pytest.importorskip("transformers.models.t5.modeling_t5", reason=REASON)
    config = transformers.T5Config(d_model=24, d_kv=8, num_heads=3, is_decoder=causal)
    layer = peer.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    encoding = T5Bias(3, causal=causal)
    with torch.no_grad():
        encoding.table.copy_(layer.relative_attention_bias.weight)
    torch.testing.assert_close(encoding.bias(300), layer.compute_bias(300, 300), rtol=0, atol=0)
    assert layer.scaling == 1.0


@pytest.mark.parametrize("causal", [True, False])
def test_x_transformers_multiplies_the_bias_by_the_root_of_the_heads_width(causal: bool) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason=REASON)
    layer = peer.RelativePositionBias(scale=16**0.5, causal=causal, heads=3)
    encoding = T5Bias(3, causal=causal)
    with torch.no_grad():
        encoding.table.copy_(layer.relative_attention_bias.weight)
    # Known difference: x_transformers' table times sqrt(head_dim) is posenc's.
    torch.testing.assert_close(4 * encoding.bias(200)[0], layer(200, 200), rtol=0, atol=0)
