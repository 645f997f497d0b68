"""The asynchronous driver of the scheduler: delivers outcomes, and runs long work in a thread. No torch and no gRPC."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TypeVar, Unpack

import structlog

from gpu_worker.schedule.interface import StepEngine
from gpu_worker.schedule.scheduler import Collect, Idle, Launch, Limits, ObserveStep, Scheduler, Wait, unobserved
from gpu_worker.schedule.steps import EndedJob, JobOutcome
from gpu_worker.schedule.watchdog import LOST_SECONDS, DeviceLost, Pauses, overdue, stall_message
from shared.errors import GivenBack, Internal, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.load import Load
from shared.telemetry.figures import WorkerFigures

T = TypeVar("T")
OnOutcome = Callable[[JobOutcome], None]
WATCH_SECONDS = 0.5
"""Seconds between two looks at the running step."""

log = structlog.get_logger("loop")


class Driver:
    """Drives a `Scheduler` on the event loop: it accepts jobs, and calls back with the one outcome of each.

    `step_tokens`: most tokens of a step. `stalled`: why nothing is computed at the moment; empty while steps go on.
    """

    def __init__(
        self,
        engine: StepEngine,
        host: Executor,
        *,
        device_check: Job | None = None,
        observe: ObserveStep = unobserved,
        clock: Callable[[], float] = time.monotonic,
        **limits: Unpack[Limits],
    ) -> None:
        """`host`: one thread that packs and collects large steps while the device computes. `limits`: see `Limits`.

        `device_check`: a small job that every sound device can compute, submitted after a bug in a step or a result.
        """
        self._scheduler = Scheduler(engine, report=self._report, observe=observe, clock=clock, **limits)
        self.step_tokens = limits["step_tokens"]
        self._device_check = device_check
        self._suspected = False  # a bug came up since the device was last checked
        self._checking = False
        self._lost = ""  # why the device counts as lost
        self.stalled = ""
        self._host = host
        self._callbacks: dict[int, OnOutcome] = {}
        self._event = asyncio.Event()
        self._draining = False

    def submit(self, job: Job, on_outcome: OnOutcome, *, wake: bool = True) -> None:
        """Accepts a job. `on_outcome` is called once, unless the job is cancelled. Without `wake` an idle driver waits
        for the call of `wake` that must follow: more jobs come at once, and belong into the same step. Raises errors
        known at once."""
        if self._draining:
            raise GivenBack("the worker is draining", retry_after=1.0)
        if self.stalled:
            raise GivenBack(f"the worker is stalled: {self.stalled}", retry_after=1.0)
        self._scheduler.submit(job)
        self._callbacks[job.id] = on_outcome
        if wake:
            self.wake()

    def wake(self) -> None:
        """Wakes the driver where a step may be launched; else it waits for the right event already."""
        if isinstance(self._scheduler.next_action(), Launch):
            self._event.set()

    async def result_of(self, job: Job) -> JobResult:
        """Submits a job and waits for its result. Raises its error."""
        future: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()

        def set_outcome(outcome: JobOutcome) -> None:
            with suppress(asyncio.InvalidStateError):  # the caller has gone
                future.set_result(outcome)

        self.submit(job, set_outcome)
        outcome = await future
        if isinstance(outcome, SelvageError):
            raise outcome
        return outcome

    def cancel(self, ids: Iterable[int]) -> None:
        """Drops jobs without calling anybody. Slices of them that are under way are computed."""
        for identity in ids:
            if self._callbacks.pop(identity, None) is not None:
                self._scheduler.cancel(identity)
        self._event.set()  # their room may be what another job waits for, or their place in the line

    def set_aside(self, ids: Iterable[int]) -> None:
        """Plans no more of these jobs until they are brought back."""
        for identity in ids:
            self._scheduler.set_aside(identity)
        self._event.set()  # a job behind them in the line may need less room

    def bring_back(self, ids: Iterable[int]) -> None:
        """Goes on with jobs that were set aside."""
        for identity in ids:
            self._scheduler.bring_back(identity)
        self._event.set()

    @property
    def idle(self) -> bool:
        """Whether every job has its outcome."""
        return not self._callbacks

    @property
    def load(self) -> Load:
        """What waits, the current speed, and whether the worker drains or is stalled."""
        return replace(self._scheduler.told_load, draining=self._draining, stalled=self.stalled)

    @property
    def figures(self) -> WorkerFigures:
        """Figures for metrics. May be read from other threads."""
        tokens, jobs = self._scheduler.queued
        room = self._scheduler.room
        return WorkerFigures(
            queued_tokens=tokens,
            queued_jobs=jobs,
            refused=dict(self._scheduler.refused),
            cancelled_waiting=self._scheduler.cancelled_waiting,
            stalled=bool(self.stalled),
            budget=self._scheduler.budget,
            kept_bytes=room.taken,
            cache_bytes=0 if room.capacity == inf else int(room.capacity),
            waiting_for_cache=room.waiting,
        )

    async def run(self) -> None:
        """Carries out the scheduler's actions until it is cancelled. Raises DeviceLost."""
        while not self._lost:
            self._answer_jobs(self._scheduler.drop_expired())
            match self._scheduler.next_action():
                case Launch():
                    await asyncio.sleep(0)  # lets calls in between two steps, and into this one
                    await self._launch_step()
                case Collect():
                    await self._collect_step()
                case Wait(seconds=seconds):
                    await self._wait_for_event(seconds)
                case Idle():  # jobs that are set aside, or wait for their room, may end by their deadlines
                    await self._wait_for_event(self._scheduler.seconds_to_deadline)

        raise DeviceLost(self._lost)

    async def watch(self, on_stall: Callable[[bool], Awaitable[None]]) -> None:
        """Watches the running step until it is cancelled, and fails all jobs while a step is stalled.

        `on_stall` is called when a step stalls and when it goes on. Raises DeviceLost when a stalled step is not worth
        waiting for any more.
        """
        clock, pauses = asyncio.get_running_loop().time, Pauses()
        while True:
            looked, computed = clock(), time.process_time()
            await asyncio.sleep(WATCH_SECONDS)
            running = self._scheduler.step_running
            if running is not None:
                seconds, tokens = running
                slept, computed = clock() - looked, time.process_time() - computed
                running = pauses.left_out_of(seconds, slept=slept, planned=WATCH_SECONDS, computed=computed), tokens
            late = overdue(*running, self._scheduler.load.tokens_per_second) if running is not None else 0.0
            if running is not None and late > LOST_SECONDS:
                raise DeviceLost(stall_message(*running))
            before, self.stalled = self.stalled, stall_message(*running) if running is not None and late > 0 else ""
            if self.stalled:
                self._answer_jobs(self._scheduler.drop_all(WorkerUnavailable(self.stalled, retry_after=1.0)))
            if bool(before) != bool(self.stalled):
                if self.stalled:
                    log.error("stalled", why=self.stalled)
                else:
                    log.warning("goes on")
                await on_stall(bool(self.stalled))

    def refuse_jobs(self) -> None:
        """Accepts no further jobs. Those that were accepted are computed."""
        self._draining = True

    def close(self) -> None:
        """Fails all jobs that have no outcome yet, and accepts no further ones."""
        self.refuse_jobs()
        self._answer_jobs(self._scheduler.drop_all(WorkerUnavailable("the worker is shutting down")))

    async def _wait_for_event(self, seconds: float) -> None:
        """Waits for a job or for the older step, at most so long."""
        timer = None
        if seconds < inf:
            timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        await self._event.wait()
        self._event.clear()
        if timer is not None:
            timer.cancel()

    async def _launch_step(self) -> None:
        planned = self._scheduler.plan_step()
        if planned is None:
            return
        launched = await self._run(planned.brief, self._scheduler.launch_step, planned)
        event_loop = asyncio.get_running_loop()
        launched.handle.arrived.add_done_callback(lambda _: event_loop.call_soon_threadsafe(self._event.set))

    async def _collect_step(self) -> None:
        older = self._scheduler.older_step
        assert older is not None
        outcomes = await self._run(older.planned.brief and older.sound, self._scheduler.collect_step)
        self._answer_jobs(self._scheduler.end_step(outcomes))
        if self._suspected and self._device_check is not None and not self._checking:
            self._suspected = False
            with suppress(SelvageError):  # the queue may be full; then the next failure submits the check
                self._scheduler.submit(self._device_check)
                self._callbacks[self._device_check.id], self._checking = self._end_device_check, True

    def _end_device_check(self, outcome: JobOutcome) -> None:
        """Counts a device that fails at its check as lost: CUDA repeats some errors at every later call."""
        self._checking = False
        if isinstance(outcome, Internal):
            self._lost = "a step failed, and so did a small one that worked when the worker started"

    async def _run(self, brief: bool, work: Callable[..., T], *arguments: object) -> T:
        """Runs brief work on the event loop, other work in the host thread: a thread and back would take longer."""
        if brief:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._host, work, *arguments)

    def _answer_jobs(self, jobs: Sequence[EndedJob]) -> None:
        for job in jobs:
            on_outcome = self._callbacks.pop(job.id, None)
            if on_outcome is not None:
                on_outcome(job.outcome)

    def _report(self, event: str, error: Exception, parts: int) -> None:
        """Logs a bug in a step or a result, and has the device checked. Called in the thread that collects a step."""
        self._suspected = True
        log.error(event, parts=parts, exc_info=error)
