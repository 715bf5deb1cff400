"""Positions of each architecture as llama.cpp has them in its code and in no GGUF file.

Source: llama.cpp of September 2026, `llama_model_rope_type` in src/llama-model.cpp, and `load_arch_hparams` of the
models in src/models.
"""

INTERLEAVED = frozenset(
    "llama llada llama4 deci baichuan internlm2 minicpm xverse command-r cohere2 olmo arctic deepseek deepseek2 "
    "deepseek2-ocr plm chatglm glm4 granite granitemoe granitehybrid chameleon bailingmoe neo-bert smollm3 arcee "
    "ernie4_5 ernie4_5-moe mistral3 mistral4 llama-embed maincoder glm-dsa".split()
)
"""Architectures whose pairs are neighbours; converters reorder weights of the other layout."""

HALF = frozenset(
    "falcon falcon-h1 grok dbrx jina-bert-v3 modern-bert nomic-bert nomic-bert-moe eurobert stablelm bitnet qwen qwen2 "
    "dream qwen2moe qwen3 qwen3moe llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo plamo2 plamo3 gemma gemma2 gemma3 "
    "gemma3n gemma4 gemma-embedding starcoder2 openelm gptneox codeshell orion nemotron exaone exaone4 exaone-moe "
    "minicpm3 bailingmoe2 dots1 hunyuan-moe jais2 gpt-oss hunyuan-dense lfm2 lfm2moe smallthinker seed_oss grovemoe "
    "apertus minimax-m2 cogvlm pangu-embedded afmoe qwen3next mimo2 step35 glm4moe hunyuan_vl".split()
)
"""Architectures whose pairs are half the rotary width apart."""

MULTIMODAL = {"qwen2vl": "chunked", "paddleocr": "chunked"} | dict.fromkeys(
    ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), "interleaved"
)
"""Architectures with M-RoPE, and the order of its axes."""

LEARNED = frozenset(("gpt2", "bert", "starcoder"))
"""Architectures with a learned table, position_embd.weight."""

ALIBI = {"bloom": 8.0, "refact": 8.0, "jina-bert-v2": 8.0}
"""Architectures whose ALiBi is not in the file, and its bias_max."""

RECURRENT = frozenset("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7".split())

WITHOUT_ROTARY = frozenset(("mpt", "jais", "jamba", "nemotron_h", "nemotron_h_moe", "kimi-linear"))
"""Architectures with ALiBi if their file says so, and else without rotary."""

ROTARY_BY_KEY = frozenset(("granite", "granitemoe", "granitehybrid"))
"""Architectures that have rotary unless rope.scaling.finetuned is false."""

ATTENDS_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""Every n-th layer attends if the file does not say it; the others carry a state."""

ARCHITECTURES = INTERLEAVED | HALF | LEARNED | RECURRENT | WITHOUT_ROTARY | set(ALIBI) | set(MULTIMODAL)
"""Architectures with known position code."""

WINDOW_EVERY = {"gemma2": 2, "gpt-oss": 2, "gemma3": 6, "gemma-embedding": 6, "gemma3n": 5}
WINDOW_EVERY |= dict.fromkeys(("cohere2", "exaone4", "exaone-moe", "afmoe"), 4)
"""Every n-th layer has no window, and the others have one, if the file has no pattern."""

BIDIRECTIONAL = frozenset(("gemma-embedding", "llama-embed"))
"""Architectures whose tokens see both sides, whether their file says so or not."""

BOTH_WAYS = frozenset(("gemma-embedding", "modern-bert"))
"""Architectures whose window counts both sides; a token sees half of it back, and itself."""

WINDOW_IN_ALL = frozenset(("phi3", "phimoe"))
"""Architectures whose layers all have the window that the converter writes; llama.cpp itself ignores it."""

NO_ROTARY_EVERY = {"llama4": 4, "smollm3": 4}
"""Every n-th layer has no rotary."""

CHUNK = {"llama4": 8192}
"""Tokens of the chunks in which layers with rotary attend; the others attend to all."""

ONLY_IN_WINDOWS = frozenset(("cohere2", "exaone4", "exaone-moe", "afmoe"))
"""Architectures whose layers without a window have no rotary."""

LOCAL_BASE = {"gemma3": 10_000.0, "gemma-embedding": 10_000.0, "gemma3n": 10_000.0}
"""Architectures whose layers with a window have a base of their own, and no schedule."""

PLAIN_IN_WINDOWS = frozenset((*LOCAL_BASE, "olmo2"))
"""Architectures whose layers with a window have no schedule."""

UNROUNDED_RAMP = frozenset(("gpt-oss",))
"""Architectures whose released configs do not round the ends of YaRN's ramp; llama.cpp itself rounds."""

WINDOWED_FIRST = {"gemma4": True, "mimo2": False}
"""Architectures whose layers with a window have other heads, and whether configs of transformers mean these by their
plain keys."""

UNIT_SCALE = frozenset(("gemma3n", "gemma4"))
"""Architectures whose logits are not divided by the root of a head's width."""

SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
"""The layers of the one model of an architecture (27B) whose logits are divided by the root of width / heads."""

TABLES = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors with a divisor for each pair, which no key has."""
