"""A stream both ways: requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from shared.admission import Admission
from shared.errors import DeadlineExceeded, SelvageError

REQUESTS, REQUEST_BYTES = 1024, 256 * 1024
"""Of a stream that are answered at once: some steps' worth of tokens, whatever a request holds. One always may."""
UNWRITTEN_BYTES = 8 * 1024 * 1024
"""Of replies that wait for their reader; above it no request of the stream is begun."""
SMALL_REPLY = 64 * 1024
"""Bytes; such replies are not counted among those of all callers that are not read yet."""

Q = TypeVar("Q")


class Streaming:
    """One stream. What it holds is bounded, so whoever does not read is not read from, and nobody else waits."""

    def __init__(self, admission: Admission, write: Callable[[bytes], Awaitable[None]]) -> None:
        """`write` returns when the transport has taken a reply; it is never called twice at once."""
        self._admission, self._write = admission, write
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._requests = self._bytes = self._unwritten = 0

    async def run(
        self, requests: AsyncIterator[Q], size: Callable[[Q], int], answer: Callable[[Q], Awaitable[None]]
    ) -> None:
        """Until all requests are answered; `answer` sends every reply of one.

        Raises what reading raises, once all before it are answered, and at once what `answer` does.
        """
        broken: SelvageError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                while broken is None:
                    await self._room()
                    try:
                        request = await anext(requests)
                    except StopAsyncIteration:
                        break
                    except SelvageError as error:
                        broken = error
                        break
                    self._requests, self._bytes = self._requests + 1, self._bytes + size(request)
                    tasks.create_task(self._one(request, size, answer))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        if broken is not None:
            raise broken

    def hold(self, reply: bytes) -> Callable[[], None]:
        """Counts a large reply until what this returns is called. Raises Overloaded where callers read too little."""
        return self._admission.hold_reply(len(reply)) if len(reply) > SMALL_REPLY else uncounted

    async def send(self, reply: bytes, is_read: Callable[[], None]) -> None:
        """Returns when the reply has been taken; `is_read`: see `hold`. Raises DeadlineExceeded where nobody reads."""
        self._unwritten += len(reply)
        try:
            async with self._writing:
                async with asyncio.timeout(self._admission.bounds.read_seconds):
                    await self._write(reply)
        except TimeoutError:
            seconds = self._admission.bounds.read_seconds
            raise DeadlineExceeded(f"no reply was read for {seconds:g} s") from None
        finally:
            self._unwritten -= len(reply)
            self._changed.set()
            is_read()

    async def _one(self, request: Q, size: Callable[[Q], int], answer: Callable[[Q], Awaitable[None]]) -> None:
        try:
            await answer(request)
        finally:
            self._requests, self._bytes = self._requests - 1, self._bytes - size(request)
            self._changed.set()

    async def _room(self) -> None:
        """Returns when another request may be begun."""
        while self._requests >= REQUESTS or self._bytes >= REQUEST_BYTES or self._unwritten >= UNWRITTEN_BYTES:
            self._changed.clear()
            await self._changed.wait()


def uncounted() -> None:
    """Of a small reply."""
