"""The nested configurations of a transformers model, each with a trace of its modules."""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.checkpoints.models.attention_trace import AttentionCall, Reach
from posenc.checkpoints.models.dry_run import Trace, run_dry
from posenc.checkpoints.models.position_items import PositionItem, position_items, with_configs
from posenc.checkpoints.models.rotations import Turn, position_axes
from posenc.checkpoints.models.skeleton import skeleton
from posenc.checkpoints.vocabulary.bounds import HEADS, LAYERS, WIDTHS
from posenc.checkpoints.vocabulary.ledger import Ledger, show_value
from posenc.checkpoints.vocabulary.reading import CannotRead

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MAX_WINDOW = 512
"""The longest window (tokens) that a longer dry run tests, if no mask shows its edge."""

AXIS_STEP = 1024
"""The distance of tokens on one axis: at this the slowest pairs of the largest bases rotate visibly."""


@dataclass
class ConfigNode:
    """A configuration of a model, or one nested in it.

    path           its path, "" for the whole
    config         transformers' object; None for an unknown one
    keys           its ledger
    modules        path -> module, of those built from it; empty if none could be built
    items          the modules and tensors with position
    claimed_paths  the paths of items that some spec explains
    trace          the trace of a dry run of the modules
    on_axes        the rotations of a dry run with tokens apart on time, height and width
    rounding       relative error of frequencies from a cast of the model
    pieces         the pieces of position code, by kind
    reasons        path of an item -> the reason why no spec explains it
    left           features of position that no spec expresses, in sentences
    explanations   matrices and keys -> the spec that gives them, so that layers share the search
    """

    path: str
    config: "PreTrainedConfig | None"
    keys: Ledger
    modules: dict[str, Any] = field(default_factory=dict)
    items: list[PositionItem] = field(default_factory=list)
    claimed_paths: set[str] = field(default_factory=set)
    trace: Trace = field(default_factory=Trace)
    on_axes: list[Turn] = field(default_factory=list)
    rounding: float = 0.0
    pieces: list[Any] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    explanations: dict[Any, tuple[str, int] | None] = field(default_factory=dict)

    def first(self, names: tuple[str, ...], default: Any = None) -> Any:
        """Return the first of several keys that has a value; that does not count as reading it."""
        return next((self.keys.peek(name) for name in names if self.keys.has(name)), default)

    @property
    def of_images(self) -> bool:
        """Whether it belongs to a tower for images, whose tokens are patches."""
        return self.keys.has("image_size") or self.keys.has("patch_size")

    def leave(self, sentence: str) -> None:
        """Note a feature of position that no spec expresses."""
        self.left.append(sentence)
        self.keys.add_uncovered(f"{self.path or 'the model'}: {sentence}")


def nodes_of(config: "PreTrainedConfig | None", keys: Ledger, path: str = "") -> Iterator[ConfigNode]:
    """Yield a node for the configuration and for each nested one, outermost first."""
    yield ConfigNode(path, config, keys)
    for key, value in keys.entries.items():
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder", "generator")):
            inner = getattr(config, key, None)
            if hasattr(inner, "to_dict") or (config is None and any(name in value for name in (*WIDTHS, *HEADS))):
                ledger = keys.open(key)
                inner = inner if hasattr(inner, "to_dict") else None
                yield from nodes_of(inner, ledger, f"{path}.{key}".lstrip("."))


def inspect_nodes(config: "PreTrainedConfig", nodes: list[ConfigNode], model: nn.Module | None = None) -> None:
    """Trace the modules of the model for every node; note a node whose modules cannot run.

    model  a model with meta weights, from `skeleton` or `hollow_copy`; None builds it from the configuration
    """
    failure = ""
    try:
        model = skeleton(config) if model is None else model
        survey(model, nodes)
    except CannotRead as error:
        failure = str(error)
    for node in nodes[1:]:
        # A tower that text does not pass is traced by itself.
        unseen = node.items and not node.trace.turns and not node.trace.first_rows
        if node.config is None or not (unseen or failure):
            continue
        # The part with this configuration that can run by itself.
        whole = (at for at in (() if model is None else model.named_modules()) if hasattr(at[1], "main_input_name"))
        path, tower = next((at for at in whole if getattr(at[1], "config", None) is node.config), ("", None))
        try:
            survey(skeleton(node.config) if tower is None else tower, [node], path)
        except CannotRead as error:
            node.leave(f"{error}; what is said of it rests on the keys alone")
    if failure:
        nodes[0].leave(f"{failure}; what is said of it rests on the keys alone, and on its towers one by one")


