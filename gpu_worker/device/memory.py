"""The memory of a CUDA device: how much there is, how much was taken at most, and which errors mean that it is full."""

from typing import Protocol

import torch

SIGNS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""CUDA's runtime says the first, of pinned host memory as well, and so does Triton; then PyTorch on a processor, and
cuBLAS."""


class Memory(Protocol):
    """Of a device, in bytes; tests have one that is a function of tokens."""

    def forget(self) -> None:
        """Gives back what is kept for nobody, and looks for the peak anew."""

    @property
    def peak(self) -> int:
        """Taken at most since then, weights included."""

    @property
    def room(self) -> int:
        """What this process may take in all."""


class DeviceMemory:
    """Of a CUDA device, by PyTorch's allocator: what it has reserved, since gaps between tensors serve nobody."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def forget(self) -> None:
        reclaim()
        torch.cuda.reset_peak_memory_stats(self._device)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)

    @property
    def room(self) -> int:
        """Without what other processes have, and what CUDA itself takes."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)


def reclaim() -> None:
    """Gives back what PyTorch keeps of tensors that are gone, on devices and pinned; it waits for the device."""
    torch.cuda.empty_cache()
    empty_host_cache = getattr(torch.accelerator, "empty_host_cache", None)  # not in every version
    if empty_host_cache is not None:
        empty_host_cache()


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory was missing: on the device or on the host, pinned or not."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
