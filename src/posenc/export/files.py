"""Graphs as files: torch.export's .pt2 and ONNX, with what they are about; and how a refusal is told."""

import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from posenc.export.graphs import BATCH, PAST, SOURCE, TOKENS, Graph
from posenc.foreign import near, one_line
from posenc.foreign.text import shortened
from posenc.lab.results.frames import needed

FORMS = {".onnx": "ONNX", ".pt2": "torch.export"}
"""The ending of a file -> what it holds."""

EXTRA = "onnx"
"""The extra of posenc that brings what ONNX needs."""

ABOUT = "about.json"
"""The file within a .pt2 that says what it is."""

LARGEST = 2_000_000_000
"""The bytes that fit into one ONNX file."""


class CannotExport(ValueError):
    """A model of which no graph can be written down, with the encodings that it has and the reason."""


def form_of(path: Path) -> str:
    """The ending of a file to be written. Raises ValueError for one that is none of ours."""
    if path.suffix not in FORMS:
        raise ValueError(
            f"a model is exported to a file ending in .onnx or .pt2, got '{path.name}'{near(path.suffix, tuple(FORMS))}"
        )
    return path.suffix


def require(form: str) -> None:
    """Raises ModuleNotFoundError, with the extra to install, where a form needs what is not there."""
    if form == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            needed(module, EXTRA)


def written_down(graph: Graph) -> torch.export.ExportedProgram:
    """The graph in PyTorch's own operators, of any batch and length."""
    sizes = {name: torch.export.Dim(name) for name in (BATCH, TOKENS, PAST, SOURCE)}
    shapes: list[Any] = [{axis: sizes[size] for axis, size in graph.free[name].items()} for name in graph.inputs]
    parameters = inspect.signature(graph.module.forward).parameters.values()
    named = sum(one.kind is not one.VAR_POSITIONAL for one in parameters)
    if named < len(shapes):
        shapes[named:] = [tuple(shapes[named:])]
    with torch.no_grad(), quiet():
        given = tuple(graph.inputs.values())
        return torch.export.export(graph.module, given, dynamic_shapes=tuple(shapes), strict=False)


def write(program: torch.export.ExportedProgram, graph: Graph, path: Path, about: Mapping[str, str]) -> None:
    """Write a graph to a file that nobody else reads yet, in the form of its ending."""
    if form_of(path) == ".pt2":
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})
        return
    with torch.no_grad(), quiet():
        from posenc.export.onnx_operators import TRANSLATIONS

        made = torch.onnx.export(
            program,
            (),
            dynamo=True,
            verbose=False,
            input_names=[*graph.inputs],
            output_names=[*graph.outputs],
            custom_translation_table=TRANSLATIONS,
        )
    assert made is not None
    if sum(tensor.nbytes for tensor in program.state_dict.values()) > LARGEST:
        raise CannotExport(f"an ONNX file holds at most {LARGEST:,} bytes, and the weights are more; export to .pt2")
    name_sizes(made.model, graph)
    spell_out_booleans(made.model)
    made.model.metadata_props.update(about)
    path.write_bytes(made.model_proto.SerializeToString())


def name_sizes(model: Any, graph: Graph) -> None:
    """Call the free sizes of inputs and outputs by their names, where torch has numbered them."""
    names: dict[str, str] = {}
    for given in model.graph.inputs:
        for axis, size in graph.free[given.name].items():
            names[given.shape[axis].value] = size
    for value in (*model.graph.inputs, *model.graph.outputs):
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                value.shape[axis] = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), size.value)


def spell_out_booleans(model: Any) -> None:
    """Choices between booleans as and, or and not: onnxruntime chooses between numbers only."""
    ir = needed("onnx_ir", EXTRA)
    for node in list(model.graph):
        if node.op_type != "Where" or node.outputs[0].dtype != ir.DataType.BOOL:
            continue
        chosen, one, other = node.inputs
        first, left = ir.node("And", [chosen, one]), ir.node("Not", [chosen])
        second = ir.node("And", [left.outputs[0], other])
        either = ir.node("Or", [first.outputs[0], second.outputs[0]])
        new = [first, left, second, either]
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], new, node.outputs, either.outputs)


@contextmanager
def quiet() -> Generator[None]:
    """torch without its warnings of what it does itself, and without the graphs that it prints where it fails."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


REASONS = (
    (r"No ONNX function found for <OpOverload\(op='\w+\.(\w+)", "ONNX has nothing for PyTorch's operator {0}"),
    (r"specialized it to be a constant", "its computation is tied to the sizes of one call"),
    (r"Guard failed", "its graph serves calls of some sizes and fails at others"),
    (r"Could not guard on data-dependent expression", "its computation goes by the numbers of one call"),
    (r"Could not extract specialized integer", "its computation goes by the numbers of one call"),
    (r"NOT_IMPLEMENTED .* for (\w+)\(", "onnxruntime has no {0} in its dtype; export model.float(), or to .pt2"),
    (r"## Exception summary\s+<class '[\w.]+'>: (.+)", "{0}"),
)
"""What torch says -> what it means."""


def reason_of(error: BaseException) -> str:
    """Why torch did not write a graph down, in one sentence."""
    said = str(error)
    for pattern, meaning in REASONS:
        if found := re.search(pattern, said):
            return meaning.format(*found.groups())
    return shortened(one_line(said.partition("\n")[0]), 300)
