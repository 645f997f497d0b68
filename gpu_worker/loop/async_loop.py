"""The loop's asyncio shell: tells answers, and has a thread for what takes long. Knows no torch and no gRPC."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TypeVar

import structlog

from gpu_worker.loop.interface import StepEngine
from gpu_worker.loop.loop import Loop, Observe, unobserved
from gpu_worker.loop.steps import JobAnswer, JobOutcome
from gpu_worker.loop.watchdog import LOST_SECONDS, DeviceLost, overdue, stalled
from shared.errors import GivenBack, Internal, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.load import Load
from shared.telemetry.figures import WorkerFigures

T = TypeVar("T")
TellOutcome = Callable[[JobOutcome], None]
WATCH_SECONDS = 0.5
"""Between two looks at the running step."""

log = structlog.get_logger("scheduler")


class AsyncLoop:
    """Accepts jobs and answers each exactly once: with a result or with one error."""

    def __init__(
        self,
        engine: StepEngine,
        host: Executor,
        *,
        step_tokens: int,
        queued_tokens: int,
        queue_seconds: float = inf,
        step_seconds: float = 0.0,
        probe: Job | None = None,
        observe: Observe = unobserved,
    ) -> None:
        """`host`: one thread that packs steps and makes answers, while the device computes; see `Loop` for the rest.

        `probe`: a small job that every sound device can do, run after a step failed.
        """
        self._loop = Loop(
            engine,
            step_tokens=step_tokens,
            queued_tokens=queued_tokens,
            queue_seconds=queue_seconds,
            step_seconds=step_seconds,
            report=self._report,
            observe=observe,
        )
        self._probe, self._suspected, self._probing = probe, False, False
        self._lost = ""
        self.stalled = ""
        self._host = host
        self._tells: dict[int, TellOutcome] = {}
        self._event = asyncio.Event()
        self._draining = False

    def submit(self, job: Job, tell: TellOutcome) -> None:
        """Takes a job; `tell` gets its one answer, unless it is cancelled. Raises what is known at once."""
        if self._draining:
            raise GivenBack("the worker is draining", retry_after=1.0)
        if self.stalled:
            raise GivenBack(f"the worker is stalled: {self.stalled}", retry_after=1.0)
        self._loop.submit(job)
        self._tells[job.id] = tell
        if self._loop.worth_a_launch:  # else the end of the running step is what to wait for
            self._event.set()

    async def answer(self, job: Job) -> JobResult:
        """A job's result. Raises its error."""
        future: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()

        def tell(outcome: JobOutcome) -> None:
            with suppress(asyncio.InvalidStateError):  # whoever asked has gone
                future.set_result(outcome)

        self.submit(job, tell)
        outcome = await future
        if isinstance(outcome, SelvageError):
            raise outcome
        return outcome

    def cancel(self, ids: Iterable[int]) -> None:
        """Drops jobs; nobody is told. What is in the running step still ends with it."""
        for identity in ids:
            if self._tells.pop(identity, None) is not None:
                self._loop.cancel(identity)

    def set_aside(self, ids: Iterable[int]) -> None:
        """Computes no more of these jobs until they are brought back."""
        for identity in ids:
            self._loop.set_aside(identity)

    def bring_back(self, ids: Iterable[int]) -> None:
        """Goes on with jobs that were set aside."""
        for identity in ids:
            self._loop.bring_back(identity)
        self._event.set()

    @property
    def load(self) -> Load:
        """What waits, and how fast it goes."""
        return replace(self._loop.load, draining=self._draining, stalled=self.stalled)

    @property
    def figures(self) -> WorkerFigures:
        """For metrics; other threads may ask."""
        tokens, jobs = self._loop.queued
        return WorkerFigures(
            queued_tokens=tokens,
            queued_jobs=jobs,
            refused=dict(self._loop.refused),
            cancelled_waiting=self._loop.cancelled_waiting,
            stalled=bool(self.stalled),
        )

    async def run(self) -> None:
        """Serves until cancelled: launches the next step before it gathers the one before. Raises DeviceLost."""
        while not self._lost:
            await asyncio.sleep(0)  # calls come in between two steps, however short these are
            self._tell(self._loop.drop_expired())
            under_way = self._loop.under_way
            if self._loop.worth_a_launch:
                await self._launch()
            elif under_way and under_way[0].flight.arrived.done():
                await self._gather()
            else:
                await self._until_event()

        raise DeviceLost(self._lost)

    async def watch(self, on_stall: Callable[[bool], Awaitable[None]]) -> None:
        """Until cancelled: tells when a step stalls and when it goes on. Jobs of a stalled worker are unavailable.

        Raises DeviceLost when a stalled step is not worth waiting for any more.
        """
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            running = self._loop.running
            late = overdue(*running, self._loop.load.tokens_per_second) if running is not None else 0.0
            if running is not None and late > LOST_SECONDS:
                raise DeviceLost(stalled(*running))
            before, self.stalled = self.stalled, stalled(*running) if running is not None and late > 0 else ""
            if self.stalled:
                self._tell(self._loop.drop_all(WorkerUnavailable(self.stalled, retry_after=1.0)))
            if bool(before) != bool(self.stalled):
                log.error("stalled", why=self.stalled) if self.stalled else log.warning("goes on")
                await on_stall(bool(self.stalled))

    def refuse(self) -> None:
        """Takes no new jobs; what is held goes on."""
        self._draining = True

    def close(self) -> None:
        """Fails what is still held."""
        self.refuse()
        self._tell(self._loop.drop_all(WorkerUnavailable("the worker is shutting down")))

    async def _until_event(self) -> None:
        """Or until it is time to launch the next step."""
        timer = None
        if len(self._loop.under_way) == 1 and (wait := self._loop.launch_in) > 0:
            timer = asyncio.get_running_loop().call_later(wait, self._event.set)
        await self._event.wait()
        self._event.clear()
        if timer is not None:
            timer.cancel()

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
        self._tell(self._loop.settle(await self._run(older.planned.brief and older.sound, self._loop.gather)))
        if self._suspected and self._probe is not None and not self._probing:
            self._suspected = False
            with suppress(SelvageError):  # such as too much that waits; the next failure asks again
                self._loop.submit(self._probe)
                self._tells[self._probe.id], self._probing = self._probed, True

    def _probed(self, outcome: JobOutcome) -> None:
        """A device that fails at what it could do before is lost: CUDA repeats some errors at every later call."""
        self._probing = False
        if isinstance(outcome, Internal):
            self._lost = "a step failed, and so did a small one that worked when the worker started"

    async def _run(self, brief: bool, work: Callable[..., T], *arguments: object) -> T:
        """Here where it is brief: a thread and back take longer, and contend for Python's lock."""
        if brief:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._host, work, *arguments)

    def _tell(self, answers: Sequence[JobAnswer]) -> None:
        for answer in answers:
            tell = self._tells.pop(answer.id, None)
            if tell is not None:
                tell(answer.outcome)

    def _report(self, event: str, error: Exception, parts: int) -> None:
        """Of a step or a result that failed."""
        self._suspected = True
        log.error(event, parts=parts, exc_info=error)
