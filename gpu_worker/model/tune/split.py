"""float32 linear layers by products of bfloat16, for processors that multiply bfloat16 many times faster.

A number is split into parts: its nearest bfloat16, the nearest bfloat16 of the rest, and so on. Of the products of
parts those count that are large enough: three for two parts, which are off by 2^-17 of a number at most, and six for
three parts, which are as exact as float32. Processors with matrix units (AMX) multiply bfloat16 eight times as fast as
float32 or faster; with AVX-512 alone it is twice as fast, so that these products do not pay. `verify/nearness.py`
judges the models that run so.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from gpu_worker.model.tune.blocked_linear import BlockedLinear, PackedLinear, bias_of, blocked

NAMES = {2: "float32 by three bfloat16 products", 3: "float32 by six bfloat16 products"}
"""Names of these products by the number of parts, in the card and among the formats that are measured."""
LEAST_GAIN = 1.2
"""Least ratio of speeds at which these products serve. Where bfloat16 is twice as fast as float32, the ratios are 0.7
and 0.3; where it is eight times as fast, 2.7 and 1.3."""


class SplitLinear(BlockedLinear):
    """Linear layers on the same float32 input, one after the other, by products of bfloat16.

    `weight` [outputs / block, parts, inputs / 2, block, 2] bfloat16: of each block of outputs all first parts, then all
    second ones, and so on.
    """

    def __init__(self, *linears: nn.Linear, parts: int) -> None:
        weights = split(torch.cat([linear.weight.detach() for linear in linears]), parts)
        bias = torch.cat([bias_of(linear, linear.out_features) for linear in linears])
        super().__init__(torch.stack([blocked(weight) for weight in weights], dim=1), bias)


def split(numbers: Tensor, parts: int) -> list[Tensor]:
    """Splits float32 numbers into bfloat16 tensors of the same shape whose sum is about the numbers again."""
    split, rest = [], numbers
    for _ in range(parts):
        split.append(rest.bfloat16())
        rest = rest - split[-1].float()
    return split


def install(model: nn.Module, parts: int) -> int:
    """Replaces the kernels' float32 layers of a model in place; returns how many."""
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, PackedLinear) and child.weight.dtype == torch.float32
    ]
    for parent, name, child in layers:
        setattr(parent, name, SplitLinear(child.unpacked(), parts=parts))
    return len(layers)


def paying(seconds: Mapping[str, float]) -> Iterator[int]:
    """Yields the numbers of parts whose products are clearly faster than float32's own, the fastest first.

    `seconds` as `format_speeds.product_seconds` gives them.
    """
    for parts, name in NAMES.items():
        if name in seconds and seconds["float32"] > LEAST_GAIN * seconds[name]:
            yield parts
