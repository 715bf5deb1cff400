"""Exported files, run: ONNX by onnxruntime, .pt2 by torch alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc import checks
from posenc.export.files import ABOUT, EXTRA, form_of
from posenc.export.graphs import positions_in_a_row
from posenc.foreign import CannotRead
from posenc.lab.results.frames import needed
from posenc.positions import Positions


class Exported:
    """An exported model, to be run: tensors by their names in, tensors by their names out.

    path   a file that `posenc.export.export` has written

    about             what the file says of itself: encoding, sizes, task, versions
    inputs, outputs   the names of its tensors

    Raises CannotRead for a file of somebody else's, ModuleNotFoundError where onnxruntime is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        read = read_onnx if form_of(self.path) == ".onnx" else read_pt2
        self.graph, self.about, self.shapes = read(self.path)
        if not {"inputs", "outputs", "kind"} <= self.about.keys():
            raise CannotRead("it does not say what it is; give a file that posenc export has written", file=self.path)
        self.inputs: list[str] = json.loads(self.about["inputs"])
        self.outputs: list[str] = json.loads(self.about["outputs"])

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by their names. Raises ValueError where an input is missing, or is none of the file's."""
        if given.keys() != set(self.inputs):
            raise ValueError(f"expected the inputs {', '.join(self.inputs)}, got {', '.join(given)}")
        with torch.no_grad():
            return dict(zip(self.outputs, self.graph([given[name] for name in self.inputs]), strict=True))

    @property
    def axes(self) -> int:
        """How many coordinates a position has."""
        return int(self.about["axes"])

    def nothing(self, batch: int) -> dict[str, Tensor]:
        """What a decoder remembers before its first token: the inputs `past...`, of no tokens."""
        coords = positions_in_a_row(batch, 0, 0, self.axes)
        past = {name: shape for name, shape in self.shapes.items() if name.startswith("past.")}
        empty = {name: torch.zeros(batch, *shape[1:2], 0, *shape[3:]) for name, shape in past.items()}
        return {"past_positions": coords, **empty}

    def remembered(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs `present...` of a step as the inputs `past...` of the next one."""
        return {name.replace("present", "past", 1): x for name, x in found.items() if name.startswith("present")}

    def logits(
        self,
        ids: Tensor,
        past: Mapping[str, Tensor] | None = None,
        *,
        positions: Tensor | None = None,
        horizon: int | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [B, T, vocab] of a decoder's ids [B, T], and what it remembers then, for the next call's `past`.

        past       what it remembers; None: nothing yet
        positions  [B, T] or [B, T, A], below 0 for padding; None: each row goes on behind its last token
        horizon    how long the sequences will be, for encodings that depend on that

        Raises ValueError for a file without a cache, where a horizon is needed, or none is, and where positions on
        several axes are left out.
        """
        if self.about["kind"] != "decoder":
            raise ValueError(f"'{self.path.name}' holds no decoder with a cache; call it with its inputs by name")
        if (horizon is None) == ("horizon" in self.inputs):
            which = "needs a horizon, and got none" if horizon is None else f"has no horizon, and got {horizon}"
            raise ValueError(f"the encoding of '{self.path.name}' {which}; its inputs are in .inputs")
        batch, tokens = ids.shape
        past = self.nothing(batch) if past is None else dict(past)
        if positions is None:
            positions = following(past["past_positions"], tokens)
        declared = {} if horizon is None else {"horizon": torch.full((batch,), horizon)}
        found = self({"ids": ids, "positions": positions, **declared, **past})
        return found["logits"], self.remembered(found)

    def generate(self, ids: Tensor, tokens: int, padding: Tensor | None = None) -> Tensor:
        """ids [B, T] with `tokens` more, the likeliest one at each step, through the cache: as Decoder.generate.

        padding  [B, T], true where a token is; pad prompts of different length on the left
        """
        checks.whole("tokens to generate", tokens, 1)
        horizon = ids.shape[1] + tokens if "horizon" in self.inputs else None
        positions = None if padding is None else Positions.padded(padding).order
        logits, past = self.logits(ids, positions=positions, horizon=horizon)
        found = [ids, logits[:, -1:].argmax(-1)]
        for _ in range(tokens - 1):
            logits, past = self.logits(found[-1], past, horizon=horizon)
            found.append(logits[:, -1:].argmax(-1))
        return torch.cat(found, 1)


def following(past: Tensor, tokens: int) -> Tensor:
    """The positions [B, T] of tokens behind those at past [B, P]. Raises ValueError on several axes."""
    if past.dim() == 3:
        raise ValueError(
            f"tokens on {past.shape[2]} axes do not count up by one; give positions [B, T, {past.shape[2]}]"
        )
    last = torch.nn.functional.pad(past, (1, 0), value=-1).amax(1, keepdim=True)
    return last + torch.arange(1, tokens + 1)


def read_onnx(path: Path) -> tuple[Any, dict[str, str], dict[str, list[Any]]]:
    runtime = needed("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CannotRead(
            f"onnxruntime does not take it: {str(error).splitlines()[0].replace(str(path), path.name)}", file=path
        ) from None
    names = [value.name for value in session.get_inputs()]

    def run(given: list[Tensor]) -> list[Tensor]:
        found = session.run(None, {name: x.contiguous().numpy() for name, x in zip(names, given, strict=True)})
        return [torch.from_numpy(x) for x in found]

    shapes = {value.name: list(value.shape) for value in session.get_inputs()}
    return run, dict(session.get_modelmeta().custom_metadata_map), shapes


def read_pt2(path: Path) -> tuple[Any, dict[str, str], dict[str, list[Any]]]:
    files = {ABOUT: ""}
    program = torch.export.load(path, extra_files=files)
    about = json.loads(files[ABOUT] or "{}")
    module = program.module()
    shapes = {}
    for name, spec in zip(json.loads(about.get("inputs", "[]")), program.graph_signature.user_inputs, strict=False):
        node = next(node for node in program.graph.nodes if node.name == spec)
        shapes[name] = list(node.meta["val"].shape)

    def run(given: list[Tensor]) -> list[Tensor]:
        found = module(*given)
        return list(found) if isinstance(found, tuple) else [found]

    return run, about, shapes
