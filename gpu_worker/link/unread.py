"""How much of all answers attached frontends have not read, and who has to read before more is computed for it."""

from gpu_worker.link.outbox import Outbox

UNSENT_BYTES = 64 * 1024 * 1024
"""Of one frontend, however little others have."""


class Unread:
    """One bound over all frontends. Where it is exceeded, those go on that have less than an even share of it.

    So whoever reads goes on whatever others do: at least one of them has more than its share, and only such wait.
    """

    def __init__(self, most: int) -> None:
        """`most`: bytes of all frontends together."""
        self._most = most
        self._outboxes: set[Outbox] = set()

    @property
    def total(self) -> int:
        """Bytes."""
        return sum([each.unsent for each in tuple(self._outboxes)])  # metrics ask from another thread

    def add(self, outbox: Outbox) -> None:
        """Of a frontend that attached."""
        self._outboxes.add(outbox)

    def remove(self, outbox: Outbox) -> None:
        """Of a frontend that has gone."""
        self._outboxes.discard(outbox)

    def has_too_much(self, outbox: Outbox) -> bool:
        """Asked at every answer: the sum is taken only where it matters."""
        unsent = outbox.unsent
        return unsent > UNSENT_BYTES or (unsent > self._share and self.total > self._most)

    def has_little(self, outbox: Outbox) -> bool:
        """Half of what it may have in any case, so that nobody stops and goes on with every message."""
        return outbox.unsent <= min(UNSENT_BYTES, self._share) / 2

    @property
    def _share(self) -> float:
        return self._most / max(1, len(self._outboxes))
