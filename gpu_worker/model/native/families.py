"""The families whose models run by the processor's kernels, and where transformers keeps the parts of each.

A family that is not listed runs as transformers wrote it, by the one attention. The gate compares every load with the
model's own code, up to the longest text that it can afford: within that a row that does not fit, or an option that a
config turns on, costs speed and no numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Where the parts of a layer are: attributes of the layer.

    `inputs` are the linear layers of queries, keys and values, or a merged one. `inner` is the feed-forward's first
    layer; where it is gated, the gate's layer and the other one, or a merged one with the gate first. Normalisations
    that the layer lacks are empty. In a `post_normalised` layer, `output_norm` and `down_norm` follow the residuals.
    """

    attention: str
    inputs: tuple[str, ...]
    output: str
    inner: tuple[str, ...]
    activation: str
    down: str
    norm: str = ""
    output_norm: str = ""
    inner_norm: str = ""
    down_norm: str = ""
    post_normalised: bool = False

    @property
    def norms(self) -> tuple[str, str, str, str]:
        """Normalisations before attention, behind it, before the feed-forward, and behind it."""
        return self.norm, self.output_norm, self.inner_norm, self.down_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingNames:
    """Where the parts of the embeddings are: attributes of the model; empty, or absent there, for what a model lacks.

    Rows of `words`, `types`, `positions` and the first row of `tasks` are added in this order, then normalised by
    `norm`, and go through the linear layer `projection`.
    """

    words: str
    types: str = ""
    positions: str = ""
    tasks: str = ""
    norm: str = ""
    projection: str = ""


def _window_of_layer(attention: Any) -> int | None:
    return getattr(attention, "sliding_window", None)


def _window_of_config(attention: Any) -> int | None:
    return getattr(attention.config, "sliding_window", None)


