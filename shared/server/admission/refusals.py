"""What a process refused, by reason."""

from collections import Counter

from shared.errors import DeadlineExceeded, Overloaded

RETRY_AFTER = 0.5
"""Seconds, where nothing better is known."""
REASONS = ("requests", "bytes", "results", "unread", "streams", "slow_reads", "memory", "read_seconds")
"""Bounds."""
OTHERS = ("quota", "unauthenticated", "draining")


class Refusals:
    """`counts`: requests so far, by reason."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys((*REASONS, *OTHERS), 0))

    def overloaded(self, reason: str, message: str, retry_after: float = RETRY_AFTER) -> Overloaded:
        """Counted, to be raised."""
        self.counts[reason] += 1
        return Overloaded(message, retry_after=retry_after)

    def too_slow(self, seconds: float) -> DeadlineExceeded:
        """Likewise, for a request that did not arrive in time."""
        self.counts["read_seconds"] += 1
        return DeadlineExceeded(f"the request did not arrive within {seconds:g} s")
