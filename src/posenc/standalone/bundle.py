"""Make one file of a readable form and of what it imports from its neighbours.

The constants of a form are its options. They are written as numbers, and `if` statements that ask for constants alone
are decided; what nothing reads any more (functions, imports, constants, optional parameters) is left out.
"""

import ast
import io
import operator
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

LINE = 112  # letters
PACKAGE = "posenc.standalone.forms"
SCHEDULES = f"{PACKAGE}.schedules."
AXES = ("SEQ_DIM", "HEADS_DIM")

Edit: TypeAlias = tuple[int, int, str]
"""Where the old text begins and ends, and the new text."""


class Source:
    """The text of a module, and where its syntax tree stands in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]

    def span(self, node: Any) -> tuple[int, int]:
        """Return where the text of a node begins and ends."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def offset(self, line: int, byte: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:byte].decode())

    @property
    def docstring(self) -> str:
        first: Any = self.tree.body[0]
        return ast.literal_eval(first.value)

    @cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """Return the functions, classes and constants by their names."""
        names: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    names[name] = node
        return names

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Return the module ("" for a module itself) and the name of each import, by its name here."""
        names: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None) or ""
                names |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
        return names

    def definition(self, name: str) -> str:
        """Return the text of a definition, with the comments above it and behind it."""
        node = self.definitions[name]
        first = min(node.lineno, *(part.lineno for part in getattr(node, "decorator_list", [])), node.lineno) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        return "".join(self.lines[first : node.end_lineno])


def specialised_source(text: str, constants: Mapping[str, Any]) -> Source:
    """Return the source with these values of its constants, and without the branches and parameters that they end."""
    for name, value in constants.items():
        source = Source(text)
        node: Any = source.definitions[name]
        start, end = source.span(node.value)
        text = text[:start] + literal(value, start - source.starts[node.lineno - 1]) + text[end:]
    while edit := next(edits(Source(text)), None):
        start, end, new = edit
        text = text[:start] + new + text[end:]
    return Source(text)


def rename_definitions(source: Source, names: Mapping[str, str]) -> Source:
    """Return the source with other names of definitions and imports; texts have the new names of constants."""
    constants = [name for name in names if name.isupper()]
    text = source.text
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        new = token.string
        if token.type == tokenize.NAME:
            new = names.get(new, new)
        elif token.type in (tokenize.COMMENT, tokenize.STRING) and constants:
            new = re.sub(rf"\b({'|'.join(constants)})\b", lambda match: names[match[0]], new)
        if new != token.string:
            start, end = (source.starts[row - 1] + column for row, column in (token.start, token.end))
            text = text[:start] + new + text[end:]
    return Source(text)


def literal(value: Any, column: int) -> str:
    """Return a value as Python text; a long tuple has lines of its own."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return f"{int(value):_}.0"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    if isinstance(value, list | tuple):
        items = [literal(item, 0) for item in value]
        short = f"({', '.join(items)}{',' * (len(items) == 1)})"
        if column + len(short) <= LINE:
            return short
        return (
            "(\n" + textwrap.fill(", ".join(items) + ",", LINE, initial_indent="    ", subsequent_indent="    ") + "\n)"
        )
    return f'"{value}"' if isinstance(value, str) else repr(value)


def edits(source: Source) -> Iterator[Edit]:
    """Yield an edit for each decision, then for each parameter and argument that nothing reads."""
    yield from decisions(source)
    yield from required_parameters(source)
    yield from unused_parameters(source)
    yield from result_types(source)
    yield from axes_in_place(source)


def decisions(source: Source) -> Iterator[Edit]:
    """Yield the edit of each condition on constants alone: the branch that is taken takes its place."""
    values = {}
    for name, node in source.definitions.items():
        if name.isupper() and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            try:
                values[name] = ast.literal_eval(node.value)
            except ValueError:
                continue
    for node in ast.walk(source.tree):
        if isinstance(node, ast.If | ast.IfExp) and (decision := decide(node.test, values)) is not None:
            if isinstance(node, ast.If):
                yield branch_edit(source, node, node.body if decision else node.orelse)
            else:
                start, end = source.span(node)
                first, last = source.span(node.body if decision else node.orelse)
                yield start, end, source.text[first:last]


