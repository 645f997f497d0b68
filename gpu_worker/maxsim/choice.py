"""Which MaxSim a device runs, told once at load."""

import time

import torch
from torch import Tensor

from gpu_worker.maxsim.comparison import MaxSim
from gpu_worker.maxsim.packed import PackedMaxSim, Product, onednn, plain


def choose(device: torch.device, width: int) -> MaxSim:
    """The fastest way for token vectors of `width` dimensions; warmed up, where it has something to compile."""
    if device.type == "cpu":
        return PackedMaxSim(faster_product(width))
    if device.type == "cuda":
        try:
            from gpu_worker.maxsim.kernel import TritonMaxSim
        except ImportError:  # PyTorch without Triton, which comes with its CUDA wheels on Linux only
            return PackedMaxSim()
        kernel = TritonMaxSim()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            kernel.warm(device, dtype, width)
        return kernel
    return PackedMaxSim()


def faster_product(width: int) -> Product:
    """oneDNN's product where it exists, agrees and is faster: twice as fast on AMD, about the same on Intel."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = (torch.randn(count, width, generator=generator) for count in (4096, 32))
    try:
        agrees = torch.allclose(onednn(rows, queries), plain(rows, queries), rtol=1e-4, atol=1e-4)
    except (AttributeError, RuntimeError):  # another build of PyTorch
        return plain
    return onednn if agrees and _seconds(onednn, rows, queries) < _seconds(plain, rows, queries) else plain


def _seconds(product: Product, rows: Tensor, queries: Tensor) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(rows, queries)
        times.append(time.perf_counter() - start)
    return min(times)
