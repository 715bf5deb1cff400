"""What transformers serves for a config, held to what is planned: every layer and all of its pairs, with its numbers.

Before anything expensive is done the config that will be written is held, and afterwards the folder that was.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.config_json import MARK, inner, types_of
from posenc.checkpoints.formats.load import quietly
from posenc.checkpoints.inspection.inspect import inspect
from posenc.checkpoints.models.found import Found, found, temperature_of
from posenc.checkpoints.models.skeleton import skeleton
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.checkpoints.vocabulary.specs import encodings_of, short
from posenc.foreign import read_json

NEAR = 1e-5
"""By how much (relative) a frequency or a temperature may differ: transformers takes them in float32."""


def check_written(folder: Path, planned: Reading) -> None:
    """Hold a written folder to what was planned, as `inspect` reads it and as transformers' AutoConfig does.

    Raises RuntimeError, with what differs.
    """
    unlike = [f"planned and served: {sentence}" for sentence in differences(planned, inspect(folder))]
    config = read_json(folder / "config.json", within=folder)
    if MARK not in config and huggingface.filled(config) is not None:
        from transformers import AutoConfig

        with quietly():
            theirs = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        unlike += unlike_planned(theirs, planned)
    if unlike:
        sentences = "; ".join(dict.fromkeys(unlike))
        raise RuntimeError(f"what was written says something else than planned: {sentences}")


@torch.no_grad()
def unlike_planned(config: Any, planned: Reading) -> list[str]:
    """Where the model that transformers makes of a config differs from a plan, in sentences; none where it does not.

    config  a dictionary as in config.json, or a configuration of transformers

    Held to each other are what the config is read as (encodings, windows, scales of the logits, sizes, lengths), and
    the numbers in the rotary modules themselves: the frequencies of all pairs of every layer and their temperature, at
    every length that changes them. An architecture that transformers does not know is read by its keys alone.
    """
    unlike: list[str] = []
    try:
        unlike += [f"planned and served: {one}" for one in differences(planned, huggingface.read(config))]
        theirs = huggingface.filled(config) if isinstance(config, Mapping) else copy.deepcopy(config)
        if theirs is None:
            return unlike
        with quietly():
            items = [item for item in found(skeleton(theirs)) if item.kind == "frequencies"]
    except CannotRead as error:
        # What could not be built of the model as it was is held by its keys alone.
        known = any(str(error) in sentence for sentence in planned.not_covered)
        return unlike if known else [f"transformers does not take it: {error}"]
    for part in planned.parts:
        own = inner(theirs, part.name)
        if any(getattr(own, key, None) is not None for key in ("image_size", "patch_size")):
            # What turns image patches holds the frequencies of one of its axes.
            continue
        of_part = [item for item in items if item.config is own or type(item.config) is type(own)] or items
        unlike += [*frequencies_unlike(part, types_of(vars(own), part), of_part)][:1]
    return unlike


def frequencies_unlike(part: Part, types: Sequence[str], items: Sequence[Found]) -> Iterator[str]:
    """The layers whose rotary modules hold other numbers than planned."""
    for index, encodings in enumerate(encodings_of(part)):
        rotary: Any = next((one for one in encodings.values() if hasattr(one, "schedule")), None)
        of_layer = modules_of(items, index, types[index])
        if rotary is None or not of_layer:
            continue
        longest = part.shape.max_len
        for length in (1, longest, 2 * longest) if rotary.turns_when_attending else (None,):
            horizon = None if length is None else torch.tensor([length])
            planned = rotary.spectrum() if horizon is None else rotary.spectrum(horizon)
            served = [numbers_at(item, length) for item in of_layer]
            sentences = [difference(*planned, *one) for one in served]
            if all(sentences):
                at = "" if length is None else f" for {length:,} tokens"
                yield f"layer {index}{at}: {sentences[0]} ({short(part.layers[index].spec)} is planned)"


def modules_of(items: Sequence[Found], index: int, kind: str) -> list[Found]:
    """The frequencies that a layer turns by: its own, else those of its kind of layers, else those of all."""
    own = [item for item in items if re.search(rf"(?:^|\.){index}\.", item.path)]
    shared = [item for item in items if not re.search(r"(?:^|\.)\d+\.", item.path)]
    of_kind = [item for item in shared if item.label == kind or kind in item.path.split(".")]
    return own or of_kind or shared


def numbers_at(item: Found, length: int | None) -> tuple[Tensor, float]:
    """The frequencies and the temperature that a module holds, once it has met a text of some length."""
    if length is not None:
        kind = {"layer_type": item.label} if item.label else {}
        item.owner(torch.zeros(1), torch.tensor([[length - 1]]), **kind)
    frequencies = getattr(item.owner, item.path.rpartition(".")[2])
    return frequencies, temperature_of(item.owner, item.label)


def difference(frequencies: Tensor, temperature: Any, served: Tensor, scaling: float) -> str:
    """In what the numbers of a module differ from those planned, or ""."""
    ours, theirs = (x.double().flatten().sort(descending=True).values for x in (frequencies, served))
    if ours.shape != theirs.shape:
        return f"{len(ours)} pairs are planned, and {len(theirs)} served"
    apart = (ours - theirs).abs() / torch.maximum(ours, theirs).clamp(min=torch.finfo(torch.float32).tiny)
    if apart.max() > NEAR:
        pair = int((apart > NEAR).nonzero()[0])
        return f"pair {pair}: {ours[pair]:.6g} radians per position are planned, and {theirs[pair]:.6g} served"
    warm = float(torch.as_tensor(temperature).flatten()[0])
    if abs(warm - scaling) > NEAR * warm:
        return f"a temperature of {warm:.6g} is planned, and {scaling:.6g} served"
    return ""
