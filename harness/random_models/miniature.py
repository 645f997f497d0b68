"""Tiny models with seeded random weights of any text architecture in transformers, for the table of supported models.

Sizes are set by the names that configs use for them; further values are listed by model type.
"""

import inspect
import json
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from harness.random_models import synthetic

VOCABULARY, LAYERS, POSITIONS = 1000, 3, 320
WIDTHS = {
    64: "hidden_size d_model n_embd dim emb_dim embed_dim embedding_size dim_model attention_hidden_size "
    "attention_output_dim width lru_width entity_emb_size pronunciation_embed_dim shape_embed_dim",
    LAYERS: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers encoder_layer_nums",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads num_experts n_routed_experts num_local_experts "
    "moe_num_experts index_n_heads mamba_n_heads linear_num_value_heads linear_num_key_heads",
    2: "num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k top_k_experts "
    "num_kv_heads swa_num_key_value_heads zero_expert_num num_experts_per_topk",
    1: "n_group topk_group num_expert_group n_shared_experts num_shared_experts first_k_dense_replace num_dense_layers",
    16: "head_dim d_kv kv_channels qk_nope_head_dim qk_rope_head_dim v_head_dim q_lora_rank kv_lora_rank "
    "attention_head_size dim_head index_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim "
    "global_head_dim sliding_window attention_window local_attention window_size attention_chunk_size "
    "local_attention_window_len mamba_d_state state_size hidden_size_per_layer_input laurel_rank o_lora_rank "
    "index_topk mamba_dt_rank adapter_rank swa_v_head_dim",
    24: "floor_scale",
    128: "intermediate_size d_ff n_inner hidden_dim encoder_ffn_dim decoder_ffn_dim ffn_dim moe_intermediate_size "
    "d_inner shared_expert_intermediate_size dim_ff ffn_hidden_size expert_ffn_hidden_size feed_forward_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size block_ff_dim block_multiple_of "
    "encoder_intermediate_size",
    VOCABULARY: "vocab_size entity_vocab_size pronunciation_vocab_size shape_vocab_size src_vocab_size tgt_vocab_size "
    "vocab_size_per_layer_input",
    POSITIONS: "max_position_embeddings n_positions n_ctx max_source_positions max_target_positions max_seq_len "
    "max_encoder_position_embeddings max_decoder_position_embeddings model_max_length seq_length",
}
SIZES: dict[str, Any] = {name: size for size, names in WIDTHS.items() for name in names.split()}
SIZES |= dict.fromkeys(("initializer_range", "init_std"), 0.2)
SIZES |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
SIZES |= {"mask_token_id": 4, "decoder_start_token_id": 2, "forced_eos_token_id": 3}
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers", "attn_layers", "block_types")
"""Keys with one entry a layer; every kind of layer that the family has by default stays in."""
PARTS = {"": "Transformer", "1_Pooling": "Pooling"}
SPECIAL = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
OTHER_SENSES = ("vision", "audio", "speech", "text", "codec", "image", "vq", "thinker", "video")
"""Words for parts of composite models; a text encoder has none of them."""
OTHER_INPUTS = ("pixel", "image", "visual", "audio", "input_features", "waveform", "protein", "video")
SPEECH_TYPES = {"dia"}  # makes sound from text, and is in none of the lists below
OTHER_TASKS = ("TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM", "CAUSAL_IMAGE_MODELING")
"""Tasks of models whose tokens stand for sounds or pictures."""

