"""Products alone: the bound of everything that makes the same products on the same device in the same number format.

On a processor it is the speed of one large product through the worker's own linear layer, over the operations of the
model's linear layers: how many tokens a second there would be if nothing else took time. Attention's products are left
out, so texts of 512 tokens reach a smaller share than short ones. On an accelerator it is a product of 8,192 squared,
and a copy for memory. torch and numpy only.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.our_kernels import fast_linear, int8_linear

PRODUCT = (4096, 1536, 1536)
"""Rows, width in and out of the product that stands for a processor."""
SQUARE, COPIED = {"cuda": 8192, "cpu": 128}, {"cuda": 1 << 30, "cpu": 1 << 24}
"""Rows and columns of the product by device, and bytes of what is copied: beyond any cache."""


def product(dtype: torch.dtype, *, int8: bool = False) -> Callable[[], float]:
    """Makes the large product, to be timed; it gives its operations. Random numbers, since zeros would run faster.

    `int8`: by weights and activations of eight bits, rounding of the activations included.
    """
    rows, inputs, outputs = PRODUCT
    linear = nn.Linear(inputs, outputs).to(dtype)
    layer = int8_linear(linear) if int8 else fast_linear(linear)
    states = torch.randn(rows, inputs).to(dtype)

    @torch.inference_mode()
    def run() -> float:
        layer(states)
        return 2.0 * rows * inputs * outputs

    return run


def flops(device: torch.device) -> float:
    """Measures the operations a second of a square product in bfloat16."""
    side = SQUARE[device.type]
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    into = torch.empty_like(left)
    return 2 * side**3 / seconds(lambda: torch.mm(left, right, out=into), device)


def bandwidth(device: torch.device) -> float:
    """Measures the bytes a second that a copy reads and writes."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / seconds(lambda: target.copy_(source), device)


def link(device: torch.device) -> float:
    """Measures the bytes a second that come from the device into pinned memory of the host."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty(len(source), dtype=torch.uint8, pin_memory=device.type == "cuda")
    return len(source) / seconds(lambda: target.copy_(source, non_blocking=True), device)


def replayed(works: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Measures the seconds of one of `works`, whose inputs together are larger than the device's cache.

    On CUDA they are captured in one graph and replayed, so that Python's launches are not what is timed.
    """

    def once() -> None:
        for work in works:
            work()

    once()
    if device.type != "cuda":
        return seconds(once, device, launches=1) / len(works)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return seconds(graph.replay, device) / len(works)


def seconds(work: Callable[[], object], device: torch.device, launches: int = 10, rounds: int = 7) -> float:
    """Measures the seconds of a launch: by events around many on CUDA, by the clock elsewhere; the median of rounds."""

    def timed() -> float:
        if device.type != "cuda":
            start = time.perf_counter()
            for _ in range(launches):
                work()
            return (time.perf_counter() - start) / launches
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(launches):
            work()
        last.record()
        torch.cuda.synchronize(device)
        return float(first.elapsed_time(last)) / 1e3 / launches

    timed()  # warms up
    return float(np.median([timed() for _ in range(rounds)]))
