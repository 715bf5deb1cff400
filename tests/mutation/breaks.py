"""Mutants of a source file: each has one mistake that a programmer could make, and that a test should catch.

Docstrings, raised errors, assertions, formatted text and annotations are never changed.
"""

import ast
import copy
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

Change = tuple[str, ast.AST, str, str]
"""Kind, the node that is replaced, its new text, and a description of the change."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
NONCOMMUTATIVE = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
COUNTERPARTS = dict(
    pair
    for a, b in (
        ("sin", "cos"), ("sinh", "cosh"), ("min", "max"), ("amin", "amax"), ("minimum", "maximum"),
        ("argmin", "argmax"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("any", "all"),
        ("log", "log1p"), ("exp", "expm1"), ("triu", "tril"), ("sum", "mean"), ("logical_and", "logical_or"),
        ("append", "extend"), ("repeat", "repeat_interleave"), ("startswith", "endswith"), ("softmax", "log_softmax"),
    )
    for pair in ((a, b), (b, a))
)  # fmt: skip
PASS_THROUGH = set(
    "to type_as float double half bfloat16 long int bool detach clone contiguous abs clamp clip neg flip roll "
    "transpose permute squeeze unsqueeze masked_fill flatten unflatten sort sorted sqrt square reversed copy tril triu "
    "requires_grad_ eval item nan_to_num".split()
)
"""Calls that are replaced by their operand: x.to(dtype) becomes x, sorted(x) becomes x."""
SYMMETRIC_CALLS = {"min", "max", "minimum", "maximum", "add", "mul", "gcd", "promote_types", "transpose"}
LAST_RESORT = {"number", "truth"}
"""Kinds that are chosen only where a function offers no other."""


class Mutant(NamedTuple):
    """One break; `number` tells equal breaks in one function apart."""

    file: str
    function: str  # its dotted name, empty outside of functions
    first_line: int  # the function's first line, with its decorators
    last_line: int
    line: int
    kind: str
    description: str
    number: int
    span: tuple[int, int]  # bytes of the file
    text: str
    is_cached: bool  # the function's results are memoised

    @property
    def name(self) -> str:
        """A name that stays the same when lines move."""
        suffix = f" (number {self.number + 1})" if self.number else ""
        return f"{self.file} {self.function or 'outside'}: {self.description}{suffix}"

    def apply_to(self, source: str) -> str:
        source_bytes = source.encode()
        return (source_bytes[: self.span[0]] + self.text.encode() + source_bytes[self.span[1] :]).decode()


def find_mutants(file: str, source: str) -> list[Mutant]:
    """Return every break of a file, in order of the source."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    breaks = []
    counts: Counter[tuple[str, str]] = Counter()
    for function, owner, (kind, node, text, description) in walk_changes(ast.parse(source), "", None):
        span = (lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset)
        decorators = owner.decorator_list if owner else []
        first_line = min([owner.lineno, *(decorator.lineno for decorator in decorators)]) if owner else 0
        is_cached = any("cache" in ast.unparse(decorator) for decorator in decorators)
        number = counts[function, description]
        counts[function, description] += 1
        place = (file, function, first_line, owner.end_lineno if owner else len(lines), node.lineno)
        breaks.append(Mutant(*place, kind, description, number, span, text, is_cached))
    return breaks


def sample(candidates: Iterable[Mutant], per_function: int, seed: int = 0) -> list[Mutant]:
    """Return at most `per_function` breaks of each function, of varied kinds; all functions' first ones come first."""
    functions: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in candidates:
        functions[mutant.file, mutant.function].append(mutant)
    rounds: list[list[Mutant]] = [[] for _ in range(per_function)]
    for candidates in functions.values():
        kind_counts: Counter[str] = Counter()
        for group in rounds:
            if candidates:
                key = lambda m: (m.kind in LAST_RESORT, kind_counts[m.kind], digest(f"{seed} {m.name}"))  # noqa: B023, E731
                best = min(candidates, key=key)
                candidates.remove(best)
                kind_counts[best.kind] += 1
                group.append(best)
    return [mutant for group in rounds for mutant in group]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def walk_changes(node: ast.AST, function: str, owner: ast.AST | None) -> Iterator[tuple[str, ast.AST | None, Change]]:
    """Yield every change below a node, with its function's name and node."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or is_for_readers(child):
                continue
            child_owner, name = owner, function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{function}.{child.name}".lstrip(".")
                child_owner = None if isinstance(child, ast.ClassDef) else child
            for change in changes(child, node, field):
                yield name, child_owner, change
            yield from walk_changes(child, name, child_owner)


def is_for_readers(node: ast.AST) -> bool:
    """Whether a node serves only readers or type checkers."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("print", "warnings.warn", "TypeVar", "isinstance", "cast", "overload")
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def changes(node: ast.AST, parent: ast.AST, field: str) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from call_changes(node)
    elif isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            symbols = [COMPARISONS[type(operator)] if i == j else symbol(op) for j, op in enumerate(node.ops)]
            pieces = zip(["", *symbols], map(ast.unparse, map(bracket, [node.left, *node.comparators])), strict=True)
            yield replace("comparison", node, f"({' '.join(' '.join(pair).strip() for pair in pieces)})")
    elif isinstance(node, ast.BinOp):
        left, right = ast.unparse(bracket(node.left)), ast.unparse(bracket(node.right))
        if type(node.op) in OPERATORS:
            yield replace("operator", node, f"(({left}) {OPERATORS[type(node.op)]} ({right}))")
        if isinstance(node.op, NONCOMMUTATIVE) and left != right:
            yield replace("order", node, f"(({right}) {symbol(node.op)} ({left}))")
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        text = f"{ast.unparse(node.target)} {OPERATORS[type(node.op)]}= {ast.unparse(node.value)}"
        yield replace("operator", node, text)
    elif isinstance(node, ast.BoolOp):
        for i, value in enumerate(node.values):
            rest = [f"({ast.unparse(operand)})" for operand in node.values if operand is not value]
            text = f"({f' {symbol(node.op)} '.join(rest)})"
            yield "condition", node, text, f"without {short(value)} in {short(node)}"
            if not i:
                joiner = " or " if isinstance(node.op, ast.And) else " and "
                yield replace("condition", node, f"({joiner.join(f'({ast.unparse(v)})' for v in node.values)})")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        if not isinstance(node.operand, ast.Constant):
            yield replace("sign", node, f"({ast.unparse(node.operand)})")
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield from branch_changes(node)
    elif isinstance(node, ast.Constant) and not isinstance(parent, (ast.Index, ast.FormattedValue)):
        if isinstance(node.value, bool):
            yield replace("truth", node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            yield replace("number", node, f"({node.value + 1!r})")
    elif isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield replace("bound", bound, f"({ast.unparse(bound)}) + 1")
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and field != "slice":
        names = all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in node.elts)
        for part in node.elts if len(node.elts) > 1 and not names else ():
            rest = "".join(f"{ast.unparse(element)}, " for element in node.elts if element is not part)
            yield "part", node, f"({rest.rstrip()})", f"without {short(part)} in {short(node)}"
    elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "real"):
        yield replace("call", node, ast.unparse(node.value))
    elif field in ("body", "orelse", "finalbody") and is_removable(node):
        yield "statement", node, "pass", f"without the statement {short(node)}"


