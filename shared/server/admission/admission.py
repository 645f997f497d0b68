"""Admission of requests, bytes and slow reads to a process. Knows no gRPC and no HTTP.

An API calls it in this order, so that refusals cost least: `request` before it reads anything, `reads` around reading,
`hold` once it knows the size. Health checks have places and reads of their own: no other call's load refuses them.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from shared.errors import SelvageError
from shared.memory import memory_taken
from shared.server.admission.bounds import Bounds
from shared.server.admission.holding import Holding
from shared.server.admission.pool import BytePool, Pools
from shared.server.admission.read_pace import ReadPace
from shared.server.admission.reads import Reads
from shared.server.admission.refusals import Refusals
from shared.server.admission.shares import Shares
from shared.server.admission.streams import OpenStream, Streams

STREAM_SHARE, STREAM_MEMORY, COPIES = 8, 2, 3
"""One stream's results may take an eighth of the bytes for all streams. Waiting streams are broken off once the process
takes twice the memory at which slow reads end, not counting three copies of each request that has been read: the rest
is likely to be a request that one of them is sending."""


@dataclass(slots=True)
class _Ledger:
    """The bytes of results that one request has reserved, and their pool; the bytes of the request's message."""

    pool: BytePool
    results: int = 0
    message: int = 0


_LEDGER: ContextVar[_Ledger] = ContextVar("ledger")
_POOLS: ContextVar[Pools | None] = ContextVar("pools", default=None)
"""The pools of the stream that a request belongs to; None outside of streams."""


class Admission:
    """Refuses requests with Overloaded before they cost work. `requests`: requests in progress."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refusals = Refusals()
        self.reads = Reads(bounds, self.refusals, lambda: self.memory, lambda: bool(self.size))
        # As many as may be read slowly; and the memory that others take is no reason to end the only slow one.
        self._check_shares = Shares(bounds.slow_reads)
        self.checks = Reads(bounds, self.refusals, lambda: self.memory, lambda: False)
        self.pace = ReadPace(bounds.pace)
        self._idle_memory = memory_taken()
        self._called, self._streamed = (
            Pools(BytePool(whose, bounds.size), BytePool(whose, bounds.results)) for whose in ("others", "streams")
        )
        self._gathered = BytePool("others that come by streams", bounds.size)
        self._unread = BytePool("replies that are not read yet", bounds.unread)
        self._stream_shares, self._watch_shares = Shares(bounds.streams), Shares(bounds.watches)
        self.streams = Streams(lambda: self._stream_memory(bounds.memory * STREAM_MEMORY))
        self.stream_requests = asyncio.Semaphore(max(1, bounds.requests // 2))
        self.requests = 0

    @property
    def size(self) -> int:
        """Bytes of all requests in progress."""
        return self._called.requests.held + self._streamed.requests.held + self._gathered.held

    @property
    def results(self) -> int:
        """Bytes of all results in progress."""
        return self._called.results.held + self._streamed.results.held

    @property
    def unread(self) -> int:
        """Bytes of replies that callers have not read."""
        return self._unread.held

    @property
    def reserved(self) -> int:
        """Bytes of results that this request has reserved."""
        return _LEDGER.get().results

    @property
    def message_size(self) -> int:
        """Bytes of the message of this request, 0 where none was held. The message itself would serialise itself to
        tell, which takes 90 ms for 60 MB."""
        ledger = _LEDGER.get(None)
        return 0 if ledger is None else ledger.message

    @property
    def refused(self) -> Counter[str]:
        """Refused requests so far, by reason."""
        return self.refusals.counts

    @contextmanager
    def stream(self, caller: str = "", *, watch: bool = False) -> Iterator[OpenStream]:
        """Admits a stream, whose requests each enter `request` on their own. Raises Overloaded.

        `caller`: whose share of the streams it takes. `watch`: it is of gRPC's own services, whose streams have places
        of their own: clients that watch a service's health keep one open for each connection.
        """
        shares, setting = (self._watch_shares, "") if watch else (self._stream_shares, " (--max-streams)")
        if shares.has_share(caller):
            why = (
                f"this caller has {shares.held(caller)} open streams, for all others {shares.left} are left of "
                f"{shares.most}{setting}"
            )
            raise self.refusals.overloaded("share", why)
        if not shares.left:
            raise self.refusals.overloaded("streams", f"{shares.total} streams are open, the limit is {shares.most}")
        if not self.requests and not self.streams:
            self._idle_memory = memory_taken()
        share = BytePool("others of this stream", self.bounds.results // STREAM_SHARE, self._streamed.results)
        token = _POOLS.set(Pools(self._streamed.requests, share))
        try:
            with shares.taken(caller), self.streams.opened(share) as stream:
                yield stream
        finally:
            _POOLS.reset(token)

    @contextmanager
    def check(self, caller: str) -> Iterator[None]:
        """Admits a health check, beside all other calls. Raises Overloaded.

        `caller`: whose share of the checks it takes.
        """
        shares = self._check_shares
        if shares.has_share(caller) or not shares.left:
            why = (
                f"this caller has {shares.held(caller)} health checks in progress, for all others {shares.left} are "
                f"left of {shares.most}"
            )
            raise self.refusals.overloaded("share", why)
        with shares.taken(caller):
            yield

    @contextmanager
    def request(self) -> Iterator[None]:
        """Admits a request for the duration of the block. Raises Overloaded."""
        if self.requests >= self.bounds.requests:
            raise self.refusals.overloaded(
                "requests", f"{self.requests} requests are being answered, the limit is {self.bounds.requests}"
            )
        if not self.requests:
            # memory that an open stream holds now is not idle memory
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
        """Reserves `size` bytes for a result, until its request is answered. Raises Overloaded."""
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
        """Holds the `size` bytes of a message for the duration of the block. Yields a function that releases some of
        them earlier. Raises Overloaded."""
        with self.holding() as holding:
            holding.add(size)
            self.note_message(size)
            yield holding.let_go

    def note_message(self, size: int) -> None:
        """Notes the size of this request's message, which is held already."""
        if (ledger := _LEDGER.get(None)) is not None:
            ledger.message = size

    @contextmanager
    def holding(self, *, gathered: bool = False) -> Iterator[Holding]:
        """Holds messages that come and go, or that are `gathered` until they are one request."""
        holding = Holding(self._gathered if gathered else self._pools.requests, self.refusals)
        try:
            yield holding
        finally:
            holding.let_go(holding.held)

    @property
    def _pools(self) -> Pools:
        return _POOLS.get() or self._called

    def hold_reply(self, size: int) -> Callable[[], None]:
        """Counts a reply as unread until the API calls the returned function. Raises Overloaded."""
        if self._unread.full(size):
            raise self.refusals.overloaded(
                "unread",
                f"the reply has {size} bytes, {self.unread} bytes of others are not read yet, "
                f"the limit is {self.bounds.unread}",
            )
        self._unread.add(size)
        return partial(self._unread.add, -size)

    @property
    def memory(self) -> int:
        """Bytes of the process above its idle memory, without results and replies.

        Those are subtracted twice, because they are in memory twice while a reply is made.
        """
        return memory_taken() - self._idle_memory - 2 * (self.results + self.unread)

    def _stream_memory(self, most: int) -> SelvageError | None:
        """The error that ends waiting streams if requests take more than `most` bytes of memory, else None."""
        memory = self.memory - COPIES * self.size
        if memory <= most:
            return None
        why = f"requests that arrive take {memory} bytes, the limit is {most}"
        return self.refusals.overloaded("memory", why, retry_after=1.0)
