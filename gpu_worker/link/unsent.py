"""Limits the outcomes that wait to be sent: above a limit, nothing more is computed for frontends that do not read."""

from gpu_worker.link.outbox import Outbox

UNSENT_BYTES = 64 * 1024 * 1024
"""Most unsent bytes of one frontend, however few the others have."""


class UnsentLimit:
    """A limit for the unsent bytes of all frontends together.

    Above it only frontends with more than an even share have too much, so one that reads goes on whatever others do.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: most unsent bytes of all frontends together."""
        self._limit = limit
        self._outboxes: set[Outbox] = set()

    @property
    def total(self) -> int:
        """Unsent bytes of all frontends. May be read from other threads."""
        return sum([outbox.unsent for outbox in tuple(self._outboxes)])

    def add_outbox(self, outbox: Outbox) -> None:
        """Adds the outbox of a frontend that attached."""
        self._outboxes.add(outbox)

    def remove_outbox(self, outbox: Outbox) -> None:
        """Removes the outbox of a frontend that has gone."""
        self._outboxes.discard(outbox)

    def is_exceeded(self, outbox: Outbox) -> bool:
        """Whether nothing more may be computed for a frontend until it reads."""
        unsent = outbox.unsent
        # This is called for every answer, so the sum is taken only where it matters.
        return unsent > UNSENT_BYTES or (unsent > self._even_share and self.total > self._limit)

    def may_resume(self, outbox: Outbox) -> bool:
        """Whether a frontend that had too much may go on: at half its bound, so that it does not stop at once again."""
        return outbox.unsent <= min(UNSENT_BYTES, self._even_share) / 2

    @property
    def _even_share(self) -> float:
        return self._limit / max(1, len(self._outboxes))
