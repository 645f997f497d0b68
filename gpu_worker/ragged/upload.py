"""What a step sends to the device: every array of the host in one buffer, by one copy, without a wait. No I/O."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes: what a device reads at once, whatever the type."""
TYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}


def aligned(size: int) -> int:
    """Bytes up to the next place where an array may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Staged:
    """An array of the host, and from `Upload.send` on the same as a `tensor` of the device."""

    __slots__ = ("_tensor", "array")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._tensor: Tensor | None = None

    @classmethod
    def there(cls, tensor: Tensor) -> "Staged":
        """What lies on the device already, and never was on the host."""
        staged = cls(np.empty(0, dtype=np.bool_))
        staged.arrive(tensor)
        return staged

    @property
    def tensor(self) -> Tensor:
        """On the device, of the array's shape and type."""
        assert self._tensor is not None, "it was not sent"
        return self._tensor

    def arrive(self, tensor: Tensor) -> None:
        self._tensor = tensor


class Upload:
    """Collects arrays until `send`. A processor's own memory is the device's: there nothing is copied."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._staged: list[Staged] = []

    def add(self, array: npt.NDArray[Any]) -> Staged:
        """Takes an array of a type in TYPES; nobody may write to it any more."""
        staged = Staged(np.ascontiguousarray(array))
        self._staged.append(staged)
        return staged

    def send(self) -> None:
        """Everything, once."""
        with torch.inference_mode():  # whoever sends: layers are compiled for tensors of this one kind
            tensors = [torch.from_numpy(each.array) for each in self._staged]
            if self.device.type != "cpu":
                tensors = self._sent(tensors)
        for staged, tensor in zip(self._staged, tensors, strict=True):
            staged.arrive(tensor)
        self._staged = []

    def _sent(self, host: list[Tensor]) -> list[Tensor]:
        sizes = [each.numel() * each.element_size() for each in host]
        starts = np.cumsum([0, *map(aligned, sizes)]).tolist()
        buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for tensor, start, size in zip(host, starts, sizes, strict=False):
            buffer[start : start + size] = tensor.view(-1).view(torch.uint8)
        there = to_device(buffer, self.device)
        return [
            there[start : start + size].view(tensor.dtype).view(tensor.shape)
            for tensor, start, size in zip(host, starts, sizes, strict=False)
        ]


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies without waiting: through pinned memory where the device is another one."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
