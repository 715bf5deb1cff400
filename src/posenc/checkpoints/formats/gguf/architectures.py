"""What stands in llama.cpp and in no GGUF file: how an architecture has positions, and how its weights were changed.

Read in llama.cpp of September 2026: `llama_model_rope_type` in src/llama-model.cpp, `load_arch_hparams` of the models
that are named in src/models, and the converter, convert_hf_to_gguf.py with its folder conversion.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Positions

INTERLEAVED = frozenset(
    "llama llada llama4 deci baichuan internlm2 minicpm xverse command-r cohere2 olmo arctic deepseek deepseek2 "
    "deepseek2-ocr plm chatglm glm4 granite granitemoe granitehybrid chameleon bailingmoe neo-bert smollm3 arcee "
    "ernie4_5 ernie4_5-moe mistral3 mistral4 llama-embed maincoder glm-dsa".split()
)
"""Architectures whose pairs are neighbours; weights that came in the other layout were reordered for it."""

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
"""Architectures that have ALiBi where their file says so, and no rotary where it does not."""

ROTARY_BY_KEY = frozenset(("granite", "granitemoe", "granitehybrid"))
"""Architectures that have rotary unless rope.scaling.finetuned is false."""

ATTENDS_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""The n of which every n-th layer attends, where a file does not say it; the others carry a state."""

KNOWN = INTERLEAVED | HALF | LEARNED | RECURRENT | WITHOUT_ROTARY | set(ALIBI) | set(MULTIMODAL)
"""Architectures of which it is known how position enters."""

WINDOW_EVERY = {"gemma2": 2, "gpt-oss": 2, "gemma3": 6, "gemma-embedding": 6, "gemma3n": 5}
WINDOW_EVERY |= dict.fromkeys(("cohere2", "exaone4", "exaone-moe", "afmoe"), 4)
"""The n of which every n-th layer sees everything, and the others a window, where the file has no pattern."""

BIDIRECTIONAL = frozenset(("gemma-embedding", "llama-embed"))
"""Architectures whose tokens see both sides, whether their file says so or not."""

BOTH_WAYS = frozenset(("gemma-embedding", "modern-bert"))
"""Architectures whose window is as many tokens to both sides together; a token sees half of them back, and itself."""

WINDOW_IN_ALL = frozenset(("phi3", "phimoe"))
"""Architectures whose layers all have the window that the converter writes; llama.cpp itself leaves it out."""

NO_ROTARY_EVERY = {"llama4": 4, "smollm3": 4}
"""The n of which every n-th layer has no rotary."""

CHUNK = {"llama4": 8192}
"""Within how many tokens layers with rotary attend, counted from the beginning; the others attend to all."""

ONLY_IN_WINDOWS = frozenset(("cohere2", "exaone4", "exaone-moe", "afmoe"))
"""Architectures whose layers without a window have no rotary."""

LOCAL_BASE = {"gemma3": 10_000.0, "gemma-embedding": 10_000.0, "gemma3n": 10_000.0}
"""Architectures whose layers with a window have a base of their own, and no schedule."""

PLAIN_IN_WINDOWS = frozenset((*LOCAL_BASE, "olmo2"))
"""Architectures whose layers with a window have no schedule."""

UNROUNDED_RAMP = frozenset(("gpt-oss",))
"""Architectures whose released configs do not round the ends of YaRN's ramp; llama.cpp itself does."""

WINDOWED_FIRST = {"gemma4": True, "mimo2": False}
"""Architectures whose layers with a window have heads of their own, and whether configs of transformers speak of these;
of the others they speak apart, or not at all."""

NARROW_VALUES = frozenset(("mimo2",))
"""Architectures whose values have fewer channels than their keys."""

UNSCALED = frozenset(("gemma3n", "gemma4"))
"""Architectures whose logits are not divided by the root of a head's width."""

SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
"""The layers of the one model of an architecture (27B) whose logits are divided by the root of width / heads."""