# Values that a model type needs beyond the names above.
SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}
SMALL |= {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
GEMMA = SMALL | {"num_key_value_heads": 2, "sliding_window": 16, "query_pre_attn_scalar": 16, "initializer_range": 0.2}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
BYTES = SMALL | {"hidden_size_global": 64, "num_key_value_heads": 4, "sliding_window": 16, "initializer_range": 0.2}
NARROW = {"initializer_range": 0.1}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
HALF_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "big_bird": {"block_size": 8},
    "blt": {f"{part}_config": BYTES for part in ("patcher", "encoder", "decoder", "global")}
    | {"encoder_hash_byte_group_vocab": 500},
    "cosmos3_edge_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}},
    "codegen": {"rotary_dim": 8},
    "ctrl": {"dff": 128},
    "dots3_note_text": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * LAYERS},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0}
    | {"linear_head_dim": 16, "linear_num_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    "funnel": {"block_sizes": [1, 1, 1], "num_decoder_layers": 1, "d_head": 16},
    # Heads of 512 numbers, the default of these types, magnify rounding errors.
    **{key: {"global_head_dim": 32} for key in ("embedding_gemma2_text", "gemma4_text", "gemma4_unified_text")},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **dict.fromkeys(("glm4v_text", "glm_image_text", "glm_ocr_text"), HALF_MROPE),
    **dict.fromkeys(("qwen2_5_vl_text", "qwen2_vl_text"), MROPE),
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 4},
    **{kind: {"layer_types": ["conv", "full_attention", "conv"]} for kind in ("lfm2", "lfm2_moe")},
    "llama4_text": {"attn_temperature_tuning": True, "no_rope_layers": [1, 0, 1]},
    "mamba2": {"num_heads": 8} | NARROW,
    "muse_spark_text": {"moe_hidden_size": 64, "layer_rope_theta": [1e4, 0, 1e4]},
    # A wider initialisation of these types magnifies rounding errors.
    **dict.fromkeys(("granitemoe", "hrm_text"), NARROW),
    # A gated delta net normalises each head's output, which random weights often leave near zero.
    **{key: {"initializer_range": 0.05} for key in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    | {"indexer_budget": 16, "indexer_compress_ratio": 4},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, POSITIONS // 16]},
    "t5gemma": {"encoder": GEMMA, "decoder": GEMMA | {"cross_attention_hidden_size": 64}},
    "cpmant": {"position_bias_num_buckets": 32, "position_bias_max_distance": 64},
    "lilt": {"hidden_size": 96},
    "xmod": {"default_language": "en_XX"},
    "hunyuan_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}},
    "mistral4": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
        | {"original_max_position_embeddings": 32}
    },
    "glm4v_moe_text": HALF_MROPE | {"head_dim": 16},
    "mobilebert": {"normalization_type": "layer_norm"},
    "zamba": {"attention_head_dim": 32, "attention_hidden_size": 128, "num_hidden_layers": 4}
    | {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "zamba2": {"attention_head_dim": 32, "attention_hidden_size": 128, "mamba_headdim": 16},
    "zaya": {"num_experts_per_tok": 1, "initializer_range": 0.1},
}


def model_types() -> Iterator[str]:
    """Yields every model type of the installed transformers whose bare model reads token ids and nothing else."""
    excluded = SPEECH_TYPES | {
        kind for name in OTHER_TASKS for kind in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {})
    }
    for kind in sorted(modeling_auto.MODEL_MAPPING_NAMES):
        if kind not in excluded and _reads_ids_alone(kind):
            yield kind


def _reads_ids_alone(kind: str) -> bool:
    try:
        config = CONFIG_MAPPING[kind]
        model = model_class(config)
        inputs = list(inspect.signature(model.forward).parameters)
    except (ImportError, KeyError, ValueError):  # a package that is missing, or a name without a class
        return False
    parts = " ".join(getattr(config, "sub_configs", None) or {})
    other = any(sense in parts for sense in OTHER_SENSES) or any(
        word in name for name in inputs for word in OTHER_INPUTS
    )
    return bool(model.main_input_name == "input_ids" and inputs[1:2] == ["input_ids"] and not other)


def model_class(config: type[PretrainedConfig]) -> Any:
    """Finds the class of the bare model for a config's class."""
    chosen = MODEL_MAPPING[config]
    return chosen[0] if isinstance(chosen, list | tuple) else chosen


def config_of(kind: str, **options: Any) -> PretrainedConfig:
    """Makes a small config of a model type, changed by `options`. Raises what its class raises."""
    usual = CONFIG_MAPPING[kind]().to_dict()
    chosen = {name: size for name, size in SIZES.items() if name in usual} | OVERRIDES.get(kind, {})
    layers = next((chosen[name] for name in SIZES if SIZES[name] == LAYERS and name in chosen), LAYERS)
    for name in LISTS:
        if isinstance(usual.get(name), list) and name not in OVERRIDES.get(kind, {}):
            chosen[name] = list(islice(cycle(dict.fromkeys(usual[name])), layers))
    if "kv_lora_rank" in usual:  # latent attention makes keys for all heads
        chosen["num_key_value_heads"] = 4
    return CONFIG_MAPPING[kind](**(chosen | OVERRIDES.get(kind, {}) | options))


def write(folder: Path, kind: str, tokenizer: Any = None, **options: Any) -> Any:
    """Writes a tiny model of a type, a tokenizer, and mean pooling in sentence-transformers' form; returns the model.

    `tokenizer` is one of transformers'; None for the synthetic one. Raises what the model's class raises.
    """
    config = config_of(kind, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(synthetic.SEED)
        model = model_class(type(config))(config).eval()
        widen(model, float(getattr(config, "initializer_range", 0.2)))
    model.save_pretrained(folder)
    (tokenizer or tokenizer_of(folder)).save_pretrained(folder)
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(PARTS.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {"pooling_mode": "mean", "embedding_dimension": int(getattr(config, "hidden_size", 64))}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return model


def widen(model: nn.Module, spread: float) -> None:
    """Widens weights that a class initialises near zero: at 0.02 an engine that mixed all texts would still pass."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.std() < spread / 2:
                parameter.normal_(0, spread)


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """Makes a transformers tokenizer of the synthetic one, through a file in `folder`."""
    file = folder / "tokenizer.json"
    file.write_bytes(synthetic.tokenizer(VOCABULARY).content)
    return PreTrainedTokenizerFast(tokenizer_file=str(file), model_max_length=256, **SPECIAL)
