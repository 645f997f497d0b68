"""Linear layers whose weights are packed once for oneDNN, and how they replace a model's own.

`nn.Linear` packs its weight again in every call, unless its library needs no packed weights. The packing operators are
private to PyTorch, so they are compared with `nn.Linear` on every layer, and not used where they are missing or differ.
`linear_choice` measures which kernel is faster.
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

Linear = Literal["auto", "fp8", "int8"]
"""Values of `--linear`: exact layers by the fastest kernel of the device, or layers in eight bits; see `rounding`."""
ACTIVATED = (("dense", "intermediate_act_fn"), ("lin1", "activation"))
"""Names of a linear layer and of the activation called right after it: in models like BERT, and in DistilBERT."""


class PrepackedLinear(nn.Module):
    """x [..., in] -> [..., out]: the nn.Linear that it was made from, and GELU after it where `gelu` names its kind.

    The packed weight serves up to `most_rows` rows, the unpacked one more rows. Where `most_rows` is None, the packed
    weight serves any number.
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

    def keep(self, weight: Tensor, most_rows: int) -> None:
        """Keeps the unpacked `weight` [out, in] too, for batches of more than `most_rows` rows."""
        self.register_buffer("weight", weight.detach())
        self.most_rows = most_rows

    def forward(self, x: Tensor) -> Tensor:
        if self.most_rows is None or x.numel() <= self.most_rows * self.in_features:
            return self.product(x, self.gelu)
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate=self.gelu) if self.gelu else y

    def product(self, x: Tensor, gelu: str = "") -> Tensor:
        """Multiplies by the packed weight, with the GELU fused that `gelu` names, if any."""
        name = "gelu" if gelu else "none"
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, name, [], gelu)
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """A linear layer of a model, `parent.name`: `stock` is its own, and `packed` may replace it.

    Where GELU follows the layer, `gelu` is its kind, none or tanh, and `parent.activation` applies it.
    """

    parent: nn.Module
    name: str
    stock: nn.Linear
    packed: PrepackedLinear
    gelu: str = ""
    activation: str = ""


def packed_layers(model: nn.Module) -> list[LinearLayer]:
    """All plain nn.Linear of a CPU model with their packed versions; the model is not changed.

    Empty where this PyTorch cannot pack weights, or where a packed layer differs from its own.
    """
    layers = []
    try:
        for parent, name, linear in plain_layers(model):
            activation, gelu = _gelu_after(parent, name)
            packed = PrepackedLinear(linear)
            layers.append(
                LinearLayer(parent=parent, name=name, stock=linear, packed=packed, gelu=gelu, activation=activation)
            )
        agree = all(_agree(layer.packed.product, layer.stock, layer.stock) for layer in layers)
    except (AttributeError, RuntimeError):  # another build of PyTorch: no such operator, or not for this type
        return []
    return layers if agree else []


def fuses(layers: Sequence[LinearLayer]) -> bool:
    """Whether GELU follows some of the layers, and every such layer gives the same with its GELU fused."""
    activated = [layer for layer in layers if layer.gelu]
    try:
        return bool(activated) and all(
            _agree(
                partial(layer.packed.product, gelu=layer.gelu),
                nn.Sequential(layer.stock, nn.GELU(layer.gelu)),
                layer.stock,
            )
            for layer in activated
        )
    except (AttributeError, RuntimeError):
        return False


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


@contextmanager
def packed_alone(model: nn.Module) -> Iterator[None]:
    """Makes packed weights serve any number of rows inside the `with` block."""
    layers = [(module, module.most_rows) for module in model.modules() if isinstance(module, PrepackedLinear)]
    try:
        for layer, _ in layers:
            layer.most_rows = None
        yield
    finally:
        for layer, most_rows in layers:
            layer.most_rows = most_rows


@cache
def reads_weight(module: Any, name: str) -> bool:
    """Whether a class's code reads the weight of its layer `name` directly; a packed layer has no such weight."""
    try:
        return f"self.{name}.weight" in inspect.getsource(module)
    except (OSError, TypeError):  # no source: if the code does need the weight, the gate refuses the model
        return False


def _agree(candidate: Callable[[Tensor], Tensor], expected: Callable[[Tensor], Tensor], linear: nn.Linear) -> bool:
    """Whether two functions give about the same for a few random rows of the layer's width."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, linear.in_features, generator=generator).to(linear.weight.dtype)
    wanted, tolerance = expected(x), 1e-4 if x.dtype == torch.float32 else 5e-2
    error = (candidate(x) - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)
    return bool(error < tolerance)


def _gelu_after(parent: nn.Module, name: str) -> tuple[str, str]:
    """Name of the module in `parent` that applies GELU to the output of this layer, and the kind; else empty names."""
    activation_name = dict(ACTIVATED).get(name, "")
    activation = getattr(parent, activation_name, None) if activation_name else None
    kind = gelu_kind(activation) if isinstance(activation, nn.Module) else None
    return (activation_name, kind) if kind else ("", "")


def gelu_kind(activation: Callable[[Tensor], Tensor]) -> str | None:
    """Kind of GELU that `activation` computes, none or tanh, recognised by its values; None for any other function."""
    x = torch.linspace(-6, 6, 241)
    for approximate in ("none", "tanh"):
        if torch.allclose(activation(x), F.gelu(x, approximate=approximate), atol=1e-6):
            return approximate
    return None
