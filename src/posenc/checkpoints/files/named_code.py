"""Code that the files of a checkpoint are or name: never followed where one is read, never handed on in a copy."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.foreign import opened, read_json

NAMES_CODE = frozenset(
    "auto_map custom_pipelines custom_generate trust_remote_code transformers_weights kernel_config use_kernels "
    "attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset "
    "experts_implementation _experts_implementation _experts_implementation_internal".split()
)
"""Keys by which a config of transformers chooses what is imported, fetched or compiled."""

CODE = re.compile(r"\.(py\w?|ipynb|so(\.\d+)*|dll|dylib|exe|jar|sh|bat|ps1|js|pickle|pkl|joblib|dill|zip|tar|gz|whl)$")
"""Files that are code, or run code when they are opened as what they are."""

CODE_STARTS = (b"\x7fELF", b"MZ", b"#!", b"\x80", b"PK\x03\x04")
"""How such files begin, whatever they are called: programs, scripts, pickles, archives."""


def is_code(file: Path) -> bool:
    """Whether a file is code, by its name or its first bytes."""
    if CODE.search(file.name.lower()):
        return True
    with opened(file) as data:
        return data.read(4).startswith(CODE_STARTS)


def is_config(file: Path) -> bool:
    """Whether a file is one of those in which configs name code: config.json, tokenizer_config.json, and so on."""
    return file.name.endswith("config.json")


def harmless(said: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the keys that choose code, nested ones too."""
    return {key: within(value) for key, value in said.items() if key not in NAMES_CODE}


def within(value: Any) -> Any:
    if isinstance(value, Mapping):
        return harmless(value)
    return [within(one) for one in value] if isinstance(value, list) else value


def left_out(files: Iterable[Path]) -> Iterator[str]:
    """What of a folder's files is not handed on, in sentences."""
    for file in files:
        if is_code(file):
            yield f"{file.name} was left out: it is code, which posenc neither runs nor hands on."
        elif is_config(file):
            said = read_json(file)
            if harmless(said) != said:
                named = ", ".join(sorted(NAMES_CODE & set(keys_of(said))))
                yield f"{named} was left out of {file.name}: a config never chooses code."


def keys_of(value: Any) -> Iterator[str]:
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from keys_of(one)
    yield from value if isinstance(value, Mapping) else ()
