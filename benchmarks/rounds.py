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


def turn(work: Work, at_least: int) -> list[list[float]]:
    """Seconds of each part of the runs that fill a turn, after a pause."""
    time.sleep(PAUSE)
    runs: list[list[float]] = []
    while len(runs) < at_least or sum(map(sum, runs)) < TURN:
        runs.append(work.seconds())
    return runs


def interleaved(
    sides: Mapping[K, Work], rounds: int, description: str, *, at_least: int = 1
) -> dict[K, list[list[float]]]:
    """Of every side, seconds of each part of its runs in all rounds; `at_least` so many in each.

    Whoever waited while others ran has its memory to find again on some machines, page by page: two at least are for
    sides that take much of it at once.
    """
    runs: dict[K, list[list[float]]] = {name: [] for name in sides}
    for _ in track(range(rounds), description=description):
        for name, work in sides.items():
            runs[name] += turn(work, at_least)
    return runs
