"""`posenc train` and `posenc generate`: one model, and what it says."""

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from posenc.cli.options import OfExperiment, Whole, Word


@dataclass(kw_only=True)
class Train(OfExperiment):
    """Train one encoding on one task, and keep a checkpoint (safetensors). The same command resumes.

    Example: posenc train rotary --task text --steps 2000 --out runs/mine
    """

    spec: Positional[str] = "rotary"
    """The encoding; several with commas between are cycled over the layers: "rotary,none"."""
    task: str = "text"
    """A task, such as copy or path/to/mine.py:Mine; posenc list has all."""
    seed: int = 100
    """Seed of weights and data."""
    map: Word = None
    """A coordinate map of the positions in training, such as "randomised(longest=64)"."""
    stretch: Word = None
    """A frequency schedule beyond the trained length, such as "yarn(factor=2)"."""
    out: Path = Path("runs/train")
    """The folder of the checkpoint."""
    threads: Whole = None
    """Threads to compute with (default: all cores)."""
    log: tuple[str, ...] = ()
    """Loggers to tell of the run: jsonl, tensorboard, wandb, mlflow, or path/to/mine.py:Mine."""
    json: bool = False
    """Print the learning curve as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.runs.single_run import train_one

        own = {"map": self.map, "stretch": self.stretch}
        changes = self.changes() | {name: value for name, value in own.items() if value is not None}
        run = train_one(self.spec, self.task, self.seed, self.out, self.threads, terminal.note, log=self.log, **changes)
        if self.json:
            print(json.dumps(run.curve))
        else:
            terminal.say(f"Checkpoint: {self.out} ({run.experiment.spec} on {run.experiment.task}, step {run.step})")
            terminal.say(f"Go on with: posenc generate {self.out}")
        return 0


@dataclass
class Generate:
    """Continue a prompt with a model that posenc train has made.

    Example: posenc generate runs/train --prompt "def " --tokens 200 --temperature 0.8
    """

    folder: Positional[Path]
    """The folder of the checkpoint."""
    prompt: str = ""
    """What to continue: text, or for a task on symbols letters and the separator, as in cab|"""
    tokens: int = 200
    """How many tokens at most."""
    temperature: float = 0.0
    """0 takes the likeliest token, 1 draws from the model's own distribution."""
    top_k: Whole = None
    """Draw among the k likeliest only."""
    seed: int = 0
    """Seed of the draw."""
    trust: tuple[str, ...] = ()
    """Files of your own, such as path/to/mine.py, whose code the checkpoint may ask for. No other code is run."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.runs.single_run import continue_prompt

        given = (self.tokens, self.temperature, self.top_k, self.seed)
        terminal.data(continue_prompt(self.folder, self.prompt, *given, self.trust, terminal.note))
        return 0