def _listed_layers(base: Any) -> Sequence[nn.Module]:
    layers: Sequence[nn.Module] = base.layers
    return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How models of a family are made of their parts.

    `layers` lists a model's layers in the order in which they run. `rotary` and `norm` are the model's attributes that
    make rotary positions, and normalise the last states; empty for none. `rotary_by_type`: rotary positions depend on
    the layer's entry in the config's `layer_types`. `rotated` and `window` tell of a layer's attention whether its
    queries and keys are rotated, and its window. `added_to_one`: RMSNorms multiply by their weight + 1.
    `softcap`: scores are bounded as the attention's `attn_logit_softcapping` says.
    """

    names: LayerNames
    embeddings: EmbeddingNames
    layers: Callable[[Any], Sequence[nn.Module]] = _listed_layers
    rotary: str = "rotary_emb"
    rotary_by_type: bool = False
    norm: str = ""
    rotated: Callable[[Any], bool] = lambda attention: True
    window: Callable[[Any], int | None] = _window_of_layer
    added_to_one: bool = False
    softcap: bool = False


def _albert_layers(base: Any) -> Sequence[nn.Module]:
    """ALBERT's layers share weights: each group stands for several."""
    groups, count = base.encoder.albert_layer_groups, base.config.num_hidden_layers
    return [layer for i in range(count) for layer in groups[i * len(groups) // count].albert_layers]


_LLAMA_LAYER = LayerNames(
    attention="self_attn",
    inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    inner=("mlp.gate_proj", "mlp.up_proj"),
    activation="mlp.act_fn",
    down="mlp.down_proj",
    norm="input_layernorm",
    inner_norm="post_attention_layernorm",
)
_GEMMA_LAYER = replace(
    _LLAMA_LAYER,
    output_norm="post_attention_layernorm",
    inner_norm="pre_feedforward_layernorm",
    down_norm="post_feedforward_layernorm",
)
_NOMIC_LAYER = replace(
    _LLAMA_LAYER,
    norm="",
    inner_norm="",
    output_norm="post_attention_layernorm",
    down_norm="post_mlp_layernorm",
    post_normalised=True,
)
_JINA_LAYER = replace(_NOMIC_LAYER, inner=("mlp.fc1",), activation="mlp.activation_fn", down="mlp.fc2")
_PHI_LAYER = replace(
    _LLAMA_LAYER, inputs=("self_attn.qkv_proj",), inner=("mlp.gate_up_proj",), activation="mlp.activation_fn"
)
_STARCODER_LAYER = replace(_LLAMA_LAYER, inner=("mlp.c_fc",), activation="mlp.act", down="mlp.c_proj")
_EXAONE_LAYER = replace(_GEMMA_LAYER, norm="", inner_norm="")
_BERT_LAYER = LayerNames(
    attention="attention.self",
    inputs=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    output_norm="attention.output.LayerNorm",
    inner=("intermediate.dense",),
    activation="intermediate.intermediate_act_fn",
    down="output.dense",
    down_norm="output.LayerNorm",
    post_normalised=True,
)
_DISTILBERT_LAYER = LayerNames(
    attention="attention",
    inputs=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    output_norm="sa_layer_norm",
    inner=("ffn.lin1",),
    activation="ffn.activation",
    down="ffn.lin2",
    down_norm="output_layer_norm",
    post_normalised=True,
)
_ALBERT_LAYER = LayerNames(
    attention="attention",
    inputs=("attention.query", "attention.key", "attention.value"),
    output="attention.dense",
    output_norm="attention.LayerNorm",
    inner=("ffn",),
    activation="activation",
    down="ffn_output",
    down_norm="full_layer_layer_norm",
    post_normalised=True,
)
_MODERNBERT_LAYER = LayerNames(
    attention="attn",
    norm="attn_norm",
    inputs=("attn.Wqkv",),
    output="attn.Wo",
    inner_norm="mlp_norm",
    inner=("mlp.Wi",),
    activation="mlp.act",
    down="mlp.Wo",
)
_BERT_EMBEDDINGS = EmbeddingNames(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    positions="embeddings.position_embeddings",
    tasks="embeddings.task_type_embeddings",
    norm="embeddings.LayerNorm",
)
_NOMIC_EMBEDDINGS = replace(_BERT_EMBEDDINGS, positions="", tasks="")
_WORDS = EmbeddingNames(words="embed_tokens")

_BERT = Family(
    names=_BERT_LAYER, embeddings=_BERT_EMBEDDINGS, layers=lambda base: base.encoder.layer, rotary=""
)  # arXiv:1810.04805
_LLAMA = Family(names=_LLAMA_LAYER, embeddings=_WORDS, norm="norm")
_WINDOWED = replace(_LLAMA, window=_window_of_config)
_GEMMA = replace(_LLAMA, added_to_one=True)
_GEMMA_2 = replace(_GEMMA, names=_GEMMA_LAYER)
_NOMIC = Family(names=_NOMIC_LAYER, embeddings=_NOMIC_EMBEDDINGS)

FAMILIES = {
    **dict.fromkeys(
        ("bert", "bert-generation", "camembert", "data2vec-text", "ernie", "roberta", "xlm-roberta"), _BERT
    ),
    "electra": replace(_BERT, embeddings=replace(_BERT_EMBEDDINGS, projection="embeddings_project")),
    "distilbert": replace(_BERT, names=_DISTILBERT_LAYER, layers=lambda base: base.transformer.layer),
    "albert": replace(
        _BERT,
        names=_ALBERT_LAYER,
        embeddings=replace(_BERT_EMBEDDINGS, projection="encoder.embedding_hidden_mapping_in"),
        layers=_albert_layers,
    ),
    **dict.fromkeys(("nomic_bert", "gte"), _NOMIC),
    "jina_embeddings_v3": replace(_NOMIC, names=_JINA_LAYER),
    "modernbert": Family(
        names=_MODERNBERT_LAYER,
        embeddings=EmbeddingNames(words="embeddings.tok_embeddings", norm="embeddings.norm"),
        rotary_by_type=True,
        norm="final_norm",
    ),
    **dict.fromkeys(("llama", "internlm3", "iquestcoder", "eurobert", "seed_oss"), _LLAMA),
    **dict.fromkeys(("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "cwm", "ministral"), _LLAMA),
    "ultrabert": replace(_LLAMA, rotary_by_type=True),
    "mistral": _WINDOWED,
    "phi3": replace(_WINDOWED, names=_PHI_LAYER),
    "starcoder2": replace(_WINDOWED, names=_STARCODER_LAYER),
    "smollm3": replace(_LLAMA, rotated=lambda attention: bool(attention.use_rope)),
    "exaone4": replace(
        _LLAMA,
        names=_EXAONE_LAYER,
        rotated=lambda attention: attention.sliding_window is None or attention.is_sliding,
        window=lambda attention: attention.sliding_window if attention.is_sliding else None,
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA_2, softcap=True),
    "gemma3_text": replace(_GEMMA_2, rotary_by_type=True),
}
"""Families by the model type of their configs."""
