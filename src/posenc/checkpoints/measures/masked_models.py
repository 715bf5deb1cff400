"""Masked language models: pseudo-perplexity and accuracy at masked tokens."""

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from posenc.checkpoints.formats.devices import input_device
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.measure import WHOLE, Inputs, Measure, Number, Progress, Value, mean_of, tokenizer_of
from posenc.checkpoints.vocabulary.reading import CannotRead

if TYPE_CHECKING:
    from transformers import PreTrainedModel as Model

MASK_STEP, MASK_OFFSETS = 7, (0, 3)
"""Every seventh token is masked at once, near the 15 % of training, from these offsets: two sevenths are measured."""

DEFAULT_DOCUMENTS = 24
"""The default number of documents."""


class MaskedTokens(Measure):
    """Masked language models: pseudo-perplexity and accuracy, in documents of as many lines as fill the length."""

    name = "masked"
    numbers = (
        Number("perplexity", "pseudo-perplexity of masked tokens", False),
        Number("accuracy", "share of masked tokens said right", True),
    )
    price = "perplexity"
    baselines: ClassVar = {"windows": "the document in pieces of the trained length, each by itself"}
    options = frozenset({"text", "samples"})

    def __init__(self, inputs: Inputs) -> None:
        """Raises CannotRead without a tokenizer that masks, ValueError where the text fills no document."""
        self.tokenizer = tokenizer_of(inputs.checkpoint)
        if self.tokenizer.mask_token_id is None:
            raise CannotRead(f"the tokenizer of {inputs.checkpoint.path} has no mask token, which this measure needs")
        self.title, content = perplexity.read_texts(inputs.text)
        self.lines = [line.strip() for line in content.splitlines() if line.strip()]
        self.samples, self.trained_length = inputs.samples or DEFAULT_DOCUMENTS, inputs.trained_length
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        self.source = f"{self.samples} documents from {self.title}, SHA-256 {sha256}"
        self.facts = {"text": sha256, "samples": self.samples}
        # Raise now for a text that is too short for the longest documents, before anything is measured.
        self.documents(inputs.longest)

    def work(self, length: int) -> float:
        return self.samples * len(MASK_OFFSETS) * length

    def documents(self, length: int) -> list[list[int]]:
        """Return the tokens of documents that, with special tokens around them, fill a length."""
        room = length - len(self.with_special([]))
        return [self.document(sample * len(self.lines) // self.samples, room) for sample in range(self.samples)]

    def document(self, first: int, room: int) -> list[int]:
        ids: list[int] = []
        for count in range(1, len(self.lines) + 1):
            lines = [self.lines[(first + n) % len(self.lines)] for n in range(count)]
            ids = self.tokenizer("\n".join(lines), add_special_tokens=False, verbose=False)["input_ids"]
            if len(ids) >= room:
                return ids[:room]
        raise ValueError(f"{self.title} has {len(ids):,} tokens, and a document takes {room:,}; give a longer --text")

    def with_special(self, ids: list[int]) -> list[int]:
        """Return the tokens between the special tokens that begin and end a text of the model."""
        opening, closing = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [*([opening] if opening is not None else []), *ids, *([closing] if closing is not None else [])]

    @torch.inference_mode()
    def run(self, model: "Model", length: int, how: str = WHOLE, tell: Progress | None = None) -> dict[str, Any]:
        room = (length if how == WHOLE else self.trained_length) - len(self.with_special([]))
        documents = []
        for place, ids in enumerate(self.documents(length)):
            parts = [self.masked_loss(model, ids[start : start + room]) for start in range(0, len(ids), room)]
            documents.append({key: sum(part[key] for part in parts) for key in ("loss", "right", "count")})
            if tell is not None:
                tell((place + 1) / self.samples)
        return {"documents": documents, "read": self.samples * len(MASK_OFFSETS) * length}

    def masked_loss(self, model: "Model", piece: list[int]) -> dict[str, float]:
        """Return a piece's summed loss (nats) of masked tokens, how many are right, and their count."""
        ids = torch.tensor(self.with_special(piece))
        inner = torch.arange(len(piece)) + (self.tokenizer.cls_token_id is not None)
        loss, right, count = 0.0, 0, 0
        for fold in MASK_OFFSETS:
            places = inner[inner % MASK_STEP == fold]
            if not len(places):
                continue
            masked_ids = ids.clone()
            masked_ids[places] = self.tokenizer.mask_token_id
            output = model(input_ids=masked_ids[None].to(input_device(model)))
            logits = output.logits[0, places.to(output.logits.device)].float().cpu()
            loss += float(F.cross_entropy(logits, ids[places], reduction="sum"))
            right += int((logits.argmax(-1) == ids[places]).sum())
            count += len(places)
        return {"loss": loss, "right": right, "count": count}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        # Documents of one length have equally many masks, so the mean over documents is the mean over masks.
        documents = [document for document in raw[length]["documents"] if document["count"]]
        losses = mean_of([document["loss"] / document["count"] for document in documents])
        value = math.exp(min(losses.value, 700))
        error = None if losses.error is None else value * losses.error
        right = mean_of([document["right"] / document["count"] for document in documents])
        return {"perplexity": Value(value, error, losses.each), "accuracy": right}
