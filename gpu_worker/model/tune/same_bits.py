"""Linear layers that give a row the same bits whatever the number of rows, for `--same-bits` on processors."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.fixed_order import in_whole_vectors
from gpu_worker.kernels.cpu.instructions import supported
from gpu_worker.kernels.cpu.products import Product
from gpu_worker.model.tune.linear import plain_layers
from shared.errors import ModelRefused

ACTIVATIONS = frozenset(
    {"GELU", "GELUActivation", "GELUTanh", "PytorchGELUTanh", "NewGELUActivation", "SiLU", "SiLUActivation", "Sigmoid"}
)
"""Classes of torch and transformers that apply a function to each number."""


class FixedLinear(nn.Module):
    """x [..., in] -> [..., out]: the nn.Linear that it was made from, of any sizes, by one kernel for all rows."""

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


class EvenActivation(nn.Module):
    """An activation that gives a number the same bits wherever it stands in a tensor."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return in_whole_vectors(self.activation, x)


def check(placement: Placement) -> None:
    """Raises ModelRefused where a placement cannot promise equal bits."""
    if placement.device.type != "cpu":
        raise ModelRefused(
            f"--same-bits: on {placement.device} products are chosen by the size of a step; it is for processors"
        )
    kernels = library.load()
    if not {placement.dtype, torch.float32} <= kernels.formats:  # heads and MaxSim are in float32
        reason = kernels.missing or f"they have no {placement.dtype_name} here"
        raise ModelRefused(f"--same-bits needs the processor's kernels: {reason}")


def build() -> str:
    """Everything that bits depend on beside a model: the library of kernels, PyTorch, and the processor's products."""
    instructions = next(chosen for chosen in supported() if chosen.name == library.load().instructions)
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"{library.path_of(instructions).stem}{' with AMX' if amx else ''}"


def install(modules: Iterable[nn.Module]) -> None:
    """Replaces all plain linear layers and activations of some modules in place; a layer that several share stays one.

    Activations are only replaced for speed: a model without others need not have each of its operators looked at.
    """
    replacements: dict[int, FixedLinear] = {}
    for module in modules:
        for parent, name, layer in plain_layers(module):
            if layer.weight.dtype in library.load().formats:
                setattr(parent, name, replacements.setdefault(id(layer), FixedLinear(layer)))
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if not isinstance(parent, EvenActivation) and type(child).__name__ in ACTIVATIONS:
                    setattr(parent, name, EvenActivation(child))
