"""The outcomes that wait to be sent to frontends, the messages that carry them, and how much may wait.

Knows no gRPC and no torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

from gpu_worker.schedule.load import RecentWork
from selvage.worker.v1 import worker_pb2 as pb
from shared.errors import SelvageError
from shared.jobs import JobResult
from shared.link_codec import FRAME_BYTES, LeadingPiece, UnsentOutcome, led_by, load_to_pb
from shared.load import REPORT_SECONDS, Load

OUTCOMES_BYTES = 1000 * 1024
"""Most bytes of outcomes in a message: half a millisecond of an event loop.

With the load beside them a message stays below a mebibyte. A frontend would allocate a mebibyte as a large block of
memory, which is returned to the system each time, and pay for each page when it is allocated again."""
SMALL_BYTES = 64 * 1024
"""An outcome with at most so many bytes of vectors and scores is sent whole; larger ones are sent a piece at a time."""
IDLE_BEAT = 1.0
"""Seconds after which the load is sent though there is no outcome, while no job is queued; else REPORT_SECONDS."""
UNSENT_BYTES = 64 * 1024 * 1024
"""Most unsent bytes of one frontend, however few the others have."""


class Outbox:
    """The outcomes that wait to be sent to one frontend.

    Each message may begin with a piece of a large outcome, and large outcomes take turns. As many small ones follow as
    the message has bytes free for.
    """

    def __init__(self, load: Callable[[], Load]) -> None:
        """`load`: reads the worker's load, which every message carries."""
        self._load = load
        self._small: deque[UnsentOutcome] = deque()
        self._large: deque[UnsentOutcome] = deque()
        self._filled = asyncio.Event()
        self._has_work = True  # by the load that was sent last
        self._beat: asyncio.TimerHandle | None = None  # looks whether the load is due
        self._due = inf  # when the load is sent though there is no outcome
        self.unsent = 0
        """Most bytes that the waiting outcomes take in messages."""

    def add_outcome(self, job_id: int, outcome: JobResult | SelvageError) -> None:
        """Adds the outcome of a job."""
        unsent = UnsentOutcome(job_id, outcome)
        self.unsent += unsent.size
        (self._small if unsent.left <= SMALL_BYTES else self._large).append(unsent)
        self._filled.set()

    @property
    def empty(self) -> bool:
        """Whether every outcome has left."""
        return not (self._small or self._large)

    async def next_message(self) -> bytes:
        """Returns the next message: as soon as there is an outcome, or when it is time to send the load again."""
        if not self._filled.is_set():
            self._due = inf
            self._report_within(REPORT_SECONDS if self._has_work else IDLE_BEAT)
            await self._filled.wait()
        return self._message_of_outcomes()

    def hasten_report(self) -> None:
        """Has the load sent within REPORT_SECONDS, since the worker has work again."""
        self._has_work = True
        self._report_within(REPORT_SECONDS)

    def close(self) -> None:
        """Sends no load any more."""
        if self._beat is not None:
            self._beat.cancel()

    def _report_within(self, seconds: float) -> None:
        """Has the load sent within so many seconds, unless it is due sooner."""
        loop = asyncio.get_running_loop()
        self._due = min(self._due, loop.time() + seconds)
        if self._beat is None or self._beat.when() > self._due:  # an earlier one looks again: most never have to
            self.close()
            self._beat = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Has the load sent if it is due, else looks again when it is."""
        self._beat = None
        if self._due > asyncio.get_running_loop().time():
            self._beat = asyncio.get_running_loop().call_at(self._due, self._look)
        else:
            self._filled.set()

    def _message_of_outcomes(self) -> bytes:
        """Makes a message with at most `OUTCOMES_BYTES` of outcomes. Small and large ones can each use half of it.

        Only an outcome whose lengths alone need more makes a larger message.
        """
        message, leading, half = pb.AttachResponse(), None, OUTCOMES_BYTES // 2
        free = OUTCOMES_BYTES
        if self._small:  # whatever its size, else it would wait for ever
            free = self._add_whole(self._small.popleft(), message, free)
        free = self._add_small(message, free - half) + half
        if self._large:
            leading, free = self._leading_piece(message, free)
        self._add_small(message, free)
        if self.empty:
            self._filled.clear()
        load = self._load()
        self._has_work = load.queued_jobs > 0
        message.load.CopyFrom(load_to_pb(load))
        serialized = message.SerializeToString()
        return serialized if leading is None else led_by(leading, serialized)

    def _leading_piece(self, message: pb.AttachResponse, free: int) -> tuple[LeadingPiece, int]:
        """Takes a piece of a large outcome, which is to stand before `message`. Returns it and the bytes that are free.

        The rest of the outcome goes into `message` too where it is small and fits.
        """
        large = self._large.popleft()
        piece = large.take_piece(max(free - FRAME_BYTES - large.frame, SMALL_BYTES))
        self.unsent -= len(piece.data)
        free -= FRAME_BYTES + len(piece.data)
        if large.left > SMALL_BYTES:
            self._large.append(large)
        elif large.size <= free:
            free = self._add_whole(large, message, free)
        else:
            self._small.append(large)
        return piece, free

    def _add_small(self, message: pb.AttachResponse, free: int) -> int:
        """Adds the small outcomes that fit, the oldest first. Returns the bytes that are free."""
        while self._small and self._small[0].size <= free:
            free = self._add_whole(self._small.popleft(), message, free)
        return free

    def _add_whole(self, unsent: UnsentOutcome, message: pb.AttachResponse, free: int) -> int:
        """Adds all that is left of an outcome to the message. Returns the bytes that are free."""
        size = unsent.size
        self.unsent -= size
        unsent.add_part(message, SMALL_BYTES)
        return free - size


class Outboxes:
    """The outboxes of all attached frontends, and a limit for what they hold together.

    Above it only frontends with more than an even share have too much, so one that reads goes on whatever others do.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: most unsent bytes of all frontends together."""
        self._limit = limit
        self._outboxes: set[Outbox] = set()
        self.work = RecentWork()
        """What all frontends lately sent."""

    @property
    def unsent(self) -> int:
        """Unsent bytes of all frontends. May be read from other threads."""
        return sum([outbox.unsent for outbox in tuple(self._outboxes)])

    def add(self, outbox: Outbox) -> None:
        """Adds the outbox of a frontend that attached."""
        self._outboxes.add(outbox)

    def remove(self, outbox: Outbox) -> None:
        """Removes the outbox of a frontend that has gone."""
        self._outboxes.discard(outbox)
        outbox.close()

    def hasten_reports(self) -> None:
        """Has all frontends told soon that the worker has work again."""
        for outbox in self._outboxes:
            outbox.hasten_report()

    def has_too_much(self, outbox: Outbox) -> bool:
        """Whether nothing more may be computed for a frontend until it reads."""
        unsent = outbox.unsent
        # This is called for every answer, so the sum is taken only where it matters.
        return unsent > UNSENT_BYTES or (unsent > self._even_share and self.unsent > self._limit)

    def may_resume(self, outbox: Outbox) -> bool:
        """Whether a frontend that had too much may go on: at half its bound, so that it does not stop at once again."""
        return outbox.unsent <= min(UNSENT_BYTES, self._even_share) / 2

    @property
    def _even_share(self) -> float:
        return self._limit / max(1, len(self._outboxes))
