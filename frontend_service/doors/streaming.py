"""A stream both ways: requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from shared.admission import Admission
from shared.admission.reads import unheeded
from shared.admission.streams import OpenStream
from shared.errors import DeadlineExceeded, SelvageError

REQUESTS, REQUEST_BYTES = 256, 256 * 1024
"""Of a stream that are answered at once: some steps' worth of tokens, whatever a request holds. One always may."""
UNWRITTEN_BYTES = 8 * 1024 * 1024
"""Of replies that wait for their reader; above it no request of the stream is begun."""
HEARD_OUT = 0.1
"""Seconds before a stream ends with an error: grpc.aio tells a caller that still writes INTERNAL instead."""

Q = TypeVar("Q")


class NotRead(DeadlineExceeded):
    """The caller took no reply for too long; the whole stream ends."""


class Streaming(Generic[Q]):
    """One stream. What it holds is bounded, so whoever does not read is not read from, and nobody else waits."""

    def __init__(
        self,
        admission: Admission,
        size: Callable[[Q], int],
        answer: Callable[[Q], Awaitable[None]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`size` of a request in bytes; `answer` sends every reply of one; `write` returns when a reply has been taken,
        and is never called twice at once."""
        self._admission, self._size, self._answer, self._write = admission, size, answer, write
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._waiting = deque[asyncio.Future[None]]()
        self._requests = self._bytes = self._unwritten = 0
        self._over = False

    async def run(self, stream: OpenStream, requests: AsyncIterator[Q]) -> None:
        """Until all requests are answered.

        Raises what reading raises, or that with which the stream is ended, once all that was read is answered, and at
        once what `answer` does.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                # Never cancelled: grpcio would lose what has come of a request. It ends with its call.
                reading = asyncio.ensure_future(self._read(stream, requests, tasks))
                reading.add_done_callback(unheeded)
                try:
                    error = await stream.ended(reading)
                finally:
                    self._over = True
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if error is not None:
            await asyncio.wait([reading], timeout=HEARD_OUT)
            raise error

    async def send(self, reply: bytes) -> None:
        """Returns when the reply has been taken. Raises NotRead."""
        self._unwritten += len(reply)
        try:
            async with self._writing:
                async with asyncio.timeout(self._admission.bounds.read_seconds):
                    await self._write(reply)
        except TimeoutError:
            raise NotRead(f"no reply was read for {self._admission.bounds.read_seconds:g} s") from None
        finally:
            self._unwritten -= len(reply)
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

    async def _read(
        self, stream: OpenStream, requests: AsyncIterator[Q], tasks: asyncio.TaskGroup
    ) -> SelvageError | None:
        """Begins all requests; the error of the one that cannot be read. Once it is over, what comes is let go."""
        while True:
            if not self._over:
                await self._room()
            try:
                with self._admission.streams.reading(stream):
                    request = await anext(requests)
            except StopAsyncIteration:
                return None
            except SelvageError as error:
                return error
            await self._admission.stream_requests.acquire()
            if self._over or stream.ending:
                self._admission.stream_requests.release()
                continue
            self._requests, self._bytes = self._requests + 1, self._bytes + self._size(request)
            tasks.create_task(self._one(request))
            del request

    async def _one(self, request: Q) -> None:
        try:
            await self._answer(request)
        finally:
            self._requests, self._bytes = self._requests - 1, self._bytes - self._size(request)
            self._admission.stream_requests.release()
            self._changed.set()
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # its request was cancelled, with the stream
                waiter.set_result(None)
                return

    async def _room(self) -> None:
        """Returns when another request may be begun."""
        while self._requests >= REQUESTS or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES:
            self._changed.clear()
            await self._changed.wait()
