"""Sentence encoders: whether an excerpt finds the passage that it comes from."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.checkpoints.formats.devices import first_of
from posenc.checkpoints.measures.measure import WHOLE, Detail, Given, Number, Tell, Value, mean_of, tokenizer_of
from posenc.checkpoints.measures.work import Work
from posenc.foreign import read_json

EXCERPT = 32
"""Tokens of an excerpt that a passage is looked for with."""

EXCERPTS = 4
"""Excerpts of each passage."""

BATCH = 8
"""Passages that go through the model at once."""

PASSAGES = 24
"""How many passages are measured where nobody says how many."""


class Sentences:
    """Sentence encoders: whether an excerpt finds the passage that it comes from, by the cosine of their vectors.

    Excerpts come from beyond the trained length where a passage goes so far, else from its second half: what a
    truncated passage does not hold cannot be found in it.
    """

    name: ClassVar = "sentences"
    unit: ClassVar = "tokens"
    price: ClassVar = "top1"
    needs: ClassVar = None
    baselines: ClassVar = {
        "truncate": "passages cut at the trained length, as libraries do",
        "windows": "the mean of the vectors of pieces of the trained length",
    }
    options: ClassVar = frozenset({"text", "samples"})

    def __init__(self, given: Given) -> None:
        """Raises CannotRead without a tokenizer, ValueError where the text has less than the passages take."""
        self.tokenizer, self.text = tokenizer_of(given.loaded), given.tokens
        self.first_token = pools_first_token(given.loaded.path)
        self.trained, samples, longest = given.trained, given.samples or PASSAGES, given.longest
        need = samples * (longest - 2)
        if need > len(self.text.ids):
            raise ValueError(
                f"{self.text.name} has {len(self.text.ids):,} tokens, and {samples} passages of {longest - 2:,} take "
                f"{need:,}; give a longer --text, or fewer --samples"
            )
        self.passages = self.text.ids[:need].view(samples, longest - 2)
        guessed = sum(1 / rank for rank in range(1, samples + 1)) / samples
        self.numbers = (
            Number("top1", "share of excerpts that find their passage", True, chance=1 / samples),
            Number("rank", "mean of 1 / rank of the own passage", True, chance=guessed),
        )
        self.on = f"{samples} passages of {self.text.name}, SHA-256 {self.text.sha256}, {EXCERPTS} excerpts of each"
        self.facts = {"text": self.text.sha256, "samples": samples, "longest": longest}

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        return len(self.passages) * (Work.of(model).total(length) + EXCERPTS * EXCERPT)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
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
        return {"ranks": rank.view(-1, EXCERPTS).tolist(), "read": len(self.passages) * length}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        # Excerpts of one passage are no samples of their own.
        ranks = torch.tensor(raw[length]["ranks"], dtype=torch.float64)
        return {"top1": mean_of((ranks == 1).double().mean(1).tolist()), "rank": mean_of((1 / ranks).mean(1).tolist())}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()

    @torch.inference_mode()
    def vectors(self, model: Any, ids: Tensor) -> Tensor:
        """The unit vectors [N, dim] of texts [N, T]."""
        found = []
        for batch in ids.split(BATCH):
            opening = torch.full((len(batch), 1), self.tokenizer.cls_token_id)
            closing = torch.full((len(batch), 1), self.tokenizer.sep_token_id)
            ids = torch.cat((opening, batch, closing), 1).to(first_of(model))
            states = model(input_ids=ids).last_hidden_state.float()
            found.append((states[:, 0] if self.first_token else states.mean(1)).cpu())
        return F.normalize(torch.cat(found), dim=-1)


def pools_first_token(path: Path) -> bool:
    """Whether a sentence encoder takes the vector of the first token; without a word of it, the mean of all."""
    file = path / "1_Pooling" / "config.json"
    return os.path.lexists(file) and bool(read_json(file, within=path).get("pooling_mode_cls_token"))
