"""Answers that wait to be sent to one frontend. Makes messages; knows no gRPC, no scheduler and no torch."""

import asyncio
from collections import deque
from collections.abc import Callable

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.leading_piece import LeadingPiece, led_by
from shared.codec.load import load_to_pb
from shared.codec.results import Sending
from shared.errors import SelvageError
from shared.jobs import JobResult
from shared.load import Load

SMALL_BYTES = 64 * 1024
"""Answers up to this size go whole into the next message; larger ones take turns."""
PIECE_BYTES = 1000 * 1024
"""Of small answers, and of a large one, in a message: half a millisecond of an event loop. A mebibyte would be a large
block of memory for a frontend, which gives such back and pays for each page when it gets it again."""
BUSY_BEAT, IDLE_BEAT = 0.1, 1.0
"""Seconds after which the load is told though there is no answer."""


class Outbox:
    """Small answers leave with the next message, together; a piece of one large answer leads each message."""

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

    async def message(self) -> bytes:
        """The next message: as soon as there is an answer, or when it is time to tell the load again."""
        if not self._filled.is_set():
            try:
                async with asyncio.timeout(BUSY_BEAT if self._load().queued_jobs else IDLE_BEAT):
                    await self._filled.wait()
            except TimeoutError:
                return pb.AttachResponse(load=load_to_pb(self._load())).SerializeToString()
        return self._filled_message()

    def _filled_message(self) -> bytes:
        message, room = pb.AttachResponse(), PIECE_BYTES
        while self._small and room > 0:
            small = self._small.popleft()
            room -= small.left
            self._take(small, message)
        leading = self._piece(message) if self._large else None
        if self.empty:
            self._filled.clear()
        message.load.CopyFrom(load_to_pb(self._load()))
        rest = message.SerializeToString()
        return rest if leading is None else led_by(leading, rest)

    def _piece(self, message: pb.AttachResponse) -> LeadingPiece:
        """Of a large answer, to be sent before `message`, which takes what is left where that is little."""
        large = self._large.popleft()
        piece = large.piece(PIECE_BYTES)
        self.unsent -= len(piece.data)
        if large.left <= SMALL_BYTES:
            self._take(large, message)
        else:
            self._large.append(large)
        return piece

    def _take(self, sending: Sending, message: pb.AttachResponse) -> None:
        """All that is left of an answer, which is little."""
        self.unsent -= sending.left
        sending.take(message, SMALL_BYTES)
