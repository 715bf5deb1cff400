"""The field's words for what posenc calls otherwise: one table each of options and classes, which errors answer from.

They are no aliases: a word that stands here is refused, and the refusal says what to write.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from posenc.foreign import near, quoted

Given = ParamSpec("Given")
Result = TypeVar("Result")

OURS = """
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
"""What options are here: the words of PyTorch, transformers and others for them; the first that is known is meant."""

CLASSES_OF = """
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
"""What classes and functions are here: what they are called elsewhere."""


def by_word(table: str) -> dict[str, list[str]]:
    """The words of a table -> what they are here."""
    meant = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        ours, _, theirs = line.partition(": ")
        meant.update(dict.fromkeys(theirs.split(), ours.split(", ")))
    return meant


MEANT, CLASSES = by_word(OURS), by_word(CLASSES_OF)


def hint(option: str, known: Collection[str]) -> str:
    """A hint at the known option that a word stands for, in the field or by its letters; or nothing.

    >>> hint("num_heads", ["dim", "heads"]), hint("rope_theta", ["base"]), hint("bse", ["base"])
    ("; did you mean 'heads'?", "; did you mean 'base'?", "; did you mean 'base'?")
    """
    ours = meant(option, known)
    return f"; did you mean '{ours}'?" if ours else near(option, known)


def meant(option: str, known: Collection[str]) -> str:
    """The known option, or the call with one, that a word of the field stands for; or nothing."""
    return next((ours for ours in MEANT.get(option, ()) if ours.partition("=")[0] in known), "")


def class_hint(name: str, known: Collection[str]) -> str:
    """A hint at the class that a name stands for elsewhere, or whose name is near; or nothing.

    >>> class_hint("PositionalEncoding", []), class_hint("Decodr", ["Decoder"]), class_hint("docs", ["Decoder"])
    ("; did you mean 'Sinusoidal'?", "; did you mean 'Decoder'?", '')
    """
    if name in CLASSES:
        return f"; did you mean '{CLASSES[name][0]}'?"
    return near(name, known) if name[:1].isupper() else ""


def names_of(*functions: Callable[..., Any]) -> list[str]:
    """The names of what functions take, each once, without self and what stands for any others."""
    parameters = [one for function in functions for one in inspect.signature(function).parameters.values()]
    return list(dict.fromkeys(one.name for one in parameters if one.name != "self" and one.kind != one.VAR_KEYWORD))


def check_options(owner: str, known: Collection[str], options: Mapping[str, Any]) -> None:
    """Raises TypeError for the first option that is not known, and names the one that is meant, or all."""
    for option in options:
        if option not in known:
            more = hint(option, known) or f"; it has: {', '.join(known) or 'none'}"
            raise TypeError(f"{owner} has no option '{option}'{more}")


def check_named(name: str, options: Sequence[str], known: Collection[str], text: str) -> None:
    """Raises ValueError for an option of a name in a spec that stands twice in the text, or that there is not."""
    if len(set(options)) != len(options):
        raise ValueError(f"an option stands twice in {text}; give it once")
    for option in options:
        if option not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"{name} has no option {quoted(option)}; it has: {has}{hint(option, known)}")


def with_named_options(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same method, whose TypeError for an option that it does not have names the one that is meant."""
    known, name = names_of(function), getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*given: Given.args, **options: Given.kwargs) -> Result:
        try:
            return function(*given, **options)
        except TypeError:
            check_options(f"{type(given[0]).__name__}.{name}", known, options)
            raise

    return call
