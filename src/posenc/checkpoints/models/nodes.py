"""Configurations within a configuration of transformers, and what the modules built from each of them show."""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.checkpoints.models.attended import Attended, Reach
from posenc.checkpoints.models.dry_run import Measured, measure
from posenc.checkpoints.models.found import Found, found, with_configs
from posenc.checkpoints.models.skeleton import skeleton
from posenc.checkpoints.models.turns import Turn, axes_of
from posenc.checkpoints.vocabulary.bounds import HEADS, LAYERS, WIDTHS
from posenc.checkpoints.vocabulary.ledger import Ledger, in_words
from posenc.checkpoints.vocabulary.reading import CannotRead

LONGEST_LOOK = 512
"""The longest window (tokens) that is looked for in a run longer than it, where no mask says where it ends."""

FAR = 1024
"""How far tokens are put apart on one axis alone: the slowest pairs of the largest bases turn enough to be seen."""


@dataclass
class Node:
    """A configuration within a configuration.

    path     where it stands, "" for the whole
    config   transformers' object, or None where transformers does not know it
    keys     its ledger
    modules  path -> module, of those that were built from it; empty where none could be built
    found    what carries position in them
    claimed  the paths of what was found and what some spec accounts for
    seen     what a dry run of them saw
    on_axes  the turns of a dry run in which the tokens stand apart on time, height and width
    rounding   by how much frequencies have been rounded by a cast of the model (relative)
    pieces     the position code that was found, by kind
    reasons    path of what was found -> why no spec speaks of it
    left       what it does about position that no spec says, in sentences
    explained  matrices and what the keys say of them -> the spec that makes them, so that layers share the search
    """

    path: str
    config: Any
    keys: Ledger
    modules: dict[str, Any] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    seen: Measured = field(default_factory=Measured)
    on_axes: list[Turn] = field(default_factory=list)
    rounding: float = 0.0
    pieces: list[Any] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    explained: dict[Any, tuple[str, int] | None] = field(default_factory=dict)

    def first(self, names: tuple[str, ...], default: Any = None) -> Any:
        """The first of several keys that has a value, which does not count as reading it."""
        return next((self.keys.peek(name) for name in names if self.keys.has(name)), default)

    @property
    def of_images(self) -> bool:
        """Whether it describes a tower for images, whose tokens are patches."""
        return self.keys.has("image_size") or self.keys.has("patch_size")

    def leave(self, sentence: str) -> None:
        """What this part of the model does about position that no spec says."""
        self.left.append(sentence)
        self.keys.leave(f"{self.path or 'the model'}: {sentence}")


def nodes_of(config: Any, keys: Ledger, path: str = "") -> Iterator[Node]:
    """The configuration and those within it, outermost first."""
    yield Node(path, config, keys)
    for key, value in keys.given.items():
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder", "generator")):
            inner = getattr(config, key, None)
            if hasattr(inner, "to_dict") or (config is None and any(name in value for name in (*WIDTHS, *HEADS))):
                within = keys.open(key)
                inner = inner if hasattr(inner, "to_dict") else None
                yield from nodes_of(inner, within, f"{path}.{key}".lstrip("."))


def look_into(config: Any, nodes: list[Node], model: nn.Module | None = None) -> None:
    """Give every node what the modules of the model show; say so where they cannot be seen.

    model  a model without its numbers, as `skeleton` or `hollow` makes it; None to build it from the configuration
    """
    failure = ""
    try:
        model = skeleton(config) if model is None else model
        survey(model, nodes)
    except CannotRead as error:
        failure = str(error)
    for node in nodes[1:]:
        # A tower that no text runs through is looked at by itself.
        unseen = node.found and not node.seen.turns and not node.seen.rows
        if node.config is None or not (unseen or failure):
            continue
        # The part that was built from this configuration, and can be run by itself.
        whole = (at for at in (() if model is None else model.named_modules()) if hasattr(at[1], "main_input_name"))
        path, tower = next((at for at in whole if getattr(at[1], "config", None) is node.config), ("", None))
        try:
            survey(skeleton(node.config) if tower is None else tower, [node], path)
        except CannotRead as error:
            node.leave(f"{error}; what is said of it rests on the keys alone")
    if failure:
        nodes[0].leave(f"{failure}; what is said of it rests on the keys alone, and on its towers one by one")


