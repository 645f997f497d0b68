"""Choice of the fastest of several runs that compute the same values, by timing them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)
"""Type of the names of runs."""

CLEAR = 0.8
"""Largest share of the usual run's time at which another run is clearly faster."""
TRIALS = 3
"""Number of trials in all of which a run must be clearly faster."""
Clock = Callable[[], float]
"""A clock in seconds, of the wall, of the calling thread or of this process."""
OF_PROCESS = 0.1
"""Seconds that a run should take by the process's clock. That counts threads on other cores when the system's timer
ticks, every 1 to 10 ms: of a run of 20 ms the shortest of three readings can be off by a fifth."""


def wall_clock() -> float:
    """The seconds of the clock on the wall, other work of the machine included."""
    return time.perf_counter()


def clearly_fastest(
    runs: Mapping[N, Callable[[], object]],
    usual: N,
    rounds: int,
    clear: float = CLEAR,
    clock: Clock = wall_clock,
    least: float = 0.0,
) -> N:
    """Name of the fastest run where it is clearly faster than the `usual` one after every trial, else `usual`.

    Runs alternate, `rounds` times in a trial, so that other work of the machine slows down all of them alike; the first
    round does not count. Near ties are noise, and all workers of a kind should choose alike: one disturbed moment must
    not change the choice. `clear`: the largest share of the usual run's time at which another is clearly faster.
    `clock`: on a processor that of this process, since the wall's counts other processes too, and the thread's only a
    part of a run that several threads share. `least`: a run is repeated until so many seconds are over by the
    clock; its time is their mean.
    """
    times = shortest_seconds(runs, 0, clock)
    for _ in range(TRIALS):
        _shorten(times, runs, rounds, clock, least)
        fastest = min(times, key=times.__getitem__)
        if times[fastest] >= clear * times[usual]:
            return usual
    return fastest


def shortest_seconds(runs: Mapping[N, Callable[[], object]], rounds: int, clock: Clock = wall_clock) -> dict[N, float]:
    """Shortest time of each run in seconds, by name. Runs alternate; the first round does not count."""
    times = dict.fromkeys(runs, float("inf"))
    _shorten(dict(times), runs, 1, clock)
    _shorten(times, runs, rounds, clock)
    return times


def _shorten(
    times: dict[N, float],
    runs: Mapping[N, Callable[[], object]],
    rounds: int,
    clock: Clock = wall_clock,
    least: float = 0.0,
) -> None:
    """Runs all of them one after the other, `rounds` times, and lowers `times` to the shortest run of each."""
    for _ in range(rounds):
        for name, run in runs.items():
            times[name] = min(times[name], _seconds(run, clock, least))


def _seconds(run: Callable[[], object], clock: Clock, least: float) -> float:
    """Seconds of a run: the mean of as many as take `least` seconds together."""
    count, start = 0, clock()
    while True:
        run()
        count += 1
        spent = clock() - start
        if spent >= least:
            return spent / count
