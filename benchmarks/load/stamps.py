"""Stamps: when a process came to a named point, in a file that the benchmark reads while the process runs.

CLOCK_MONOTONIC is one clock for all processes of a Linux machine, so stamps of several processes can be compared. A
stamp takes about a microsecond. Knows no service.
"""

import itertools
import mmap
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

CAPACITY = 1 << 19
"""Stamps that a file keeps; later ones replace the oldest."""
_ENTRY = struct.Struct("qq")


class StampFile:
    """The stamps of one process. Several threads may add to it."""

    def __init__(self, path: Path) -> None:
        """Makes the file, which must not be there."""
        with path.open("x+b") as file:
            file.truncate(CAPACITY * _ENTRY.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = itertools.count()

    def add(self, point: int) -> None:
        """Adds a stamp: this point was reached now."""
        place = next(self._numbers) % CAPACITY * _ENTRY.size
        _ENTRY.pack_into(self._map, place, point, time.monotonic_ns())


def first_stamps(files: Sequence[Path], points: int, begins: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """When each call first came to each point behind the one before, in nanoseconds; 0 where it did not.

    Points are in the order of a call's way, so what comes by on its own, such as a report of the load, is not taken for
    the answer of a call that has not been computed. Returns [calls, points]. The calls follow each other: each lasts
    from its entry in `begins` [calls] to the next one, the last to `end`.
    """
    stamps = np.concatenate([np.fromfile(path, dtype=np.int64).reshape(-1, 2) for path in files])
    arrivals = np.zeros((len(begins), points), dtype=np.int64)
    ends, earliest = np.append(begins[1:], end), begins.copy()
    for point in range(points):
        times = np.sort(stamps[stamps[:, 0] == point, 1])
        times = np.append(times[times > 0], np.iinfo(np.int64).max)  # entries that were never written are zeros
        first = times[np.searchsorted(times, earliest)]
        came = first < ends
        arrivals[came, point] = earliest[came] = first[came]
    return arrivals
