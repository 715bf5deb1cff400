"""Configurations within a configuration of transformers, and what the modules built from each of them show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from posenc.checkpoints.models import modules
from posenc.checkpoints.models.modules import Found, Measured, Turn
from posenc.checkpoints.vocabulary.bounds import HEADS, WIDTHS
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead

APART = torch.tensor([[[0, 1, 0, 0]], [[0, 0, 1, 0]], [[0, 0, 0, 1]]])
"""Positions [3, 1, 4] of tokens that stand apart on time, height or width alone; those behind them are at 0."""


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
    explained: dict[Any, tuple[str, int] | None] = field(default_factory=dict)

    def first(self, names: tuple[str, ...], default: Any = None) -> Any:
        """The first of several keys that has a value, which does not count as reading it."""
        return next((self.keys.peek(name) for name in names if self.keys.has(name)), default)

    def leave(self, sentence: str) -> None:
        """What this part of the model does about position that no spec says."""
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


def look_into(config: Any, nodes: list[Node]) -> None:
    """Give every node what the modules of the model show; say so where they cannot be seen."""
    failures: dict[str, str] = {}
    survey(config, nodes, failures)
    for node in nodes[1:]:
        # A tower that no text runs through is looked at by itself.
        unseen = node.found and not node.seen.turns and not node.seen.rows
        if node.config is not None and (unseen or failures):
            within = node.found
            survey(node.config, [node], failures)
            # By itself it may be built as another model, which lacks what it has within the whole.
            node.found += [old for old in within if not any(old.path.endswith(new.path) for new in node.found)]
    for node in nodes:
        if node.path in failures:
            node.leave(
                f"{failures[node.path]}; what is said of it rests on the keys alone, and on its towers one by one"
            )


def survey(config: Any, nodes: list[Node], failures: dict[str, str]) -> None:
    """Build the modules of a configuration, run them dry, and share out what was seen among the nodes within it."""
    try:
        model = modules.skeleton(config)
    except CannotRead as error:
        failures[nodes[0].path] = str(error)
        return
    if len(nodes) == 1:
        nodes[0].found = []
    seen = modules.measure(model)
    owners = {path: node_of(own, nodes) for path, _, own in modules.with_configs(model)}
    for node in nodes:
        own = {path: module for path, module in model.named_modules() if owners[path] is node}
        node.modules = own or node.modules
        node.seen.failure, node.seen.slopes = seen.failure, seen.slopes
    found = modules.found(model, seen)
    for item in found:
        node_of(item.config, nodes).found.append(item)
    for turn in seen.turns:
        owners.get(turn.path, nodes[0]).seen.turns.append(turn)
    for path, row in seen.rows.items():
        owners.get(path.rpartition(".")[0], nodes[0]).seen.rows[path] = row
    if any("mrope" in name for item in found for name in vars(item.owner)):
        inputs = modules.usual_inputs(model)
        ids = F.pad(APART, (0, inputs["input_ids"].shape[1] - 4)) if "input_ids" in inputs else APART
        for turn in modules.measure(model, inputs | {"position_ids": ids}).turns:
            owners.get(turn.path, nodes[0]).on_axes.append(turn)


def node_of(config: Any, nodes: list[Node]) -> Node:
    for fits in (lambda node: node.config is config, lambda node: type(node.config) is type(config)):
        for node in nodes:
            if fits(node):
                return node
    return nodes[0]


def of_role(path: str, role: str) -> bool:
    """Whether a module belongs to the encoder or to the decoder, where there are both."""
    return not role or role in path.split(".")


def every_layer(path: str) -> str:
    """A path for all layers: "layers.3.self_attn" -> "layers.*.self_attn"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)
