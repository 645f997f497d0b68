"""Linear layers in fp8 on a processor: the operator against its twin, and what is replaced by it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gpu_worker.model.tune import fp8
from gpu_worker.model.tune.fp8 import LARGEST, TYPE, Fp8Linear, install, rounded, scaled, written_out
from shared.errors import ModelRefused
from support.fp8_products import needs_products


def linear(inputs: int = 64, outputs: int = 48, bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).bfloat16().requires_grad_(False)


def states(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_products
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (17,), (1, 33), (3, 5)])
def test_the_operator_equals_its_twin(shape: tuple[int, ...], bias: bool) -> None:
    """Within one rounding to bfloat16, in the shape that came."""
    layer, x = linear(bias=bias), states(*shape, 64)
    expected = Fp8Linear(layer, written_out)(x)
    found = Fp8Linear(layer)(x)
    assert found.shape == expected.shape == (*shape, 48)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), expected.float(), rtol=2**-7, atol=1e-6 * float(expected.abs().max()))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(-20, 20))
def test_rounding_is_as_small_as_eight_bits_allow(seed: int, exponent: int) -> None:
    """Of each number half a unit of three bits, or of the smallest one's; at any scale."""
    rows = states(5, 48, seed=seed).float() * 2.0**exponent
    numbers, scales = rounded(rows)
    assert numbers.dtype == TYPE
    assert numbers.is_contiguous()
    error = (numbers.float() * scales - rows).abs()
    assert (error <= rows.abs() * 2**-4 * 1.001 + scales * 2**-10).all()
    assert torch.equal(numbers.float().abs().amax(dim=1), torch.full((5,), LARGEST))


@pytest.mark.parametrize("product", [written_out, pytest.param(scaled, marks=needs_products)])
def test_a_token_does_not_depend_on_its_mates(product: fp8.Product) -> None:
    """In no bit, whatever their size; and what is not finite stays in its own row."""
    layer, x = Fp8Linear(linear(), product), states(6, 64)
    alone = torch.cat([layer(x[row : row + 1]) for row in range(6)])
    assert torch.equal(layer(x), alone)
    x[2], x[4, 7] = 1e4, float("inf")
    x[5] = float("nan")
    among = layer(x)
    assert torch.equal(among[[0, 1, 3]], alone[[0, 1, 3]])
    assert torch.isnan(among[4:]).all()


def test_a_row_of_zeros_gives_the_bias() -> None:
    layer = linear()
    assert torch.equal(Fp8Linear(layer, written_out)(torch.zeros(2, 64).bfloat16())[1], layer.bias)


class Experts(nn.Module):
    """Layers: one chooses, one is read, two do not fit, one has two names, one is a head's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.read, self.narrow, self.usual, self.pooler = (linear(16, 16) for _ in range(5))
        self.narrow = linear(16, 8)
        self.float32 = nn.Linear(16, 16)
        self.again = self.usual
        self.inner = nn.Sequential(linear(16, 32), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.usual(x.to(self.read.weight.dtype))


def test_what_is_replaced_and_what_is_left() -> None:
    """A shared layer is rounded once; whatever is left is told."""
    model = Experts()
    told = install(model, [nn.ModuleList([model.pooler])], written_out)
    assert {name for name, each in model.named_modules() if isinstance(each, Fp8Linear)} == {"usual", "inner.0"}
    assert model.usual is model.again
    # `usual` has two names; gate, narrow and float32 are left; the head's and the one read are not the encoder's
    assert told == "3 linear layers in fp8 by row, 3 left as they are"
    assert {name for name, _ in model.named_parameters()} >= {"gate.weight", "read.weight", "pooler.weight"}


@pytest.mark.parametrize(
    ("product", "told"),
    [
        (lambda *each: written_out(*each) * 1.1, r"products of this device are off by 0\.\d+ of the largest"),
        (lambda *each: torch.ops.aten.no_such_operator(*each), "this PyTorch refuses such a product"),
    ],
    ids=["wrong", "missing"],
)
def test_a_device_that_errs_is_found_out(product: fp8.Product, told: str) -> None:
    """Before anybody is served by it."""
    with pytest.raises(ModelRefused, match=told):
        install(Experts(), (), product)


def test_a_model_without_a_layer_that_fits_is_refused() -> None:
    with pytest.raises(ModelRefused, match="no linear layer that fits"):
        install(nn.Sequential(linear(16, 8), nn.Linear(16, 16)))
