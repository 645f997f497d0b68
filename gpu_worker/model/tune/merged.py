"""Linear layers that read the same hidden states, merged into one matrix product: query, key and value; gate and up.

Such layers are a group. Their weights are copied into one tensor, of which each layer keeps a view. The first layer of
the group that is called computes the product for all; the others are called with the same states, in any order, and
return their columns of that product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("gate_proj", "up_proj"),
)
"""Groups of layers that read the same states, by their names in transformers' classes."""


@dataclass(slots=True)
class MergedWeights:
    """The weights of a group [sum of outputs, in] and its biases [sum of outputs]; `sharers`: its number of layers."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    sharers: int


@dataclass(slots=True)
class LastProduct:
    """The merged product that a model computed last, kept until all layers of its group have their columns.

    `columns` [.., sum of outputs] is what the weights `product` make of `states` [.., in]. `waiting` layers of the
    group still have to take their columns. The groups of a model share this object: the next group's product replaces
    the last one.
    """

    product: MergedWeights | None = None
    states: Tensor | None = None
    columns: Tensor | None = None
    waiting: int = 0

    def columns_of(self, product: MergedWeights, states: Tensor) -> Tensor:
        """Returns all columns [.., sum of outputs]; computes them where another product or other states were last."""
        if self.product is not product or self.states is not states or self.columns is None:
            self.columns = None  # frees its memory first
            self.product, self.states, self.waiting = product, states, product.sharers
            self.columns = F.linear(states, product.weight, product.bias)
        columns = self.columns
        self.waiting -= 1
        if not self.waiting:
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

    def apart(self) -> nn.Linear:
        """Makes the layer by itself, over the same weights."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear


def merge(model: nn.Module) -> None:
    """Merges all groups of a model in place."""
    last = LastProduct()
    for parent, names in _groups(model):
        layers = [getattr(parent, name) for name in names]
        product = _merged_weights(layers)
        ends = accumulate((layer.out_features for layer in layers), initial=0)
        for name, layer, (start, stop) in zip(names, layers, pairwise(ends), strict=True):
            setattr(parent, name, MergedLinear(layer, product, slice(start, stop), last))


def separate(model: nn.Module) -> None:
    """Takes all groups of a model apart again, in place."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, MergedLinear):
                setattr(parent, name, layer.apart())


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
