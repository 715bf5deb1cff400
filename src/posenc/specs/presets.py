"""Presets: the blocks and positional encodings of families of released models.

    Decoder(vocab, layers=8, **preset("smollm3"))

A preset has no sizes: give width, heads and layers beside it. `besides` names what no option can express.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.foreign import quote, suggestion
from posenc.specs import spelling


@dataclass(frozen=True)
class Preset(Mapping[str, Any]):
    """The options of a family of models, as a mapping of arguments for Decoder, Encoder or EncoderDecoder.

    encoding  a spec, or a tuple of them cycled over the layers
    window    tokens that a layer sees back, or None for all, in the same cycle
    scale     factor of the logits where it is not head_dim^-1/2
    sinks     whether each head has a learned sink
    block     the options of blocks, embedding and output, as in Config; empty if no options describe them
    model     "decoder", "encoder" or "encoder-decoder"
    besides   what else the models do, which no option expresses
    source    the source of the numbers
    """

    encoding: str | tuple[str, ...]
    window: int | tuple[int | None, ...] | None = None
    scale: float | None = None
    sinks: bool = False
    block: Mapping[str, Any] = field(default_factory=dict)
    model: str = "decoder"
    besides: str = ""
    source: str = "defaults of the configuration in transformers 5.23"

    @property
    def options(self) -> dict[str, Any]:
        position = {"encoding": self.encoding, "window": self.window, "scale": self.scale, "sinks": self.sinks}
        return {**position, **self.block}

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


HEADS_OF_256 = "head_dim 256 in the released model"
ONE_NORM = "attention and feed-forward read one norm"
QWEN = "configurations of the released Qwen 2.5 and Qwen 3 models"
EXPERTS = "the feed-forward layers are mixtures of experts"

GPT2 = {"feed_forward": "gelu_tanh", "init": "gpt2", "tie_output": True}
LLAMA = {"norm": "rms", "feed_forward": "swiglu", "bias": False, "init": "normal"}
LLAMA_6 = {**LLAMA, "norm_eps": 1e-6}
GEMMA = {**LLAMA_6, "feed_forward": "geglu_tanh", "branch_norm": True, "scale_tokens": True, "tie_output": True}
GEMMA_3 = {**GEMMA, "qk_norm": True}
OLMO_2 = {**LLAMA_6, "norm_first": False, "branch_norm": True, "qk_norm": "joined"}
PARALLEL = {"parallel_residual": True, "feed_forward": "gelu_tanh"}

PRESETS: dict[str, Preset] = {
    "original": Preset(
        "sinusoidal",
        block={"norm_first": False, "feed_forward": "relu", "init": "xavier", "scale_tokens": True, "tie_output": True},
        model="encoder-decoder",
        source="Vaswani et al. 2017, arXiv:1706.03762, sections 3.1 to 3.5",
    ),
    "bert": Preset(
        "learned",
        block={"norm_first": False, "norm_eps": 1e-12, "embedding_norm": True, "init": "normal"},
        model="encoder",
        besides="segment embeddings",
    ),
    "gpt2": Preset("learned", block=GPT2),
    "t5": Preset(
        "t5_bias",
        scale=1.0,
        block={**LLAMA_6, "feed_forward": "relu", "init": "torch", "norm_first": True, "scale_tokens": False},
        model="encoder-decoder",
        besides="the bias is not added in cross-attention; a tied output is divided by dim^1/2",
    ),
    "bloom": Preset("alibi", block={"embedding_norm": True, "feed_forward": "gelu_tanh", "tie_output": True}),
    "mpt": Preset("alibi", block={"bias": False, "tie_output": True}),
    "falcon_rw": Preset(
        "alibi(form=falcon)",
        block={"tie_output": True},
        besides="the bias is rounded to bfloat16 there, and here it is not",
    ),
    "gpt_j": Preset(
        "rotary(layout=interleaved, partial=0.25)",
        block={**PARALLEL, "bias": ("feed_forward", "norm", "output")},
        besides=f"{HEADS_OF_256}; {ONE_NORM}",
    ),
    "gpt_neox": Preset(
        "rotary(partial=0.25)",
        block={
            "parallel_residual": True,
            "bias": ("q_proj", "k_proj", "v_proj", "o_proj", "feed_forward", "norm"),
            "init": "small",
        },
    ),
    "phi": Preset("rotary(partial=0.5)", block=PARALLEL, besides=ONE_NORM),
    "stablelm": Preset("rotary(partial=0.25)", block={"feed_forward": "swiglu", "bias": ("norm",)}),
    "llama": Preset("rotary", block=LLAMA_6),
    "llama2": Preset("rotary", block=LLAMA),
    "llama3": Preset(
        "rotary(base=500_000)", block=LLAMA, source="Grattafiori et al. 2024, arXiv:2407.21783, section 3.2"
    ),
    "llama3.1": Preset(
        "rotary(base=500_000, schedule=llama3(factor=8, trained_length=8192))",
        block=LLAMA,
        source="Meta's configuration of Llama 3.1, as in peer libraries' tests",
    ),
    "llama3.2": Preset(
        "rotary(base=500_000, schedule=llama3(factor=32, trained_length=8192))",
        block={**LLAMA, "tie_output": True},
        source="Meta's configuration of Llama 3.2, as in peer libraries' tests",
    ),
    "llama4": Preset(
        ("rotary(base=500_000, layout=interleaved)",) * 3 + ("step_temperature(interval=8192, form=llama4)",),
        block=LLAMA,
        besides=f"the rotary layers attend within chunks of 8192 tokens: give a mask, no window; {EXPERTS}",
    ),
    "mistral": Preset("rotary", window=4096, block=LLAMA, besides="later releases have another base, and no window"),
    "qwen2": Preset("rotary(base=1_000_000)", block={**LLAMA_6, "bias": ("q_proj", "k_proj", "v_proj")}, source=QWEN),
    "qwen3": Preset("rotary(base=1_000_000)", block={**LLAMA_6, "qk_norm": True}, source=QWEN),
    "olmo2": Preset("rotary(base=500_000)", block=OLMO_2, source="OLMo Team 2025, arXiv:2501.00656, table 2"),
    "smollm3": Preset(("rotary(base=2_000_000)",) * 3 + ("none",), block={**LLAMA_6, "tie_output": True}),
    "cohere2": Preset(
        ("rotary(layout=interleaved)",) * 3 + ("none",),
        window=(4096, 4096, 4096, None),
        block={"parallel_residual": True, "feed_forward": "swiglu", "bias": False, "tie_output": True},
        besides=f"{ONE_NORM}; logits are multiplied by 1/16",
    ),
    "exaone4": Preset(
        ("rotary",) * 3 + ("none",),
        window=(4096, 4096, 4096, None),
        block={**OLMO_2, "norm_eps": 1e-5, "qk_norm": True},
        besides="released models have another base",
    ),
    "gemma": Preset("rotary", block={**GEMMA, "branch_norm": False}, besides=HEADS_OF_256),
    "gemma2": Preset(
        "rotary", window=(4096, None), block={**GEMMA, "softcap": 50.0, "output_softcap": 30.0}, besides=HEADS_OF_256
    ),
    "gemma3": Preset(
        ("rotary",) * 5 + ("rotary(base=1_000_000, schedule=linear(factor=8))",),
        window=(4096,) * 5 + (None,),
        block=GEMMA_3,
        besides="the window of released models is smaller",
        source="defaults of the configuration in transformers 5.23; the factor from Gemma 3's report",
    ),
    "gemma4": Preset(
        ("rotary",) * 5 + ("proportional_rotary(partial=0.25, base=1_000_000)",),
        window=(512,) * 5 + (None,),
        block=GEMMA_3,
        besides="the last layer always sees everything; values are normalised, layers scaled and some share keys",
    ),
    "gpt_oss": Preset(
        "rotary(base=150_000, schedule=yarn(factor=32, trained_length=4096, truncate=False))",
        window=(128, None),
        sinks=True,
        block={**LLAMA, "bias": ("q_proj", "k_proj", "v_proj", "o_proj")},
        besides=EXPERTS,
    ),
    "ministral3": Preset(
        "rotary(base=1_000_000, schedule=yarn(factor=16, trained_length=16384, mscale=1.0, mscale_all_dim=1.0))"
        " + step_temperature(interval=16384, form=ministral)",
        block=LLAMA,
    ),
    "qwen3_next": Preset(
        "rotary(partial=0.25)",
        block={**LLAMA_6, "qk_norm": True},
        besides=f"three layers of four are recurrent and read no position; attention has gates; {EXPERTS}",
    ),
    "inkling": Preset(
        ("inkling(max_distance=512)",) * 5 + ("inkling(max_distance=1024)",),
        window=(512,) * 5 + (None,),
        block={**LLAMA_6, "qk_norm": True},
        besides="scale 1/head_dim; Inkling-2 adds a temperature in its full layers",
    ),
}
"""The presets by family."""


def preset(family: str) -> Preset:
    """Return the preset of a family of released models.

    Raises ValueError for an unknown family, with the nearest name.

    >>> preset("smollm3").encoding
    ('rotary(base=2_000_000)', 'rotary(base=2_000_000)', 'rotary(base=2_000_000)', 'none')
    """
    if not isinstance(family, str) or family not in PRESETS:
        hint = suggestion(family, PRESETS.keys(), spelling.list_command("preset"))
        raise ValueError(f"no preset for {quote(family)}{hint}")
    return PRESETS[family]
