"""Names that transformers gives to the parts of an encoder layer, by a family that others are named after."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
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


_LLAMA = PartNames(
    attention="self_attn",
    inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    inner=("mlp.gate_proj", "mlp.up_proj"),
    activation="mlp.act_fn",
    down="mlp.down_proj",
    norm="input_layernorm",
    inner_norm="post_attention_layernorm",
)
_GEMMA = replace(
    _LLAMA,
    output_norm="post_attention_layernorm",
    inner_norm="pre_feedforward_layernorm",
    down_norm="post_feedforward_layernorm",
)
_NOMIC = replace(
    _LLAMA,
    norm="",
    inner_norm="",
    output_norm="post_attention_layernorm",
    down_norm="post_mlp_layernorm",
    post_normalised=True,
)
NAMES = {
    "BERT": PartNames(
        attention="attention.self",
        inputs=("attention.self.query", "attention.self.key", "attention.self.value"),
        output="attention.output.dense",
        output_norm="attention.output.LayerNorm",
        inner=("intermediate.dense",),
        activation="intermediate.intermediate_act_fn",
        down="output.dense",
        down_norm="output.LayerNorm",
        post_normalised=True,
    ),
    "DistilBERT": PartNames(
        attention="attention",
        inputs=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        output="attention.out_lin",
        output_norm="sa_layer_norm",
        inner=("ffn.lin1",),
        activation="ffn.activation",
        down="ffn.lin2",
        down_norm="output_layer_norm",
        post_normalised=True,
    ),
    "ALBERT": PartNames(
        attention="attention",
        inputs=("attention.query", "attention.key", "attention.value"),
        output="attention.dense",
        output_norm="attention.LayerNorm",
        inner=("ffn",),
        activation="activation",
        down="ffn_output",
        down_norm="full_layer_layer_norm",
        post_normalised=True,
    ),
    "Nomic": _NOMIC,
    "Jina 3": replace(_NOMIC, inner=("mlp.fc1",), activation="mlp.activation_fn", down="mlp.fc2"),
    "Llama": _LLAMA,
    "Gemma 2": _GEMMA,
    "OLMo 2": replace(_GEMMA, norm="", inner_norm=""),
    "Phi-3": replace(
        _LLAMA, inputs=("self_attn.qkv_proj",), inner=("mlp.gate_up_proj",), activation="mlp.activation_fn"
    ),
    "Starcoder 2": replace(_LLAMA, inner=("mlp.c_fc",), activation="mlp.act", down="mlp.c_proj"),
    "ModernBERT": PartNames(
        attention="attn",
        norm="attn_norm",
        inputs=("attn.Wqkv",),
        output="attn.Wo",
        inner_norm="mlp_norm",
        inner=("mlp.Wi",),
        activation="mlp.act",
        down="mlp.Wo",
    ),
}
"""Names of parts, by a family that many others are named after."""
