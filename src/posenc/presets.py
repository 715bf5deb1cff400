"""What families of released models use: one spec for each layer, in the cycle that the family repeats.

    Decoder(vocab, layers=8, **preset("smollm3").options)

A preset says how position enters, and no more: widths, norms and feed-forward layers are the model's. What an option
cannot say stands in `besides`.
"""

from dataclasses import dataclass
from typing import Any

from posenc import spelling
from posenc.foreign import near, quoted


@dataclass(frozen=True)
class Preset:
    """How position enters the models of a family.

    encoding  a spec, or a tuple of them cycled over the layers
    window    how many tokens a layer sees back, or None for all, in the same cycle
    scale     factor of the logits where it is not head_dim^-1/2
    sinks     whether each head has a learned sink
    bidirectional  whether the family is an encoder
    besides   what else the models do about position, which no option here says
    source    where the numbers come from
    """

    encoding: str | tuple[str, ...]
    window: int | tuple[int | None, ...] | None = None
    scale: float | None = None
    sinks: bool = False
    bidirectional: bool = False
    besides: str = ""
    source: str = "defaults of the configuration in transformers 5.23"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for Decoder or Encoder."""
        return {"encoding": self.encoding, "window": self.window, "scale": self.scale, "sinks": self.sinks}


HEADS_OF_256 = "head_dim 256 in the released model"

PRESETS: dict[str, Preset] = {
    "original": Preset("sinusoidal", source="Vaswani et al. 2017, arXiv:1706.03762, section 3.5"),
    "bert": Preset("learned", bidirectional=True, besides="segment embeddings"),
    "gpt2": Preset("learned"),
    "t5": Preset("t5_bias", scale=1.0, besides="one bias for all layers of a stack, none in cross-attention"),
    "bloom": Preset("alibi"),
    "mpt": Preset("alibi"),
    "falcon_rw": Preset("alibi(form=falcon)", besides="the bias is rounded to bfloat16 there, and here it is not"),
    "gpt_j": Preset("rotary(layout=interleaved, partial=0.25)", besides=HEADS_OF_256),
    "gpt_neox": Preset("rotary(partial=0.25)"),
    "phi": Preset("rotary(partial=0.5)"),
    "stablelm": Preset("rotary(partial=0.25)"),
    "llama2": Preset("rotary"),
    "llama3": Preset("rotary(base=500_000)", source="Grattafiori et al. 2024, arXiv:2407.21783, section 3.2"),
    "llama3.1": Preset(
        "rotary(base=500_000, schedule=llama3(factor=8, trained_length=8192))",
        source="Meta's configuration of Llama 3.1, as in peer libraries' tests",
    ),
    "llama3.2": Preset(
        "rotary(base=500_000, schedule=llama3(factor=32, trained_length=8192))",
        source="Meta's configuration of Llama 3.2, as in peer libraries' tests",
    ),
    "llama4": Preset(
        ("rotary(base=500_000, layout=interleaved)",) * 3 + ("step_temperature(interval=8192, form=llama4)",),
        besides="the rotary layers attend within chunks of 8192 tokens, which is no window: give it as a mask",
    ),
    "mistral": Preset("rotary", window=4096, besides="later releases have another base, and no window"),
    "smollm3": Preset(("rotary(base=2_000_000)",) * 3 + ("none",)),
    "cohere2": Preset(("rotary(layout=interleaved)",) * 3 + ("none",), window=(4096, 4096, 4096, None)),
    "exaone4": Preset(
        ("rotary",) * 3 + ("none",),
        window=(4096, 4096, 4096, None),
        besides="queries and keys are normalised; released models have another base",
    ),
    "gemma3": Preset(
        ("rotary",) * 5 + ("rotary(base=1_000_000, schedule=linear(factor=8))",),
        window=(4096,) * 5 + (None,),
        besides="queries and keys are normalised; the window of released models is smaller",
        source="defaults of the configuration in transformers 5.23; the factor from Gemma 3's report",
    ),
    "gemma4": Preset(
        ("rotary",) * 5 + ("proportional_rotary(partial=0.25, base=1_000_000)",),
        window=(512,) * 5 + (None,),
        besides="queries and keys are normalised; the last layer always sees everything",
    ),
    "gpt_oss": Preset(
        "rotary(base=150_000, schedule=yarn(factor=32, trained_length=4096, truncate=False))",
        window=(128, None),
        sinks=True,
    ),
    "ministral3": Preset(
        "rotary(base=1_000_000, schedule=yarn(factor=16, trained_length=16384, mscale=1.0, mscale_all_dim=1.0))"
        " + step_temperature(interval=16384, form=ministral)",
    ),
    "qwen3_next": Preset("rotary(partial=0.25)", besides="three layers of four are recurrent and read no position"),
    "inkling": Preset(
        ("inkling(max_distance=512)",) * 5 + ("inkling(max_distance=1024)",),
        window=(512,) * 5 + (None,),
        besides="normalised queries and keys with scale 1/head_dim; Inkling-2 adds a temperature in its full layers",
    ),
}
"""The presets by family."""


def preset(family: str) -> Preset:
    """What a family of released models uses.

    Raises ValueError, naming what is near, for a family that is not known.

    >>> preset("smollm3").encoding
    ('rotary(base=2_000_000)', 'rotary(base=2_000_000)', 'rotary(base=2_000_000)', 'none')
    """
    if not isinstance(family, str) or family not in PRESETS:
        raise ValueError(f"no preset for {quoted(family)}{near(family, PRESETS.keys(), spelling.listed('preset'))}")
    return PRESETS[family]
