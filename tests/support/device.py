"""A pretended device on a CPU: whatever a step makes lies there, and reading any of it back fails.

A device tensor is a model's weight, what `to_device` returns, and everything that is computed from one. What the host
has of its own may be read; so may what was shipped.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu_worker.device.transfer import StepDownload, Upload
from gpu_worker.engine.engine import ModelEngine

CPU = torch.device("cpu")
READING_METHODS = {
    torch.equal,
    torch.allclose,
    *(getattr(Tensor, name) for name in ("numpy", "tolist", "item", "cpu", "equal", "__array__")),
    *(getattr(Tensor, name) for name in ("__bool__", "__int__", "__float__", "__index__")),
}
READING_OPERATORS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "bincount")
"""Names of aten operators that wait for the device, whoever calls them."""


class ReadBack(Exception):
    """Something waited for the device."""


class Device:
    """Knows which tensors lie on it, by their memory."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        self.shipping = False
        self.computed = 0
        self._kept: dict[int, Any] = {}
        for tensor in tensors:
            self.take(tensor)

    def take(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided:  # packed weights are opaque, and computed with only
            storage = tensor.untyped_storage()
            self._kept[storage._cdata] = storage

    def holds(self, values: Any) -> bool:
        return any(
            isinstance(each, Tensor) and (each.layout != torch.strided or each.untyped_storage()._cdata in self._kept)
            for each in tree_leaves(values)
        )

    def refuse(self, function: Any, values: Any) -> None:
        if not self.shipping and self.holds(values):
            raise ReadBack(f"{function} reads from the device")


class _Methods(TorchFunctionMode):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function in READING_METHODS or (function is torch.where and len(arguments) == 1):
            self._device.refuse(function, arguments)
        return function(*arguments, **(keywords or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        name = function.overloadpacket.__name__
        if name in READING_OPERATORS or (name.startswith("index") and _by_mask(arguments)):
            self._device.refuse(function, (arguments, keywords))
        there = self._device.holds((arguments, keywords))
        output = function(*arguments, **keywords)
        if there:
            self._device.computed += 1
            for each in tree_leaves(output):
                if isinstance(each, Tensor):
                    self._device.take(each)
        return output


def _by_mask(arguments: Any) -> bool:
    """Whether an index is a mask, whose count only the device knows."""
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in tree_leaves(arguments[1:2]))


def _weights(engine: ModelEngine) -> Iterator[Tensor]:
    model = engine.model
    for module in (model.encoder.model, *model.heads.modules()):
        yield from (*module.parameters(), *module.buffers())


@contextmanager
def watched(engine: ModelEngine, patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Steps of this engine fail with ReadBack where they read from the device outside of `StepDownload.wait`."""
    device = Device(_weights(engine))

    def sent(host: Tensor, _: torch.device) -> Tensor:
        copy = host.clone()
        device.take(copy)
        return copy

    for name, module in list(sys.modules.items()):
        if name.startswith("gpu_worker.") and hasattr(module, "to_device"):
            patch.setattr(module, "to_device", sent)
    send, wait = Upload.send, StepDownload.wait

    def stage(upload: Upload) -> None:
        staged = list(upload._arrays)
        send(upload)
        for each in staged:
            each.arrive(sent(each.tensor, CPU))

    def ship(download: StepDownload) -> StepDownload:
        device.shipping = True
        try:
            wait(download)
            download.arrays = [array.copy() for array in download.arrays]
        finally:
            device.shipping = False
        return download

    patch.setattr(Upload, "send", stage)
    patch.setattr(StepDownload, "wait", ship)
    with _Methods(device), _Operators(device):
        yield device
