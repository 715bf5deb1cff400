"""Read dictionaries of foreign formats: detect the format, then read its positions."""

from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.formats import config_json, meta
from posenc.checkpoints.formats.gguf import metadata
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading

HOMES = {"transformers": config_json, "meta": meta, "gguf": metadata}
"""The formats, and the module of each, with `recognises` and `read`. Detection asks the last one first."""

EXPECTED = (
    "expected a config.json of transformers (model_type), Meta's params.json (dim, n_layers, n_heads) or the metadata "
    "of a GGUF file (general.architecture)"
)
"""The formats that can be read, for error messages."""


def detect(config: Mapping[str, Any]) -> str:
    """Return the format of a dictionary by its keys: "transformers", "meta" or "gguf".

    Raises CannotRead, with its keys or what it looks like, for any other dictionary.

    >>> detect({"dim": 4096, "n_layers": 32, "n_heads": 32, "norm_eps": 1e-5})
    'meta'
    """
    if stranger := lookalike(config):
        raise CannotRead(f"these look like {stranger}, which posenc does not read; {EXPECTED}")
    for format, home in reversed(HOMES.items()):
        if home.recognises(config):
            return format
    keys = ", ".join(str(key)[:40] for key in list(config)[:8])
    raise CannotRead(f"no format known has these keys: {keys or 'none'}; {EXPECTED}")


def lookalike(config: Mapping[str, Any]) -> str:
    """Name settings that share keys with a config and mean other things by them; "" for all else."""
    keys = {str(key).replace("-", "_") for key in config}
    if keys & {"hf_overrides", "max_model_len"}:
        return "settings of vLLM"
    if {"num_layers", "position_embedding_type"} <= keys and not keys & {"model_type", "architectures"}:
        return "arguments of Megatron"
    return ""


def read(config: Mapping[str, Any], format: str | None = None) -> Reading:
    """Read the positions of a foreign dictionary; without `format` its keys decide.

    Raises CannotRead for a dictionary of no known format, a value of the wrong kind, or a schedule that cannot be.
    """
    return HOMES[format or detect(config)].read(config)
