"""Frequency schedules against transformers: the same spectra, and the known differences with their reasons."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posenc.schedules import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Schedule, YaRN

rope_utils = pytest.importorskip("transformers.modeling_rope_utils", reason="the peers extra is not installed")

# transformers computes the powers of its frequencies in float32.
FLOAT32 = 5e-6


def stand_in(parameters: dict, width: int) -> SimpleNamespace:
    """Return the part of a configuration that transformers reads."""
    numbers = {"head_dim": width, "hidden_size": width, "num_attention_heads": 1}
    return SimpleNamespace(rope_parameters=parameters, standardize_rope_params=lambda: None, **numbers)


def peer_spectrum(
    kind: str, *, base: float = 1e4, width: int = 128, length: int | None = None, longest: int = 4096, **options: Any
):
    """Return transformers' inv_freq and attention_factor for a dictionary of rope parameters."""
    config = stand_in({"rope_theta": base, "rope_type": kind, **options}, width)
    config.max_position_embeddings = longest
    frequencies, temperature = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return frequencies.double(), temperature


def spectrum(schedule: Schedule, *, base: float = 1e4, width: int = 128, horizon: int | None = None):
    plain = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    horizons = None if horizon is None else torch.tensor([horizon])
    frequencies, temperature = schedule(plain, base=base, width=width, horizon=horizons)
    return frequencies.flatten(), float(temperature)


def assert_same(actual, expected, rel: float = FLOAT32) -> None:
    torch.testing.assert_close(actual[0], expected[0], rtol=rel, atol=0)
    assert actual[1] == pytest.approx(expected[1], rel=1e-12)


