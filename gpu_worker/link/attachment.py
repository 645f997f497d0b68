"""One attached frontend: its messages become jobs, their answers become messages. Knows no torch and no transport."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

import structlog

from gpu_worker.link.outbox import Outbox
from gpu_worker.link.unread import Unread
from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.jobs import jobs_from_pb
from shared.errors import SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.load import Load
from shared.offload import offload
from shared.telemetry.figures import TellJob
from shared.telemetry.traceparent import trace_id

UNREAD_SECONDS = 30.0
"""After which a frontend that reads nothing is let go."""
BETWEEN_BREATHS = 64
"""Jobs that are taken before others get the event loop."""

log = structlog.get_logger("link")


class Jobs(Protocol):
    """Whoever computes jobs; see `scheduler.Scheduler`."""

    @property
    def load(self) -> Load: ...
    def submit(self, job: Job, tell: Callable[[JobResult | SelvageError], None]) -> None: ...
    def cancel(self, ids: Iterable[int]) -> None: ...
    def set_aside(self, ids: Iterable[int]) -> None: ...
    def bring_back(self, ids: Iterable[int]) -> None: ...


class Attachment:
    """Answers every job of one frontend once, unless it is cancelled or the frontend has gone."""

    def __init__(
        self,
        jobs: Jobs,
        fingerprint: str,
        threads: Executor,
        unread: Unread,
        *,
        log_jobs: bool,
        tell_job: Sequence[TellJob] = (),
    ) -> None:
        """`fingerprint`: of the model served. `threads`: where large messages are taken apart. `unread`: of everybody.
        `tell_job`: told of each job that is answered or refused.
        """
        self._jobs, self._fingerprint, self._threads, self._log_jobs = jobs, fingerprint, threads, log_jobs
        self._tell_job = tell_job
        self._outbox, self._unread = Outbox(lambda: jobs.load), unread
        unread.add(self._outbox)
        self._held: set[int] = set()
        self._writing = False
        self._room = asyncio.Event()
        self._room.set()

    @property
    def idle(self) -> bool:
        """Whether every job is answered and every answer has left."""
        return not (self._held or self._writing) and self._outbox.empty

    async def take(self, request: pb.AttachRequest) -> None:
        """Drops what is cancelled, takes the jobs. Waits while too much is unsent. Raises InvalidInput."""
        self._cancel(request.cancels)
        if not request.jobs:
            return
        await self._room.wait()
        if request.fingerprint != self._fingerprint:
            error = another_model(request.fingerprint, self._fingerprint)
            for refused in request.jobs:
                self._outbox.put(refused.id, error)
            return
        jobs = await offload(self._threads, request.ByteSize(), _listed, request)
        for index, (identity, job) in enumerate(jobs, start=1):
            self._submit(identity, job)
            if index % BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)

    async def send(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes answers and the load for ever. Raises WorkerUnavailable when nobody reads them."""
        while True:
            message = await self._outbox.message()
            self._writing = True
            try:
                async with asyncio.timeout(UNREAD_SECONDS):
                    await write(message)
            except TimeoutError:
                raise WorkerUnavailable(f"nothing was read for {UNREAD_SECONDS:g} s") from None
            self._writing = False
            if not self._room.is_set() and self._unread.has_little(self._outbox):
                self._jobs.bring_back(self._held)
                self._room.set()

    def close(self) -> None:
        """The frontend has gone: nobody waits for its jobs."""
        self._jobs.cancel(self._held)
        self._held.clear()
        self._unread.remove(self._outbox)

    def _cancel(self, ids: Iterable[int]) -> None:
        ours = self._held.intersection(ids)
        self._jobs.cancel(ours)
        self._held -= ours

    def _submit(self, identity: int, job: Job | SelvageError) -> None:
        if isinstance(job, SelvageError):
            self._outbox.put(identity, job)
            return
        try:
            self._jobs.submit(job, partial(self._answered, job))
        except SelvageError as error:
            self._tell(job, error)
            self._outbox.put(identity, error)
        else:
            self._held.add(identity)
            if not self._room.is_set():  # an answer filled it while this message was taken
                self._jobs.set_aside([identity])

    def _answered(self, job: Job, outcome: JobResult | SelvageError) -> None:
        if isinstance(outcome, SelvageError):
            log.warning("job failed", **_names(job), reason=outcome.reason)
        elif self._log_jobs:
            times = {"queue": outcome.queue, "compute": outcome.compute}
            milliseconds = {name: round(seconds * 1e3, 2) for name, seconds in times.items()}
            log.info("job", **_names(job), tokens=job.tokens.total, milliseconds=milliseconds)
        self._tell(job, outcome)
        self._held.discard(job.id)
        self._outbox.put(job.id, outcome)
        if self._room.is_set() and self._unread.has_too_much(self._outbox):
            log.warning("answers are not read", unsent_bytes=self._outbox.unsent, jobs_set_aside=len(self._held))
            self._jobs.set_aside(self._held)
            self._room.clear()

    def _tell(self, job: Job, outcome: JobResult | SelvageError) -> None:
        for tell in self._tell_job:
            tell(job, outcome)


def _names(job: Job) -> dict[str, str]:
    """Under which logs know it."""
    names = {"request_id": job.request_id}
    return names | {"trace_id": trace_id(job.traceparent)} if job.traceparent else names


def another_model(theirs: str, ours: str) -> WorkerUnavailable:
    """Vectors of two models must never be mixed."""
    return WorkerUnavailable(
        f"this worker's model has the fingerprint {ours}, the request was made for {theirs}", retry_after=1.0
    )


def _listed(request: pb.AttachRequest) -> list[tuple[int, Job | SelvageError]]:
    return list(jobs_from_pb(request))
