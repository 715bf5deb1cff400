"""Names of options and classes in other libraries, for error messages that give posenc's name.

They are no aliases: posenc refuses such a name, and the error says what to write.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from posenc.foreign import quote, suggestion

Params = ParamSpec("Params")
Result = TypeVar("Result")

OPTION_WORDS = """
dim, head_dim: d_model embed_dim n_embd n_embed hidden_size model_dim embedding_dim
heads: num_heads n_head n_heads nhead num_attention_heads h
layers: num_layers n_layer n_layers num_hidden_layers depth num_blocks N
kv_heads: num_kv_heads n_kv_heads n_kv_head num_key_value_heads num_query_groups
head_dim: d_head dim_head head_size d_k d_kv rotary_dim rot_dim dim
vocab: vocab_size num_embeddings n_vocab num_tokens src_vocab_size
max_len, trained_length, train_length, max_distance: max_seq_len max_seq_length max_length max_position_embeddings
    context_length block_size n_positions n_ctx seq_len seq_length max_sequence_length ctx_len max_len num_positions
    original_max_position_embeddings
intermediate_size: hidden ffn_dim dim_feedforward d_ff d_inner n_inner mlp_dim ff_dim
base: theta rope_theta rotary_base rope_base rotary_emb_base max_period freq_base
schedule: rope_scaling scaling rope_parameters rope_type scaling_type
factor, schedule: scaling_factor rope_factor scale_factor
partial: partial_rotary_factor rotary_pct rotary_percent rotary_fraction
layout: interleaved is_neox_style rope_interleave traditional
buckets: num_buckets relative_attention_num_buckets
max_distance: relative_attention_max_distance max_relative_position max_relative_positions
causal, mask='causal': is_causal is_decoder unidirectional
causal=False: bidirectional
padding=~key_padding_mask, positions=Positions.padded(~key_padding_mask): key_padding_mask src_key_padding_mask
mask, padding: attention_mask attn_mask src_mask tgt_mask key_mask attn_bias
need_weights: weights output_attentions return_attention return_weights
positions=Positions.packed(cu_seqlens=cu_seqlens): cu_seqlens cu_seqlens_q seqlens document_ids segment_ids
positions: position_ids input_pos pos pos_ids indices
offset, positions: start_pos past_length past_key_values_length cache_position
cache: past_key_values past_key_value use_cache kv_cache layer_past
tie_output: tie_word_embeddings tie_weights tie_embeddings weight_tying tied
norm_first=True: pre_norm pre_layer_norm
norm_first=False: post_norm post_layer_norm
norm_eps: eps layer_norm_eps rms_norm_eps layer_norm_epsilon
parallel_residual: use_parallel_residual parallel_attn parallel_block
residual_scale: residual_multiplier residual_alpha
softcap: attn_logit_softcapping logit_softcap attn_softcap
output_softcap: final_logit_softcapping final_softcap
feed_forward: activation hidden_act act_fn activation_function mlp_type
qk_norm: qk_layernorm use_qk_norm qk_layer_norm query_key_norm
bias: attention_bias qkv_bias use_bias add_bias
dropout: attn_pdrop dropout_p p_dropout attention_dropout drop_rate resid_pdrop
window: sliding_window window_size attention_window
scale: softmax_scale sm_scale attn_scale
kernel: attn_implementation backend sdpa_backend
encoding: pos_encoding positional_encoding position_embedding_type pe pos_emb
max_new_tokens: max_tokens new_tokens n_tokens steps
eos_token_id: stop eos_token stop_token eos_id eos
samples: num_return_sequences num_samples n
temperature: do_sample
only: logits_to_keep num_logits_to_keep
ids: input_ids idx
max_new_tokens, ids: tokens
memory, key: encoder_hidden_states context
seq_dim: batch_first unsqueeze_dim token_dim sequence_dim
"""
"""Options of posenc: their names in PyTorch, transformers and others; errors suggest the first that exists."""

CLASS_WORDS = """
Sinusoidal: PositionalEncoding PositionalEncoder SinusoidalPositionalEncoding SinusoidalPositionalEmbedding
    SinusoidalEmbedding FixedPositionalEncoding PositionEncoding SinusoidalPositionEmbeddings
Learned: LearnedPositionalEncoding LearnedPositionalEmbedding LearnedPositionEmbedding PositionalEmbedding
    PositionEmbedding AbsolutePositionalEmbedding LearnablePositionalEncoding LearnedEncoding
Rotary: RotaryEmbedding RotaryPositionalEmbedding RotaryPositionalEmbeddings RotaryPositionalEncoding RoPE
    RotaryPositionEmbedding LlamaRotaryEmbedding RotaryPE apply_rotary_pos_emb apply_rotary_emb apply_rope rotate_half
    rotate_queries_or_keys precompute_freqs_cis rotary_embedding rope
