"""The help text of a verb."""

import ast
import inspect
import shutil
import textwrap
from itertools import pairwise
from typing import Any

from posenc.cli.arguments import all_options, find_verb, usage

GROUPS = {
    "what": "path spec encodings task tasks text label preset method measures map maps stretch test_map factor replace",
    "how long": "seed seeds seed_from steps tokens seconds lengths train_length test_lengths samples start curriculum",
    "model": "layers dim heads kv_heads head_dim intermediate_size feed_forward norm norm_first branch_norm "
    "parallel_residual residual_scale embedding_norm qk_norm joined_qk_norm softcap output_softcap init bias window "
    "dropout model",
    "where": "device dtype compile threads parallel shard cache chunk accumulation activation_checkpointing",
    "training": "",
    "output": "out json log plan keep",
}
"""The section of each option in the help of a verb with many options; all others are about training."""

INDENT = " " * 28


def show_help(arguments: list[str]) -> None:
    """Print the help of the verb in the arguments. Raises ValueError if there is no verb."""
    name, cls, _ = find_verb([word for word in arguments if word != "all"])
    print(help_text(name, cls, show_every_option="all" in arguments))


def help_text(name: str, cls: Any, show_every_option: bool) -> str:
    """Return the help of a verb; of one with many options only its first ones, unless `show_every_option`."""
    head, options = getattr(cls, "first", ()), {option.field: option for option in all_options(cls)}
    # In the order in which people need them, not in that of the classes.
    names = dict.fromkeys([*head, *(options if show_every_option or not head else ())])
    descriptions, width = field_docs(cls), min(100, shutil.get_terminal_size().columns)
    lines = [f"usage: {usage(name, cls)}", "", inspect.getdoc(cls) or ""]
    part = {field: group for group, fields in GROUPS.items() for field in fields.split()}
    for group in GROUPS if head else ["options"]:
        members = [options[field] for field in names if not head or part.get(field, "training") == group]
        lines += ["", f"{group}:"] if members else []
        for option in members:
            text = f"{descriptions[option.field]}{option.default}"
            text = textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT)
            fits = len(option.usage) <= len(INDENT) - 4
            lines.append(f"  {option.usage:<26}{text.lstrip()}" if fits else f"  {option.usage}\n{text}")
    rest = len(options) - len(names)
    return "\n".join([*lines, *(["", f"{rest} more options: posenc help {name} all"] if rest else [])])


def field_docs(cls: Any) -> dict[str, str]:
    """Return the text below each field of a class and its bases."""
    docs = {}
    for base in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(inspect.getsource(base)).body
        for field, text in pairwise(getattr(tree, "body", [])):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docs[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return docs
