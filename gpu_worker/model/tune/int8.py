"""Linear layers in int8 on processors: weights of eight bits with a scale for each output, activations for each token.

A row of weights is rounded once, at load, to -127 to 127. A row of activations, which belongs to one token, is rounded
in every call to 0 to 255 between its smallest and its largest number, so it does not depend on other tokens of the
batch. Sums are exact integers: processors without VNNI add products of two neighbours in 16 bits, so two weights side
by side come to 128 at most. All processors round weights alike, so workers on any of them may serve together: their
rows differ where a token's number lies between two steps. The gate measures how rounding changes a model.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.products import DEPTH
from gpu_worker.model.native.linear import QuantizedLinear, block_of
from gpu_worker.model.tune.linear import plain_layers
from shared.errors import ModelRefused

NAME = "int8 by token"
"""Name of these linear layers in the card."""
ROUNDING = f"{NAME}, neighbours to 128"
"""How numbers are rounded, for the fingerprint: it changes with them."""
ROUTERS = {"gate", "router"}
"""Names of layers that choose experts. They are small, and a rounded number could send a token to another expert."""


class Int8Linear(nn.Module):
    """x [..., in] -> [..., out] in the format of x: an nn.Linear whose weights and inputs are rounded to eight bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._linear = QuantizedLinear(linear)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._linear(x.flatten(0, -2))
        return y.view(*x.shape[:-1], self.out_features)


def check_device(placement: Placement) -> None:
    """Raises ModelRefused where the device has no int8 products, or not in the model's number format."""
    if placement.device.type != "cpu":
        raise ModelRefused(f"--linear = 'int8': it is for processors; this is {placement.device}")
    kernels = library.load()
    if kernels.missing:
        raise ModelRefused(f"--linear = 'int8': it takes the processor's kernels: {kernels.missing}")
    if placement.dtype not in kernels.formats:
        raise ModelRefused(f"--linear = 'int8': this processor's kernels have no {placement.dtype_name}")


def install(base: nn.Module, heads: Iterable[nn.Module] = ()) -> str:
    """Replaces the linear layers of an encoder in place.

    Layers that `heads` share, that choose experts, or whose sizes the kernels do not take stay as they are. Returns a
    line for the log. Raises ModelRefused where no layer can be replaced.
    """
    shared = {id(module) for head in heads for module in head.modules()}
    layers = [(parent, name, layer) for parent, name, layer in plain_layers(base) if id(layer) not in shared]
    fitting = [(parent, name, layer) for parent, name, layer in layers if name not in ROUTERS and _fits(layer)]
    if not fitting:
        raise ModelRefused(f"--linear = 'int8': {type(base).__name__} has no linear layer that fits")
    replacements: dict[int, Int8Linear] = {}  # a layer that several modules share is rounded once
    for parent, name, layer in fitting:
        if id(layer) not in replacements:
            replacements[id(layer)] = Int8Linear(layer)
        setattr(parent, name, replacements[id(layer)])
    left = len(layers) - len(fitting)
    return f"{len(fitting)} linear layers in int8 by token, {left} left as they are"


def _fits(layer: nn.Linear) -> bool:
    """Whether the kernels can run a layer in int8."""
    return layer.in_features % DEPTH == 0 and block_of(layer.out_features) > 0