@pytest.mark.parametrize(("base", "width"), [(1e4, 128), (5e5, 64), (1e6, 256), (150_000.0, 10)])
@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0, 40.0])
def test_linear_and_llama3_and_yarn_agree(base: float, width: int, factor: float) -> None:
    shape: dict[str, Any] = {"base": base, "width": width}
    assert_same(spectrum(Linear(factor), **shape), peer_spectrum("linear", factor=factor, **shape))
    llama = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    assert_same(spectrum(Llama3(factor, 8192), **shape), peer_spectrum("llama3", factor=factor, **llama, **shape))
    for truncate in (True, False):
        for beta_fast, beta_slow in ((32.0, 1.0), (16.0, 2.0)):
            betas = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
            expected = peer_spectrum("yarn", factor=factor, original_max_position_embeddings=4096, **betas, **shape)
            assert_same(spectrum(YaRN(factor, 4096, **betas), **shape), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_factor": 1.0},
        {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.707, "mscale_all_dim": 0.0},
        {"mscale": 0.0, "mscale_all_dim": 0.707},
        {"mscale": 0.707},
        {"mscale_all_dim": 0.707},
    ],
    ids=str,
)
def test_yarns_attention_factor_agrees_under_the_rule_together(options: dict) -> None:
    for factor in (1.0, 4.0, 40.0):
        expected = peer_spectrum("yarn", factor=factor, original_max_position_embeddings=4096, **options)
        assert_same(spectrum(YaRN(factor, 4096, **options)), expected)
    # Known difference, which an option covers: DeepSeek's code, its vLLM class and Megatron apply each number alone.
    apart = YaRN(40.0, 4096, mscale=0.707, mscale_all_dim=0.0, mscale_rule="apart").temperature
    assert apart == pytest.approx(1.260804, abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("length", [1, 100, 2048, 2049, 4096, 16_384])
def test_dynamic_ntk_agrees_at_each_length(factor: float, length: int) -> None:
    expected = peer_spectrum("dynamic", factor=factor, length=length, longest=2048)
    assert_same(spectrum(DynamicNTK(factor, 2048), horizon=length), expected)


@pytest.mark.parametrize("length", [1, 4096, 4097, 131_072])
def test_longrope_agrees_at_each_length(length: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        short, long = (tuple((1 + scale * torch.rand(48)).tolist()) for scale in (0.5, 60))
    lists = {"short_factor": list(short), "long_factor": list(long), "original_max_position_embeddings": 4096}
    for options, peer_options in (({}, {}), ({"attention_factor": 1.5}, {"attention_factor": 1.5})):
        expected = peer_spectrum("longrope", width=96, length=length, factor=32.0, **lists, **peer_options)
        assert_same(spectrum(LongRoPE(32.0, short, long, 4096, **options), width=96, horizon=length), expected)


def test_hunyuans_alpha_agrees_with_ntk() -> None:
    hunyuan = pytest.importorskip("transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense")
    config = SimpleNamespace(head_dim=128, rope_parameters={"rope_theta": 1e4, "alpha": 1000.0})
    expected = hunyuan.HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters(config)
    assert_same(spectrum(NTK(1000.0)), (expected[0].double(), expected[1]))


def test_truncate_is_not_lost_when_parameters_are_nested() -> None:
    flat = {
        "rope_theta": 150_000.0,
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    config = stand_in({"full": flat}, 64)
    config.per_layer_config = {"full": config}
    reference, _ = rope_utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", layer_type="full")
    exact, truncated = (spectrum(YaRN(32.0, 4096, truncate=t), base=150_000.0, width=64)[0] for t in (False, True))
    assert_same((exact, 1.0), (peer_spectrum("yarn", width=64, base=150_000.0, **schedule_options(flat))[0], 1.0))
    # Known difference: transformers 5.23 reads the key one level too high, and therefore rounds.
    torch.testing.assert_close(reference.double(), truncated, rtol=FLOAT32, atol=0)
    assert float((reference.double() / exact - 1).abs().max()) > 0.03


def schedule_options(flat: dict) -> dict:
    return {name: value for name, value in flat.items() if name not in ("rope_theta", "rope_type")}


@pytest.mark.parametrize(("base", "length", "right"), [(100.0, 2, "divided"), (10.0, 32_768, "kept")])
def test_a_ramp_outside_the_pairs_is_not_turned_round(base: float, length: int, right: str) -> None:
    reference, _ = peer_spectrum("yarn", base=base, width=16, factor=4.0, original_max_position_embeddings=length)
    actual, _ = spectrum(YaRN(4.0, length), base=base, width=16)
    plain = base ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    expected = plain / 4 if right == "divided" else plain
    torch.testing.assert_close(actual[1:], expected[1:], rtol=1e-12, atol=0)
    # Known difference: transformers clamps each end of the ramp on one side only. A ramp outside the pairs then runs
    # backwards: with few tokens the frequencies stay undivided, with very many the fast ones are divided.
    wrong = plain if right == "divided" else plain / 4
    assert float((reference / wrong - 1).abs()[1:].min()) < FLOAT32
    assert float((reference / actual - 1).abs().max()) > 0.5


def test_equal_bounds_agree_too() -> None:
    # Llama 4's low = high = 1 divides by zero in transformers, in a branch that no pair takes.
    options = {"low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}
    expected = peer_spectrum("llama3", base=5e5, factor=16.0, **options)
    assert_same(spectrum(Llama3(16.0, 8192, 1.0, 1.0), base=5e5), expected)


def test_x_transformers_rescaled_base_is_ntk_and_its_interpolation_linear() -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")
    embedding = peer.RotaryEmbedding(64, base_rescale_factor=8.0)
    torch.testing.assert_close(embedding.inv_freq.double(), spectrum(NTK(8.0), width=64)[0], rtol=FLOAT32, atol=0)
    angles, _ = peer.RotaryEmbedding(64, interpolation_factor=4.0)(torch.arange(50))
    expected = torch.arange(50).double()[:, None] * spectrum(Linear(4.0), width=64)[0]
    torch.testing.assert_close(angles[0, :, ::2].double(), expected, rtol=2e-5, atol=1e-9)


def test_the_numbers_are_those_of_the_libraries_and_not_of_ours() -> None:
    # The recorded numbers of tests/schedules/test_schedules.py, computed by transformers.
    frequencies, temperature = peer_spectrum("yarn", factor=8.0, original_max_position_embeddings=4096)
    assert float(frequencies[28]) == pytest.approx(1.299512e-02, rel=5e-6)
    assert temperature == pytest.approx(1.207944, abs=1e-6)
    frequencies, _ = peer_spectrum("proportional", base=1e6, partial_rotary_factor=0.25)
    assert float(frequencies[10]) == pytest.approx(1.154782e-01, rel=5e-6) and bool((frequencies[16:] == 0).all())
    assert math.isclose(float(frequencies[0]), 1.0)
