"""How linear layers run on processors, by the rule of `tuning`: PyTorch's with weights packed once for oneDNN, the
processor's kernels, or those in int8; and how they replace a model's own.

Beside whole layers that run by the kernels, mostly in heads, linear layers of any sizes and GELU run so that a row has
the same bits whatever rows stand beside it. PyTorch chooses products by the number of rows, and computes the last
numbers of a tensor's GELU by another function than the others.

In int8 weights have eight bits with a scale for each output, activations for each token. A row of weights is rounded
once, at load, to -127 to 127. A row of activations, which belongs to one token, is rounded in every call to 0 to 255
between its smallest and its largest number, so it does not depend on other tokens of the batch. Sums are exact
integers: processors without VNNI add products of two neighbours in 16 bits, so two weights side by side come to 128 at
most. All processors round weights alike, so workers on any of them may serve together: their rows differ where a
token's number lies between two steps. The gate measures how rounding changes a model.
"""

import inspect
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.kernels.cpu.products import DEPTH, Product
from gpu_worker.model.native.packed_linear import QuantizedLinear, block_of
from shared.errors import ModelRefused

Linear = Literal["auto", "int8"]
"""Exact layers, or layers in eight bits."""
PACKED, STOCK = "onednn-prepacked", "torch"
"""Names of linear layers with packed weights, and of PyTorch's own, in the card."""
GELUS = {"GELU": "none", "GELUActivation": "none", "GELUTanh": "tanh", "PytorchGELUTanh": "tanh"}
"""Classes of torch and transformers, and how each approximates unless its `approximate` says otherwise."""
INT8 = "int8 by token"
"""Name of layers in int8, in the card."""
ROUNDING = f"{INT8}, neighbours to 128"
"""How numbers are rounded, for the fingerprint: it changes with them."""
ROUTERS = {"gate", "router"}
"""Names of layers that choose experts. They are small, and a rounded number could send a token to another expert."""


class PrepackedLinear(nn.Module):
    """x [..., in] -> [..., out]: the nn.Linear that it was made from, with its weight packed once."""

    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


def pack(model: nn.Module) -> bool:
    """Packs all plain nn.Linear of a CPU model, in place; returns whether it did. The gate tells whether they give the
    same."""
    layers = plain_layers(model)
    try:
        packed = [PrepackedLinear(linear) for _, _, linear in layers]
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return False
    for layer, (parent, name, _) in zip(packed, layers, strict=True):
        setattr(parent, name, layer)
    return bool(packed)


def plain_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """All plain nn.Linear that may be replaced: the module that has each, its name there, and the layer."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()  # named_children skips a second name of a layer
        if type(child) is nn.Linear and not reads_weight(cast(Hashable, type(parent)), name)
    ]


def undoing(model: nn.Module) -> Callable[[], None]:
    """Returns a function that restores the layers which a model has now, after they have been replaced."""
    originals = [(module, dict(module._modules)) for module in model.modules()]

    def undo() -> None:
        for module, children in originals:
            for name, child in children.items():
                setattr(module, name, child)

    return undo


@cache
def reads_weight(module: Any, name: str) -> bool:
    """Whether a class's code reads the weight of its layer `name` directly; a packed layer has no such weight."""
    try:
        return f"self.{name}.weight" in inspect.getsource(module)
    except (OSError, TypeError):  # no source: if the code does need the weight, the gate refuses the model
        return False


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


def install_native(modules: Iterable[nn.Module], library: KernelLibrary) -> None:
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


class Int8Linear(nn.Module):
    """x [..., in] -> [..., out] in the format of x: an nn.Linear whose weights and inputs are rounded to eight bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._linear = QuantizedLinear(linear)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._linear(x.flatten(0, -2))
        return y.view(*x.shape[:-1], self.out_features)


def check_int8(placement: Placement) -> None:
    """Raises ModelRefused where the device has no int8 products, or not in the model's number format."""
    if placement.device.type != "cpu":
        raise ModelRefused(f"--dtype = 'int8': it is for processors; this is {placement.device}")
    kernels = library.load()
    if kernels.missing:
        raise ModelRefused(f"--dtype = 'int8': it takes the processor's kernels: {kernels.missing}")
    if placement.dtype not in kernels.formats:
        raise ModelRefused(f"--dtype = 'int8': this processor's kernels have no {placement.dtype_name}")


def install_int8(base: nn.Module, heads: Iterable[nn.Module] = ()) -> str:
    """Replaces the linear layers of an encoder in place.

    Layers that `heads` share, that choose experts, or whose sizes the kernels do not take stay as they are. Returns a
    line for the log. Raises ModelRefused where no layer can be replaced.
    """
    shared = {id(module) for head in heads for module in head.modules()}
    layers = [(parent, name, layer) for parent, name, layer in plain_layers(base) if id(layer) not in shared]
    fitting = [(parent, name, layer) for parent, name, layer in layers if name not in ROUTERS and _fits(layer)]
    if not fitting:
        raise ModelRefused(f"--dtype = 'int8': {type(base).__name__} has no linear layer that fits")
    replacements: dict[int, Int8Linear] = {}  # a layer that several modules share is rounded once
    for parent, name, layer in fitting:
        if id(layer) not in replacements:
            replacements[id(layer)] = Int8Linear(layer)
        setattr(parent, name, replacements[id(layer)])
    unfit = len(layers) - len(fitting)
    return f"{len(fitting)} linear layers in int8 by token, {unfit} left as they are"


def _fits(layer: nn.Linear) -> bool:
    """Whether the kernels can run a layer in int8."""
    return layer.in_features % DEPTH == 0 and block_of(layer.out_features) > 0
