"""What a step copies between host and device: one upload, and one download with the only wait. Tensors without I/O.

On a processor nothing is copied: tensors share the arrays' memory.
"""

from collections.abc import Iterable, Iterator
from functools import cache
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
Array = npt.NDArray[np.generic]
LARGE = 256 * 1024
"""Bytes from which on a tensor is copied by itself."""

NUMPY_TYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
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
        """Makes the same tensors on the device: views of one buffer."""
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


class Download:
    """A running copy of pieces of a CUDA device's memory into one buffer of `size` bytes on the host.

    The next step does not wait for the copy: it has a stream of its own, which waits for the tensors that are copied.
    """

    def __init__(self, device: torch.device, pieces: Iterable[tuple[int, Tensor]], size: int) -> None:
        """Starts the copy and returns at once. `pieces`: places in the buffer, and uint8 tensors [n] of the device."""
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        # Blocking: the thread that waits sleeps; otherwise it would keep a core busy while the device computes.
        self._done: Any = torch.cuda.Event(blocking=True)
        computing, copying = torch.cuda.current_stream(device), _copy_stream(device)
        pieces = list(pieces)  # pieces that have to be joined are joined by the stream that computes
        copying.wait_stream(computing)
        with torch.cuda.stream(copying):
            for start, piece in pieces:
                self._host[start : start + len(piece)].copy_(piece, non_blocking=True)
                piece.record_stream(copying)  # its memory must not be used again before it is copied
            self._done.record(copying)

    def wait(self) -> npt.NDArray[np.uint8]:
        """Waits for the copy and returns the buffer."""
        self._done.synchronize()
        arrived: npt.NDArray[np.uint8] = self._host.numpy()
        return arrived


@cache
def _copy_stream(device: torch.device) -> Any:
    """Returns the one stream for all copies from a device, so that they arrive in the order of their steps."""
    return torch.cuda.Stream(device)
