"""Bytes of requests that one request, or one stream, holds."""

from shared.server.admission.pool import BytePool
from shared.server.admission.refusals import Refusals


class Holding:
    """A part of a pool that may grow and shrink. `held`: its bytes now."""

    def __init__(self, pool: BytePool, refusals: Refusals) -> None:
        self._pool, self._refusals = pool, refusals
        self.held = 0

    def add(self, size: int) -> None:
        """Adds `size` bytes. Raises Overloaded if the pool has no room for them."""
        full = self._pool.full(size, holder=self.held)
        if full is not None:
            raise self._refusals.overloaded(
                "bytes", f"the request has {size} bytes, {full.whose} hold {full.held}, the limit is {full.most}"
            )
        self.force(size)

    def force(self, size: int) -> None:
        """Adds `size` bytes, even if the pool is full."""
        self._pool.add(size)
        self.held += size

    def let_go(self, size: int) -> None:
        """Removes `size` bytes."""
        self._pool.add(-size)
        self.held -= size
