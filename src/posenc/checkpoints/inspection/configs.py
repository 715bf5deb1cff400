"""Dictionaries of foreign formats: which format one is, and what it says of positions."""

from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.formats import config_json, meta
from posenc.checkpoints.formats.gguf import metadata
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading

HOMES = {"transformers": config_json, "meta": meta, "gguf": metadata}
"""The formats, and the module of each: it has `is_it` and `read`. Each one is told apart from those before it."""

EXPECTED = (
    "expected a config.json of transformers (model_type), Meta's params.json (dim, n_layers, n_heads) or the metadata "
    "of a GGUF file (general.architecture)"
)
"""What is read, in an error's words."""


def detect(given: Mapping[str, Any]) -> str:
    """The format of a dictionary, told by its keys: "transformers", "meta" or "gguf".

    Raises CannotRead, with the keys that it has or what it looks like, for one that is none of them.

    >>> detect({"dim": 4096, "n_layers": 32, "n_heads": 32, "norm_eps": 1e-5})
    'meta'
    """
    if stranger := not_read(given):
        raise CannotRead(f"these look like {stranger}, which posenc does not read; {EXPECTED}")
    for format, home in reversed(HOMES.items()):
        if home.is_it(given):
            return format
    keys = ", ".join(str(key)[:40] for key in list(given)[:8])
    raise CannotRead(f"no format known has these keys: {keys or 'none'}; {EXPECTED}")


def not_read(given: Mapping[str, Any]) -> str:
    """What a dictionary of settings looks like that shares keys with a config and means other things by them, or ""."""
    keys = {str(key).replace("-", "_") for key in given}
    if keys & {"hf_overrides", "max_model_len"}:
        return "settings of vLLM"
    if {"num_layers", "position_embedding_type"} <= keys and not keys & {"model_type", "architectures"}:
        return "arguments of Megatron"
    return ""


def read(given: Mapping[str, Any], format: str | None = None) -> Reading:
    """What a foreign dictionary says of positions; the format is told by its keys unless it is given.

    Raises CannotRead for a dictionary of no known format, a value of the wrong kind, or a schedule that cannot be.
    """
    return HOMES[format or detect(given)].read(given)
