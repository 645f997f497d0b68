"""The choice of the MaxSim kernel for a device, made once at load."""

import time
from functools import cache, partial

import torch

from gpu_worker.device.fastest import OF_PROCESS, clearly_fastest
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim.comparison import MaxSimKernel
from gpu_worker.kernels.maxsim.native import NativeMaxSim
from gpu_worker.kernels.maxsim.packed import PackedMaxSim, Product, onednn, plain


def choose(device: torch.device, width: int) -> MaxSimKernel:
    """Returns the fastest kernel for token vectors of `width` dimensions, compiled where it needs to be.

    On a processor that is ours in C++ where it is built: it takes a third to a half of the others' time.
    """
    if device.type == "cpu":
        kernels = library.load()
        return NativeMaxSim(kernels) if torch.float32 in kernels.formats else PackedMaxSim(faster_product(width))
    if device.type == "cuda":
        try:
            from gpu_worker.kernels.maxsim.kernel import TritonMaxSim
        except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
            return PackedMaxSim()
        kernel = TritonMaxSim()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kernel.warm(device, dtype, width)
        return kernel
    return PackedMaxSim()


@cache
def faster_product(width: int) -> Product:
    """Returns oneDNN's product where it exists, agrees with PyTorch's and is not clearly slower.

    It takes half to two thirds of the time on AMD, about the same on Intel.
    """
    generator = torch.Generator().manual_seed(0)
    rows, queries = (torch.randn(count, width, generator=generator) for count in (4096, 32))
    try:
        agrees = torch.allclose(onednn(rows, queries), plain(rows, queries), rtol=1e-4, atol=1e-4)
    except (AttributeError, RuntimeError):  # another build of PyTorch
        return plain
    if not agrees:
        return plain
    products = {product: partial(product, rows, queries) for product in (onednn, plain)}
    return clearly_fastest(products, usual=onednn, rounds=1, clock=time.process_time, least=OF_PROCESS)
