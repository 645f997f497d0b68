"""The processor's kernels in tests: those of this process, what needs them, and loads that find none."""

import pytest

from gpu_worker.kernels.attention import choice
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary

LIBRARY = library.load()
needs_kernels = pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
needs_int8 = pytest.mark.skipif(not LIBRARY.int8, reason="this processor has no int8 products")


def no_kernels(monkeypatch: pytest.MonkeyPatch, reason: str = "") -> None:
    """Makes loads find no kernels of the processor, so that PyTorch computes."""
    monkeypatch.setattr(choice.library, "load", lambda: KernelLibrary(missing=reason))
