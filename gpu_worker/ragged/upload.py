"""The upload of a step: all arrays of the host go to the device in one buffer, by one copy, without a wait."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64
"""Arrays begin at multiples of so many bytes: what a device reads at once, whatever the type."""
TYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}


def aligned(size: int) -> int:
    """Rounds a size in bytes up to the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class UploadedArray:
    """An array of the host and, after `Upload.send`, the same numbers on the device as `tensor`."""

    __slots__ = ("_tensor", "array")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._tensor: Tensor | None = None

    @classmethod
    def on_device(cls, tensor: Tensor) -> "UploadedArray":
        """Wraps a tensor that lies on the device already; the host has no array of it."""
        uploaded = cls(np.empty(0, dtype=np.bool_))
        uploaded.arrive(tensor)
        return uploaded

    @property
    def tensor(self) -> Tensor:
        """The numbers on the device, in the array's shape and type."""
        assert self._tensor is not None, "it was not sent"
        return self._tensor

    def arrive(self, tensor: Tensor) -> None:
        """Takes the copy on the device."""
        self._tensor = tensor


class Upload:
    """Collects arrays until `send`. On a CPU nothing is copied: tensors share the arrays' memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._arrays: list[UploadedArray] = []

    def add_array(self, array: npt.NDArray[Any]) -> UploadedArray:
        """Takes an array of a type in TYPES; from then on nothing may write to it."""
        uploaded = UploadedArray(np.ascontiguousarray(array))
        self._arrays.append(uploaded)
        return uploaded

    def send(self) -> None:
        """Copies all arrays to the device, once."""
        with torch.inference_mode():  # always: layers are compiled for inference tensors
            tensors = [torch.from_numpy(uploaded.array) for uploaded in self._arrays]
            if self.device.type != "cpu":
                tensors = self._copied(tensors)
        for uploaded, tensor in zip(self._arrays, tensors, strict=True):
            uploaded.arrive(tensor)
        self._arrays = []

    def _copied(self, host: list[Tensor]) -> list[Tensor]:
        """The same tensors on the device: views of one buffer."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in host]
        starts = np.cumsum([0, *map(aligned, sizes)]).tolist()
        buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for tensor, start, size in zip(host, starts, sizes, strict=False):
            # The destination is viewed: an array of one number may have a stride of 0, and then no view as bytes.
            buffer[start : start + size].view(tensor.dtype).copy_(tensor.view(-1))
        device_buffer = to_device(buffer, self.device)
        return [
            device_buffer[start : start + size].view(tensor.dtype).view(tensor.shape)
            for tensor, start, size in zip(host, starts, sizes, strict=False)
        ]


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to the device without waiting, through pinned memory; on a CPU it is returned as it is."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
