"""One attached frontend: its messages become jobs, and outcomes become messages. Knows no torch and no transport."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from gpu_worker.link.outbox import Outbox
from gpu_worker.link.unsent import UnsentLimit
from gpu_worker.schedule.admission import RecentWork
from selvage.worker.v1 import worker_pb2 as pb
from shared import own_time
from shared.codec.jobs import jobs_from_pb
from shared.codec.wire import MESSAGE_ENTRIES
from shared.errors import InvalidInput, SelvageError, WorkerUnavailable, clip
from shared.jobs import Job, JobResult
from shared.load import Load
from shared.offload import offload
from shared.telemetry.figures import ObserveJob
from shared.traceparent import trace_id

WRITE_SECONDS = 30.0
"""Seconds after which a frontend that reads nothing is detached."""
JOBS_IN_A_ROW = 64
"""Jobs of a message that are submitted in a row before other tasks may use the event loop."""

log = structlog.get_logger("link")


def unchecked(job: Job) -> None:
    """Takes every job."""


def unnoticed(error: InvalidInput) -> None:
    """Takes no notice of an error, which the frontend is told in any case."""


def unknown_to_others() -> None:
    """Tells no other frontend."""


class JobLoop(Protocol):
    """The worker's loop as an attachment sees it; see `Driver`."""

    @property
    def load(self) -> Load: ...
    @property
    def idle(self) -> bool: ...
    def submit(
        self, job: Job, on_outcome: Callable[[JobResult | SelvageError], None], *, wake: bool = True
    ) -> None: ...
    def wake(self) -> None: ...
    def cancel(self, ids: Iterable[int]) -> None: ...
    def set_aside(self, ids: Iterable[int]) -> None: ...
    def bring_back(self, ids: Iterable[int]) -> None: ...


