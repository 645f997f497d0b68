"""An open stream to one worker: jobs of many callers leave together, answers come back in parts. Knows no models."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.jobs import job_bytes, jobs_to_pb
from shared.codec.leading_piece import leading_piece
from shared.codec.load import load_from_pb
from shared.codec.results import ResultAssembly
from shared.errors import GivenBack, LimitExceeded, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.load import SHORT, Load
from shared.offload import THREAD_BYTES, offload
from shared.server.rpc import MESSAGE_BYTES
from shared.server.rpc.status import to_domain_error
from shared.together import either

MESSAGE_JOBS = 1024
"""Jobs of one message; what is more goes into the next."""
SILENCE = 5.0
"""Seconds without a word after which a worker counts as lost; it speaks every second at least."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """A job that has no answer yet. `sent`: whether a message has taken it."""

    job: Job
    future: "asyncio.Future[ResultAssembly]"
    assembly: ResultAssembly
    sent: bool = False


class Stream:
    """Answers every job once: with its result, or with an error, at the latest when the stream breaks.

    Jobs that come while a message is being written go together into the next one. So a lone caller never waits, and
    many callers share the cost of a message.
    """

    def __init__(self, call: Any, fingerprint: str, threads: Executor, on_change: Callable[[], None]) -> None:
        """`call`: takes and gives bytes. `threads`: where large messages are made and read.

        `on_change` is called when the worker begins or ends to drain or to stall.
        """
        self._call, self._fingerprint, self._threads, self._on_change = call, fingerprint, threads, on_change
        self._waiting: dict[int, _Waiting] = {}
        self._outgoing: deque[_Waiting] = deque()
        self._large: deque[tuple[_Waiting, bytes]] = deque()
        self._cancelled: list[int] = []
        self._wake = asyncio.Event()
        self._over: SelvageError | None = None
        self.load = Load()
        self._unheard: dict[int, int] = {}
        self.keys: Counter[str] = Counter()

    def unheard(self, tokens: int) -> int:
        """At most what is served, of jobs that the worker's load cannot tell of yet, before one of so many tokens."""
        return sum([each if each < SHORT else min(each, tokens + self.load.turn) for each in self._unheard.values()])

    async def run(self, job: Job) -> JobResult:
        """Raises the job's own error, GivenBack or WorkerUnavailable. Cancelling it cancels the job."""
        if self._over is not None:
            raise _given_back(self._over)
        future: asyncio.Future[ResultAssembly] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[job.id] = _Waiting(job=job, future=future, assembly=ResultAssembly())
        tokens = job.tokens.total
        self._unheard[job.id] = tokens
        self.keys[job.key] += tokens
        try:
            if job_bytes(job) > THREAD_BYTES:
                payload = await offload(self._threads, job_bytes(job), partial(_serialise, self._fingerprint), job)
                if len(payload) > MESSAGE_BYTES:  # it would end the link, and with it everybody's jobs
                    raise LimitExceeded(
                        f"the request takes {len(payload)} bytes, a message has at most {MESSAGE_BYTES}"
                    )
                self._large.append((waiting, payload))
            else:
                self._outgoing.append(waiting)
            self._wake.set()
            assembly = await future
        except asyncio.CancelledError:
            if waiting.sent:
                self._cancelled.append(job.id)
                self._wake.set()
            raise
        finally:
            self._waiting.pop(job.id, None)
            self._unheard.pop(job.id, None)
            self.keys[job.key] -= tokens
            if self.keys[job.key] <= 0:
                del self.keys[job.key]
        return await offload(self._threads, assembly.size, ResultAssembly.result, assembly)

    async def serve(self) -> None:
        """Sends and receives until the stream breaks; then every job gets the error that this raises."""
        over: SelvageError = WorkerUnavailable("the link to the worker was closed", retry_after=1.0)
        try:
            await either(self._write(), self._read())
        except grpc.aio.AioRpcError as error:
            over = WorkerUnavailable(to_domain_error(error).message, retry_after=1.0)  # whatever ended it: not theirs
            raise over from None
        except SelvageError as error:
            over = error
            raise
        finally:
            self._over = over
            for waiting in self._waiting.values():
                if not waiting.future.done():
                    waiting.future.set_exception(over if waiting.sent else _given_back(over))

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outgoing or self._large or self._cancelled:
                if (batch := self._batch()) is not None:
                    await self._call.write(batch)
                if self._large:
                    waiting, payload = self._large.popleft()
                    if not waiting.future.done():
                        waiting.sent = True
                        await self._call.write(payload)

    def _batch(self) -> bytes | None:
        """What waits of cancels and small jobs."""
        jobs: list[Job] = []
        room = THREAD_BYTES
        while self._outgoing and room > 0 and len(jobs) < MESSAGE_JOBS:
            waiting = self._outgoing.popleft()
            if waiting.future.done():
                continue  # cancelled before it was sent
            waiting.sent = True
            jobs.append(waiting.job)
            room -= job_bytes(waiting.job)
        if not (jobs or self._cancelled):
            return None
        message = jobs_to_pb(jobs, self._fingerprint)
        message.cancels.extend(self._cancelled)
        self._cancelled.clear()
        return message.SerializeToString()

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    raw = await self._call.read()
            except TimeoutError:
                raise WorkerUnavailable(f"nothing was heard of it for {SILENCE:g} s", retry_after=1.0) from None
            if raw is grpc.aio.EOF:
                raise WorkerUnavailable("it ended the link", retry_after=1.0)
            message = self._message(raw)
            if message.HasField("load"):
                before, self.load = self.load, load_from_pb(message.load)
                self._unheard.clear()
                if (before.draining, before.stalled) != (self.load.draining, self.load.stalled):
                    self._on_change()
            for part in message.answers:
                self._take(part)

    def _message(self, raw: bytes) -> pb.AttachResponse:
        """The message without the piece that may lead it, which is taken."""
        found = leading_piece(raw)
        if found is None:
            return pb.AttachResponse.FromString(raw)
        piece, rest = found
        waiting = self._waiting.get(piece.job_id)
        if waiting is not None and not waiting.future.done():
            waiting.assembly.append(piece.kind, piece.data)
        return pb.AttachResponse.FromString(bytes(rest))

    def _take(self, part: pb.AnswerPart) -> None:
        waiting = self._waiting.get(part.job_id)
        if waiting is None or waiting.future.done():
            return  # cancelled meanwhile
        try:
            if waiting.assembly.add(part):
                waiting.future.set_result(waiting.assembly)
        except SelvageError as error:
            waiting.future.set_exception(error)


def _given_back(error: SelvageError) -> GivenBack:
    return GivenBack(error.message, retry_after=error.retry_after)


def _serialise(fingerprint: str, job: Job) -> bytes:
    return jobs_to_pb([job], fingerprint).SerializeToString()
