"""Huge pages for weights on Linux: one entry of a processor's page tables for 2 MiB instead of 512 entries.

A short text reads all weights once. Each new page of 4 KiB then waits for the page tables, in a virtual machine for
those of the host too, and a processor asks ahead for memory only within a page.

Source: the kernel's Documentation/admin-guide/mm/transhuge.rst; madvise(2).
"""

import ctypes
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
LONGEST = 5.0
"""Seconds after which the rest of the weights stays where it is: in fragments of memory the kernel searches long."""


def move_weights(modules: Iterable[nn.Module]) -> int:
    """Moves the weights of modules in a processor's memory into huge pages, in place, as far as the kernel can.

    Returns the bytes of the huge pages, which may hold neighbours of the weights too. Nothing moves where the kernel
    cannot do so at once (before Linux 6.1), has no huge pages or was told never to use them. Weights that are mapped
    from a file stay in its memory; what oneDNN packs stays where it is.
    """
    size, moved, end = page_bytes(), 0, time.monotonic() + LONGEST
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
    """Bytes of a huge page; 0 where there are none, or where they are switched off."""
    try:
        off = "[never]" in (SETTINGS / "enabled").read_text()
        return 0 if off else int((SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


def _pages(modules: Iterable[nn.Module], size: int) -> set[int]:
    """The addresses of all huge pages of `size` bytes that hold some of the weights."""
    spans = (_span(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers()))
    return {page for start, stop in spans for page in range(start // size * size, stop, size)}


def _span(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lies in the processor's memory, from its first byte to behind its last; nowhere if it does not."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:  # oneDNN's layout has no storage
        return 0, 0
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
