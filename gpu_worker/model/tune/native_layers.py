"""Encoder layers that run by the processor's kernels: recognised by what they are made of, whatever their class.

A post-normalised layer (arXiv:1706.03762), as BERT and its kin have it, is attention, an output layer, a residual and a
normalisation, then a feed-forward of two layers with the same behind it. Such a layer becomes three calls. The gate
compares the model afterwards; where it does not pass, the layers stay as they were written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionCall, terms_of
from gpu_worker.kernels.cpu import products
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.tune.linear import gelu_kind
from shared.errors import ModelRefused

ACTIVATIONS = {"none": 1, "tanh": 2}
"""Numbers of the kernels' activations (`source/linear.h`) by the kind of GELU."""
NO_ACTIVATION, RELU, SILU = 0, 3, 4
BLOCKS = (64, 32)
"""Outputs whose weights lie together: the first of these that divides a layer's outputs."""
DEPTH = 32
"""Inputs of a layer must be a multiple of this."""


LinearClass = Callable[..., "BlockedLinear"]
"""Makes one of several linear layers on the same input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostNormLayer:
    """The parts of a post-normalised layer: `parent[name]` of a model. `activation`: its number in the kernels."""

    parent: nn.ModuleList
    name: str
    attention: Any
    heads: int
    output: nn.Linear
    first_norm: nn.LayerNorm
    up: nn.Linear
    activation: int
    down: nn.Linear
    second_norm: nn.LayerNorm

    @property
    def inputs(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """The layers of queries, keys and values."""
        return self.attention.query, self.attention.key, self.attention.value


def install_layers(model: nn.Module, library: KernelLibrary, linear: "LinearClass | None" = None) -> int:
    """Makes all post-normalised layers of a model run by the kernels, in place; returns how many there are.

    `linear`: the class of their linear layers, by default in the model's own number format. No layer is replaced where
    the kernels do not have that format.
    """
    layers = [layer for layer in post_norm_layers(model) if layer.output.weight.dtype in library.formats]
    for layer in layers:
        setattr(layer.parent, layer.name, NativeLayer(layer, linear or PackedLinear))
    return len(layers)


def post_norm_layers(model: nn.Module) -> Iterator[PostNormLayer]:
    """Yields all layers of this form that the kernels can run."""
    for parent in model.modules():
        if isinstance(parent, nn.ModuleList):
            for name, child in parent.named_children():
                layer = _parts(parent, name, child)
                if layer is not None and _fits(layer):
                    yield layer


def _parts(parent: nn.ModuleList, name: str, layer: Any) -> PostNormLayer | None:
    """The parts of a layer, None where it is made of others."""
    try:
        parts = PostNormLayer(
            parent=parent,
            name=name,
            attention=layer.attention.self,
            heads=int(layer.attention.self.num_attention_heads),
            output=layer.attention.output.dense,
            first_norm=layer.attention.output.LayerNorm,
            up=layer.intermediate.dense,
            activation=_activation(layer.intermediate.intermediate_act_fn),
            down=layer.output.dense,
            second_norm=layer.output.LayerNorm,
        )
        linears = [*parts.inputs, parts.output, parts.up, parts.down]
    except (AttributeError, ValueError):
        return None
    norms = [parts.first_norm, parts.second_norm]
    plain = all(type(linear) is nn.Linear for linear in linears) and all(type(norm) is nn.LayerNorm for norm in norms)
    expected = {id(parameter) for part in (*linears, *norms) for parameter in part.parameters()}
    others = {id(parameter) for parameter in layer.parameters()} - expected
    return parts if plain and not others and not getattr(layer, "is_decoder", False) else None


def _activation(function: Any) -> int:
    """The number of an activation, recognised by its values. Raises ValueError for one that the kernels have not."""
    x = torch.linspace(-6, 6, 241)
    try:
        kind = gelu_kind(function)
        if kind is not None:
            return ACTIVATIONS[kind]
        for number, candidate in ((RELU, torch.relu), (SILU, nn.functional.silu)):
            if torch.allclose(function(x), candidate(x), atol=1e-6):
                return number
    except Exception as error:  # a class's own function may want and give anything, as I-BERT's gives pairs
        raise ValueError("it is no activation of one tensor") from error
    raise ValueError("the kernels have no such activation")


def _fits(layer: PostNormLayer) -> bool:
    """Whether the kernels take the layer's sizes, formats and options."""
    width = layer.output.out_features
    linears = (*layer.inputs, layer.output, layer.up, layer.down)
    sizes = all(linear.in_features % DEPTH == 0 and block_of(linear.out_features) for linear in linears)
    norms = (layer.first_norm, layer.second_norm)
    affine = all(norm.normalized_shape == (width,) and norm.bias is not None for norm in norms)
    attended = all(linear.out_features == layer.output.in_features for linear in layer.inputs)
    hidden = {layer.up.in_features, layer.down.out_features, *(linear.in_features for linear in layer.inputs)}
    return sizes and affine and attended and hidden == {width} and layer.first_norm.eps == layer.second_norm.eps


