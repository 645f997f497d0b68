"""What may stand in for a linear layer equals it."""

import pytest
import torch
from torch import nn

from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune import linear as module
from gpu_worker.model.tune.linear import STOCK, PrepackedLinear, pack
from support.native import no_kernels
from support.onednn import HALF, needs_packed_layers
from support.random_models import random_model
from support.tiny import CPU

pytestmark = needs_packed_layers


def block(bias: bool = True) -> nn.Sequential:
    """Two layers at different depths."""
    return nn.Sequential(nn.Linear(48, 96, bias=bias), nn.GELU(), nn.Sequential(nn.Linear(96, 4)))


FORMATS = [torch.float32, pytest.param(torch.bfloat16, marks=[] if HALF else pytest.mark.skip("no bfloat16 in oneDNN"))]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_packed_layers_equal_the_stock_ones(bias: bool, dtype: torch.dtype) -> None:
    """With few rows and with many, of one dimension more too."""
    model = block(bias).to(dtype)
    states = [torch.randn(*shape, 48).to(dtype) for shape in ((1,), (7,), (40,), (1, 8), (2, 3, 5))]
    expected = [model(x) for x in states]
    assert pack(model)
    assert isinstance(model[0], PrepackedLinear)
    for x, rows in zip(states, expected, strict=True):
        assert torch.allclose(model(x), rows, atol=1e-5 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("flaw", ["missing", "wrong"])
def test_an_operator_that_is_missing_or_wrong_serves_nothing(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build of PyTorch, or one whose operator computes something else, which the gate finds out."""

    class Flawed(PrepackedLinear):
        def __init__(self, linear: nn.Linear) -> None:
            if flaw == "missing":
                raise AttributeError("no such operator")
            super().__init__(linear)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    no_kernels(monkeypatch)
    monkeypatch.setattr(module, "PrepackedLinear", Flawed)
    model = load(random_model("tiny-bert"), CPU, LoadOptions(max_tokens=64))
    assert model.linear == STOCK
    assert ("linear layers: torch, since the model does not run as its own with packed ones" in model.findings) == (
        flaw == "wrong"
    )
