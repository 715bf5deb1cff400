"""Checks of a learner's `PositionalEncoding` that adds to embeddings, for any constructor and call."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

MAX_LEN, TOKENS, WIDTH = 50, 6, 16
WHERE = ("offset", "start", "start_pos", "positions", "position_ids", "pos")
"""Usual names of the argument for the first token's position (a number), or for the position ids."""


def build_module(source: Callable[..., Any], width: int = WIDTH) -> tuple[nn.Module, bool]:
    """Build a class by the names of its arguments. Return it in evaluation mode, and whether it takes ids."""
    sizes = {"vocab": 11, "max": MAX_LEN, "len": MAX_LEN, "context": MAX_LEN, "pos": MAX_LEN, "drop": 0.0}
    sizes |= dict.fromkeys(("dim", "model", "emb", "size"), width)
    result: dict[str, Any] = {}
    for name, parameter in inspect.signature(source).parameters.items():
        value = next((value for part, value in sizes.items() if part in name.lower()), None)
        if value is not None and (parameter.default is parameter.empty or name.lower().startswith(("max", "drop"))):
            result[name] = value
        elif parameter.default is parameter.empty and parameter.kind < 2:
            raise AssertionError(
                f"it needs {name}; build it of d_model and max_len, or of vocab_size, context_len and a dim"
            )
    module = source(**result)
    assert isinstance(module, nn.Module), f"it makes a {type(module).__name__}, and no torch.nn.Module"
    return module.eval(), any("vocab" in name.lower() for name in result)


def place_options(parameters: Collection[str], first: int, end: int) -> dict[str, Any]:
    """Return the argument for positions `first` to `end` - 1 by its name; empty without one."""
    name = next((name for name in WHERE if name in parameters), None)
    return {} if name is None else {name: first if WHERE.index(name) < 3 else torch.arange(first, end)}


def position_vectors(module: nn.Module, takes_ids: bool) -> Tensor:
    """Return the vectors [TOKENS, WIDTH] that the module adds; for ids, relative to position 0.

    Raises AssertionError if they depend on the batch, the tokens or the call, or if decoding with a cache would fail.
    """
    parameters = inspect.signature(module.forward).parameters

    def vectors(token: int, rows: int = 3, first: int = 0) -> Tensor:
        x = (
            torch.full((rows, TOKENS - first), token)
            if takes_ids
            else torch.full((rows, TOKENS - first, WIDTH), token / 1)
        )
        result = module(x, **place_options(parameters, first, TOKENS))
        shape = (rows, TOKENS - first, WIDTH)
        assert torch.is_tensor(result), f"it gives a {type(result).__name__}, and no tensor"
        assert result.shape == shape, f"of {list(x.shape)} it gives {list(result.shape)}; is the batch axis numbered?"
        return result

    try:
        sums = vectors(0)
    except RuntimeError as error:
        raise AssertionError(
            f"of 3 rows of {TOKENS} tokens: {str(error).splitlines()[0]}; is the batch axis numbered?"
        ) from None
    assert torch.equal(vectors(0), sums), "called twice, it adds other vectors: make them once, in __init__"
    for rows in (sums, vectors(0, TOKENS)):
        alike = torch.allclose(rows, rows[:1].expand_as(rows))
        by_row = not alike and torch.allclose(rows, rows[:, :1].expand_as(rows))
        assert not by_row, "the batch axis is numbered: all tokens of a row get the same vector, and rows differ"
        assert alike, "rows of one batch get different vectors"
    assert not torch.allclose(sums[0, :1].expand_as(sums[0]), sums[0]), "every position gets the same vector"
    # A scaled or embedded token is the same at every position.
    positions = sums[0] - sums[0, :1] if takes_ids else sums[0]
    change = vectors(1)[0] - positions
    assert torch.allclose(change, change[:1].expand_as(change), atol=1e-5), "what it adds depends on the token"
    if place_options(parameters, 3, TOKENS):
        assert torch.allclose(vectors(0, first=3), sums[:, 3:]), "positions are not shifted behind a cache of 3 tokens"
    return positions
