"""The work that came lately. No clock, no I/O."""

from math import exp

RECENT_SECONDS = 1.0


class RecentWork:
    """Tokens that came, each counted the less the longer ago it came."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        """`seconds`: after which what came counts a third of what comes now."""
        self._seconds, self._tokens, self._since = seconds, 0.0, 0.0

    def add(self, tokens: int, now: float) -> None:
        """Counts tokens that came `now`, in seconds of any clock that never goes back."""
        self._tokens, self._since = self._left(now) + tokens, now

    def rate(self, now: float) -> float:
        """Tokens that came in a second lately."""
        return self._left(now) / self._seconds

    def _left(self, now: float) -> float:
        return self._tokens * exp((self._since - now) / self._seconds)
