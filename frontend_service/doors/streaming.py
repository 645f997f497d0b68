"""A stream both ways: requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from shared.admission import Admission
from shared.admission.reads import unheeded
from shared.admission.streams import OpenStream
from shared.errors import DeadlineExceeded, SelvageError

REQUESTS, REQUEST_BYTES = 256, 256 * 1024
"""Of a stream that are answered at once: some steps' worth of tokens, whatever a request holds. One always may."""
UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Of replies that wait for their reader; above it no request of the stream is begun."""
HEARD_OUT = 0.1
"""Seconds before a stream ends with an error: grpc.aio tells a caller that still writes INTERNAL instead."""

Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class Requests(Protocol[Q_co]):
    """What a stream's caller sends. After one that cannot be read, whose error it raises, the next one comes.

    `size`: of the request that came last, in bytes.
    """

    size: int

    async def __anext__(self) -> Q_co: ...


class NotRead(DeadlineExceeded):
    """The caller took no reply for too long; the whole stream ends."""


class Streaming(Generic[Q]):
    """One stream. What it holds is bounded, so whoever does not read is not read from, and nobody else waits."""

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        answer: Callable[[Q, int], Coroutine[Any, Any, None]],
        write: Callable[[bytes], Awaitable[None]],
        at_end: Callable[[Callable[[object], None]], None],
    ) -> None:
        """`answer` sends every reply of a request of so many bytes. `write` returns when a reply has been taken, and is
        never called twice at once; a reply that was not taken lies there until the call's end, when what `at_end` was
        given is called."""
        self._admission, self._stream, self._answer, self._write, self._at_end = (
            admission,
            stream,
            answer,
            write,
            at_end,
        )
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._waiting = deque[asyncio.Future[None]]()
        self._requests = self._bytes = self._unwritten = 0
        self._over = self._stuck = False

    async def run(self, requests: Requests[Q]) -> None:
        """Until all requests are answered.

        Raises what reading raises, or that with which the stream is ended, once all that was read is answered, and at
        once what `answer` does.
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
        if error is not None:
            await asyncio.wait([reading], timeout=HEARD_OUT)
            raise error

    async def send(self, reply: bytes) -> None:
        """Returns when the reply has been taken. Raises NotRead; CancelledError where an earlier one was not taken."""
        self._counts(len(reply))
        try:
            async with self._writing:
                await self._written(reply)
        finally:
            self._counts(-len(reply))

    async def _written(self, reply: bytes) -> None:
        if self._stuck:  # the stream is about to end
            raise asyncio.CancelledError
        seconds = self._admission.bounds.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._write(reply)
        except BaseException as raised:
            self._stuck = True
            self._stream.results.add(size := len(reply))
            self._at_end(lambda _: self._stream.results.add(-size))
            if isinstance(raised, TimeoutError):
                raise NotRead(f"no reply was read for {seconds:g} s") from None
            raise

    def _counts(self, size: int) -> None:
        self._unwritten += size
        self._stream.results.add(size)
        if size < 0:
            self._changed.set()

    async def another_ended(self) -> bool:
        """Waits until another request of this stream has been answered; False at once where none is under way.

        For one that was refused because there is too much: a stream is not to refuse itself.
        """
        if self._requests - len(self._waiting) <= 1:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
        return True

    async def _read(self, requests: Requests[Q], tasks: asyncio.TaskGroup) -> None:
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

    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        answer = self._answer(request, size)
        try:
            task = tasks.create_task(answer)
        except RuntimeError:  # it ends, since another request failed
            answer.close()
            return
        self._requests, self._bytes = self._requests + 1, self._bytes + size
        task.add_done_callback(partial(self._answered, size))

    def _answered(self, size: int, _: object) -> None:
        self._requests, self._bytes = self._requests - 1, self._bytes - size
        self._changed.set()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # its request was cancelled, with the stream
                waiter.set_result(None)
                return

    async def _room(self) -> None:
        """Returns when another request may be begun, or let go since all others are answered."""
        while self._full() if not self._stream.ending else self._requests:
            self._changed.clear()
            await self._changed.wait()

    def _full(self) -> bool:
        return self._requests >= REQUESTS or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES
