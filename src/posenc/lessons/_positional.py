"""What every `PositionalEncoding` owes that adds to embeddings, whichever way it is built and called."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

ROOM, TOKENS, WIDTH = 50, 6, 16
WHERE = ("offset", "start", "start_pos", "positions", "position_ids", "pos")
"""What people call the argument that says where the first token stands (a number), or each of them (ids)."""


def module_of(made: Callable[..., Any], width: int = WIDTH) -> tuple[nn.Module, bool]:
    """A module of a class, in evaluation, and whether it takes ids; what arguments mean is read off their names."""
    known = {"vocab": 11, "max": ROOM, "len": ROOM, "context": ROOM, "pos": ROOM, "drop": 0.0}
    known |= dict.fromkeys(("dim", "model", "emb", "size"), width)
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(made).parameters.items():
        value = next((value for part, value in known.items() if part in name.lower()), None)
        if value is not None and (parameter.default is parameter.empty or name.lower().startswith(("max", "drop"))):
            given[name] = value
        elif parameter.default is parameter.empty and parameter.kind < 2:
            raise AssertionError(
                f"it needs {name}; build it of d_model and max_len, or of vocab_size, context_len and a dim"
            )
    module = made(**given)
    assert isinstance(module, nn.Module), f"it makes a {type(module).__name__}, and no torch.nn.Module"
    return module.eval(), any("vocab" in name.lower() for name in given)


def place_options(parameters: Collection[str], first: int, end: int) -> dict[str, Any]:
    """The argument that says that tokens stand from `first` to `end` - 1, by its name; empty where there is none."""
    name = next((name for name in WHERE if name in parameters), None)
    return {} if name is None else {name: first if WHERE.index(name) < 3 else torch.arange(first, end)}


def position_vectors(module: nn.Module, takes_ids: bool) -> Tensor:
    """What is added to each token [TOKENS, WIDTH]; of ids, how much more than at position 0.

    Raises AssertionError where that depends on the batch, on the tokens, or on the call, or a cache would go wrong.
    """
    parameters = inspect.signature(module.forward).parameters

    def vectors(token: int, rows: int = 3, first: int = 0) -> Tensor:
        x = (
            torch.full((rows, TOKENS - first), token)
            if takes_ids
            else torch.full((rows, TOKENS - first, WIDTH), token / 1)
        )
        given = module(x, **place_options(parameters, first, TOKENS))
        shape = (rows, TOKENS - first, WIDTH)
        assert torch.is_tensor(given), f"it gives a {type(given).__name__}, and no tensor"
        assert given.shape == shape, f"of {list(x.shape)} it gives {list(given.shape)}; is the batch axis numbered?"
        return given

    try:
        given = vectors(0)
    except RuntimeError as error:
        raise AssertionError(
            f"of 3 rows of {TOKENS} tokens: {str(error).splitlines()[0]}; is the batch axis numbered?"
        ) from None
    assert torch.equal(vectors(0), given), "called twice, it adds other vectors: make them once, in __init__"
    for rows in (given, vectors(0, TOKENS)):
        alike = torch.allclose(rows, rows[:1].expand_as(rows))
        by_row = not alike and torch.allclose(rows, rows[:, :1].expand_as(rows))
        assert not by_row, "the batch axis is numbered: all tokens of a row get the same vector, and rows differ"
        assert alike, "rows of one batch get different vectors"
    assert not torch.allclose(given[0, :1].expand_as(given[0]), given[0]), "every position gets the same vector"
    # A token that is scaled, or looked up, is the same at every position.
    positions = given[0] - given[0, :1] if takes_ids else given[0]
    more = vectors(1)[0] - positions
    assert torch.allclose(more, more[:1].expand_as(more), atol=1e-5), "what it adds depends on the token"
    if place_options(parameters, 3, TOKENS):
        assert torch.allclose(vectors(0, first=3), given[:, 3:]), "positions are not shifted behind a cache of 3 tokens"
    return positions
