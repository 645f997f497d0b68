"""The loop's asyncio shell: futures for jobs, and a thread for what takes long. Knows no torch and no gRPC."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import structlog

from gpu_worker.loop import Answer, Load, Loop
from gpu_worker.step.flight import Engine
from shared.errors import SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult

T = TypeVar("T")
log = structlog.get_logger("scheduler")


class Scheduler:
    """Accepts jobs and answers each exactly once: with a result or with one error."""

    def __init__(self, engine: Engine, host: Executor, *, step_tokens: int, queued_tokens: int) -> None:
        """`host`: one thread that packs steps and makes answers, while the device computes; see `Loop` for the rest."""
        self._loop = Loop(engine, step_tokens=step_tokens, queued_tokens=queued_tokens, report=_report)
        self._host = host
        self._futures: dict[int, asyncio.Future[JobResult]] = {}
        self._event = asyncio.Event()
        self._draining = False

    def submit(self, job: Job) -> asyncio.Future[JobResult]:
        """Takes a job; the future brings its result or its error. Raises what is known at once."""
        if self._draining:
            raise WorkerUnavailable("the worker is draining")
        self._loop.submit(job)
        future: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()
        self._futures[job.id] = future
        future.add_done_callback(lambda done: self._forget(job.id, done))
        if self._loop.worth_a_launch:  # else the end of the running step is what to wait for
            self._event.set()
        return future

    def cancel(self, ids: Sequence[int]) -> int:
        """Drops jobs; returns how many of them were held. What is in the running step still ends with it."""
        known = [self._futures[identity] for identity in ids if identity in self._futures]
        for identity in ids:
            self._loop.cancel(identity)
        for future in known:
            future.cancel()
        return len(known)

    @property
    def load(self) -> Load:
        """Tokens and jobs that wait, and the recent speed."""
        return self._loop.load

    async def run(self) -> None:
        """Serves until cancelled: launches the next step before it gathers the one before."""
        while True:
            await asyncio.sleep(0)  # calls come in between two steps, however short these are
            self._tell(self._loop.drop_expired())
            under_way = self._loop.under_way
            if self._loop.worth_a_launch:
                await self._launch()
            elif under_way and under_way[0].flight.arrived.done():
                await self._gather()
            else:
                await self._event.wait()
                self._event.clear()

    def refuse(self) -> None:
        """Takes no new jobs; what is held goes on."""
        self._draining = True

    def close(self) -> None:
        """Fails what is still held."""
        self.refuse()
        self._tell(self._loop.drop_all(WorkerUnavailable("the worker is shutting down")))

    async def _launch(self) -> None:
        planned = self._loop.plan()
        if planned is None:
            return
        await self._run(planned.brief, self._loop.launch, planned)
        running = asyncio.get_running_loop()
        arrived = self._loop.under_way[-1].flight.arrived
        arrived.add_done_callback(lambda _: running.call_soon_threadsafe(self._event.set))

    async def _gather(self) -> None:
        """Of the older step, which has arrived; the next one is launched before."""
        if self._loop.may_launch:
            await self._launch()
        older = self._loop.under_way[0]
        answers = self._loop.settle(await self._run(older.planned.brief and older.sound, self._loop.gather))
        for answer in answers:
            if isinstance(answer.outcome, SelvageError):
                log.warning("job failed", job=answer.id, reason=answer.outcome.reason)
        self._tell(answers)

    async def _run(self, brief: bool, work: Callable[..., T], *arguments: object) -> T:
        """Here where it is brief: a thread and back take longer, and contend for Python's lock."""
        if brief:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._host, work, *arguments)

    def _tell(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            future = self._futures.get(answer.id)
            if future is None or future.done():
                continue
            if isinstance(answer.outcome, SelvageError):
                future.set_exception(answer.outcome)
            else:
                future.set_result(answer.outcome)

    def _forget(self, identity: int, done: asyncio.Future[JobResult]) -> None:
        if self._futures.get(identity) is done:
            del self._futures[identity]
            self._loop.cancel(identity)


def _report(event: str, error: Exception, parts: int) -> None:
    log.error(event, parts=parts, exc_info=error)
