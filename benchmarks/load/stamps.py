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
    """When each call first came to each point [calls, points], in nanoseconds; 0 where it did not.

    The calls follow each other: each lasts from its entry in `begins` [calls] to the next one, the last to `end`.
    """
    arrivals = np.zeros((len(begins), points), dtype=np.int64)
    for path in files:
        stamps = np.fromfile(path, dtype=np.int64).reshape(-1, 2)
        stamps = stamps[(stamps[:, 1] >= begins[0]) & (stamps[:, 1] < end)]
        stamps = stamps[np.argsort(-stamps[:, 1], kind="stable")]  # of equal places the last to be written stays
        calls = np.searchsorted(begins, stamps[:, 1], side="right") - 1
        arrivals[calls, stamps[:, 0]] = stamps[:, 1]
    return arrivals