def survey(model: nn.Module, nodes: list[ConfigNode], prefix: str = "") -> None:
    """Run a model dry, and divide the trace among its nodes.

    prefix  the path of the model in a larger one, which did not run
    """

    def full(path: str) -> str:
        return f"{prefix}.{path}".strip(".")

    trace = run_dry(model)
    attentions = attentions_with_edges(model, trace)
    owners = {path: node_for_config(config, nodes) for path, _, config in with_configs(model)}
    for node in nodes:
        modules = {full(path): module for path, module in model.named_modules() if owners[path] is node}
        node.modules = modules or node.modules
        node.trace.failure, node.trace.slopes = trace.failure, trace.slopes
        node.trace.rotary_count = trace.rotary_count
        node.trace.entered_paths = {full(path) for path in trace.entered_paths}
        node.trace.softmax_paths = {full(path) for path in trace.softmax_paths if owners[path] is node}
        node.trace.function_names = trace.function_names
        node.trace.centres = {full(path): row for path, row in trace.centres.items()}
        node.trace.patches = {full(path): cells for path, cells in trace.patches.items()}
        node.trace.outputs = {full(path): outputs for path, outputs in trace.outputs.items() if owners[path] is node}
        node.trace.buckets = [replace(b, path=full(b.path)) for b in trace.buckets if owners[b.path] is node]
    pieces = [replace(item, path=full(item.path)) for item in position_items(model, trace.first_rows)]
    for node in nodes:
        node.items = [item for item in pieces if node_for_config(item.config, nodes) is node]
    for turn in trace.turns:
        owners.get(turn.path, nodes[0]).trace.turns.append(replace(turn, path=full(turn.path)))
    for call in attentions:
        moved_call = replace(call, path=full(call.path), layer=call.layer and full(call.layer))
        owners.get(call.path, nodes[0]).trace.attentions.append(moved_call)
    for name in ("first_ids", "scales", "first_rows", "added_rows"):
        for path, value in getattr(trace, name).items():
            module = path.rpartition(".")[0] if name in ("first_rows", "added_rows") else path
            getattr(owners.get(module, nodes[0]).trace, name)[full(path)] = value
    inputs = dict(trace.inputs)
    axes = max((position_axes(item.owner, item.label) for item in pieces if item.kind == "frequencies"), default=1)
    if axes > 1 and "input_ids" in inputs:
        # The first token at 0, then one on each axis at AXIS_STEP, the others at 0.
        tokens = max(inputs["input_ids"].shape[1], axes + 1)
        inputs["input_ids"] = torch.full((1, tokens), 7)
        ids = F.pad(AXIS_STEP * torch.eye(axes, dtype=torch.long), (1, tokens - axes - 1))[:, None]
        for turn in run_dry(model, inputs | {"position_ids": ids}).turns:
            owners.get(turn.path, nodes[0]).on_axes.append(replace(turn, path=full(turn.path)))


def attentions_with_edges(model: nn.Module, trace: Trace) -> list[AttentionCall]:
    """Return each attention of a run, with edges of windows that need a longer run."""
    attentions, inputs = trace.attentions, trace.inputs
    if not attentions or "input_ids" not in inputs:
        return attentions
    ids = inputs["input_ids"]
    if trace.too_short and "attention_mask" in inspect.signature(model.forward).parameters:
        # With a padding token, transformers builds every mask.
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        again = run_dry(model, inputs | {"attention_mask": mask}, attention_alone=True).attentions
        if len(again) == len(attentions):
            attentions = [replace(short, reach=long.reach) for short, long in zip(attentions, again, strict=True)]
    windows = {call.reach.window for call in attentions if call.reach}
    config: Any = model.config
    for key, size in config.to_dict().items():
        # A key names a window that no mask shows.
        if "window" in key and isinstance(size, int) and 1 < size <= MAX_WINDOW and size not in windows:
            by_token = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.shape[1] == ids.shape[1]}
            longer = {n: x[:, :1].expand(-1, size + 2, *x.shape[2:]) for n, x in by_token.items()}
            again = run_dry(model, inputs | longer, attention_alone=True).attentions
            if len(again) == len(attentions):
                # Still longer windows have no edge in this run.
                attentions = [
                    replace(short, sees=long.sees, reach=short.reach if long.reach == Reach() else long.reach)
                    for short, long in zip(attentions, again, strict=True)
                ]
    return attentions


def node_for_config(config: object, nodes: list[ConfigNode]) -> ConfigNode:
    for fits in (lambda node: node.config is config, lambda node: type(node.config) is type(config)):
        for node in nodes:
            if fits(node):
                return node
    return nodes[0]


def has_role(path: str, role: str) -> bool:
    """Whether a module belongs to a role: "encoder", "decoder", or a stage such as "layers.0".

    Modules before both belong to the encoder, and modules outside all stages to the first one.
    """
    if "." in role:
        stem, _, stage = role.rpartition(".")
        is_outside = stage == "0" and not re.search(rf"(?:^|\.){stem}\.\d+(?=\.|$)", path)
        return is_outside or f".{role}." in f".{path}."
    roles = re.findall(r"(?:^|[._])(encoder|decoder)(?=\.|$)", path)
    return not role or role == (roles[-1] if roles else "encoder")


def stages_of(node: ConfigNode) -> list[str]:
    """Return the path parts of a tower's stages, if its config lists heads and layers of each."""
    heads, depths = node.first(HEADS), node.first(("depths", "depth", *LAYERS))
    if not isinstance(heads, list) or not isinstance(depths, list) or len(heads) != len(depths):
        return []
    counts = Counter(match.group(1) for path in node.modules if (match := re.fullmatch(r"(.*)\.\d+", path)))
    fitting = [path for path, count in counts.items() if count == len(heads)]
    stem = min(fitting, key=len, default="").rpartition(".")[2]
    return [f"{stem}.{i}" for i in range(len(heads))] if stem else []


def every_layer(path: str) -> str:
    """Return the path of all layers: "layers.3.self_attn" -> "layers.*.self_attn"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def merge_layers(sentences: Iterable[str]) -> Iterator[str]:
    """Merge sentences that differ only in the layer of a path, and name the layers."""
    layers: dict[str, dict[int, str]] = {}
    for sentence in sentences:
        match = re.search(r"(?<=[a-z]\.)\d+(?=\.[a-z])", sentence)
        template = sentence if match is None else f"{sentence[: match.start()]}*{sentence[match.end() :]}"
        layers.setdefault(template, {})[int(match[0]) if match else -1] = sentence
    for template, texts in layers.items():
        yield (f"{template}, in layers {show_value(list(texts))}" if len(texts) > 1 else next(iter(texts.values())))
