"""The source names nothing of torch that the oldest one it promises lacks: torch_names.txt lists what that one has."""

import ast
from pathlib import Path
from pydoc import locate

ROOT = Path(__file__).parents[2]
PERMITTED_NAMES = {
    line.split()[0] for line in Path(__file__).with_name("torch_names.txt").read_text("utf-8").splitlines()
}
TO_DO = """are new. Whether the oldest torch of pyproject.toml has them is told by
    python3 -m venv OLD && OLD/bin/pip install torch==2.6.0 numpy && OLD/bin/python tests/house/test_torch_names.py
Add those that are there to torch_names.txt. Where one is missing, go another way or refuse; add it with a # and how."""


def dotted_name(node: ast.AST, words: dict[str, str]) -> str:
    """The whole name of what is read, by what the words of its file stand for; nothing where that is not of torch."""
    if isinstance(node, ast.Attribute):
        return (prefix := dotted_name(node.value, words)) and f"{prefix}.{node.attr}"
    return words.get(node.id, "") if isinstance(node, ast.Name) else ""


def torch_names() -> dict[str, str]:
    """The names of torch that the source reads, and where each stands."""
    names = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        nodes, words = list(ast.walk(ast.parse(file.read_text("utf-8")))), {}
        for node in nodes:
            for name_part in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                aliases = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                if (whole := aliases + name_part.name).partition(".")[0] == "torch":
                    words[name_part.asname or name_part.name.partition(".")[0]] = (
                        whole if aliases or name_part.asname else "torch"
                    )
        names |= {
            name: f"{file.relative_to(ROOT)}:{node.lineno}" for node in nodes if (name := dotted_name(node, words))
        }
    return names


def test_the_source_keeps_to_the_names_of_the_oldest_torch() -> None:
    names = torch_names()
    assert names.keys() <= PERMITTED_NAMES, (
        f"{ {name: names[name] for name in names.keys() - PERMITTED_NAMES} } {TO_DO}"
    )
    assert names.keys() >= PERMITTED_NAMES, "tests/house/torch_names.txt lists what nothing reads any more; take it out"


if __name__ == "__main__":
    for name in torch_names().keys() - PERMITTED_NAMES:
        print(name, "is missing" if locate(name) is None else "is there")
