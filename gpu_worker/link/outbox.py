"""The outcomes that wait to be sent to one frontend, and the messages that carry them. No gRPC, loop or torch."""

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
"""Outcomes up to this size are not cut; larger ones take turns."""
PIECE_BYTES = 1000 * 1024
"""Bytes of small outcomes after which no further one is added to a message, and most bytes of its piece of a large one:
half a millisecond of an event loop each.

A frontend would allocate a mebibyte as a large block of memory, which is returned to the system each time, and pay for
each page when it is allocated again."""
BUSY_BEAT, IDLE_BEAT = 0.1, 1.0
"""Seconds after which the load is sent though there is no outcome, while jobs are queued and while none is."""


class Outbox:
    """Small outcomes leave together with the next message. Each message may begin with a piece of a large one."""

    def __init__(self, load: Callable[[], Load]) -> None:
        """`load`: reads the worker's load, which every message carries."""
        self._load = load
        self._small: deque[Sending] = deque()
        self._large: deque[Sending] = deque()
        self._filled = asyncio.Event()
        self.unsent = 0

    def add_outcome(self, job_id: int, outcome: JobResult | SelvageError) -> None:
        """Adds the outcome of a job."""
        sending = Sending(job_id, outcome)
        self.unsent += sending.left
        (self._small if sending.left <= SMALL_BYTES else self._large).append(sending)
        self._filled.set()

    @property
    def empty(self) -> bool:
        """Whether every outcome has left."""
        return not (self._small or self._large)

    async def next_message(self) -> bytes:
        """Returns the next message: as soon as there is an outcome, or when it is time to send the load again."""
        if not self._filled.is_set():
            try:
                async with asyncio.timeout(BUSY_BEAT if self._load().queued_jobs else IDLE_BEAT):
                    await self._filled.wait()
            except TimeoutError:
                return pb.AttachResponse(load=load_to_pb(self._load())).SerializeToString()
        return self._message_of_outcomes()

    def _message_of_outcomes(self) -> bytes:
        message, room = pb.AttachResponse(), PIECE_BYTES
        while self._small and room > 0:
            small = self._small.popleft()
            room -= small.left
            self._add_whole(small, message)
        leading = self._leading_piece(message) if self._large else None
        if self.empty:
            self._filled.clear()
        message.load.CopyFrom(load_to_pb(self._load()))
        rest = message.SerializeToString()
        return rest if leading is None else led_by(leading, rest)

    def _leading_piece(self, message: pb.AttachResponse) -> LeadingPiece:
        """A piece of a large outcome, to be sent before `message`. A small rest of it goes into `message`."""
        large = self._large.popleft()
        piece = large.piece(PIECE_BYTES)
        self.unsent -= len(piece.data)
        if large.left <= SMALL_BYTES:
            self._add_whole(large, message)
        else:
            self._large.append(large)
        return piece

    def _add_whole(self, sending: Sending, message: pb.AttachResponse) -> None:
        """Adds all that is left of an outcome to the message."""
        self.unsent -= sending.left
        sending.take(message, SMALL_BYTES)
