"""Who works on a device's rows, told once."""

from functools import cache

import torch

from gpu_worker.kernels.rows.interface import RowKernels
from gpu_worker.kernels.rows.plain import PlainRows


@cache
def choose(device: torch.device) -> RowKernels:
    """Triton's kernels on CUDA, compiled when they are first asked for: by the rehearsal, before a worker serves."""
    if device.type != "cuda":
        return PlainRows()
    try:
        from gpu_worker.kernels.rows.kernel import TritonRows
    except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
        return PlainRows()
    kernels = TritonRows()
    kernels.warm(device)
    return kernels
