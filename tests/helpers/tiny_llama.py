"""A Llama of two layers with random weights, and a tokenizer of single characters: a complete checkpoint of 100 kB."""

import string
from pathlib import Path
from typing import Any

import torch

TRAINED_LENGTH = 96
CHARACTERS = [*string.printable, "[UNK]"]
WORDS = (
    "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith, his chin nuzzled into "
    "his breast, slipped quickly through the doors. "
)
TEXT = WORDS * 12


def config(**changes: Any) -> Any:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": TRAINED_LENGTH}
    options = {"vocab_size": len(CHARACTERS), "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    return LlamaConfig(**{**sizes, **options, "initializer_range": 0.15, **changes})


def model(**changes: Any) -> Any:
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config(**changes)).eval()


def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    places = {character: place for place, character in enumerate(CHARACTERS)}
    letters = Tokenizer(models.WordLevel(places, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="[UNK]")


def save(folder: Path) -> Path:
    """Save the complete checkpoint in Hugging Face's format."""
    from posenc.checkpoints.formats.load import quietly

    with quietly():
        model().save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder
