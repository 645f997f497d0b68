"""Linear layers that read the same hidden states, merged into one matrix product: query, key and value; gate and up.

Such layers are a group. Their weights are copied into one tensor, of which each layer keeps a view. The first layer of
the group that is called computes the product for all; the others are called with the same states, in any order, and
return their columns of that product. A group is merged only where the load measures that this is faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.device.timing import PAYS, Seconds

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("gate_proj", "up_proj"),
)
"""Groups of layers that read the same states, by their names in transformers' classes."""
TOKENS = 2048
"""Rows of the product that is measured at load, in tokens."""


@dataclass(slots=True)
class MergedWeights:
    """The weights of a group [sum of outputs, in] and its biases [sum of outputs]; `sharers`: its number of layers."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    sharers: int


@dataclass(slots=True)
class LastProduct:
    """The merged product that a model computed last, kept until all layers of its group have their columns.

    `columns` [.., sum of outputs] is what the weights `product` make of `states` [.., in]. `left` layers of the group
    still have to take theirs. The groups of a model share this object: the next group's product replaces the last one.
    """

    product: MergedWeights | None = None
    states: Tensor | None = None
    columns: Tensor | None = None
    left: int = 0

    def columns_of(self, product: MergedWeights, states: Tensor) -> Tensor:
        """Returns all columns [.., sum of outputs]; computes them where another product or other states were last."""
        if self.product is not product or self.states is not states or self.columns is None:
            self.columns = None  # frees its memory first
            self.product, self.states, self.left = product, states, product.sharers
            self.columns = F.linear(states, product.weight, product.bias)
        columns = self.columns
        self.left -= 1
        if not self.left:
            self.product = self.states = self.columns = None
        return columns


class MergedLinear(nn.Linear):
    """A layer of a merged group. It returns what the nn.Linear that it replaces would return."""

    def __init__(self, linear: nn.Linear, product: MergedWeights, columns: slice, last: LastProduct) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(product.weight[columns], requires_grad=False)
        bias = None if product.bias is None else nn.Parameter(product.bias[columns], requires_grad=False)
        self.register_parameter("bias", bias)
        self.product, self._columns, self._last = product, columns, last

    def forward(self, states: Tensor) -> Tensor:
        """states [.., in] -> [.., out], a view of the layer's columns of the group's product."""
        return self._last.columns_of(self.product, states)[..., self._columns]


def merge(model: nn.Module, seconds: Seconds) -> None:
    """Merges the groups of a model in place where that is faster; `seconds` measures a run.

    Groups of one shape are measured once.
    """
    faster: dict[tuple[Any, ...], bool] = {}
    last = LastProduct()
    for parent, names in _groups(model):
        layers = [getattr(parent, name) for name in names]
        shape = (layers[0].in_features, *(layer.out_features for layer in layers), layers[0].bias is None)
        if shape not in faster:
            faster[shape] = _is_faster(layers, seconds)
        if faster[shape]:
            _install(parent, names, layers, last)


def saved_products(model: nn.Module) -> int:
    """Number of matrix products of a run that merging saves."""
    layers = [module for module in model.modules() if isinstance(module, MergedLinear)]
    return len(layers) - len({id(layer.product) for layer in layers})


def _groups(model: nn.Module) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    """Groups that can be merged: the module that has the layers, and their names there."""
    for parent in list(model.modules()):
        for names in TOGETHER:
            layers = [getattr(parent, name, None) for name in names]
            plain = all(type(layer) is nn.Linear for layer in layers)
            if plain and len({(layer.in_features, layer.bias is None) for layer in layers if layer is not None}) == 1:
                yield parent, names


def _merged_weights(layers: Sequence[nn.Linear]) -> MergedWeights:
    """Copies the weights of a group into one tensor."""
    with torch.no_grad():
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weight, bias = torch.cat(weights), torch.cat(biases) if biases else None
    return MergedWeights(
        weight=nn.Parameter(weight, requires_grad=False),  # to a compiler, the size of a parameter is a constant
        bias=None if bias is None else nn.Parameter(bias, requires_grad=False),
        sharers=len(layers),
    )


def _is_faster(layers: Sequence[nn.Linear], seconds: Seconds) -> bool:
    """Whether one product of a group is clearly faster than a product for each layer."""
    merged, weight = _merged_weights(layers), layers[0].weight
    states = torch.zeros(TOKENS, layers[0].in_features, dtype=weight.dtype, device=weight.device)
    with torch.inference_mode():
        together = seconds(lambda: F.linear(states, merged.weight, merged.bias))
        apart = seconds(lambda: [layer(states) for layer in layers])
    return together < PAYS * apart


def _install(parent: nn.Module, names: Sequence[str], layers: Sequence[nn.Linear], last: LastProduct) -> None:
    """Replaces the layers of a group in their model."""
    product = _merged_weights(layers)
    ends = accumulate((layer.out_features for layer in layers), initial=0)
    for name, layer, (start, stop) in zip(names, layers, pairwise(ends), strict=True):
        setattr(parent, name, MergedLinear(layer, product, slice(start, stop), last))
