"""The download of a step: all that it sends to the host, in one buffer and with one wait. Tensors without I/O."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.memory import Download
from gpu_worker.ragged.upload import aligned

Array = npt.NDArray[np.generic]
LARGE = 256 * 1024
"""Bytes from which on a tensor is copied by itself."""

NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


class DownloadedArray:
    """A tensor of the device and, once the step's download arrived, the same numbers on the host as `array`."""

    __slots__ = ("_download", "_number")

    def __init__(self, download: "StepDownload", number: int) -> None:
        self._download, self._number = download, number

    @property
    def array(self) -> Array:
        """The numbers on the host, in the tensor's shape and type: a view."""
        return self._download.arrays[self._number]


class StepDownload:
    """Collects device tensors while a step is computed; `send` starts their copy, `wait` ends it on the host.

    `arrays` are views of one buffer, or on a CPU of the tensors themselves: nothing is copied again here.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._download: Download | None = None
        self.arrays: list[Array] = []

    def add_tensor(self, tensor: Tensor) -> DownloadedArray:
        """Takes a float32, int32, uint8 or bool tensor."""
        assert tensor.dtype in NUMPY_TYPES, tensor.dtype
        self._tensors.append(tensor)
        return DownloadedArray(self, len(self._tensors) - 1)

    def send(self) -> None:
        """Starts to copy all tensors into one buffer, and does not wait."""
        if not self._tensors or self._tensors[0].device.type == "cpu":
            return
        size = sum(aligned(tensor.numel() * tensor.element_size()) for tensor in self._tensors)
        self._download = Download(self._tensors[0].device, self._pieces(), size)

    def wait(self) -> "StepDownload":
        """Waits for the copy, the only wait of a step; on a CPU there is none. A second call does nothing."""
        if self.arrays or not self._tensors:
            return self
        if self._download is None:
            self.arrays = [tensor.numpy() for tensor in self._tensors]
        else:
            self.arrays = self._cut(self._download.wait())
        self._tensors = []
        return self

    def _pieces(self) -> Iterator[tuple[int, Tensor]]:
        """Places in the buffer and the bytes that go there, uint8 [n]; tensors begin at multiples of 64.

        Large tensors are copied as they lie. Those between two of them are joined first, since a copy costs as much as
        many bytes.
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
        """Views of the buffer, one for each tensor."""
        arrays: list[Array] = []
        start = 0
        for tensor in self._tensors:
            size = tensor.numel() * tensor.element_size()
            kind = NUMPY_TYPES[tensor.dtype]
            arrays.append(buffer[start : start + size].view(kind).reshape(tuple(tensor.shape)))
            start += aligned(size)
        return arrays
