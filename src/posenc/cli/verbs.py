"""All verbs, in the order in which people need them. A new verb is added to GROUPS, and nowhere else."""

from dataclasses import dataclass
from typing import Annotated

from posenc.cli.board import Advise, Board
from posenc.cli.checkpoints import Convert, Doctor, Extend, Inspect
from posenc.cli.comparison import Compare, Merge, Report
from posenc.cli.eject import Eject, Vectors
from posenc.cli.encodings import Check, List, Order, Show
from posenc.cli.explore import Explore
from posenc.cli.export import Export
from posenc.cli.lesson import Lesson
from posenc.cli.options import Positional, Usage
from posenc.cli.published import Lab
from posenc.cli.training import Generate, Train
from posenc.foreign import quote, suggestion

SHELLS = ("bash", "zsh", "fish")


@dataclass
class Completion:
    """Print a script that completes verbs and options.

    Example: posenc completion bash

    To install it:

    bash: eval "$(posenc completion bash)" in ~/.bashrc

    zsh: eval "$(posenc completion zsh)" behind compinit in ~/.zshrc

    fish: posenc completion fish > ~/.config/fish/completions/posenc.fish
    """

    shell: Positional[Annotated[str, Usage("SHELL")]]
    """bash, zsh or fish."""

    def run(self) -> None:
        if self.shell not in SHELLS:
            hint = suggestion(self.shell, SHELLS)
            raise ValueError(f"no completion for {quote(self.shell)}; there are: {', '.join(SHELLS)}{hint}")
        from posenc.cli.arguments import flag, option_types

        flags = {verb: [*map(flag, option_types(cls))] for verb, cls in VERBS.items()}
        if self.shell == "fish":
            print(f"complete -c posenc -n __fish_use_subcommand -f -a '{' '.join(VERBS)}'")
            for verb, options in flags.items():
                for option in options:
                    print(f"complete -c posenc -n '__fish_seen_subcommand_from {verb}' -l {option[2:]}")
            return
        cases = "\n".join(f"    {verb}) choices='{' '.join(options)}' ;;" for verb, options in flags.items())
        print(("" if self.shell == "bash" else LIKE_BASH) + BASH.format(verbs=" ".join(VERBS), cases=cases))


LIKE_BASH = "autoload -U +X bashcompinit && bashcompinit\n"
BASH = """_posenc() {{
  local choices
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  ((COMP_CWORD == 1)) && choices='{verbs}'
  COMPREPLY=($(compgen -W "$choices" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _posenc posenc"""

GROUPS = {
    "first": (Lesson, List, Show, Explore, Compare, Check, Train, Inspect),
    "more": (
        Advise, Report, Order, Generate, Eject, Vectors, Extend, Convert, Doctor, Export, Merge, Board, Lab, Completion
    ),
}  # fmt: skip
VERBS = {cls.__name__.lower(): cls for group in GROUPS.values() for cls in group}


def overview() -> str:
    """Return the list of verbs, one line each."""
    lines = ["posenc: positional encodings. posenc help VERB explains a verb; --version"]
    for group, verbs in GROUPS.items():
        for cls in verbs:
            description = (cls.__doc__ or "").partition("\n")[0]
            lines.append(f"{group if cls is verbs[0] else '':<12} {cls.__name__.lower():<11} {description}")
    return "\n".join(lines)
