"""Image encoders: how near the vectors of an image stay to those at the trained grid, and which label it gets."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.formats.devices import first_of
from posenc.checkpoints.measures.measure import WHOLE, Detail, Given, Number, Tell, Value, mean_of, share_of
from posenc.checkpoints.measures.work import Work
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import matches, quoted, read, read_json, reading_with, regular

LARGEST_IMAGE = 256 << 20
"""The bytes of an image file."""


class Images:
    """Image encoders: how near the vectors of an image stay to those at the trained grid, and which label it gets.

    An image is scaled to so many patches a side that the grid is filled. Its patches are compared with those of the
    same image at the trained grid, both averaged over the cells of the coarser one. A model that names labels is asked
    for the likeliest one: whether it is the one that it named at the trained grid, and, where images lie in folders
    that are named after labels, whether it is that one. Then this decides.
    """

    name: ClassVar = "images"
    unit: ClassVar = "patches a side"
    needs: ClassVar = None
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar = frozenset({"images"})

    def __init__(self, given: Given) -> None:
        """Raises ValueError without images, and where only some have a label; CannotRead for a model without a word of
        colours."""
        if not given.images:
            raise ValueError("an image encoder is measured on images; give --images FILES")
        loaded, self.trained = given.loaded, given.trained
        self.patch = int(loaded.config.patch_size)
        self.mean, self.spread = colours(loaded.path)
        self.pictures = [square(Path(image)) for image in given.images]
        bytes_of_all = b"".join(read(image, most=LARGEST_IMAGE) for image in given.images)
        sha256 = hashlib.sha256(bytes_of_all).hexdigest()
        self.names_labels = names_labels(loaded.model)
        self.labels = labels_of(loaded.config, given.images) if self.names_labels else []
        named = "; their folders are labels" if self.labels else ""
        self.on = f"{', '.join(Path(image).name for image in given.images)}, SHA-256 of all {sha256}{named}"
        self.facts = {"images": sha256, **({"labels": self.labels} if self.names_labels else {})}
        self.reference = [self.seen(loaded.model, picture, self.trained) for picture in self.pictures]
        by_chance = 1 / max(1, len(loaded.config.id2label or ()))
        numbers = [
            Number("patches", "cosine of patch vectors with those at the trained grid", True),
            Number("class", "cosine of the class token's vector with that at the trained grid", True),
        ]
        if self.names_labels:
            numbers.append(Number("same", "share of images named as at the trained grid", True, by_chance))
        if self.labels:
            numbers.insert(0, Number("right", "share of images that are named as their folder", True, by_chance))
        self.numbers = tuple(numbers)
        self.price = self.numbers[0].name

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        return len(self.pictures) * Work.of(model).total(length * length)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {"patches": [], "class": [], "labels": []}
        for picture, (token, cells, _) in zip(self.pictures, self.reference, strict=True):
            own_token, own_cells, label = self.seen(model, picture, length)
            coarse = min(length, self.trained)
            a, b = (F.adaptive_avg_pool2d(grid, coarse) for grid in (cells, own_cells))
            found["patches"].append(float(F.cosine_similarity(a, b, dim=0).mean()))
            found["class"].append(float(F.cosine_similarity(token, own_token, dim=0)))
            found["labels"].append(label)
        return found | {"read": len(self.pictures) * length * length}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        of = raw[length]
        found = {name: mean_of(of[name]) for name in ("patches", "class")}
        expected = {"right": self.labels, "same": [label for *_, label in self.reference]}
        for name in (number.name for number in self.numbers if number.name in expected):
            found[name] = share_of([float(a == b) for a, b in zip(of["labels"], expected[name], strict=True)])
        return found

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()

    @torch.inference_mode()
    def seen(self, model: Any, picture: Any, side: int) -> tuple[Tensor, Tensor, int | None]:
        """The vectors of the class token [dim] and of the patches [dim, side, side] of one image, and its label."""
        import numpy

        pixels = torch.from_numpy(numpy.array(picture.resize((side * self.patch,) * 2, 3))).permute(2, 0, 1) / 255
        pixels = (pixels - self.mean) / self.spread
        given = pixels[None].to(first_of(model), model.dtype)
        within: list[Any] = []
        hook = model.base_model.register_forward_hook(lambda module, args, out: within.append(out))
        try:
            out = (model if self.names_labels else model.base_model)(pixel_values=given)
        finally:
            hook.remove()
        states = within[0].last_hidden_state[0].float().cpu()
        label = int(out.logits[0].argmax()) if self.names_labels else None
        return states[0], states[-side * side :].T.unflatten(1, (side, side)), label


def names_labels(model: Any) -> bool:
    """Whether a model is one of transformers' classes that give an image a label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    names = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.values()
    return any(type(model).__name__ in ((name,) if isinstance(name, str) else name) for name in names)


def labels_of(config: Any, images: Sequence[str]) -> list[int]:
    """The labels of images, by the names or numbers of their folders; none where no folder is named after one.

    Raises ValueError where only some are.
    """
    numbers = {str(name).casefold(): number for number, name in config.id2label.items()}
    numbers |= {str(number): number for number in config.id2label}
    found = [numbers.get(Path(image).resolve().parent.name.casefold()) for image in images]
    labels = [label for label in found if label is not None]
    if labels and len(labels) < len(found):
        other = images[found.index(None)]
        raise ValueError(
            f"{len(labels)} of {len(found)} images lie in folders that are named after one of the model's "
            f"{len(config.id2label)} labels, and {quoted(other)} does not; put all of them into such folders, or none"
        )
    return labels


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
