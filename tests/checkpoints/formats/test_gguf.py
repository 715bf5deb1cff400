"""GGUF metadata, compared with llama.cpp's ggml, written out here in scalars."""

import math
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.inspection import configs, portrait
from posenc.checkpoints.inspection.inspect import inspect, reading_as_json
from posenc.checkpoints.vocabulary.reading import CannotRead


def keys(arch: str, **options: Any) -> dict[str, Any]:
    """Return the metadata of a small model; two underscores stand for a dot."""
    usual = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 128}
    entries = usual | {key.replace("__", "."): value for key, value in options.items()}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in entries.items()}


def ggml(width: int, base: float, factor: float = 1.0, yarn_from: int | None = None, divisors=None) -> list[float]:
    """Return the angle of each pair at position 1, as ggml_rope_cache_init and rope_yarn have it."""

    def ramp_end(turns: float) -> float:
        return width * math.log(yarn_from / (turns * 2 * math.pi)) / (2 * math.log(base))

    angles = []
    for pair in range(width // 2):
        whole = base ** (-2 * pair / width) / (divisors[pair] if divisors else 1)
        theta = whole / factor
        if yarn_from is not None:
            start, end = max(0, math.floor(ramp_end(32))), min(width - 1, math.ceil(ramp_end(1)))
            ramp = 1 - min(1, max(0, (pair - start) / max(0.001, end - start)))
            theta = theta * (1 - ramp) + whole * ramp
        angles.append(theta)
    return angles


def rotary(metadata: dict[str, Any], layer: int = 0) -> Any:
    return configs.read(metadata).parts[0].encoding(layer)


def test_plain_rotary_and_its_layout() -> None:
    for arch, layout in {
        "llama": "interleaved",
        "qwen2": "half",
        "gptneox": "half",
        "command-r": "interleaved",
    }.items():
        encoding = rotary(keys(arch, rope__freq_base=5e5, rope__dimension_count=8))
        assert (encoding.layout, encoding.width) == (layout, 8)
        assert encoding.frequencies.tolist() == pytest.approx(ggml(8, 5e5), rel=1e-12)


def test_linear_and_its_older_key() -> None:
    for scaling in (
        {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        {"rope__scaling__factor": 4.0},
        {"rope__scale_linear": 4.0},
    ):
        assert rotary(keys("llama", **scaling)).frequencies.tolist() == pytest.approx(ggml(16, 1e4, 4))
    assert rotary(keys("llama", rope__scaling__type="none", rope__scaling__factor=4.0)).schedule is None


YARN = {
    "attention__key_length": 128,
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 8.0,
    "rope__scaling__original_context_length": 4096,
}


def test_yarn_rounds_the_ends_of_its_ramp_and_warms_by_its_formula() -> None:
    encoding = rotary(keys("qwen2", **YARN))
    assert encoding.frequencies.tolist() == pytest.approx(ggml(128, 1e4, 8, 4096), rel=1e-12)
    assert encoding.frequencies[28].item() == pytest.approx(1.299512e-02, rel=1e-6)
    assert encoding.schedule.temperature == pytest.approx(1.207944, abs=1e-6)


def test_yarn_warmed_by_a_number_of_its_own() -> None:
    for key in ("rope__scaling__attn_factor", "rope__scaling__yarn_attn_factor"):
        schedule = rotary(keys("qwen2", **YARN, **{key: 0.5})).schedule
        assert schedule.temperature == pytest.approx(0.5 * 1.207944, abs=1e-6)


def test_a_log_multiplier_is_mscale_all_dim_and_a_tenth_of_it_in_deepseek2() -> None:
    deepseek = keys(
        "deepseek2",
        attention__key_length=576,
        attention__key_length_mla=192,
        attention__kv_lora_rank=512,
        rope__dimension_count=64,
        rope__scaling__type="yarn",
        rope__scaling__factor=40.0,
        rope__scaling__original_context_length=4096,
        rope__scaling__yarn_log_multiplier=0.0707,
    )
    (part,) = configs.read(deepseek).parts
    encoding, layer = part.encoding(0), part.layers[0]
    assert encoding.frequencies.tolist() == pytest.approx(ggml(64, 1e4, 40, 4096), rel=1e-12)
    assert encoding.schedule.temperature == pytest.approx(1)
    # deepseek2.cpp: mscale = 1 + 0.1 log_mul ln(factor), kq_scale = mscale^2 / sqrt(channels of a head).
    assert layer.scale == pytest.approx((1 + 0.1 * 0.707 * math.log(40)) ** 2 / math.sqrt(192))
    assert (layer.head_dim, part.shape.head_dim, encoding.layout) == (64, 192, "interleaved")
    schedule = rotary(keys("mistral3", **YARN, rope__scaling__yarn_log_multiplier=1.0)).schedule
    assert (schedule.mscale, schedule.mscale_all_dim, schedule.temperature) == (1, 1, pytest.approx(1))


def llama3(width: int, factor: float, high: float) -> list[float]:
    """Return the divisors that converters write for Llama 3: base 500,000, low 1, trained length 8192."""
    divisors = []
    for pair in range(width // 2):
        wavelength = 2 * math.pi * 5e5 ** (2 * pair / width)
        smooth = 1.0 if wavelength < 8192 / high else 0.0 if wavelength > 8192 else (8192 / wavelength - 1) / (high - 1)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def test_divisors_of_llama_3_are_known_again() -> None:
    for factor, high in ((8, 4), (32, 4), (16, 1)):
        divisors = llama3(128, factor, high)
        metadata = keys("llama", attention__key_length=128, rope__freq_base=5e5) | {"rope_freqs.weight": divisors}
        schedule = rotary(metadata).schedule
        assert (schedule.spec_name, schedule.factor, schedule.trained_length, schedule.high) == (
            "llama3",
            factor,
            8192,
            high,
        )
        assert rotary(metadata).frequencies.tolist() == pytest.approx(ggml(128, 5e5, divisors=divisors), rel=1e-6)
        assert "llama3" in configs.read(metadata).understood["rope_freqs.weight"]


def test_other_divisors_stay_a_list() -> None:
    divisors = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    encoding = rotary(keys("llama") | {"rope_freqs.weight": divisors})
    import torch

    for horizon in (5, 100_000):
        frequencies, temperature = encoding.spectrum(torch.tensor([horizon]))
        assert frequencies[0].tolist() == pytest.approx(ggml(16, 1e4, divisors=divisors), rel=1e-9)
        assert float(temperature) == 1


def test_divisors_without_end_stop_the_slow_pairs() -> None:
    encoding = rotary(keys("gemma4", rope__freq_base=1e6) | {"rope_freqs.weight": [1.0, 1.0] + [1e30] * 6})
    assert encoding.frequencies.tolist() == pytest.approx(ggml(16, 1e6)[:2] + [0] * 6)


def test_longrope() -> None:
    short, long = [1.0 + k / 8 for k in range(8)], [4.0 + k for k in range(8)]
    warmth = math.sqrt(1 + math.log(32) / math.log(4096))
    metadata = keys("phi3", context_length=131072, rope__scaling__original_context_length=4096)
    metadata |= {"phi3.rope.scaling.attn_factor": warmth}
    metadata |= {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    schedule = rotary(metadata).schedule
    assert (schedule.spec_name, schedule.factor, schedule.trained_length) == ("longrope", 32, 4096)
    assert (list(schedule.short_factor), list(schedule.long_factor)) == (short, long)
    assert schedule.attention_factor is None and schedule.temperatures()[0] == pytest.approx(warmth)
    other_schedule = rotary(metadata | {"phi3.rope.scaling.attn_factor": 1.5}).schedule
    assert other_schedule.temperatures() == (1.5, 1.5)


def test_what_llama_cpp_fixes_and_no_file_says() -> None:
    def specs(arch: str, count: int, **options: Any) -> list[tuple[str, int | None]]:
        return [(at.spec, at.window) for at in configs.read(keys(arch, block_count=count, **options)).parts[0].layers]

    def names(arch: str, count: int, **options: Any) -> list[str]:
        return [spec.partition("(")[0] for spec, _ in specs(arch, count, **options)]

    assert names("smollm3", 5) == ["rotary", "rotary", "rotary", "none", "rotary"]
    assert names("llama4", 4) == ["rotary", "rotary", "rotary", "step_temperature"]
    assert names("llama4", 4, attention__sliding_window=0) == ["rotary"] * 4
    (part,) = configs.read(keys("llama4", attention__sliding_window=9)).parts
    assert [(layer.window, layer.chunk) for layer in part.layers] == [(None, 8192)] * 2
    assert names("cohere2", 4, attention__sliding_window=9) == ["rotary", "rotary", "rotary", "none"]
    gemma = specs("gemma3", 6, attention__sliding_window=9, rope__freq_base=1e6, rope__scaling__factor=8.0)
    assert gemma == [("rotary", 9)] * 5 + [("rotary(base=1000000, schedule=linear(factor=8))", None)]
    oss = specs("gpt-oss", 4, attention__sliding_window=9, attention__sliding_window_pattern=[False, True, True, False])
    assert [window for _, window in oss] == [None, 9, 9, None]
    assert names("mistral3", 1, attention__temperature_scale=0.1, attention__temperature_length=16384) == ["rotary"]
    assert (
        configs.read(keys("mistral3", attention__temperature_scale=0.1, attention__temperature_length=16384))
        .parts[0]
        .layers[0]
        .spec.endswith("+ step_temperature(interval=16384, strength=0.1, form='ministral')")
    )


def test_alibi_by_key_and_by_architecture() -> None:
    assert [configs.read(keys(arch)).parts[0].layers[0].spec for arch in ("bloom", "mpt")] == ["alibi", "none"]
    (layer, _) = configs.read(keys("mpt", attention__max_alibi_bias=16.0)).parts[0].layers
    assert layer.spec == "alibi(bias_max=16.0)" or layer.spec == "alibi(bias_max=16)"
    bloom = configs.read(keys("bloom", rope__freq_base=1e4))
    assert bloom.contradictions == ("bloom has ALiBi, and its file has keys of rotary; followed: ALiBi",)


def test_learned_tables_buckets_and_recurrence() -> None:
    bert = configs.read(keys("bert", attention__causal=False)).parts[0]
    assert (bert.embed, bert.shape.causal) == ("learned(max_len=128)", False)
    encoder, decoder = configs.read(keys("t5", attention__relative_buckets_count=32)).parts
    assert [layer.scale for layer in encoder.layers] == [1.0, 1.0]
    assert (encoder.encoding(0).causal, decoder.encoding(0).causal) == (False, True)
    assert configs.read(keys("mamba")).parts[0].remarks == ("its layers are recurrent, and read no position",)


def test_multimodal_rotary() -> None:
    for arch, order in {"qwen2vl": "chunked", "qwen3vl": "interleaved"}.items():
        encoding = rotary(keys(arch, attention__key_length=128, rope__dimension_sections=[24, 20, 20, 0]))
        assert (encoding.sections_in_use, encoding.order, encoding.layout) == ((24, 20, 20), order, "half")


def test_heads_that_nothing_says_are_not_one_head() -> None:
    no_heads = {"attention__head_count": None}
    for arch in ("gpt2", "mamba", "mpt"):
        (part,) = configs.read(keys(arch, **no_heads)).parts
        assert part.kv_heads is None
    zero = portrait.describe_reading(configs.read(keys("mamba", attention__head_count=0)))
    assert "The model: 2 layers, 64 channels, heads not said; trained on 128 tokens; sees the past" in zero
    llama = configs.read(keys("llama", attention__key_length=16, **no_heads))
    assert "64 channels, heads not said;" in portrait.describe_reading(llama) and llama.parts[0].encoding(0).width == 16
    assert reading_as_json(llama)["parts"][0]["heads"] is None
    for metadata in (
        keys("llama", **no_heads),
        keys("bloom", **no_heads),
        keys("t5", attention__relative_buckets_count=8, **no_heads),
    ):
        reading = configs.read(metadata)
        name = f"{reading.architecture}.attention.head_count"
        assert reading.parts == () and reading.not_covered == (f"how many heads there are: {name} is missing",)


def test_what_the_largest_gemma_divides_its_logits_by_is_no_width_of_a_head() -> None:
    largest = keys("gemma2", block_count=46, attention__key_length=32)
    assert configs.read(largest).parts[0].layers[0].scale == pytest.approx(16**-0.5)
    assert configs.read(largest | {"gemma2.block_count": 45}).parts[0].layers[0].scale is None


def test_layers_without_keys_do_not_attend_and_a_window_that_llama_cpp_leaves_out_is_said() -> None:
    assert configs.read(keys("lfm2", attention__head_count_kv=[0, 2])).parts[0].remarks == ("layers [0] do not attend",)
    (part,) = configs.read(keys("phi3", attention__sliding_window=9)).parts
    assert part.remarks == ("llama.cpp itself attends without the window",)
    (part,) = configs.read(keys("qwen35", block_count=4, rope__dimension_sections=[4, 2, 2, 0])).parts
    assert [layer.attends for layer in part.layers] == [False, False, False, True]


def test_an_unknown_architecture_is_not_guessed_at() -> None:
    reading = configs.read(keys("nonesuch", rope__freq_base=1e4))
    assert reading.parts == () and reading.unknown["nonesuch.rope.freq_base"] == 1e4
    assert "the architecture nonesuch" in reading.not_covered[0]


def test_windows_that_nothing_places_are_said() -> None:
    reading = configs.read(keys("llama", attention__sliding_window=4096))
    assert "no key says which layers of llama have it" in reading.not_covered[0]


def test_keys_left_over_are_named() -> None:
    reading = configs.read(keys("llama", rope__scaling__alpha=1000.0, feed_forward_length=3))
    assert reading.unknown == {"llama.rope.scaling.alpha": 1000.0}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (keys("llama", rope__scaling__type="ntk"), "must be none, linear, yarn or longrope, got 'ntk'"),
        (keys("llama", rope__scaling__factor=0.5), "llama.rope cannot be: linear: factor must be 1 or more"),
        (keys("llama", rope__scaling__type="longrope"), "the tensors rope_factors_short and"),
        (keys("llama") | {"rope_freqs.weight": [1.0] * 3}, "a number for each of the 8 turned pairs, got 3"),
        (keys("llama") | {"rope_freqs.weight": [1e30] + [1.0] * 7}, "stops pairs that are not the slowest"),
        (keys("llama", rope__dimension_count=7), "even number of channels"),
        (keys("llama", block_count=None), "llama.block_count is missing"),
        (keys("qwen2vl"), "qwen2vl.rope.dimension_sections is missing"),
        (
            keys("gemma2", attention__sliding_window=9, attention__sliding_window_pattern=[True]),
            "for each of 2 layers, got",
        ),
        (keys("llama", **YARN, rope__scaling__yarn_ext_factor=0.5), "must be 1, got 0.5"),
        (keys("llama", **YARN, rope__scaling__yarn_beta_slow=64.0), "needs beta_fast >= beta_slow > 0"),
        (keys("gpt2", context_length=None), "gpt2.context_length is missing"),
        (keys("gemma4", attention__head_count_kv=[2]), "head_count_kv must have one entry for each of 2 layers, got 1"),
    ],
)
def test_what_cannot_be_is_refused(metadata, message) -> None:
    with pytest.raises(CannotRead, match=message):
        configs.read(metadata)


def file(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a GGUF file as converters do."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_read_with_its_rope_tensors_and_held_against_its_weights(tmp_path: Path) -> None:
    import numpy as np

    metadata = keys("llama", rope__freq_base=5e5, attention__head_count_kv=2)
    factors = np.array(llama3(16, 8, 4), dtype=np.float32)
    weights = {
        f"blk.{i}.attn_{x}.weight": np.zeros((n, 64), np.float32) for i in (0, 1) for x, n in (("q", 64), ("k", 32))
    }
    reading = inspect(file(tmp_path / "a.gguf", metadata, {"rope_freqs.weight": factors, **weights}))
    schedule = reading.parts[0].encoding(0).schedule
    assert (schedule.factor, schedule.trained_length) == (8, 8192)
    assert (reading.unknown, reading.contradictions, reading.not_covered) == ({}, (), ())
    wrong = inspect(file(tmp_path / "b.gguf", metadata | {"llama.attention.head_count_kv": 4}, weights))
    assert wrong.contradictions == (
        "blk.0.attn_k.weight has 32 rows, and the config says 4 heads of 16 channels, 64 rows",
    )
    lacking = inspect(file(tmp_path / "c.gguf", metadata | {"llama.block_count": 3}, weights))
    assert lacking.contradictions == ("the weights have no layer 2, and the config says 3 layers",)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    import numpy as np

    whole = file(tmp_path / "a.gguf", keys("llama"), {"token_embd.weight": np.zeros((8, 64), np.float32)})
    for size in (10, 200, whole.stat().st_size - 100):
        (tmp_path / "b.gguf").write_bytes(whole.read_bytes()[:size])
        with pytest.raises(CannotRead, match=r"b\.gguf"):
            inspect(tmp_path / "b.gguf")
