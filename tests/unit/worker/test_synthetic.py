"""Random weights: where and as what they are made."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.accelerator.engine import WORKLOADS
from benchmarks.workloads import named
from gpu_worker.device.placement import Placement
from harness.random_models import synthetic


class _Places(TorchDispatchMode):
    """Notes where tensors are made, and the largest in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()
        self.widest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        for each in tree_leaves(output):
            if isinstance(each, Tensor):
                self.devices.add(each.device.type)
                self.widest = max(self.widest, each.numel() if each.dtype == torch.float32 else 0)
        return output


@pytest.mark.parametrize("name", sorted({named("full")[each].model.removeprefix("random:") for each in WORKLOADS}))
def test_random_weights_are_made_on_the_device(name: str) -> None:
    """In the dtype that is served: seven billion float32 numbers of a host would take minutes and 28 GB."""
    config, recipe = synthetic.shape_of(name)
    with _Places() as places:
        placement = Placement(device=torch.device("meta"), dtype=torch.bfloat16)
        model = synthetic.build(config, recipe.weights_of, placement)
    assert places.devices == {"meta"}
    assert places.widest < 10_000
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