def block_of(outputs: int) -> int:
    """Outputs of a block; 0 where none divides them."""
    return next((block for block in BLOCKS if outputs % block == 0), 0)


class BlockedLinear(nn.Module):
    """Linear layers on the same input, one after the other: x [T, inputs] -> [T, outputs], by the kernels.

    `weight` [outputs / block, inputs / t, block, t], where `t` numbers of 32 bits together lie side by side. `bias`
    [outputs] float32, or more numbers of each output.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1] * weight.shape[3], weight.shape[0] * weight.shape[2]
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.selvage.linear(x.contiguous(), self.weight, self.bias, NO_ACTIVATION)
        return y


class PackedLinear(BlockedLinear):
    """Linear layers in the number format of their weights."""

    def __init__(self, *linears: nn.Linear) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        super().__init__(blocked(weight), torch.cat([bias_of(linear) for linear in linears]))


def blocked(weight: Tensor) -> Tensor:
    """The layout that products read fastest: [outputs, inputs] -> [outputs / block, inputs / t, block, t]."""
    return products.blocked(weight, block_of(len(weight)))


def bias_of(linear: nn.Linear) -> Tensor:
    """The bias of a layer [outputs] float32: zeros where it has none."""
    if linear.bias is None:
        return torch.zeros(linear.out_features)
    return linear.bias.detach().float()


class NativeLayer(nn.Module):
    """A post-normalised layer by the kernels, in packed runs: hidden states [1, T, H] -> the same shape."""

    norms: Tensor

    def __init__(self, layer: PostNormLayer, linear: LinearClass) -> None:
        """Copies the layer's weights into the layout of the class `linear`."""
        super().__init__()
        self._inputs = linear(*layer.inputs)
        self._output, self._up, self._down = (linear(part) for part in (layer.output, layer.up, layer.down))
        numbers = [
            parameter for norm in (layer.first_norm, layer.second_norm) for parameter in (norm.weight, norm.bias)
        ]
        self.register_buffer("norms", torch.stack([parameter.detach().float() for parameter in numbers]))
        self._heads, self._epsilon, self._activation = layer.heads, layer.first_norm.eps, layer.activation
        head = layer.inputs[0].out_features // layer.heads
        self._terms = terms_of(layer.attention, getattr(layer.attention, "scaling", None), head, None, None, None)

    def forward(self, hidden_states: Tensor, *_: object, ragged: AttentionCall | None = None, **__: object) -> Tensor:
        """Runs the layer. Raises ModelRefused outside of packed runs."""
        if ragged is None:
            raise ModelRefused("its layers run in packed batches alone")
        x = hidden_states[0]
        heads = self._inputs(x).view(len(x), 3, self._heads, -1).permute(1, 2, 0, 3)
        attended = ragged.attention(heads[0], heads[1], heads[2], ragged.batch, self._terms)
        output, up, down = self._output, self._up, self._down
        rows: Tensor = torch.ops.selvage.feed_forward(
            x,
            attended.flatten(1),
            [output.weight, up.weight, down.weight],
            [output.bias, up.bias, down.bias],
            list(self.norms),
            self._epsilon,
            self._activation,
        )
        return rows[None]
