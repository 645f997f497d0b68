"""Outlier detection: when a worker is suspected, and for how long it is set aside. Knows no clock and no errors.

After Envoy's, by consecutive errors (envoyproxy.io, "Outlier detection"), with one difference: what another worker
answers proves that the fault was the worker's, so no share of the workers is kept in by number.
"""

from dataclasses import dataclass
from math import inf

FAILURES = 5
"""Jobs that a worker must have failed in a row to be suspected, as in Envoy."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a worker is set aside: at first, and at most."""


@dataclass(slots=True)
class OutlierDetection:
    """What the latest outcomes say of one worker. Times are seconds of any clock that never goes back."""

    _failures: int = 0  # in a row
    _pause: float = 0.0  # the latest
    _until: float = -inf  # its end

    @property
    def suspected(self) -> bool:
        """Whether it failed several jobs in a row; until it answers one, also after a pause."""
        return self._failures >= FAILURES

    def failed(self) -> None:
        """It failed a job, or refused it."""
        self._failures += 1

    def answered(self) -> None:
        """It answered a job."""
        self._failures = 0

    def is_aside(self, now: float) -> bool:
        """Whether it is to get no jobs that another can take."""
        return now < self._until

    def set_aside(self, now: float) -> float:
        """Sets it aside; returns for how many seconds, 0 where it is aside already.

        That is twice the pause before, less the time that it has served since.
        """
        if self.is_aside(now):
            return 0.0
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause - (now - self._until)))
        self._until = now + self._pause
        return self._pause