TABLES = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that say of positions what no key says: a divisor for each pair."""

# Weights


@dataclass(frozen=True)
class Architecture:
    """How transformers has what is stored, where `KEYS` and the names of tensors do not tell by themselves.

    model      the model_type of transformers
    source     the class of llama.cpp's converter that writes such files, and where it stands in conversion/
    changes    stored names, as patterns -> what the converter did to such tensors, see `changes`
    settled    keys that must have one value, since transformers has no key for it; "?" marks one that may be missing
    fixed      keys of transformers that no file says, as llama.cpp computes them
    left_open  the same where llama.cpp computes something near, as transformers has them by default
    """

    model: str
    source: str
    changes: Mapping[str, str] = field(default_factory=dict)
    settled: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    left_open: Mapping[str, Any] = field(default_factory=dict)

    def changes_of(self, name: str) -> list[str]:
        """What the converter did to the tensor of a stored name, the last first."""
        return [change for pattern, change in self.changes.items() if re.search(pattern, name)]


KEYS = {
    "feed_forward_length": "intermediate_size_mlp intermediate_size n_inner ffn_hidden_size d_ff",
    "attention.layer_norm_epsilon": "layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps layer_norm_epsilon",
    "attention.clamp_kqv": "clip_qkv",
    "attention.value_scale": "attention_value_scale",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "token_type_count": "type_vocab_size",
    "shortconv.l_cache": "conv_L_cache",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "altup.active_idx": "altup_active_idx",
    "altup.num_inputs": "altup_num_inputs",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
    "leading_dense_block_count": "first_k_dense_replace num_dense_layers moe_layer_start_index",
    "interleave_moe_layer_step": "moe_layer_interval interleave_moe_layer_step",
    "expert_count": "num_experts num_local_experts n_routed_experts",
    "expert_used_count": "num_experts_per_tok top_k_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_shared_count": "n_shared_experts num_shared_experts moe_num_shared_experts",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor route_scale",
    "expert_feed_forward_length": "moe_intermediate_size intermediate_size",
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size"
    ),
    "moe_latent_size": "moe_latent_size",
    "ssm.conv_kernel": "linear_conv_kernel_dim mamba_d_conv conv_kernel",
    "kda.head_dim": "linear_head_dim",
    "ssm.state_size": "linear_key_head_dim mamba_d_state ssm_state_size state_size",
    "ssm.group_count": "linear_num_key_heads mamba_n_groups n_groups",
    "ssm.time_step_rank": "linear_num_value_heads mamba_n_heads mamba_num_heads mamba_dt_rank time_step_rank",
}
"""Keys of files that say nothing of positions -> what configs of transformers call it; the first that a class has."""

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
"""What configs of transformers call an activation that newer files say (hidden_activation)."""

BY_SHAPE = frozenset(("feed_forward_length", "expert_shared_count", "expert_shared_feed_forward_length"))
"""Those that the shapes of tensors tell a class that has no key for it."""

USUAL: dict[str, Any] = {"expert_weights_norm": False, "expert_weights_scale": 1.0, "leading_dense_block_count": 0}
USUAL |= {"attention.q_lora_rank": None}
"""What llama.cpp takes where a file does not say it."""

BY_TENSOR = {
    "attention_bias": "blk.0.attn_q.bias blk.0.attn_qkv.bias blk.0.attn_q_a.bias",
    "attention_out_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_up.bias",
    "lm_head_bias": "output.bias",
    "use_bias": "blk.0.attn_q.bias",
    "use_qkv_bias": "blk.0.attn_q.bias",
    "use_qk_norm": "blk.0.attn_q_norm.weight",
    "qk_layernorm": "blk.0.attn_q_norm.weight",
}
"""Keys of transformers that are true where a file has one of these tensors."""

SOFTMAX, SIGMOID = 1, 2
"""How experts are chosen, as expert_gating_func says it."""

PERMUTED = {r"attn_[qk]\.(weight|bias)$": "pairs side by side"}
PLUS_ONE = {r"norm\.weight$": "plus one"}
TRANSPOSED = {r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$": "transposed"}
HEADS_APART = {r"attn_qkv\.(weight|bias)$": "queries, keys and values of all heads"}
GROUPS_APART = {r"attn_qkv\.weight$": "queries, keys and values of all groups"}
IN_TURNS = {r"ffn_(gate|up)_exps\.": "in turns", r"ffn_down_exps\.weight$": "transposed"}

DECAYS = {r"\.ssm_a$": "minus its power of e"}
MAMBA = DECAYS | {r"\.ssm_norm\.weight$": "groups below one another"}
LINEAR = DECAYS | {r"(?<!ssm_)norm\.weight$": "plus one"}
TILED = LINEAR | {
    r"\.(attn_qkv|attn_gate|ssm_(conv1d|out|alpha|beta))\.weight$|\.ssm_(a|dt\.bias)$": "values of each key in turns"
}

TANH = {"hidden_act": "gelu_pytorch_tanh"}

ARCHITECTURES = {
    "llama": Architecture("llama", "llama.py LlamaModel", PERMUTED),
    "llama with expert_count": Architecture("mixtral", "llama.py LlamaModel", PERMUTED),
    "arcee": Architecture("arcee", "llama.py ArceeModel", PERMUTED),
    "smollm3": Architecture("smollm3", "llama.py SmolLM3Model", PERMUTED),
    "llama4": Architecture(
        "llama4_text",
        "llama4.py Llama4Model",
        {r"ffn_(gate|up|down)_exps\.weight$": "transposed"},
        settled={"leading_dense_block_count?": 0},
    ),
    "granite": Architecture("granite", "granite.py GraniteModel", PERMUTED),
    "granitemoe": Architecture("granitemoe", "granite.py GraniteMoeModel", PERMUTED),
    "granitehybrid": Architecture("granitemoehybrid", "granite.py GraniteHybridModel", PERMUTED | MAMBA),
    "granitehybrid with rope.scaling.finetuned": Architecture(
        "bamba", "granite.py GraniteHybridModel", PERMUTED | MAMBA
    ),
    "mistral3": Architecture("mistral", "mistral3.py Mistral3Model", PERMUTED),
    "olmo": Architecture("olmo", "olmo.py OlmoModel", PERMUTED, settled={"attention.layer_norm_epsilon": 1e-5}),
    "olmo2": Architecture("olmo2", "olmo.py Olmo2Model"),
    "olmo2 with attention.sliding_window": Architecture("olmo3", "olmo.py Olmo2Model"),
    "olmoe": Architecture("olmoe", "olmo.py OlmoeModel"),
    "qwen2": Architecture("qwen2", "qwen.py Qwen2Model"),
    "qwen2moe": Architecture("qwen2_moe", "qwen.py Qwen2MoeModel"),
    "qwen3": Architecture("qwen3", "qwen.py Qwen3Model"),
    "qwen3moe": Architecture("qwen3_moe", "qwen.py Qwen3MoeModel", fixed={"norm_topk_prob": True}),
    "qwen3next": Architecture("qwen3_next", "qwen.py Qwen3NextModel", LINEAR, fixed={"norm_topk_prob": True}),
    "qwen35": Architecture("qwen3_5_text", "qwen.py Qwen3_5TextModel", TILED),
    "qwen35moe": Architecture("qwen3_5_moe_text", "qwen.py Qwen3_5MoeTextModel", TILED),
    "bitnet": Architecture("bitnet", "bitnet.py BitnetModel", left_open={"hidden_act": "silu"}),
    "seed_oss": Architecture("seed_oss", "olmo.py SeedOssModel"),
    "gemma": Architecture("gemma", "gemma.py GemmaModel", PLUS_ONE),
    "gemma2": Architecture("gemma2", "gemma.py Gemma2Model", PLUS_ONE),
    "gemma3": Architecture("gemma3_text", "gemma.py Gemma3Model", PLUS_ONE),
    "gemma3n": Architecture("gemma3n_text", "gemma.py Gemma3NModel"),
    "gemma4": Architecture("gemma4_text", "gemma.py Gemma4Model"),
    "phi2": Architecture("phi", "phi.py Phi2Model", left_open={"hidden_act": "gelu_new"}),
    "phi3": Architecture("phi3", "phi.py Phi3MiniModel"),
    "gpt2": Architecture("gpt2", "gpt2.py GPT2Model", TRANSPOSED, left_open={"activation_function": "gelu_new"}),
    "starcoder": Architecture(
        "gpt_bigcode",
        "starcoder.py StarCoderModel",
        fixed={"multi_query": True},
        left_open={"activation_function": "gelu_pytorch_tanh"},
    ),
    "starcoder2": Architecture("starcoder2", "starcoder.py StarCoder2Model", left_open=TANH | {"sliding_window": None}),
    "gptneox": Architecture("gpt_neox", "gptneox.py GPTNeoXModel", HEADS_APART, left_open={"hidden_act": "gelu"}),
    "bloom": Architecture("bloom", "bloom.py BloomModel", HEADS_APART),
    "mpt": Architecture("mpt", "mpt.py MPTModel"),
    "falcon": Architecture(
        "falcon",
        "falcon.py FalconModel",
        GROUPS_APART,
        settled={"tensor_data_layout": "jploski"},
        left_open={"activation": "gelu"},
    ),
    "falcon-h1": Architecture("falcon_h1", "falcon_h1.py FalconH1Model", MAMBA),
    "dbrx": Architecture(
        "dbrx",
        "dbrx.py DbrxModel",
        {r"ffn_down_exps\.weight$": "transposed"},
        settled={"attention.layer_norm_epsilon": 1e-5},
    ),
    "stablelm": Architecture("stablelm", "stablelm.py StableLMModel"),
    "nemotron": Architecture("nemotron", "nemotron.py NemotronModel", PLUS_ONE),
    "command-r": Architecture("cohere", "command_r.py CommandR2Model"),
    "cohere2": Architecture("cohere2", "command_r.py Cohere2Model"),
    "glm4": Architecture("glm4", "glm.py Glm4Model"),
    "exaone4": Architecture("exaone4", "exaone.py Exaone4Model"),
    "ernie4_5": Architecture("ernie4_5", "ernie.py Ernie4_5Model"),
    "mamba": Architecture("mamba", "mamba.py MambaModel", DECAYS),
    "mamba with ssm.dt_b_c_rms": Architecture("falcon_mamba", "mamba.py MambaModel", DECAYS),
    "mamba2": Architecture("mamba2", "mamba.py Mamba2Model", MAMBA),
    "jamba": Architecture("jamba", "jamba.py JambaModel", DECAYS),
    "nemotron_h": Architecture("nemotron_h", "nemotron.py NemotronHModel", MAMBA),
    "nemotron_h_moe": Architecture(
        "nemotron_h", "nemotron.py NemotronHModel", MAMBA, settled={"expert_gating_func?": SIGMOID}
    ),
    "mimo2": Architecture(
        "mimo_v2_flash",
        "mimo.py MimoV2Model",
        settled={"expert_gating_func?": SIGMOID},
        fixed={"norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    "jais2": Architecture("jais2", "jais.py Jais2Model"),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", "hunyuan.py HunYuanModel"),
    "hunyuan-moe": Architecture("hunyuan_v1_moe", "hunyuan.py HunYuanMoEModel"),
    "gpt-oss": Architecture("gpt_oss", "gpt_oss.py GptOssModel", IN_TURNS),
    "deepseek2": Architecture("deepseek_v2", "deepseek.py DeepseekV2Model", settled={"expert_gating_func?": SOFTMAX}),
    "deepseek2 with expert_gating_func 2": Architecture(
        "deepseek_v3", "deepseek.py DeepseekV2Model", settled={"expert_gating_func": SIGMOID}
    ),
    "glm-dsa": Architecture("glm_moe_dsa", "glm.py GlmMoeDsaModel", settled={"expert_gating_func": SIGMOID}),
    "kimi-linear": Architecture(
        "kimi_linear",
        "kimi_linear.py KimiLinearModel",
        DECAYS | {r"\.ssm_conv1d_[qkv]\.weight$": "axes of one"},
        settled={"expert_gating_func?": SIGMOID},
        fixed={"norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    "minicpm3": Architecture(
        "minicpm3",
        "minicpm.py MiniCPM3Model",
        fixed={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    ),
    "chatglm": Architecture("glm", "chatglm.py ChatGLMModel"),
    "glm4moe": Architecture("glm4_moe", "glm.py Glm4MoeModel", settled={"expert_gating_func": SIGMOID}),
    "dots1": Architecture("dots1", "dots1.py Dots1Model", settled={"expert_gating_func": SIGMOID}),
    "afmoe": Architecture(
        "afmoe",
        "afmoe.py AfmoeModel",
        settled={"expert_gating_func?": SIGMOID, "expert_weights_norm": True},
        fixed={"mup_enabled": True},
    ),
    "ernie4_5-moe": Architecture("ernie4_5_moe", "ernie.py Ernie4_5MoeModel"),
    "phimoe": Architecture("phimoe", "phi.py PhiMoeModel"),
    "lfm2": Architecture("lfm2", "lfm2.py LFM2Model", fixed={"block_auto_adjust_ff_dim": False}),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "lfm2.py LFM2MoeModel",
        settled={"expert_gating_func": SIGMOID},
        fixed={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
    ),
    "apertus": Architecture("apertus", "apertus.py ApertusModel"),
    "minimax-m2": Architecture("minimax_m2", "minimax.py MiniMaxM2Model", settled={"expert_gating_func": SIGMOID}),
    "exaone-moe": Architecture("exaone_moe", "exaone.py ExaoneMoEModel", settled={"expert_gating_func": SIGMOID}),
    "bert": Architecture("bert", "bert.py BertModel", left_open={"hidden_act": "gelu"}),
    "nomic-bert": Architecture("nomic_bert", "bert.py NomicBertModel"),
    "jina-bert-v3": Architecture("jina_embeddings_v3", "bert.py XLMRobertaModel", left_open={"hidden_act": "gelu"}),
    "eurobert": Architecture("eurobert", "bert.py EuroBertModel"),
    "modern-bert": Architecture("modernbert", "bert.py ModernBertModel", left_open={"hidden_activation": "gelu"}),
    "t5": Architecture("t5", "t5.py T5Model"),
    "t5 with enc.blk.1.attn_rel_b.weight": Architecture("umt5", "t5.py T5Model"),
    "t5encoder": Architecture("t5", "t5.py T5EncoderModel"),
    "t5encoder with enc.blk.1.attn_rel_b.weight": Architecture("umt5", "t5.py T5EncoderModel"),
    "gemma-embedding": Architecture(
        "gemma3_text", "gemma.py EmbeddingGemma", PLUS_ONE, fixed={"use_bidirectional_attention": True}
    ),
}
"""The architectures that are loaded, by the name that GGUF has for them; some by a key or a tensor that the file has
besides."""

STACKS = {"t5": 2}
"""Architectures with more stacks of layers than one: an encoder and a decoder."""

WITHOUT_CLASS = frozenset(
    "arctic arwkv7 baichuan bailingmoe bailingmoe2 codeshell cogvlm deci deepseek dream exaone grok grovemoe internlm2 "
    "jais jina-bert-v2 llada llada-moe llama-embed maincoder minicpm neo-bert nomic-bert-moe openelm orion "
    "pangu-embedded plamo plamo2 plamo3 plm qwen refact rnd1 rwkv6 rwkv6qwen2 rwkv7 smallthinker xverse".split()
)
"""Architectures that transformers has no class for; the code of their authors is not run."""

NOT_LOADED = {
    "clip": "it is no language model, and stands beside one",
    "wavtokenizer-dec": "it is no language model: it decodes sounds",
    "gptj": "llama.cpp's converter writes no such files",
}
NOT_LOADED |= dict.fromkeys(
    "qwen2vl qwen3vl qwen3vlmoe hunyuan_vl paddleocr chameleon deepseek2-ocr mistral4 step35".split(),
    "transformers has it within a model for images only, which the file does not hold",
)
"""Why an architecture is not loaded, where more is known than that nobody looked."""
