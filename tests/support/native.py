"""The processor's kernels in tests."""

import pytest

from gpu_worker.kernels.attention import choice
from gpu_worker.kernels.cpu.library import KernelLibrary


def no_kernels(monkeypatch: pytest.MonkeyPatch, reason: str = "") -> None:
    """Makes loads find no kernels of the processor, so that attention is chosen by measuring."""
    monkeypatch.setattr(choice.library, "load", lambda: KernelLibrary(missing=reason))
