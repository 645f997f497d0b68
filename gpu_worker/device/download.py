"""What a step computed, on its way from a CUDA device to the host, beside the stream that computes.

The next step does not wait for it: the copy has a stream of its own, which waits for what is to be copied.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Download:
    """Pieces of a device's memory under way into one buffer of `size` bytes on the host."""

    def __init__(self, device: torch.device, pieces: Iterable[tuple[int, Tensor]], size: int) -> None:
        """`pieces`: uint8 tensors [n] of the device, each with its first place in the buffer. Returns at once."""
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        # Blocking: whoever waits sleeps, where it would else keep a core busy for as long as the device computes.
        self._done: Any = torch.cuda.Event(blocking=True)
        computing, beside = torch.cuda.current_stream(device), _beside(device)
        there = list(pieces)  # what is joined first is still for the stream that computes
        beside.wait_stream(computing)
        with torch.cuda.stream(beside):
            for start, piece in there:
                self._host[start : start + len(piece)].copy_(piece, non_blocking=True)
                piece.record_stream(beside)  # its memory is not for others before it is copied
            self._done.record(beside)

    def wait(self) -> npt.NDArray[np.uint8]:
        """The buffer, once all is there."""
        self._done.synchronize()
        arrived: npt.NDArray[np.uint8] = self._host.numpy()
        return arrived


@cache
def _beside(device: torch.device) -> Any:
    """One stream for all copies of a device, which come in the order of their steps."""
    return torch.cuda.Stream(device)
