"""Dry runs of models, against models of transformers and against deliberately changed code."""

import math

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tiers import rest_slow  # noqa: E402
from transformers import DeepseekV3Config, GPTJConfig, LlamaConfig, OPTConfig, PegasusConfig  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

from posenc.checkpoints.models.dry_run import run_dry  # noqa: E402
from posenc.checkpoints.models.inputs import usual_inputs  # noqa: E402
from posenc.checkpoints.models.nodes import attentions_with_edges, merge_layers  # noqa: E402
from posenc.checkpoints.models.position_items import carries_position, position_items  # noqa: E402
from posenc.checkpoints.models.rotations import Turn  # noqa: E402
from posenc.checkpoints.models.skeleton import skeleton  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

SMALL = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama(**options):
    return LlamaConfig(**SMALL, max_position_embeddings=64, **options)


def test_the_angles_and_the_layout_of_llama_are_measured():
    first, second = run_dry(skeleton(llama(rope_theta=100.0))).turns
    assert (first.path, second.path) == ("layers.0.self_attn", "layers.1.self_attn")
    assert first.layout == "half"
    assert [(a, b) for a, b, _ in first.pairs()] == [(k, k + 8) for k in range(8)]
    assert [angle for *_, angle in first.pairs()] == pytest.approx([100 ** (-2 * k / 16) for k in range(8)], rel=1e-5)


def test_pairs_that_turn_too_little_to_be_seen_at_the_second_token_are_pairs():
    angles = torch.arange(64.0)[:, None, None] * torch.tensor([[1.0, 0], [0, 5e-8]])
    cos, sin = angles.cos() * torch.eye(2), angles.sin()
    turn = Turn("layers.0", torch.cat((torch.cat((cos, sin), 2), torch.cat((-sin, cos), 2)), 1))
    assert turn.layout == "half" and [(a, b) for a, b, _ in turn.pairs()] == [(0, 2), (1, 3)]
    assert Turn("layers.0", torch.rand(3, 4, 4)).layout is None


def test_notes_that_differ_in_the_layer_alone_are_one_note_with_its_layers():
    notes = [f"layers.{n}.self_attn.rotary_emb.inv_freq is built" for n in (2, 3, 5)]
    expected = ["layers.*.self_attn.rotary_emb.inv_freq is built, in layers [2, 3, 5]", "patches stand 0.5 apart"]
    assert list(merge_layers([*notes, expected[1]])) == expected and list(merge_layers(notes[:1])) == notes[:1]


def test_a_model_with_weights_measures_as_its_skeleton_does():
    torch.manual_seed(0)
    config = llama()
    model = transformers.LlamaModel(config).eval()
    live, dry = run_dry(model), run_dry(skeleton(config))
    assert not live.failure
    assert live.turns[1].matrices.equal(dry.turns[1].matrices)


def test_rotary_code_that_pairs_neighbours_is_seen_whatever_it_is_called_with(monkeypatch):
    def neighbours(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = (t[..., : t.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(1) for t in (cos, sin))
        return q * cos + neighbours(q) * sin, k * cos + neighbours(k) * sin

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    turn = run_dry(skeleton(llama())).turns[0]
    assert turn.layout == "interleaved"
    assert modeling_llama.apply_rotary_pos_emb is apply_rotary_pos_emb, "what was replaced is put back"


def test_a_shuffle_after_the_turn_does_not_hide_how_weights_are_ordered():
    """DeepSeek-V3 rotates neighbours and then permutes them; the order of the weights counts."""
    sizes = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 8}
    config = DeepseekV3Config(**SMALL, **sizes, first_k_dense_replace=2, rope_interleave=True)
    turn = run_dry(skeleton(config)).turns[0]
    assert turn.layout == "interleaved"
    assert not turn.matrices[0].equal(torch.eye(8)), "at position 0 the channels are shuffled already"
    config.rope_interleave = False
    assert run_dry(skeleton(config)).turns[0].layout == "half"


def test_a_model_that_turns_a_part_of_each_head_without_the_attention_interface():
    config = GPTJConfig(vocab_size=32, n_embd=32, n_head=2, n_layer=1, rotary_dim=8, n_positions=64)
    turn = run_dry(skeleton(config)).turns[0]
    assert (turn.layout, len(turn.pairs()), int(turn.moving_channels.sum())) == ("interleaved", 4, 8)


def test_the_temperature_is_how_much_longer_turned_channels_get():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
    turn = run_dry(skeleton(llama(rope_parameters=yarn))).turns[0]
    assert turn.temperature == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)


def test_a_skeleton_has_no_large_weights_and_real_frequencies():
    model = skeleton(LlamaConfig(num_hidden_layers=2))
    assert sum(p.numel() for p in model.parameters() if not p.is_meta) < 1e5
    (frequencies,) = position_items(model)
    assert frequencies.kind == "frequencies"
    expected = 10_000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    torch.testing.assert_close(frequencies.values.double(), expected, rtol=1e-6, atol=0)


