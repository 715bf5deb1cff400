"""Compare an exported file with its model, at other lengths than it was traced with."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from posenc.export.files import EXTRA, file_format
from posenc.export.graphs import BATCH, PAST, Graph, example_positions
from posenc.lab.results.frames import import_library

SHAPES = ((1, 2), (7, 1), (7, 3), (64, 2), (200, 1))
"""The lengths (tokens) and batches (rows) to compare at, as far as the model takes them."""

STEPS = 3
"""The number of last tokens to compute one by one, with a cache."""

TOLERANCE = 1e-4
"""The largest difference of logits, as a share of the largest one, or of 1 if that is smaller."""

Run = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""A file as a function: from named tensors to named tensors."""


def largest_difference(graph: Graph, run: Run, vocab: int) -> tuple[float, list[int]]:
    """Return the largest difference of the file's logits from the model's, and the lengths where it was measured.

    It is a share of the largest logit, or of 1 if that is smaller; infinite for nan.
    Raises the model's own ValueError if it takes no length at all.
    """
    generator, largest, lengths = torch.Generator().manual_seed(0), 0.0, []
    for tokens, rows in SHAPES:
        ids = torch.randint(vocab, (rows, tokens), generator=generator)
        source = [torch.randint(vocab, (rows, 9), generator=generator)] if graph.kind == "translation" else []
        positions = example_positions(rows, tokens, graph.axes)
        try:
            with torch.no_grad():
                expected = graph.answer(ids, positions, *source)
        except ValueError:
            if not lengths:
                raise
            break
        for logits in file_logits(run, graph, ids, positions, *source):
            share = (logits - expected).abs().max() / expected.abs().max().clamp(min=1)
            largest = max(largest, float(share.nan_to_num(torch.inf)))
        lengths += [tokens] * (tokens not in lengths)
    return largest, lengths


def tolerance_for(module: nn.Module) -> float:
    """Return the tolerance for the logits of a model: 1e-4, or eight eps of weights in half precision."""
    return max([TOLERANCE, *(8 * torch.finfo(x.dtype).eps for x in module.parameters() if x.is_floating_point())])


def load_run(file: Path, graph: Graph) -> Run:
    """Load an exported file as a function. Raises what its runtime raises."""
    if file_format(file) == ".pt2":
        module = torch.export.load(file).module()

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            with torch.no_grad():
                outputs = module(*(inputs[name] for name in graph.inputs))
            return dict(zip(graph.outputs, outputs if isinstance(outputs, tuple) else [outputs], strict=True))

        return run
    runtime = import_library("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run_onnx(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = session.run([*graph.outputs], {name: inputs[name].contiguous().numpy() for name in graph.inputs})
        return dict(zip(graph.outputs, map(torch.from_numpy, outputs), strict=True))

    return run_onnx


def file_logits(run: Run, graph: Graph, ids: Tensor, positions: Tensor, source: Tensor | None = None) -> list[Tensor]:
    """Return the file's logits of whole sequences. A decoder's are also computed with the last tokens one by one."""
    tokens = ids.shape[1]
    constants = {"horizon": torch.full(ids.shape[:1], tokens)} if "horizon" in graph.inputs else {}
    if source is not None:
        constants |= {"source": source, "source_positions": example_positions(*source.shape, 1)}
    if graph.kind != "decoder":
        return [run({"ids": ids, "positions": positions, **constants})["logits"]]
    logits = []
    for ends in ([tokens], [max(1, tokens - STEPS), *range(max(1, tokens - STEPS) + 1, tokens + 1)]):
        past, start, pieces = empty_past(graph, ids.shape[0]), 0, []
        for end in ends:
            rows = slice(start, end)
            step = run({"ids": ids[:, rows], "positions": positions[:, rows], **constants, **past})
            past = {name.replace("present", "past", 1): x for name, x in step.items() if name.startswith("present")}
            pieces.append(step["logits"])
            start = end
        logits.append(torch.cat(pieces, 1))
    return logits


def empty_past(graph: Graph, rows: int) -> dict[str, Tensor]:
    """Return an empty cache for a number of rows: the inputs `past...` with no tokens."""
    sizes, past = {BATCH: rows, PAST: 0}, {}
    for name, free in graph.free.items():
        if PAST in free.values():
            shape = [sizes.get(free.get(axis, ""), size) for axis, size in enumerate(graph.inputs[name].shape)]
            past[name] = graph.inputs[name].new_empty(shape)
    return past
