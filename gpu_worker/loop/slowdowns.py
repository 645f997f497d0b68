"""How many times longer jobs take than expected, because others come meanwhile and go first. No clock, no I/O.

What a job has to expect is computed from what waits when it comes. While short jobs, or jobs of a higher priority, keep
coming, long ones get only what these leave: they were accepted, computed for the most part, and late. So what jobs take
is compared with what was expected of them, and later ones of their kind are told the longer time.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.jobs import Priority

LATEST, IN_TIME = 20, 0.9
"""Jobs of a kind that are remembered, and the share of them that were slowed down less than is told: so about a tenth
of those that are accepted to the last second of their deadline is late."""
HALF_LIFE = 60.0
"""Seconds after which half of a slowdown is forgotten. Where all jobs of a kind are refused for it, none would show
that it has gone."""
MOST = 16.0
"""The highest slowdown that is told: where more comes than can be served, it would have no end."""

Kind = tuple[Priority, bool]
"""A priority, and whether a job is long."""


@dataclass(slots=True)
class _Latest:
    """Slowdowns of the latest jobs of a kind, and when the last of them ended."""

    at: float = 0.0
    slowdowns: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def factor(self, now: float) -> float:
        excess = sorted(self.slowdowns)[int(IN_TIME * (len(self.slowdowns) - 1))] - 1
        return 1 + excess * float(0.5 ** ((now - self.at) / HALF_LIFE))


class Slowdowns:
    """Slowdowns by kind: the seconds that jobs took over the seconds that were expected."""

    def __init__(self) -> None:
        self._latest: dict[Kind, _Latest] = {}

    def learn(self, kind: Kind, *, expected: float, taken: float, now: float) -> None:
        """Learns from a job that ended at `now`, or was given up then: it would have taken longer still."""
        latest = self._latest.setdefault(kind, _Latest())
        latest.slowdowns.append(taken / expected)
        latest.at = now

    def factors(self, now: float) -> Mapping[Kind, float]:
        """The slowdowns above 1."""
        factors = {kind: latest.factor(now) for kind, latest in self._latest.items()}
        return {kind: min(factor, MOST) for kind, factor in factors.items() if factor > 1}
