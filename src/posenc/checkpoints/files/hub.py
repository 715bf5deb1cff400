"""Names of the hub: what of a repository is fetched, by huggingface_hub with its cache, offline mode and token."""

import re
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, naming, quoted, visible
from posenc.foreign.text import told

NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^:]+))?(:(?P<file>.+))?", re.ASCII)
"""owner/name; owner/name@revision; owner/name:WORD, a word in the name of the one GGUF file that is meant."""

CONFIGS = ("config.json", "params.json")
"""Files of which each says by itself what a model is."""

BESIDE = frozenset(
    {*CONFIGS, "adapter_config.json", "generation_config.json", "preprocessor_config.json", "chat_template.jinja"}
    | {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    | {"vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"}
)
"""Files that are fetched along with weights. No pickle and no code is ever asked for."""

INDEX = ".safetensors.index.json"

MOST_BYTES = 256 << 20
"""The size of a file that holds no weights."""


def is_name(text: str) -> bool:
    """Whether a text is a name of the hub, where no such path exists: with one "/", and no "./" before it."""
    return NAME.fullmatch(text) is not None


def fetched(name: str, *, weights: bool = True) -> Path:
    """Where the model of a name lies in the cache, fetched as far as it is not there: its folder, or a file in it.

    weights  False asks for the config alone and gives its path, where the repository has one

    It is a folder, and a file in it where the name has a word of that. Safetensors go before GGUF, and shards that an
    index names before a file beside them. Offline, or where the hub is not reached, what the cache holds is taken. How
    much is fetched is said on stderr before weights are.

    Raises CannotRead, with what to do, for a name that the hub does not have, a licence that is not accepted, what is
    not in the cache when offline, several GGUF files, and a download that breaks off.
    """
    with naming(name):
        hub = package()
        match = NAME.fullmatch(name)
        assert match is not None
        repo, revision, word = match.group("repo", "revision", "file")
        with answers(hub, repo):
            try:
                info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
                sizes = {file.rfilename: file.size or 0 for file in info.siblings}
                unreached = None
            except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError, hub.errors.HFValidationError):
                raise
            # What a client raises for a network that is not there depends on its version.
            except Exception as error:
                unreached = error
        if unreached is not None:
            return in_cache(hub, repo, revision, word, weights, unreached)
        files = chosen(repo, sizes, word, weights)
        for file in files:
            if not is_weights(file) and sizes[file] > MOST_BYTES:
                raise CannotRead(f"it has {sizes[file]:,} bytes, and at most {MOST_BYTES:,} are fetched", field=file)

        def in_the_cache(file: str) -> bool:
            return isinstance(hub.try_to_load_from_cache(repo, file, revision=info.sha), str)

        if missing := [sizes[file] for file in files if is_weights(file) and not in_the_cache(file)]:
            words = f"fetching {sum(missing) / 1e9:.2f} GB of weights of {name} into {hub.constants.HF_HUB_CACHE}"
            print(visible(words), file=sys.stderr)
        with answers(hub, repo):
            # Names may hold what patterns read as signs of their own.
            folder = hub.snapshot_download(repo, revision=revision, allow_patterns=list(map(escape, files)))
        return source_in(Path(folder), files, word, weights)


def in_cache(hub: Any, repo: str, revision: str | None, word: str | None, weights: bool, unreached: Exception) -> Path:
    """Where a model lies in the cache.

    Raises CannotRead, naming the cache and why the hub was not reached, where it holds nothing that was asked for, and
    as `chosen` does.
    """
    offline: dict[str, Any] = {"revision": revision, "allow_patterns": CONFIGS, "local_files_only": True}
    try:
        folder = Path(hub.snapshot_download(repo, **offline))
        files = [file.name for file in folder.iterdir() if file.exists()]
    except Exception:
        folder, files = Path(), []
    stored = any(is_weights(file) and (word or "").lower() in file.lower() for file in files)
    if not stored and (weights or word is not None or not set(CONFIGS).intersection(files)):
        raise CannotRead(
            f"there is no such file or folder, the hub is not reached ({told(unreached)}), and the cache "
            f"{hub.constants.HF_HUB_CACHE} does not hold {'its weights' if weights else 'its config'}",
            remedy="give another path, or fetch it once online, without HF_HUB_OFFLINE",
        )
    return source_in(folder, chosen(repo, files, word, weights), word, weights)


def source_in(folder: Path, files: list[str], word: str | None, weights: bool) -> Path:
    """What is read of a folder of the cache: the config, the GGUF file that a word names, or all of it."""
    if word is not None or (not weights and files[0] in CONFIGS):
        return folder / files[0]
    return folder


def chosen(repo: str, files: Collection[str], word: str | None, weights: bool) -> list[str]:
    """Which files of a repository are asked for.

    Raises CannotRead where it holds no weights that are read, and several GGUF files of which none is named.
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
        return [*(file for file in files if file in BESIDE), *indices, *tensors]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        listed = ", ".join(ggufs[:20])
        raise CannotRead(f"it has several GGUF files ({listed})", remedy=f"give {repo}:WORD, a word of one name alone")
    what = "no safetensors and no GGUF file" if word is None else f"no GGUF file with {quoted(word)} in its name"
    raise CannotRead(f"it has {what}; pickles are never fetched", remedy="choose another model or file")


def is_weights(file: str) -> bool:
    return file.endswith((".safetensors", ".gguf"))


def commit_of(path: Path) -> str | None:
    """The commit of a folder in the hub's cache, or of a file in it; None for what lies elsewhere."""
    return next((folder.name for folder in (path, path.parent) if folder.parent.name == "snapshots"), None)


def package() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        words = "there is no such file or folder, and models of the hub are fetched by huggingface_hub"
        raise CannotRead(words, remedy="install it with `pip install 'posenc[hf]'`, or give a path") from None
    return huggingface_hub


@contextmanager
def answers(hub: Any, repo: str) -> Generator[None]:
    """Every answer of the hub that is an error becomes one sentence, which says what to do."""
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
        raise CannotRead(f"its download broke off ({told(error)})", remedy=remedy) from error
