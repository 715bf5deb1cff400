"""Make posenc's schedules known to transformers, under names of their own, and take them out again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from posenc.checkpoints.kinds.rotary.keys import OURS
from posenc.checkpoints.live.rope_types import NONE, from_schedule, without_turns
from posenc.schedules import SCHEDULES
from posenc.specs.plugins import plugins_for


@dataclass
class Registration:
    """What one `register` made known to transformers, until `undo`; as a context manager it is undone at the end.

    rope_types  names for `rope_type`
    """

    rope_types: tuple[str, ...]

    def undo(self) -> None:
        """Take out again what this registration put in. Models that name it cannot be built any more."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        for name in self.rope_types:
            ROPE_INIT_FUNCTIONS.pop(name, None)
        self.rope_types = ()

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def register() -> Registration:
    """Let configs of transformers name posenc's schedules, so that a config alone selects them.

    rope_parameters = {"rope_type": "posenc:yarn", "factor": 4.0, "trained_length": 4096, "rope_theta": 10_000.0}
        A schedule, with its options as keys: the model's own rotary module turns by its frequencies. `trained_length`
        is `max_position_embeddings` where it is left out. One that depends on the horizon needs "horizon" (tokens).
    rope_parameters = {"rope_type": "posenc:none", "rope_theta": 10_000.0}
        The model turns nothing.

    Other encodings go into a live model with `posenc.checkpoints.attach(model, spec)`.

    Under names of its own nothing of transformers' is replaced: models that name none of these compute what they did.
    What is known already stays, so a second call is harmless; each Registration undoes what it added itself.

    Where it goes wrong: a config that names posenc needs this call before its model is built.

    Raises ImportError where transformers is not installed.
    Source: transformers 5, "Utilities for Rotary Embedding", 2026.

    >>> with register() as names:
    ...     "posenc:yarn" in names.rope_types
    True
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    schedules = [*SCHEDULES, *plugins_for(SCHEDULES.home)]
    rope_types: dict[str, Callable[..., Any]] = {f"{OURS}{name}": partial(from_schedule, name) for name in schedules}
    rope_types[NONE] = without_turns
    new = {name: function for name, function in rope_types.items() if name not in ROPE_INIT_FUNCTIONS}
    ROPE_INIT_FUNCTIONS.update(new)
    return Registration(tuple(new))
