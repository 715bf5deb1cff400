"""Meta's params.json, compared with Meta's formula, written out here, and with published numbers."""

import math

import pytest
import torch

from posenc.checkpoints.formats import meta
from posenc.checkpoints.vocabulary.reading import CannotRead

LLAMA_2 = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1}
LLAMA_31 = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "ffn_dim_multiplier": 1.3,
    "multiple_of": 1024,
    "norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
}
SCOUT = {
    "dim": 5120,
    "n_layers": 48,
    "n_heads": 40,
    "n_kv_heads": 8,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
    "rope_scaling_factor": 16.0,
    "rope_high_freq_factor": 1.0,
    "nope_layer_interval": 4,
    "attn_temperature_tuning": True,
    "floor_scale": 8192.0,
    "attn_scale": 0.1,
    "attention_chunk_size": 8192,
}


def rescale(width: int, base: float, factor: float, high: float) -> list[float]:
    """Return Meta's scaled frequencies, pair by pair; low is 1 and the trained length 8192 in its code."""
    frequencies = []
    for k in range(width // 2):
        frequency = base ** (-2 * k / width)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / high:
            frequencies.append(frequency)
        elif wavelength > 8192:
            frequencies.append(frequency / factor)
        else:
            smooth = (8192 / wavelength - 1) / (high - 1)
            frequencies.append((1 - smooth) * frequency / factor + smooth * frequency)
    return frequencies


def test_llama_2_has_the_base_of_its_code_and_interleaved_pairs() -> None:
    (part,) = meta.read(LLAMA_2).parts
    rotary = part.encoding(0)
    assert (rotary.base, rotary.layout, rotary.width, rotary.schedule) == (10_000, "interleaved", 128, None)
    assert (part.shape.dim, part.shape.heads, part.kv_heads, part.trained_length) == (4096, 32, 32, None)
    assert len(part.layers) == 32


def test_llama_3_1_has_the_published_frequencies() -> None:
    reading = meta.read(LLAMA_31)
    rotary = reading.parts[0].encoding(31)
    torch.testing.assert_close(rotary.frequencies, torch.tensor(rescale(128, 5e5, 8, 4)).double(), rtol=1e-6, atol=0)
    for pair, value in {28: 3.211446e-03, 32: 5.248460e-04, 36: 7.784655e-05, 63: 3.068926e-07}.items():
        assert rotary.frequencies[pair].item() == pytest.approx(value, rel=1e-6)
    assert reading.parts[0].kv_heads == 8
    assert reading.unknown == {} and reading.contradictions == ()


def test_llama_4_leaves_rotary_out_of_every_fourth_layer_and_warms_it() -> None:
    reading = meta.read(SCOUT)
    (part,) = reading.parts
    names = [layer.spec.partition("(")[0] for layer in part.layers]
    assert names == ["rotary", "rotary", "rotary", "step_temperature"] * 12
    rotary, warm = part.encoding(0), part.encoding(3)
    assert rotary.frequencies.tolist() == pytest.approx(rescale(128, 5e5, 16, 1), rel=1e-9)
    # Meta's model code: log(floor((p + 1) / floor_scale) + 1) * attn_scale + 1.
    for p in (0, 8190, 8191, 100_000):
        assert warm.temperature(p) == pytest.approx(math.log(math.floor((p + 1) / 8192) + 1) * 0.1 + 1)
    assert [layer.chunk for layer in part.layers] == [8192, 8192, 8192, None] * 12


def test_without_tuning_the_layers_without_rotary_have_nothing() -> None:
    layers = meta.read(SCOUT | {"attn_temperature_tuning": False}).parts[0].layers
    assert [layer.spec for layer in layers[3::4]] == ["none"] * 12


def test_llama_4_without_its_factors_takes_those_of_the_code() -> None:
    params = {key: value for key, value in SCOUT.items() if not key.startswith(("rope_scaling", "rope_high"))}
    schedule = meta.read(params).parts[0].encoding(0).schedule
    assert (schedule.factor, schedule.high) == (16, 1)


def test_keys_that_speak_of_position_and_are_not_known_are_named() -> None:
    reading = meta.read(LLAMA_31 | {"rope_wonder": 3, "alibi_slope": 0.5, "hidden": 7})
    assert reading.unknown == {"rope_wonder": 3, "alibi_slope": 0.5}


def test_what_contradicts_itself_is_said() -> None:
    assert meta.read(LLAMA_31 | {"head_dim": 64}).contradictions == (
        "head_dim is 64 and dim / n_heads is 128; followed: dim / n_heads",
    )
    assert meta.read(LLAMA_2 | {"rope_scaling_factor": 16}).contradictions == (
        "rope_scaling_factor is 16 and use_scaled_rope is not true; followed: use_scaled_rope",
    )


def test_a_vision_tower_is_named_as_not_covered() -> None:
    reading = meta.read(SCOUT | {"vision_args": {"dim": 1408, "n_layers": 34, "n_heads": 16}})
    assert reading.not_covered == ("the vision tower that vision_args describes",)
    assert reading.unknown == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 30}, "n_heads must divide dim, got n_heads=30 and dim=4096"),
        ({"n_layers": None}, "n_layers is missing; it says: N layers"),
        ({"dim": 0}, "dim must be 1 or more, got 0"),
        ({"rope_theta": "large"}, "rope_theta must be a finite number, got 'large'"),
        ({"rope_theta": 1}, "cannot be: .*base must be above 1"),
        ({"rope_scaling_factor": 0.5}, "use_scaled_rope cannot be: llama3: factor must be 1 or more"),
        ({"n_layers": 2.5}, "n_layers: expected a whole number from -1 to 1,000, got 2.5"),
        ({"use_scaled_rope": "yes"}, "use_scaled_rope must be true or false, got 'yes'"),
        ({"dim": 4128, "n_heads": 32}, "even number of channels"),
    ],
)
def test_what_cannot_be_is_refused(change, message) -> None:
    with pytest.raises(CannotRead, match=message):
        meta.read(LLAMA_31 | change)
