"""The source names nothing of torch that the oldest one it promises lacks: torch_names.txt lists what that one has."""

import ast
from pathlib import Path
from pydoc import locate

ROOT = Path(__file__).parents[2]
LISTED = {line.split()[0] for line in Path(__file__).with_name("torch_names.txt").read_text("utf-8").splitlines()}
TO_DO = """are new. Whether the oldest torch of pyproject.toml has them is told by
    python3 -m venv OLD && OLD/bin/pip install torch==2.6.0 numpy && OLD/bin/python tests/house/test_torch_names.py
Add those that are there to torch_names.txt. Where one is missing, go another way or refuse; add it with a # and how."""


def dotted(node: ast.AST, words: dict[str, str]) -> str:
    """The whole name of what is read, by what the words of its file stand for; nothing where that is not of torch."""
    if isinstance(node, ast.Attribute):
        return (before := dotted(node.value, words)) and f"{before}.{node.attr}"
    return words.get(node.id, "") if isinstance(node, ast.Name) else ""


def torch_names() -> dict[str, str]:
    """The names of torch that the source reads, and where each stands."""
    found = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        nodes, words = list(ast.walk(ast.parse(file.read_text("utf-8")))), {}
        for node in nodes:
            for one in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                if (whole := inside + one.name).partition(".")[0] == "torch":
                    words[one.asname or one.name.partition(".")[0]] = whole if inside or one.asname else "torch"
        found |= {name: f"{file.relative_to(ROOT)}:{node.lineno}" for node in nodes if (name := dotted(node, words))}
    return found


def test_the_source_keeps_to_the_names_of_the_oldest_torch() -> None:
    found = torch_names()
    assert found.keys() <= LISTED, f"{ {name: found[name] for name in found.keys() - LISTED} } {TO_DO}"
    assert found.keys() >= LISTED, "tests/house/torch_names.txt lists what nothing reads any more; take it out"


if __name__ == "__main__":
    for name in torch_names().keys() - LISTED:
        print(name, "is missing" if locate(name) is None else "is there")
