"""Which room a line belongs in: imports point downwards, and no encoding is known by name outside its own file."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import posenc
from posenc import Shape, catalogue

HOME = Path(posenc.__file__).parent
FILES = {file.relative_to(HOME).with_suffix("").as_posix(): file for file in sorted(HOME.rglob("*.py"))}
SHIPPED = [name.split("/")[1] for name in FILES if name.startswith("encodings/") and not name.endswith("__init__")]

# From the bottom up; a room may import from those below it, and those on one line do not know each other.
ROOMS = [
    {"foreign", "watched", "seeding"},
    {"checks", "verdicts"},
    {"specs", "plugins"},
    {"spelling"},
    {"registry", "precision", "published", "interpolation"},
    {"positions"},
    {"shared_tables"},
    {"masks", "coordinate_maps", "kept_tables", "keys", "score_mods", "channel_pairs"},
    {"biases"},
    {"encoding"},
    {"kernels"},
    {"cache", "schedules", "distance_maps", "rotations", "chosen_heads"},
    {"encodings"},
    {"catalogue"},
    {"inputs", "sizes"},
    {"attention", "chunk_store", "embedding", "generation"},
    {"model", "presets", "hand_outs"},
    {"parallel"},
    {"testing", "lab"},
    {"checkpoints"},
    {"export", "explorer", "lessons"},
    {"terminal", "checkout"},
    {"cli", "plain"},
]
OF_SPECS = {"specs", "spelling", "registry"}

# The package itself hands out names from every room, and `python -m posenc` stands over all of them.
ABOVE_ALL = {"__init__", "__main__"}


def room_of(module: str) -> str:
    return module.split("/")[0]


def height(room: str) -> int:
    heights = [level for level, rooms in enumerate(ROOMS) if room in rooms]
    assert len(heights) == 1, f"'{room}' has no place in the house; add it to ROOMS and to the layers in pyproject.toml"
    return heights[0]


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_of(file: Path) -> set[str]:
    """The dotted names that a file imports anywhere, except for type checkers alone."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively; say posenc.{node.module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if not for_types_only(node):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def rooms_imported_by(file: Path) -> set[str]:
    known = {room_of(module) for module in FILES} - ABOVE_ALL
    inside = [name.split(".") for name in imports_of(file) if name.split(".")[0] == "posenc"]
    return {parts[1] for parts in inside if len(parts) > 1 and parts[1] in known}


@pytest.mark.parametrize("module", [module for module in FILES if module not in ABOVE_ALL])
def test_imports_point_downwards(module: str) -> None:
    room = room_of(module)
    for imported in rooms_imported_by(FILES[module]) - {room}:
        assert height(imported) < height(room), f"{module} imports {imported}, which does not lie below it"


@pytest.mark.parametrize("module", [module for module in FILES if room_of(module) == "encodings"])
def test_encodings_do_not_know_each_other(module: str) -> None:
    assert "encodings" not in rooms_imported_by(FILES[module])


def test_only_what_lies_below_it_is_known_to_the_kernels_and_the_cache() -> None:
    for module in FILES:
        if room_of(module) in ("kernels", "cache"):
            below = {room for rooms in ROOMS[: height("kernels") + 1] for room in rooms} - OF_SPECS
            assert rooms_imported_by(FILES[module]) <= below | {room_of(module)}


def test_positions_know_only_checks_and_who_watches() -> None:
    assert rooms_imported_by(FILES["positions"]) <= {"checks", "watched"}


NAMELESS = "sizes inputs attention embedding generation model hand_outs".split()
NAMELESS += "kernels cache encoding biases keys score_mods masks positions".split()
WITHOUT_NAMES = [module for module in FILES if room_of(module) in NAMELESS]


