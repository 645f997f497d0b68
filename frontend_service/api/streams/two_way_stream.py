"""What all two-way streams have in common: how they read, write and end, and how much they hold. Knows no messages.

A subclass decides how requests are answered: in `independent.py` each by itself, in `coalesced.py` those together that
wait together.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shared.errors import DeadlineExceeded, SelvageError
from shared.server.admission import Admission, OpenStream
from shared.tasks import unheeded

REQUEST_BYTES = 256 * 1024
"""Limit for the requests that one stream has in progress: a few steps' worth of tokens. A single request may exceed
it."""
UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Limit for the replies that wait for their reader; above it no request of the stream is begun."""
LAST_READ_SECONDS = 0.1
"""Time for the last read before a stream ends with an error: a caller that still writes gets INTERNAL from grpc.aio."""

Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class RequestStream(Protocol[Q_co]):
    """The requests of a stream's caller. After one that cannot be read, whose error it raises, the next one comes.

    `size`: bytes of the last request.
    """

    size: int

    async def __anext__(self) -> Q_co: ...


@dataclass(frozen=True, slots=True)
class Replies:
    """The writing side of a stream.

    `write` returns when the transport has taken a reply; it is never called twice at once. `at_end` takes a function
    to be called at the end of the call: until then a reply that was not taken stays in memory.
    """

    write: Callable[[bytes], Awaitable[None]]
    at_end: Callable[[Callable[[object], None]], None]


class NotRead(DeadlineExceeded):
    """The caller read no reply for too long; the whole stream ends."""


class TwoWayStream(ABC, Generic[Q]):
    """A stream of requests and replies.

    What it holds is bounded: a caller that does not read its replies is not read from, and delays nobody else.
    """

    def __init__(self, admission: Admission, stream: OpenStream, replies: Replies, max_requests: int) -> None:
        """`max_requests`: how many requests may be in progress at once."""
        self._admission, self._stream, self._replies, self._max_requests = admission, stream, replies, max_requests
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._requests = self._bytes = self._unwritten = 0
        self._over = self._stuck = False

    async def run(self, requests: RequestStream[Q]) -> None:
        """Reads and answers all requests.

        An error of reading, or the error that the stream is ended with, is raised once all requests that were read are
        answered; an error of answering is raised at once.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                # Never cancelled: grpcio would lose the part of a request that has arrived. It ends with its call.
                reading = asyncio.ensure_future(self._read(requests, tasks))
                reading.add_done_callback(unheeded)
                error = await self._stream.ended(reading)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._over = True
            self._changed.set()
        if error is not None:
            await asyncio.wait([reading], timeout=LAST_READ_SECONDS)
            raise error

    async def send(self, *replies: bytes, may_begin: asyncio.Event | None = None) -> None:
        """Writes replies one after the other, once `may_begin` is set; returns when all have been taken.

        Raises NotRead; CancelledError where an earlier reply was not taken.
        """
        self._count_unwritten(size := sum(map(len, replies)))
        try:
            if may_begin is not None:
                await may_begin.wait()
            async with self._writing:
                for reply in replies:
                    await self._write(reply)
        finally:
            self._count_unwritten(-size)

    @abstractmethod
    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        """Begins to answer a request of `size` bytes, in one of `tasks` where that takes longer than this call.

        A request that stays in progress after this call is counted: by `_count_begun` now, by `_count_answered` at its
        end. One that is refused or done at once is not.
        """

    def _start_task(self, work: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> "asyncio.Task[None] | None":
        """Starts a task, or returns None where another task has failed, which ends the stream."""
        try:
            return tasks.create_task(work)
        except RuntimeError:
            work.close()
            return None

    def _count_begun(self, size: int) -> None:
        """Counts a request of `size` bytes as in progress."""
        self._requests, self._bytes = self._requests + 1, self._bytes + size

    def _count_answered(self, requests: int, size: int) -> None:
        """Counts requests of `size` bytes together as no longer in progress."""
        self._requests, self._bytes = self._requests - requests, self._bytes - size
        self._changed.set()

    async def _write(self, reply: bytes) -> None:
        if self._stuck:  # the stream is about to end
            raise asyncio.CancelledError
        seconds = self._admission.bounds.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._replies.write(reply)
        except BaseException as raised:
            self._stuck = True
            self._stream.results.add(size := len(reply))
            self._replies.at_end(lambda _: self._stream.results.add(-size))
            if isinstance(raised, TimeoutError):
                raise NotRead(f"no reply was read for {seconds:g} s") from None
            raise

    def _count_unwritten(self, change: int) -> None:
        self._unwritten += change
        self._stream.results.add(change)
        if change < 0:
            self._changed.set()

    async def _read(self, requests: RequestStream[Q], tasks: asyncio.TaskGroup) -> None:
        """Begins all requests until one cannot be read or the stream is to end. After that, requests are dropped."""
        while True:
            await self._wait_for_room()
            try:
                request = await anext(requests)
            except StopAsyncIteration:
                return
            except SelvageError as error:
                self._stream.end(error)
                continue
            if not self._over and not self._stream.ending:
                self._begin(request, requests.size, tasks)
            del request

    async def _wait_for_room(self) -> None:
        """Returns when the next request may be begun; of a stream that is to end, when all others are answered and the
        next one may be dropped."""
        while not self._over and (self._is_full() if not self._stream.ending else self._requests):
            self._changed.clear()
            await self._changed.wait()

    def _is_full(self) -> bool:
        return (
            self._requests >= self._max_requests or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES
        )
