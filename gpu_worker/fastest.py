"""Which of several ways to the same values is the fastest here, told by running them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

W = TypeVar("W", bound=Hashable)

CLEAR = 0.8
"""Of the usual way's time: another one has to take less to be chosen."""


def clearly_fastest(ways: Mapping[W, Callable[[], object]], usual: W, rounds: int) -> W:
    """The way with the shortest of `rounds` runs, where it clearly beats that of the `usual` one.

    Ways take turns, so that a moment in which the machine does something else is no way's own, and the first run of
    each does not count. Near ties are noise, and every worker of a kind should choose alike: they stay with `usual`.
    """
    times = dict.fromkeys(ways, float("inf"))
    for turn in range(rounds + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            if turn:
                times[way] = min(times[way], time.perf_counter() - start)
    fastest = min(times, key=times.__getitem__)
    return fastest if times[fastest] < CLEAR * times[usual] else usual
