"""Refusals of a process, counted by reason."""

from collections import Counter

from shared.errors import DeadlineExceeded, Overloaded

RETRY_AFTER = 0.5
"""Seconds until a retry, if there is no better estimate."""
REASONS = ("requests", "bytes", "results", "unread", "streams", "slow_reads", "memory", "read_seconds")
"""Limits in `Bounds` as reasons of a refusal."""
OTHERS = ("quota", "share", "unauthenticated", "draining")


class Refusals:
    """Makes and counts the errors of refused requests. `counts`: refusals so far, by reason."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys((*REASONS, *OTHERS), 0))

    def overloaded(self, reason: str, message: str, retry_after: float = RETRY_AFTER) -> Overloaded:
        """Counts a refusal; returns the error to raise."""
        self.counts[reason] += 1
        return Overloaded(message, retry_after=retry_after)

    def too_slow(self, seconds: float) -> DeadlineExceeded:
        """Counts a request that did not arrive in time; returns the error to raise."""
        self.counts["read_seconds"] += 1
        return DeadlineExceeded(f"the request did not arrive within {seconds:g} s")
