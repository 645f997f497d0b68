"""The parts of a run: others on the machine disturb a tenth of a second less often than all of a run of seconds."""

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any


class Laps:
    """A stopwatch. Whoever works calls `lap` between two parts: the same ones in every run."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def begin(self) -> None:
        """A run, and its first part."""
        self._marks = [time.perf_counter()]

    def lap(self, *_: Any) -> None:
        """Ends a part. A forward hook of torch's modules as well: what they tell it is left alone."""
        self._marks.append(time.perf_counter())

    def end(self) -> list[float]:
        """Ends the run; gives the seconds of each part."""
        self.lap()
        return [end - begin for begin, end in pairwise(self._marks)]

    def at(self, layers: Iterable[Any]) -> None:
        """Ends a part with each of these modules of torch, in every run from now on."""
        for layer in layers:
            layer.register_forward_hook(self.lap)
