"""The choice of the row kernels for a device, made once."""

from functools import cache

import torch

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.rows.interface import RowKernels
from gpu_worker.kernels.rows.native import NativeRows
from gpu_worker.kernels.rows.plain import PlainRows


@cache
def choose(device: torch.device) -> RowKernels:
    """Returns Triton's kernels on CUDA, on processors ours in C++ where they are built.

    The first call on CUDA compiles them: the warm-up makes it before a worker serves.
    """
    if device.type != "cuda":
        kernels = library.load()
        return NativeRows(kernels) if kernels.formats and device.type == "cpu" else PlainRows()
    try:
        from gpu_worker.kernels.rows.kernel import TritonRows
    except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
        return PlainRows()
    triton_rows = TritonRows()
    triton_rows.warm(device)
    return triton_rows
