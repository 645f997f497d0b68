"""Packed linear layers equal the ones that they replace."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from gpu_worker.device.placement import Placement
from gpu_worker.model import linear as module
from gpu_worker.model.linear import PREPACKED, STOCK, PrepackedLinear, gelu_kind, prepack, undoing
from gpu_worker.random_models import synthetic


class Block(nn.Module):
    """Shaped like BertIntermediate."""

    def __init__(self, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(48, 96, bias=bias)
        self.intermediate_act_fn = ACT2FN[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.intermediate_act_fn(self.dense(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu"])
@torch.inference_mode()
def test_a_packed_block_equals_the_stock_one(activation: str, bias: bool) -> None:
    """With its activation fused where it is a GELU, and left alone where it is none."""
    block = Block(activation, bias)
    x = torch.randn(7, 48)
    expected = block(x)
    assert prepack(block) == PREPACKED
    assert isinstance(block.dense, PrepackedLinear)
    assert isinstance(block.intermediate_act_fn, nn.Identity) == (gelu_kind(ACT2FN[activation]) is not None)
    assert (block(x) - expected).abs().max() < 1e-5


def test_gelus_are_told_apart_by_their_values() -> None:
    """quick_gelu is none of the two."""
    kinds = {name: gelu_kind(ACT2FN[name]) for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu")}
    assert kinds == {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "quick_gelu": None, "relu": None}


@pytest.mark.parametrize("flaw", ["missing", "wrong"])
def test_without_the_operator_everything_stays_as_it_is(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build of PyTorch, or one whose operator computes something else."""

    class Flawed(PrepackedLinear):
        def __init__(self, linear: nn.Linear) -> None:
            if flaw == "missing":
                raise AttributeError("no such operator")
            super().__init__(linear)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    monkeypatch.setattr(module, "PrepackedLinear", Flawed)
    block = Block("gelu")
    assert prepack(block) == STOCK
    assert type(block.dense) is nn.Linear


def test_every_linear_layer_of_a_model_is_packed() -> None:
    """And BERT's GELUs with them."""
    config, _ = synthetic.shape_of("tiny-bert")
    model = synthetic.build(config, "encoder", Placement(device=torch.device("cpu"), dtype=torch.float32)).eval()
    with torch.inference_mode():
        assert prepack(model) == PREPACKED
    assert not any(type(each) is nn.Linear for each in model.modules())
    fused = [each for each in model.modules() if isinstance(each, PrepackedLinear) and each._activation[0] == "gelu"]
    assert len(fused) == config.num_hidden_layers


class Reading(nn.Module):
    """Looks at the weight of one of its layers, as T5's feed-forward does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).to(self.outer.weight.dtype))


def test_a_layer_whose_weight_is_read_stays_as_it_is() -> None:
    """A packed one has no weight to show."""
    block = Reading()
    assert prepack(block) == PREPACKED
    assert isinstance(block.inner, PrepackedLinear)
    assert isinstance(block.outer, nn.Linear)
    block(torch.randn(3, 8))


def test_what_was_packed_can_be_put_back() -> None:
    """Layers and fused activations, at every depth, to the last bit."""
    model = nn.Sequential(Block("gelu"), nn.Sequential(nn.Linear(96, 4)))
    x = torch.randn(7, 48)
    expected, undo = model(x), undoing(model)
    assert prepack(model) == PREPACKED
    undo()
    assert not any(isinstance(each, PrepackedLinear) for each in model.modules())
    assert torch.equal(model(x), expected)
