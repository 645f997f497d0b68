"""One attached frontend: its messages become jobs, and outcomes become messages; and what the log says of frontends.

Knows no torch and no transport.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import structlog

from gpu_worker.link.outbox import Outbox, Outboxes
from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.interface import ObserveJob
from gpu_worker.schedule.load import RecentWork
from selvage.worker.v1 import worker_pb2 as pb
from shared import reporting
from shared.caller import trace_id_of
from shared.errors import InvalidInput, SelvageError, WorkerUnavailable, clip
from shared.jobs import Job, JobResult
from shared.link_codec import jobs_from_pb
from shared.load import Load
from shared.tasks import offload, until_stuck
from shared.value_codec import MESSAGE_ENTRIES

WRITE_SECONDS = 30.0
"""Seconds after which a frontend that reads nothing is detached."""
JOBS_IN_A_ROW = 64
"""Jobs of a message that are submitted in a row before other tasks may use the event loop."""
REMEMBERED = 1000
"""Most frontends that are remembered after they went; of others a repetition is logged again."""

log = structlog.get_logger("link")


class Attachment:
    """Answers every job of one frontend exactly once, unless the job is cancelled or the frontend has gone."""

    def __init__(
        self,
        driver: Driver,
        fingerprint: str,
        threads: Executor,
        outboxes: Outboxes,
        frontend_log: "FrontendLog",
        name: str,
        check: Callable[[Job], None],
        *,
        on_job: Sequence[ObserveJob] = (),
    ) -> None:
        """`fingerprint`: identifies the model that is served. `threads`: parse large messages.

        `outboxes`, `frontend_log`: shared by all attachments. `name`: the frontend's, for errors of jobs that make no
        sense, and for the log. `check`: raises InvalidInput for a job that asks for too much. `on_job`: callbacks
        for each job that is answered or refused.
        """
        self._driver, self._fingerprint, self._threads = driver, fingerprint, threads
        self._on_job, self._name, self._check, self._frontend_log = on_job, name, check, frontend_log
        self._outbox, self._own_work = Outbox(lambda: self.load), RecentWork()
        self._outboxes = outboxes
        outboxes.add(self._outbox)
        self._unanswered: set[int] = set()
        self._reading = False
        self._written, self._writing = 0, False  # messages so far, and whether the last one is on its way
        self._may_receive = asyncio.Event()
        self._may_receive.set()

    @property
    def load(self) -> Load:
        """The worker's load, as this frontend is told it."""
        load, now = self._driver.load, asyncio.get_running_loop().time()
        if load.tokens_per_second:
            tokens_per_second = max(0.0, self._outboxes.work.rate(now) - self._own_work.rate(now))
            load.others = min(1.0, tokens_per_second / load.tokens_per_second)
        return load

    @property
    def idle(self) -> bool:
        """Whether every job that came is answered and every outcome has left."""
        return not (self._unanswered or self._reading or self._writing) and self._outbox.empty

    async def receive(self, request: pb.AttachRequest, size: int) -> None:
        """Cancels and submits the jobs of a message of `size` bytes. Waits while too much is unsent.

        Raises InvalidInput.
        """
        if request.HasField("hello"):
            raise InvalidInput("only the first message has a hello", field="hello")
        if len(request.cancels) > MESSAGE_ENTRIES:
            raise InvalidInput(f"a message names more than {MESSAGE_ENTRIES} jobs", field="cancels")
        if request.cancels:  # else it would wake the driver
            self._cancel(request.cancels)
        if not request.jobs:
            return
        self._reading = True  # a large message is read in a thread, and a drain waits for its jobs too
        try:
            await self._may_receive.wait()
            await self._submit_all(request, size)
        finally:
            self._reading = False

    async def _submit_all(self, request: pb.AttachRequest, size: int) -> None:
        jobs = await offload(self._threads, size, self._checked_jobs, request)
        if request.fingerprint != self._fingerprint:
            error = another_model(request.fingerprint, self._fingerprint)
            for identity, _ in jobs:
                self._add_outcome(identity, error)
            return
        try:
            for start in range(0, len(jobs), JOBS_IN_A_ROW):
                if start:
                    await asyncio.sleep(0)
                self._submit_row(jobs[start : start + JOBS_IN_A_ROW])
        finally:
            self._driver.wake()  # now, so that a worker without work begins with a step of them all

    def _submit_row(self, jobs: Sequence[tuple[int, Job | SelvageError]]) -> None:
        idle = self._driver.idle
        tokens = sum([self._submit(identity, job) for identity, job in jobs])
        if tokens:
            now = asyncio.get_running_loop().time()
            self._outboxes.work.add(tokens, now)
            self._own_work.add(tokens, now)
        if idle and not self._driver.idle:
            self._outboxes.hasten_reports()

    async def check_is_read(self) -> None:
        """Raises WorkerUnavailable once nobody reads what `send` writes."""
        await until_stuck(WRITE_SECONDS, lambda: self._written if self._writing else None)
        raise WorkerUnavailable(f"nothing was read for {WRITE_SECONDS:g} s")

    async def send(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes outcomes and the load for ever."""
        while True:
            message = await self._outbox.next_message()
            self._written, self._writing = self._written + 1, True
            await write(message)
            self._writing = False
            if not self._may_receive.is_set() and self._outboxes.may_resume(self._outbox):
                self._driver.bring_back(self._unanswered)
                self._may_receive.set()

    def close(self) -> None:
        """Cancels all jobs of the frontend, which has gone."""
        self._driver.cancel(self._unanswered)
        self._unanswered.clear()
        self._outboxes.remove(self._outbox)

    def _cancel(self, ids: Iterable[int]) -> None:
        unanswered = self._unanswered.intersection(ids)
        self._driver.cancel(unanswered)
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

    def _submit(self, identity: int, job: Job | SelvageError) -> int:
        """Submits a job, or refuses it. Returns the tokens that were accepted."""
        if isinstance(job, SelvageError):
            self._refuse(identity, job)
            return 0
        try:
            self._driver.submit(job, partial(self._end_job, job), wake=False)
        except SelvageError as error:
            self._notify(job, error)
            self._refuse(identity, error)
            return 0
        self._unanswered.add(identity)
        if not self._may_receive.is_set():  # outcomes filled the outbox while this message was submitted
            self._driver.set_aside([identity])
        return job.tokens.total

    def _refuse(self, identity: int, error: SelvageError) -> None:
        """Answers a job with an error; one that makes no sense with the name of the frontend that sent it."""
        if isinstance(error, InvalidInput):
            self._frontend_log.wrong(self._name, error)
            error = type(error)(f"{error.message} (sent by {self._name})", field=error.field)
        self._add_outcome(identity, error)

    def _end_job(self, job: Job, outcome: JobResult | SelvageError) -> None:
        if isinstance(outcome, SelvageError) and not isinstance(outcome, InvalidInput):
            log.warning("job failed", **_ids_for_log(job), reason=outcome.reason)
        elif isinstance(outcome, JobResult) and reporting.tells_debug():
            times = {"queue": outcome.queue, "compute": outcome.compute}
            milliseconds = {name: round(seconds * 1e3, 2) for name, seconds in times.items()}
            log.debug("job", **_ids_for_log(job), tokens=job.tokens.total, milliseconds=milliseconds)
        self._notify(job, outcome)
        self._unanswered.discard(job.id)
        self._add_outcome(job.id, outcome)

    def _add_outcome(self, identity: int, outcome: JobResult | SelvageError) -> None:
        """Adds an outcome to the outbox. Where too much is unsent then, computes nothing until the frontend reads."""
        self._outbox.add_outcome(identity, outcome)
        if self._may_receive.is_set() and self._outboxes.has_too_much(self._outbox):
            log.warning("answers are not read", unsent_bytes=self._outbox.unsent, jobs_set_aside=len(self._unanswered))
            self._driver.set_aside(self._unanswered)
            self._may_receive.clear()

    def _notify(self, job: Job, outcome: JobResult | SelvageError) -> None:
        for callback in self._on_job:
            callback(job, outcome)


def _ids_for_log(job: Job) -> dict[str, str]:
    """The ids by which a job is found in logs and traces."""
    ids = {"request_id": job.request_id}
    return ids | {"trace_id": trace_id_of(job.traceparent)} if job.traceparent else ids


def another_model(requested: str, served: str) -> WorkerUnavailable:
    """The error for jobs of another model, whose vectors must never be mixed with those of the model served."""
    return WorkerUnavailable(
        f"this worker's model has the fingerprint {served}, the request was made for {clip(requested)}", retry_after=1.0
    )


@dataclass(slots=True)
class _Frontend:
    """`attached`: whether the log says that it is. `expelled`: whether its last link was ended because of what it sent.
    `wrongs`: what was wrong so far.
    """

    attached: bool = False
    expelled: bool = False
    wrongs: set[tuple[str, str]] = field(default_factory=set)


class FrontendLog:
    """The lines about all frontends, by their names."""

    def __init__(self) -> None:
        self._frontends: OrderedDict[str, _Frontend] = OrderedDict()

    def attached(self, name: str) -> None:
        """Logs that a frontend attached, unless it was expelled before and comes again."""
        frontend = self._of(name)
        if not frontend.expelled:
            frontend.attached = True
            log.info("frontend attached", name=name)

    def detached(self, name: str) -> None:
        """Logs that a frontend has gone, even before it attached. Its errors are remembered, by its name with the
        process id."""
        self._gone(name).expelled = False

    def expelled(self, name: str, error: InvalidInput) -> None:
        """The link to a frontend was ended because of what it sent."""
        self.wrong(name, error)
        self._gone(name).expelled = True

    def wrong(self, name: str, error: InvalidInput) -> None:
        """A frontend sent what makes no sense; it is logged once for each kind of error and field."""
        wrongs, kind = self._of(name).wrongs, (error.reason, re.sub(r"\d+", "", error.field))
        if kind not in wrongs:
            wrongs.add(kind)
            log.warning("a frontend's message makes no sense", name=name, why=error.message, field=error.field)

    def _gone(self, name: str) -> _Frontend:
        frontend = self._of(name)
        if frontend.attached:
            log.info("frontend detached", name=name)
            frontend.attached = False
        return frontend

    def _of(self, name: str) -> _Frontend:
        frontend = self._frontends.setdefault(name, _Frontend())
        self._frontends.move_to_end(name)
        if len(self._frontends) > REMEMBERED:
            self._frontends.popitem(last=False)
        return frontend
