"""Timing of work on a CUDA device."""

import time
from collections.abc import Callable

import torch

ROUNDS = 5
PAYS = 0.95
"""Another choice is taken below this share of the usual one's time. Near ties are noise, and all workers of
a kind should choose alike."""
Seconds = Callable[[Callable[[], object]], float]
"""A function that measures how many seconds a run takes."""


def device_seconds(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs, without the first one; waits for the device."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