def survey(model: nn.Module, nodes: list[Node], prefix: str = "") -> None:
    """Run a model dry, and share out what was seen among the nodes within it.

    prefix  where the model stands in a larger one, of which nothing was seen
    """

    def whole(path: str) -> str:
        return f"{prefix}.{path}".strip(".")

    seen = measure(model)
    attended = looked_at_longer(model, seen)
    owners = {path: node_of(own, nodes) for path, _, own in with_configs(model)}
    for node in nodes:
        own = {whole(path): module for path, module in model.named_modules() if owners[path] is node}
        node.modules = own or node.modules
        node.seen.failure, node.seen.slopes = seen.failure, seen.slopes
        node.seen.turners = seen.turners
        node.seen.entered = {whole(path) for path in seen.entered}
        node.seen.attend = {whole(path) for path in seen.attend if owners[path] is node}
        node.seen.spoke = seen.spoke
        node.seen.centres = {whole(path): row for path, row in seen.centres.items()}
        node.seen.patches = {whole(path): cells for path, cells in seen.patches.items()}
        node.seen.made = {whole(path): out for path, out in seen.made.items() if owners[path] is node}
        node.seen.buckets = [replace(one, path=whole(one.path)) for one in seen.buckets if owners[one.path] is node]
    pieces = [replace(item, path=whole(item.path)) for item in found(model, seen.rows)]
    for node in nodes:
        node.found = [item for item in pieces if node_of(item.config, nodes) is node]
    for turn in seen.turns:
        owners.get(turn.path, nodes[0]).seen.turns.append(replace(turn, path=whole(turn.path)))
    for one in attended:
        at = replace(one, path=whole(one.path), layer=one.layer and whole(one.layer))
        owners.get(one.path, nodes[0]).seen.attended.append(at)
    for name in ("ids", "scaled", "rows", "added"):
        for path, value in getattr(seen, name).items():
            module = path.rpartition(".")[0] if name in ("rows", "added") else path
            getattr(owners.get(module, nodes[0]).seen, name)[whole(path)] = value
    inputs = dict(seen.inputs)
    axes = max((axes_of(item.owner, item.label) for item in pieces if item.kind == "frequencies"), default=1)
    if axes > 1 and "input_ids" in inputs:
        # The first token at 0, one on each axis at FAR, those behind them at 0.
        tokens = max(inputs["input_ids"].shape[1], axes + 1)
        inputs["input_ids"] = torch.full((1, tokens), 7)
        ids = F.pad(FAR * torch.eye(axes, dtype=torch.long), (1, tokens - axes - 1))[:, None]
        for turn in measure(model, inputs | {"position_ids": ids}).turns:
            owners.get(turn.path, nodes[0]).on_axes.append(replace(turn, path=whole(turn.path)))


def looked_at_longer(model: nn.Module, seen: Measured) -> list[Attended]:
    """Each attention of a run, with the edges that so short a run does not show."""
    attended, inputs = seen.attended, seen.inputs
    if not attended or "input_ids" not in inputs:
        return attended
    ids = inputs["input_ids"]
    if seen.skipped and "attention_mask" in inspect.signature(model.forward).parameters:
        # A token of padding, and every mask is made.
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        again = measure(model, inputs | {"attention_mask": mask}, attention_alone=True).attended
        if len(again) == len(attended):
            attended = [replace(one, reach=other.reach) for one, other in zip(attended, again, strict=True)]
    shown = {one.reach.window for one in attended if one.reach}
    config: Any = model.config
    for key, size in config.to_dict().items():
        # What a key calls a window and no mask shows.
        if "window" in key and isinstance(size, int) and 1 < size <= LONGEST_LOOK and size not in shown:
            each = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.shape[1] == ids.shape[1]}
            longer = {n: x[:, :1].expand(-1, size + 2, *x.shape[2:]) for n, x in each.items()}
            again = measure(model, inputs | longer, attention_alone=True).attended
            if len(again) == len(attended):
                # Windows that are longer yet have no edge in such a run.
                attended = [
                    replace(one, sees=other.sees, reach=one.reach if other.reach == Reach() else other.reach)
                    for one, other in zip(attended, again, strict=True)
                ]
    return attended


def node_of(config: Any, nodes: list[Node]) -> Node:
    for fits in (lambda node: node.config is config, lambda node: type(node.config) is type(config)):
        for node in nodes:
            if fits(node):
                return node
    return nodes[0]


def of_role(path: str, role: str) -> bool:
    """Whether a module belongs to the encoder or to the decoder, where there are both, or to a stage: "layers.0".

    What stands before both is the encoder's, and what stands outside of all stages is the first one's.
    """
    if "." in role:
        stem, _, stage = role.rpartition(".")
        outside = stage == "0" and not re.search(rf"(?:^|\.){stem}\.\d+(?=\.|$)", path)
        return outside or f".{role}." in f".{path}."
    named = re.findall(r"(?:^|[._])(encoder|decoder)(?=\.|$)", path)
    return not role or role == (named[-1] if named else "encoder")


def stages_of(node: Node) -> list[str]:
    """The stages of a tower that has heads and layers for each of them, as paths of its modules begin or go on."""
    heads, depths = node.first(HEADS), node.first(("depths", "depth", *LAYERS))
    if not isinstance(heads, list) or not isinstance(depths, list) or len(heads) != len(depths):
        return []
    numbered = Counter(match.group(1) for path in node.modules if (match := re.fullmatch(r"(.*)\.\d+", path)))
    fitting = [path for path, count in numbered.items() if count == len(heads)]
    stem = min(fitting, key=len, default="").rpartition(".")[2]
    return [f"{stem}.{i}" for i in range(len(heads))] if stem else []


def every_layer(path: str) -> str:
    """A path for all layers: "layers.3.self_attn" -> "layers.*.self_attn"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def once(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences about paths, those that differ in the layer alone as one, with the layers."""
    layers: dict[str, dict[int, str]] = {}
    for sentence in sentences:
        found = re.search(r"(?<=[a-z]\.)\d+(?=\.[a-z])", sentence)
        shared = sentence if found is None else f"{sentence[: found.start()]}*{sentence[found.end() :]}"
        layers.setdefault(shared, {})[int(found[0]) if found else -1] = sentence
    for shared, each in layers.items():
        yield f"{shared}, in layers {in_words(list(each))}" if len(each) > 1 else next(iter(each.values()))
