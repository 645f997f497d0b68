"""Everything that a step sends to the host, in one copy and with one wait. Tensors without I/O."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.ragged.staging import aligned

Array = npt.NDArray[np.generic]

NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


class Shipment:
    """Takes device tensors while a step is launched, `send` ships them, and from `wait` on the host has `arrays`.

    Arrays are views of one buffer, or on a processor of the tensors themselves: nothing is copied again here.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._buffer: npt.NDArray[np.uint8] | None = None
        self._sent: Any = None
        self.arrays: list[Array] = []

    def add(self, tensor: Tensor) -> int:
        """Takes a float32, int32, uint8 or bool tensor; returns its place in `arrays`."""
        assert tensor.dtype in NUMPY_TYPES, tensor.dtype
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def send(self) -> None:
        """Everything, in one copy, without a wait."""
        if not self._tensors or self._tensors[0].device.type == "cpu":
            return
        joined = self._joined()
        host = torch.empty(joined.shape, dtype=torch.uint8, pin_memory=True)
        host.copy_(joined, non_blocking=True)
        self._sent = torch.cuda.Event()
        self._sent.record(torch.cuda.current_stream(joined.device))  # whatever device is the thread's own
        self._buffer = host.numpy()

    def wait(self) -> "Shipment":
        """The only wait of a step; none on a processor. A second one does nothing."""
        if self.arrays or not self._tensors:
            return self
        if self._sent is not None:
            self._sent.synchronize()
        self.arrays = [tensor.numpy() for tensor in self._tensors] if self._buffer is None else self._cut(self._buffer)
        self._tensors = []
        return self

    def _joined(self) -> Tensor:
        """[bytes] uint8 on the device: all tensors, each from a multiple of 64 bytes on."""
        gap = torch.zeros(aligned(1), dtype=torch.uint8, device=self._tensors[0].device)
        pieces: list[Tensor] = []
        for tensor in self._tensors:
            flat = tensor.contiguous().view(-1).view(torch.uint8)
            pieces += [flat, gap[: aligned(len(flat)) - len(flat)]]
        return torch.cat(pieces)

    def _cut(self, buffer: npt.NDArray[np.uint8]) -> list[Array]:
        arrays: list[Array] = []
        start = 0
        for tensor in self._tensors:
            size = tensor.numel() * tensor.element_size()
            kind = NUMPY_TYPES[tensor.dtype]
            arrays.append(buffer[start : start + size].view(kind).reshape(tuple(tensor.shape)))
            start += aligned(size)
        return arrays
