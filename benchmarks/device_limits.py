"""What a device can do at most, measured on it: products of matrices, and its memory. Needs torch and numpy only."""

import time
from collections.abc import Callable

import numpy as np
import torch

ROUNDS = 7
SIDES = {"cuda": 8192, "cpu": 512}
"""Rows and columns of the matrices that are multiplied."""
COPIED = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes of what is copied, beyond any cache."""


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy of a gigabyte reads and writes."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / (microseconds(lambda: target.copy_(source), 10, device) / 1e6)


def product_flops(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> float:
    """Operations a second of a product of square matrices of random numbers; zeros would run faster than data does."""
    side = SIDES[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    into = torch.empty_like(left)
    return 2 * side**3 / (microseconds(lambda: torch.mm(left, right, out=into), 10, device) / 1e6)


def microseconds(work: Callable[[], object], launches: int, device: torch.device) -> float:
    """Of one launch: on CUDA by events around many, elsewhere by the clock; the median of rounds."""
    timed = _by_events if device.type == "cuda" else _by_clock
    timed(work, launches)  # warms up
    return float(np.median([timed(work, launches) for _ in range(ROUNDS)]))


def _by_events(work: Callable[[], object], launches: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(launches):
        work()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1000 / launches


def _by_clock(work: Callable[[], object], launches: int) -> float:
    start = time.perf_counter()
    for _ in range(launches):
        work()
    return (time.perf_counter() - start) / launches * 1e6
