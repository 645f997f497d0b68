"""Interleaved rounds: every side once a round (A B A B), so that a machine that slows down slows all of them alike."""

import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

from rich.progress import track

from benchmarks.work import Work

K = TypeVar("K", bound=Hashable)
PAUSE = 0.05  # so that one side's spinning threads are asleep before the next begins
TURN = 0.2
"""Seconds that short runs are repeated for."""


def seconds(work: Work) -> float:
    """The fastest of the runs that fill a turn, after a pause. There are two at least: whoever waited while others ran
    has its threads to wake and its memory to find again, on some machines page by page."""
    time.sleep(PAUSE)
    runs = [work.seconds(), work.seconds()]
    while sum(runs) < TURN:
        runs.append(work.seconds())
    return min(runs)


def interleaved(sides: Mapping[K, Work], rounds: int, description: str) -> dict[K, list[float]]:
    """Seconds of every side's fastest run in each round."""
    times: dict[K, list[float]] = {name: [] for name in sides}
    for _ in track(range(rounds), description=description):
        for name, work in sides.items():
            times[name].append(seconds(work))
    return times
