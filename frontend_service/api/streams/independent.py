"""A stream whose requests are answered as soon as they are done, in any order. Knows no messages and no gRPC."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from frontend_service.api.streams.two_way_stream import Replies, TwoWayStream
from shared.server.admission import Admission, OpenStream

REQUESTS = 256
"""Most requests that one stream has in progress, whatever their size."""

Q = TypeVar("Q")


class IndependentStream(TwoWayStream[Q]):
    """A stream that answers each request by itself."""

    def __init__(
        self,
        admission: Admission,
        stream: OpenStream,
        replies: Replies,
        answer: Callable[[Q, int], Coroutine[Any, Any, None]],
    ) -> None:
        """`answer` takes a request and its size in bytes, and sends every reply to it."""
        super().__init__(admission, stream, replies, REQUESTS)
        self._answer = answer
        self._waiters = deque[asyncio.Future[None]]()

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

    def _begin(self, request: Q, size: int, tasks: asyncio.TaskGroup) -> None:
        task = self._start_task(self._answer(request, size), tasks)
        if task is not None:
            self._count_begun(size)
            task.add_done_callback(partial(self._end, size))

    def _end(self, size: int, _: object) -> None:
        """Counts a request as answered and wakes one that waits for that."""
        self._count_answered(1, size)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # its request was cancelled, with the stream
                waiter.set_result(None)
                return