class Wordless(ast.NodeTransformer):
    """Takes what talks to people out of code: docstrings, and the errors, which may give an example."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Pass()


def code_of(file: Path) -> str:
    """The code of a file without comments, docstrings and errors."""
    return ast.unparse(Wordless().visit(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("module", WITHOUT_NAMES)
def test_no_encoding_is_known_by_name_outside_its_own_file(module: str) -> None:
    code = code_of(FILES[module])
    if module in ("attention", "model"):
        # A default is a choice for the user and no decision of the code.
        code = re.sub(r"(cross_)?encoding: (LayerSpec|Spec \| None)='\w+'", "", code)
    words = set(re.findall(r"[A-Za-z_]\w*", code))
    classes = set(catalogue.class_names())
    assert not words & classes
    # "none" and "learned" are also plain words; as strings they would be names.
    quoted = set(re.findall(r"'(\w+)'", code))
    assert not (quoted & set(SHIPPED)) and not (words & (set(SHIPPED) - {"none", "learned"}))


@pytest.mark.parametrize("name", catalogue.names())
def test_sizes_come_in_one_order_and_options_by_name(name: str) -> None:
    """So that MixedRotary(8, 64), as Polar(8, 64), is eight heads of 64, and no number is taken for another."""
    parameters = list(inspect.signature(catalogue.find(name).__init__).parameters.values())[1:]
    sizes = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    order = ["encoding", *Shape(1, 1, 1, 1).options]
    assert set(sizes) <= set(order) and sizes == sorted(sizes, key=order.index)


@pytest.mark.parametrize("module", ["attention", "model", "kernels/__init__", "kernels/reference", "kernels/sdpa"])
def test_nobody_asks_an_encoding_for_its_type(module: str) -> None:
    asked = re.findall(r"isinstance\(\w*encoding\w*, (\w+)\)", code_of(FILES[module]))
    assert set(asked) <= {"Encoding", "Compose", "str"}


@pytest.mark.parametrize("module", FILES)
def test_every_file_says_what_it_is(module: str) -> None:
    source = FILES[module].read_text(encoding="utf-8")
    # A file that only makes a folder a package has nothing to say.
    if source.strip():
        words = ast.get_docstring(ast.parse(source))
        assert words and words.splitlines()[0].endswith(".")


def test_there_is_no_room_for_everything() -> None:
    assert not [module for module in FILES if re.search(r"(^|/)(utils?|helpers?|common|misc)$", module)]


def test_an_encoding_file_holds_one_encoding_with_its_source_and_formula() -> None:
    for name in SHIPPED:
        cls = catalogue.find(name)
        # What was never a paper names where it can be read.
        assert re.search(r"arXiv:\d{4}\.\d{4,5}|\.(com|ai|fm)/\S", cls.source), name
        assert cls.__doc__ and "Source:" in cls.__doc__, name


HEAVY = {"numpy", "matplotlib", "rich", "tyro", "jinja2", "safetensors", "transformers", "pandas", "scipy", "mpmath"}


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    """What two statements load in a fresh interpreter, one after the other, besides what torch loads by itself."""
    public = "import posenc; posenc.names(); dir(posenc); posenc.Attention, posenc.Decoder, posenc.schedules"
    loads = "print(*sorted(set(sys.modules) - before))"
    script = f"import sys, torch; before = set(sys.modules); {public}; {loads}; posenc.Rotary; {loads}"
    environment = os.environ | {"PYTHONPATH": str(HOME.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def encodings_in(modules: set[str]) -> set[str]:
    return {module.rpartition(".")[2] for module in modules if module.startswith("posenc.encodings.")}


def test_importing_is_light_and_loads_no_encoding(loaded: list[set[str]]) -> None:
    assert "posenc.model" in loaded[0]
    assert not {module.split(".")[0] for module in loaded[0]} & HEAVY
    assert not encodings_in(loaded[0])
    assert not {
        one for modules in loaded for one in modules if re.match(r"posenc\.(schedules|coordinate_maps)\.[a-z]", one)
    }
    late = re.compile(r"posenc\.(lab|lessons|explorer|checkout|plain|cli|terminal|testing|checkpoints)\b")
    assert not {module for module in loaded[0] if late.match(module)}


def test_an_encoding_loads_itself_and_no_other(loaded: list[set[str]]) -> None:
    assert encodings_in(loaded[1]) == {"rotary"}


FOR_PEOPLE = ("lab", "checkout", "checkpoints", "explorer", "export", "lessons", "plain", "cli", "terminal")


@pytest.mark.parametrize("module", [m for m in FILES if room_of(m) not in (*FOR_PEOPLE, *ABOVE_ALL)])
def test_the_library_needs_torch_and_nothing_else(module: str) -> None:
    outside = {name.split(".")[0] for name in imports_of(FILES[module])} - {"posenc", "torch"}
    # The contract suite is for those who test; a GPU's compiler comes with PyTorch where there is a GPU.
    allowed = {"pytest", "hypothesis", "mpmath"} if room_of(module) == "testing" else set()
    allowed |= {"triton"} if module == "kernels/rotate_pairs_triton" else set()
    assert outside <= set(sys.stdlib_module_names) | allowed
