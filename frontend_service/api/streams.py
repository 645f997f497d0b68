"""Two-way streams over gRPC: how requests are read and replies are written, and how much a stream holds."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import grpc

from shared.errors import DeadlineExceeded, SelvageError
from shared.server.admission import Admission, OpenStream
from shared.tasks import unheeded

Context = grpc.aio.ServicerContext[Any, Any]
REQUESTS = 256
"""Most requests that one stream has in progress, whatever their size."""
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


async def begin_replies(context: Context) -> Replies:
    """Begins the response of a call that was admitted, and returns the object that writes its replies.

    The metadata are sent at once: otherwise grpcio sends no status while a reply is not read.
    """
    await context.send_initial_metadata(())

    async def write(reply: bytes) -> None:
        try:
            await context.write(reply)
        except grpc.aio.BaseError:  # the caller has gone, and the call is about to be cancelled
            raise asyncio.CancelledError from None

    return Replies(write, context.add_done_callback)  # type: ignore[arg-type]


class NotRead(DeadlineExceeded):
    """The caller read no reply for too long; the whole stream ends."""


class TwoWayStream(Generic[Q]):
    """A stream of requests, each of which is answered by a task of its own.

    What it holds is bounded: a caller that does not read its replies is not read from, and delays nobody else.
    """

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        replies: Replies,
        answer: Callable[[Q, int], Coroutine[Any, Any, None]],
    ) -> None:
        """`answer` takes a request and its size in bytes, and sends every reply to it.

        Its tasks begin in the order of the requests.
        """
        self._admission, self._stream, self._replies, self._answer = admission, stream, replies, answer
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._waiters = deque[asyncio.Future[None]]()
        self._requests = self._bytes = self._unwritten = 0
        self._over = self._stuck = False

    async def run(self, requests: RequestStream[Q]) -> None:
        """Reads and answers all requests.

        An error of reading, or the error that the stream is ended with, is raised once all requests that were read are
        answered; an error of answering ends the other requests.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                # Never cancelled: grpcio would lose the part of a request that has arrived. It ends with its call.
                reading = asyncio.ensure_future(self._read(requests, tasks))
                reading.add_done_callback(unheeded)
                error: BaseException | None = await self._stream.ended(reading)
        except ExceptionGroup as failed:
            error = failed.exceptions[0]
        finally:
            self._over = True
            self._changed.set()
        if error is not None:
            await asyncio.wait([reading], timeout=LAST_READ_SECONDS)
            raise error

    async def send(self, reply: bytes, *, after: asyncio.Event | None = None) -> None:
        """Writes a reply, once `after` is set; returns when it has been taken.

        Raises NotRead; CancelledError where an earlier reply was not taken.
        """
        self._count_unwritten(len(reply))
        try:
            if after is not None:
                await after.wait()
            async with self._writing:
                await self._write(reply)
        finally:
            self._count_unwritten(-len(reply))

    async def wait_for_another(self) -> bool:
        """Waits until another request of this stream has been answered; False at once where none is in progress.

        A request calls it after a refusal for lack of room: the room may be taken by its own stream.
        """
        if self._requests - len(self._waiters) <= 1:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
        return True

    async def _write(self, reply: bytes) -> None:
        if self._stuck:  # the stream is about to end
            raise asyncio.CancelledError
        seconds = self._admission.bounds.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._replies.write(reply)
        except BaseException as raised:
            self._stuck = True
            self._stream.results.force(size := len(reply))
            self._replies.at_end(lambda _: self._stream.results.let_go(size))
            if isinstance(raised, TimeoutError):
                raise NotRead(f"no reply was read for {seconds:g} s") from None
            raise

    def _count_unwritten(self, change: int) -> None:
        self._unwritten += change
        self._stream.results.force(change)
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
        return self._requests >= REQUESTS or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES

    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        """Begins to answer a request, unless another task has failed, which ends the stream."""
        work = self._answer(request, size)
        try:
            task = tasks.create_task(work)
        except RuntimeError:
            work.close()
            return
        self._requests, self._bytes = self._requests + 1, self._bytes + size
        task.add_done_callback(partial(self._end, size))

    def _end(self, size: int, _: object) -> None:
        """Counts a request as answered and wakes one that waits for that."""
        self._requests, self._bytes = self._requests - 1, self._bytes - size
        self._changed.set()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # its request was cancelled, with the stream
                waiter.set_result(None)
                return
