"""Linear layers with weights packed once for oneDNN, bias and GELU fused.

Stock `nn.Linear` repacks its weight in every call and, in float32 on AMD, runs at under half the processor's speed;
packed ones also give bit-identical rows whatever their batch mates. A GELU of its own reads and writes the widest
tensors of a model once more. The operators are private to PyTorch, so they are probed, checked numerically on every
layer, and left alone where anything is off.
"""

import inspect
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Linear = Literal["auto", "fp8"]
"""What can be asked for: exact layers, as fast as the device has them, or rounded ones; see `fp8`."""
PREPACKED = "onednn-prepacked"
STOCK = "torch"
ACTIVATED = (("dense", "intermediate_act_fn"), ("lin1", "activation"))
"""Where transformers calls an activation right after a linear layer: BERT and its kin, DistilBERT."""


class PrepackedLinear(nn.Module):
    """x [..., in] -> [..., out], the same as the nn.Linear that it was made from, then `gelu`."""

    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self._activation = ("none", "")

    def fuse_gelu(self, approximate: str) -> None:
        """Applies GELU to the output from now on; `approximate` is none or tanh, as in torch."""
        self._activation = ("gelu", approximate)

    def forward(self, x: Tensor) -> Tensor:
        name, approximate = self._activation
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, name, [], approximate)
        return y


def prepack(model: nn.Module) -> str:
    """Replaces all plain nn.Linear of a CPU model in place; returns what linear layers run on afterwards."""
    layers = plain_layers(model)
    try:
        packed = [PrepackedLinear(child) for _, _, child in layers]
        agree = all(_agrees(new, old) for new, (_, _, old) in zip(packed, layers, strict=True))
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return STOCK
    if not layers or not agree:
        return STOCK
    for new, (parent, name, _) in zip(packed, layers, strict=True):
        setattr(parent, name, new)
    for module in model.modules():
        _fuse(module)
    return PREPACKED


def plain_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """All plain nn.Linear that something else may stand for: the module they belong to, their name there, and they."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()  # named_children passes over a second name of a layer
        if type(child) is nn.Linear and not _reads_weight(cast(Hashable, type(parent)), name)
    ]


def undoing(model: nn.Module) -> Callable[[], None]:
    """What puts the layers back that a model has now, after `prepack` replaced them."""
    kept = [(module, dict(module.named_children())) for module in model.modules()]

    def undo() -> None:
        for module, children in kept:
            for name, child in children.items():
                setattr(module, name, child)

    return undo


@cache
def _reads_weight(module: Any, name: str) -> bool:
    """Whether a class's own code looks at the weight of a layer that it calls `name`; packed ones have none to show."""
    try:
        return f"self.{name}.weight" in inspect.getsource(module)
    except (OSError, TypeError):  # no source: what needs the weight fails in the gate
        return False


def _agrees(packed: PrepackedLinear, linear: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, linear.in_features, generator=generator).to(linear.weight.dtype)
    expected, tolerance = linear(x), 1e-4 if x.dtype == torch.float32 else 5e-2
    error = (packed(x) - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    return bool(error < tolerance)


def _fuse(module: nn.Module) -> None:
    """Moves a GELU that follows a packed layer into it."""
    for linear_name, activation_name in ACTIVATED:
        linear, activation = getattr(module, linear_name, None), getattr(module, activation_name, None)
        if isinstance(linear, PrepackedLinear) and isinstance(activation, nn.Module):
            approximate = gelu_kind(activation)
            if approximate is not None:
                linear.fuse_gelu(approximate)
                setattr(module, activation_name, nn.Identity())


def gelu_kind(activation: Callable[[Tensor], Tensor]) -> str | None:
    """none or tanh where `activation` is that GELU, told by its values; None for anything else."""
    x = torch.linspace(-6, 6, 241)
    for approximate in ("none", "tanh"):
        if torch.allclose(activation(x), F.gelu(x, approximate=approximate), atol=1e-6):
            return approximate
    return None
