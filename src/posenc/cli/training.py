"""`posenc train` and `posenc generate`: one model, and its text."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Files, Folder, Name, Names, Number, OneSpec, Positional, RunOptions, Texts, Usage, Whole


@dataclass(kw_only=True)
class Train(RunOptions):
    """Train one encoding on one task; keep a checkpoint.

    Example: posenc train rotary --task text --steps 2000 --out runs/mine

    The checkpoint is safetensors, and the same command continues where it stopped.
    """

    first = "spec task text steps train_length layers dim heads device out".split()

    spec: Positional[Annotated[str, Usage("SPEC")]] = "rotary"
    """The encoding; several with commas between are cycled over the layers: "rotary,none"."""
    task: Annotated[str, Usage("NAME")] = "text"
    """A task, such as copy or path/to/mine.py:Mine; posenc list has all."""
    seed: int = 100
    """Seed of weights and data."""
    map: OneSpec = None
    """A coordinate map of the positions in training, such as "randomised(longest=64)"."""
    stretch: OneSpec = None
    """A frequency schedule beyond the trained length, such as "yarn(factor=2)"."""
    warmup: Whole = None
    """Steps over which the rate rises to its highest value."""
    final_rate: Number = None
    """The final rate of a cosine, as a share of the highest."""
    weight_decay: Number = None
    """Weight decay of AdamW."""
    clip: Number = None
    """Gradient clipping (norm). Default: 1.0; 0: none."""
    curriculum: Number = None
    """The share of the training in which lengths grow from 2 to the trained length."""
    cool_down: Whole = None
    """Steps to continue, with a falling rate, after the task is learned; 0 trains to the end."""
    evaluate_every: Whole = None
    """Steps between two points of the learning curve, each with an evaluation, a checkpoint and samples."""
    samples: Texts = ()
    """Prompts that the model continues at every point of the curve, such as "def " "import "."""
    sample_tokens: int = 100
    """The most tokens of a sample."""
    accumulation: int = 1
    """Gradient accumulation: the parts of a step's batch, one after another, to save memory."""
    activation_checkpointing: bool = False
    """Recompute the activations of blocks in the backward pass instead of storing them, to save memory."""
    parallel: Name = None
    """Under torchrun, ddp (each process has the whole model) or fsdp (a shard of it). Default: ddp."""
    keep: int = 2
    """The number of latest checkpoints to keep."""
    config: Folder = None
    """A .toml file of settings by the names of these flags, such as the settings.toml of a run; flags win."""
    out: Path = Path("runs/train")
    """The folder of the checkpoint."""
    threads: Whole = None
    """Threads to compute with (default: all cores)."""
    log: Names = ()
    """Loggers of the run: jsonl, tensorboard, wandb, or path/to/mine.py:Mine."""
    json: bool = False
    """Print the learning curve as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.experiments.execution import Execution
        from posenc.lab.experiments.experiment import Experiment
        from posenc.lab.runs.single_run import train_run

        execution = Execution(**{field.name: getattr(self, field.name) for field in fields(Execution)})
        settings = {field.name for field in fields(Experiment)} & {field.name for field in fields(Train)}
        train_only = settings - {field.name for field in fields(RunOptions)} - {"spec", "task", "seed"}
        changes = self.changes() | {name: value for name in train_only if (value := getattr(self, name)) is not None}
        options: dict[str, Any] = {"log": self.log, "execution": execution, **changes}
        run = train_run(self.spec, self.task, self.seed, self.out, self.threads, terminal.progress, **options)
        if not run.ranks.first:
            return
        if self.json:
            print(json.dumps(run.curve))
        else:
            terminal.say(f"Checkpoint: {self.out} ({run.experiment.spec} on {run.experiment.task}, step {run.step})")
            terminal.say(f"Next: posenc generate {self.out}")


@dataclass
class Generate:
    """Continue a prompt with a model of posenc train.

    Example: posenc generate runs/train --prompt "def " --max-new-tokens 200 --temperature 0.8
    """

    folder: Positional[Path]
    """The folder of the checkpoint."""
    prompt: Annotated[str, Usage("TEXT")] = ""
    """The prompt: text, or for a task on symbols letters and the separator, as in cab|"""
    max_new_tokens: int = 200
    """The most new tokens."""
    temperature: float = 0.0
    """0 takes the likeliest token, 1 samples from the model's own distribution."""
    top_k: Whole = None
    """Sample only from the k likeliest tokens."""
    seed: int = 0
    """Seed of the sampling."""
    trust: Files = ()
    """Your own files, such as path/to/mine.py, whose code the checkpoint may run. No other code is run."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.runs.single_run import continue_prompt

        arguments = (self.max_new_tokens, self.temperature, self.top_k, self.seed)
        terminal.write_text(continue_prompt(self.folder, self.prompt, *arguments, self.trust, terminal.note))
