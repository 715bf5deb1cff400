"""What passes of a real model take of memory and time, against their plan: on a CPU, or on a GPU that somebody has.

    python benchmarks/hardware.py passes models/smollm2 --lengths 512 1024 2048 --dtypes float32 bfloat16
    python benchmarks/hardware.py loop models/smollm2 --lengths 512 2048
    python benchmarks/hardware.py row path/to/Qwen2.5-7B --device cuda --dtype bfloat16
    python benchmarks/hardware.py drawn path/to/config.json drawn --device cuda

`passes` prints a table in Markdown: what a pass holds beside the weights, by plan and as it was measured. `loop` prints
what a pass costs in processor time of a loop of five lines around transformers, both in turn. `row` runs
`posenc extend`, prints the same of its longest pass, and appends a row to the table in docs/checkpoints/hardware.md.
`drawn` makes the folder of a model of which nothing is at hand but a config: memory and time are those of its shapes.
On a CUDA device --memory holds the process to so much, as a smaller card would.
"""

import argparse
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from posenc.checkpoints.extension.extend import extend
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats import load
from posenc.checkpoints.formats.devices import accelerators_of, bytes_of, device_in_words, first_of
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.plan import Way, planned, sentences, size, timed
from posenc.checkpoints.measures.work import Meter, without_holes
from posenc.lab import store
from posenc.lab.results.tables import as_markdown

TABLE = Path(__file__).parent.parent / "docs" / "checkpoints" / "hardware.md"

MARK = "<!-- rows of benchmarks/hardware.py -->"
"""Where the page's table ends."""


def passes(asked: argparse.Namespace) -> None:
    """Every length in every dtype, one text each."""
    rows = []
    for dtype in asked.dtypes:
        loaded = load.load(asked.model, dtype=dtype, device=asked.device)
        text, way = perplexity.tokens((), loaded.tokenizer), Way(dtype, asked.device, asked.chunk)
        plan = planned(loaded, sorted(asked.lengths), way, asked.memory)
        plan = timed(plan, loaded.model, text.window(0, asked.chunk + 1))
        rows += [measured(loaded.model, text.window(0, row["length"]), row, way) for row in plan["rows"]]
    headers = ["dtype", "tokens", "planned", "measured", "measured / planned", "planned s", "measured s"]
    print(as_markdown(headers, rows))


def measured(model: Any, ids: torch.Tensor, row: dict[str, Any], way: Way) -> list[str]:
    """A row of the table: what a pass adds to what was held before it."""
    devices = accelerators_of(model)
    with Meter(devices) as before:
        torch.zeros(1, device=first_of(model))
    began = time.perf_counter()
    with Meter(devices) as meter:
        perplexity.losses(model, ids, chunk=way.chunk)
    seconds = time.perf_counter() - began
    if meter.peak_mib is None or before.peak_mib is None:
        raise SystemExit("this system does not say the peak of a process")
    planned, found = row["total"] - row["weights"], (meter.peak_mib - before.peak_mib) * 2**20
    ratio, times = f"{found / planned:.2f}", (f"{row['seconds']:.1f}", f"{seconds:.1f}")
    return [way.dtype, f"{row['length']:,}", size(planned), size(found), ratio, *times]


def loop(asked: argparse.Namespace) -> None:
    """A pass of posenc against a plain loop, as the least processor time of several rounds."""
    rows = []
    for dtype in asked.dtypes:
        loaded = load.load(asked.model, dtype=dtype, device=asked.device)
        text = perplexity.tokens((), loaded.tokenizer)
        for length in asked.lengths:
            ids = text.window(0, length)
            ours, plain, difference = [], [], 0.0
            for _ in range(asked.rounds):
                with Meter() as meter:
                    found = perplexity.losses(loaded.model, ids, chunk=asked.chunk)
                ours.append(meter.cpu)
                with Meter() as meter:
                    expected = plain_losses(loaded.model, ids, asked.chunk)
                plain.append(meter.cpu)
                difference = float((found.double().mean() - expected.double().mean()).abs())
            numbers = f"{min(ours):.2f}", f"{min(plain):.2f}", f"{min(ours) / min(plain):.2f}", f"{difference:.1g}"
            rows.append([dtype, f"{length:,}", *numbers])
    print(as_markdown(["dtype", "tokens", "CPU s", "plain loop, CPU s", "ratio", "difference of the means"], rows))


