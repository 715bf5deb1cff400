"""Register posenc's schedules in transformers, under names of their own."""

from dataclasses import dataclass
from functools import partial

from posenc.checkpoints.kinds.rotary.keys import OWN_PREFIX
from posenc.checkpoints.live.rope_types import NO_ROTATION, from_schedule, without_turns
from posenc.schedules import SCHEDULES
from posenc.specs.plugins import plugins_for


@dataclass
class Registration:
    """The names that a call of `register` added to transformers. As a context manager it removes them at the end.

    rope_types  names for `rope_type`
    """

    rope_types: tuple[str, ...]

    def undo(self) -> None:
        """Remove the names of this registration; a config that uses one can no longer build a model."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        for name in self.rope_types:
            ROPE_INIT_FUNCTIONS.pop(name, None)
        self.rope_types = ()

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def register() -> Registration:
    """Register posenc's schedules, so that the config of a transformers model can select one.

    rope_parameters = {"rope_type": "posenc:yarn", "factor": 4.0, "trained_length": 4096, "rope_theta": 10_000.0}
        A schedule, with its options as keys: the model's own rotary module uses its frequencies. The default of
        `trained_length` is `max_position_embeddings`. One that depends on the horizon needs "horizon" (tokens).
    rope_parameters = {"rope_type": "posenc:none", "rope_theta": 10_000.0}
        The model rotates nothing.

    Other encodings go into a live model with `posenc.checkpoints.attach(model, spec)`.

    The names begin with "posenc:" and replace none of transformers, so other models do not change. A second call adds
    nothing; each Registration removes the names that it added itself.

    Limit: a config that names posenc needs this call before its model is built.

    Raises ImportError where transformers is not installed.
    Source: transformers 5, "Utilities for Rotary Embedding", 2026.

    >>> with register() as names:
    ...     "posenc:yarn" in names.rope_types
    True
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    schedules = [*SCHEDULES, *plugins_for(SCHEDULES.home)]
    functions = {
        **{f"{OWN_PREFIX}{name}": partial(from_schedule, name) for name in schedules},
        NO_ROTATION: without_turns,
    }
    new = {name: function for name, function in functions.items() if name not in ROPE_INIT_FUNCTIONS}
    ROPE_INIT_FUNCTIONS.update(new)
    return Registration(tuple(new))
