"""Make posenc's schedules and encodings known to transformers, under names of their own, and take them out again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posenc.catalogue import ENCODINGS, parse
from posenc.checkpoints.kinds.rotary.keys import OURS
from posenc.checkpoints.live.named_attention import ATTENTION, NONE, NamedAttention, placed_mask
from posenc.checkpoints.live.rope_types import FromSchedule, WithoutTurns
from posenc.plugins import plugins_for
from posenc.schedules import SCHEDULES


@dataclass
class Registration:
    """What one `register` made known to transformers, until `undo`; as a context manager it is undone at the end.

    rope_types  names for `rope_type`
    attentions  names for `attn_implementation`
    """

    rope_types: tuple[str, ...]
    attentions: tuple[str, ...]

    def undo(self) -> None:
        """Take out again what this registration put in. Models that name it cannot attend, or be built, any more."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        for name in self.rope_types:
            ROPE_INIT_FUNCTIONS.pop(name, None)
        for name in self.attentions:
            # transformers has a door to put in, and none to take out.
            AttentionInterface._global_mapping.pop(name, None)
            AttentionMaskInterface._global_mapping.pop(name, None)
        self.rope_types = self.attentions = ()

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def register(*specs: str) -> Registration:
    """Let configs of transformers name posenc's schedules and encodings, so that a config alone selects them.

    rope_parameters = {"rope_type": "posenc:yarn", "factor": 4.0, "trained_length": 4096, "rope_theta": 10_000.0}
        A schedule, with its options as keys: the model's own rotary module turns by its frequencies. `trained_length`
        is `max_position_embeddings` where it is left out. One that depends on the horizon needs "horizon" (tokens).
    rope_parameters = {"rope_type": "posenc:attention", "encoding": "alibi"}
        Any encoding that has no parameters, and adds nothing to embeddings: the model turns nothing, keys are cached
        unturned, and posenc's kernels compute attention. Checked when the model is built, saved with the config.
    attn_implementation = "posenc:alibi"
        The same for models without rotary, or beside the rotary that they have; "rope_type": "posenc:none" turns it
        off. transformers does not save it with a config.

    specs  what `attn_implementation` may name besides every encoding by its name alone: "posenc:" and such a spec

    Under names of its own nothing of transformers' is replaced: models that name none of these compute what they did.
    What is known already stays, so a second call is harmless; each Registration undoes what it added itself.

    Where it goes wrong: a config that names posenc needs this call before it is loaded. Where tokens stand is counted
    from the padding mask; position ids that say otherwise are refused once there is a cache. Not under torch.compile.

    Raises ValueError for a spec that cannot be read; ImportError where transformers is not installed.
    Source: transformers 5, "Utilities for Rotary Embedding" and "Attention Interface", 2026.

    >>> with register("rerope(rotary(base=500), window=64)") as names:
    ...     "posenc:yarn" in names.rope_types, "posenc:alibi" in names.attentions
    (True, True)
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for spec in specs:
        parse(spec)
    schedules = [*SCHEDULES, *plugins_for(SCHEDULES.home)]
    rope_types: dict[str, Callable[..., Any]] = {f"{OURS}{name}": FromSchedule(name) for name in schedules}
    rope_types |= {NONE: WithoutTurns(NONE), ATTENTION: WithoutTurns(ATTENTION, "encoding")}
    encodings = [*ENCODINGS, *plugins_for(ENCODINGS.home), *specs]
    attentions = {f"{OURS}{spec}": NamedAttention(spec) for spec in encodings} | {ATTENTION: NamedAttention(None)}
    new = Registration(
        tuple(name for name in rope_types if name not in ROPE_INIT_FUNCTIONS),
        tuple(name for name in attentions if name not in AttentionInterface._global_mapping),
    )
    for name in new.rope_types:
        ROPE_INIT_FUNCTIONS[name] = rope_types[name]
    for name in new.attentions:
        AttentionInterface.register(name, attentions[name])
        AttentionMaskInterface.register(name, placed_mask)
    return new
