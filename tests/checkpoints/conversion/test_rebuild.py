"""Small models of transformers with random weights, rebuilt: the same logits, at once and through a cache."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")


import transformers

from posenc import Decoder, EncoderDecoder
from posenc.checkpoints import rebuild
from posenc.checkpoints.conversion.rebuild import FAMILIES
from posenc.checkpoints.vocabulary.reading import CannotRead

BASE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL = {
    **BASE, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NARROW = {**SMALL, "head_dim": 6, "sliding_window": 5}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 3, "num_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "exaone4": ("exaone4", {**SMALL, "sliding_window": 5}),
    "gemma": ("gemma", {**SMALL, "head_dim": 6}),
    "gemma2": ("gemma2", {**NARROW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 12}),
    "gemma3": ("gemma3_text", {**NARROW, "num_hidden_layers": 6}),
    "gpt2": ("gpt2", {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **ENDS}),
    "gpt_neox": ("gpt_neox", {**BASE, "intermediate_size": 48, "max_position_embeddings": 64, **ENDS}),
    "pythia, one branch after another": ("gpt_neox", {**BASE, "use_parallel_residual": False, **ENDS}),
    "llama": ("llama", SMALL),
    "llama with biases": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama with yarn": ("llama", {**SMALL, "rope_parameters": YARN}),
    "mistral": ("mistral", {**SMALL, "sliding_window": 6}),
    "olmo2": ("olmo2", SMALL),
    "qwen2": ("qwen2", SMALL),
    "qwen3": ("qwen3", {**SMALL, "head_dim": 6}),
    "smollm3": ("smollm3", {**SMALL, "num_hidden_layers": 4}),
    "t5": ("t5", T5),
    "t5, gated and untied": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


def small(model_type: str, options: dict[str, Any], kind: str = "AutoModelForCausalLM"):
    """A model of transformers in double precision, whose norms and biases are no longer 1 and 0."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **options)
    kind = "AutoModelForSeq2SeqLM" if model_type == "t5" else kind
    model = getattr(transformers, kind).from_config(config).double().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.1)
    return model


def test_every_family_has_a_model_here() -> None:
    assert {model_type for model_type, _ in MODELS.values()} == set(FAMILIES)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_a_rebuilt_model_gives_the_logits_of_transformers(name: str) -> None:
    reference = small(*MODELS[name])
    model, ids = rebuild(reference), torch.randint(3, 64, (2, 20))
    cuts = (slice(0, 7), slice(7, 8), slice(8, 20))
    if isinstance(model, EncoderDecoder):
        expected = reference(input_ids=ids[:, :9], decoder_input_ids=ids).logits
        cache, memory = model.cache(), model.encode(ids[:, :9])
        pieces = [model(ids[:, :9], ids[:, cut], memory=memory, cache=cache) for cut in cuts]
        at_once = model(ids[:, :9], ids)
    else:
        expected, at_once, cache = reference(ids).logits, model(ids), model.cache()
        pieces = [model(ids[:, cut], cache=cache) for cut in cuts]
    # transformers rotates and normalises in float32, also in a float64 model.
    torch.testing.assert_close(at_once, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, rtol=0, atol=1e-9)


def test_a_rebuilt_model_is_a_copy_and_generates_what_the_other_one_does() -> None:
    reference = small("llama", SMALL)
    model, ids = rebuild(reference), torch.tensor([[5, 3, 9]])
    expected = reference.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert type(model) is Decoder and torch.equal(model.generate(ids, 12), expected)
    logits = model(ids)
    reference.model.layers[0].mlp.up_proj.weight.data.zero_()
    assert torch.equal(model(ids), logits)


def test_a_folder_is_rebuilt_as_its_model_is(tmp_path) -> None:
    reference = small("qwen2", SMALL).float()
    reference.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 3, 9]])
    assert torch.equal(rebuild(tmp_path)(ids), rebuild(reference)(ids))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: small("phi", {**BASE, **ENDS}), r"^no table of names for 'phi'; there are: bloom, exaone4, gemma, "),
        (lambda: small("llama", SMALL, "AutoModel"), "^LlamaModel has no language head; load the class whose name end"),
        (
            lambda: small("llama", {**SMALL, "hidden_act": "tanh"}),
            "^no feed-forward layer with the activation 'tanh' and a gate$",
        ),
        (
            lambda: small("bloom", {**MODELS["bloom"][1], "apply_residual_connection_post_layernorm": True}),
            "^rebuilt, its logits are off by .* of the largest: its configuration has a feature that posenc's ",
        ),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(make, words: str) -> None:
    with pytest.raises(CannotRead, match=words):
        rebuild(make())


def test_a_weight_without_a_place_is_named() -> None:
    model = small("llama", SMALL)
    model.model.gate = torch.nn.Linear(2, 2)
    with pytest.raises(CannotRead, match=r"^the weight model\.gate\.weight has no place in a posenc model$"):
        rebuild(model)
