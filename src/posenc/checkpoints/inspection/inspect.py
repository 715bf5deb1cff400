"""`posenc inspect`: a path to a Reading, whatever lies there, its weights held against what its config says."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.checkpoints.files.tensors import PICKLE_STARTS, PICKLES, GGUFTensors, Tensors, open_tensors, refused
from posenc.checkpoints.formats import load
from posenc.checkpoints.formats.gguf.file import metadata
from posenc.checkpoints.formats.learned_tables import called
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.encoding.base import Encoding, parts_of
from posenc.foreign import naming, opened, read_json

CONFIGS = ("config.json", "params.json")
"""What the file is called that says what a folder's model is."""

POSITION_TABLE = re.compile(
    r"(?:^|[._])(?:wpe|position_embeddings?|pos_embed(?:ding)?s?|embed_positions|position_embd|positional_embedding)"
    r"(?:\.weight)?$"
)
"""Names of learned tables with a vector for each position."""

RELATIVE_TABLE = re.compile(r"relative_attention_bias(?:\.weight)?$|attn_rel_b(?:\.weight)?$")
"""Names of learned tables with a number for each bucket of distances and head: T5's."""

PROJECTION = re.compile(
    r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.(?:self_attn\.|attention\.)?(q_proj|k_proj|attn_q|attn_k|wq|wk)\.weight$"
)
"""Names of the weights that make queries and keys, where each has its own."""

IN_A_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blk|block|blocks)\.(\d{1,6})(?=\.)")


def inspect(path: str | Path) -> Reading:
    """What the checkpoint at a path says of positions.

    path    a folder in Hugging Face's form, with weights or without; a config.json; Meta's params.json; a GGUF file;
            a model of the hub as owner/name, of which its config alone is fetched

    The format is told by what the file holds, never by its name. Where safetensors or GGUF weights lie beside a config,
    their headers are read too: tables, projections and layers that do not fit it stand in `contradictions`.
    Nothing is unpickled and no code of the checkpoint is run.

    Raises CannotRead for what is no checkpoint, a pickle, broken or missing files, and schedules that cannot be.
    """
    path = load.find(path, weights=False)
    config, folder = find(path)
    if config is None:
        with naming(path):
            tensors = open_tensors(path)
            return checked(configs.read(metadata(tensors), "gguf"), tensors)
    with naming(config):
        reading = configs.read(read_json(config, within=folder))
    return reading if folder is None else with_weights(reading, folder)


def has_learned_tables(reading: Reading) -> bool:
    """Whether a stack has a learned table, of positions or of buckets: its numbers are in the weights alone."""
    return any(
        part.embed.startswith("learned") or any(hasattr(encoding, "buckets") for encoding in distinct(part))
        for part in reading.parts
    )


