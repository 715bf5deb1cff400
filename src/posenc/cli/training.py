"""`posenc train` and `posenc generate`: one model, and what it says."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Files, Folder, Name, Names, Number, OneSpec, Positional, RunOptions, Taking, Texts, Whole


@dataclass(kw_only=True)
class Train(RunOptions):
    """Train one encoding on one task; keep a checkpoint.

    Example: posenc train rotary --task text --steps 2000 --out runs/mine

    The checkpoint is safetensors, and the same command goes on where it stopped.
    """

    first = "spec task text steps train_length layers dim heads device out".split()

    spec: Positional[Annotated[str, Taking("SPEC")]] = "rotary"
    """The encoding; several with commas between are cycled over the layers: "rotary,none"."""
    task: Annotated[str, Taking("NAME")] = "text"
    """A task, such as copy or path/to/mine.py:Mine; posenc list has all."""
    seed: int = 100
    """Seed of weights and data."""
    map: OneSpec = None
    """A coordinate map of the positions in training, such as "randomised(longest=64)"."""
    stretch: OneSpec = None
    """A frequency schedule beyond the trained length, such as "yarn(factor=2)"."""
    warmup: Whole = None
    """Steps over which the rate rises to the highest."""
    final_rate: Number = None
    """The share of the highest rate that a cosine falls to."""
    weight_decay: Number = None
    """Weight decay of AdamW."""
    clip: Number = None
    """The largest norm of the gradient, 1.0 where nothing is said; 0 shortens none."""
    curriculum: Number = None
    """The share of the training over which lengths grow from 2 to the trained length."""
    cool_down: Whole = None
    """Steps over which a run ends once its task is learned; 0 trains to the end."""
    evaluate_every: Whole = None
    """Steps between two points of the learning curve, each with an evaluation, a checkpoint and samples."""
    samples: Texts = ()
    """Prompts that the model continues at every point of the curve, such as "def " "import "."""
    sample_tokens: int = 100
    """How many tokens a sample has at most."""
    accumulation: int = 1
    """In how many parts the batch of a step goes through the model, one after another, to save memory."""
    activation_checkpointing: bool = False
    """Compute the insides of blocks again in the backward pass instead of keeping them, to save memory."""
    parallel: Name = None
    """Under torchrun, ddp (each process holds the model) or fsdp (a shard of it). Default: ddp."""
    keep: int = 2
    """How many of the last checkpoints are kept."""
    config: Folder = None
    """A .toml file of settings by the names of these flags, such as the settings.toml of a run; flags win."""
    out: Path = Path("runs/train")
    """The folder of the checkpoint."""
    threads: Whole = None
    """Threads to compute with (default: all cores)."""
    log: Names = ()
    """Loggers to tell of the run: jsonl, tensorboard, wandb, or path/to/mine.py:Mine."""
    json: bool = False
    """Print the learning curve as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.experiments.execution import Execution
        from posenc.lab.experiments.experiment import Experiment
        from posenc.lab.runs.single_run import train_one

        execution = Execution(**{one.name: getattr(self, one.name) for one in fields(Execution)})
        settings = {one.name for one in fields(Experiment)} & {one.name for one in fields(Train)}
        own = settings - {one.name for one in fields(RunOptions)} - {"spec", "task", "seed"}
        changes = self.changes() | {name: value for name in own if (value := getattr(self, name)) is not None}
        given: dict[str, Any] = {"log": self.log, "execution": execution, **changes}
        run = train_one(self.spec, self.task, self.seed, self.out, self.threads, terminal.progress, **given)
        if not run.ranks.first:
            return
        if self.json:
            print(json.dumps(run.curve))
        else:
            terminal.say(f"Checkpoint: {self.out} ({run.experiment.spec} on {run.experiment.task}, step {run.step})")
            terminal.say(f"Go on with: posenc generate {self.out}")


@dataclass
class Generate:
    """Continue a prompt with a model of posenc train.

    Example: posenc generate runs/train --prompt "def " --max-new-tokens 200 --temperature 0.8
    """

    folder: Positional[Path]
    """The folder of the checkpoint."""
    prompt: Annotated[str, Taking("TEXT")] = ""
    """What to continue: text, or for a task on symbols letters and the separator, as in cab|"""
    max_new_tokens: int = 200
    """How many tokens at most."""
    temperature: float = 0.0
    """0 takes the likeliest token, 1 draws from the model's own distribution."""
    top_k: Whole = None
    """Draw among the k likeliest only."""
    seed: int = 0
    """Seed of the draw."""
    trust: Files = ()
    """Files of your own, such as path/to/mine.py, whose code the checkpoint may ask for. No other code is run."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.runs.single_run import continue_prompt

        given = (self.max_new_tokens, self.temperature, self.top_k, self.seed)
        terminal.data(continue_prompt(self.folder, self.prompt, *given, self.trust, terminal.note))
