"""Memory of a CUDA device, and the errors that mean that it is full.

Of a processor: freed blocks that stay with the process, and huge pages for weights.
"""

import ctypes
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

SIGNS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""Parts of error texts that mean a lack of memory: in CUDA's runtime (pinned host memory too) and Triton, in PyTorch on
a CPU, and in cuBLAS."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt`."""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
LONGEST_MOVE = 5.0
"""Seconds after which the rest of the weights stays where it is: in fragments of memory the kernel searches long."""


class DeviceMemory:
    """Memory of a CUDA device in bytes. Use is what PyTorch's allocator has reserved: gaps between tensors are lost."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset_peak(self) -> None:
        """Gives back memory that is kept for nothing, and starts a new peak."""
        reclaim()
        torch.cuda.reset_peak_memory_stats(self._device)

    @property
    def peak(self) -> int:
        """Largest use since `reset_peak`, weights included."""
        return torch.cuda.max_memory_reserved(self._device)

    @property
    def available(self) -> int:
        """Memory that this process may use in all: without that of other processes and of CUDA itself."""
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


def keep_freed_memory() -> None:
    """Lets glibc reuse large blocks instead of giving them back and faulting them in again at every layer.

    A step allocates tensors of many megabytes and frees them at once; by default each goes to the system and back,
    which slows down every large step. There is one arena, since only the main arena can hold such blocks. C libraries
    without `mallopt` are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(M_ARENA_MAX, 1)


def move_to_huge_pages(modules: Iterable[nn.Module]) -> int:
    """Moves the weights of modules in a processor's memory into huge pages, in place, as far as the kernel can.

    A huge page is one entry of a processor's page tables for 2 MiB instead of 512 entries. A short text reads all
    weights once: each new page of 4 KiB then waits for the page tables, in a virtual machine for those of the host too,
    and a processor asks ahead for memory only within a page. Source: the kernel's
    Documentation/admin-guide/mm/transhuge.rst; madvise(2).

    Returns the bytes of the huge pages, which may hold neighbours of the weights too. Nothing moves where the kernel
    cannot do so at once (before Linux 6.1), has no huge pages or was told never to use them. Weights that are mapped
    from a file stay in its memory; what oneDNN packs stays where it is.
    """
    size, moved, end = page_bytes(), 0, time.monotonic() + LONGEST_MOVE
    for page in sorted(_pages(modules, size)) if size else ():
        if time.monotonic() > end:
            break
        advise(page, size, MADV_HUGEPAGE)  # for what the kernel does later, where it cannot now
        moved += size if advise(page, size, MADV_COLLAPSE) else 0
    return moved


def advise(address: int, size: int, advice: int) -> bool:
    """Calls madvise(2) and returns whether the kernel did as it was told."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    return madvise is not None and madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice) == 0


def page_bytes() -> int:
    """Reads the bytes of a huge page; 0 where there are none, or where they are switched off."""
    try:
        off = "[never]" in (HUGE_PAGES / "enabled").read_text()
        return 0 if off else int((HUGE_PAGES / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


def _pages(modules: Iterable[nn.Module], size: int) -> set[int]:
    """The addresses of all huge pages of `size` bytes that hold some of the weights."""
    ranges = (_byte_range(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers()))
    return {page for start, stop in ranges for page in range(start // size * size, stop, size)}


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lies in the processor's memory, from its first byte to behind its last; nowhere if it does not."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:  # oneDNN's layout has no storage
        return 0, 0
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
