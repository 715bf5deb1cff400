"""Fetch models of the hub by name, through huggingface_hub with its cache, offline mode and token."""

import re
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.foreign import CannotRead, naming, quote, visible
from posenc.foreign.text import error_text

NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^:]+))?(:(?P<file>.+))?", re.ASCII)
"""owner/name; owner/name@revision; owner/name:WORD, a word in the name of a single GGUF file."""

CONFIGS = ("config.json", "params.json")
"""Files that describe a model by themselves."""

EXTRA_FILES = frozenset(
    {*CONFIGS, "adapter_config.json", "generation_config.json", "preprocessor_config.json", "chat_template.jinja"}
    | {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    | {"vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"}
)
"""Files that are fetched with weights. Pickles and code are never fetched."""

INDEX = ".safetensors.index.json"

MOST_BYTES = 256 << 20
"""The largest size of a file without weights."""


def is_hub_name(text: str) -> bool:
    """Whether a text is a name of the hub, with one "/" and no "./" before it. Callers rule out an existing path."""
    return NAME.fullmatch(text) is not None


def fetch(name: str, *, weights: bool = True) -> Path:
    """Fetch a model's missing files into the cache, and return its folder or a file there.

    weights  False fetches only the config and returns its path, where the repository has one

    The result is a file where the name has a WORD for it. Safetensors go before GGUF, and shards of an index before
    other files. Offline, or without a connection, the cache is used. The size of weights is printed on stderr before
    they are fetched.

    Raises CannotRead, with the remedy, for a name that the hub does not have, a licence that is not accepted, a model
    that is not in the cache when offline, several GGUF files, and a download that breaks off.
    """
    with naming(name):
        hub = import_huggingface_hub()
        match = NAME.fullmatch(name)
        assert match is not None
        repo, revision, word = match.group("repo", "revision", "file")
        with explain_hub_errors(hub, repo):
            try:
                info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
                sizes = {file.rfilename: file.size or 0 for file in info.siblings}
                connection_error = None
            except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError, hub.errors.HFValidationError):
                raise
            # The error for a missing network depends on the client's version.
            except Exception as error:
                connection_error = error
        if connection_error is not None:
            return in_cache(hub, repo, revision, word, weights, connection_error)
        files = files_to_fetch(repo, sizes, word, weights)
        for file in files:
            if not is_weights(file) and sizes[file] > MOST_BYTES:
                raise CannotRead(f"it has {sizes[file]:,} bytes, and at most {MOST_BYTES:,} are fetched", field=file)

        def in_the_cache(file: str) -> bool:
            return isinstance(hub.try_to_load_from_cache(repo, file, revision=info.sha), str)

        if missing_sizes := [sizes[file] for file in files if is_weights(file) and not in_the_cache(file)]:
            words = f"fetching {sum(missing_sizes) / 1e9:.2f} GB of weights of {name} into {hub.constants.HF_HUB_CACHE}"
            print(visible(words), file=sys.stderr)
        with explain_hub_errors(hub, repo):
            # File names may contain wildcard characters.
            folder = hub.snapshot_download(repo, revision=revision, allow_patterns=list(map(escape, files)))
        return source_path(Path(folder), files, word, weights)


def in_cache(
    hub: ModuleType, repo: str, revision: str | None, word: str | None, weights: bool, error: Exception
) -> Path:
    """Return the path of a model in the cache.

    Raises CannotRead, with the cache and the connection error, for a model that is not there, and as `files_to_fetch`
    does.
    """
    offline: dict[str, Any] = {"revision": revision, "allow_patterns": CONFIGS, "local_files_only": True}
    try:
        folder = Path(hub.snapshot_download(repo, **offline))
        files = [file.name for file in folder.iterdir() if file.exists()]
    except Exception:
        folder, files = Path(), []
    has_weights = any(is_weights(file) and (word or "").lower() in file.lower() for file in files)
    if not has_weights and (weights or word is not None or not set(CONFIGS).intersection(files)):
        raise CannotRead(
            f"there is no such file or folder, the hub is not reached ({error_text(error)}), and the cache "
            f"{hub.constants.HF_HUB_CACHE} does not hold {'its weights' if weights else 'its config'}",
            remedy="give another path, or fetch it once online, without HF_HUB_OFFLINE",
        )
    return source_path(folder, files_to_fetch(repo, files, word, weights), word, weights)


def source_path(folder: Path, files: list[str], word: str | None, weights: bool) -> Path:
    """Return the path to read in the cache: the config, a GGUF file, or the folder."""
    if word is not None or (not weights and files[0] in CONFIGS):
        return folder / files[0]
    return folder


def files_to_fetch(repo: str, files: Collection[str], word: str | None, weights: bool) -> list[str]:
    """Return the files of a repository that are fetched.

    Raises CannotRead for a repository without readable weights, and for several GGUF files without a word for one.
    """
    files = sorted(file for file in files if "/" not in file)
    ggufs = [file for file in files if file.endswith(".gguf")]
    if word is not None:
        ggufs = [file for file in ggufs if file == word] or [file for file in ggufs if word.lower() in file.lower()]
    elif not weights and (configs := [file for file in CONFIGS if file in files]):
        return configs[:1]
    indices = [file for file in files if file.endswith(INDEX)]
    stems = tuple(f"{file.removesuffix(INDEX)}-" for file in indices)
    tensors = [file for file in files if file.endswith(".safetensors") and (not stems or file.startswith(stems))]
    if "model.safetensors" in tensors:
        tensors = ["model.safetensors"]
    if tensors and word is None:
        return [*(file for file in files if file in EXTRA_FILES), *indices, *tensors]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        listing = ", ".join(ggufs[:20])
        raise CannotRead(f"it has several GGUF files ({listing})", remedy=f"give {repo}:WORD, a word of one name alone")
    lack = "no safetensors and no GGUF file" if word is None else f"no GGUF file with {quote(word)} in its name"
    raise CannotRead(f"it has {lack}; pickles are never fetched", remedy="choose another model or file")


def is_weights(file: str) -> bool:
    return file.endswith((".safetensors", ".gguf"))


def commit_of(path: Path) -> str | None:
    """Return the commit of a folder or file in the hub's cache; None for other paths."""
    return next((folder.name for folder in (path, path.parent) if folder.parent.name == "snapshots"), None)


def import_huggingface_hub() -> ModuleType:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        words = "there is no such file or folder, and models of the hub are fetched by huggingface_hub"
        raise CannotRead(words, remedy="install it with `pip install 'posenc[hf]'`, or give a path") from None
    return huggingface_hub


@contextmanager
def explain_hub_errors(hub: ModuleType, repo: str) -> Generator[None]:
    """Turn every error of the hub into one sentence with its remedy."""
    at, errors = hub.constants.ENDPOINT, hub.errors
    try:
        yield
    except errors.GatedRepoError:
        remedy = f"accept it at {at}/{repo}, then run `hf auth login`"
        raise CannotRead("its licence has to be accepted before it is fetched", remedy=remedy) from None
    except errors.RevisionNotFoundError:
        remedy = f"choose a branch, tag or commit of {at}/{repo}/commits/main"
        raise CannotRead("the hub has it, and not this revision", remedy=remedy) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        remedy = "correct it; for a private model run `hf auth login`"
        raise CannotRead(f"there is no such file or folder, and no such model at {at}", remedy=remedy) from None
    except Exception as error:
        remedy = "run the same again, and it goes on where it stopped"
        raise CannotRead(f"its download broke off ({error_text(error)})", remedy=remedy) from error
