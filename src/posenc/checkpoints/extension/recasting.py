"""A Llama as a SmolLM3, which is the same model with a word for every layer: whether it turns, and how far it sees."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.load import Loaded, quietly
from posenc.checkpoints.kinds.rotary.old_keys import in_both_spellings

ALIKE = ("llama", "mistral", "smollm3")
"""Architectures whose weights are those of a SmolLM3, name by name."""

PERIOD = 4
"""SWAN has one layer that sees all, then three that see a window."""

WINDOW = 512
"""The window of SWAN (tokens), where the trained length is long enough for it."""


def recast_config(name: str, config: Mapping[str, Any], served: int, target: int) -> dict[str, Any]:
    """The config of a model without rotary in some layers, as SmolLM3 says it, for one that has it in all.

    drope  no layer turns
    swan   every fourth layer, from the first on, sees all tokens and does not turn; the others turn, within a window of
           512 tokens, or of a quarter of the served length where that is less. What does not turn already stays so

    Raises ValueError for an architecture whose weights are not those of a SmolLM3.

    Limits: the sharper attention beyond the trained length that both papers add is in no key of SmolLM3.
    Source: arXiv:2512.12167; arXiv:2504.08719.
    """
    given = huggingface.filled(config)
    kind = config.get("model_type")
    if kind not in ALIKE or given is None or getattr(given, "sliding_window", None) is not None:
        window = " with windows of its own" if kind in ALIKE else ""
        raise ValueError(
            f"{name} takes rotary out of single layers, for which a config needs words: transformers has them for "
            f"SmolLM3, as which a {', a '.join(ALIKE)} can be written, and this is a {kind}{window}"
        )
    from transformers import SmolLM3Config

    kept = given.to_dict() | {key: config[key] for key in ("dtype", "transformers_version") if key in config}
    said = {key: kept[key] for key in (*SmolLM3Config.__annotations__, "dtype", "transformers_version") if key in kept}
    layers = range(given.num_hidden_layers)
    turns = getattr(given, "no_rope_layers", None) or [1] * len(layers)
    if name == "drope":
        turns, window = [0] * len(layers), None
    else:
        turns = turns if 0 in turns else [int(layer % PERIOD > 0) for layer in layers]
        window = max(1, min(WINDOW, served // 4))
    new = {
        **said,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "head_dim": getattr(given, "head_dim", None) or given.hidden_size // given.num_attention_heads,
        "max_position_embeddings": target,
        "no_rope_layers": turns,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if window and on else "full_attention" for on in turns],
    }
    return in_both_spellings(new)


def recast(loaded: Loaded, config: Mapping[str, Any]) -> Loaded:
    """The same weights in a SmolLM3 of this config. Raises RuntimeError where they are not those of one."""
    from transformers import SmolLM3ForCausalLM

    made, state = huggingface.filled(config), loaded.model.state_dict()
    kind: Any = SmolLM3ForCausalLM
    with quietly():
        model, found = kind.from_pretrained(
            None, config=made, state_dict=state, dtype=loaded.model.dtype, output_loading_info=True
        )
    if other := sorted({*found["missing_keys"], *found["unexpected_keys"], *found["mismatched_keys"]}):
        raise RuntimeError(f"a SmolLM3 has no place for {other[0]} of this {type(loaded.model).__name__}, or lacks it")
    return replace(loaded, model=model.eval(), config=model.config)