def decide(test: ast.expr, values: Mapping[str, Any]) -> bool | None:
    """Return whether a condition on constants holds; None for one that reads anything else."""
    match test:
        case ast.Name(id=name) if name in values:
            return bool(values[name])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            result = decide(operand, values)
            return None if result is None else not result
        case ast.BoolOp(op=op, values=parts):
            results = [decide(part, values) for part in parts]
            return None if None in results else (all if isinstance(op, ast.And) else any)(results)
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[ast.Constant(value=value)]) if name in values:
            return RELATIONS[type(op)](values[name], value) if type(op) in RELATIONS else None
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Eq()], comparators=[ast.Name(id=right)]):
            return values[left] == values[right] if left in values and right in values else None
    return None


RELATIONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Gt: operator.gt
}  # fmt: skip


def branch_edit(source: Source, node: ast.If, branch: list[ast.stmt]) -> Edit:
    """Return the edit that puts a branch, with the comments above it, in the place of its `if`."""
    start, end = source.starts[node.lineno - 1], source.starts[node.end_lineno or node.lineno]
    if not branch:
        return start, end, ""
    first = branch[0].lineno - 1
    while source.lines[first - 1].lstrip().startswith("#"):
        first -= 1
    text = textwrap.dedent("".join(source.lines[first : branch[-1].end_lineno]))
    text = "if" + text.removeprefix("elif") if text.startswith("elif") else text
    return start, end, textwrap.indent(text, " " * node.col_offset)


def required_parameters(source: Source) -> Iterator[Edit]:
    """Yield the edit of each parameter that is asserted not to be None: it loses its default, and the line goes."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        defaults = {
            argument.arg: (argument, default) for argument, default in zip(arguments, node.args.defaults, strict=True)
        }
        for line in node.body:
            match line:
                case ast.Assert(test=ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()])) if name in defaults:
                    argument, default = defaults[name]
                    annotation: Any = argument.annotation  # Tensor | None
                    first, last = source.starts[line.lineno - 1], source.starts[line.end_lineno or line.lineno]
                    yield source.span(annotation.left)[1], last, source.text[source.span(default)[1] : first]


def result_types(source: Source) -> Iterator[Edit]:
    """Yield the edit of each `-> Tensor | tuple[..]` of a function that returns one of them alone."""
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef(returns=ast.BinOp(left=ast.Name(id="Tensor"), right=ast.Subscript()) as union):
                tuples = {isinstance(line.value, ast.Tuple) for line in ast.walk(node) if isinstance(line, ast.Return)}
                if len(tuples) == 1:
                    start, end = source.span(union.right if True in tuples else union.left)
                    yield *source.span(union), source.text[start:end]


def axes_in_place(source: Source) -> Iterator[Edit]:
    """Yield the edit of each place that reads the axis of tokens or heads: a file has the number, not a constant."""
    definitions = {name: source.definitions.get(name) for name in AXES}
    values = {name: ast.unparse(node.value) for name, node in definitions.items() if isinstance(node, ast.Assign)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in values:
            yield *source.span(node), values[node.id]


def unused_parameters(source: Source) -> Iterator[Edit]:
    """Yield the edit of each parameter with a default that its function does not read, then of its arguments."""
    parameter_names = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            names = {part.id for line in node.body for part in ast.walk(line) if isinstance(part, ast.Name)}
            defaults = node.args.defaults
            for parameter, default in zip(node.args.args[len(node.args.args) - len(defaults) :], defaults, strict=True):
                if parameter.arg not in names:
                    start = source.text.rindex(",", 0, source.span(parameter)[0])
                    yield start, source.span(default)[1], ""
            parameter_names[node.name] = {parameter.arg for parameter in node.args.args}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            if "__init__" in methods:
                parameter_names[node.name] = {parameter.arg for parameter in methods["__init__"].args.args}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                    pass
                case _:
                    continue
            for keyword in node.keywords:
                if name in parameter_names and keyword.arg and keyword.arg not in parameter_names[name]:
                    start, end = source.span(keyword)
                    yield source.text.rindex(",", 0, start), end, ""


@dataclass
class Piece:
    """What a file needs of one form: the definitions that its self-test reads, and what they read."""

    docstring: str
    self_test: str
    imports: set[tuple[str, str]] = field(default_factory=set)
    definitions: dict[str, str] = field(default_factory=dict)

    @property
    def main_class(self) -> str:
        """Return the text of the class that the form is about, the last one of its file."""
        return [text for text in self.definitions.values() if text.startswith("class ")][-1]

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename definitions, wherever they are read; keyword arguments keep their names."""
        word = re.compile(rf"(?<![\w.\"'])({'|'.join(names)})\b(?!=[^=])")

        def new_text(text: str) -> str:
            return word.sub(lambda match: names[match[0]], text)

        self.definitions = {names.get(name, name): new_text(text) for name, text in self.definitions.items()}
        self.self_test = new_text(self.self_test)


