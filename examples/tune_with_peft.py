"""A stretched checkpoint is tuned: LoRA by peft, steps by transformers' Trainer, far positions in short windows.

It takes the checkpoint that `posenc extend MODEL --factor 2 --method yarn --out runs/extend` wrote and trains adapters
beside its projections of attention. Each window is cut in two, with a random gap between the positions of its parts
(PoSE), so that short windows meet distances up to the target. The loss before and after is that of held-out windows of
the same text, placed alike. With --drope rotary is first taken out of every layer (DroPE, arXiv:2512.12167); what is
written then says so, and posenc.checkpoints.attach(model) takes it out again when it is loaded.

What to look for: the loss falls in a few steps, which says more about the text than about the length; measure both
models by length on another text. SmolLM2-135M, stretched to 16,384 tokens by yarn, went from 2.981 to 2.940 nats a
token in 20 steps of 256 tokens (8 held-out windows of the same text, 105 seconds of one thread). With --drope its
loss jumped to 5.379, and 20 steps brought it to 5.250: DroPE's authors spend from 0.5 % of the tokens of
pre-training.

It needs peft beside posenc[hf]: pip install peft.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from posenc import Positions
from posenc.checkpoints import attach
from posenc.cli import terminal
from posenc.coordinate_maps.skipped_chunks import SkippedChunks

HELD_OUT = 8


def tiny() -> tuple[Any, Tensor]:
    """A small model with random weights, and a text of random tokens: to see that it runs."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes)
    return LlamaForCausalLM(config), torch.randint(0, 64, (700,))


def windows(ids: Tensor, tokens: int, longest: int) -> list[dict[str, Tensor]]:
    """A text [N] in windows [tokens], whose positions lie in two chunks within the longest length."""
    places, draw, samples = SkippedChunks(longest=longest), torch.Generator().manual_seed(0), []
    for window in ids[: len(ids) // tokens * tokens].view(-1, tokens):
        at = places(Positions.count(tokens), window, generator=draw).coords[0, :, 0]
        # Without a mask, transformers takes a gap between positions for the border of two documents.
        sample = {"input_ids": window, "labels": window, "position_ids": at}
        samples.append(sample | {"attention_mask": torch.ones_like(window)})
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", default="runs/extend/checkpoint")
    parser.add_argument("--text", type=Path, help="a text file; default: the Python language reference")
    parser.add_argument("--tokens", type=int, default=512, help="of a window")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--drope", action="store_true", help="take rotary out of every layer first")
    parser.add_argument("--quick", action="store_true", help="a tiny random model and three steps: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/tuned"))
    arguments = parser.parse_args()
    if arguments.quick:
        (model, ids), arguments.tokens, arguments.steps = tiny(), 32, 3
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else "\n".join(topics.values())
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
        tokenizer.save_pretrained(arguments.out)
    longest = model.config.max_position_embeddings
    if arguments.tokens > longest:
        parser.error(f"windows of {arguments.tokens} tokens exceed its {longest} positions; give --tokens {longest}")
    if arguments.drope:
        attach(model, "none")
        model.config.posenc_encoding = "none"
    samples = windows(ids, arguments.tokens, longest)
    projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=projections, task_type="CAUSAL_LM")
    peft_model = get_peft_model(model, lora)
    training = TrainingArguments(
        str(arguments.out),
        max_steps=arguments.steps,
        per_device_train_batch_size=1,
        learning_rate=2e-4,
        lr_scheduler_type="cosine",
        warmup_steps=arguments.steps // 10,
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=False,
    )
    trainer = Trainer(peft_model, training, train_dataset=samples[:-HELD_OUT], eval_dataset=samples[-HELD_OUT:])
    loss_before = trainer.evaluate()["eval_loss"]
    trainer.train()
    loss_after = trainer.evaluate()["eval_loss"]
    merged_model: Any = peft_model.merge_and_unload()
    merged_model.save_pretrained(arguments.out)
    windows_in_words = f"{HELD_OUT} held-out windows of {arguments.tokens} tokens; {arguments.steps} steps"
    terminal.say(
        f"Loss before {loss_before:.3f}, after {loss_after:.3f} nats a token ({windows_in_words}). "
        f"Checkpoint: {arguments.out}"
    )


if __name__ == "__main__":
    main()
