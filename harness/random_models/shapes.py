"""Known shapes of models: encoders of every family, tiny ones for tests and published ones for measuring, and heads."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_worker.repository.recipe import WeightsOf

TINY = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 640,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
T5: dict[str, Any] = {
    "vocab_size": 1000,
    "d_model": 64,
    "d_kv": 12,
    "d_ff": 128,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
}
T5 |= {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 40, "initializer_factor": 1.0}
DECODER = {"num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 2, "eos_token_id": 3}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"sliding_window": 16, "query_pre_attn_scalar": 16, "layer_types": SLIDING}
BIDIRECTIONAL = {"is_causal": False}
XLM_R = {"vocab_size": 250002, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

# name -> (model type, pooling, values of its config that differ from the type's defaults)
ALL_SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tiny-bert": ("bert", "mean", TINY),
    "tiny-roberta": ("roberta", "mean", TINY | {"pad_token_id": 1}),
    "tiny-xlm-roberta": ("xlm-roberta", "cls", TINY | {"pad_token_id": 1}),
    "tiny-electra": ("electra", "cls", TINY | {"embedding_size": 32}),
    "tiny-distilbert": (
        "distilbert",
        "cls",
        {"vocab_size": 1000, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "initializer_range": 0.2}
        | {"max_position_embeddings": 640, "pad_token_id": 0},
    ),
    "tiny-mpnet": ("mpnet", "mean", TINY | {"pad_token_id": 1}),
    "tiny-deberta-v2": (
        "deberta-v2",
        "mean",
        TINY
        | {"relative_attention": True, "pos_att_type": "p2c|c2p", "share_att_key": True, "position_buckets": 16}
        | {"norm_rel_ebd": "layer_norm", "position_biased_input": False},
    ),
    "tiny-t5": ("t5", "mean", T5),
    "tiny-mt5": ("mt5", "mean", T5 | {"feed_forward_proj": "gated-gelu"}),
    "tiny-umt5": ("umt5", "mean", T5 | {"feed_forward_proj": "gated-gelu"}),
    "tiny-nomic-bert": ("nomic_bert", "mean", TINY),
    "tiny-gte": ("gte", "cls", TINY),
    "tiny-jina-v3": ("jina_embeddings_v3", "mean", TINY | {"pad_token_id": 1}),
    "tiny-eurobert": ("eurobert", "mean", TINY | DECODER | {"mask_token_id": 4}),
    "tiny-modernbert": (
        "modernbert",
        "mean",
        TINY | {"local_attention": 16, "global_attn_every_n_layers": 3, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "tiny-qwen2": ("qwen2", "lasttoken", TINY | DECODER),
    "tiny-qwen3": ("qwen3", "lasttoken", TINY | DECODER),
    "tiny-llama": ("llama", "lasttoken", TINY | DECODER),
    "tiny-mistral": ("mistral", "lasttoken", TINY | DECODER | {"sliding_window": 16}),
    "tiny-gemma2": ("gemma2", "mean", TINY | DECODER | GEMMA),
    "tiny-gemma3": ("gemma3_text", "mean", TINY | DECODER | GEMMA),
    "tiny-embeddinggemma": ("gemma3_text", "mean", TINY | DECODER | GEMMA | {"use_bidirectional_attention": True}),
    "tiny-qwen2-bidirectional": ("qwen2", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-qwen3-bidirectional": ("qwen3", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-llama-bidirectional": ("llama", "mean", TINY | DECODER | BIDIRECTIONAL),
    "tiny-mistral-bidirectional": ("mistral", "mean", TINY | DECODER | BIDIRECTIONAL | {"sliding_window": 16}),
    "minilm-l6": (
        "bert",
        "mean",
        {"vocab_size": 30522, "pad_token_id": 0, "hidden_size": 384, "num_hidden_layers": 6}
        | {"num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "bge-base-en": ("bert", "cls", {"vocab_size": 30522, "pad_token_id": 0}),
    "multilingual-e5-base": ("xlm-roberta", "mean", XLM_R | {"max_position_embeddings": 514}),
    "xlm-roberta-large": ("xlm-roberta", "cls", XLM_R | LARGE | {"max_position_embeddings": 8194}),
    "jina-xlm-roberta": (  # rotary, without a table of positions
        "jina_embeddings_v3",
        "mean",
        XLM_R | LARGE | {"max_position_embeddings": 8194},
    ),
    "qwen3-embedding-0.6b": (
        "qwen3",
        "lasttoken",
        {"vocab_size": 151669, "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072}
        | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
        | {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
    ),
    "mistral-7b-bidirectional": (
        "mistral",
        "mean",
        {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096}
        | {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
        | BIDIRECTIONAL,
    ),
    "mistral-0.3b-bidirectional": (
        "mistral",
        "mean",
        {"vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 20, "intermediate_size": 3584}
        | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "sliding_window": None}
        | {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
        | BIDIRECTIONAL,
    ),
    "modernbert-small": (  # as granite-embedding-small-english-r2
        "modernbert",
        "mean",
        {"vocab_size": 50368, "hidden_size": 384, "num_hidden_layers": 12, "intermediate_size": 1536}
        | {"num_attention_heads": 12, "max_position_embeddings": 8192, "pad_token_id": 50283}
        | {"local_attention": 128, "global_attn_every_n_layers": 3},
    ),
    "modernbert-base": (
        "modernbert",
        "mean",
        {"vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "intermediate_size": 1152}
        | {"num_attention_heads": 12, "max_position_embeddings": 8192, "pad_token_id": 50283}
        | {"local_attention": 128, "global_attn_every_n_layers": 3},
    ),
}

POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
"""Keys of a Pooling, which other servers read too."""
QUERIED = {"prompts": {"query": "w1 w2 w3 ", "document": ""}}
YES_NO = (
    "w7 {% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% else %}w11 w12{% endif %} "
    "w8 {{ messages[-2]['content'] }} w9 {{ messages[-1]['content'] }} w10"
)
"""A chat template that asks about a query and a document, with an instruction or without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a folder says of the heads of a model, beside its encoder.

    `weights_of`: the class that holds the weights; `labels` are those of a classifier. `modules`: classes of
    modules.json behind the Transformer, each with its config; without any there is no modules.json. `described` is
    config_sentence_transformers.json, `beside` sentence_bert_config.json. `linear`: outputs of BGE-M3's further layers
    by the names of their files. `gritlm`: weights and config.json are as GritLM's, which has no modules.
    """

    weights_of: WeightsOf = "encoder"
    labels: tuple[str, ...] = ()
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str = ""
    linear: Mapping[str, int] = field(default_factory=dict)
    gritlm: bool = False


def pooled(pooling: str, width: int, **further: Any) -> Heads:
    """Vectors of texts, of unit length, and of tokens, which any encoder gives."""
    modes = {key: mode == pooling for mode, key in POOLINGS.items()}
    modules = {"Pooling": {"word_embedding_dimension": width} | modes, "Normalize": {}}
    return Heads(modules=modules, described=QUERIED, **further)


def _colbert(strategy: str, inputs: int, outputs: int, attend: bool, **beside: Any) -> Heads:
    """Makes a late-interaction model that expands queries to 32 tokens and skips punctuation; its prompts are words."""
    tokens = {"module_input_name": "token_embeddings"}
    linear: dict[str, Any] = {"in_features": inputs, "out_features": outputs, "bias": False}
    linear["activation_function"] = "torch.nn.modules.linear.Identity"
    return Heads(
        modules={
            "Dense": linear | tokens,
            "MultiVectorMask": {"skiplist_words": list(string.punctuation)},
            "Normalize": tokens,
        },
        described={"model_type": "MultiVectorEncoder", "prompts": {"query": "w1 ", "document": "w2 "}},
        beside={"query_expansion": {"strategy": strategy, "length": 32, "attend": attend}} | beside,
    )


def _bge_m3(width: int) -> Heads:
    """Makes BGE-M3's heads: a dense vector of [CLS], token vectors of the encoder's width, and a weight a token."""
    return pooled("cls", width, linear={"colbert_linear": width, "sparse_linear": 1})


# name -> (the shape of its encoder, its heads)
HEADED: dict[str, tuple[str, Heads]] = {
    "tiny-splade": (
        "tiny-bert",
        Heads(
            weights_of="masked-lm",
            modules={"SpladePooling": {"pooling_strategy": "max"}},
            described=QUERIED,
            beside={"transformer_task": "fill-mask"},
        ),
    ),
    "tiny-colbert": ("tiny-bert", _colbert("fixed", 64, 48, attend=False)),
    "minilm-colbert": ("minilm-l6", _colbert("fixed", 384, 128, attend=False)),
    "tiny-colbert-attended": ("tiny-bert", _colbert("min", 64, 48, attend=True)),
    "tiny-jina-colbert": ("tiny-jina-v3", _colbert("fixed", 64, 48, attend=True)),
    "jina-colbert-v2": ("jina-xlm-roberta", _colbert("fixed", 1024, 128, attend=True, max_seq_length=8192)),
    "tiny-bge-m3": ("tiny-xlm-roberta", _bge_m3(64)),
    "bge-m3": ("xlm-roberta-large", _bge_m3(1024)),
    "gritlm-7b": ("mistral-7b-bidirectional", Heads(gritlm=True)),
    "gritlm-0.3b": ("mistral-0.3b-bidirectional", Heads(gritlm=True)),
    "tiny-cross-encoder": ("tiny-bert", Heads(weights_of="sequence-classification", labels=("relevant",))),
    "tiny-classifier": ("tiny-roberta", Heads(weights_of="sequence-classification", labels=("a", "b", "c"))),
    "tiny-token-classifier": ("tiny-bert", Heads(weights_of="token-classification", labels=("O", "B", "I"))),
    "tiny-yes-no": (
        "tiny-qwen3",
        Heads(
            weights_of="causal-lm",
            modules={"LogitScore": {"true_token_id": 200, "false_token_id": 201}},
            beside={"transformer_task": "text-generation"},
            chat_template=YES_NO,
        ),
    ),
}
