"""Linear layers that read the same states as one product: queries, keys and values; gates and what they open.

Weights are laid end to end, and each layer keeps its own as a view. The first of them that is called makes the product
of all; the others, called with the same states, take their columns of it, in any order.
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
"""What transformers' classes call them."""
TOKENS = 2048
"""Of the product that is measured."""


@dataclass(slots=True)
class MergedWeights:
    """Of all layers of a group: weights [sum of outputs, in], and how many share it."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    sharers: int


@dataclass(slots=True)
class LastProduct:
    """The product that was made last, of a whole model: one at a time is kept, until all its sharers have their columns
    of it, or the next one is made."""

    product: MergedWeights | None = None
    states: Tensor | None = None
    columns: Tensor | None = None
    left: int = 0

    def of(self, product: MergedWeights, states: Tensor) -> Tensor:
        """[.., sum of outputs], made now unless it was for the same states."""
        if self.product is not product or self.states is not states or self.columns is None:
            self.columns = None  # its memory first
            self.product, self.states, self.left = product, states, product.sharers
            self.columns = F.linear(states, product.weight, product.bias)
        columns = self.columns
        self.left -= 1
        if not self.left:
            self.product = self.states = self.columns = None
        return columns


class MergedLinear(nn.Linear):
    """The same as the nn.Linear that it was made from."""

    def __init__(self, linear: nn.Linear, product: MergedWeights, columns: slice, made: LastProduct) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(product.weight[columns], requires_grad=False)
        bias = None if product.bias is None else nn.Parameter(product.bias[columns], requires_grad=False)
        self.register_parameter("bias", bias)
        self.product, self._columns, self._made = product, columns, made

    def forward(self, states: Tensor) -> Tensor:
        """states [.., in] -> [.., out], a view of the columns of a wider product."""
        return self._made.of(self.product, states)[..., self._columns]


def merge(model: nn.Module, seconds: Seconds) -> None:
    """Merges in place what is faster together, by `seconds` of a run; groups of one shape are measured once."""
    faster: dict[tuple[Any, ...], bool] = {}
    made = LastProduct()
    for parent, names in _groups(model):
        layers = [getattr(parent, name) for name in names]
        shape = (layers[0].in_features, *(each.out_features for each in layers), layers[0].bias is None)
        if shape not in faster:
            faster[shape] = _is_faster(layers, seconds)
        if faster[shape]:
            _install(parent, names, layers, made)


def saved_products(model: nn.Module) -> int:
    """How many products there are fewer."""
    layers = [each for each in model.modules() if isinstance(each, MergedLinear)]
    return len(layers) - len({id(each.product) for each in layers})


def _groups(model: nn.Module) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    for parent in list(model.modules()):
        for names in TOGETHER:
            layers = [getattr(parent, name, None) for name in names]
            plain = all(type(each) is nn.Linear for each in layers)
            if plain and len({(each.in_features, each.bias is None) for each in layers if each is not None}) == 1:
                yield parent, names


def _whole(layers: Sequence[nn.Linear]) -> MergedWeights:
    with torch.no_grad():
        weights: list[Tensor] = [each.weight for each in layers]
        biases: list[Tensor] = [each.bias for each in layers if each.bias is not None]
        weight, bias = torch.cat(weights), torch.cat(biases) if biases else None
    return MergedWeights(
        weight=nn.Parameter(weight, requires_grad=False),  # a parameter: its size is no symbol to a compiler
        bias=None if bias is None else nn.Parameter(bias, requires_grad=False),
        sharers=len(layers),
    )


def _is_faster(layers: Sequence[nn.Linear], seconds: Seconds) -> bool:
    whole, weight = _whole(layers), layers[0].weight
    states = torch.zeros(TOKENS, layers[0].in_features, dtype=weight.dtype, device=weight.device)
    with torch.inference_mode():
        together = seconds(lambda: F.linear(states, whole.weight, whole.bias))
        apart = seconds(lambda: [each(states) for each in layers])
    return together < PAYS * apart


def _install(parent: nn.Module, names: Sequence[str], layers: Sequence[nn.Linear], made: LastProduct) -> None:
    product = _whole(layers)
    ends = accumulate((each.out_features for each in layers), initial=0)
    for name, layer, (start, stop) in zip(names, layers, pairwise(ends), strict=True):
        setattr(parent, name, MergedLinear(layer, product, slice(start, stop), made))
