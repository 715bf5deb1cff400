"""Tiny models that no rule makes: their configurations, and what they are given."""

from typing import Any

import torch

GENERATOR = torch.Generator().manual_seed(1)


def draw(*shape: int) -> torch.Tensor:
    """Numbers of a normal distribution."""
    return torch.randn(shape, generator=GENERATOR)


TEXT = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 131},
}
VISION = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4}
IMAGE = {**VISION, "image_size": 16}
QFORMER = {**TEXT, "encoder_hidden_size": 64}
SIGLIP = {"model_type": "siglip_vision_model", **IMAGE}
SAM = {
    **{**VISION, "image_size": 64, "output_channels": 32, "global_attn_indexes": [1], "window_size": 4},
    **{"num_pos_feats": 16, "mlp_dim": 64, "downsample_channels": [48, 64]},
}
OPT = {"model_type": "opt", **TEXT, "ffn_dim": 64, "word_embed_proj_dim": 64}
SUPERPOINT = {
    **{"model_type": "superpoint", "encoder_hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 16},
    **{"descriptor_decoder_dim": 64, "max_keypoints": 16},
}
SWIN = {
    **{"model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1]},
    **{"num_heads": [1, 2, 2, 2], "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
}
QWEN4_EXP = {
    **TEXT,
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    **{"layer_types": ["linear_attention", "indexed_attention"], "hc_lowrank": 8, "eos_token_id": 2},
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32},
    **{"indexer_budget": 16, "indexer_compress_ratio": 4},
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
    },
}
DIA = {
    **TEXT,
    **{"cross_num_attention_heads": 4, "cross_head_dim": 32, "cross_num_key_value_heads": 4, "cross_hidden_size": 64},
    **{"num_channels": 3, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3},
}
TOKENIZER = {"num_filters": 4, "downsampling_ratios": [2, 4], "depths": [1, 1, 1], "hidden_size": 8}

DOTS3_NOTE = {
    **TEXT,
    **{"num_key_value_heads": 4, "moe_intermediate_size": 32, "shared_experts_intermediate_size": 32},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2},
    **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_nope_head_dim": 16},
    **{"index_topk": 8, "index_head_dim": 32, "index_n_heads": 2},
}
DOTS3_NOTE_AUDIO = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"feature_size": 32, "downsample_hidden_size": 8, "adapter_input_size": 64, "adapter_out_dim": 64},
}
GROUNDING_DINO = {
    "backbone_config": {**SWIN, "out_features": ["stage2", "stage3", "stage4"]},
    "text_config": {"model_type": "bert", **TEXT},
    **{"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 5},
    **{
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
    "max_text_len": 13,
}
FORECASTERS = ("autoformer", "informer", "time_series_transformer")
FORECASTER = {
    **{"prediction_length": 8, "context_length": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    **{"lags_sequence": [1, 2], "num_time_features": 2},
}

TINY: dict[str, dict[str, Any]] = {
    "mobilebert": {
        **{"hidden_size": 64, "embedding_size": 32, "intra_bottleneck_size": 64, "true_hidden_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 131},
    },
    "bailing_hybrid": {
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
        **{"intermediate_size": 64, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
        **{
            "num_local_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "layer_group_size": 2,
            "vocab_size": 131,
            "head_dim": 32,
        },
        **{"pad_token_id": 1, "eos_token_id": 2},
        **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
    },
    "dbrx": {
        **{"d_model": 64, "hidden_size": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 131},
        **{"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "zamba2": {
        **{
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": 131,
            "use_mem_rope": True,
        },
        **{"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "n_mamba_heads": 8, "mamba_d_state": 16},
        **{"adapter_rank": 8, "intermediate_size": 64},
    },
    "dots3_note_text": DOTS3_NOTE,
    "dots3_note": {
        "text_config": DOTS3_NOTE,
        "vision_config": {
            **{**VISION, "mlp_layer_types": ["dense", "dense"]},
            **{"adapter_in_dim": 64, "adapter_out_dim": 64},
        },
        "audio_config": DOTS3_NOTE_AUDIO,
        **{"image_token_id": 3, "video_token_id": 4, "audio_token_id": 5},
    },
    "pi0": {
        "vlm_config": {
            **{"model_type": "paligemma", "text_config": {"model_type": "gemma", **TEXT}},
            **{"vision_config": SIGLIP, "image_token_index": 7, "projection_dim": 64},
        },
        **{"dit_config": {"model_type": "gemma", **TEXT}, "chunk_size": 5},
    },
    "granite4_vision": {
        **{"vision_config": SIGLIP, "text_config": TEXT, "qformer_config": {"model_type": "blip_2_qformer", **QFORMER}},
        **{"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [], "downsample_rate": "1/2"},
        **{"image_token_index": 7, "image_grid_pinpoints": [[16, 16]]},
    },
    "unlimited_ocr_vision_encoder": IMAGE,
    "unlimited_ocr_vision": {"sam_config": SAM, "encoder_config": IMAGE},
    "deepseek_ocr2_vision": {"sam_config": SAM, "encoder_config": TEXT},
    "grounding-dino": GROUNDING_DINO,
    "mm-grounding-dino": GROUNDING_DINO,
    **{
        f"sam3_{lite}{part}": {
            **{"hidden_size": 64, "num_layers": 1, "num_attention_heads": 4, "intermediate_size": 64},
            "num_queries": 5,
        }
        for lite in ("", "lite_text_")
        for part in ("detr_encoder", "detr_decoder", "mask_decoder")
    },
    "rf_detr": {
        "backbone_config": {
            **{"model_type": "rf_detr_dinov2", **IMAGE, "image_size": 32, "num_windows": 2, "out_indices": [1, 2]},
        },
        **{"d_model": 32, "decoder_layers": 1, "num_queries": 5, "group_detr": 1, "decoder_ffn_dim": 32},
        **{"decoder_self_attention_heads": 4, "decoder_cross_attention_heads": 4},
    },
    "efficientnet": {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "speech-encoder-decoder": {
        "encoder": {
            **{"model_type": "wav2vec2", **TEXT, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4]},
            **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
        },
        "decoder": {"model_type": "bert", **TEXT, "is_decoder": True, "add_cross_attention": True},
    },
    "qwen4_exp_text": QWEN4_EXP,
    "qwen4_exp": {
        "text_config": QWEN4_EXP,
        "vision_config": {
            **{"depth": 2, "hidden_size": 64, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 64},
            **{"num_position_embeddings": 16, "patch_size": 4},
        },
        **{"image_token_id": 3, "video_token_id": 4},
    },
    "emu3": {
        "text_config": {**TEXT, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2},
        "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1], "hidden_size": 32, "codebook_size": 16},
        "vocabulary_map": {"<image>": 4},
    },
    "dia_decoder": DIA,
    "dia": {"encoder_config": TEXT, "decoder_config": DIA, "delay_pattern": [0, 1, 2]},
    "udop": {
        **{"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 131, "image_size": 32},
        **{"dropout_rate": 0.0, "max_2d_position_embeddings": 64, "patch_size": 8},
    },
    "muse_spark": {
        "text_config": {**TEXT, "moe_intermediate_size": 32, "num_local_experts": 8, "moe_hidden_size": 32},
        "vision_config": {**VISION, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16},
        "audio_config": {
            "hidden_sizes": [8, 16],
            "patch_sizes": [16, 6],
            "depths": [1, 1],
            "out_hidden_size": 64,
            "num_hidden_layers": 2,
        },
        **{"image_token_id": 3, "video_token_id": 4, "audio_token_id": 5, "out_hidden_size": 64},
        "projector_hidden_size": 32,
    },
    "inkling2": {
        "text_config": {
            **TEXT,
            **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 32, "d_rel": 4},
            **{"sliding_window_size": 8, "rel_extent": 16, "n_routed_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 32, "unpadded_vocab_size": 120, "n_layers_per_attn_res_block": 1},
        },
        "vision_config": {**VISION, "posemb_grid_size": 4, "projection_hidden_dim": 32, "text_hidden_size": 64},
        "image_token_id": 3,
    },
    "vibevoice": {
        **{"audio_config": TOKENIZER, "semantic_model_config": TOKENIZER, "text_config": TEXT},
        "diffusion_head_config": {"hidden_size": 64, "latent_size": 8, "num_hidden_layers": 1, "intermediate_size": 32},
        **{"pad_token_id": 1, "eos_token_id": 1, "audio_bos_token_id": 2, "audio_eos_token_id": 3, "audio_token_id": 4},
    },
    "vibevoice_asr": {
        **{"acoustic_tokenizer_encoder_config": TOKENIZER, "semantic_tokenizer_encoder_config": TOKENIZER},
        **{"text_config": TEXT, "audio_token_id": 4, "audio_bos_token_id": 2, "audio_eos_token_id": 3},
    },
    **{f"vibevoice_acoustic_tokenizer{part}": TOKENIZER for part in ("", "_encoder", "_decoder")},
    "vision-text-dual-encoder": {
        "vision_config": {"model_type": "vit", **VISION, "image_size": 16},
        "text_config": {"model_type": "bert", **TEXT},
        "projection_dim": 32,
    },
    "qwen3_omni_moe_talker_code_predictor": {**TEXT, "num_code_groups": 3},
    "moshi_depth": {
        **{"hidden_size": 64, "input_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64},
        **{"audio_vocab_size": 120, "vocab_size": 131, "head_dim": 16},
    },
    "blip_2_qformer": {**TEXT, "encoder_hidden_size": 64},
    "blt": {
        **{"vocab_size": 131, "encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3, 4]},
        "patcher_config": {**TEXT, "num_key_value_heads": 4, "head_dim": 16, "sliding_window": 8},
        "encoder_config": {**TEXT, "num_key_value_heads": 4, "head_dim": 16, "hidden_size_global": 128},
        "decoder_config": {**TEXT, "num_key_value_heads": 4, "head_dim": 16, "hidden_size_global": 128},
        "global_config": {**TEXT, "num_key_value_heads": 4, "head_dim": 32, "hidden_size": 128},
        "local_attention_window_len": 8,
    },
    **{
        f"blt_local_{part}": {**TEXT, "num_key_value_heads": 4, "head_dim": 16, "hidden_size_global": 128}
        for part in ("encoder", "decoder")
    },
    "dots3_note_audio_encoder": DOTS3_NOTE_AUDIO,
    "phi4_multimodal_audio": {
        **{"hidden_size": 64, "intermediate_size": 64, "num_blocks": 2, "num_attention_heads": 4, "feature_layer": -1},
        **{"ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64, "nemo_conv_channels": 64},
    },
    "inkling_audio": {"n_mel_bins": 8, "mel_vocab_size": 120, "text_hidden_size": 32},
    "inkling2_vision": {**VISION, "posemb_grid_size": 4, "projection_hidden_dim": 32, "text_hidden_size": 64},
    "muse_spark_audio": {
        **{"hidden_sizes": [8, 16], "patch_sizes": [16, 6], "depths": [1, 1], "out_hidden_size": 64},
        "num_hidden_layers": 2,
    },
    "shieldgemma2": {
        "text_config": TEXT,
        "vision_config": {**VISION, "image_size": 16},
        **{"mm_tokens_per_image": 4, "yes_token_index": 5, "no_token_index": 6, "image_token_index": 7},
    },
    "blip-2": {
        **{"vision_config": IMAGE, "qformer_config": QFORMER, "text_config": OPT},
        **{"num_query_tokens": 4, "image_token_index": 7},
    },
    "instructblip": {
        **{"vision_config": IMAGE, "qformer_config": QFORMER, "text_config": OPT},
        **{"num_query_tokens": 4, "image_token_index": 7},
    },
    "instructblipvideo": {
        **{"vision_config": IMAGE, "qformer_config": QFORMER, "text_config": OPT},
        **{"num_query_tokens": 1, "video_token_index": 7},
    },
    "kosmos-2": {
        "text_config": {"embed_dim": 64, "layers": 2, "ffn_dim": 64, "attention_heads": 4, "vocab_size": 131},
        **{"vision_config": IMAGE, "latent_query_num": 4},
    },
    "idefics": {
        **TEXT,
        **{
            "num_key_value_heads": 4,
            "vision_config": {**IMAGE, "embed_dim": 64},
            "cross_layer_interval": 1,
            "head_dim": 16,
        },
    },
    "llama4_vision_model": {
        **IMAGE,
        **{"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64, "vision_output_dim": 64},
    },
    "mllama_vision_model": {
        **IMAGE,
        **{"attention_heads": 4, "num_global_layers": 1, "max_num_tiles": 2, "intermediate_layers_indices": [0]},
        **{"vision_output_dim": 128, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]},
    },
    "molmo2_vision": {
        **IMAGE,
        **{"num_key_value_heads": 4, "head_dim": 16, "image_size": [16, 16], "num_position_embeddings": 16},
    },
    **{
        f"{prompt}depth_anything": {
            "backbone_config": {"model_type": "dinov2", **IMAGE, "out_indices": [1, 2], "reshape_hidden_states": False},
            **{"reassemble_hidden_size": 64, "reassemble_factors": [1, 0.5], "neck_hidden_sizes": [8, 8]},
            **{"fusion_hidden_size": 8, "head_hidden_size": 8, "patch_size": 4},
        }
        for prompt in ("", "prompt_")
    },
    "xclip_vision_model": {
        **IMAGE,
        **{"mit_hidden_size": 64, "mit_intermediate_size": 64, "mit_num_attention_heads": 4, "num_frames": 8},
    },
    "tvp": {
        **TEXT,
        "backbone_config": {
            **{"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 64], "depths": [1, 1]},
            "out_features": ["stage2"],
        },
        **{"max_img_size": 128, "visual_prompt_size": 8, "num_frames": 2},
    },
    "seggpt": {
        **VISION,
        **{"image_size": [32, 16], "pretrain_image_size": 16, "decoder_hidden_size": 8, "merge_index": 0},
        "intermediate_hidden_state_indices": [0, 1],
    },
    **{
        name: {
            "vision_config": {
                **VISION,
                **{"image_size": 64, "output_channels": 32, "global_attn_indexes": [1], "window_size": 4},
                **{"num_pos_feats": 16, "mlp_dim": 64},
            },
            "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 4, "mask_input_channels": 4},
            "mask_decoder_config": {
                **{"hidden_size": 32, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
                **{"iou_head_hidden_dim": 16, "vit_dim": 64},
            },
        }
        for name in ("sam", "sam_hq")
    },
    "perceiver": {
        **{"num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 1},
        **{"num_self_attention_heads": 4, "num_cross_attention_heads": 4},
    },
    "lightglue": {
        **{"keypoint_detector_config": SUPERPOINT, "descriptor_dim": 64, "num_hidden_layers": 2},
        "num_attention_heads": 4,
    },
    "superglue": {
        **{"keypoint_detector_config": SUPERPOINT, "hidden_size": 64, "keypoint_encoder_sizes": [8, 16]},
        **{"gnn_layers_types": ["self", "cross"], "num_attention_heads": 4},
    },
    "mask2former": {
        **{"backbone_config": SWIN, "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32},
        **{"encoder_feedforward_dim": 32, "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4},
        **{"dim_feedforward": 32, "num_queries": 8},
    },
    "maskformer": {
        **{"backbone_config": SWIN, "fpn_feature_size": 32, "mask_feature_size": 32},
        "decoder_config": {
            **{"model_type": "detr", "d_model": 32, "decoder_layers": 1, "encoder_layers": 1, "num_queries": 8},
            **{"decoder_ffn_dim": 32, "encoder_ffn_dim": 32},
        },
    },
    "oneformer": {
        **{"backbone_config": SWIN, "conv_dim": 32, "mask_dim": 32, "hidden_dim": 32, "encoder_feedforward_dim": 32},
        **{"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 32},
        **{"num_queries": 8, "query_dec_layers": 1, "task_seq_len": 13, "text_encoder_width": 32},
        **{"text_encoder_context_length": 13, "text_encoder_num_layers": 1, "text_encoder_vocab_size": 131},
        "dropout": 0.0,
    },
    "layoutlmv3": {
        **{"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
        **{
            "coordinate_size": 16,
            "shape_size": 16,
            "vocab_size": 131,
            "input_size": 64,
            "max_2d_position_embeddings": 64,
        },
    },
    "decision_transformer": {
        **{
            "state_dim": 17,
            "act_dim": 4,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 2,
            "max_ep_len": 64,
            "vocab_size": 1,
        },
    },
    "timesfm": {
        **{
            "hidden_size": 64,
            "intermediate_size": 64,
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
        },
        **{"context_length": 64, "horizon_length": 16, "patch_length": 8},
    },
    "timesfm2_5": {
        **{
            "hidden_size": 64,
            "intermediate_size": 64,
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
        },
        **{"num_key_value_heads": 2, "context_length": 64, "horizon_length": 16, "patch_length": 8},
    },
    **dict.fromkeys(FORECASTERS, FORECASTER),
}
"""Configurations, by the names of architectures."""

WITH_IMAGE = torch.tensor([[7] * 4 + list(range(10, 19))] * 2)
PIXELS = {"pixel_values": draw(2, 3, 64, 64)}
PAIRS = {"pixel_values": draw(2, 2, 3, 64, 64)}
POINTS = {**PIXELS, "input_points": draw(2, 1, 2, 2)}
SERIES = {
    **{"past_values": draw(2, 18), "past_time_features": draw(2, 18, 2), "past_observed_mask": torch.ones(2, 18)},
    **{"future_values": draw(2, 8), "future_time_features": draw(2, 8, 2)},
}

FIXED_INPUTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(FORECASTERS, SERIES),
    "patchtst": {"past_values": draw(2, 32, 1)},
    "patchtsmixer": {"past_values": draw(2, 32, 1)},
    "timesfm": {
        "past_values": draw(2, 64),
        "past_values_padding": torch.zeros(2, 64),
        "freq": torch.zeros(2, 1, dtype=torch.long),
    },
    "timesfm2_5": {"past_values": draw(2, 64)},
    "dia": {"input_ids": [2, 13], "decoder_input_ids": [2, 13, 3]},
    "dia_decoder": {"input_ids": [2, 13, 3], "encoder_hidden_states": draw(2, 13, 64)},
    "udop": {"input_ids": [2, 13], "decoder_input_ids": [2, 13], "bbox": torch.rand(2, 13, 4, generator=GENERATOR)},
    "voxtral_realtime": {"input_ids": [2, 13], "input_features": draw(2, 128, 104)},
    "qwen3_omni_moe_talker_code_predictor": {"inputs_embeds": draw(2, 13, 64)},
    "phi4_multimodal_audio": {"hidden_states": draw(2, 40, 80), "mask": torch.ones(2, 40, dtype=torch.bool)},
    "gemma3n_audio": {"audio_mel": draw(2, 40, 128), "audio_mel_mask": torch.zeros(2, 40, dtype=torch.bool)},
    "gemma4_audio": {"input_features": draw(2, 40, 128)},
    "vision-text-dual-encoder": {"input_ids": [2, 13], "pixel_values": draw(2, 3, 16, 16)},
    "rag": {
        **{
            "input_ids": [2, 13],
            "decoder_input_ids": [2, 13],
            "context_input_ids": [10, 13],
            "doc_scores": draw(2, 5),
        },
        "context_attention_mask": torch.ones(10, 13),
    },
    "blt": {"input_ids": [2, 13], "use_cache": False},
    "moshi_depth": {"input_ids": [2, 8], "last_hidden_state": draw(2, 1, 32)},
    "blip_2_qformer": {"query_embeds": draw(2, 13, 64), "encoder_hidden_states": draw(2, 16, 64)},
    "blt_local_encoder": {
        **{"input_ids": [2, 13], "patch_embeds": draw(2, 4, 64), "num_patches": 4},
        "patch_ids": torch.arange(13).div(4, rounding_mode="floor").expand(2, 13),
    },
    "blt_local_decoder": {"input_ids": [2, 13], "inputs_embeds": draw(2, 13, 64), "patch_embeds": draw(2, 4, 128)},
    "fun_asr_nano_encoder": {"input_features": draw(2, 40, 560), "input_features_mask": torch.ones(2, 40)},
    "dots3_note_audio_encoder": {
        "input_features": draw(2, 32, 64),
        "chunk_sample_lengths": torch.tensor([64 * 160] * 2),
    },
    "inkling_audio": {"audio_input_ids": [2, 13, 8]},
    "inkling2_vision": {"pixel_values": draw(8, 8, 8, 3), "image_grid_thw": torch.tensor([[1, 2, 2]] * 2)},
    "muse_spark_audio": {"input_values": draw(2, 960)},
    "mimi_decoder": {"latents": draw(2, 512, 13)},
    "pocket_tts_audio_tokenizer_decoder": {"latents": draw(2, 32, 13)},
    "blip-2": {"input_ids": WITH_IMAGE, "pixel_values": draw(2, 3, 16, 16)},
    "instructblip": {"input_ids": WITH_IMAGE, "qformer_input_ids": [2, 13], "pixel_values": draw(2, 3, 16, 16)},
    "instructblipvideo": {
        "input_ids": WITH_IMAGE,
        "qformer_input_ids": [2, 13],
        "pixel_values": draw(2, 4, 3, 16, 16),
    },
    "kosmos-2": {
        **{"input_ids": [2, 13], "pixel_values": draw(2, 3, 16, 16)},
        "image_embeds_position_mask": (WITH_IMAGE == 7).long(),
    },
    "idefics": {
        **{"input_ids": [2, 13], "pixel_values": draw(2, 1, 3, 16, 16)},
        "image_attention_mask": torch.ones(2, 13, 1),
    },
    "llama4_vision_model": {"pixel_values": draw(2, 3, 16, 16)},
    "mllama_vision_model": {
        **{"pixel_values": draw(2, 1, 2, 3, 16, 16), "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long)},
        "aspect_ratio_mask": torch.ones(2, 1, 2, dtype=torch.long),
    },
    "molmo2_vision": {"pixel_values": draw(2, 16, 48)},
    "depth_anything": {"pixel_values": draw(2, 3, 16, 16)},
    "prompt_depth_anything": {"pixel_values": draw(2, 3, 16, 16), "prompt_depth": draw(2, 1, 8, 8)},
    "xclip_vision_model": {"pixel_values": draw(16, 3, 16, 16)},
    "tvp": {"input_ids": [1, 13], "pixel_values": draw(1, 2, 3, 128, 128), "attention_mask": torch.ones(1, 13)},
    "seggpt": {
        **{
            "pixel_values": draw(2, 3, 16, 16),
            "prompt_pixel_values": draw(2, 3, 16, 16),
            "prompt_masks": draw(2, 3, 16, 16),
        }
    },
    "sam": POINTS,
    "sam_hq": POINTS,
    "pi0": {
        "action_embeds": draw(2, 6, 64),
        **{"input_ids": torch.tensor([[7] * 16 + list(range(10, 19))] * 2), "pixel_values": draw(2, 1, 3, 16, 16)},
        "pixel_attention_mask": torch.ones(2, 1, dtype=torch.bool),
    },
    "unlimited_ocr_vision_encoder": {"patch_embeds": draw(2, 64, 4, 4)},
    "unlimited_ocr_vision": PIXELS,
    "deepseek_ocr2_vision": PIXELS,
    "grounding-dino": {**PIXELS, "input_ids": [2, 13]},
    "mm-grounding-dino": {**PIXELS, "input_ids": [2, 13]},
    **{
        f"sam3_{lite}{part}": given
        for lite in ("", "lite_text_")
        for part, given in {
            "detr_encoder": {
                **{"vision_features": [draw(2, 64, 4, 4)], "vision_pos_embeds": [draw(2, 64, 4, 4)]},
                "text_features": draw(2, 13, 64),
            },
            "detr_decoder": {
                **{"vision_features": draw(2, 16, 64), "vision_pos_encoding": draw(2, 16, 64)},
                **{"text_features": draw(2, 13, 64), "spatial_shapes": torch.tensor([[4, 4]])},
            },
            "mask_decoder": {
                **{"decoder_queries": draw(2, 5, 64), "encoder_hidden_states": draw(2, 16, 64)},
                "backbone_features": [draw(2, 64, 16, 16), draw(2, 64, 8, 8), draw(2, 64, 4, 4)],
            },
        }.items()
    },
    "rf_detr": {"pixel_values": draw(2, 3, 32, 32)},
    "efficientnet": {"pixel_values": draw(2, 3, 32, 32)},
    "speech-encoder-decoder": {"input_values": draw(2, 8000), "decoder_input_ids": [2, 13]},
    "perceiver": {"inputs": draw(2, 13, 32)},
    **dict.fromkeys(("lightglue", "superglue", "efficientloftr"), PAIRS),
    **dict.fromkeys(("mask2former", "maskformer"), PIXELS),
    "oneformer": {"pixel_values": draw(2, 3, 64, 64), "task_inputs": draw(2, 13)},
    "jev": {
        **{"input_ids": [1, 13], "marks": torch.tensor([[3, 7]]), "num_options": torch.tensor([[2, 2]])},
        "question_type_ids": torch.tensor([[0, 1]]),
    },
    "vibevoice_acoustic_tokenizer": {"input_values": draw(2, 1, 800)},
    "vibevoice_acoustic_tokenizer_encoder": {"input_values": draw(2, 1, 800)},
    "vibevoice_acoustic_tokenizer_decoder": {"latents": draw(2, 8, 13)},
    "decision_transformer": {
        **{
            "states": draw(2, 5, 17),
            "actions": draw(2, 5, 4),
            "rewards": draw(2, 5, 1),
            "returns_to_go": draw(2, 5, 1),
        },
        **{"timesteps": torch.arange(5).expand(2, 5), "attention_mask": torch.ones(2, 5)},
    },
    "layoutlmv3": {
        "input_ids": [2, 13],
        "bbox": torch.tensor([3, 5, 20, 30]).expand(2, 13, 4),
        "pixel_values": draw(2, 3, 64, 64),
    },
}
"""What they are given: the tensor itself, or [a shape] of tokens."""
