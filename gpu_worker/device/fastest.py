"""Which of several ways to the same values is the fastest here, told by running them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

W = TypeVar("W", bound=Hashable)

CLEAR = 0.8
"""Of the usual way's time: another one has to take less to be chosen."""
TRIALS = 3
"""In all of which it has to."""


def clearly_fastest(ways: Mapping[W, Callable[[], object]], usual: W, rounds: int) -> W:
    """The way with the shortest run, where it clearly beats that of the `usual` one, after every `rounds` of them.

    Ways take turns, so that a moment in which the machine does something else is no way's own, and the first run of
    each does not count. Near ties are noise, and every worker of a kind should choose alike: they stay with `usual`,
    which one disturbed moment is not enough to leave.
    """
    times = shortest(ways, 0)
    for _ in range(TRIALS):
        _shorten(times, ways, rounds)
        fastest = min(times, key=times.__getitem__)
        if times[fastest] >= CLEAR * times[usual]:
            return usual
    return fastest


def shortest(ways: Mapping[W, Callable[[], object]], rounds: int) -> dict[W, float]:
    """Seconds of each way's shortest run of so many; ways take turns, and the first run of each does not count."""
    times = dict.fromkeys(ways, float("inf"))
    _shorten(dict(times), ways, 1)
    _shorten(times, ways, rounds)
    return times


def _shorten(times: dict[W, float], ways: Mapping[W, Callable[[], object]], rounds: int) -> None:
    """Runs all ways in turns; of each the shortest run is kept."""
    for _ in range(rounds):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            times[way] = min(times[way], time.perf_counter() - start)
