"""What a model with a learned table can still do with longer inputs, measured in the way that is true to its kind."""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.extension import perplexity
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import matches, read, read_json, reading_with, regular

EXCERPT = 32
"""Tokens of an excerpt that a passage is looked for with."""

EXCERPTS = 4
"""Excerpts of each passage."""

EVERY, FOLDS = 7, (0, 3)
"""Every seventh token is masked at once, near the 15 % of training, beginning with these: two sevenths are measured."""

BATCH = 8
"""Passages that go through the model at once."""

Numbers = dict[str, float]
Files = Sequence[str | Path]

WHOLE = "whole"
"""How a model is measured unless a baseline is: it is given the whole input."""


@dataclass(frozen=True)
class Measure:
    """One number of a model: its name, what it says, and whether more of it is better."""

    name: str
    words: str
    more_is_better: bool


class Causal:
    """Language models: the perplexity of a text."""

    unit: ClassVar[str] = "tokens"
    measures: ClassVar = (
        Measure("last", f"perplexity of the last {perplexity.LAST} tokens", False),
        Measure("mean", "perplexity of all tokens", False),
    )
    baselines: ClassVar = {"windows": "each token predicted from at most the trained length before it"}

    def __init__(self, loaded: Loaded, text: Files, samples: int, trained: int, longest: int) -> None:
        self.text = perplexity.tokens(text, loaded.tokenizer)
        self.name, self.sha256 = self.text.name, self.text.sha256
        self.trained = trained
        self.windows = [self.text.window(sample * longest, longest) for sample in range(samples)]

    def __call__(self, model: Any, length: int, how: str = WHOLE) -> Numbers:
        window = length if how == WHOLE else self.trained
        losses = [self.losses(model, ids[:length], window) for ids in self.windows]
        found = perplexity.measures(losses, length)
        return {"last": found.last, "mean": found.mean}

    def losses(self, model: Any, ids: Tensor, window: int) -> Tensor:
        """-ln p of each token but the first; past the window, from windows that begin half a window later."""
        found = [perplexity.losses(model, ids[:window], chunk=window)]
        half = max(1, window // 2)
        for end in range(window + half, len(ids) + half, half):
            end = min(end, len(ids))
            new = end - 1 - sum(map(len, found))
            found.append(perplexity.losses(model, ids[max(0, end - window) : end], chunk=window)[-new:])
        return torch.cat(found)


class Masked:
    """Masked language models: what they say in the place of a token that is masked.

    A document is as many lines of the text as fill the length.
    """

    unit: ClassVar[str] = "tokens"
    measures: ClassVar = (
        Measure("perplexity", "pseudo-perplexity of masked tokens", False),
        Measure("accuracy", "share of masked tokens said right", True),
    )
    baselines: ClassVar = {"windows": "the document in pieces of the trained length, each by itself"}

    def __init__(self, loaded: Loaded, text: Files, samples: int, trained: int, longest: int) -> None:
        self.tokenizer: Any = loaded.tokenizer
        if self.tokenizer.mask_token_id is None:
            raise CannotRead(f"the tokenizer of {loaded.path} has no mask token, and the model is to fill masks")
        self.name, content = perplexity.read(text)
        self.sha256 = hashlib.sha256(content.encode()).hexdigest()
        self.lines = [line.strip() for line in content.splitlines() if line.strip()]
        self.samples, self.trained = samples, trained
        # A text that is too short for the longest documents is an error before anything is measured.
        self.documents(longest)

    def documents(self, length: int) -> list[list[int]]:
        """The tokens of documents that, with the special ones around them, fill a length."""
        room = length - len(self.special([]))
        return [self.document(sample * len(self.lines) // self.samples, room) for sample in range(self.samples)]

    def document(self, first: int, room: int) -> list[int]:
        found: list[int] = []
        for count in range(1, len(self.lines) + 1):
            lines = [self.lines[(first + n) % len(self.lines)] for n in range(count)]
            found = self.tokenizer("\n".join(lines), add_special_tokens=False, verbose=False)["input_ids"]
            if len(found) >= room:
                return found[:room]
        raise ValueError(f"{self.name} has {len(found):,} tokens, and a document takes {room:,}; give a longer --text")

    def special(self, ids: list[int]) -> list[int]:
        """The tokens between the special ones that the model's texts begin and end with."""
        opening, closing = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [*([opening] if opening is not None else []), *ids, *([closing] if closing is not None else [])]

    @torch.inference_mode()
    def __call__(self, model: Any, length: int, how: str = WHOLE) -> Numbers:
        right = count = 0
        loss = 0.0
        room = (length if how == WHOLE else self.trained) - len(self.special([]))
        for document in self.documents(length):
            for start in range(0, len(document), room):
                ids = torch.tensor(self.special(document[start : start + room]))
                inner = torch.arange(len(ids) - len(self.special([]))) + (self.tokenizer.cls_token_id is not None)
                for fold in FOLDS:
                    masked = inner[inner % EVERY == fold]
                    if not len(masked):
                        continue
                    given = ids.clone()
                    given[masked] = self.tokenizer.mask_token_id
                    logits = model(input_ids=given[None]).logits[0, masked].float()
                    loss += float(F.cross_entropy(logits, ids[masked], reduction="sum"))
                    right += int((logits.argmax(-1) == ids[masked]).sum())
                    count += len(masked)
        return {"perplexity": math.exp(min(loss / count, 700)), "accuracy": right / count}


class Sentences:
    """Sentence encoders: whether an excerpt finds the passage that it comes from, by the cosine of their vectors.

    Excerpts come from beyond the trained length where a passage goes so far, else from its second half: what a
    truncated passage does not hold cannot be found in it.
    """

    unit: ClassVar[str] = "tokens"
    measures: ClassVar = (
        Measure("top1", "share of excerpts that find their passage", True),
        Measure("rank", "mean of 1 / rank of the own passage", True),
    )
    baselines: ClassVar = {
        "truncate": "passages cut at the trained length, as libraries do",
        "windows": "the mean of the vectors of pieces of the trained length",
    }

    def __init__(self, loaded: Loaded, text: Files, samples: int, trained: int, longest: int) -> None:
        self.tokenizer: Any = loaded.tokenizer
        self.first_token = pools_first_token(loaded.path)
        self.text = perplexity.tokens(text, loaded.tokenizer)
        self.name, self.sha256 = self.text.name, self.text.sha256
        self.trained = trained
        need = samples * (longest - 2)
        if need > len(self.text.ids):
            raise ValueError(
                f"{self.name} has {len(self.text.ids):,} tokens, and {samples} passages of {longest - 2:,} take "
                f"{need:,}; give a longer --text, or fewer --samples"
            )
        self.passages = self.text.ids[:need].view(samples, longest - 2)

    def __call__(self, model: Any, length: int, how: str = WHOLE) -> Numbers:
        # A [CLS] stands before every text and a [SEP] behind it.
        room, window = length - 2, (length if how == WHOLE else self.trained) - 2
        first = self.trained - 2 if length > self.trained else room // 2
        random, size = torch.Generator().manual_seed(length), min(EXCERPT, room - first)
        starts = torch.randint(first, room - size + 1, (len(self.passages), EXCERPTS), generator=random)
        excerpts = torch.stack([p[s : s + size] for p, of in zip(self.passages, starts, strict=True) for s in of])
        passages = self.passages[:, :room]
        if how == "truncate":
            passages = passages[:, :window]
        pieces = [self.vectors(model, piece) for piece in passages.split(window, dim=1)]
        whole = F.normalize(torch.stack(pieces).mean(0), dim=-1)
        nearness = self.vectors(model, excerpts) @ whole.T  # [excerpts, passages]
        own = torch.arange(len(whole)).repeat_interleave(EXCERPTS)
        # Of passages that are equally near, the excerpt's own comes last.
        rank = (nearness >= nearness.gather(1, own[:, None])).sum(1)
        return {"top1": float((rank == 1).float().mean()), "rank": float((1 / rank).mean())}

    @torch.inference_mode()
    def vectors(self, model: Any, ids: Tensor) -> Tensor:
        """The unit vectors [N, dim] of texts [N, T]."""
        found = []
        for batch in ids.split(BATCH):
            opening = torch.full((len(batch), 1), self.tokenizer.cls_token_id)
            closing = torch.full((len(batch), 1), self.tokenizer.sep_token_id)
            states = model(input_ids=torch.cat((opening, batch, closing), 1)).last_hidden_state.float()
            found.append(states[:, 0] if self.first_token else states.mean(1))
        return F.normalize(torch.cat(found), dim=-1)


def pools_first_token(path: Path) -> bool:
    """Whether a sentence encoder takes the vector of the first token; without a word of it, the mean of all."""
    file = path / "1_Pooling" / "config.json"
    return os.path.lexists(file) and bool(read_json(file, within=path).get("pooling_mode_cls_token"))


LARGEST_IMAGE = 256 << 20
"""The bytes of an image file."""


class Images:
    """Image encoders: how near the vectors of an image stay to those at the trained grid.

    An image is scaled to so many patches a side that the grid is filled. Its patches are compared with those of the
    same image at the trained grid, both averaged over the cells of the coarser one.
    """

    unit: ClassVar[str] = "patches a side"
    measures: ClassVar = (
        Measure("patches", "cosine of patch vectors with those at the trained grid", True),
        Measure("class", "cosine of the class token's vector with that at the trained grid", True),
    )
    baselines: ClassVar = {}

    def __init__(self, loaded: Loaded, images: Files, samples: int, trained: int, longest: int) -> None:
        if not images:
            raise ValueError("an image encoder is measured on images; give --images FILES")
        self.patch, self.trained = int(loaded.config.patch_size), trained
        self.mean, self.spread = colours(loaded.path)
        self.pictures = [square(Path(image)) for image in images]
        self.name = ", ".join(Path(image).name for image in images)
        bytes_of_all = b"".join(read(image, most=LARGEST_IMAGE) for image in images)
        self.sha256 = hashlib.sha256(bytes_of_all).hexdigest()
        self.reference = [self.vectors(loaded.model, picture, trained) for picture in self.pictures]

    def __call__(self, model: Any, length: int, how: str = WHOLE) -> Numbers:
        patches, classes = [], []
        for picture, (token, cells) in zip(self.pictures, self.reference, strict=True):
            own_token, own_cells = self.vectors(model, picture, length)
            coarse = min(length, self.trained)
            a, b = (F.adaptive_avg_pool2d(grid, coarse) for grid in (cells, own_cells))
            patches.append(F.cosine_similarity(a, b, dim=0).mean())
            classes.append(F.cosine_similarity(token, own_token, dim=0))
        return {"patches": float(torch.stack(patches).mean()), "class": float(torch.stack(classes).mean())}

    @torch.inference_mode()
    def vectors(self, model: Any, picture: Any, side: int) -> tuple[Tensor, Tensor]:
        """The vectors of the class token [dim] and of the patches [dim, side, side] of one image."""
        import numpy

        pixels = torch.from_numpy(numpy.array(picture.resize((side * self.patch,) * 2, 3))).permute(2, 0, 1) / 255
        pixels = (pixels - self.mean) / self.spread
        states = model.base_model(pixel_values=pixels[None].to(model.dtype)).last_hidden_state[0].float()
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