@torch.inference_mode()
def plain_losses(model: Any, ids: torch.Tensor, chunk: int) -> torch.Tensor:
    """The loss of every token but the first, as a script computes it that knows nothing of posenc."""
    cache, losses = None, []
    for start in range(0, len(ids) - 1, chunk):
        targets = ids[start + 1 : start + 1 + chunk]
        out = model(ids[None, start : start + len(targets)], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        losses.append(torch.nn.functional.cross_entropy(out.logits[0].float(), targets, reduction="none"))
    return torch.cat(losses)


def row(asked: argparse.Namespace) -> None:
    """One run of `posenc extend`, as a row of the page."""
    names = ("factor", "device", "dtype", "chunk", "cache", "memory", "samples")
    given = {name: getattr(asked, name) for name in names}
    settings = Settings(asked.model, methods=(asked.method,), measures=("perplexity",), text=tuple(asked.text), **given)
    with tempfile.TemporaryDirectory() as held:
        record = extend(settings, Path(held) / "run", say=print)
    plan, last = record["plan"], record["plan"]["rows"][-1]
    of = record["methods"][-1]
    for words in sentences(plan):
        print(words)
    cells = [
        device_in_words(asked.device) if asked.device != "cpu" else f"cpu, {platform.machine()}",
        f"{Path(asked.model).name}, {asked.dtype}",
        f"{last['length']:,}",
        f"{asked.method}, chunks of {asked.chunk:,}, cache on {asked.cache}",
        size(last["total"]),
        "" if of["peak_mib"] is None else size(of["peak_mib"] * 2**20),
        f"{last['seconds'] * record_windows(record):.0f}",
        f"{of['seconds']:.0f}",
        f"torch {torch.__version__}",
    ]
    line = f"| {' | '.join(cells)} |"
    print(line)
    said = TABLE.read_text(encoding="utf-8")
    store.write(TABLE, said.replace(MARK, f"{line}\n{MARK}").encode())


def drawn(asked: argparse.Namespace) -> None:
    """A model of random weights in bfloat16, in the shapes of a config.json, with the tokenizer of another."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(asked.model)
    with torch.device(asked.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(asked.folder)
    load.load(asked.tokenizer).tokenizer.save_pretrained(asked.folder)


def held_to(asked: argparse.Namespace) -> None:
    """So much of a CUDA device and no more, where --memory says so."""
    if asked.memory and torch.device(asked.device).type == "cuda":
        whole = torch.cuda.get_device_properties(asked.device).total_memory
        torch.cuda.set_per_process_memory_fraction(bytes_of(asked.memory) / whole, asked.device)


def record_windows(record: dict[str, Any]) -> int:
    """How many texts a pass of perplexity read."""
    return record["measures"][0]["facts"]["windows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, run in (("passes", passes), ("loop", loop), ("row", row), ("drawn", drawn)):
        verb = verbs.add_parser(name, help=run.__doc__)
        verb.set_defaults(run=run, memory=None)
        of = "a config.json" if name == "drawn" else "a folder, a GGUF file, or a model of the hub as owner/name"
        verb.add_argument("model", help=of)
        verb.add_argument("--device", default="cuda" if name == "row" else "cpu")
        if name == "drawn":
            verb.add_argument("folder", help="where it is written")
            verb.add_argument("--tokenizer", default="models/smollm2", help="whose tokenizer is written beside it")
            continue
        verb.add_argument("--chunk", type=int, default=1024)
        verb.add_argument("--memory", help="what the plan is held to, such as 24GB")
        if name == "loop":
            verb.add_argument("--rounds", type=int, default=3)
        if name != "row":
            verb.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
            verb.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
        else:
            verb.add_argument("--dtype", default="bfloat16")
            verb.add_argument("--factor", type=float, default=2.0)
            verb.add_argument("--method", default="yarn")
            verb.add_argument("--cache", default="device")
            verb.add_argument("--samples", type=int, default=1)
            verb.add_argument("--text", nargs="+", default=(), help="text files, where the default one is too short")
    asked = parser.parse_args()
    without_holes()
    held_to(asked)
    asked.run(asked)


if __name__ == "__main__":
    main()
