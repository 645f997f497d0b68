"""Drives the scheduler on the event loop: delivers outcomes, runs long work in a thread, and watches the device.

Knows no torch and no gRPC.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from math import inf
from typing import TypeVar

import structlog

from gpu_worker.schedule.interface import WorkerFigures
from gpu_worker.schedule.scheduler import Collect, Idle, Launch, Scheduler, Wait
from gpu_worker.schedule.steps import EndedJob, EndedStep, JobOutcome
from shared.errors import GivenBack, Internal, SelvageError, WorkerUnavailable
from shared.jobs import Job, JobResult
from shared.load import Load

T = TypeVar("T")
OnOutcome = Callable[[JobOutcome], None]
WATCH_SECONDS = 0.5
"""Seconds between two looks at the running step."""
TIMES_PREDICTED, LEAST_SECONDS = 10.0, 5.0
"""A step stalls when it takes so many times what its tokens predict, and at least so many seconds."""
LOST_SECONDS = 60.0
"""Seconds that a stalled step is waited for before the device counts as lost."""
EXIT_STATUS = 69
"""Exit status of a worker whose device is lost (EX_UNAVAILABLE of sysexits.h), so that a supervisor restarts it."""

log = structlog.get_logger("driver")


class DeviceLost(Exception):
    """The device computes nothing any more; only another process can use it again."""


class Driver:
    """Drives a `Scheduler` on the event loop: it accepts jobs, and calls back with the one outcome of each.

    `stalled`: why nothing is computed at the moment; empty while steps go on. `on_step` is called with every step that
    ended and did not fail; None while nobody counts them.
    """

    def __init__(self, scheduler: Scheduler, host: Executor, device_check: Job | None = None) -> None:
        """`host`: one thread that packs and collects large steps while the device computes.

        `device_check`: a small job that every sound device can compute, submitted after a bug in a step or a result.
        """
        self._scheduler, self._host, self._device_check = scheduler, host, device_check
        self._suspected = False  # a bug came up since the device was last checked
        self._checking = False
        self._lost = ""  # why the device counts as lost
        self.stalled = ""
        self.on_step: Callable[[EndedStep], None] | None = None
        self._callbacks: dict[int, OnOutcome] = {}
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # sets the event
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
    def step_tokens(self) -> int:
        """Most tokens of a step."""
        return self._scheduler.step_tokens

    @property
    def idle(self) -> bool:
        """Whether every job has its outcome."""
        return not self._callbacks

    @property
    def load(self) -> Load:
        """What waits, the current speed, and whether the worker drains or is stalled."""
        load = self._scheduler.told_load
        load.draining, load.stalled = self._draining, self.stalled
        return load

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
            before, stalled = self.stalled, ""
            self._log_bugs()
            if (running := self._scheduler.step_running) is not None:
                slept, computed = clock() - looked, time.process_time() - computed
                seconds = pauses.left_out_of(running[0], slept=slept, planned=WATCH_SECONDS, computed=computed)
                late = overdue(seconds, running[1], self._scheduler.speed)
                if late > 0:
                    stalled = f"a step of {running[1]} tokens has taken {seconds:.0f} s and has not ended"
                if late > LOST_SECONDS:
                    self.stalled = stalled
                    raise DeviceLost(stalled)
            self.stalled = stalled
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
        self._log_bugs()
        self._answer_jobs(self._scheduler.drop_all(WorkerUnavailable("the worker is shutting down")))

    async def _wait_for_event(self, seconds: float) -> None:
        """Waits for a job or for the older step, at most so long."""
        if seconds < inf:
            self._set_timer(seconds)
        await self._event.wait()
        self._event.clear()

    def _set_timer(self, seconds: float) -> None:
        """Sets the event in so many seconds at the latest. An earlier timer stays: an event too much costs less."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and loop.time() < self._timer.when() <= loop.time() + seconds:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._event.set)

    async def _launch_step(self) -> None:
        planned = self._scheduler.plan_step()
        if planned is None:
            return
        launched = await self._run(planned.brief, self._scheduler.launch_step, planned)
        if not launched.arrived:
            event_loop = asyncio.get_running_loop()
            launched.handle.arrived.add_done_callback(lambda _: event_loop.call_soon_threadsafe(self._event.set))

    async def _collect_step(self) -> None:
        older = self._scheduler.older_step
        assert older is not None
        try:
            outcomes = await self._run(older.planned.brief and older.sound, self._scheduler.collect_step)
        finally:
            self._log_bugs()
        step = self._scheduler.end_step(outcomes)
        self._answer_jobs(step.jobs)
        if self.on_step is not None and not step.failed:
            self.on_step(step)
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

    def _log_bugs(self) -> None:
        """Logs the bugs of the older step that are not logged yet, and has the device checked after one."""
        older = self._scheduler.older_step
        while older is not None and older.bugs:
            bug, self._suspected = older.bugs.pop(0), True
            log.error(bug.event, parts=bug.parts, exception=bug.trace)


class Pauses:
    """How long a process stood still while a step was running, as a watch sees it that sleeps between two looks."""

    def __init__(self) -> None:
        self._stood, self._pace = 0.0, 0.0

    def left_out_of(self, seconds: float, *, slept: float, planned: float, computed: float) -> float:
        """Seconds that a step has taken so far, without those in which the process stood still.

        Called at each look. `slept`: seconds since the look before; `planned`: as many as they should have been;
        `computed`: seconds of processor time that all threads took meanwhile.

        A machine that stands still or a process that is stopped takes no processor time. A look that comes late though
        the process computed may wait for the step itself, whose thread holds the interpreter's lock: that counts.
        """
        late, is_same_step = max(slept - planned, 0.0), seconds > slept
        if late < planned:
            self._pace = computed / slept if slept else 0.0  # seconds that it computes in a second, on all cores
        still = max(late - max(computed - self._pace * planned, 0.0), 0.0)
        self._stood = min(seconds, still + (self._stood if is_same_step else 0.0))
        return seconds - self._stood


def overdue(seconds: float, tokens: int, speed: float) -> float:
    """Seconds by which a step is late that has taken `seconds` so far; 0 or less while it is in time.

    `tokens`: the step's extent. A late piece of a long text takes far longer than a short text of as many tokens.
    `speed`: tokens a second, 0 while unknown.
    """
    predicted = tokens / speed if speed else 0.0
    return seconds - max(LEAST_SECONDS, TIMES_PREDICTED * predicted)
