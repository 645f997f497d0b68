"""Products of any sizes by the processor's kernels: a number has the same bits whatever rows and columns surround it.

Sizes that the kernels do not take are filled up with zeros, which change no sum.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
"""Outputs whose weights lie together here. One size for all weights, so that no sum depends on how many there are."""
DEPTH = 32
"""The kernels' sums have a multiple of so many terms."""
NO_ACTIVATION = 0
"""Number of the activation that changes nothing (`source/linear.h`)."""


class Product:
    """x [N, K] -> x W^T + b [N, M] in the dtype of x, for weights W [M, K] and a bias b [M], packed once.

    A number of the result is one sum of K products in float32, in one order. `packed` and `bias` are what the kernels
    read.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self._inputs = weight.shape
        self._filled = up_to(self._inputs, DEPTH)
        filling = (0, self._filled - self._inputs, 0, up_to(self.outputs, BLOCK) - self.outputs)
        self.packed = blocked(F.pad(weight, filling), BLOCK)
        numbers = weight.new_zeros(self.outputs, dtype=torch.float32) if bias is None else bias.float()
        self.bias = F.pad(numbers, (0, filling[3]))

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies rows x [N, K] with the weights: [N, M]."""
        rows = F.pad(x, (0, self._filled - self._inputs)) if self._filled > self._inputs else x.contiguous()
        y: Tensor = torch.ops.selvage.linear(rows, self.packed, self.bias, NO_ACTIVATION)
        return y if y.shape[1] == self.outputs else y[:, : self.outputs]


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiplies rows [N, K] and weights [M, K]: [N, M], in their dtype."""
    return Product(weight)(rows)


def blocked(weight: Tensor, block: int) -> Tensor:
    """The layout that the kernels read fastest: [outputs, inputs] -> [outputs / block, inputs / t, block, t].

    `t` numbers of 32 bits together lie side by side.
    """
    together = 4 // weight.element_size()
    parts = weight.contiguous().view(-1, block, weight.shape[1] // together, together)
    return parts.transpose(1, 2).contiguous()


def up_to(count: int, step: int) -> int:
    """Rounds up to the next multiple of `step`."""
    return -(-count // step) * step
