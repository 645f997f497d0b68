"""Answers that wait to be sent to one frontend. Makes messages; knows no gRPC, no scheduler and no torch."""

import asyncio
from collections import deque
from collections.abc import Callable

from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import SelvageError
from shared.jobs import JobResult
from shared.load import Load
from shared.load_codec import load_to_pb
from shared.result_codec import Sending

SMALL_BYTES = 64 * 1024
"""Answers up to this size go whole into the next message; larger ones take turns."""
PIECE_BYTES = 1024 * 1024
"""Of small answers, and of a large one, in a message: a third of a millisecond of an event loop."""
BUSY_BEAT, IDLE_BEAT = 0.1, 1.0
"""Seconds after which the load is told though there is no answer."""


class Outbox:
    """Small answers leave with the next message, together; each message also takes a piece of one large answer."""

    def __init__(self, load: Callable[[], Load]) -> None:
        """`load`: told with every message."""
        self._load = load
        self._small: deque[Sending] = deque()
        self._large: deque[Sending] = deque()
        self._filled = asyncio.Event()
        self.unsent = 0

    def put(self, job_id: int, outcome: JobResult | SelvageError) -> None:
        """Takes the one answer of a job."""
        sending = Sending(job_id, outcome)
        self.unsent += sending.left
        (self._small if sending.left <= SMALL_BYTES else self._large).append(sending)
        self._filled.set()

    @property
    def empty(self) -> bool:
        """Whether every answer has left."""
        return not (self._small or self._large)

    async def message(self) -> pb.AttachResponse:
        """The next message: as soon as there is an answer, or when it is time to tell the load again."""
        if not self._filled.is_set():
            try:
                async with asyncio.timeout(BUSY_BEAT if self._load().queued_jobs else IDLE_BEAT):
                    await self._filled.wait()
            except TimeoutError:
                return pb.AttachResponse(load=load_to_pb(self._load()))
        return self._filled_message()

    def _filled_message(self) -> pb.AttachResponse:
        message, room = pb.AttachResponse(), PIECE_BYTES
        while self._small and room > 0:
            room -= self._take(self._small.popleft(), message, SMALL_BYTES)
        if self._large:
            large = self._large.popleft()
            self._take(large, message, PIECE_BYTES)
            if large.left:
                self._large.append(large)
        if self.empty:
            self._filled.clear()
        message.load.CopyFrom(load_to_pb(self._load()))
        return message

    def _take(self, sending: Sending, message: pb.AttachResponse, room: int) -> int:
        before = sending.left
        sending.take(message, room)
        self.unsent -= before - sending.left
        return before - sending.left
