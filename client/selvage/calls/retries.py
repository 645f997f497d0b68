"""Which errors are worth another try, and after how long. Knows no calls and no clock."""

import random
from collections.abc import Callable

from selvage.errors import Overloaded, SelvageError, Unavailable

FIRST, LONGEST = 0.1, 5.0
"""Seconds before the second try, doubled for each further one up to the longest; where the service says no time."""
SPREAD = 0.25
"""Largest share by which a wait is longer, at random: callers that were refused together then return one by one."""


class RetryPolicy:
    """Allows up to `most` more tries for each part of an input."""

    def __init__(self, most: int, chance: Callable[[], float] = random.random) -> None:
        """`chance`: a random number from 0 to 1."""
        self._most, self._chance = most, chance

    def wait(self, error: SelvageError, failures: int) -> float | None:
        """Seconds until the next try after so many `failures`; None where there is to be none.

        Unavailable may pass by itself, Overloaded where the service says when. Nothing else does.
        """
        passes = isinstance(error, Unavailable) or (isinstance(error, Overloaded) and error.retry_after is not None)
        if failures > self._most or not passes:
            return None
        seconds = error.retry_after if error.retry_after is not None else min(FIRST * 2 ** (failures - 1), LONGEST)
        return seconds * (1 + SPREAD * self._chance())
