"""Rules of the source that import-linter cannot say; which room may import which stands in pyproject.toml alone."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import posenc
from posenc import Shape, catalogue

HOME = Path(posenc.__file__).parent
FILES = {file.relative_to(HOME).with_suffix("").as_posix(): file for file in sorted(HOME.rglob("*.py"))}
PACKAGE_FILES = [Path(name).name for name in FILES if name.startswith("encodings/") and not name.endswith("__init__")]


def room_of(module: str) -> str:
    return module.split("/")[0]


@functools.cache
def facts_of(file: Path) -> tuple[set[str], str]:
    """The top-level names of the packages that a file imports anywhere, except for type checkers alone; its words."""
    names: set[str] = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            waiting.extend(ast.iter_child_nodes(node))
    return {name if name.startswith(".") else name.partition(".")[0] for name in names}, ast.get_docstring(tree) or ""


def test_imports_name_the_whole_path() -> None:
    assert not [module for module, file in FILES.items() if any(name.startswith(".") for name in facts_of(file)[0])]


NAMELESS = ("tokens", "encoding", "kernels", "cache", "model", "hand_outs")


class Wordless(ast.NodeTransformer):
    """Takes what talks to people out of code: docstrings, and the errors, which may give an example."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Pass()


def code_of(file: Path) -> str:
    """The code of a file without comments, docstrings and errors."""
    return ast.unparse(Wordless().visit(ast.parse(file.read_text(encoding="utf-8"))))


def names_of_encodings(module: str) -> Iterator[str]:
    """The encodings that the code of a module names, as a class, as a word or as a string."""
    code = code_of(FILES[module])
    if room_of(module) == "model":
        # A default is a choice for the user and no decision of the code.
        code = re.sub(r"(cross_)?encoding: (LayerSpec|Spec \| None)='\w+'", "", code)
    words = set(re.findall(r"[A-Za-z_]\w*", code))
    yield from words & set(catalogue.ENCODINGS.class_names)
    # "none", "learned" and "path" are also plain words; as strings they would be names.
    yield from words & (set(PACKAGE_FILES) - {"none", "learned", "path"})
    yield from set(re.findall(r"'(\w+)'", code)) & set(PACKAGE_FILES)


def test_no_encoding_is_known_by_name_outside_its_own_file() -> None:
    faults = {module: sorted(names_of_encodings(module)) for module in FILES if room_of(module) in NAMELESS}
    assert not {module: names for module, names in faults.items() if names}


def test_sizes_come_in_one_order_and_options_by_name() -> None:
    """So that MixedRotary(8, 64), as Polar(8, 64), is eight heads of 64, and no number is taken for another."""
    order = ["encoding", *Shape(1, 1, 1, 1).options]
    for name in catalogue.names():
        parameters = list(inspect.signature(catalogue.find(name).__init__).parameters.values())[1:]
        sizes = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
        assert set(sizes) <= set(order) and sizes == sorted(sizes, key=order.index), name


def test_no_encoding_is_asked_for_its_type() -> None:
    for module in (name for name in FILES if room_of(name) in ("model", "kernels")):
        types = set(re.findall(r"isinstance\(\w*encoding\w*, (\w+)\)", code_of(FILES[module])))
        assert types <= {"Encoding", "Compose", "str"}, module


def test_every_file_says_what_it_is() -> None:
    silent = []
    for module, file in FILES.items():
        # A file that only makes a folder a package has nothing to say.
        if file.read_text(encoding="utf-8").strip() and not facts_of(file)[1].partition("\n")[0].endswith("."):
            silent.append(module)
    assert not silent, "the first line of a file says in one sentence what it is; run.py tree prints it"


def test_there_is_no_room_for_everything() -> None:
    assert not [module for module in FILES if re.search(r"(^|/)(utils?|helpers?|common|misc)$", module)]


def test_an_encoding_file_holds_one_encoding_with_its_source_and_formula() -> None:
    for name in PACKAGE_FILES:
        cls = catalogue.find(name)
        # What was never a paper names where it can be read.
        assert re.search(r"arXiv:\d{4}\.\d{4,5}|\.(com|ai|fm)/\S", cls.source), name
        assert cls.__doc__ and "Source:" in cls.__doc__, name


FOR_PEOPLE = ("lab", "checkout", "checkpoints", "explorer", "export", "lessons", "vectors", "plain", "cli")


def test_the_library_needs_torch_and_nothing_else() -> None:
    modules = {}
    for module, file in FILES.items():
        if room_of(module) in (*FOR_PEOPLE, "__init__", "__main__"):
            continue
        # The contract suite is for those who test; a GPU's compiler comes with PyTorch where there is a GPU.
        permitted = {"pytest", "hypothesis", "mpmath"} if room_of(module) == "testing" else set()
        permitted |= {"triton"} if module == "kernels/rotation/rotate_pairs_triton" else set()
        # A kernel that is served by name alone, and says where its package is missing.
        permitted |= {"flash_attn"} if module == "kernels/flash" else set()
        if extra := facts_of(file)[0] - {"posenc", "torch", *sys.stdlib_module_names} - permitted:
            modules[module] = extra
    assert not modules
