"""Compare the peak memory of a real model's passes with the planned memory.

    python benchmarks/hardware.py models/smollm2 --lengths 512 2048 --dtypes float32 bfloat16
    python benchmarks/hardware.py path/to/Qwen2.5-7B --device cuda --lengths 32768 --dtypes bfloat16

It prints the table of docs/checkpoints/hardware.md. Each pass runs in a separate process, and the memory used before
the model is loaded is subtracted. On a GPU the peak is the most that PyTorch allocated there.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

PASS = """
import json, sys
import torch
from posenc.checkpoints.formats import load
from posenc.checkpoints.formats.devices import accelerators
from posenc.checkpoints.measures import memory, perplexity
from posenc.checkpoints.extension.clock import Meter

path, dtype, device, length, chunk = sys.argv[1:4] + [int(given) for given in sys.argv[4:]]
load.without_weights(path)
with Meter() as before:
    pass
loaded = load.load(path, dtype=dtype, device=device)
model, devices = loaded.model, accelerators(loaded.model)
ids = torch.arange(length) % 1000
with Meter(devices) as meter:
    if model.can_generate():
        perplexity.losses(model, ids, chunk=chunk)
    else:
        with torch.inference_mode():
            model(input_ids=ids[None].to(model.device))
plan = memory.pass_memory(model, length, dtype=load.dtype_of(dtype), chunk=chunk)
print(json.dumps([plan.total / 2**20, meter.peak_mib - (0 if devices else before.peak_mib)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint, as `posenc extend` takes it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    print("| model | dtype | tokens | planned, MiB | measured, MiB | measured / planned |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for dtype in arguments.dtypes:
        for length in arguments.lengths:
            command = [
                sys.executable,
                "-c",
                PASS,
                arguments.model,
                dtype,
                arguments.device,
                str(length),
                str(arguments.chunk),
            ]
            finished_names = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            plan, rows = json.loads(finished_names.stdout.splitlines()[-1])
            name = Path(arguments.model).name
            print(f"| {name} | {dtype} | {length:,} | {plan:,.0f} | {rows:,.0f} | {rows / plan:.2f} |")


if __name__ == "__main__":
    main()
