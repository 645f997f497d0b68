"""float32 linear layers by three products of bfloat16, for processors that multiply bfloat16 many times faster.

A number is split into its nearest bfloat16 and the nearest bfloat16 of the rest: x = h + l, off by 2^-18 of x at most.
Then x W^T is h H + h L + l H, with sums in float32; l L is left out. Processors with matrix units (AMX) multiply bfloat16
eight times as fast as float32, and three such products are faster than one of float32; with AVX-512 alone they are
slower. `verify/nearness.py` judges the models that run so.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.tune.native_layers import BlockedLinear, bias_of, blocked

NAME = "float32 by three bfloat16 products"
"""Name of these products in the card, and among the formats that are measured."""
LEAST_GAIN = 1.3
"""Least ratio of speeds at which these products serve: far from 2, which matrix units give, and from 2/3, which
bfloat16 gives where it is twice as fast as float32. So all loads on one kind of processor choose alike."""


class SplitLinear(BlockedLinear):
    """Linear layers on the same float32 input, one after the other, by products of bfloat16.

    `weight` [outputs / block, 2, inputs / 2, block, 2] bfloat16: of each block the nearest numbers, then the rests.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        high, low = split(torch.cat([linear.weight.detach() for linear in linears]))
        bias = torch.cat([bias_of(linear) for linear in linears])
        super().__init__(torch.stack([blocked(high), blocked(low)], dim=1), bias)


def split(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits float32 numbers into two bfloat16 tensors of the same shape, whose sum is off by 2^-18 of each at most."""
    high = numbers.bfloat16()
    return high, (numbers - high.float()).bfloat16()


def runs_by(kernels: KernelLibrary) -> bool:
    """Whether the processor's kernels have what these products take. Without it a product would end the process."""
    return {torch.float32, torch.bfloat16} <= kernels.formats


def pays(seconds: Mapping[str, float]) -> bool:
    """Whether these products are clearly faster than float32's own. `seconds`: see `format_speeds.product_seconds`."""
    return NAME in seconds and seconds["float32"] > LEAST_GAIN * seconds[NAME]
