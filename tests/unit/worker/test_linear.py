"""What may stand in for a linear layer equals it."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from gpu_worker.device.placement import Placement
from gpu_worker.model.tune import linear as module
from gpu_worker.model.tune.linear import PrepackedLinear, fuses, gelu_kind, packed_alone, packed_layers, undoing
from gpu_worker.model.tune.linear_choice import LinearKernel, LinearPlan
from gpu_worker.random_models import synthetic
from support.onednn import HALF, needs_packed_layers

PLANS = [
    LinearPlan(),
    LinearPlan(LinearKernel.PACKED),
    LinearPlan(LinearKernel.FUSED),
    LinearPlan(LinearKernel.PACKED, 8),
    LinearPlan(LinearKernel.FUSED, 8),
]

pytestmark = needs_packed_layers


class Block(nn.Module):
    """Shaped like BertIntermediate."""

    def __init__(self, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(48, 96, bias=bias)
        self.intermediate_act_fn = ACT2FN[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.intermediate_act_fn(self.dense(x))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu"])
@torch.inference_mode()
def test_every_way_equals_the_stock_one(activation: str, bias: bool, plan: LinearPlan) -> None:
    """With few rows and with many, of one dimension more too; a GELU is applied once, other activations are left."""
    block = Block(activation, bias)
    states = [torch.randn(*shape, 48) for shape in ((1,), (7,), (8,), (9,), (40,), (1, 8), (1, 9), (2, 3, 5))]
    expected = [block(x) for x in states]
    plan.install(packed_layers(block))
    fused = plan.kernel is LinearKernel.FUSED and gelu_kind(ACT2FN[activation]) is not None
    assert isinstance(block.intermediate_act_fn, nn.Identity) == fused
    assert isinstance(block.dense, PrepackedLinear) == (plan.kernel is not LinearKernel.STOCK)
    for x, wanted in zip(states, expected, strict=True):
        assert (block(x) - wanted).abs().max() < 1e-5


@pytest.mark.skipif(not HALF, reason="this processor has no bfloat16 products in oneDNN")
@pytest.mark.parametrize("plan", PLANS, ids=str)
@torch.inference_mode()
def test_every_way_serves_bfloat16(plan: LinearPlan) -> None:
    """Within what rounding an output, and a GELU of a rounded one, may make of it."""
    block = Block("gelu").bfloat16()
    states = [torch.randn(count, 48).bfloat16() for count in (3, 20)]
    expected = [block(x) for x in states]
    plan.install(packed_layers(block))
    for x, wanted in zip(states, expected, strict=True):
        assert (block(x).float() - wanted.float()).abs().max() <= 2**-6 * wanted.abs().max()


@torch.inference_mode()
def test_rows_tell_which_weight_is_multiplied() -> None:
    """Up to the bound the packed one, beyond it the other; inside `packed_alone` the packed one always."""
    block = nn.Sequential(nn.Linear(16, 16))
    LinearPlan(LinearKernel.PACKED, 8).install(packed_layers(block))
    layer: Any = block[0]
    layer.weight.zero_()
    layer.bias.zero_()
    few, many = torch.ones(8, 16), torch.ones(9, 16)
    assert layer(few).abs().max() > 0
    assert layer(many).abs().max() == 0
    with packed_alone(block):
        assert layer(many).abs().max() > 0
    assert layer(many).abs().max() == 0


def test_gelus_are_told_apart_by_their_values() -> None:
    """quick_gelu is none of the two."""
    kinds = {name: gelu_kind(ACT2FN[name]) for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu")}
    assert kinds == {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "quick_gelu": None, "relu": None}


@pytest.mark.parametrize("flaw", ["missing", "wrong", "wrong with GELU"])
def test_an_operator_that_is_missing_or_wrong_serves_nothing(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build of PyTorch, or one whose operator computes something else; packed layers outlive a wrong GELU."""

    class Flawed(PrepackedLinear):
        def __init__(self, linear: nn.Linear) -> None:
            if flaw == "missing":
                raise AttributeError("no such operator")
            super().__init__(linear)

        def product(self, x: torch.Tensor, gelu: str = "") -> torch.Tensor:
            return super().product(x, gelu) + (flaw == "wrong" or bool(gelu))

    monkeypatch.setattr(module, "PrepackedLinear", Flawed)
    block = Block("gelu")
    layers = packed_layers(block)
    assert len(layers) == (flaw == "wrong with GELU")
    assert not fuses(layers)
    assert type(block.dense) is nn.Linear


def test_every_linear_layer_of_a_model_is_packed() -> None:
    """And BERT's GELUs with them."""
    config, _ = synthetic.shape_of("tiny-bert")
    model = synthetic.build(config, "encoder", Placement(device=torch.device("cpu"), dtype=torch.float32)).eval()
    with torch.inference_mode():
        layers = packed_layers(model)
        assert fuses(layers)
        LinearPlan(LinearKernel.FUSED).install(layers)
    assert not any(type(each) is nn.Linear for each in model.modules())
    fused = [each for each in model.modules() if isinstance(each, PrepackedLinear) and each.gelu]
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
    LinearPlan(LinearKernel.PACKED).install(packed_layers(block))
    assert isinstance(block.inner, PrepackedLinear)
    assert isinstance(block.outer, nn.Linear)
    block(torch.randn(3, 8))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_was_replaced_can_be_put_back(plan: LinearPlan) -> None:
    """Layers and fused activations, at every depth, to the last bit."""
    model = nn.Sequential(Block("gelu"), nn.Sequential(nn.Linear(96, 4)))
    x = torch.randn(17, 48)
    expected, undo = model(x), undoing(model)
    plan.install(packed_layers(model))
    undo()
    assert not any(isinstance(each, PrepackedLinear) for each in model.modules())
    assert torch.equal(model(x), expected)
