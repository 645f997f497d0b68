"""Linear layers that read the same states as one product: queries, keys and values; gates and what they open.

Weights are laid end to end, and each layer keeps its own as a view. The first of them that is called makes the product
of all; the others, called with the same states, take their columns of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.device.timing import Seconds

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("gate_proj", "up_proj"),
)
"""What transformers' classes call them, in the order in which they are called."""
TOKENS = 512
"""Of the product that is measured."""


@dataclass(slots=True)
class Product:
    """Of all layers of a group: weights [sum of outputs, in], and what the call under way has made."""

    weight: Tensor
    bias: Tensor | None
    states: Tensor | None = None
    made: Tensor | None = None


class MergedLinear(nn.Linear):
    """The same as the nn.Linear that it was made from."""

    def __init__(self, linear: nn.Linear, product: Product, columns: slice, *, last: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(product.weight[columns], requires_grad=False)
        bias = None if product.bias is None else nn.Parameter(product.bias[columns], requires_grad=False)
        self.register_parameter("bias", bias)
        self._product, self._columns, self._last = product, columns, last

    def forward(self, states: Tensor) -> Tensor:
        """states [.., in] -> [.., out], a view of the columns of a wider product."""
        product = self._product
        if product.states is not states or product.made is None:
            product.states, product.made = states, F.linear(states, product.weight, product.bias)
        own = product.made[..., self._columns]
        if self._last:
            product.states = product.made = None
        return own


def merge(model: nn.Module, seconds: Seconds) -> int:
    """Merges in place what is faster by `seconds` (of a run) together; how many products there are fewer in all.

    One measurement counts for all groups of a shape.
    """
    faster: dict[tuple[Any, ...], bool] = {}
    fewer = 0
    for parent, names in _groups(model):
        layers = [getattr(parent, name) for name in names]
        shape = (layers[0].in_features, *(each.out_features for each in layers), layers[0].bias is None)
        if shape not in faster:
            faster[shape] = _is_faster(layers, seconds)
        if faster[shape]:
            _install(parent, names, layers)
            fewer += len(names) - 1
    return fewer


def _groups(model: nn.Module) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    for parent in list(model.modules()):
        for names in TOGETHER:
            layers = [getattr(parent, name, None) for name in names]
            plain = all(type(each) is nn.Linear for each in layers)
            if plain and len({(each.in_features, each.bias is None) for each in layers if each is not None}) == 1:
                yield parent, names


def _whole(layers: Sequence[nn.Linear]) -> Product:
    with torch.no_grad():
        weights: list[Tensor] = [each.weight for each in layers]
        biases: list[Tensor] = [each.bias for each in layers if each.bias is not None]
        return Product(weight=torch.cat(weights), bias=torch.cat(biases) if biases else None)


def _is_faster(layers: Sequence[nn.Linear], seconds: Seconds) -> bool:
    whole, weight = _whole(layers), layers[0].weight
    states = torch.zeros(TOKENS, layers[0].in_features, dtype=weight.dtype, device=weight.device)
    with torch.inference_mode():
        together = seconds(lambda: F.linear(states, whole.weight, whole.bias))
        apart = seconds(lambda: [each(states) for each in layers])
    return together < apart


def _install(parent: nn.Module, names: Sequence[str], layers: Sequence[nn.Linear]) -> None:
    product = _whole(layers)
    ends = accumulate((each.out_features for each in layers), initial=0)
    for name, layer, (start, stop) in zip(names, layers, pairwise(ends), strict=True):
        setattr(parent, name, MergedLinear(layer, product, slice(start, stop), last=name == names[-1]))
