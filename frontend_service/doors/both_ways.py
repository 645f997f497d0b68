"""What all streams both ways have in common: how they read, write and end, and how much they hold. Knows no messages.

Beginning what was read is left to the kind of stream: `streaming.py` answers each request by itself, `coalescing.py`
those together that wait together.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from shared.admission import Admission
from shared.admission.reads import unheeded
from shared.admission.streams import OpenStream
from shared.errors import DeadlineExceeded, SelvageError

REQUEST_BYTES = 256 * 1024
"""Of a stream that are answered at once: some steps' worth of tokens. One request always may be."""
UNWRITTEN_BYTES = 8 * 1024 * 1024
"""Of replies that wait for their reader; above it no request of the stream is begun."""
HEARD_OUT = 0.1
"""Seconds before a stream ends with an error: grpc.aio tells a caller that still writes INTERNAL instead."""

Q = TypeVar("Q")


class NotRead(DeadlineExceeded):
    """The caller took no reply for too long; the whole stream ends."""


class BothWays(ABC, Generic[Q]):
    """One stream. What it holds is bounded, so whoever does not read is not read from, and nobody else waits."""

    def __init__(
        self,
        admission: Admission,
        requests: int,
        size: Callable[[Q], int],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`requests`: how many are answered at once; `size` of one in bytes; `write` returns when a reply has been
        taken, and is never called twice at once."""
        self._admission, self._most, self._size, self._write = admission, requests, size, write
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._requests = self._bytes = self._unwritten = 0
        self._over = False
        self._failed: SelvageError | None = None

    async def run(self, stream: OpenStream, requests: AsyncIterator[Q]) -> None:
        """Until all requests are answered.

        Raises what reading raises, or that with which the stream is ended, once all that was read is answered, and at
        once what answering does.
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
                    self._changed.set()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        error = self._failed or error
        if error is not None:
            await asyncio.wait([reading], timeout=HEARD_OUT)
            raise error

    async def send(self, *replies: bytes) -> None:
        """Returns when all have been taken, one after the other. Raises NotRead."""
        size = sum(map(len, replies))
        self._unwritten += size
        try:
            async with self._writing:
                for reply in replies:
                    async with asyncio.timeout(self._admission.bounds.read_seconds):
                        await self._write(reply)
        except TimeoutError:
            raise NotRead(f"no reply was read for {self._admission.bounds.read_seconds:g} s") from None
        finally:
            self._unwritten -= size
            self._changed.set()

    @abstractmethod
    async def _begin(self, stream: OpenStream, request: Q, tasks: asyncio.TaskGroup) -> None:
        """Has the request answered by one of `tasks`; calls `_holds` now and `_answered` when that is done."""

    def _ends(self, stream: OpenStream) -> bool:
        """Whether what comes is let go."""
        return self._over or stream.ending

    def _holds(self, size: int) -> None:
        """One request more, of so many bytes."""
        self._requests, self._bytes = self._requests + 1, self._bytes + size

    def _answered(self, requests: int, size: int) -> None:
        """So many less, of so many bytes together."""
        self._requests, self._bytes = self._requests - requests, self._bytes - size
        self._changed.set()

    async def _read(
        self, stream: OpenStream, requests: AsyncIterator[Q], tasks: asyncio.TaskGroup
    ) -> SelvageError | None:
        """Begins all requests; the error of the one that cannot be read. Once it is over, what comes is let go."""
        while True:
            await self._room()
            try:
                with self._admission.streams.reading(stream):
                    request = await anext(requests)
            except StopAsyncIteration:
                return None
            except SelvageError as error:
                return error
            if not self._ends(stream):
                await self._begin(stream, request, tasks)
            del request

    async def _room(self) -> None:
        """Returns when another request may be begun, or let go."""
        while not self._over and (
            self._requests >= self._most or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES
        ):
            self._changed.clear()
            await self._changed.wait()
