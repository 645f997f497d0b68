"""Work that sides are timed at, here or in a peer's process: how long one run takes, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.laps import Laps

Array = npt.NDArray[np.float32]


class Work(Protocol):
    """The same every time. Whoever does it times it, so that nobody is charged for being asked."""

    def seconds(self) -> list[float]:
        """Of each part of one run."""

    def outcome(self) -> Array:
        """Of one run, to be compared."""


@dataclass(frozen=True, slots=True)
class Here:
    """Work of this process."""

    run: Callable[[], Array]
    laps: Laps = field(default_factory=Laps)

    def seconds(self) -> list[float]:
        self.laps.begin()
        self.run()
        return self.laps.end()

    def outcome(self) -> Array:
        return self.run()
