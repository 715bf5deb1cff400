"""Masked language models: what they say in the place of a token that is masked."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from posenc.checkpoints.formats.devices import first_of
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.measure import WHOLE, Given, Measure, Number, Tell, Value, mean_of, tokenizer_of
from posenc.checkpoints.vocabulary.reading import CannotRead

EVERY, FOLDS = 7, (0, 3)
"""Every seventh token is masked at once, near the 15 % of training, beginning with these: two sevenths are measured."""

DOCUMENTS = 24
"""How many documents are measured where nobody says how many."""


class Masked(Measure):
    """Masked language models: what they say in the place of a token that is masked.

    A document is as many lines of the text as fill the length.
    """

    name = "masked"
    numbers = (
        Number("perplexity", "pseudo-perplexity of masked tokens", False),
        Number("accuracy", "share of masked tokens said right", True),
    )
    price = "perplexity"
    baselines: ClassVar = {"windows": "the document in pieces of the trained length, each by itself"}
    options = frozenset({"text", "samples"})

    def __init__(self, given: Given) -> None:
        """Raises CannotRead without a tokenizer that masks, ValueError where the text fills no document."""
        self.tokenizer = tokenizer_of(given.loaded)
        if self.tokenizer.mask_token_id is None:
            raise CannotRead(f"the tokenizer of {given.loaded.path} has no mask token, and the model is to fill masks")
        self.title, content = perplexity.read(given.text)
        self.lines = [line.strip() for line in content.splitlines() if line.strip()]
        self.samples, self.trained = given.samples or DOCUMENTS, given.trained
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        self.on = f"{self.samples} documents from {self.title}, SHA-256 {sha256}"
        self.facts = {"text": sha256, "samples": self.samples}
        # A text that is too short for the longest documents is an error before anything is measured.
        self.documents(given.longest)

    def work(self, length: int) -> float:
        return self.samples * len(FOLDS) * length

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
        raise ValueError(f"{self.title} has {len(found):,} tokens, and a document takes {room:,}; give a longer --text")

    def special(self, ids: list[int]) -> list[int]:
        """The tokens between the special ones that the model's texts begin and end with."""
        opening, closing = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [*([opening] if opening is not None else []), *ids, *([closing] if closing is not None else [])]

    @torch.inference_mode()
    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        room = (length if how == WHOLE else self.trained) - len(self.special([]))
        found = []
        for place, document in enumerate(self.documents(length)):
            parts = [self.said(model, document[start : start + room]) for start in range(0, len(document), room)]
            found.append({key: sum(part[key] for part in parts) for key in ("loss", "right", "count")})
            if tell is not None:
                tell((place + 1) / self.samples)
        return {"documents": found, "read": self.samples * len(FOLDS) * length}

    def said(self, model: Any, piece: list[int]) -> dict[str, float]:
        """The loss (nats) of all masked tokens of a piece, how many are said right, and of how many."""
        ids = torch.tensor(self.special(piece))
        inner = torch.arange(len(piece)) + (self.tokenizer.cls_token_id is not None)
        loss, right, count = 0.0, 0, 0
        for fold in FOLDS:
            masked = inner[inner % EVERY == fold]
            if not len(masked):
                continue
            given = ids.clone()
            given[masked] = self.tokenizer.mask_token_id
            out = model(input_ids=given[None].to(first_of(model)))
            logits = out.logits[0, masked.to(out.logits.device)].float().cpu()
            loss += float(F.cross_entropy(logits, ids[masked], reduction="sum"))
            right += int((logits.argmax(-1) == ids[masked]).sum())
            count += len(masked)
        return {"loss": loss, "right": right, "count": count}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        # Documents of one length have as many masks, so that the mean over them is the mean over all masks.
        of = [document for document in raw[length]["documents"] if document["count"]]
        losses = mean_of([document["loss"] / document["count"] for document in of])
        value = math.exp(min(losses.value, 700))
        error = None if losses.error is None else value * losses.error
        right = mean_of([document["right"] / document["count"] for document in of])
        return {"perplexity": Value(value, error, losses.each), "accuracy": right}
