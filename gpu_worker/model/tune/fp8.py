"""Linear layers in fp8: numbers of eight bits (float8_e4m3fn), with a float32 scale for each row.

A row of weights, which makes one output, is rounded once, at load. A row of activations, which is one token, is rounded
when it comes, by its own largest number: it does not depend on its batch mates. Products are summed in float32. Weights
take half the memory of bfloat16, and products on devices that have them half the time at best.

Knows layers; what rounding does to a model is measured in `closeness`.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.model.tune.linear import plain_layers
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

FP8 = "fp8 by row"
TYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(TYPE).max
LEAST = 1e-12
"""A row of zeros is divided by something."""
MULTIPLE = 16
"""Of a layer's inputs and outputs, which the kernels want."""
CAPABLE = (8, 9)
"""Compute capability: Ada has them, Hopper and what came after it."""
CHOOSES = {"gate", "router"}
"""Names of layers that choose experts. They are small, and a rounded number would send a token elsewhere."""
AGREE = 2e-2
"""Of the largest output: bfloat16 rounds it by a hundredth of that at most."""

Product = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""x [T, in] and w [out, in] in fp8, their scales [T, 1] and [1, out] float32, bias [out] -> [T, out] bfloat16."""


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """rows [N, K] -> the same in fp8 [N, K], to be multiplied with float32 [N, 1].

    A row's largest number becomes the largest of the type. What is not finite stays so, in its own row.
    """
    scales = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=LEAST) / LARGEST
    return (rows.float() / scales).to(TYPE).contiguous(), scales


def scaled(x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, bias: Tensor | None) -> Tensor:
    """See `Product`. Without fast accumulation, by which Hopper keeps fewer bits of a sum than float32 has."""
    return torch._scaled_mm(
        x, w.t(), scale_a=x_scales, scale_b=w_scales, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def written_out(x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, bias: Tensor | None) -> Tensor:
    """The obvious twin: the same rounded numbers in float32."""
    products = (x.float() @ w.float().t()) * x_scales * w_scales
    return (products if bias is None else products + bias.float()).bfloat16()


class Fp8Linear(nn.Module):
    """x [..., in] -> [..., out] in bfloat16: an nn.Linear whose numbers have eight bits."""

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
    """Raises ModelRefused where the device has no products of such numbers."""
    device = placement.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < CAPABLE:
        raise ModelRefused(
            f"--linear = 'fp8': {device} has no fp8 products; CUDA devices of compute capability 8.9 and later have"
        )
    if placement.dtype != torch.bfloat16:
        raise ModelRefused(f"--linear = 'fp8' goes with --dtype bfloat16, this is {placement.dtype_name}")


def install(base: nn.Module, heads: Iterable[nn.Module] = (), product: Product = scaled) -> str:
    """Replaces the linear layers of an encoder in place, one after the other; what became of them.

    Left as they are: what `heads` run as well, what chooses experts, what the kernels or the model's own code cannot
    take. Raises ModelRefused where nothing is left to replace, or where the device computes something else.
    """
    kept = {id(each) for head in heads for each in head.modules()}
    found = [(parent, name, layer) for parent, name, layer in plain_layers(base) if id(layer) not in kept]
    fitting = [(parent, name, layer) for parent, name, layer in found if name not in CHOOSES and _fits(layer)]
    if not fitting:
        raise ModelRefused(f"--linear = 'fp8': {type(base).__name__} has no linear layer that fits")
    made: dict[int, Fp8Linear] = {}  # a layer that several share is rounded once
    for parent, name, layer in fitting:
        if id(layer) not in made:
            made[id(layer)] = Fp8Linear(layer, product)
            if len(made) == 1:
                _check(made[id(layer)])
        setattr(parent, name, made[id(layer)])
    return f"{len(fitting)} linear layers in fp8 by row, {len(found) - len(fitting)} left as they are"


def _fits(layer: nn.Linear) -> bool:
    sizes = (layer.in_features, layer.out_features)
    return layer.weight.dtype == torch.bfloat16 and all(size % MULTIPLE == 0 for size in sizes)


def _check(layer: Fp8Linear) -> None:
    """Raises ModelRefused where the product is not that of its twin: another build, another kind of device."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, layer.in_features, generator=generator).to(layer.rounded.device, torch.bfloat16)
    rows, scales = rounded(x)
    expected = written_out(rows, layer.rounded, scales, layer.scales, layer.bias).float()
    try:
        error = (layer(x).float() - expected).abs().max() / expected.abs().max().clamp(min=LEAST)
    except (AttributeError, RuntimeError) as failure:
        raise ModelRefused(f"--linear = 'fp8': this PyTorch refuses such a product: {first_line(failure)}") from None
    if not error < AGREE:
        raise ModelRefused(f"--linear = 'fp8': products of this device are off by {float(error):.2g} of the largest")
