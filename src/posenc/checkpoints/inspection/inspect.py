"""`posenc inspect`: read the positions of a checkpoint, and compare its weights with its config."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.checkpoints.files.tensors import PICKLE_STARTS, PICKLES, GGUFTensors, Tensors, open_tensors, pickle_error
from posenc.checkpoints.formats import load
from posenc.checkpoints.formats.gguf.file import metadata
from posenc.checkpoints.formats.learned_tables import stored_names
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.encoding.base import Encoding, parts_of
from posenc.foreign import naming, open_regular, read_json

CONFIGS = ("config.json", "params.json")
"""Names of the file that describes the model of a folder."""

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
    """Read the positions of the checkpoint at a path.

    path    a folder in Hugging Face's form, with weights or without; a config.json; Meta's params.json; a GGUF file;
            a model of the hub as owner/name, of which its config alone is fetched

    The content of the file decides its format, never its name. Where safetensors or GGUF weights lie beside a config,
    their headers are read too: tables, projections and layers that do not fit it stand in `contradictions`.
    Nothing is unpickled and no code of the checkpoint is run.

    Raises CannotRead for what is no checkpoint, a pickle, broken or missing files, and schedules that cannot be.
    """
    path = load.find_checkpoint(path, weights=False)
    config, folder = find_config(path)
    if config is None:
        with naming(path):
            tensors = open_tensors(path)
            return with_checked_weights(configs.read(metadata(tensors), "gguf"), tensors)
    with naming(config):
        reading = configs.read(read_json(config, folder=folder))
    return reading if folder is None else with_weights(reading, folder)


def has_learned_tables(reading: Reading) -> bool:
    """Whether a stack has a learned table, of positions or of buckets, whose numbers only the weights have."""
    return any(
        part.embed.startswith("learned") or any(hasattr(encoding, "buckets") for encoding in distinct_encodings(part))
        for part in reading.parts
    )


def has_tensors(path: Path) -> bool:
    """Whether a path has tensors that can be opened: safetensors or GGUF."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path.suffix != ".json"


def find_config(path: Path) -> tuple[Path | None, Path | None]:
    """Return the config file, None for a GGUF; and the folder of the weights to compare it with."""
    if path.is_dir():
        for name in CONFIGS:
            if (path / name).is_file():
                return path / name, path
        if (path / "adapter_config.json").is_file():
            raise CannotRead(f"{path} is an adapter, which has the positions of the model that it adapts; inspect that")
        if isinstance(open_tensors(path), GGUFTensors):
            return None, None
        raise CannotRead(f"{path} has weights and neither {' nor '.join(CONFIGS)}, which say what they are")
    with open_regular(path) as file:
        start = file.read(4)
    if start == b"GGUF":
        return None, None
    if path.suffix in PICKLES or start.startswith(PICKLE_STARTS):
        raise pickle_error(path)
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        for name in CONFIGS:
            if (path.parent / name).is_file():
                return path.parent / name, path.parent
        raise CannotRead(f"{path} holds weights, and beside it lies neither {' nor '.join(CONFIGS)}, which say of what")
    if path.suffix in (".yaml", ".yml"):
        raise CannotRead(f"it looks like YAML, which posenc does not read; {configs.EXPECTED}", file=path)
    return path, None


def with_weights(reading: Reading, folder: Path) -> Reading:
    """Return the reading, compared with the weights of a folder that has some."""
    if has_tensors(folder) or any(folder.glob("*.safetensors.index.json")):
        return with_checked_weights(reading, open_tensors(folder))
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        sentence = f"the weights, which were not opened: {pickle_error(pickles[0])}"
        return replace(reading, not_covered=(*reading.not_covered, sentence))
    return reading


def with_checked_weights(reading: Reading, tensors: Tensors) -> Reading:
    """Return the reading with the tables of the weights, and with what in them contradicts the config."""
    names = {name: stored_names(name, tensors) for part in reading.parts for name in part.tables}
    faults = [*reading.contradictions, *table_faults(reading, tensors, names), *projection_faults(reading, tensors)]
    faults += layer_faults(reading, tensors)
    return replace(reading, parts=tuple(with_stored_tables(reading, tensors, names)), contradictions=tuple(faults))


def with_stored_tables(reading: Reading, tensors: Tensors, table_names: Mapping[str, list[str]]) -> Iterator[Part]:
    """Yield the parts with the names and sizes of their tables in the checkpoint."""
    has_tables = any(part.tables for part in reading.parts)
    for part in reading.parts:
        names = [name for table in part.tables for name in table_names[table]]
        if len(reading.parts) == 1:
            names += [n for n in tensors if RELATIVE_TABLE.search(n) or (not has_tables and POSITION_TABLE.search(n))]
        yield replace(part, tables={name: tensors.shape(name) for name in names} or part.tables)


