"""The worked example: token ids -> token vectors + position vectors = combined vectors, number by number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from posenc import checks
from posenc.catalogue import build
from posenc.encoding.base import Compose, Shape, parts_of
from posenc.foreign import quote
from posenc.model.embedding import TokenPositionEmbedding
from posenc.model.seeding import local_seed
from posenc.tokens.positions import Positions


@dataclass(frozen=True)
class WorkedExample:
    """One sequence in a token and position embedding; each vector is a list of `dim` numbers."""

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
    dim: int | None = None,
    encoding: str = "sinusoidal",
    seed: int = 0,
    *,
    ids: Sequence[int] = (),
    vectors: Sequence[Sequence[float]] = (),
) -> WorkedExample:
    """Embed a few words at a small width. A repeated word has one token vector; only position tells the two apart.

    dim      width (channels): that of `vectors`, else 4
    ids      the id of each word; default: the words are numbered in order
    vectors  the token vectors, one for each id from 0 on; default: random
    seed     of random token vectors, and of a learned encoding

    Raises ValueError for an empty sequence, a width below 1, ids and vectors that do not fit the words or each other,
    and encodings that add nothing to embeddings.
    """
    ids = ids_of(tokens, ids)
    dim = width_of(vectors, dim)
    with local_seed(seed):
        whole = build(encoding, Shape(dim, 1, dim, len(tokens)))
        input_parts = [part for part in parts_of(whole) if "embed" in part.doors]
        if not input_parts:
            raise ValueError(
                f"{whole} adds nothing to embeddings; a worked example needs one that does, such as sinusoidal or "
                "learned"
            )
        # The other parts of a sum act later, in attention.
        position = Compose(*input_parts)
        if vectors:
            if max(ids) >= len(vectors):
                raise ValueError(
                    f"id {max(ids)} has no vector: {len(vectors)} are given, for ids 0 to {len(vectors) - 1}"
                )
            x = torch.tensor([[list(vectors[i]) for i in ids]], dtype=torch.float32)
        else:
            # One row for each different id, because an id may be as large as those of real vocabularies.
            distinct_ids = list(dict.fromkeys(ids))
            embedding = TokenPositionEmbedding(len(distinct_ids), dim, position)
            x = embedding.token_vectors(torch.tensor([[distinct_ids.index(i) for i in ids]]))
    combined = position.embed(x, Positions.count(len(tokens)))
    return WorkedExample(str(whole), list(tokens), ids, x[0].tolist(), (combined - x)[0].tolist(), combined[0].tolist())


def ids_of(tokens: Sequence[str], ids: Sequence[int]) -> list[int]:
    """The id of each word."""
    if not tokens:
        raise ValueError("a worked example needs at least one token")
    if not ids:
        vocabulary = list(dict.fromkeys(tokens))
        return [vocabulary.index(token) for token in tokens]
    if len(ids) != len(tokens):
        raise ValueError(f"each word has one id; there are {len(tokens)} words and {len(ids)} ids")
    id_of: dict[str, int] = {}
    for token, i in zip(tokens, ids, strict=True):
        if checks.whole("an id", i, 0) != id_of.setdefault(token, i):
            raise ValueError(f"a word has one id, and {quote(token)} has {id_of[token]} and {i}")
    return list(ids)


def width_of(vectors: Sequence[Sequence[float]], dim: int | None) -> int:
    """The width of an example."""
    if not vectors:
        checks.sizes(dim=dim)
        return 4 if dim is None else dim
    widths = {len(vector) for vector in vectors}
    if len(widths) > 1 or 0 in widths:
        raise ValueError(
            f"vectors must all have one width, of 1 or more; they have {', '.join(map(str, sorted(widths)))}"
        )
    (width,) = widths
    if dim not in (None, width):
        raise ValueError(f"dim={dim} and vectors of {width} numbers are given; leave dim out")
    return width
