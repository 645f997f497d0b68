"""Bytes of requests that one request, or one stream, holds."""

from shared.server.admission.pool import BytePool
from shared.server.admission.refusals import Refusals


class Holding:
    """What it holds lies in a pool, and may grow and shrink. `held`: bytes now."""

    def __init__(self, pool: BytePool, refusals: Refusals) -> None:
        self._pool, self._refusals = pool, refusals
        self.held = 0

    def add(self, size: int) -> None:
        """So many more, where the others in the pool leave room for them. Raises Overloaded."""
        full = self._pool.full(size, own=self.held)
        if full is not None:
            raise self._refusals.overloaded(
                "bytes", f"the request has {size} bytes, {full.whose} hold {full.held}, the limit is {full.most}"
            )
        self.force(size)

    def force(self, size: int) -> None:
        """So many more, whatever others hold."""
        self._pool.add(size)
        self.held += size

    def let_go(self, size: int) -> None:
        """So many less."""
        self._pool.add(-size)
        self.held -= size
