"""Documents that are computed once, and spliced behind a prompt: what that costs in what the model predicts next.

A checkpoint reads a document alone, and its cached keys are moved behind a prompt that has nothing to do with it
(`posenc.checkpoints.movable`). The next 96 tokens of the document's text are then predicted, and the same where the
first r tokens of the document were computed anew, behind the prompt; with all of them it is a plain pass.

What to look for: turned by the difference, keys lose little or nothing. As they lie in the cache, unturned, they lose a
lot: then the document stands where the prompt stands.

By default it is SmolLM2 (`python examples/real_models.py smollm2` first) and the Python language reference.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc import terminal
from posenc.checkpoints import movable
from posenc.checkpoints.formats.load import load
from posenc.checkpoints.measures.perplexity import tokens

NEXT = 96


def tiny() -> tuple[Any, Tensor]:
    """A small model with random weights, and a text of random tokens: to see that it runs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, initializer_range=0.4, **sizes)
    return LlamaForCausalLM(config).eval(), torch.randint(0, 64, (400,))


def read(model: Any, ids: Tensor) -> Any:
    """The operations on a new cache that holds these tokens."""
    from transformers import DynamicCache

    held = movable(model, DynamicCache(config=model.config))
    model(input_ids=ids[None], past_key_values=held.cache)
    return held


def loss_behind(model: Any, held: Any, ids: Tensor) -> float:
    """The mean loss of tokens behind what is held, but for the first of them (nats)."""
    given = held.inputs(len(ids))
    logits = model(input_ids=ids[None], past_key_values=held.cache, **given).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits.float(), ids[1:]))


def unturned(model: Any, prompt: Tensor, document: Tensor, after: Tensor) -> float:
    """The same where the document's keys are put behind the prompt as they are."""
    first, second = read(model, prompt).cache, read(model, document).cache
    for layer, more in zip(first.layers, second.layers, strict=True):
        layer.keys = torch.cat((layer.keys, more.keys), 2)
        layer.values = torch.cat((layer.values, more.values), 2)
    logits = model(input_ids=after[None], past_key_values=first).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits.float(), after[1:]))


@torch.no_grad()
def main(path: str, documents: int, prompt_length: int, length: int, out: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    if quick:
        model, ids = tiny()
        documents, prompt_length, length = 2, 16, 48
    else:
        loaded = load(path, dtype="float32")
        model = loaded.model
        ids = tokens((), loaded.tokenizer).window(0, prompt_length + documents * (length + NEXT))
    prompt, ids = ids[:prompt_length], ids[prompt_length:]
    anew = [0, *(r for r in (1, 4, 16, 64, 256) if r < length), length]
    out.mkdir(parents=True, exist_ok=True)
    record = out / f"spliced-{prompt_length}-{length}{'-quick' * quick}.json"
    rows: dict[str, list[float]] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for number in range(len(rows.get(f"{length} of {length} tokens anew", ())), documents):
        text = ids[number * (length + NEXT) :][: length + NEXT]
        document, after = text[:length], text[length:]
        alone = read(model, document)
        rows.setdefault("as they are, not turned", []).append(unturned(model, prompt, document, after))
        for r in anew:
            held = read(model, torch.cat((prompt, document[:r])))
            if r < length:
                rest = alone.fork(1)[0]
                if r:
                    rest.drop(range(r))
                held.splice(rest, prompt_length + r)
            rows.setdefault(f"{r} of {length} tokens anew", []).append(loss_behind(model, held, after))
        record.write_text(json.dumps(rows), encoding="utf-8")
    whole = torch.tensor(rows[f"{length} of {length} tokens anew"])
    lines = []
    for name, losses in rows.items():
        more = torch.tensor(losses) - whole
        error = f"{float(more.std() / documents**0.5):.3f}" if documents > 1 else ""
        lines.append([name, f"{sum(losses) / documents:.3f}", f"{float(more.mean()):+.3f}", error])
    terminal.table(
        ["keys of the document", "loss of the next tokens (nats)", "more than a plain pass", "its standard error"],
        lines,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2", help="a folder of transformers, or owner/name of the hub")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--length", type=int, default=512, help="tokens of a document")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for what was measured")
    parser.add_argument("--quick", action="store_true", help="a tiny random model: to see that it runs")
    given = parser.parse_args()
    main(given.model, given.documents, given.prompt, given.length, given.out, given.quick)
