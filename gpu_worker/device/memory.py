"""The memory of a CUDA device: its size, the peak of its use, and the errors that mean that it is full."""

from typing import Protocol

import torch

SIGNS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""Parts of error texts that mean a lack of memory: in CUDA's runtime (pinned host memory too) and Triton, in PyTorch on
a CPU, and in cuBLAS."""


class Memory(Protocol):
    """Memory of a device in bytes. In tests it is a function of tokens."""

    def reset_peak(self) -> None:
        """Gives back memory that is kept for nothing, and starts a new peak."""

    @property
    def peak(self) -> int:
        """Largest use since `reset_peak`, weights included."""

    @property
    def available(self) -> int:
        """Memory that this process may use in all."""


class DeviceMemory:
    """Memory of a CUDA device. Use is what PyTorch's allocator has reserved, since gaps between tensors are lost."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset_peak(self) -> None:
        """See `Memory`."""
        reclaim()
        torch.cuda.reset_peak_memory_stats(self._device)

    @property
    def peak(self) -> int:
        """See `Memory`."""
        return torch.cuda.max_memory_reserved(self._device)

    @property
    def available(self) -> int:
        """Memory without the use of other processes and of CUDA itself."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)


def reclaim() -> None:
    """Gives back memory that PyTorch keeps of freed tensors, on devices and pinned; waits for the device."""
    torch.cuda.empty_cache()
    empty_host_cache = getattr(torch.accelerator, "empty_host_cache", None)  # not every version has it
    if empty_host_cache is not None:
        empty_host_cache()


def ran_out(error: BaseException) -> bool:
    """Whether an error means a lack of memory, on the device or on the host, pinned or not."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
