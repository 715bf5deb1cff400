"""Write graphs as torch.export's .pt2 or ONNX, with metadata, and explain why one cannot be written."""

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
from posenc.foreign import one_line, suggestion
from posenc.foreign.text import shorten
from posenc.lab.results.frames import import_library

FORMS = {".onnx": "ONNX", ".pt2": "torch.export"}
"""File extension -> format."""

EXTRA = "onnx"
"""The extra of posenc that installs the packages for ONNX."""

ABOUT = "about.json"
"""The file with the metadata within a .pt2."""

LARGEST = 2_000_000_000
"""The size limit of one ONNX file (bytes)."""


class CannotExport(ValueError):
    """A model that cannot be exported; the message names its encodings and the reason."""


def file_format(path: Path) -> str:
    """Return the extension of a file to write. Raises ValueError for an unknown one."""
    if path.suffix not in FORMS:
        hint = suggestion(path.suffix, tuple(FORMS))
        raise ValueError(f"a model is exported to a file ending in .onnx or .pt2, got '{path.name}'{hint}")
    return path.suffix


def require(form: str) -> None:
    """Raise ModuleNotFoundError, with the extra to install, if a package for the format is missing."""
    if form == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            import_library(module, EXTRA)


def exported_program(graph: Graph) -> torch.export.ExportedProgram:
    """Return the graph in PyTorch's own operators, for any batch and length."""
    sizes = {name: torch.export.Dim(name) for name in (BATCH, TOKENS, PAST, SOURCE)}
    shapes: list[Any] = [{axis: sizes[size] for axis, size in graph.free[name].items()} for name in graph.inputs]
    parameters = inspect.signature(graph.module.forward).parameters.values()
    named_count = sum(parameter.kind is not parameter.VAR_POSITIONAL for parameter in parameters)
    if named_count < len(shapes):
        shapes[named_count:] = [tuple(shapes[named_count:])]
    with torch.no_grad(), quiet():
        inputs = tuple(graph.inputs.values())
        return torch.export.export(graph.module, inputs, dynamic_shapes=tuple(shapes), strict=False)


def write(program: torch.export.ExportedProgram, graph: Graph, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a graph to a new file, in the format of its extension."""
    if file_format(path) == ".pt2":
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(metadata)})
        return
    with torch.no_grad(), quiet():
        from posenc.export.onnx_operators import TRANSLATIONS

        onnx_program = torch.onnx.export(
            program,
            (),
            dynamo=True,
            verbose=False,
            input_names=[*graph.inputs],
            output_names=[*graph.outputs],
            custom_translation_table=TRANSLATIONS,
        )
    assert onnx_program is not None
    if sum(tensor.nbytes for tensor in program.state_dict.values()) > LARGEST:
        raise CannotExport(f"an ONNX file holds at most {LARGEST:,} bytes, and the weights are more; export to .pt2")
    name_sizes(onnx_program.model, graph)
    spell_out_booleans(onnx_program.model)
    onnx_program.model.metadata_props.update(metadata)
    path.write_bytes(onnx_program.model_proto.SerializeToString())


def name_sizes(model: Any, graph: Graph) -> None:
    """Name the free sizes of inputs and outputs, which torch has numbered."""
    names: dict[str, str] = {}
    for graph_input in model.graph.inputs:
        for axis, size in graph.free[graph_input.name].items():
            names[graph_input.shape[axis].value] = size
    for value in (*model.graph.inputs, *model.graph.outputs):
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                value.shape[axis] = re.sub(r"\w+", lambda match: names.get(match[0], match[0]), size.value)


def spell_out_booleans(model: Any) -> None:
    """Replace Where on booleans by And, Or and Not, since onnxruntime has Where for numbers only."""
    ir = import_library("onnx_ir", EXTRA)
    for node in list(model.graph):
        if node.op_type != "Where" or node.outputs[0].dtype != ir.DataType.BOOL:
            continue
        condition, if_true, if_false = node.inputs
        first, left = ir.node("And", [condition, if_true]), ir.node("Not", [condition])
        second = ir.node("And", [left.outputs[0], if_false])
        result = ir.node("Or", [first.outputs[0], second.outputs[0]])
        new = [first, left, second, result]
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], new, node.outputs, result.outputs)


@contextmanager
def quiet() -> Generator[None]:
    """Silence torch's warnings of its own code, and the graphs that it prints for errors."""
    disabled_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)


REASONS = (
    (r"No ONNX function found for <OpOverload\(op='\w+\.(\w+)", "ONNX has nothing for PyTorch's operator {0}"),
    (r"specialized it to be a constant", "its computation is tied to the sizes of one call"),
    (r"Guard failed", "its graph serves calls of some sizes and fails at others"),
    (r"Could not guard on data-dependent expression", "its computation goes by the numbers of one call"),
    (r"Could not extract specialized integer", "its computation goes by the numbers of one call"),
    (r"NOT_IMPLEMENTED .* for (\w+)\(", "onnxruntime has no {0} in its dtype; export model.float(), or to .pt2"),
    (r"## Exception summary\s+<class '[\w.]+'>: (.+)", "{0}"),
)
"""Pattern of torch's message -> its meaning."""


def reason_of(error: BaseException) -> str:
    """Return why torch could not export a graph, in one sentence."""
    message = str(error)
    for pattern, meaning in REASONS:
        if match := re.search(pattern, message):
            return meaning.format(*match.groups())
    return shorten(one_line(message.partition("\n")[0]), 300)