def call_changes(node: ast.Call) -> Iterator[Change]:
    callee = ast.unparse(node.func).rpartition(".")[2]
    for i, keyword in enumerate(node.keywords):
        rest = ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])
        description = f"{keyword.arg}=" if keyword.arg else f"**{short(keyword.value)}"
        yield "keyword", node, ast.unparse(rest), f"{short(node.func)}(...) without {description}"
    positions = [i for i, argument in enumerate(node.args) if not isinstance(argument, ast.Starred)]
    for i, j in [] if callee in SYMMETRIC_CALLS else pairwise(positions):
        if ast.dump(node.args[i]) != ast.dump(node.args[j]):
            arguments = list(node.args)
            arguments[i], arguments[j] = arguments[j], arguments[i]
            text = ast.unparse(ast.Call(node.func, arguments, node.keywords))
            yield "arguments", node, text, f"{short(node)} with arguments {i + 1} and {j + 1} swapped"
    if callee in COUNTERPARTS:
        counterpart = copy.copy(node.func)
        setattr(counterpart, "attr" if isinstance(counterpart, ast.Attribute) else "id", COUNTERPARTS[callee])
        yield replace("name", node, ast.unparse(ast.Call(counterpart, node.args, node.keywords)))
    if callee in PASS_THROUGH and isinstance(node.func, ast.Attribute):
        yield (
            "call",
            node,
            ast.unparse(bracket(node.func.value)),
            f"without .{callee}(...) after {short(node.func.value)}",
        )
    elif callee in PASS_THROUGH and node.args:
        yield "call", node, ast.unparse(bracket(node.args[0])), f"without {callee}(...) around {short(node.args[0])}"


def branch_changes(node: ast.If | ast.IfExp) -> Iterator[Change]:
    if isinstance(node, ast.IfExp):
        for arm in (node.body, node.orelse):
            yield "branch", node, f"({ast.unparse(arm)})", f"always {short(arm)} in {short(node)}"
        return
    yield "branch", node.test, "False", f"never: if {short(node.test)}"
    if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
        yield "branch", node.test, "True", f"always: if {short(node.test)}"


def is_removable(node: ast.AST) -> bool:
    """Whether a statement can be removed without making a later name undefined."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
        # x = f(x), or an assignment to an item of an existing container
        reads_target = re.search(rf"(?<![\w.]){re.escape(target)}(?!\w)", ast.unparse(node.value)) is not None
        return reads_target or isinstance(node.targets[0], ast.Subscript)
    return False


def symbol(operator: ast.AST) -> str:
    words = {ast.And: "and", ast.Or: "or", ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
    if type(operator) in words:
        return words[type(operator)]
    if isinstance(operator, ast.cmpop):
        return ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")])).split()[1]
    return ast.unparse(ast.BinOp(ast.Name("a"), operator, ast.Name("b"))).split()[1]


def bracket(node: ast.AST) -> ast.AST:
    """Return an expression whose text may stand beside an operator or a dot."""
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List)
    return node if isinstance(node, simple) else ast.Name(f"({ast.unparse(node)})")


def replace(kind: str, node: ast.AST, text: str) -> Change:
    return kind, node, text, f"{short(node)} becomes {shorten(ast.unparse(ast.parse(text)))}"


def short(node: ast.AST) -> str:
    return shorten(ast.unparse(node))


def shorten(text: str, longest: int = 70) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
