"""Copies from a CUDA device to the host, beside the stream that computes.

The next step does not wait for the copy: it has a stream of its own, which waits for the tensors that are copied.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Download:
    """A running copy of pieces of a device's memory into one buffer of `size` bytes on the host."""

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
    """The one stream for all copies from a device, so that they arrive in the order of their steps."""
    return torch.cuda.Stream(device)
