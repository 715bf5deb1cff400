"""Check that names are nouns or verbs, and sentences plain: python tests/house/words.py [FOLDERS].

It prints each fault with its file and line, and ends with 1 where there is one. CONTRIBUTING.md has the rules.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src/posenc", "tests", "benchmarks", "docs/extensions", "docs/paper", "examples")
SHARE = 0.01  # of the names that a room binds
EXCEPTIONS = tomllib.loads((ROOT / "tests/house/words.toml").read_text(encoding="utf-8"))
LONGEST_SENTENCE = 25  # words, of a docstring's first
BANNED_WORDS = re.compile(r"\b(nobody|somebody|whoever|is had)\b", re.IGNORECASE)

PRONOUNS = set(
    "all another any both each either every everything few he her him his its many mine more most much neither none "
    "nothing one ones other others our ours own same several some something such that their theirs them these they "
    "this those us we what which who whom whose".split()
)
PREPOSITIONS = set(
    "about above across after against along among around before behind below beneath beside besides between beyond "
    "by despite during for from in inside into near of off on onto outside over since through to toward towards under "
    "underneath unlike until upon via with within without".split()
)
# Those that do not end in -ed. A word that is a verb as well (read, set, cut, put, run) names a function.
PARTICIPLES = set(
    "asking become been begun bought broken brought built caught chosen come dealt done drawing drawn driven "
    "eaten fallen fed felt forgotten fought found frozen given giving gone got grown had heard held holding hung "
    "kept knowing known laid led left lent lost lying made making meant met missing paid ridden risen said saying "
    "seen sent shaken shown shut slept slid sold spent spoken spread spun stolen stood struck stuck sung sunk "
    "swept sworn swum taken taught telling thought thrown told torn understood wanting woken won worn wound "
    "written".split()
)
# -ed, and no participle; or a word that PyTorch, NumPy or the papers use as a noun.
WORDS_OF_THE_FIELD = set(
    "bed embed exceed expected feed hidden interleaved learned left masked need packed padded proceed red rotated seed "
    "shed sorted speed succeed".split()
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=PLACES)
    parser.add_argument("--every", action="store_true", help="name each banned name, of every room")
    options = parser.parse_args(arguments)
    files = [path for place in options.folders for path in sorted((ROOT / place).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    whole = options.folders == PLACES
    pages = [path for path in sorted((ROOT / "web/src").rglob("*")) if whole and path.suffix in (".ts", ".svelte")]
    names = {path: list(bound_names(tree)) for path, tree in trees.items()}
    names |= {path: list(names_of_page(path)) for path in pages}
    faults = [*banned_names(names, options.every), *repeated_names(trees, whole), *unclear_sentences(trees)]
    faults += [fault for path in [*files, *pages] for fault in banned_words(path)]
    print("\n".join(faults) or "plain words: no fault")
    return 1 if faults else 0


def is_banned(name: str) -> bool:
    """Return whether a name is a pronoun, a preposition or a participle alone."""
    word = name.strip("_").lower()
    if word in WORDS_OF_THE_FIELD or name.startswith("__"):
        return False
    participle = word in PARTICIPLES or (word.endswith("ed") and "_" not in word and len(word) > 3)
    return participle or word in PRONOUNS or word in PREPOSITIONS


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a file binds, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno


def names_of_page(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each name that a file of TypeScript or Svelte declares, and its line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for name in re.findall(r"\b(?:const|let|function|class|interface|type) (\w+)", line):
            yield name, number


def banned_names(names: dict[Path, list[tuple[str, int]]], show_all: bool) -> list[str]:
    """Return the rooms of which too many names are banned, and these names."""
    totals, banned = Counter[str](), defaultdict[str, list[str]](list)
    for path, lines in names.items():
        place = room(path)
        public = EXCEPTIONS["public"].get(place, "").split()
        for name, line in lines:
            totals[place] += 1
            if is_banned(name) and name not in public:
                banned[place].append(f"{path.relative_to(ROOT)}:{line}: {name}")
    faults = []
    for place, total in totals.items():
        if show_all or len(banned[place]) > SHARE * total:
            faults += [*banned[place], f"{place}: {len(banned[place])} of {total} names are neither noun nor verb"]
    return faults


def repeated_names(trees: dict[Path, ast.Module], whole: bool) -> list[str]:
    """Return the functions and classes that two files define without a reason, and reasons without use if `whole`."""
    homes = defaultdict[str, list[str]](list)
    for path, tree in trees.items():
        # The files of standalone say on purpose what the library says.
        if room(path).startswith("src/") and "standalone" not in path.parts:
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(str(path.relative_to(ROOT / "src/posenc")))
    reasons = EXCEPTIONS["repeated"]
    doubles = {name: places for name, places in homes.items() if len(places) > 1}
    faults = [f"{name} stands in {', '.join(places)}" for name, places in doubles.items() if name not in reasons]
    if whole:
        faults += [f"words.toml: {name} stands in one file" for name in reasons if name not in doubles]
    return faults


def unclear_sentences(trees: dict[Path, ast.Module]) -> list[str]:
    """Return the docstrings that begin with a long sentence."""
    faults = []
    for path, tree in trees.items():
        place = path.relative_to(ROOT)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                sentence = re.split(r"(?<=\.)\s|\n\n", ast.get_docstring(node) or "")[0]
                if len(sentence.split()) > LONGEST_SENTENCE:
                    faults.append(f"{place}:{getattr(node, 'lineno', 1)}: its docstring begins with a long sentence")
    return faults


def banned_words(path: Path) -> Iterator[str]:
    """Yield the lines of a file with a banned word."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if path != Path(__file__) and (word := BANNED_WORDS.search(line)):
            yield f"{path.relative_to(ROOT)}:{number}: {word[0]}"


def room(path: Path) -> str:
    """Return the folder of a file below src/posenc, tests, or another place."""
    parts = path.relative_to(ROOT).parts
    depth = 3 if parts[0] in ("src", "docs") else 2
    return "/".join(parts[: min(depth, len(parts) - 1)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
