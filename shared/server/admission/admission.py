"""What a process lets in: how many requests, how many bytes, how many slow reads. Knows no gRPC and no HTTP.

A door asks in this order, so that what is refused costs least: `request` before it reads anything, `reads` around
reading, `hold` once it knows the size. What a door does not ask about, such as health watches, never counts.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from shared.errors import SelvageError
from shared.memory import memory_taken
from shared.server.admission.bounds import Bounds
from shared.server.admission.holding import Holding
from shared.server.admission.pool import BytePool, Pools
from shared.server.admission.reads import Reads
from shared.server.admission.refusals import Refusals
from shared.server.admission.streams import OpenStream, Streams

STREAM_SHARE, STREAM_MEMORY, COPIES = 8, 2, 3
"""A stream's results take at most one part in eight of what all streams' may. Streams are not read on where the process
takes twice the memory at which slow reads end, and three copies of each request that has been read explain no more of
it: by then it is likely that one of them sends what fills it."""


@dataclass(slots=True)
class _Ledger:
    """What one request has reserved, and where."""

    pool: BytePool
    results: int = 0


_LEDGER: ContextVar[_Ledger] = ContextVar("ledger")
_POOLS: ContextVar[Pools | None] = ContextVar("pools", default=None)
"""Of the stream that a request came by."""


class Admission:
    """Refuses with Overloaded, before the work is done. `requests`, `unread`: what is there now."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refusals = Refusals()
        self.reads = Reads(bounds, self.refusals, lambda: self.memory, lambda: bool(self.size))
        self._idle_memory = memory_taken()
        self._called, self._streamed = (
            Pools(BytePool(whose, bounds.size), BytePool(whose, bounds.results)) for whose in ("others", "streams")
        )
        self._gathered = BytePool("others that come by streams", bounds.size)
        self.streams = Streams(lambda: self._stream_memory(bounds.memory * STREAM_MEMORY))
        self.stream_requests = asyncio.Semaphore(max(1, bounds.requests // 2))
        self.requests = self.unread = 0

    @property
    def size(self) -> int:
        """Bytes of requests that are there."""
        return self._called.requests.held + self._streamed.requests.held + self._gathered.held

    @property
    def results(self) -> int:
        """Bytes of results that are there."""
        return self._called.results.held + self._streamed.results.held

    @property
    def reserved(self) -> int:
        """Bytes of results that this request has reserved."""
        return _LEDGER.get().results

    @property
    def refused(self) -> Counter[str]:
        """Requests so far, by reason."""
        return self.refusals.counts

    @contextmanager
    def stream(self) -> Iterator[OpenStream]:
        """Around a stream of requests, each of which enters `request` on its own. Raises Overloaded."""
        if len(self.streams) >= self.bounds.streams:
            why = f"{len(self.streams)} streams are open, the limit is {self.bounds.streams}"
            raise self.refusals.overloaded("streams", why)
        if not self.requests and not self.streams:
            self._idle_memory = memory_taken()
        share = BytePool("others of this stream", self.bounds.results // STREAM_SHARE, self._streamed.results)
        token = _POOLS.set(Pools(self._streamed.requests, share))
        try:
            with self.streams.opened(share) as stream:
                yield stream
        finally:
            _POOLS.reset(token)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a whole request."""
        if self.requests >= self.bounds.requests:
            raise self.refusals.overloaded(
                "requests", f"{self.requests} requests are being answered, the limit is {self.bounds.requests}"
            )
        if not self.requests:
            # what an open stream may hold at this moment is not the process's own
            self._idle_memory = min(memory_taken(), self._idle_memory if self.streams else sys.maxsize)
        self.requests += 1
        ledger = _Ledger(self._pools.results)
        _LEDGER.set(ledger)
        try:
            yield
        finally:
            self.requests -= 1
            ledger.pool.add(-ledger.results)

    def reserve(self, size: int) -> None:
        """Before a result of so many bytes is asked for; it counts until the request that it is for is answered.

        Raises Overloaded.
        """
        ledger = _LEDGER.get()
        full = ledger.pool.full(size)
        if full is not None:
            raise self.refusals.overloaded(
                "results", f"the result has {size} bytes, {full.whose} have {full.held}, the limit is {full.most}"
            )
        ledger.pool.add(size)
        ledger.results += size

    @contextmanager
    def hold(self, size: int) -> Iterator[Callable[[int], None]]:
        """From the time that a message of so many bytes is there until it is answered. What this gives tells that so
        many of them are no longer held. Raises Overloaded."""
        with self.holding() as holding:
            holding.add(size)
            yield holding.let_go

    @contextmanager
    def holding(self, *, gathered: bool = False) -> Iterator[Holding]:
        """Around messages that come and go, or that are `gathered` until they are one request."""
        holding = Holding(self._gathered if gathered else self._pools.requests, self.refusals)
        try:
            yield holding
        finally:
            holding.let_go(holding.held)

    @property
    def _pools(self) -> Pools:
        return _POOLS.get() or self._called

    def hold_reply(self, size: int) -> Callable[[], None]:
        """From the time that a reply is there until its caller has read it, which the door tells by what this returns.

        Raises Overloaded.
        """
        if self.unread and self.unread + size > self.bounds.unread:
            raise self.refusals.overloaded(
                "unread",
                f"the reply has {size} bytes, {self.unread} bytes of others are not read yet, "
                f"the limit is {self.bounds.unread}",
            )
        self.unread += size

        def is_read() -> None:
            self.unread -= size

        return is_read

    @property
    def memory(self) -> int:
        """Bytes that the process takes above what it did when nothing was asked of it; results and replies not counted.

        Each of these lies in memory twice while it is made: as it came, and as it leaves.
        """
        return memory_taken() - self._idle_memory - 2 * (self.results + self.unread)

    def _stream_memory(self, most: int) -> SelvageError | None:
        """Why streams that wait for their next request end, if they do."""
        memory = self.memory - COPIES * self.size
        if memory <= most:
            return None
        why = f"requests that arrive take {memory} bytes, the limit is {most}"
        return self.refusals.overloaded("memory", why, retry_after=1.0)
