"""Everything that a step sends to the host, in one buffer and with one wait. Tensors without I/O."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.download import Download
from gpu_worker.ragged.upload import aligned

Array = npt.NDArray[np.generic]
LARGE = 256 * 1024
"""Bytes of a tensor that is copied by itself."""

NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


class StepDownload:
    """Takes device tensors while a step is launched, `send` ships them, and from `wait` on the host has `arrays`.

    Arrays are views of one buffer, or on a processor of the tensors themselves: nothing is copied again here.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._download: Download | None = None
        self.arrays: list[Array] = []

    def add(self, tensor: Tensor) -> int:
        """Takes a float32, int32, uint8 or bool tensor; returns its place in `arrays`."""
        assert tensor.dtype in NUMPY_TYPES, tensor.dtype
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def send(self) -> None:
        """Everything into one buffer, without a wait."""
        if not self._tensors or self._tensors[0].device.type == "cpu":
            return
        size = sum(aligned(tensor.numel() * tensor.element_size()) for tensor in self._tensors)
        self._download = Download(self._tensors[0].device, self._pieces(), size)

    def wait(self) -> "StepDownload":
        """The only wait of a step; none on a processor. A second one does nothing."""
        if self.arrays or not self._tensors:
            return self
        if self._download is None:
            self.arrays = [tensor.numpy() for tensor in self._tensors]
        else:
            self.arrays = self._cut(self._download.wait())
        self._tensors = []
        return self

    def _pieces(self) -> Iterator[tuple[int, Tensor]]:
        """Bytes on the device, uint8 [n], and where they go: each tensor to a multiple of 64.

        Large ones go as they lie; those between two of them are joined, since a copy costs as much as many bytes.
        """
        gap = torch.zeros(aligned(1), dtype=torch.uint8, device=self._tensors[0].device)
        start, begin, small = 0, 0, list[Tensor]()
        for tensor in self._tensors:
            flat = tensor.contiguous().view(-1).view(torch.uint8)
            size = len(flat)
            if size >= LARGE:
                if small:
                    yield begin, torch.cat(small)
                yield start, flat
                small = []
            else:
                begin = begin if small else start
                small += [flat, gap[: aligned(size) - size]]
            start += aligned(size)
        if small:
            yield begin, torch.cat(small)

    def _cut(self, buffer: npt.NDArray[np.uint8]) -> list[Array]:
        arrays: list[Array] = []
        start = 0
        for tensor in self._tensors:
            size = tensor.numel() * tensor.element_size()
            kind = NUMPY_TYPES[tensor.dtype]
            arrays.append(buffer[start : start + size].view(kind).reshape(tuple(tensor.shape)))
            start += aligned(size)
        return arrays
