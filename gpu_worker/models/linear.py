"""Linear layers with weights packed once for oneDNN.

Stock `nn.Linear` repacks its weight in every call and, in float32 on AMD, runs at under half the processor's speed;
packed ones also give bit-identical rows whatever their batch mates. The operators are private to PyTorch, so they
are probed, checked numerically on every layer, and left alone where anything is off.
"""

import torch
from torch import Tensor, nn

PREPACKED = "onednn-prepacked"
STOCK = "torch"


class PrepackedLinear(nn.Module):
    """x [..., in] -> [..., out], the same as the nn.Linear that it was made from."""

    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


def prepack(model: nn.Module) -> str:
    """Replaces all plain nn.Linear of a CPU model in place; returns what linear layers run on afterwards."""
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    try:
        packed = [PrepackedLinear(child) for _, _, child in layers]
        agree = all(_agrees(new, old) for new, (_, _, old) in zip(packed, layers, strict=True))
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return STOCK
    if not layers or not agree:
        return STOCK
    for new, (parent, name, _) in zip(packed, layers, strict=True):
        setattr(parent, name, new)
    return PREPACKED


def _agrees(packed: PrepackedLinear, linear: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, linear.in_features, generator=generator).to(linear.weight.dtype)
    expected, tolerance = linear(x), 1e-4 if x.dtype == torch.float32 else 5e-2
    error = (packed(x) - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    return bool(error < tolerance)
