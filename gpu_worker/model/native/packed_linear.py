"""Linear layers by the processor's kernels, with weights in the layout that products read fastest."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu import products
from gpu_worker.kernels.cpu.products import NO_ACTIVATION

BLOCKS = (64, 32)
"""Outputs whose weights lie together: the first of these that divides a layer's outputs."""

LARGEST = 127
"""Largest rounded weight, and largest sum of two neighbours before they are rounded."""
LEAST = 1e-12
"""Least size of a row that is divided by, so that a row of zeros is not divided by zero."""
LinearClass = Callable[..., "BlockedLinear"]
"""Makes one of several linear layers on the same input."""


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
        self.in_features, self.out_features = weight.shape[-3] * weight.shape[-1], weight.shape[0] * weight.shape[-2]
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.selvage.linear(x.contiguous(), self.weight, self.bias, NO_ACTIVATION)
        return y


class PackedLinear(BlockedLinear):
    """Linear layers in the dtype of their weights."""

    def __init__(self, *linears: nn.Linear) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        super().__init__(blocked(weight), torch.cat([bias_of(linear, linear.out_features) for linear in linears]))


class QuantizedLinear(BlockedLinear):
    """Linear layers on the same input, one after the other, in eight bits.

    `weight` [outputs / block, inputs / 4, block, 4] int8. `bias` [3, outputs] float32: the bias, the scale of each
    output, and the scale times the sum of the output's rounded weights.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        weight, scales = rounded(torch.cat([linear.weight.detach() for linear in linears]))
        sums = weight.sum(dim=1, dtype=torch.float32) * scales
        bias = torch.cat([bias_of(linear, linear.out_features) for linear in linears])
        super().__init__(blocked(weight), torch.stack([bias, scales, sums]))


def blocked(weight: Tensor) -> Tensor:
    """The layout that products read fastest: [outputs, inputs] -> [outputs / block, inputs / t, block, t]."""
    return products.blocked(weight, block_of(len(weight)))


def bias_of(module: nn.Module, width: int) -> Tensor:
    """Reads the bias of a linear layer or a normalisation [width] float32: zeros where it has none."""
    bias = getattr(module, "bias", None)
    return torch.zeros(width) if bias is None else bias.detach().float()


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds rows [N, K] to int8 [N, K], for an even K; times the scales [N] float32 they are about the rows."""
    numbers = rows.float()
    neighbour_sums = numbers.view(len(numbers), -1, 2).sum(dim=2)
    sizes = torch.maximum(numbers.abs().amax(dim=1), neighbour_sums.abs().amax(dim=1))
    scales = sizes.clamp(min=LEAST) / LARGEST
    return (numbers / scales[:, None]).round().to(torch.int8), scales
