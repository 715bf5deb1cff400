"""A released Llama as a posenc model: the same weights, the same 64 tokens, and the same weights without positions.

What to look for: the rebuilt model gives the text of transformers, token for token. Its blocks are those of
`Decoder(vocab, **preset("llama"))`, so that any encoding can take the place of its rotary. Without one the weights give
another text: they were trained with it.

By default it is SmolLM2 (`python examples/real_models.py smollm2` first); --model takes a folder, a GGUF file or a
model of the hub.
"""

import argparse
from typing import Any

import torch
from torch import Tensor

from posenc import Decoder
from posenc.checkpoints import rebuild
from posenc.checkpoints.formats.load import load


def tiny() -> tuple[Any, Tensor]:
    """A small Llama with random weights, and a prompt: to see that it runs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval(), torch.tensor([[5, 3, 9]])


def main(path: str, text: str, quick: bool, tokens: int = 64) -> None:
    if quick:
        llama, ids = tiny()
        decode = Tensor.tolist
    else:
        checkpoint = load(path)
        llama, decode = checkpoint.model, checkpoint.tokenizer.decode
        ids = checkpoint.tokenizer(text, return_tensors="pt").input_ids
    greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = llama.generate(ids, max_new_tokens=tokens, **greedy)
    decoder = rebuild(llama)
    output_ids = decoder.generate(ids, max_new_tokens=tokens)
    print(f"{tokens} tokens, the same as those of transformers: {torch.equal(output_ids, expected)}")
    print(decode(output_ids[0]))
    bare_decoder = Decoder(decoder.vocab, decoder.config, encoding="none", tie_output=decoder.output is None)
    bare_decoder.load_state_dict(decoder.state_dict())
    print(f"\nWithout positions:\n{decode(bare_decoder.generate(ids, max_new_tokens=tokens // 4)[0])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2/model.gguf")
    parser.add_argument("--text", default="Attention without positions sees a set of words. Therefore")
    parser.add_argument("--out", help="is not written to: everything is printed")
    parser.add_argument("--quick", action="store_true", help="a tiny model with random weights")
    arguments = parser.parse_args()
    main(arguments.model, arguments.text, arguments.quick)