def piece_of(sources: Mapping[str, Source], module: str) -> Piece:
    """Return what a file needs of a form."""
    form = sources[module]
    (main,) = (node for node in form.tree.body if isinstance(node, ast.If))
    piece = Piece(form.docstring, "".join(form.lines[main.lineno : main.end_lineno]))

    modules: dict[str, Source] = {}
    aliases: dict[str, str] = {}

    def add(module: str, name: str) -> None:
        source = sources[module]
        modules[module] = source
        if name in source.definitions:
            if name not in piece.definitions:
                piece.definitions[name] = ""  # it may call itself
                for inner_name in names_in(source.definitions[name]):
                    add(module, inner_name)
                del piece.definitions[name]
                piece.definitions[name] = source.definition(name)
        elif name in source.imports:
            place, target = source.imports[name]
            if place.startswith(PACKAGE):
                add(place, target)
                aliases[name] = target
            else:
                piece.imports.add((place, target))

    for name in names_in(main):
        add(module, name)
    if new_names := {name: target for name, target in aliases.items() if name != target}:
        piece.rename(new_names)
    for place, source in modules.items():
        if place.startswith(SCHEDULES):
            piece.docstring = f"{piece.docstring.strip()}\n\n{source.docstring.strip()}\n"
    return piece


def rename_conflicts(pieces: Sequence[Piece]) -> None:
    """Rename, in later pieces, what an earlier one defines in another way."""
    definitions: dict[str, str] = {}
    for number, piece in enumerate(pieces, 1):
        # A definition that reads a renamed one has another text than before.
        while names := [name for name, text in piece.definitions.items() if definitions.get(name, text) != text]:
            piece.rename({name: f"{name}{'_' * name.isupper()}{number}" for name in names})
        definitions |= piece.definitions


def is_constant(text: str) -> bool:
    """Return whether a definition is no function and no class."""
    return not text.lstrip("#").startswith(("def ", "class ", "@"))


def file_of(pieces: Sequence[Piece], header: str, glue: str = "") -> str:
    """Return one file: header, imports, constants, functions, classes and self-tests of its pieces.

    header  its docstring, and comments
    glue    a class that reads those of the pieces
    """
    definitions = {name: text for piece in pieces for name, text in piece.definitions.items()}
    constants = [text for name, text in definitions.items() if is_constant(text) and not name.startswith("EXPECTED")]
    expected = [text for name, text in definitions.items() if name.startswith("EXPECTED")]
    code = [text for text in definitions.values() if not is_constant(text)]
    imports = import_lines(set[tuple[str, str]]().union(*(piece.imports for piece in pieces)))
    self_test = "# self-test, may be deleted\n" + "".join(expected) + 'if __name__ == "__main__":\n'
    self_test += "\n".join(piece.self_test for piece in pieces)
    blocks = [f"{header}\n\n{imports}\n{''.join(constants)}", *code, glue, self_test]
    return "\n\n".join(block.strip("\n") + "\n" for block in blocks if block)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names in a part of a syntax tree, in the order of the text."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    yield from dict.fromkeys(part.id for part in sorted(names, key=lambda part: (part.lineno, part.col_offset)))


def import_lines(imports: set[tuple[str, str]]) -> str:
    """Return the lines of imports of modules and of names from them."""
    plain = sorted(name for module, name in imports if not module)
    lines = [f"import {name}\n" for name in plain if name != "torch"]
    lines += ["\n"] * bool(lines) + ["import torch\n"] * ("torch" in plain)
    for module in sorted({module for module, _ in imports if module}):
        lines.append(f"from {module} import {', '.join(sorted(name for m, name in imports if m == module))}\n")
    return "".join(lines)
