"""The choice of the MaxSim kernel for a device, made once at load."""

import torch

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim.comparison import MaxSimKernel
from gpu_worker.kernels.maxsim.native import NativeMaxSim
from gpu_worker.kernels.maxsim.plain import PlainMaxSim


def choose(device: torch.device, width: int) -> MaxSimKernel:
    """Returns the fastest kernel for token vectors of `width` dimensions, compiled where it needs to be.

    On a processor that is ours in C++ where it is built: it takes a third to a half of the others' time.
    """
    if device.type == "cpu":
        kernels = library.load()
        return NativeMaxSim(kernels) if torch.float32 in kernels.formats else PlainMaxSim()
    if device.type == "cuda":
        try:
            from gpu_worker.kernels.maxsim.kernel import TritonMaxSim
        except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
            return PlainMaxSim()
        kernel = TritonMaxSim()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kernel.warm(device, dtype, width)
        return kernel
    return PlainMaxSim()
