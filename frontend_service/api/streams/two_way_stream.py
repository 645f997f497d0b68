"""What all streams both ways have in common: how they read, write and end, and how much they hold. Knows no messages.

Beginning what was read is left to the kind of stream: `streaming.py` answers each request by itself, `coalescing.py`
those together that wait together.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shared.errors import DeadlineExceeded, SelvageError
from shared.server.admission import Admission
from shared.server.admission.reads import unheeded
from shared.server.admission.streams import OpenStream

REQUEST_BYTES = 256 * 1024
"""Of a stream that are answered at once: some steps' worth of tokens. One request always may be."""
UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Of replies that wait for their reader; above it no request of the stream is begun."""
HEARD_OUT = 0.1
"""Seconds before a stream ends with an error: grpc.aio tells a caller that still writes INTERNAL instead."""

Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class RequestStream(Protocol[Q_co]):
    """What a stream's caller sends. After one that cannot be read, whose error it raises, the next one comes.

    `size`: of the request that came last, in bytes.
    """

    size: int

    async def __anext__(self) -> Q_co: ...


@dataclass(frozen=True, slots=True)
class Replies:
    """How what is sent leaves.

    `write` returns when a reply has been taken, and is never called twice at once. A reply that was not taken lies
    there until the call's end, when what `at_end` was given is called.
    """

    write: Callable[[bytes], Awaitable[None]]
    at_end: Callable[[Callable[[object], None]], None]


class NotRead(DeadlineExceeded):
    """The caller took no reply for too long; the whole stream ends."""


class TwoWayStream(ABC, Generic[Q]):
    """One stream. What it holds is bounded, so whoever does not read is not read from, and nobody else waits."""

    def __init__(self, admission: Admission, stream: OpenStream, replies: Replies, requests: int) -> None:
        """`requests`: how many are answered at once."""
        self._admission, self._stream, self._replies, self._most = admission, stream, replies, requests
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._requests = self._bytes = self._unwritten = 0
        self._over = self._stuck = False

    async def run(self, requests: RequestStream[Q]) -> None:
        """Until all requests are answered.

        Raises what reading raises, or that with which the stream is ended, once all that was read is answered, and at
        once what answering does.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                # Never cancelled: grpcio would lose what has come of a request. It ends with its call.
                reading = asyncio.ensure_future(self._read(requests, tasks))
                reading.add_done_callback(unheeded)
                error = await self._stream.ended(reading)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._over = True
            self._changed.set()
        if error is not None:
            await asyncio.wait([reading], timeout=HEARD_OUT)
            raise error

    async def send(self, *replies: bytes, turn: asyncio.Event | None = None) -> None:
        """Returns when all have been taken, one after the other, from their `turn` on.

        Raises NotRead; CancelledError where an earlier one was not taken.
        """
        self._counts(size := sum(map(len, replies)))
        try:
            if turn is not None:
                await turn.wait()
            async with self._writing:
                for reply in replies:
                    await self._written(reply)
        finally:
            self._counts(-size)

    @abstractmethod
    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        """Has a request of so many bytes answered by one of `tasks`, between `_holds` and `_answered`."""

    def _started(self, work: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> "asyncio.Task[None] | None":
        """None where another task has failed, which ends the stream."""
        try:
            return tasks.create_task(work)
        except RuntimeError:
            work.close()
            return None

    def _holds(self, size: int) -> None:
        """One request more, of so many bytes."""
        self._requests, self._bytes = self._requests + 1, self._bytes + size

    def _answered(self, requests: int, size: int) -> None:
        """So many less, of so many bytes together."""
        self._requests, self._bytes = self._requests - requests, self._bytes - size
        self._changed.set()

    async def _written(self, reply: bytes) -> None:
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

    def _counts(self, size: int) -> None:
        self._unwritten += size
        self._stream.results.add(size)
        if size < 0:
            self._changed.set()

    async def _read(self, requests: RequestStream[Q], tasks: asyncio.TaskGroup) -> None:
        """Begins all requests, until one cannot be read or the stream is to end. Then what comes is let go."""
        while True:
            await self._room()
            try:
                with self._admission.streams.reading(self._stream):
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except SelvageError as error:
                self._stream.end(error)
                continue
            if not self._over and not self._stream.ending:  # broken off, or to end
                self._begin(request, requests.size, tasks)
            del request

    async def _room(self) -> None:
        """Returns when another request may be begun, or let go since all others are answered."""
        while not self._over and (self._full() if not self._stream.ending else self._requests):
            self._changed.clear()
            await self._changed.wait()

    def _full(self) -> bool:
        return self._requests >= self._most or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES
