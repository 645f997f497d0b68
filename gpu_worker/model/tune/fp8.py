"""Linear layers in fp8: numbers of eight bits (float8_e4m3fn), with a float32 scale for each row.

Each row of weights (one output) is rounded once, at load. Each row of activations (one token) is rounded in every call,
by its own largest number, so that it does not depend on other tokens of the batch. Products are summed in float32.
Compared with bfloat16, weights take half the memory, and products at best half the time.

This module knows layers only; `closeness` measures how much rounding changes a model.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.model.tune.linear import plain_layers
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

NAME = ROUNDING = "fp8 by row"
"""Name of these linear layers in the card and, with how they round, for the fingerprint."""
TYPE = torch.float8_e4m3fn
"""Number format of the rounded rows."""
LARGEST = torch.finfo(TYPE).max
"""Largest number of the format."""
LEAST = 1e-12
"""Least number that counts as the largest of a row, so that a row of zeros is not divided by zero."""
MULTIPLE = 16
"""Divisor that the kernels require of a layer's number of inputs and of outputs."""
CAPABLE = (8, 9)
"""Lowest compute capability of CUDA devices with fp8 products: that of Ada."""
ROUTERS = {"gate", "router"}
"""Names of layers that choose experts. They are small, and a rounded number could send a token to another expert."""
TOLERANCE = 2e-2
"""Largest error of a product, relative to its largest output. Rounding to bfloat16 errs by less than half of it."""

Product = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""A function of x [T, in] and w [out, in] in fp8, their scales [T, 1] and [1, out] float32, and the bias [out].

It returns the product, scaled and with the bias added: [T, out] bfloat16.
"""


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds rows [N, K] to fp8. Returns them and scales [N, 1] float32; their product is about the rows again.

    The largest number of a row becomes the largest number of fp8. A number that is not finite affects only its own row.
    """
    scales = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=LEAST) / LARGEST
    return (rows.float() / scales).to(TYPE).contiguous(), scales


def scaled(x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, bias: Tensor | None) -> Tensor:
    """A `Product` by PyTorch's kernel. Fast accumulation is off: on Hopper its sums have fewer bits than float32."""
    return torch._scaled_mm(
        x, w.t(), scale_a=x_scales, scale_b=w_scales, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def written_out(x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, bias: Tensor | None) -> Tensor:
    """A `Product` of the same rounded numbers in float32: the slow twin of `scaled`."""
    products = (x.float() @ w.float().t()) * x_scales * w_scales
    return (products if bias is None else products + bias.float()).bfloat16()


class Fp8Linear(nn.Module):
    """An nn.Linear whose weights and inputs are rounded to fp8: x [..., in] -> [..., out] in bfloat16.

    `rounded` [out, in] in fp8 and `scales` [1, out] float32 are the weights.
    """

    rounded: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, product: Product = scaled) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scales = rounded(linear.weight.detach())
        self.register_buffer("rounded", weight)
        self.register_buffer("scales", scales.t().contiguous())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        rows, scales = rounded(x.flatten(0, -2))
        return self._product(rows, self.rounded, scales, self.scales, self.bias).view(*x.shape[:-1], self.out_features)


def check_device(placement: Placement) -> None:
    """Raises ModelRefused where the device has no fp8 products, or where the model is not to run in bfloat16."""
    device = placement.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < CAPABLE:
        raise ModelRefused(
            f"--linear = 'fp8': {device} has no fp8 products; CUDA devices of compute capability 8.9 and later have"
        )
    if placement.dtype != torch.bfloat16:
        raise ModelRefused(f"--linear = 'fp8' goes with --dtype bfloat16, this is {placement.dtype_name}")


def install(base: nn.Module, heads: Iterable[nn.Module] = (), product: Product = scaled) -> str:
    """Replaces the linear layers of an encoder in place, one after the other. Returns a line for the log.

    Layers that `heads` share, that choose experts, or that the kernels or the model's own code cannot use in fp8 stay
    as they are. Raises ModelRefused where no layer can be replaced, or where the device's product is wrong.
    """
    shared = {id(module) for head in heads for module in head.modules()}
    layers = [(parent, name, layer) for parent, name, layer in plain_layers(base) if id(layer) not in shared]
    fitting = [(parent, name, layer) for parent, name, layer in layers if name not in ROUTERS and _fits(layer)]
    if not fitting:
        raise ModelRefused(f"--linear = 'fp8': {type(base).__name__} has no linear layer that fits")
    replacements: dict[int, Fp8Linear] = {}  # a layer that several modules share is rounded once
    for parent, name, layer in fitting:
        if id(layer) not in replacements:
            replacements[id(layer)] = Fp8Linear(layer, product)
            if len(replacements) == 1:
                _check_product(replacements[id(layer)])
        setattr(parent, name, replacements[id(layer)])
    return f"{len(fitting)} linear layers in fp8 by row, {len(layers) - len(fitting)} left as they are"


def _fits(layer: nn.Linear) -> bool:
    """Whether the kernels can run a layer in fp8."""
    sizes = (layer.in_features, layer.out_features)
    return layer.weight.dtype == torch.bfloat16 and all(size % MULTIPLE == 0 for size in sizes)


def _check_product(layer: Fp8Linear) -> None:
    """Raises ModelRefused where the layer's product differs from `written_out`, as on an untried build or device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, layer.in_features, generator=generator).to(layer.rounded.device, torch.bfloat16)
    rows, scales = rounded(x)
    expected = written_out(rows, layer.rounded, scales, layer.scales, layer.bias).float()
    try:
        error = (layer(x).float() - expected).abs().max() / expected.abs().max().clamp(min=LEAST)
    except (AttributeError, RuntimeError) as failure:
        raise ModelRefused(f"--linear = 'fp8': this PyTorch refuses such a product: {first_line(failure)}") from None
    if not error < TOLERANCE:
        raise ModelRefused(f"--linear = 'fp8': products of this device are off by {float(error):.2g} of the largest")
