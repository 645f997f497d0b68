"""What runs beside whole layers, mostly in heads, by the processor's kernels: linear layers of any sizes, and GELU.

A row has the same bits whatever rows stand beside it, as in the kernels' whole layers. PyTorch chooses products by the
number of rows, and computes the last numbers of a tensor's GELU by another function than the others.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.cpu.products import Product
from gpu_worker.model.tune.linear import plain_layers

GELUS = {"GELU": "none", "GELUActivation": "none", "GELUTanh": "tanh", "PytorchGELUTanh": "tanh"}
"""Classes of torch and transformers, and how each approximates unless its `approximate` says otherwise."""


class NativeLinear(nn.Module):
    """x [..., in] -> [..., out]: the nn.Linear that it was made from, by one kernel for any number of rows."""

    packed: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._product = Product(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self.register_buffer("packed", self._product.packed)
        self.register_buffer("bias", self._product.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self._product(x.reshape(-1, self.in_features))
        return y.view(*x.shape[:-1], self.out_features)


class EvenGelu(nn.Module):
    """GELU from functions that PyTorch computes alike for each number of a tensor, in float32."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        if self.approximate == "tanh":
            share = torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide * wide * wide))
        else:
            share = torch.erf(wide * 0.5**0.5)
        return (0.5 * wide * (1 + share)).to(x.dtype)


def install(modules: Iterable[nn.Module], library: KernelLibrary) -> None:
    """Replaces all plain linear layers and GELUs of some modules in place; a layer that several share stays one."""
    replacements: dict[int, NativeLinear] = {}
    for module in modules:
        for parent, name, layer in plain_layers(module):
            if layer.weight.dtype in library.formats:
                if id(layer) not in replacements:
                    replacements[id(layer)] = NativeLinear(layer)
                setattr(parent, name, replacements[id(layer)])
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                usual = GELUS.get(type(child).__name__)
                if usual is not None:
                    setattr(parent, name, EvenGelu(getattr(child, "approximate", usual)))
