"""Linear layers with weights packed once for oneDNN, and what may stand in for a model's own.

Stock `nn.Linear` packs its weight anew in every call, unless its library can do without. The operators are private to
PyTorch, so they are probed, checked numerically on every layer, and left alone where anything is off. Which way is the
faster one is for `linear_choice` to find out.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Linear = Literal["auto", "fp8"]
"""What can be asked for: exact layers, as fast as the device has them, or rounded ones; see `fp8`."""
ACTIVATED = (("dense", "intermediate_act_fn"), ("lin1", "activation"))
"""Where transformers calls an activation right after a linear layer: BERT and its kin, DistilBERT."""


class PrepackedLinear(nn.Module):
    """x [..., in] -> [..., out], the same as the nn.Linear that it was made from, then `gelu`.

    Up to `most` rows by the packed weight, where that is not None; beyond, as nn.Linear does it.
    """

    bias: Tensor | None
    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.gelu = ""
        self.most_rows: int | None = None

    def fuse_gelu(self, approximate: str) -> None:
        """Applies GELU to the output from now on; `approximate` is none or tanh, as in torch."""
        self.gelu = approximate

    def keep(self, weight: Tensor, most: int) -> None:
        """Takes the unpacked `weight` [out, in] for batches of more than `most` rows."""
        self.register_buffer("weight", weight.detach())
        self.most_rows = most

    def forward(self, x: Tensor) -> Tensor:
        if self.most_rows is None or x.numel() <= self.most_rows * self.in_features:
            return self.product(x, self.gelu)
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate=self.gelu) if self.gelu else y

    def product(self, x: Tensor, gelu: str = "") -> Tensor:
        """By the packed weight; with GELU fused where it is named."""
        name = "gelu" if gelu else "none"
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, name, [], gelu)
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """A linear layer of a model, `parent.name`, and what may stand in for it.

    Where its GELU is all that follows it, `gelu` is its kind, none or tanh, and `parent.activation` applies it.
    """

    parent: nn.Module
    name: str
    stock: nn.Linear
    packed: PrepackedLinear
    gelu: str = ""
    activation: str = ""


def packed_layers(model: nn.Module) -> list[LinearLayer]:
    """All plain nn.Linear of a CPU model with their packed twins; none where this PyTorch packs none, or one differs.

    Nothing is changed.
    """
    layers = []
    try:
        for parent, name, linear in plain_layers(model):
            activation, gelu = _gelu_after(parent, name)
            packed = PrepackedLinear(linear)
            layers.append(
                LinearLayer(parent=parent, name=name, stock=linear, packed=packed, gelu=gelu, activation=activation)
            )
        agree = all(_agree(each.packed.product, each.stock, each.stock) for each in layers)
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return []
    return layers if agree else []


def fuses(layers: Sequence[LinearLayer]) -> bool:
    """Whether there are GELUs to be fused, and each, once it is, is the same."""
    activated = [each for each in layers if each.gelu]
    try:
        return bool(activated) and all(
            _agree(
                partial(each.packed.product, gelu=each.gelu),
                nn.Sequential(each.stock, nn.GELU(each.gelu)),
                each.stock,
            )
            for each in activated
        )
    except (AttributeError, RuntimeError):
        return False


def plain_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """All plain nn.Linear that something else may stand for: the module they belong to, their name there, and they."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()  # named_children passes over a second name of a layer
        if type(child) is nn.Linear and not _reads_weight(cast(Hashable, type(parent)), name)
    ]


def undoing(model: nn.Module) -> Callable[[], None]:
    """What puts the layers back that a model has now, after others took their places."""
    kept = [(module, dict(module._modules)) for module in model.modules()]

    def undo() -> None:
        for module, children in kept:
            for name, child in children.items():
                setattr(module, name, child)

    return undo


@contextmanager
def packed_alone(model: nn.Module) -> Iterator[None]:
    """For a while packed weights serve any number of rows."""
    kept = [(each, each.most_rows) for each in model.modules() if isinstance(each, PrepackedLinear)]
    try:
        for layer, _ in kept:
            layer.most_rows = None
        yield
    finally:
        for layer, most in kept:
            layer.most_rows = most


@cache
def _reads_weight(module: Any, name: str) -> bool:
    """Whether a class's own code looks at the weight of a layer that it calls `name`; packed ones have none to show."""
    try:
        return f"self.{name}.weight" in inspect.getsource(module)
    except (OSError, TypeError):  # no source: what needs the weight fails in the gate
        return False


def _agree(found: Callable[[Tensor], Tensor], expected: Callable[[Tensor], Tensor], linear: nn.Linear) -> bool:
    """Whether both make the same of a few rows for this layer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, linear.in_features, generator=generator).to(linear.weight.dtype)
    wanted, tolerance = expected(x), 1e-4 if x.dtype == torch.float32 else 5e-2
    error = (found(x) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)
    return bool(error < tolerance)


def _gelu_after(parent: nn.Module, name: str) -> tuple[str, str]:
    """The attribute that applies GELU to what the layer of this name gives, and its kind; empty where nothing does."""
    activation_name = dict(ACTIVATED).get(name, "")
    activation = getattr(parent, activation_name, None) if activation_name else None
    kind = gelu_kind(activation) if isinstance(activation, nn.Module) else None
    return (activation_name, kind) if kind else ("", "")


def gelu_kind(activation: Callable[[Tensor], Tensor]) -> str | None:
    """none or tanh where `activation` is that GELU, told by its values; None for anything else."""
    x = torch.linspace(-6, 6, 241)
    for approximate in ("none", "tanh"):
        if torch.allclose(activation(x), F.gelu(x, approximate=approximate), atol=1e-6):
            return approximate
    return None
