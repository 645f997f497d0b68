"""Choice of the fastest of several runs that compute the same values on an accelerator, by timing them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)
"""Type of the names of runs."""

CLEAR = 0.8
"""Largest share of the usual run's time at which another run is clearly faster."""
TRIALS = 3
"""Number of trials in all of which a run must be clearly faster."""


def clearly_fastest(runs: Mapping[N, Callable[[], object]], usual: N, rounds: int) -> N:
    """Name of the fastest run where it is clearly faster than the `usual` one after every trial, else `usual`.

    Runs alternate, `rounds` times in a trial, so that other work of the machine slows down all of them alike; the first
    round does not count. Near ties are noise, and all workers of a kind should choose alike: one disturbed moment must
    not change the choice.
    """
    for run in runs.values():
        run()
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(TRIALS):
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                times[name] = min(times[name], time.perf_counter() - start)
        fastest = min(times, key=times.__getitem__)
        if times[fastest] >= CLEAR * times[usual]:
            return usual
    return fastest
