"""The verbs, those that people begin with first. Who adds one adds it to GROUPS, and nowhere else."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Union

from posenc.cli.board import Advise, Board
from posenc.cli.checkpoints import Convert, Doctor, Extend, Inspect
from posenc.cli.comparison import Compare, Merge, Report
from posenc.cli.encodings import Check, List, Order, Show
from posenc.cli.explore import Explore
from posenc.cli.export import Export
from posenc.cli.lesson import Lesson
from posenc.cli.options import Positional, subcommand, taking
from posenc.cli.published import Lab
from posenc.cli.training import Generate, Train
from posenc.foreign import near, quoted

SHELLS = ("bash", "zsh", "fish")


@dataclass
class Completion:
    """Print a script that completes verbs and options.

    Example: posenc completion bash

    How a shell learns it:

    bash: eval "$(posenc completion bash)" in ~/.bashrc

    zsh: posenc completion zsh > ~/.zfunc/_posenc, and fpath+=~/.zfunc before compinit in ~/.zshrc

    fish: posenc completion fish > ~/.config/fish/completions/posenc.fish
    """

    shell: Positional[Annotated[str, taking("SHELL")]]
    """bash, zsh or fish."""

    def run(self) -> int:
        if self.shell not in SHELLS:
            hint = near(self.shell, SHELLS)
            raise ValueError(f"no completion for {quoted(self.shell)}; there are: {', '.join(SHELLS)}{hint}")
        import tyro

        every: Any = Union[tuple(Annotated[cls, subcommand(name)] for name, cls in VERBS.items())]  # noqa: UP007
        # It leaves when it has printed.
        with suppress(SystemExit):
            arguments = ["--tyro-write-completion", self.shell, "-"]
            tyro.cli(every, prog="posenc", args=arguments, config=(tyro.conf.OmitArgPrefixes,))
        return 0


GROUPS = {
    "first": (Lesson, List, Show, Explore, Compare, Check, Train, Inspect),
    "more": (Advise, Report, Order, Generate, Extend, Convert, Doctor, Export, Merge, Board, Lab, Completion),
}
VERBS = {cls.__name__.lower(): cls for group in GROUPS.values() for cls in group}


def overview() -> str:
    """Every verb on one line of one screen."""
    lines = ["posenc: positional encodings. posenc help VERB says what it takes; --version"]
    for group, verbs in GROUPS.items():
        for cls in verbs:
            about = (cls.__doc__ or "").partition("\n")[0]
            lines.append(f"{group if cls is verbs[0] else '':<12} {cls.__name__.lower():<11} {about}")
    return "\n".join(lines)
