"""Each kind of position code is found where it is, in the model as it runs, and told and replaced as what it is.

The oracle is transformers' own code on the same weights.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from posenc.checkpoints import attach, detach, inspect  # noqa: E402
from posenc.checkpoints.formats import huggingface  # noqa: E402
from posenc.checkpoints.inspection import configs  # noqa: E402

BERT = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
BERT |= {"max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
T5 = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
BART = {"vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
IDS = torch.randint(4, 97, (2, 12), generator=torch.Generator().manual_seed(0))


def made(name: str, **options: Any) -> Any:
    """A tiny model with random weights by which positions matter."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config).eval()
    for parameter in model.parameters():
        # Tables of sines are no weights.
        if parameter.dim() > 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def states(model: Any, **given: Any) -> Tensor:
    out = model(**given)
    return out.last_hidden_state if hasattr(out, "last_hidden_state") else out.logits


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MPNet", {}),
        ("Esm", {"position_embedding_type": "absolute", "token_dropout": False, "mask_token_id": 3}),
        ("Longformer", {"attention_window": 8}),
        ("Luke", {"entity_vocab_size": 9, "entity_emb_size": 32}),
        ("Roberta", {}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
@pytest.mark.parametrize("mask", ["none", "ones", "right", "left"])
def test_a_table_behind_the_row_of_padding_is_read_at_the_same_rows(name: str, options: Any, mask: str) -> None:
    model = made(name, **BERT | options)
    ids, given = IDS.clone(), {}
    if mask != "none":
        given["attention_mask"] = torch.ones_like(ids)
    if mask in ("right", "left"):
        real = slice(0, 8) if mask == "right" else slice(4, 12)
        ids[0], given["attention_mask"][0] = 1, 0
        ids[0, real], given["attention_mask"][0, real] = IDS[0, real], 1
    bare = states(model, input_ids=ids, **given)
    attached = attach(model)
    assert any("position_embeddings" in path for path in attached.replaced)
    present = given.get("attention_mask", torch.ones_like(ids)).bool()
    torch.testing.assert_close(states(model, input_ids=ids, **given)[present], bare[present], rtol=1e-4, atol=1e-4)
    detach(model)
    assert torch.equal(states(model, input_ids=ids, **given), bare)


@pytest.mark.parametrize("name", ["Bart", "Pegasus", "Marian", "M2M100", "MBart", "Blenderbot"])
def test_a_subclass_of_embedding_that_counts_by_itself_is_seen(name: str) -> None:
    model = made(name, **BART, pad_token_id=1)
    given = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0), "attention_mask": torch.ones_like(IDS)}
    bare = states(model, **given)
    replaced = attach(model).replaced
    assert {path.partition(".")[0] for path in replaced} == {"encoder", "decoder"}
    sines = name in ("Pegasus", "Marian", "M2M100")
    assert all(spec.startswith("sinusoidal" if sines else "learned") for spec in replaced.values())
    torch.testing.assert_close(states(model, **given), bare, rtol=1e-4, atol=1e-4)


def test_distilbert_is_no_llama() -> None:
    config = transformers.DistilBertConfig().to_dict()
    reading = configs.read(config)
    assert reading.format == "transformers" and reading.parts[0].embed.startswith("learned")
    sines = configs.read(config | {"sinusoidal_pos_embds": True, "n_layers": 1})
    assert sines.parts[0].embed.startswith(("sinusoidal", "learned"))


def test_a_rotary_module_that_never_runs_is_no_position_code() -> None:
    options = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = made("Falcon", **options, alibi=True, new_decoder_architecture=False)
    reading = huggingface.read(model.config)
    assert {layer.spec for layer in reading.parts[0].layers} == {"alibi(form='falcon')"}
    assert "rotary_emb.inv_freq is built and turns nothing" in reading.parts[0].besides
    with pytest.raises(ValueError, match="ALiBi of FalconModel is made by a function, which stays as it is"):
        attach(model)


@pytest.mark.parametrize("name", ["T5", "MT5", "UMT5", "LongT5"])
def test_buckets_are_told_of_each_stack(name: str) -> None:
    options = T5 | {"decoder_start_token_id": 0, **({"num_decoder_layers": 2} if name != "T5" else {})}
    model = made(name, **options)
    given = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0), "attention_mask": torch.ones_like(IDS)}
    bare = states(model, **given)
    reading = huggingface.read(model.config)
    assert [(part.name, part.layers[0].spec) for part in reading.parts] == [
        ("encoder", "t5_bias(causal=False)"),
        ("decoder", "t5_bias"),
    ]
    assert not reading.not_covered
    replaced = attach(model).replaced
    assert {path.partition(".")[0] for path in replaced} == {"encoder", "decoder"}
    torch.testing.assert_close(states(model, **given), bare, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", [10_000.0, 2e6, 5e6])
def test_pairs_of_time_height_and_width_are_told_with_any_base(base: float) -> None:
    rope = {"rope_type": "default", "rope_theta": base, "mrope_section": [16, 24, 24]}
    text = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = transformers.Qwen2VLTextConfig(**text, intermediate_size=48, vocab_size=97, rope_parameters=rope)
    reading = huggingface.read(config)
    assert all("multimodal_rotary" in layer.spec for layer in reading.parts[0].layers), reading
    assert not reading.contradictions


def test_an_image_tower_does_not_count_the_positions_of_text(tmp_path: Any) -> None:
    text = BERT | {"project_dim": 32}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    vision |= {"image_size": 32, "patch_size": 8}
    model = made("AltCLIP", text_config=text, vision_config=vision, projection_dim=16)
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "pixel_values": torch.randn(2, 3, 32, 32)}
    with torch.no_grad():
        bare = model(**given).text_embeds
        attach(model)
        torch.testing.assert_close(model(**given).text_embeds, bare, rtol=1e-4, atol=1e-4)
    detach(model)
    model.save_pretrained(tmp_path)
    assert {part.name for part in inspect(tmp_path).parts} == {"text_config", "vision_config"}


def test_a_live_model_is_not_touched_by_being_read() -> None:
    model = made("Roberta", **BERT).bfloat16().train()
    seen: list[Any] = []
    model.register_forward_hook(lambda *given: seen.append(given))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reading, pieces = huggingface.read_live(model)
    assert reading.parts[0].embed == "learned" and pieces[0].path == "embeddings.position_embeddings"
    assert not seen and model.training and model.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_rotary_module_that_joins_the_positions_of_several_axes_is_left() -> None:
    small = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "pad_token_id": 1}
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    model = made("NeoMME", **small, **heads, **kinds)
    with pytest.raises(
        ValueError, match=r"rotary_emb takes a position on each of several axes, and rotary.* reads one"
    ):
        attach(model)
