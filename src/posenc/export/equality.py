"""Whether an exported file says what its model says: measured at other lengths than it was written down with."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from posenc.export.files import EXTRA, form_of
from posenc.export.graphs import BATCH, PAST, Graph, cells
from posenc.lab.results.frames import needed

SHAPES = ((1, 2), (7, 1), (7, 3), (64, 2), (200, 1))
"""The lengths (tokens) and batches (rows) that are compared, where the model takes them."""

STEPS = 3
"""How many of the last tokens are asked for one by one, behind a cache."""

TOLERANCE = 1e-4
"""How far logits may differ, as a share of the largest one, or of 1 where that is smaller."""

Run = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""A file as a function: tensors by their names in, tensors by their names out."""


def difference(graph: Graph, run: Run, vocab: int) -> tuple[float, list[int]]:
    """How far the file's logits are from the model's at most, and the lengths at which that was measured.

    As a share of the largest logit, or of 1 where that is smaller; infinite where a number is nan.
    Raises ValueError, the model's own, where it takes no length at all.
    """
    generator, largest, lengths = torch.Generator().manual_seed(0), 0.0, []
    for tokens, rows in SHAPES:
        ids = torch.randint(vocab, (rows, tokens), generator=generator)
        source = [torch.randint(vocab, (rows, 9), generator=generator)] if graph.kind == "translation" else []
        positions = cells(rows, tokens, graph.axes)
        try:
            with torch.no_grad():
                expected = graph.answer(ids, positions, *source)
        except ValueError:
            if not lengths:
                raise
            break
        for logits in answers(run, graph, ids, positions, *source):
            share = (logits - expected).abs().max() / expected.abs().max().clamp(min=1)
            largest = max(largest, float(share.nan_to_num(torch.inf)))
        lengths += [tokens] * (tokens not in lengths)
    return largest, lengths


def allowed(module: nn.Module) -> float:
    """How far the logits of a model may differ: 1e-4, or eight steps of weights in half precision."""
    return max([TOLERANCE, *(8 * torch.finfo(x.dtype).eps for x in module.parameters() if x.is_floating_point())])


def opened(file: Path, graph: Graph) -> Run:
    """A file that was written of a graph, as a function. Raises what the runtime raises that does not take it."""
    if form_of(file) == ".pt2":
        module = torch.export.load(file).module()

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            with torch.no_grad():
                outputs = module(*(inputs[name] for name in graph.inputs))
            return dict(zip(graph.outputs, outputs if isinstance(outputs, tuple) else [outputs], strict=True))

        return run
    runtime = needed("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run_onnx(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = session.run([*graph.outputs], {name: inputs[name].contiguous().numpy() for name in graph.inputs})
        return dict(zip(graph.outputs, map(torch.from_numpy, outputs), strict=True))

    return run_onnx


def answers(run: Run, graph: Graph, ids: Tensor, positions: Tensor, source: Tensor | None = None) -> list[Tensor]:
    """The file's logits of whole sequences: at once, and of a decoder also with its last tokens one by one."""
    tokens = ids.shape[1]
    fixed = {"horizon": torch.full(ids.shape[:1], tokens)} if "horizon" in graph.inputs else {}
    if source is not None:
        fixed |= {"source": source, "source_positions": cells(*source.shape, 1)}
    if graph.kind != "decoder":
        return [run({"ids": ids, "positions": positions, **fixed})["logits"]]
    logits = []
    for ends in ([tokens], [max(1, tokens - STEPS), *range(max(1, tokens - STEPS) + 1, tokens + 1)]):
        past, start, pieces = empty_past(graph, ids.shape[0]), 0, []
        for end in ends:
            rows = slice(start, end)
            step = run({"ids": ids[:, rows], "positions": positions[:, rows], **fixed, **past})
            past = {name.replace("present", "past", 1): x for name, x in step.items() if name.startswith("present")}
            pieces.append(step["logits"])
            start = end
        logits.append(torch.cat(pieces, 1))
    return logits


def empty_past(graph: Graph, rows: int) -> dict[str, Tensor]:
    """What a decoder remembers before the first token of so many rows: the inputs `past...`, of no tokens."""
    sizes, past = {BATCH: rows, PAST: 0}, {}
    for name, free in graph.free.items():
        if PAST in free.values():
            shape = [sizes.get(free.get(axis, ""), size) for axis, size in enumerate(graph.inputs[name].shape)]
            past[name] = graph.inputs[name].new_empty(shape)
    return past
