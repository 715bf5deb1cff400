"""Perplexity of a short text whose parts stand far apart: the distances of a long text at the price of a short one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.checkpoints.formats.devices import first_of
from posenc.checkpoints.measures.measure import WHOLE, Tell
from posenc.checkpoints.measures.perplexity import of_rows
from posenc.checkpoints.measures.same_tokens import SameTokens, part_of
from posenc.checkpoints.measures.work import Work


@dataclass(frozen=True, eq=False)
class SpreadOut(SameTokens):
    """Perplexity of the last part of a short text, whose parts of equal length stand evenly over a long one.

    position of token t: t + gap floor(t / last),   gap = (length - parts last) / (parts - 1), rounded down

    parts  how many, each of `last` tokens; texts lie behind one another from `start` on

    What a token needs of the text right before its part is found far away, so the loss tells at once where a model does
    not read far keys. It does not tell how attention bears with many keys: a text as long as its positions does.
    Source: Zhu et al. 2024, arXiv:2309.10400, which trains on texts with such gaps.
    """

    parts: int = 2
    name: ClassVar = "spread-out"

    @property
    def tokens(self) -> int:
        return self.parts * self.last

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "parts": self.parts}

    def work(self, model: Any, length: int) -> float:
        return self.texts * Work.of(model).total(self.tokens)

    def window(self, number: int, length: int) -> Tensor:
        return self.text.window(self.start + number * self.tokens, self.tokens)

    def positions(self, length: int) -> Tensor:
        """Where the tokens stand in a text of a length: [tokens].

        >>> SpreadOut(None, 8, last=2).positions(8)
        tensor([0, 1, 6, 7])
        """
        at = torch.arange(self.tokens)
        return at + (length - self.tokens) // (self.parts - 1) * (at // self.last)

    @torch.inference_mode()
    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """The losses of the last part of each text."""
        found = []
        for number in range(self.texts):
            ids, at = (one[None].to(first_of(model)) for one in (self.window(number, length), self.positions(length)))
            # Without a mask, transformers takes a gap between positions for the border of two documents.
            out = model(input_ids=ids, position_ids=at, attention_mask=torch.ones_like(ids), use_cache=False)
            rows = of_rows(out.logits[0, -self.last - 1 : -1], ids[0, -self.last :].to(out.logits.device))
            found.append([round(loss, 5) for loss in rows.tolist()])
            if (said := part_of(tell, number, self.texts)) is not None:
                said(1.0)
        return {"losses": found, "read": self.texts * self.tokens}
