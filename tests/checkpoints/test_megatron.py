"""Megatron's arguments, held to YaRN and Llama 3 as Megatron's code computes them, written out here in scalars."""

import math

import pytest

from posenc.checkpoints import configs, megatron
from posenc.checkpoints.configs import CannotWrite
from posenc.checkpoints.reading import CannotRead, Layer, Part, Reading
from posenc.encoding import Shape

GPT = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "seq_length": 128,
    "position_embedding_type": "rope",
}
GPT_OSS = {
    "num_layers": 4,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_query_groups": 8,
    "kv_channels": 64,
    "position_embedding_type": "yarn",
    "rotary_base": 150000,
    "yarn_rotary_scaling_factor": 32.0,
    "yarn_original_max_position_embeddings": 4096,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_correction_range_round_to_int": False,
    "window_size": [127, 0],
    "window_attn_skip_freq": 2,
    "max_position_embeddings": 131072,
}
DEEPSEEK = {
    "num_layers": 3,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "multi_latent_attention": True,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "rope_type": "yarn",
    "rotary_scaling_factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "max_position_embeddings": 163840,
    "kv_channels": 128,
}


def yarn(width: int, base: float, factor: float, length: int, whole: bool) -> list[float]:
    """Frequencies of YaRN as Megatron's yarn_rotary_pos_embedding.py has them."""

    def pair(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(32), pair(1)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    out = []
    for k in range(width // 2):
        ramp = min(max((k - low) / (high - low), 0), 1)
        plain = base ** (-2 * k / width)
        out.append(plain / factor * ramp + plain * (1 - ramp))
    return out


def test_yarn_of_gpt_oss() -> None:
    reading = configs.read(GPT_OSS)
    (part,) = reading.parts
    rotary = part.encoding(0)
    assert rotary.frequencies.tolist() == pytest.approx(yarn(64, 150000, 32, 4096, whole=False), rel=1e-9)
    assert rotary.schedule.temperature == pytest.approx(0.1 * math.log(32) + 1)
    assert [layer.window for layer in part.layers] == [128, None, 128, None]
    assert (part.kv_heads, part.trained_length, rotary.layout) == (8, 131072, "half")
    assert reading.unknown == {} and reading.contradictions == ()


def test_latent_attention_of_deepseek() -> None:
    (part,) = configs.read(DEEPSEEK).parts
    rotary, layer = part.encoding(0), part.layers[0]
    assert rotary.frequencies.tolist() == pytest.approx(yarn(64, 10000, 40, 4096, whole=True), rel=1e-9)
    # Its scale of attention is that of 192 channels, warmed by g(mscale_all_dim) twice; cosines are not warmed.
    assert layer.scale == pytest.approx((0.1 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert rotary.schedule.temperature == 1
    assert (layer.head_dim, part.shape.head_dim, rotary.layout) == (64, 192, "interleaved")


@pytest.mark.parametrize(("all_dim", "temperature"), [(0.0, 1.260804), (None, 1.368888)])
def test_mscale_counts_alone_where_mscale_all_dim_is_nothing_but_not_where_it_is_missing(all_dim, temperature) -> None:
    given = GPT_OSS | {"yarn_rotary_scaling_factor": 40, "yarn_mscale": 0.707, "yarn_mscale_all_dim": all_dim}
    assert configs.read(given).parts[0].encoding(0).schedule.temperature == pytest.approx(temperature, abs=1e-6)


def test_llama_3_scaling_starts_from_8192_tokens() -> None:
    schedule = configs.read(GPT | {"use_rope_scaling": True}).parts[0].encoding(0).schedule
    assert (schedule.name, schedule.factor, schedule.trained_length) == ("llama3", 8, 8192)
    assert (schedule.low, schedule.high) == (1, 4)
    assert configs.read(GPT | {"rope_scaling_factor": 32.0}).parts[0].encoding(0).schedule is None


def test_positions_divided_by_a_factor_are_linear() -> None:
    found = [
        configs.read(GPT | {key: 4}).parts[0].encoding(0).schedule
        for key in ("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor")
    ]
    assert [str(schedule) for schedule in found] == ["linear(factor=4)"] * 2
    assert configs.read(GPT | {"rotary_seq_len_interpolation_factor": 1}).parts[0].encoding(0).schedule is None


def test_partial_and_interleaved_rotary() -> None:
    rotary = configs.read(GPT | {"rotary_percent": 0.5, "rotary_interleaved": True}).parts[0].encoding(0)
    assert (rotary.width, rotary.layout) == (8, "interleaved")


@pytest.mark.parametrize("given", [4, "4", [0, 0, 0, 1], "[0]*3+[1]", "([0]*3+[1])*1", [False, False, False, True]])
def test_which_layers_have_no_rotary(given) -> None:
    layers = configs.read(GPT | {"no_rope_freq": given}).parts[0].layers
    assert [layer.spec for layer in layers] == ["rotary", "rotary", "rotary", "none"]


def test_a_pattern_is_read_and_nothing_is_evaluated() -> None:
    for given in ("__import__('os').getcwd()", "[0]*10**9", "open('x')", "[0]*3000000"):
        with pytest.raises(CannotRead, match="no_rope_freq must be a number, a list, or lists"):
            configs.read(GPT | {"no_rope_freq": given})


def test_learned_positions() -> None:
    given = GPT | {"position_embedding_type": "learned_absolute"}
    (part,) = configs.read(given).parts
    assert part.embed == "learned(max_len=128)" and part.layers[0].spec == "none"
    assert part.tables == {"embedding.position_embeddings.weight": (128, 64)}


def test_t5_has_an_encoder_and_a_decoder() -> None:
    given = GPT | {
        "position_embedding_type": "relative",
        "encoder_num_layers": 2,
        "decoder_num_layers": 3,
        "relative_attention_num_buckets": 16,
        "softmax_scale": 1.0,
    }
    encoder, decoder = configs.read(given).parts
    assert (encoder.name, len(encoder.layers), decoder.name, len(decoder.layers)) == ("encoder", 2, "decoder", 3)
    assert [(part.encoding(0).causal, part.encoding(0).buckets) for part in (encoder, decoder)] == [
        (False, 16),
        (True, 16),
    ]
    assert encoder.layers[0].scale == 1


def test_multimodal_rotary() -> None:
    given = GPT | {"position_embedding_type": "mrope", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    with pytest.raises(CannotRead, match="sections"):
        configs.read(given)
    rotary = configs.read(given | {"mrope_section": [4, 2, 2]}).parts[0].encoding(0)
    assert (rotary.sections_in_use, rotary.order) == ((4, 2, 2), "interleaved")


def test_arguments_are_found_where_checkpoints_keep_them() -> None:
    dashed = {"args": {f"--{key}".replace("_", "-"): value for key, value in GPT.items()}}
    of_nemo = {"model": {**GPT, "rotary_percentage": 0.5}, "trainer": {"max_steps": 3}}
    assert configs.detect(dashed) == configs.detect(of_nemo) == "megatron"
    assert configs.differences(configs.read(dashed), configs.read(GPT)) == []
    assert configs.read(of_nemo).parts[0].encoding(0).width == 8


def test_without_groups_there_are_as_many_key_heads_as_query_heads() -> None:
    assert configs.read(GPT | {"num_query_groups": 1, "group_query_attention": False}).parts[0].kv_heads == 4
    assert configs.read(GPT | {"num_query_groups": 2, "group_query_attention": True}).parts[0].kv_heads == 2


def test_what_contradicts_itself_is_said() -> None:
    assert configs.read(GPT | {"seq_length": 256}).contradictions == (
        "seq_length is 256 and max_position_embeddings is 128; followed: max_position_embeddings",
    )
    legacy = GPT | {"position_embedding_type": "learned_absolute", "use_rotary_position_embeddings": True}
    reading = configs.read(legacy)
    assert reading.parts[0].layers[0].spec == "rotary"
    assert "use_rotary_position_embeddings is true" in reading.contradictions[0]
    twice = configs.read(GPT_OSS | {"beta_fast": 16.0})
    assert twice.contradictions == ("yarn_beta_fast is 32 and beta_fast is 16; followed: yarn_beta_fast",)


def test_keys_left_over_are_named_and_those_of_speed_are_not() -> None:
    reading = configs.read(GPT | {"rope_wonder": 1, "apply_rope_fusion": True, "reset_position_ids": False})
    assert reading.unknown == {"rope_wonder": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"position_embedding_type": "alibi", "rotary_base": 3},
            "must be one of learned_absolute, rope, .* got 'alibi'",
        ),
        ({"position_embedding_type": "mrope"}, "needs mrope_section"),
        ({"position_embedding_type": "yarn"}, "needs yarn_rotary_scaling_factor and yarn_original_max_position"),
        ({"use_rope_scaling": True, "rotary_seq_len_interpolation_factor": 2}, "two schedules at once"),
        (
            {"rotary_seq_len_interpolation_factor": 0.5},
            "position_embedding_type rope cannot be: linear: factor must be 1",
        ),
        ({"no_rope_freq": [1, 0]}, "no_rope_freq must have a 0 or 1 for each of the 4 layers"),
        ({"num_layers": None}, "num_layers is missing"),
        ({"rotary_percent": 0.2}, "rotary width must be an even number"),
        ({"multi_latent_attention": True, "rope_type": "longrope"}, "rope_type must be rope or yarn, got 'longrope'"),
    ],
)
def test_what_cannot_be_is_refused(change, message) -> None:
    with pytest.raises(CannotRead, match=message):
        configs.read(GPT | change, "megatron")


@pytest.mark.parametrize(
    "given",
    [
        GPT,
        GPT_OSS,
        DEEPSEEK,
        DEEPSEEK | {"rope_type": "rope"},
        GPT | {"position_embedding_type": "learned_absolute"},
        GPT | {"position_embedding_type": "none"},
        GPT | {"position_embedding_type": "relative", "relative_attention_max_distance": 64, "softmax_scale": 1.0},
        GPT | {"position_embedding_type": "mrope", "mrope_section": [2, 3, 3], "rotary_interleaved": True},
        GPT | {"no_rope_freq": 2, "rotary_percent": 0.5, "use_rope_scaling": True, "rope_scaling_factor": 32},
        GPT | {"rotary_seq_len_interpolation_factor": 4, "window_size": [15, 0]},
    ],
)
def test_what_is_written_reads_the_same(given) -> None:
    reading = configs.read(given, "megatron")
    for onto in (None, given):
        again = configs.read(configs.write(reading, "megatron", onto), "megatron")
        assert configs.differences(reading, again) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rotary(schedule=dynamic_ntk(factor=2, trained_length=64))", "no arguments for the schedule dynamic_ntk"),
        ("alibi", "Megatron has no words for alibi"),
        ("rotary + step_temperature(interval=64)", "Megatron has no words for step_temperature"),
    ],
)
def test_what_the_format_cannot_say_is_not_written(spec, message) -> None:
    part = Part("", Shape(64, 4, 16, 128), (Layer(spec, 16),) * 2, 4, 128)
    with pytest.raises(CannotWrite, match=message):
        configs.write(Reading("transformers", "x", (part,)), "megatron")


def test_a_config_of_transformers_is_not_taken_for_megatrons() -> None:
    chatglm = {"model_type": "chatglm", "hidden_size": 64, "num_attention_heads": 4, "kv_channels": 16, "num_layers": 2}
    assert not megatron.is_it(chatglm)
    assert megatron.is_it(GPT | {"model_type": "ModelType.encoder_or_decoder"})
