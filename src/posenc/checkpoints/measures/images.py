"""Image encoders: how near the vectors of an image stay to those at the trained grid."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.formats.devices import first_of
from posenc.checkpoints.measures.measure import WHOLE, Detail, Given, Number, Tell, Value, mean_of
from posenc.checkpoints.measures.work import Work
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import matches, read, read_json, reading_with, regular

LARGEST_IMAGE = 256 << 20
"""The bytes of an image file."""


class Images:
    """Image encoders: how near the vectors of an image stay to those at the trained grid.

    An image is scaled to so many patches a side that the grid is filled. Its patches are compared with those of the
    same image at the trained grid, both averaged over the cells of the coarser one.
    """

    name: ClassVar = "images"
    unit: ClassVar = "patches a side"
    numbers: ClassVar = (
        Number("patches", "cosine of patch vectors with those at the trained grid", True),
        Number("class", "cosine of the class token's vector with that at the trained grid", True),
    )
    price: ClassVar = "patches"
    needs: ClassVar = None
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar = frozenset({"images"})

    def __init__(self, given: Given) -> None:
        """Raises ValueError without images, CannotRead for what is none and for a model without a word of colours."""
        if not given.images:
            raise ValueError("an image encoder is measured on images; give --images FILES")
        loaded, self.trained = given.loaded, given.trained
        self.patch = int(loaded.config.patch_size)
        self.mean, self.spread = colours(loaded.path)
        self.pictures = [square(Path(image)) for image in given.images]
        bytes_of_all = b"".join(read(image, most=LARGEST_IMAGE) for image in given.images)
        sha256 = hashlib.sha256(bytes_of_all).hexdigest()
        self.on = f"{', '.join(Path(image).name for image in given.images)}, SHA-256 of all {sha256}"
        self.facts = {"images": sha256}
        self.reference = [self.vectors(loaded.model, picture, self.trained) for picture in self.pictures]

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        return len(self.pictures) * Work.of(model).total(length * length)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        patches, classes = [], []
        for picture, (token, cells) in zip(self.pictures, self.reference, strict=True):
            own_token, own_cells = self.vectors(model, picture, length)
            coarse = min(length, self.trained)
            a, b = (F.adaptive_avg_pool2d(grid, coarse) for grid in (cells, own_cells))
            patches.append(float(F.cosine_similarity(a, b, dim=0).mean()))
            classes.append(float(F.cosine_similarity(token, own_token, dim=0)))
        return {"patches": patches, "class": classes, "read": len(self.pictures) * length * length}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        return {number.name: mean_of(raw[length][number.name]) for number in self.numbers}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()

    @torch.inference_mode()
    def vectors(self, model: Any, picture: Any, side: int) -> tuple[Tensor, Tensor]:
        """The vectors of the class token [dim] and of the patches [dim, side, side] of one image."""
        import numpy

        pixels = torch.from_numpy(numpy.array(picture.resize((side * self.patch,) * 2, 3))).permute(2, 0, 1) / 255
        pixels = (pixels - self.mean) / self.spread
        given = pixels[None].to(first_of(model), model.dtype)
        states = model.base_model(pixel_values=given).last_hidden_state[0].float().cpu()
        return states[0], states[-side * side :].T.unflatten(1, (side, side))


def colours(path: Path) -> tuple[Tensor, Tensor]:
    """The mean and the spread [3, 1, 1] of colours that a model takes, from its preprocessor_config.json."""
    file = path / "preprocessor_config.json"
    if not os.path.lexists(file):
        raise CannotRead(f"{path} has no preprocessor_config.json, which says how colours are scaled for the model")
    said = read_json(file, within=path)
    matches(said, {"image_mean": [float], "image_std": [float], "*": Any}, file=file)
    if len(said["image_mean"]) != 3 or len(said["image_std"]) != 3:
        raise CannotRead("expected three numbers in image_mean and in image_std", file=file)
    return torch.tensor(said["image_mean"])[:, None, None], torch.tensor(said["image_std"])[:, None, None]


def square(path: Path) -> Any:
    """The middle square of an image file."""
    from PIL import Image

    with reading_with("Pillow", file=path, remedy="give --images PNG or JPEG files"):
        with Image.open(regular(path)) as opened:
            image = opened.convert("RGB")
    side = min(image.size)
    left, top = ((full - side) // 2 for full in image.size)
    return image.crop((left, top, left + side, top + side))