def has_tensors(path: Path) -> bool:
    """Whether tensors lie at a path that can be opened: safetensors or GGUF."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path.suffix != ".json"


def find(path: Path) -> tuple[Path | None, Path | None]:
    """The file to read as a dictionary, None for a GGUF; and the folder whose weights are to be held against it."""
    if path.is_dir():
        for name in CONFIGS:
            if (path / name).is_file():
                return path / name, path
        if (path / "adapter_config.json").is_file():
            raise CannotRead(f"{path} is an adapter, which has the positions of the model that it adapts; inspect that")
        if isinstance(open_tensors(path), GGUFTensors):
            return None, None
        raise CannotRead(f"{path} has weights and neither {' nor '.join(CONFIGS)}, which say what they are")
    with opened(path) as file:
        start = file.read(4)
    if start == b"GGUF":
        return None, None
    if path.suffix in PICKLES or start.startswith(PICKLE_STARTS):
        raise refused(path)
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        for name in CONFIGS:
            if (path.parent / name).is_file():
                return path.parent / name, path.parent
        raise CannotRead(f"{path} holds weights, and beside it lies neither {' nor '.join(CONFIGS)}, which say of what")
    if path.suffix in (".yaml", ".yml"):
        raise CannotRead(f"it looks like YAML, which posenc does not read; {configs.EXPECTED}", file=path)
    return path, None


def with_weights(reading: Reading, folder: Path) -> Reading:
    """The reading, held against the weights in a folder where some lie there."""
    if has_tensors(folder) or any(folder.glob("*.safetensors.index.json")):
        return checked(reading, open_tensors(folder))
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        sentence = f"the weights, which were not opened: {refused(pickles[0])}"
        return replace(reading, not_covered=(*reading.not_covered, sentence))
    return reading


def checked(reading: Reading, tensors: Tensors) -> Reading:
    """The reading with the tables that the weights hold, and what in them cannot be right beside the config."""
    stored = {told: called(told, tensors) for part in reading.parts for told in part.tables}
    found = [*reading.contradictions, *tables(reading, tensors, stored), *projections(reading, tensors)]
    found += layers(reading, tensors)
    return replace(reading, parts=tuple(named(reading, tensors, stored)), contradictions=tuple(found))


def named(reading: Reading, tensors: Tensors, stored: Mapping[str, list[str]]) -> Iterator[Part]:
    """The parts, with the names under which their tables are stored, and the sizes that they have there."""
    known = any(part.tables for part in reading.parts)
    for part in reading.parts:
        tables = [one for told in part.tables for one in stored[told]]
        if len(reading.parts) == 1:
            tables += [
                one for one in tensors if RELATIVE_TABLE.search(one) or (not known and POSITION_TABLE.search(one))
            ]
        yield replace(part, tables={one: tensors.shape(one) for one in tables} or part.tables)


def tables(reading: Reading, tensors: Tensors, stored: Mapping[str, list[str]]) -> Iterator[str]:
    """Learned tables whose sizes the config does not give."""
    learned = [part for part in reading.parts if part.embed.startswith("learned")]
    biased = [(part, one) for part in reading.parts for one in distinct(part) if hasattr(one, "buckets")]
    told = {name for names in stored.values() for name in names}
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for part in learned:
        for table, size in part.tables.items():
            for name in stored[table]:
                sizes.setdefault(name, []).append(tuple(size[-2:]))
        if not part.tables and part.trained_length is not None:
            for name in filter(POSITION_TABLE.search, tensors):
                sizes.setdefault(name, []).append((part.trained_length, part.shape.dim))
    for name in tensors:
        shape = tensors.shape(name)
        if name in sizes and tuple(shape[-2:]) not in sizes[name]:
            wanted = " or ".join(str(list(size)) for size in dict.fromkeys(sizes[name]))
            yield f"{name} is {list(shape)}, and the config says {wanted}; followed: the config"
        unasked = reading.parts and not learned and name not in told and accounted_for(reading)
        if unasked and POSITION_TABLE.search(name) and len(shape) in (2, 3):
            yield f"{name} is a table of positions {list(shape)}, and the config speaks of none"
        if RELATIVE_TABLE.search(name):
            known = [(one.buckets, part.shape.heads) for part, one in biased]
            if not known and accounted_for(reading):
                yield f"{name} is a table of distances {list(shape)}, and the config speaks of none"
            elif known and tuple(shape) not in known and tuple(reversed(shape)) not in known:
                yield f"{name} is {list(shape)}, and the config says {list(known[0])} (buckets, heads)"


def accounted_for(reading: Reading) -> bool:
    """Whether all that a model does about position was read, so that what its weights hold besides is too much."""
    return not reading.not_covered and all(part.embed == "none" for part in reading.parts)


def one_stack(reading: Reading, tensors: Tensors, pattern: re.Pattern[str]) -> bool:
    """Whether there is one part, and one stack of layers that a pattern finds: towers beside it are not told apart."""
    found = [list(pattern.finditer(name)) for name in tensors]
    stacks = {name[: matches[0].start()] for name, matches in zip(tensors, found, strict=True) if matches}
    return len(reading.parts) == 1 and len(stacks) == 1 and all(len(matches) <= 1 for matches in found)


def projections(reading: Reading, tensors: Tensors) -> Iterator[str]:
    """Query and key weights whose rows are not heads times channels."""
    if not one_stack(reading, tensors, PROJECTION):
        return
    part, told = reading.parts[0], set()
    for name in tensors:
        match = PROJECTION.search(name)
        if match is None or not tensors.dtype(name).is_floating_point or int(match[1]) >= len(part.layers):
            continue
        layer, asks = part.layers[int(match[1])], match[2] in ("q_proj", "attn_q", "wq")
        heads = part.shape.heads if asks else part.kv_heads
        if part.kv_heads is None or heads is None:
            return
        rows = layer.rows[not asks] if layer.rows else heads * layer.head_dim
        # Where no module says it: some query projections make a gate besides, and some keys turn in part.
        fits = (rows, 2 * rows) if asks and not layer.rows else (rows,)
        unsaid = layer.head_dim != part.shape.head_dim and not layer.rows
        # The number of rows: a tensor without axes has none.
        found = tensors.shape(name)[:1]
        if found not in [(fit,) for fit in fits] and not unsaid and match[2] not in told:
            told.add(match[2])
            by = f"{heads} heads of {layer.head_dim} channels, " if rows == heads * layer.head_dim else ""
            yield f"{name} has {found[0] if found else 'no'} rows, and the config says {by}{rows} rows"


def layers(reading: Reading, tensors: Tensors) -> Iterator[str]:
    """Layers that the config counts and the weights lack."""
    if not one_stack(reading, tensors, IN_A_LAYER):
        return
    held = {int(match[1]) for name in tensors if (match := IN_A_LAYER.search(name))}
    missing = sorted(set(range(len(reading.parts[0].layers))) - held)
    if held and missing:
        yield f"the weights have no layer {missing[0]}, and the config says {len(reading.parts[0].layers)} layers"


def distinct(part: Part) -> list[Encoding]:
    """The different encodings of a part, the parts of sums taken apart."""
    found: dict[tuple[str, int], Encoding] = {}
    for index, layer in enumerate(part.layers):
        if (layer.spec, layer.head_dim) not in found:
            found[layer.spec, layer.head_dim] = part.encoding(index)
    return [one for encoding in found.values() for one in parts_of(encoding)]


def in_json(reading: Reading) -> dict[str, Any]:
    """A reading as JSON says it; layers that are alike and follow each other stand together."""
    told = {
        "format": reading.format,
        "architecture": reading.architecture,
        "parts": [],
        "understood": dict(reading.understood),
        "unknown": plain(reading.unknown),
        "contradictions": list(reading.contradictions),
        "not_covered": list(reading.not_covered),
    }
    for part in reading.parts:
        told["parts"].append(
            {
                "name": part.name,
                **vars(part.shape),
                "heads": None if part.kv_heads is None else part.shape.heads,
                "kv_heads": part.kv_heads,
                "trained_length": part.trained_length,
                "embed": part.embed,
                "layers": [{"layers": [first, last], **vars(part.layers[first])} for first, last in runs(part)],
                "tables": {name: list(shape) for name, shape in part.tables.items()},
                "besides": list(part.besides),
                "known": part.known,
            }
        )
    return told


def plain(value: Any) -> Any:
    """A value as JSON can have it."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def runs(part: Part) -> list[tuple[int, int]]:
    """First and last of the layers that follow each other and are alike."""
    found: list[tuple[int, int]] = []
    for index, layer in enumerate(part.layers):
        if found and part.layers[found[-1][0]] == layer:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return found