class Attachment:
    """Answers every job of one frontend exactly once, unless the job is cancelled or the frontend has gone."""

    def __init__(
        self,
        loop: JobLoop,
        fingerprint: str,
        threads: Executor,
        unsent_limit: UnsentLimit,
        *,
        log_jobs: bool,
        on_job: Sequence[ObserveJob] = (),
        name: str = "a frontend",
        check: Callable[[Job], None] = unchecked,
        on_wrong: Callable[[InvalidInput], None] = unnoticed,
        work: RecentWork | None = None,
        on_work: Callable[[], None] = unknown_to_others,
    ) -> None:
        """`fingerprint`: identifies the model that is served. `threads`: parse large messages.

        `name`: the frontend's, for errors of jobs that make no sense. `check`: raises InvalidInput for a job that asks
        for too much. `on_wrong` is called with every InvalidInput of a job: a frontend should send none of these.
        `unsent_limit`: shared by all attachments. `log_jobs`: whether each job is logged. `on_job`: callbacks for each
        job that is answered or refused. `work`: counts what all frontends send. `on_work` is called with the first
        job of a worker that had none.
        """
        self._loop, self._fingerprint, self._threads, self._log_jobs = loop, fingerprint, threads, log_jobs
        self._on_job, self._name, self._check, self._on_wrong = on_job, name, check, on_wrong
        self._outbox = Outbox(lambda: self.load)
        self._work, self._own_work = work or RecentWork(), RecentWork()
        self._on_work, self._unsent_limit = on_work, unsent_limit
        unsent_limit.add_outbox(self._outbox)
        self._unanswered: set[int] = set()
        self._writing = False
        self._may_receive = asyncio.Event()
        self._may_receive.set()

    @property
    def load(self) -> Load:
        """The worker's load, as this frontend is told it."""
        load, now = self._loop.load, asyncio.get_running_loop().time()
        others = max(0.0, self._work.rate(now) - self._own_work.rate(now))
        return replace(load, others=min(1.0, others / load.tokens_per_second) if load.tokens_per_second else 0.0)

    @property
    def idle(self) -> bool:
        """Whether every job is answered and every outcome has left."""
        return not (self._unanswered or self._writing) and self._outbox.empty

    def hasten_report(self) -> None:
        """Has the frontend told soon that the worker has work again."""
        self._outbox.hasten_report()

    async def receive(self, request: pb.AttachRequest, size: int) -> None:
        """Cancels and submits the jobs of a message of `size` bytes. Waits while too much is unsent.

        Raises InvalidInput.
        """
        if request.HasField("hello"):
            raise InvalidInput("only the first message has a hello", field="hello")
        if len(request.cancels) > MESSAGE_ENTRIES:
            raise InvalidInput(f"a message names more than {MESSAGE_ENTRIES} jobs", field="cancels")
        if request.cancels:  # else it would wake the loop
            self._cancel(request.cancels)
        if not request.jobs:
            return
        await self._may_receive.wait()
        jobs = await offload(self._threads, size, self._checked_jobs, request)
        if request.fingerprint != self._fingerprint:
            error = another_model(request.fingerprint, self._fingerprint)
            for identity, _ in jobs:
                self._add_outcome(identity, error)
            return
        try:
            for index, (identity, job) in enumerate(jobs, start=1):
                self._submit(identity, job)
                if index % JOBS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        finally:
            self._loop.wake()  # now, so that a worker without work begins with a step of them all

    async def send(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes outcomes and the load for ever. Raises WorkerUnavailable when nobody reads them."""
        while True:
            message = await self._outbox.next_message()
            self._writing = True
            try:
                async with own_time.limit(WRITE_SECONDS):
                    await write(message)
            except TimeoutError:
                raise WorkerUnavailable(f"nothing was read for {WRITE_SECONDS:g} s") from None
            self._writing = False
            if not self._may_receive.is_set() and self._unsent_limit.may_resume(self._outbox):
                self._loop.bring_back(self._unanswered)
                self._may_receive.set()

    def close(self) -> None:
        """Cancels all jobs of the frontend, which has gone."""
        self._loop.cancel(self._unanswered)
        self._unanswered.clear()
        self._unsent_limit.remove_outbox(self._outbox)

    def _cancel(self, ids: Iterable[int]) -> None:
        unanswered = self._unanswered.intersection(ids)
        self._loop.cancel(unanswered)
        self._unanswered -= unanswered

    def _checked_jobs(self, request: pb.AttachRequest) -> list[tuple[int, Job | SelvageError]]:
        """The jobs of a message, or what is wrong with each."""
        checked: list[tuple[int, Job | SelvageError]] = []
        for identity, job in jobs_from_pb(request):
            try:
                if isinstance(job, Job):
                    self._check(job)
                checked.append((identity, job))
            except InvalidInput as error:
                checked.append((identity, error))
        return checked

    def _submit(self, identity: int, job: Job | SelvageError) -> None:
        if isinstance(job, SelvageError):
            self._refuse(identity, job)
            return
        idle = self._loop.idle
        try:
            self._loop.submit(job, partial(self._end_job, job), wake=False)
        except SelvageError as error:
            self._notify(job, error)
            self._refuse(identity, error)
        else:
            self._unanswered.add(identity)
            for work in (self._work, self._own_work):
                work.add(job.tokens.total, asyncio.get_running_loop().time())
            if idle:
                self._on_work()
            if not self._may_receive.is_set():  # outcomes filled the outbox while this message was submitted
                self._loop.set_aside([identity])

    def _refuse(self, identity: int, error: SelvageError) -> None:
        """Answers a job with an error; one that makes no sense with the name of the frontend that sent it."""
        if isinstance(error, InvalidInput):
            self._on_wrong(error)
            error = type(error)(f"{error.message} (sent by {self._name})", field=error.field)
        self._add_outcome(identity, error)

    def _end_job(self, job: Job, outcome: JobResult | SelvageError) -> None:
        if isinstance(outcome, SelvageError) and not isinstance(outcome, InvalidInput):
            log.warning("job failed", **_ids_for_log(job), reason=outcome.reason)
        elif self._log_jobs and isinstance(outcome, JobResult):
            times = {"queue": outcome.queue, "compute": outcome.compute}
            milliseconds = {name: round(seconds * 1e3, 2) for name, seconds in times.items()}
            log.info("job", **_ids_for_log(job), tokens=job.tokens.total, milliseconds=milliseconds)
        self._notify(job, outcome)
        self._unanswered.discard(job.id)
        self._add_outcome(job.id, outcome)

    def _add_outcome(self, identity: int, outcome: JobResult | SelvageError) -> None:
        """Adds an outcome to the outbox. Where too much is unsent then, computes nothing until the frontend reads."""
        self._outbox.add_outcome(identity, outcome)
        if self._may_receive.is_set() and self._unsent_limit.is_exceeded(self._outbox):
            log.warning("answers are not read", unsent_bytes=self._outbox.unsent, jobs_set_aside=len(self._unanswered))
            self._loop.set_aside(self._unanswered)
            self._may_receive.clear()

    def _notify(self, job: Job, outcome: JobResult | SelvageError) -> None:
        for callback in self._on_job:
            callback(job, outcome)


def _ids_for_log(job: Job) -> dict[str, str]:
    """The ids by which a job is found in logs and traces."""
    ids = {"request_id": job.request_id}
    return ids | {"trace_id": trace_id(job.traceparent)} if job.traceparent else ids


def another_model(requested: str, served: str) -> WorkerUnavailable:
    """The error for jobs of another model, whose vectors must never be mixed with those of the model served."""
    return WorkerUnavailable(
        f"this worker's model has the fingerprint {served}, the request was made for {clip(requested)}", retry_after=1.0
    )