def table_faults(reading: Reading, tensors: Tensors, table_names: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a sentence for each learned table whose size differs from the config's."""
    learned_parts = [part for part in reading.parts if part.embed.startswith("learned")]
    biases = [(part, e) for part in reading.parts for e in distinct_encodings(part) if hasattr(e, "buckets")]
    known_names = {name for names in table_names.values() for name in names}
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for part in learned_parts:
        for table, size in part.tables.items():
            for name in table_names[table]:
                sizes.setdefault(name, []).append(tuple(size[-2:]))
        if not part.tables and part.trained_length is not None:
            for name in filter(POSITION_TABLE.search, tensors):
                sizes.setdefault(name, []).append((part.trained_length, part.shape.dim))
    for name in tensors:
        shape = tensors.shape(name)
        if name in sizes and tuple(shape[-2:]) not in sizes[name]:
            sizes_said = " or ".join(str(list(size)) for size in dict.fromkeys(sizes[name]))
            yield f"{name} is {list(shape)}, and the config says {sizes_said}; followed: the config"
        is_extra = reading.parts and not learned_parts and name not in known_names and accounted_for(reading)
        if is_extra and POSITION_TABLE.search(name) and len(shape) in (2, 3):
            yield f"{name} is a table of positions {list(shape)}, and the config speaks of none"
        if RELATIVE_TABLE.search(name):
            bucket_shapes = [(encoding.buckets, part.shape.heads) for part, encoding in biases]
            if not bucket_shapes and accounted_for(reading):
                yield f"{name} is a table of distances {list(shape)}, and the config speaks of none"
            elif bucket_shapes and tuple(shape) not in bucket_shapes and tuple(reversed(shape)) not in bucket_shapes:
                yield f"{name} is {list(shape)}, and the config says {list(bucket_shapes[0])} (buckets, heads)"


def accounted_for(reading: Reading) -> bool:
    """Whether the whole position code was read, so that a further table is a contradiction."""
    return not reading.not_covered and all(part.embed == "none" for part in reading.parts)


def one_stack(reading: Reading, tensors: Tensors, pattern: re.Pattern[str]) -> bool:
    """Whether there is one part, and a pattern matches one stack of layers, without towers beside it."""
    matches_by_name = [list(pattern.finditer(name)) for name in tensors]
    stacks = {name[: matches[0].start()] for name, matches in zip(tensors, matches_by_name, strict=True) if matches}
    return len(reading.parts) == 1 and len(stacks) == 1 and all(len(matches) <= 1 for matches in matches_by_name)


def projection_faults(reading: Reading, tensors: Tensors) -> Iterator[str]:
    """Yield a sentence for query or key weights whose rows are not heads times channels."""
    if not one_stack(reading, tensors, PROJECTION):
        return
    part, seen_kinds = reading.parts[0], set()
    for name in tensors:
        match = PROJECTION.search(name)
        if match is None or not tensors.dtype(name).is_floating_point or int(match[1]) >= len(part.layers):
            continue
        layer, asks = part.layers[int(match[1])], match[2] in ("q_proj", "attn_q", "wq")
        heads = part.shape.heads if asks else part.kv_heads
        if part.kv_heads is None or heads is None:
            return
        rows = layer.rows[not asks] if layer.rows else heads * layer.head_dim
        # Without a module to ask: some query projections compute a gate too, and some keys rotate in part.
        fits = (rows, 2 * rows) if asks and not layer.rows else (rows,)
        unsaid = layer.head_dim != part.shape.head_dim and not layer.rows
        # The number of rows: a tensor without axes has none.
        row_count = tensors.shape(name)[:1]
        if row_count not in [(fit,) for fit in fits] and not unsaid and match[2] not in seen_kinds:
            seen_kinds.add(match[2])
            origin = f"{heads} heads of {layer.head_dim} channels, " if rows == heads * layer.head_dim else ""
            yield f"{name} has {row_count[0] if row_count else 'no'} rows, and the config says {origin}{rows} rows"


def layer_faults(reading: Reading, tensors: Tensors) -> Iterator[str]:
    """Yield a sentence if the weights lack a layer that the config counts."""
    if not one_stack(reading, tensors, IN_A_LAYER):
        return
    stored_layers = {int(match[1]) for name in tensors if (match := IN_A_LAYER.search(name))}
    lacking = sorted(set(range(len(reading.parts[0].layers))) - stored_layers)
    if stored_layers and lacking:
        yield f"the weights have no layer {lacking[0]}, and the config says {len(reading.parts[0].layers)} layers"


def distinct_encodings(part: Part) -> list[Encoding]:
    """Return the different encodings of a part; a sum counts as its terms."""
    encodings: dict[tuple[str, int], Encoding] = {}
    for index, layer in enumerate(part.layers):
        if (layer.spec, layer.head_dim) not in encodings:
            encodings[layer.spec, layer.head_dim] = part.encoding(index)
    return [part_encoding for encoding in encodings.values() for part_encoding in parts_of(encoding)]


def reading_as_json(reading: Reading) -> dict[str, Any]:
    """Return a reading as JSON has it; equal consecutive layers share an entry."""
    record = {
        "format": reading.format,
        "architecture": reading.architecture,
        "parts": [],
        "understood": dict(reading.understood),
        "unknown": plain_value(reading.unknown),
        "contradictions": list(reading.contradictions),
        "not_covered": list(reading.not_covered),
    }
    for part in reading.parts:
        record["parts"].append(
            {
                "name": part.name,
                **vars(part.shape),
                "heads": None if part.kv_heads is None else part.shape.heads,
                "kv_heads": part.kv_heads,
                "trained_length": part.trained_length,
                "embed": part.embed,
                "layers": [{"layers": [first, last], **vars(part.layers[first])} for first, last in layer_ranges(part)],
                "tables": {name: list(shape) for name, shape in part.tables.items()},
                "besides": list(part.remarks),
                "known": part.is_complete,
            }
        )
    return record


def plain_value(value: object) -> object:
    """Return a value that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def layer_ranges(part: Part) -> list[tuple[int, int]]:
    """Return the first and last layer of each run of equal layers."""
    ranges: list[tuple[int, int]] = []
    for index, layer in enumerate(part.layers):
        if ranges and part.layers[ranges[-1][0]] == layer:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges
