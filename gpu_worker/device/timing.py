"""How long work takes on a CUDA device."""

import time
from collections.abc import Callable

import torch

ROUNDS = 5
PAYS = 0.95
"""Of the usual way's time, that another one has to be under: near ties are noise, and workers should choose alike."""
Seconds = Callable[[Callable[[], object]], float]
"""Of a run."""


def device_seconds(run: Callable[[], object]) -> float:
    """Of the fastest of a few runs, the first left out; waits for the device."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
