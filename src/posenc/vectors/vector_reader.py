"""Read test vectors of positional encodings with NumPy alone, and replay rotary: python vector_reader.py FOLDER.

NAME.json says what the encoding is: its options and, for rotary, the frequencies (radians per position) of all pairs,
the temperature of cosines and sines, and the horizon, the length in tokens that they were taken for, if it matters.
NAME.npz holds its numbers (float32, computed in float64). Of each case:

q, k, x            the inputs: queries and keys [batch, heads, tokens, head_dim], embeddings [batch, tokens, dim]
q_positions/CASE   [batch, tokens] or [batch, tokens, axes], of queries; of the last ones if they are fewer
k_positions/CASE   of keys
mask/CASE          1 where a query may see a key, with causal attention [batch, queries, keys]
q/CASE, k/CASE     queries and keys, rotated
bias/CASE          what is added to the scaled logits [batch, heads, queries, keys]; -inf where the mask of packed and
                   padded rows is 0
x/CASE             embeddings with their positions added
weight/NAME        learned parameters

A batch of 1 holds for every row. The mask goes by the order of tokens, so in ends and beyond it allows keys at later
positions: compare a bias where the mask is 1 and the key's position is not above the query's. A constant added to all
biases of a query changes nothing. The first two tokens of the first padded row are padding: do not compare them. In
packed rows each document counts from 0. decoded is the last query alone, at its own position. k/moved is what k/counted
becomes when its keys move to k_positions/moved; k rotated there is the same.
"""

import json
import sys
from pathlib import Path

import numpy as np


def read(folder: Path, name: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the description and the arrays of an encoding."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), dict(arrays)


def rotate(x: np.ndarray, positions: np.ndarray, description: dict) -> np.ndarray:
    """Return heads [batch, heads, tokens, head_dim], with each pair of channels rotated by position * frequency."""
    angles = positions[:, None, :, None].astype(np.float64) * np.array(description["frequencies"])
    cos, sin = (description["temperature"] * wave for wave in (np.cos(angles), np.sin(angles)))
    first, second = pair_channels(2 * angles.shape[-1], description["layout"])
    out = x.astype(np.float64)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def pair_channels(width: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second channel of each pair."""
    if layout == "interleaved":
        return np.arange(0, width, 2), np.arange(1, width, 2)
    first, second = np.arange(width // 2), np.arange(width // 2, width)
    return (second, first) if layout == "swapped" else (first, second)


def main(folder: Path) -> int:
    worst = 0.0
    for path in sorted(folder.glob("*.json")):
        description, arrays = read(folder, path.stem)
        print(f"{path.stem}: {description['spec']}; {', '.join(description['cases'])}")
        if description["encoding"] != "rotary" or "frequencies" not in description:
            continue
        for case in description["cases"]:
            for name in ("q", "k"):
                if f"{name}/{case}" in arrays:
                    positions = arrays[f"{name}_positions/{case}"]
                    output = rotate(arrays[name][:, :, -positions.shape[1] :], positions, description)
                    worst = max(worst, float(np.abs(output - arrays[f"{name}/{case}"]).max()))
    print(f"rotary replayed: the largest difference is {worst:.1e}")
    return int(worst > 1e-5)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
