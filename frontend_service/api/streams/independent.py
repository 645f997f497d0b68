"""A stream whose requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from frontend_service.api.streams.two_way_stream import Replies, TwoWayStream
from shared.server.admission import Admission
from shared.server.admission.streams import OpenStream

REQUESTS = 256
"""Of a stream that are answered at once, whatever they hold."""

Q = TypeVar("Q")


class IndependentStream(TwoWayStream[Q]):
    """One stream; each request is answered by itself."""

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        replies: Replies,
        answer: Callable[[Q, int], Coroutine[Any, Any, None]],
    ) -> None:
        """`answer` sends every reply of a request of so many bytes."""
        super().__init__(admission, stream, replies, REQUESTS)
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

    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        task = self._started(self._answer(request, size), tasks)
        if task is not None:
            self._holds(size)
            task.add_done_callback(partial(self._ended, size))

    def _ended(self, size: int, _: object) -> None:
        self._answered(1, size)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # its request was cancelled, with the stream
                waiter.set_result(None)
                return
