"""Linear layers whose weights are packed once for oneDNN, and how they replace a model's own.

`nn.Linear` packs its weight again in every call, unless its library needs no packed weights. The packing operators are
private to PyTorch, so they are compared with `nn.Linear` on every layer, and not used where they are missing or differ.
"""

import inspect
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

Linear = Literal["auto", "int8"]
"""Values of `--linear`: exact layers, or layers in eight bits; see `int8`."""
PACKED, STOCK = "onednn-prepacked", "torch"
"""Names of linear layers with packed weights, and of PyTorch's own, in the card."""


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
    """Packs all plain nn.Linear of a CPU model, in place; returns whether it did.

    None is replaced where this PyTorch cannot pack weights, or where a packed layer differs from its own.
    """
    layers = plain_layers(model)
    try:
        packed = [PrepackedLinear(linear) for _, _, linear in layers]
        agree = all(_agree(layer, linear) for layer, (_, _, linear) in zip(packed, layers, strict=True))
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return False
    if not agree:
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


def _agree(packed: PrepackedLinear, linear: nn.Linear) -> bool:
    """Whether a packed layer gives about the same for a few random rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, linear.in_features, generator=generator).to(linear.weight.dtype)
    wanted, tolerance = linear(x), 1e-4 if x.dtype == torch.float32 else 5e-2
    error = (packed(x) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)
    return bool(error < tolerance)
