"""Code in a checkpoint, in files or named by configs: it never runs, and it is never copied."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.foreign import open_regular, read_json

NAMES_CODE = frozenset(
    "auto_map custom_pipelines custom_generate trust_remote_code transformers_weights kernel_config use_kernels "
    "attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset "
    "experts_implementation _experts_implementation _experts_implementation_internal".split()
)
"""Keys by which a config of transformers chooses code to import, fetch or compile."""

CODE = re.compile(r"\.(py\w?|ipynb|so(\.\d+)*|dll|dylib|exe|jar|sh|bat|ps1|js|pickle|pkl|joblib|dill|zip|tar|gz|whl)$")
"""Files of code, and files that run code when they are opened."""

CODE_STARTS = (b"\x7fELF", b"MZ", b"#!", b"\x80", b"PK\x03\x04")
"""The first bytes of such files: programs, scripts, pickles, archives."""


def is_code(file: Path) -> bool:
    """Whether a file is code, by its name or its first bytes."""
    if CODE.search(file.name.lower()):
        return True
    with open_regular(file) as data:
        return data.read(4).startswith(CODE_STARTS)


def is_config(file: Path) -> bool:
    """Whether a file is a config that can name code: config.json, tokenizer_config.json, and so on."""
    return file.name.endswith("config.json")


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that choose code, nested ones too."""
    return {key: clean_value(value) for key, value in config.items() if key not in NAMES_CODE}


def clean_value(value: object) -> object:
    if isinstance(value, Mapping):
        return without_code(value)
    return [clean_value(item) for item in value] if isinstance(value, list) else value


def code_omissions(files: Iterable[Path]) -> Iterator[str]:
    """Yield a sentence for each file and key that is left out of a copy."""
    for file in files:
        if is_code(file):
            yield f"{file.name} was left out: it is code, which posenc neither runs nor hands on."
        elif is_config(file):
            config = read_json(file)
            if without_code(config) != config:
                keys = ", ".join(sorted(NAMES_CODE & set(nested_keys(config))))
                yield f"{keys} was left out of {file.name}: a config never chooses code."


def nested_keys(value: object) -> Iterator[str]:
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from nested_keys(item)
    yield from value if isinstance(value, Mapping) else ()
