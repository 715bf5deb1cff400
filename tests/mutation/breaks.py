"""Deliberate breaks of a source file, one at a time: each is a mistake that somebody could make, and a test should see.

What talks to people is left alone (docstrings, raised errors, assertions, formatted text), and so are annotations.
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
"""Kind, the node that is replaced, its new text, and what was done, in words."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
IN_ORDER = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
NAMES = dict(
    pair
    for a, b in (
        ("sin", "cos"), ("sinh", "cosh"), ("min", "max"), ("amin", "amax"), ("minimum", "maximum"),
        ("argmin", "argmax"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("any", "all"),
        ("log", "log1p"), ("exp", "expm1"), ("triu", "tril"), ("sum", "mean"), ("logical_and", "logical_or"),
        ("append", "extend"), ("repeat", "repeat_interleave"), ("startswith", "endswith"), ("softmax", "log_softmax"),
    )
    for pair in ((a, b), (b, a))
)  # fmt: skip
DROPPED = set(
    "to type_as float double half bfloat16 long int bool detach clone contiguous abs clamp clip neg flip roll "
    "transpose permute squeeze unsqueeze masked_fill flatten unflatten sort sorted sqrt square reversed copy tril triu "
    "requires_grad_ eval item nan_to_num".split()
)
"""Calls that hand on what they were given: x.to(dtype) becomes x, sorted(x) becomes x."""
COMMUTES = {"min", "max", "minimum", "maximum", "add", "mul", "gcd", "promote_types", "transpose"}
LAST_RESORT = {"number", "truth"}
"""Kinds that are taken where a function offers no other."""


class Mutant(NamedTuple):
    """One break. `function` is its dotted name, empty outside of functions; `nth` tells equal breaks in it apart."""

    file: str
    function: str
    starts: int  # the function's first line, with its decorators
    ends: int
    line: int
    kind: str
    what: str
    nth: int
    span: tuple[int, int]  # bytes of the file
    text: str
    keeps: bool  # the function is called once and its result kept

    @property
    def name(self) -> str:
        """What stays the same when lines move."""
        again = f" (number {self.nth + 1})" if self.nth else ""
        return f"{self.file} {self.function or 'outside'}: {self.what}{again}"

    def broken(self, source: str) -> str:
        whole = source.encode()
        return (whole[: self.span[0]] + self.text.encode() + whole[self.span[1] :]).decode()


def mutants(file: str, source: str) -> list[Mutant]:
    """Every break of a file, in its order."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    seen: Counter[tuple[str, str]] = Counter()
    for function, owner, (kind, node, text, what) in walk(ast.parse(source), "", None):
        span = (lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset)
        first = min([owner.lineno, *(one.lineno for one in owner.decorator_list)]) if owner else 0
        keeps = any("cache" in ast.unparse(one) for one in owner.decorator_list) if owner else False
        nth = seen[function, what]
        seen[function, what] += 1
        last = owner.end_lineno if owner else len(lines)
        found.append(Mutant(file, function, first, last, node.lineno, kind, what, nth, span, text, keeps))
    return found


def sample(found: Iterable[Mutant], each: int, seed: int = 0) -> list[Mutant]:
    """At most `each` breaks of every function, of as many kinds as there are; the first of all functions come first."""
    functions: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in found:
        functions[mutant.file, mutant.function].append(mutant)
    rounds: list[list[Mutant]] = [[] for _ in range(each)]
    for candidates in functions.values():
        taken: Counter[str] = Counter()
        for one in rounds:
            if candidates:
                key = lambda m: (m.kind in LAST_RESORT, taken[m.kind], digest(f"{seed} {m.name}"))  # noqa: B023, E731
                best = min(candidates, key=key)
                candidates.remove(best)
                taken[best.kind] += 1
                one.append(best)
    return [mutant for one in rounds for mutant in one]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def walk(node: ast.AST, function: str, owner: ast.AST | None) -> Iterator[tuple[str, ast.AST | None, Change]]:
    """Every change below a node, with the function that it stands in."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or is_said(child):
                continue
            inside, name = owner, function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{function}.{child.name}".lstrip(".")
                inside = None if isinstance(child, ast.ClassDef) else child
            for change in changes(child, node, field):
                yield name, inside, change
            yield from walk(child, name, inside)


def is_said(node: ast.AST) -> bool:
    """Whether a node is there for people or for type checkers."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("print", "warnings.warn", "TypeVar", "isinstance", "cast", "overload")
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def changes(node: ast.AST, parent: ast.AST, field: str) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from of_a_call(node)
    elif isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            symbols = [COMPARISONS[type(operator)] if i == j else symbol(one) for j, one in enumerate(node.ops)]
            pieces = zip(["", *symbols], map(ast.unparse, map(bracketed, [node.left, *node.comparators])), strict=True)
            yield turned("comparison", node, f"({' '.join(' '.join(pair).strip() for pair in pieces)})")
    elif isinstance(node, ast.BinOp):
        left, right = ast.unparse(bracketed(node.left)), ast.unparse(bracketed(node.right))
        if type(node.op) in OPERATORS:
            yield turned("operator", node, f"(({left}) {OPERATORS[type(node.op)]} ({right}))")
        if isinstance(node.op, IN_ORDER) and left != right:
            yield turned("order", node, f"(({right}) {symbol(node.op)} ({left}))")
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        text = f"{ast.unparse(node.target)} {OPERATORS[type(node.op)]}= {ast.unparse(node.value)}"
        yield turned("operator", node, text)
    elif isinstance(node, ast.BoolOp):
        for i, value in enumerate(node.values):
            rest = [one for one in node.values if one is not value]
            joined = f" {symbol(node.op)} ".join(f"({ast.unparse(one)})" for one in rest)
            yield "condition", node, f"({joined})", f"without {short(value)} in {short(node)}"
            if not i:
                other = " or " if isinstance(node.op, ast.And) else " and "
                yield turned("condition", node, f"({other.join(f'({ast.unparse(v)})' for v in node.values)})")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        if not isinstance(node.operand, ast.Constant):
            yield turned("sign", node, f"({ast.unparse(node.operand)})")
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield from of_a_branch(node)
    elif isinstance(node, ast.Constant) and not isinstance(parent, (ast.Index, ast.FormattedValue)):
        if isinstance(node.value, bool):
            yield turned("truth", node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            yield turned("number", node, f"({node.value + 1!r})")
    elif isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield turned("bound", bound, f"({ast.unparse(bound)}) + 1")
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and field != "slice":
        names = all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in node.elts)
        for one in node.elts if len(node.elts) > 1 and not names else ():
            rest = "".join(f"{ast.unparse(other)}, " for other in node.elts if other is not one)
            yield "part", node, f"({rest.rstrip()})", f"without {short(one)} in {short(node)}"
    elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "real"):
        yield turned("call", node, ast.unparse(node.value))
    elif field in ("body", "orelse", "finalbody") and is_a_step(node):
        yield "statement", node, "pass", f"without the statement {short(node)}"


def of_a_call(node: ast.Call) -> Iterator[Change]:
    callee = ast.unparse(node.func)
    for i, keyword in enumerate(node.keywords):
        rest = ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])
        named = f"{keyword.arg}=" if keyword.arg else f"**{short(keyword.value)}"
        yield "keyword", node, ast.unparse(rest), f"{short(node.func)}(...) without {named}"
    last = callee.rpartition(".")[2]
    plain = [i for i, one in enumerate(node.args) if not isinstance(one, ast.Starred)]
    for i, j in [] if last in COMMUTES else pairwise(plain):
        if ast.dump(node.args[i]) != ast.dump(node.args[j]):
            swapped = list(node.args)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            text = ast.unparse(ast.Call(node.func, swapped, node.keywords))
            yield "arguments", node, text, f"{short(node)} with arguments {i + 1} and {j + 1} swapped"
    if last in NAMES:
        other = copy.copy(node.func)
        setattr(other, "attr" if isinstance(other, ast.Attribute) else "id", NAMES[last])
        yield turned("name", node, ast.unparse(ast.Call(other, node.args, node.keywords)))
    if last in DROPPED and isinstance(node.func, ast.Attribute):
        yield (
            "call",
            node,
            ast.unparse(bracketed(node.func.value)),
            f"without .{last}(...) after {short(node.func.value)}",
        )
    elif last in DROPPED and node.args:
        yield "call", node, ast.unparse(bracketed(node.args[0])), f"without {last}(...) around {short(node.args[0])}"


def of_a_branch(node: ast.If | ast.IfExp) -> Iterator[Change]:
    if isinstance(node, ast.IfExp):
        for arm in (node.body, node.orelse):
            yield "branch", node, f"({ast.unparse(arm)})", f"always {short(arm)} in {short(node)}"
        return
    yield "branch", node.test, "False", f"never: if {short(node.test)}"
    if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
        yield "branch", node.test, "True", f"always: if {short(node.test)}"


def is_a_step(node: ast.AST) -> bool:
    """Whether a statement can be left out and the names that follow still exist."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
        # x = f(x), or something kept in a place that exists without it
        again = re.search(rf"(?<![\w.]){re.escape(target)}(?!\w)", ast.unparse(node.value)) is not None
        return again or isinstance(node.targets[0], ast.Subscript)
    return False


def symbol(operator: ast.AST) -> str:
    words = {ast.And: "and", ast.Or: "or", ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
    if type(operator) in words:
        return words[type(operator)]
    if isinstance(operator, ast.cmpop):
        return ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")])).split()[1]
    return ast.unparse(ast.BinOp(ast.Name("a"), operator, ast.Name("b"))).split()[1]


def bracketed(node: ast.AST) -> ast.AST:
    """An expression whose text may stand beside an operator or a dot."""
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List)
    return node if isinstance(node, simple) else ast.Name(f"({ast.unparse(node)})")


def turned(kind: str, node: ast.AST, text: str) -> Change:
    return kind, node, text, f"{short(node)} becomes {shortened(ast.unparse(ast.parse(text)))}"


def short(node: ast.AST) -> str:
    return shortened(ast.unparse(node))


def shortened(text: str, longest: int = 70) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