def test_the_row_of_position_0_is_seen():
    config = OPTConfig(vocab_size=32, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=16)
    assert run_dry(skeleton(config)).first_rows == {"decoder.embed_positions.weight": 2}


def test_tables_of_sines_are_filled():
    config = PegasusConfig(vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=1, max_position_embeddings=8)
    tables = {item.path: item.values for item in position_items(skeleton(config))}
    assert tables["encoder.embed_positions.weight"][3, 0] == pytest.approx(math.sin(3))


def test_a_model_that_cannot_be_run_says_why_and_keeps_what_was_seen():
    model = skeleton(llama())

    def fail(*args, **kwargs):
        raise RuntimeError("the second layer is broken")

    model.layers[1].forward = fail
    trace = run_dry(model)
    assert trace.failure == "RuntimeError: the second layer is broken"
    assert [turn.path for turn in trace.turns] == ["layers.0.self_attn"]


OTHER_FORMS = {
    "timesformer": ({"image_size": 64, "num_frames": 6}, [6, 17, 6, 17]),
    "siglip2_vision_model": ({}, [32, 32]),
    "clap_audio_model": (
        {"spec_size": 64, "patch_stride": [4, 4], "depths": [2], "num_attention_heads": [2]},
        [64, 64],
    ),
    "mimi": ({"num_filters": 2, "upsample_groups": 32, "num_key_value_heads": 2}, [9, 9, 10, 10]),
    "bros": ({"hidden_size": 128}, [9, 9]),
    "dia_decoder": ({"num_key_value_heads": 2, "cross_hidden_size": 32, "num_channels": 3}, [8, 8, 8, 8]),
    "blt_global_transformer": ({}, [40, 40]),
    "time_series_transformer": (
        {"prediction_length": 6, "context_length": 12, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        [12, 12, 6, None],
    ),
}
"""Sizes of models with unusual inputs -> number of tokens in each of their attentions."""


@pytest.mark.parametrize("name", rest_slow(sorted(OTHER_FORMS, key="mimi".__eq__), len(OTHER_FORMS) - 1))
def test_what_a_model_asks_for_is_made(name):
    sizes, tokens = OTHER_FORMS[name]
    try:
        config = transformers.AutoConfig.for_model(name, **SMALL | sizes)
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} does not know it")
    trace = run_dry(skeleton(config))
    assert trace.failure == ""
    assert [record.sees if record.sees is None else len(record.sees) for record in trace.attentions] == tokens


def test_queries_and_keys_that_convolutions_over_one_token_make_are_measured():
    config = transformers.SqueezeBertConfig(**SMALL | {"embedding_size": 32, "intermediate_size": 128})
    trace = run_dry(skeleton(config))
    assert trace.failure == "" and [record.scale for record in trace.attentions] == pytest.approx([0.25, 0.25])


def test_buckets_that_no_running_module_makes_are_left():
    try:
        config = transformers.AutoConfig.for_model("udop", vocab_size=32, d_model=32, num_layers=1, num_heads=2)
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} does not know it")
    model = skeleton(config)
    inputs = usual_inputs(model)
    assert run_dry(model, inputs | {"bbox": torch.rand(*inputs["input_ids"].shape, 4)}).failure == ""


def test_a_longer_look_lengthens_all_that_is_given_for_each_token():
    try:
        config = transformers.AutoConfig.for_model("bros", **SMALL | {"hidden_size": 128}, attention_window=9)
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} does not know it")
    model = skeleton(config)
    assert attentions_with_edges(model, run_dry(model))[0].sees.shape == (11, 11)


def test_attention_among_the_patches_of_an_image_takes_no_gigabytes():
    run_cases = pytest.importorskip("fuzz.driver").run_cases
    # 4,096 patches in 12 heads: one table of their logits alone is 805 MB.
    config = transformers.SamVisionConfig(num_hidden_layers=1, global_attn_indexes=[0])

    def read(case):
        assert run_dry(skeleton(config)).failure == ""

    assert run_cases(read, ["sam"], cpu=60, memory=700 << 20) == {"read": 1}


def test_channels_that_do_not_turn_in_pairs_are_refused():
    turn = Turn("here", torch.stack((torch.eye(4), torch.ones(4, 4))))
    with pytest.raises(CannotRead, match="channel 0 of here turns with 3 others, not in a pair"):
        turn.pairs()


def test_a_configuration_without_a_model_is_refused():
    from transformers import PretrainedConfig

    with pytest.raises(CannotRead, match="transformers has no model"):
        skeleton(PretrainedConfig())


@pytest.mark.parametrize(
    ("name", "carries"),
    [
        ("Qwen2RotaryEmbedding", True),
        ("pos_conv_embed", True),
        ("relative_attention_bias", True),
        ("PositionwiseFFN", False),
        ("post_attention_layernorm", False),
        ("position_ids", False),
        ("relative_position_index", False),
        ("ZoeDepthRelativeDepthEstimationHead", False),
        ("RelativeHeadAttention", True),
    ],
)
def test_names_that_speak_of_position(name, carries):
    assert carries_position(name) is carries
