"""Everything that a step sends to the host, in one copy and with one wait. Tensors without I/O."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]

NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


class Outbox:
    """Collects device tensors while a step is launched; `ship` brings them all at its end."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def add(self, tensor: Tensor) -> int:
        """Takes a float32, int32, uint8 or bool tensor; returns its place in what `ship` returns."""
        assert tensor.dtype in NUMPY_TYPES, tensor.dtype
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def ship(self) -> list[Array]:
        """The host's copies, in the order of `add`. The only wait of a step; none on a CPU."""
        if not self._tensors or self._tensors[0].device.type == "cpu":
            return [tensor.numpy() for tensor in self._tensors]
        flat = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in self._tensors])
        host = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True)
        host.copy_(flat, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        copied.synchronize()
        return list(self._cut(host.numpy()))

    def _cut(self, data: npt.NDArray[np.uint8]) -> list[Array]:
        arrays: list[Array] = []
        start = 0
        for tensor in self._tensors:
            stop = start + tensor.numel() * tensor.element_size()
            kind = NUMPY_TYPES[tensor.dtype]
            arrays.append(np.frombuffer(data[start:stop].tobytes(), dtype=kind).reshape(tuple(tensor.shape)))
            start = stop
        return arrays
