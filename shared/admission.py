"""What a process lets in: how many requests, how many bytes, how many slow reads. Knows no gRPC and no HTTP.

A door asks in this order, so that what is refused costs least: `request` before it reads anything, `read` around
reading, `hold` once it knows the size. What a door does not ask about, such as health watches, never counts.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from shared.errors import DeadlineExceeded, Overloaded
from shared.memory import memory_taken

QUICK_READS, QUICK_SECONDS = 2, 0.01
"""So many requests are read at once; what was sent is there at once. A read that takes longer is large, or its sender
is slow: then it makes room for the next."""
FIRST_LOOK, LOOK_SECONDS = 0.002, 0.01
"""Until a slow read is looked at, and between later looks; in a hundredth of a second ten megabytes may come."""
GROWTH = 512 * 1024
"""Bytes that the process may grow by from look to look while it only waits for slow senders."""
LARGE_REQUEST = 8 * 1024 * 1024
"""Bytes."""
RETRY_AFTER = 0.5
"""Seconds, where nothing better is known."""
REASONS = ("requests", "bytes", "results", "unread", "slow_reads", "memory", "read_seconds", "draining")
"""Of what is refused; all but the last are bounds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be there at once.

    `requests`: from their first byte to their last; `size`: bytes of requests that are read, one always may be;
    `results`: bytes of results that are being computed or made into replies, likewise;
    `slow_reads`: of requests that take over 10 ms to arrive, and `memory`: bytes that the process may take above what
    it did at first, where one such read goes on; `read_seconds`: how long one may take, and how long its caller may
    take to read the reply; `unread`: bytes of replies that are not read yet.
    """

    requests: int = 2048
    size: int = 64 * 1024 * 1024
    results: int = 64 * 1024 * 1024
    slow_reads: int = 64
    memory: int = 64 * 1024 * 1024
    read_seconds: float = 30.0
    unread: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Ledger:
    """What one request has reserved."""

    results: int = 0


_LEDGER: ContextVar[_Ledger] = ContextVar("ledger")


class Admission:
    """Refuses with Overloaded, before the work is done. `requests` and `size`: what is there now.

    `refused`: requests so far, by reason.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._quick = asyncio.Semaphore(QUICK_READS)
        self._parsing = asyncio.Lock()
        self._idle_memory = memory_taken()
        self.requests = self.size = self.results = self.slow_reads = self.unread = 0
        self.refused = Counter(dict.fromkeys(REASONS, 0))

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a whole request."""
        if self.requests >= self.bounds.requests:
            raise self._refusal(
                "requests", f"{self.requests} requests are being answered, the limit is {self.bounds.requests}"
            )
        if not self.requests:
            self._idle_memory = memory_taken()
        self.requests += 1
        ledger = _Ledger()
        _LEDGER.set(ledger)
        try:
            yield
        finally:
            self.requests -= 1
            self.results -= ledger.results

    def reserve(self, size: int) -> None:
        """Before a result of so many bytes is asked for; it counts until the request that it is for is answered.

        Raises Overloaded.
        """
        if self.results and self.results + size > self.bounds.results:
            raise self._refusal(
                "results",
                f"the result has {size} bytes, others have {self.results}, the limit is {self.bounds.results}",
            )
        self.results += size
        _LEDGER.get().results += size

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """From the time that a message of so many bytes is there until it is answered."""
        if self.size and self.size + size > self.bounds.size:
            raise self._refusal(
                "bytes", f"the request has {size} bytes, others hold {self.size}, the limit is {self.bounds.size}"
            )
        self.size += size
        try:
            yield
        finally:
            self.size -= size

    @asynccontextmanager
    async def parsing(self, size: int) -> AsyncIterator[None]:
        """While a message is parsed. A large one holds the interpreter's lock, and nobody could look at what is read
        meanwhile: so no other read begins."""
        if size < LARGE_REQUEST:
            yield
            return
        async with self._parsing:
            yield

    def hold_reply(self, size: int) -> Callable[[], None]:
        """From the time that a reply is there until its caller has read it, which the door tells by what this returns.

        Raises Overloaded.
        """
        if self.unread and self.unread + size > self.bounds.unread:
            raise self._refusal(
                "unread",
                f"the reply has {size} bytes, {self.unread} bytes of others are not read yet, "
                f"the limit is {self.bounds.unread}",
            )
        self.unread += size

        def is_read() -> None:
            self.unread -= size

        return is_read

    async def read(self, receive: Callable[[], Awaitable[T]]) -> T:
        """What `receive` returns. Raises Overloaded where too much arrives slowly, DeadlineExceeded after long.

        Nobody knows how large a request is before it has been read. So a slow one goes on only while memory is left.
        """
        await self._place()
        read = _Read(self, self._quick.release)
        # Ours is cancelled, the read never is: grpcio would lose what has come, 60 MiB at once. It ends with its call.
        receiving = asyncio.ensure_future(receive())
        receiving.add_done_callback(_seen)
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            if read.error is None:
                raise
            read.task.uncancel()
            raise read.error from None
        finally:
            read.ends()

    async def _place(self) -> None:
        await self._quick.acquire()
        try:
            if self._parsing.locked():
                async with self._parsing:
                    pass
        except asyncio.CancelledError:
            self._quick.release()
            raise

    @property
    def memory(self) -> int:
        """Bytes that the process takes above what it did when nothing was asked of it; results and replies not counted.

        Each of these lies in memory twice while it is made: as it came, and as it leaves.
        """
        return memory_taken() - self._idle_memory - 2 * (self.results + self.unread)

    def check_slow_read(self, *, new: bool) -> None:
        """Raises Overloaded. Without memory one slow read goes on, and a new one only where no other request does."""
        if new and self.slow_reads >= self.bounds.slow_reads:
            raise self._refusal(
                "slow_reads", f"{self.slow_reads} requests are arriving slowly, the limit is {self.bounds.slow_reads}"
            )
        memory, others = self.memory, self.slow_reads + bool(self.size) if new else self.slow_reads - 1
        if memory > self.bounds.memory and others:
            why = f"requests take {memory} bytes, the limit is {self.bounds.memory}"
            raise self._refusal("memory", why, retry_after=1.0)

    def _refusal(self, reason: str, message: str, retry_after: float = RETRY_AFTER) -> Overloaded:
        self.refused[reason] += 1
        return Overloaded(message, retry_after=retry_after)


def _seen(done: "asyncio.Future[T]") -> None:
    """Nobody asks for what a read that was given up ends with."""
    if not done.cancelled():
        done.exception()


class _Read:
    """A read that may turn out to be slow. `error`: why it was cancelled by us."""

    def __init__(self, admission: Admission, let_next: Callable[[], None]) -> None:
        """`let_next` is called once, when the next one may begin."""
        self._admission, self._let_next = admission, let_next
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(QUICK_SECONDS, self._begins)
        self._until: float | None = None
        self._memory = 0
        self._made_room = False
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.error: Exception | None = None

    def _begins(self) -> None:
        try:
            self._admission.check_slow_read(new=True)
        except Overloaded as error:
            self._stop(error)
            return
        self._admission.slow_reads += 1
        self._memory = self._admission.memory
        self._until = self._loop.time() + self._admission.bounds.read_seconds
        self._timer = self._loop.call_later(FIRST_LOOK, self._goes_on)

    def _goes_on(self) -> None:
        assert self._until is not None
        try:
            self._admission.check_slow_read(new=False)
        except Overloaded as error:
            self._stop(error)
            return
        if self._loop.time() > self._until:
            seconds = self._admission.bounds.read_seconds
            self._admission.refused["read_seconds"] += 1
            self._stop(DeadlineExceeded(f"the request did not arrive within {seconds:g} s"))
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._goes_on)
        self._make_room()

    def ends(self) -> None:
        self._timer.cancel()
        self._no_longer_slow()
        if not self._made_room:
            self._let_next()

    def _make_room(self) -> None:
        """Large requests that arrive as fast as they can come one after the other: together they would fill the memory
        before anyone looked."""
        if self._made_room:
            return
        before, self._memory = self._memory, self._admission.memory
        if self._memory < self._admission.bounds.memory / 2 and self._memory - before < GROWTH:
            self._made_room = True
            self._let_next()

    def _no_longer_slow(self) -> None:
        self._admission.slow_reads -= self._until is not None
        self._until = None

    def _stop(self, error: Exception) -> None:
        self.error = error
        self._no_longer_slow()  # at once: of others that are looked at in this moment one goes on
        self.task.cancel()
