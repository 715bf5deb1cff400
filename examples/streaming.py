"""A model that reads past its trained length for ever: sinks and a window, renumbered in its own cache.

A text runs through a checkpoint as `posenc.checkpoints.stream` reads: 4 sinks and the newest 1,020 to 1,084 tokens, at
the places 0 to 1,087, whatever its length. Its last tokens are then predicted again from windows that are computed
anew, which costs a pass over the window for every token that is generated.

What to look for: the perplexity of the last tokens is near that of the windows computed anew, memory stays where it
was after the first thousand tokens, and a token costs one step and no pass. Without sinks (--sinks 0) the newest tokens
lose what attention rests on. What left the window is forgotten: this is no longer context.

By default it is SmolLM2 (`python examples/real_models.py smollm2` first) and the Python language reference. What was
measured is kept in the folder --out and not measured again.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.checkpoints import streamed_losses
from posenc.checkpoints.extension.clock import Meter
from posenc.checkpoints.formats.load import load
from posenc.checkpoints.live.streaming import Stream
from posenc.checkpoints.measures.perplexity import LAST_TOKENS, losses, perplexity, tokenize_texts
from posenc.cli import terminal


class Window(NamedTuple):
    """Which tokens of a stream are held: the first, the newest, and how many more before some are left out."""

    sinks: int
    window: int
    slack: int


def tiny() -> tuple[Any, Tensor]:
    """A small model with random weights, and a text of random tokens: to see that it runs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes)
    return LlamaForCausalLM(config).eval(), torch.randint(0, 64, (700,))


def anew(model: Any, ids: Tensor, window: Window) -> Tensor:
    """Losses of the last tokens, each piece of a stream's slack behind a window of as many tokens, computed anew."""
    kept_count = window.sinks + window.window
    pieces = range(len(ids) - LAST_TOKENS, len(ids), window.slack)
    return torch.cat(
        [losses(model, ids[place - kept_count : place + window.slack])[kept_count - 1 :] for place in pieces]
    )


def seconds_a_token(model: Any, ids: Tensor, window: Window) -> dict[str, float]:
    """CPU seconds for each token that is generated: a step of the stream, and a pass over the window."""
    kept_count, steps = window.sinks + window.window, 32
    reading = Stream(model, *window)
    reading.read(ids[:kept_count])
    with Meter() as stepping:
        for place in range(kept_count, kept_count + steps):
            reading.read(ids[place : place + 1])
    with Meter() as passing, torch.no_grad():
        for place in range(2):
            model(input_ids=ids[None, place : place + kept_count], use_cache=False, logits_to_keep=1)
    with Meter() as moving:
        reading.tokens.drop([window.sinks])
    return {
        "step": stepping.cpu / steps,
        "pass": passing.cpu / 2,
        "move": moving.cpu,
        "cache_mib": reading.tokens.bytes / 2**20,
    }


def main(path: str, length: int, start: int, window: Window, out: Path, quick: bool) -> None:
    torch.set_num_threads(1)
    if quick:
        model, ids = tiny()
        window = Window(2, 30, 16)
    else:
        checkpoint = load(path, dtype="float32")
        model, ids = checkpoint.model, tokenize_texts((), checkpoint.tokenizer).window(start, length)
    out.mkdir(parents=True, exist_ok=True)
    record = out / f"streaming-{window.sinks}-{window.window}-{window.slack}-{len(ids)}.json"
    results: dict[str, Any] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}

    def once(name: str, measure: Callable[[], Any]) -> Any:
        if name not in results:
            with Meter() as meter:
                value = measure()
            results[name] = value.tolist() if isinstance(value, Tensor) else value
            results[f"{name} took"] = {"cpu_s": meter.cpu, "wall_s": meter.wall}
            record.write_text(json.dumps(results), encoding="utf-8")
            print(f"{name}: {meter.cpu:.0f} CPU s, {meter.wall:.0f} s", flush=True)
        return results[name]

    cost = once("cost", lambda: seconds_a_token(model, ids, window))
    windows = torch.tensor(once("anew", lambda: anew(model, ids, window)))
    stream_losses = torch.tensor(once("streamed", lambda: streamed_losses(model, ids, **window._asdict())))

    edges = [edge for edge in (1024, 2048, 4096, 8192, 16_384) if edge < len(ids)]
    rows = [
        [f"tokens {first:,} to {end - 1:,}", f"{perplexity([stream_losses], max(first, 1), end):.2f}"]
        for first, end in zip([0, *edges], [*edges, len(ids)], strict=True)
    ]
    last = perplexity([stream_losses], len(ids) - LAST_TOKENS, len(ids))
    again = float(windows.double().mean().exp())
    label = f"the last {LAST_TOKENS}"
    rows += [[label, f"{last:.2f}"], [f"{label}, windows computed anew", f"{again:.2f}"]]
    rows += [["the first divided by the second", f"{last / again:.3f}"]]
    terminal.table(["perplexity of", "streamed"], rows, f"{len(ids):,} tokens with {window}")
    rows = [
        ["a step of the stream", f"{cost['step']:.3f}", f"{1 / cost['step']:.1f}"],
        ["a pass over the window", f"{cost['pass']:.3f}", f"{1 / cost['pass']:.1f}"],
        [f"moving all keys, once in {window.slack} tokens", f"{cost['move']:.3f}", ""],
    ]
    title = f"\nThe cache takes {cost['cache_mib']:.1f} MiB, with the keys as they were turned first"
    terminal.table(["for each token", "CPU s", "tokens / CPU s"], rows, title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2", help="a checkpoint, or owner/name of the hub")
    parser.add_argument("--length", type=int, default=16_896, help="tokens of the text")
    parser.add_argument("--start", type=int, default=2_000, help="the token of the text that it begins with")
    parser.add_argument("--sinks", type=int, default=4, help="so many of the first tokens are held")
    parser.add_argument("--window", type=int, default=1020, help="so many of the newest tokens are held")
    parser.add_argument("--slack", type=int, default=64, help="so many more before the oldest are forgotten")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for what was measured")
    parser.add_argument("--quick", action="store_true", help="a tiny model with random weights, to see that it runs")
    arguments = parser.parse_args()
    stream_window = Window(arguments.sinks, arguments.window, arguments.slack)
    main(arguments.model, arguments.length, arguments.start, stream_window, arguments.out, arguments.quick)
