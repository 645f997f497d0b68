"""Interleaved rounds: every side once a round (A B A B), so that a machine that slows down slows all of them alike."""

import time
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
from rich.progress import track

from benchmarks.work import Work

K = TypeVar("K", bound=Hashable)
PAUSE = 0.05  # so that one side's spinning threads are asleep before the next begins
TURN = 0.05
"""Seconds that short runs are repeated for."""


def seconds(work: Work) -> float:
    """Of one run, the median of those that fill a turn, after a pause and a run that does not count: whoever waited
    while others ran has its threads to wake and its memory to find again, on some machines page by page."""
    time.sleep(PAUSE)
    work.seconds()
    runs = [work.seconds()]
    while sum(runs) < TURN:
        runs.append(work.seconds())
    return float(np.median(runs))


def interleaved(sides: Mapping[K, Work], rounds: int, description: str) -> dict[K, list[float]]:
    """Seconds of every run of every side, in the order of the rounds."""
    times: dict[K, list[float]] = {name: [] for name in sides}
    for _ in track(range(rounds), description=description):
        for name, work in sides.items():
            times[name].append(seconds(work))
    return times


def spread(times: list[float]) -> dict[str, Any]:
    """Median and quartiles, and the runs themselves."""
    lower, median, upper = np.quantile(times, (0.25, 0.5, 0.75))
    return {
        "median_seconds": round(float(median), 5),
        "lower_quartile_seconds": round(float(lower), 5),
        "upper_quartile_seconds": round(float(upper), 5),
        "times": [round(each, 5) for each in times],
    }
