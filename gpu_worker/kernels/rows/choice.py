"""The choice of the row kernels for a device, made once."""

from functools import cache

import torch

from gpu_worker.kernels.rows.interface import RowKernels
from gpu_worker.kernels.rows.plain import PlainRows


@cache
def choose(device: torch.device) -> RowKernels:
    """Returns Triton's kernels on CUDA. The first call compiles them: the warm-up makes it before a worker serves."""
    if device.type != "cuda":
        return PlainRows()
    try:
        from gpu_worker.kernels.rows.kernel import TritonRows
    except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
        return PlainRows()
    kernels = TritonRows()
    kernels.warm(device)
    return kernels
