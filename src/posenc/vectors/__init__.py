"""Test vectors: what encodings make of given tensors, as files for authors of ports."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posenc
from posenc.catalogue import Spec, build
from posenc.encoding.base import Encoding, Shape, parts_of, spec_options
from posenc.encoding.biases import BIASES
from posenc.standalone.self_tests import positions_on_axes, samples
from posenc.tokens import masks
from posenc.tokens.positions import Positions
from posenc.vectors import vector_reader

SHAPE = Shape(dim=32, heads=4, head_dim=16, max_len=512)
TOKENS = 6
PACKED = (2, 1, 3)  # tokens of each document
SHIFT = 3  # positions by which cached keys move

FAMILIES = {
    "rotary-half": "rotary", "rotary-interleaved": "rotary(layout='interleaved')",
    "rotary-swapped": "rotary(layout='swapped')", "rotary-partial": "rotary(partial=0.5)",
    "rotary-linear": "rotary(schedule=linear(factor=4))", "rotary-ntk": "rotary(schedule=ntk(factor=4))",
    "rotary-dynamic-ntk": "rotary(schedule=dynamic_ntk(factor=2))", "rotary-yarn": "rotary(schedule=yarn(factor=4))",
    "rotary-llama3": "rotary(base=500_000, schedule=llama3(factor=8))", "proportional-rotary": "proportional_rotary",
    "xpos": "xpos", "axial-rotary": "axial_rotary(split=(8, 8))",
    "multimodal-rotary": "multimodal_rotary(sections=(2, 3, 3))",
    "alibi": "alibi", "t5-bias": "t5_bias", "kerple": "kerple", "sandwich": "sandwich", "sinusoidal": "sinusoidal",
    "learned": "learned", "log-temperature": "log_temperature",
}  # fmt: skip
"""The encodings that `posenc vectors all` writes, by the names of their files."""


@dataclass
class EncodingVectors:
    """What one encoding makes of given tensors: a description, and arrays by their names in the file."""

    description: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def put(self, name: str, tensor: Tensor) -> None:
        whole = not tensor.is_floating_point()
        self.arrays[name] = tensor.detach().numpy().astype(np.int64 if whole else np.float32)


@torch.no_grad()
def vectors(spec: Spec, shape: Shape = SHAPE) -> EncodingVectors:
    """Return what an encoding makes of given queries, keys and embeddings, at many positions.

    The inputs and the learned weights are sines of their index, so a port makes them itself or reads them. Each output
    is computed in float64 and rounded to float32. The cases: `counted` (0, 1, 2, ...), `ends` (0 and L - 1), `beyond`
    (L, L + 1 and 4 L), `spaced` (biases only: distances of 9 to 120), `packed`, `padded` on the left, `decoded` (the
    last query alone, with all keys) and `moved` (keys of `counted` at other positions); L is the trained length. A case
    that the encoding refuses stands in `left_out` with the reason. Frequencies that depend on the length of a sequence
    are those of 4 L + 1 tokens, the `horizon` of the description.

    Raises ValueError as `posenc.build` does, and for an encoding with a rule of attention or a memory of its own.

    >>> sorted(vectors("alibi").description["cases"])
    ['beyond', 'counted', 'decoded', 'ends', 'packed', 'padded', 'spaced']
    """
    encoding = build(spec, shape).double()
    for part in parts_of(encoding):
        if doors := {"attend", "remember"} & part.doors:
            raise ValueError(f"{part} opens the door {min(doors)}; there are vectors of what embeds, turns or biases")
    result = EncodingVectors(description_of(encoding, shape))
    for name, weight in encoding.named_parameters():
        weight.copy_(0.3 * samples(*weight.shape))
        result.put(f"weight/{name}", weight)
    inputs = inputs_of(encoding, shape)
    for name, tensor in inputs.items():
        result.put(name, tensor)
    for case, at, keys_at in position_cases(encoding, shape.max_len):
        try:
            outputs = outputs_of(encoding, case, at, keys_at, inputs)
        except (ValueError, NotImplementedError) as error:
            result.description["left_out"][case] = str(error)
            continue
        if outputs:
            result.description["cases"].append(case)
            for name, places in (("q", at), ("k", keys_at)):
                outputs[f"{name}_positions"] = places.coords[..., 0] if encoding.axes == 1 else places.coords
            outputs["mask"] = masks.causal().allowed(at, keys_at)[:, 0]
            for name, tensor in outputs.items():
                result.put(f"{name}/{case}", tensor)
    return result


def description_of(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """Return what the JSON file says of an encoding."""
    description: dict[str, Any] = {
        "posenc": posenc.__version__,
        "encoding": encoding.spec_name or "+",
        "spec": str(encoding),
        "options": [plain_options(part) for part in parts_of(encoding)],
        "shape": vars(shape),
        "source": [part.source for part in parts_of(encoding)],
    }
    if encoding.spec_name == "rotary":
        horizon = horizon_of(shape.max_len) if encoding.turns_when_attending else None
        horizons = None if horizon is None else torch.tensor([float(horizon)])
        frequencies, temperature = encoding.spectrum(horizons)  # ty: ignore[not-callable]
        description |= {"frequencies": frequencies.flatten().tolist(), "temperature": float(temperature)}
        description |= {"horizon": horizon, "layout": encoding.layout}
    return description | {"cases": [], "left_out": {}}


def plain_options(part: Encoding) -> dict[str, Any]:
    """Return the options of an encoding with their values, as JSON has them: schedules as specs."""
    plain = (str, int, float, list, tuple, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in spec_options(part).items()}


def horizon_of(length: int) -> int:
    """Return the number of tokens up to the last position of `beyond`, 4 L."""
    return 4 * length + 1


def inputs_of(encoding: Encoding, shape: Shape) -> dict[str, Tensor]:
    """Return the embeddings, or the queries and keys."""
    if "embed" in encoding.doors:
        return {"x": samples(2, TOKENS, shape.dim)}
    q = samples(2, shape.heads, TOKENS, shape.head_dim)
    return {"q": q, "k": q.flip(-1)}


def position_cases(encoding: Encoding, length: int) -> Iterator[tuple[str, Positions, Positions]]:
    """Yield each case with the positions of queries and keys."""
    ids = {"counted": torch.arange(TOKENS), "ends": torch.tensor([0, length - 1] * (TOKENS // 2))}
    ids["beyond"] = torch.tensor([length, length + 1, 4 * length] * (TOKENS // 3))
    if encoding.doors & BIASES:  # the logarithmic buckets of T5 lie between a distance of 16 and one of 128
        ids["spaced"] = torch.tensor([0, 9, 20, 40, 80, 120])
    places = {name: Positions.of(positions_on_axes(line, encoding.axes or 3)[None]) for name, line in ids.items()}
    if encoding.axes == 1:
        mask = torch.ones(2, TOKENS)
        mask[0, :2] = 0
        places |= {"packed": Positions.packed(PACKED), "padded": Positions.padded(mask)}
    if encoding.turns_when_attending:
        places = {name: at.with_horizon(horizon_of(length)) for name, at in places.items()}
    yield from ((name, at, at) for name, at in places.items())
    first_tokens = places["counted"]
    yield "decoded", first_tokens.rows(slice(-1, None)), first_tokens
    yield "moved", first_tokens, first_tokens.with_coords(first_tokens.coords + SHIFT)


def outputs_of(
    encoding: Encoding, case: str, at: Positions, keys_at: Positions, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the outputs of a case by their names."""
    if "x" in inputs:
        x = inputs["x"][:, -at.tokens :]
        return {} if case == "moved" else {"x": encoding(x, positions=at)}
    outputs, q, k = {}, inputs["q"][:, :, -at.tokens :], inputs["k"]
    if "turn" in encoding.doors:
        q = encoding.query(q, at)
        if encoding.turns != "queries":
            k = encoding.key(k, keys_at if case != "moved" else at)
            if case == "moved":
                return {"k": encoding.moved(k, at, keys_at)} if encoding.moves == "exact" else {}
            outputs["k"] = k
        outputs["q"] = q
    if encoding.doors & BIASES:
        outputs["bias"] = encoding.bias(at, keys_at, q=q, k=k)
    return {} if case == "moved" else outputs


def write(vectors_by_name: Iterable[tuple[str, EncodingVectors]], folder: Path) -> list[Path]:
    """Write the two files of each encoding, and the reader; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "vector_reader.py"]
    shutil.copyfile(str(vector_reader.__file__), paths[0])
    for name, result in vectors_by_name:
        paths += [folder / f"{name}.json", folder / f"{name}.npz"]
        paths[-2].write_text(json.dumps(result.description, indent=1) + "\n", encoding="utf-8")
        np.savez_compressed(paths[-1], **result.arrays)  # ty: ignore[invalid-argument-type]
    return paths
