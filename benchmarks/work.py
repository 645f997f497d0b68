"""Work that sides are timed at, here or in a peer's process: how long one run takes, and what comes of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class Work(Protocol):
    """The same every time. Whoever does it times it, so that nobody is charged for being asked."""

    def seconds(self) -> float:
        """Of one run."""

    def outcome(self) -> Array:
        """Of one run, to be compared."""


@dataclass(frozen=True, slots=True)
class Here:
    """Work of this process."""

    run: Callable[[], Array]

    def seconds(self) -> float:
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def outcome(self) -> Array:
        return self.run()
