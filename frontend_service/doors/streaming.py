"""A stream whose requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from frontend_service.doors.both_ways import BothWays
from shared.admission import Admission
from shared.admission.streams import OpenStream

REQUESTS = 256
"""Of a stream that are answered at once, whatever they hold."""

Q = TypeVar("Q")


class Streaming(BothWays[Q]):
    """One stream; each request is answered by itself."""

    def __init__(
        self,
        admission: Admission,
        size: Callable[[Q], int],
        answer: Callable[[Q], Awaitable[None]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`answer` sends every reply of a request; others as in `BothWays`."""
        super().__init__(admission, REQUESTS, size, write)
        self._answer = answer
        self._waiting = deque[asyncio.Future[None]]()

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

    async def _begin(self, stream: OpenStream, request: Q, tasks: asyncio.TaskGroup) -> None:
        await self._admission.stream_requests.acquire()
        if self._ends(stream):
            self._admission.stream_requests.release()
            return
        self._holds(self._size(request))
        tasks.create_task(self._one(request))

    async def _one(self, request: Q) -> None:
        try:
            await self._answer(request)
        finally:
            self._answered(1, self._size(request))
            self._admission.stream_requests.release()
            if self._waiting:
                self._waiting.popleft().set_result(None)
