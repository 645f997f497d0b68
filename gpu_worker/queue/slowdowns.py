"""How many times longer jobs take than expected, because others come meanwhile and go first. No clock, no I/O.

What a job has to expect is computed from what waits when it comes. While short jobs, or jobs of a higher priority, keep
coming, long ones get only what these leave: they were accepted, computed for the most part, and late. So what jobs take
is compared with what was expected of them, and later ones of their kind are told the longer time.
"""

from collections import defaultdict
from collections.abc import Mapping

from shared.jobs import Priority

LATEST = 20
"""Jobs of a kind that count; earlier ones are forgotten."""
MOST = 16.0
"""The highest slowdown that is told: where more comes than can be served, it would have no end."""

Kind = tuple[Priority, bool]
"""A priority, and whether a job is long."""


class Slowdowns:
    """Slowdowns by kind, each the seconds that the latest jobs took over the seconds that were expected."""

    def __init__(self) -> None:
        self._seconds: dict[Kind, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))  # taken and expected

    def learn(self, kind: Kind, expected: float, taken: float) -> None:
        """Learns from a job that ended, or was late: then it would have taken longer still."""
        earlier = 1 - 1 / LATEST
        seconds = self._seconds[kind]
        self._seconds[kind] = (seconds[0] * earlier + taken, seconds[1] * earlier + expected)

    def factors(self) -> Mapping[Kind, float]:
        """The slowdowns above 1."""
        factors = {kind: taken / expected for kind, (taken, expected) in self._seconds.items() if taken > expected}
        return {kind: min(factor, MOST) for kind, factor in factors.items()}
