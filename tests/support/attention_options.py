"""What a config may say that changes attention, for every architecture whose config has it: the table of a sweep.

The combinations follow from the configs of the installed transformers, so a new release adds its own.
"""

from collections.abc import Iterator
from typing import Any

from harness.random_models import miniature

SWITCHES = (
    "alibi", "apply_residual_connection_post_layernorm", "attention_bias", "attention_softmax_in_fp32",
    "attn_temperature_tuning", "axial_pos_embds", "bi_data", "causal", "emb_layer_norm_before", "is_causal",
    "is_decoder", "learned_pos_emb", "new_decoder_architecture", "no_bias", "parallel_attn",
    "parallel_residual", "position_biased_input", "prefix_lm", "qk_layernorm", "qkv_bias", "relative_attention",
    "reorder_and_upcast_attn", "rope_interleave", "rotary_value", "same_length", "scale_attention_softmax_in_fp32",
    "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "share_att_key", "sinusoidal_embeddings",
    "sinusoidal_pos_embds", "slow_but_exact", "token_dropout", "use_bias", "use_mem_rope",
    "use_parallel_residual", "use_qk_norm", "use_qkv_bias",
)  # fmt: skip
"""Each is turned to what it is not by default."""
VALUES: dict[str, tuple[Any, ...]] = {
    "attention_type": ("original_full",),
    "attn_logit_softcapping": (1.0, None),
    "attn_type": ("uni",),
    "clamp_len": (5,),
    "clip_qkv": (0.5,),
    "final_logit_softcapping": (1.0,),
    "max_relative_positions": (8,),
    "partial_rotary_factor": (0.5,),
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query", "rotary"),
    "relative_attention_num_buckets": (8,),
    "sliding_window": (7, None),
    "use_bidirectional_attention": (True,),
}
"""Each of these where a config has the name, but for what it is by default."""
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {"factor": 4.0, "original_max_position_embeddings": 32}
    | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "dynamic": {"factor": 4.0},
}
"""Rotary positions, for a few families that look them up alike."""
OF_ONE: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("falcon", {"alibi": alibi, **options}) for alibi in (False, True) for options in (
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"multi_query": False, "num_kv_heads": 4},
        {"parallel_attn": False},
        {"parallel_attn": False, "multi_query": False, "num_kv_heads": 4, "bias": True},
        {"attn_implementation": "eager"},
    )),
    *((kind, {"relative_attention": True, "pos_att_type": terms, "share_att_key": True, **options})
        for kind in ("deberta", "deberta-v2") for terms in ("c2p", "p2c", "c2p|p2c") for options in (
            {}, {"position_biased_input": False}, {"max_relative_positions": 8},
    )),
    ("deberta-v2", {"relative_attention": True, "pos_att_type": "c2p", "share_att_key": False, "position_buckets": 16}),
    ("deberta-v2", {"relative_attention": True, "pos_att_type": "p2c", "conv_kernel_size": 3}),
    ("gpt_bigcode", {"multi_query": False}),
    *(("mpt", {"attn_config": options}) for options in (
        {"alibi": False}, {"alibi": True, "alibi_bias_max": 4}, {"qk_ln": True}, {"clip_qkv": 0.5},
        {"softmax_scale": 0.1}, {"prefix_lm": True},
    )),
    *((kind, {"is_causal": False}) for kind in ("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt_neox")),
    *((kind, {"attn_implementation": "eager"}) for kind in ("bert", "bloom", "gpt2", "llama", "modernbert", "t5")),
    *((kind, {"attn_implementation": "sdpa"}) for kind in ("bert", "gemma2", "gpt_oss")),
    *((kind, {"attn_implementation": "flash_attention_2"}) for kind in ("bert", "llama")),
    *((kind, {"output_attentions": True}) for kind in ("bert", "falcon", "gpt2", "llama", "xlnet")),
    *((kind, {"is_decoder": True, "add_cross_attention": False}) for kind in ("bert", "roberta", "electra")),
    *((kind, {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "layer_types": None})
        for kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen2_5_vl_text", "qwen2_vl_text")),
    *((kind, {"use_cache": True}) for kind in ("bert", "bloom", "gpt2", "llama", "mamba", "mpt", "t5", "xlnet")),
    *((kind, {"num_key_value_heads": heads}) for kind in ("llama", "qwen3", "gemma2") for heads in (1, 4)),
    *((kind, {"rope_parameters": {"rope_type": name, "rope_theta": 1e4, **options}})
        for kind in ("llama", "qwen2", "gpt_neox", "phi3", "falcon", "stablelm") for name, options in ROPES.items()),
)  # fmt: skip
"""What goes together, and what one family alone has."""


def combinations(kinds: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Model types and what their configs are told."""
    for kind in kinds:
        try:
            usual = miniature.config_of(kind).to_dict()
        except Exception:  # transformers cannot build it
            continue
        for name in SWITCHES:
            if isinstance(usual.get(name), bool):
                yield kind, {name: not usual[name]}
        for name, values in VALUES.items():
            if name in usual:
                yield from ((kind, {name: value}) for value in values if value != usual[name])
        yield from ((each, options) for each, options in OF_ONE if each == kind)


def named(kind: str, options: dict[str, Any]) -> str:
    """A combination in one word."""
    return "-".join([kind, *(f"{name}={value}" for name, value in options.items())])