ALiBi: AlibiPositionalBias AlibiPositionalEmbedding AlibiBias AlibiEncoding alibi_bias build_alibi_tensor
T5Bias: T5RelativePositionBias RelativePositionBias T5RelativeBias RelativePositionalBias T5RelPosBias
Shaw: RelativePositionalEncoding RelativePosition RelativePositionalEmbedding RelativePositionEmbedding
Attention: MultiHeadAttention MultiheadAttention MultiHeadedAttention SelfAttention CausalSelfAttention
    GroupedQueryAttention MultiQueryAttention CrossAttention MHA GQA MaskedMultiHeadAttention
Block: TransformerBlock TransformerLayer TransformerEncoderLayer TransformerDecoderLayer EncoderLayer DecoderLayer
    EncoderBlock DecoderBlock
Decoder: GPT MiniGPT TransformerDecoder DecoderOnly GPTModel LanguageModel TransformerLM CausalLM
Encoder: TransformerEncoder BERT
EncoderDecoder: Transformer TransformerModel Seq2Seq Seq2SeqTransformer
TokenPositionEmbedding: TokenEmbedding InputEmbedding Embeddings TransformerEmbedding TokenAndPositionEmbedding
    EmbeddingLayer
Cache: KVCache DynamicCache StaticCache
Config: Sizes ModelConfig TransformerConfig GPTConfig
chosen_weights: Chosen
masks.causal: causal_mask subsequent_mask generate_square_subsequent_mask create_causal_mask
NoPE: NoPositionalEncoding
"""
"""Classes and functions of posenc: their names in other libraries."""


def by_word(table: str) -> dict[str, list[str]]:
    """Return the names of a table in other libraries -> their names here."""
    meanings = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        here, _, elsewhere = line.partition(": ")
        meanings.update(dict.fromkeys(elsewhere.split(), here.split(", ")))
    return meanings


OPTIONS_BY_WORD, CLASSES_BY_WORD = by_word(OPTION_WORDS), by_word(CLASS_WORDS)


def hint(option: str, options: Collection[str]) -> str:
    """Return a hint at the option that a word means or resembles, or an empty text.

    >>> hint("num_heads", ["dim", "heads"]), hint("rope_theta", ["base"]), hint("bse", ["base"])
    ("; did you mean 'heads'?", "; did you mean 'base'?", "; did you mean 'base'?")
    """
    answer = option_for(option, options)
    return f"; did you mean '{answer}'?" if answer else suggestion(option, options)


def option_for(option: str, options: Collection[str]) -> str:
    """Return the option, or the call with one, that another library's word means; or ""."""
    return next((answer for answer in OPTIONS_BY_WORD.get(option, ()) if answer.partition("=")[0] in options), "")


def class_hint(name: str, names: Collection[str]) -> str:
    """Return a hint at the class that a name means or resembles, or an empty text.

    >>> class_hint("PositionalEncoding", []), class_hint("Decodr", ["Decoder"]), class_hint("docs", ["Decoder"])
    ("; did you mean 'Sinusoidal'?", "; did you mean 'Decoder'?", '')
    """
    if name in CLASSES_BY_WORD:
        return f"; did you mean '{CLASSES_BY_WORD[name][0]}'?"
    return suggestion(name, names) if name[:1].isupper() else ""


def names_of(*functions: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of functions, each once, without self and **kwargs."""
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return list(dict.fromkeys(p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD))


def check_options(owner: str, allowed_options: Collection[str], options: Mapping[str, Any]) -> None:
    """Raise TypeError for the first unknown option, with the option that it means, or with all options."""
    for option in options:
        if option not in allowed_options:
            remedy = hint(option, allowed_options) or f"; it has: {', '.join(allowed_options) or 'none'}"
            raise TypeError(f"{owner} has no option '{option}'{remedy}")


def check_option_names(name: str, options: Sequence[str], allowed_options: Collection[str], text: str) -> None:
    """Raise ValueError for an option in a spec that is unknown, or that the text has twice."""
    if len(set(options)) != len(options):
        raise ValueError(f"an option stands twice in {text}; give it once")
    for option in options:
        if option not in allowed_options:
            has = ", ".join(allowed_options) or "none"
            raise ValueError(f"{name} has no option {quote(option)}; it has: {has}{hint(option, allowed_options)}")


def with_named_options(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Return the method with a better TypeError for an unknown option: it names the option that is meant."""
    names, name = names_of(function), getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*args: Params.args, **options: Params.kwargs) -> Result:
        try:
            return function(*args, **options)
        except TypeError:
            check_options(f"{type(args[0]).__name__}.{name}", names, options)
            raise

    return call
