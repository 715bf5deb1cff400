"""The worked example: token ids -> token vectors + position vectors = combined vectors, number by number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from posenc.catalogue import build
from posenc.embedding import TokenPositionEmbedding
from posenc.encoding import Compose, Shape, parts_of
from posenc.positions import Positions


@dataclass(frozen=True)
class WorkedExample:
    """One sequence on its way through a token and position embedding; each vector is a list of `dim` numbers."""

    encoding: str
    tokens: list[str]
    ids: list[int]
    token_vectors: list[list[float]]
    position_vectors: list[list[float]]
    combined: list[list[float]]

    def table(self, digits: int = 3) -> tuple[list[str], list[list[str]]]:
        """Headers and rows, a row for each token, as text."""
        headers = ["position", "token", "id", "token vector", "+ position vector", "= combined vector"]

        def vector(numbers: list[float]) -> str:
            return " ".join(f"{number:+.{digits}f}" for number in numbers)

        vectors = zip(self.tokens, self.ids, self.token_vectors, self.position_vectors, self.combined, strict=True)
        rows = [[str(p), word, str(i), vector(t), vector(e), vector(c)] for p, (word, i, t, e, c) in enumerate(vectors)]
        return headers, rows


@torch.inference_mode()
def worked_example(
    tokens: Sequence[str] = ("the", "dog", "bit", "the", "man"),
    dim: int = 4,
    encoding: str = "sinusoidal",
    seed: int = 0,
) -> WorkedExample:
    """Embed a few words at a small width. The same word has the same token vector; its position tells the two apart.

    Raises ValueError for an empty sequence, a width below 1, and encodings that add nothing to embeddings.
    """
    if not tokens:
        raise ValueError("a worked example needs at least one token")
    if dim < 1:
        raise ValueError(f"dim must be 1 or more, got {dim}")
    vocabulary = list(dict.fromkeys(tokens))
    ids = [vocabulary.index(token) for token in tokens]
    torch.manual_seed(seed)
    built = build(encoding, Shape(dim, 1, dim, len(tokens)))
    adding = [part for part in parts_of(built) if "embed" in part.doors]
    if not adding:
        raise ValueError(
            f"{built} adds nothing to embeddings; a worked example needs one that does, such as sinusoidal or learned"
        )
    # What the other parts of a sum do happens later, in attention.
    position = Compose(*adding)
    embedding = TokenPositionEmbedding(len(vocabulary), dim, position)
    vectors = embedding.token_vectors(torch.tensor([ids]))
    combined = position.embed(vectors, Positions.count(len(tokens)))
    return WorkedExample(
        str(built), list(tokens), ids, vectors[0].tolist(), (combined - vectors)[0].tolist(), combined[0].tolist()
    )
