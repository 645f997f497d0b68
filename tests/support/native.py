"""The processor's kernels in tests: those of this process, what needs them, and loads that find none."""

import ctypes
import os
import re
from pathlib import Path

import pytest

from gpu_worker.kernels.attention import choice
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary

LIBRARY = library.load()
needs_kernels = pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
EMULATED = os.environ.get("EMULATED_PROCESSOR", "")
"""The processor that `make emulated` stands in for."""


def has_itself(instructions: str) -> bool:
    """Whether the processor has them without being emulated."""
    return re.search(rf"\b{instructions}\b", Path("/proc/cpuinfo").read_text()) is not None


def emulated_instructions() -> int:
    """How many were emulated in this process so far."""
    count = ctypes.CDLL(None).emulated_instructions
    count.restype = ctypes.c_uint64
    return int(count())


def no_kernels(monkeypatch: pytest.MonkeyPatch, reason: str = "") -> None:
    """Makes loads find no kernels of the processor, so that PyTorch computes."""
    monkeypatch.setattr(choice.library, "load", lambda: KernelLibrary(missing=reason))
