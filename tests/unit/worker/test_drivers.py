"""The synchronous and the asynchronous driver carry out the same decisions, on a device that is simulated in time."""

import asyncio
import selectors
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.interface import JobSlice, OpenJob, OutOfMemory
from gpu_worker.schedule.scheduler import LEAD_SECONDS, Idle, Scheduler, Wait
from gpu_worker.schedule.steps import JobOutcome
from harness.synchronous_driver import advance, until_idle
from shared.jobs import Job, JobResult
from shared.tasks import Inline
from support.synchronous_engine import FakeProgress, job

TICK = 1e-9
"""Seconds that pass with every wait, as on any clock: a wait of no time at all would never end."""
NO_ROOM = 13
"""A unit of this cost has too little memory, whenever it is computed."""


class Clock:
    """Simulated seconds, which pass only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += max(seconds, TICK)


class Arrival(Future[None]):
    """A step's arrival at a moment of the simulated clock. Whoever waits for it makes time pass."""

    def __init__(self, clock: Clock, at: float) -> None:
        super().__init__()
        self._clock, self.at = clock, at

    def done(self) -> bool:
        return self._clock.now >= self.at

    def exception(self, timeout: float | None = None) -> BaseException | None:
        seconds = self.at - self._clock.now
        if seconds > 0:
            self._clock.pass_seconds(seconds + TICK if timeout is None else min(seconds + TICK, timeout))
        if not self.done():
            raise TimeoutError
        return None

    def add_done_callback(self, fn: Callable[["Future[None]"], object]) -> None:
        asyncio.get_running_loop().call_at(self.at + TICK, fn, self)  # timers fire up to a tick early


class Handle:
    def __init__(self, slices: Sequence[JobSlice], arrived: Arrival, events: list[Any]) -> None:
        self._slices, self.arrived, self._events, self.shared_tokens = slices, arrived, events, 0

    def collect(self) -> None:
        self.arrived.exception()
        self._events.append(("collect", [described(job_slice) for job_slice in self._slices]))
        if any(NO_ROOM in part.job.costs[part.start : part.stop] for part in self._slices):
            raise OutOfMemory


class TimedEngine:
    """Computes one step after the other, each in `overhead` seconds and a second for `speed` tokens."""

    def __init__(self, clock: Clock, speed: float, overhead: float, chunk: int = 0) -> None:
        """`chunk`: longest piece of a sequence; 0 for whole ones."""
        self._clock, self._speed, self._overhead, self._chunk = clock, speed, overhead, chunk
        self._free_at = 0.0
        self.events: list[Any] = []
        self.times: list[float] = []

    def open(self, job: Job) -> FakeProgress:
        return FakeProgress(job, self._chunk)

    def reclaim(self) -> None:
        """There is nothing to free."""

    def launch(self, slices: Sequence[JobSlice]) -> Handle:
        self.events.append(("launch", [described(job_slice) for job_slice in slices]))
        self.times.append(self._clock.now)
        seconds = self._overhead + sum(job_slice.tokens for job_slice in slices) / self._speed
        self._free_at = max(self._clock.now, self._free_at) + seconds
        return Handle(slices, Arrival(self._clock, self._free_at), self.events)


def described(job_slice: JobSlice) -> tuple[int, int, int]:
    running: OpenJob | Any = job_slice.job
    return running.job.id, job_slice.start, job_slice.stop


class SimulatedEventLoop(asyncio.SelectorEventLoop):
    """An event loop on the simulated clock: instead of sleeping until the next timer it lets time pass."""

    def __init__(self, clock: Clock) -> None:
        self._simulated = clock
        super().__init__(JumpingSelector(clock))

    def time(self) -> float:
        return self._simulated.now


class JumpingSelector(selectors.SelectSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nobody will ever go on"
            self._clock.pass_seconds(timeout)
        return ready


class Workload:
    """Callers that each submit their next job when the one before is answered; some job fails for lack of memory."""

    def __init__(self, callers: list[list[list[int]]]) -> None:
        self._next = [list(enumerate(jobs)) for jobs in callers]
        self.outcomes: list[tuple[int, object]] = []

    def first_jobs(self) -> list[Job]:
        return [job for caller in range(len(self._next)) if (job := self._job_of(caller)) is not None]

    def after(self, identity: int, outcome: JobOutcome) -> Job | None:
        """Notes an outcome. Returns its caller's next job."""
        self.outcomes.append((identity, isinstance(outcome, JobResult)))
        return self._job_of(identity % 100)

    def _job_of(self, caller: int) -> Job | None:
        if not self._next[caller]:
            return None
        number, lengths = self._next[caller].pop(0)
        return job(100 * number + caller, *lengths, key=str(caller % 2))


def run_synchronously(workload: Workload, engine: TimedEngine, clock: Clock, options: dict[str, Any]) -> None:
    scheduler = Scheduler(engine, clock=clock, **options)
    for first in workload.first_jobs():
        scheduler.submit(first)
    for ended in until_idle(scheduler):
        following = workload.after(ended.id, ended.outcome)
        if following is not None:
            scheduler.submit(following)


def run_asynchronously(workload: Workload, engine: TimedEngine, clock: Clock, options: dict[str, Any]) -> None:
    async def serve() -> None:
        driver = Driver(Scheduler(engine, clock=clock, **options), Inline())
        idle, left = asyncio.Event(), 0

        def submit(new: Job) -> None:
            nonlocal left
            left += 1
            driver.submit(new, lambda outcome: answered(new.id, outcome))

        def answered(identity: int, outcome: JobOutcome) -> None:
            nonlocal left
            left -= 1
            following = workload.after(identity, outcome)
            if following is not None:
                submit(following)
            if not left:
                idle.set()

        for first in workload.first_jobs():
            submit(first)
        running = asyncio.create_task(driver.run())
        await idle.wait()
        running.cancel()

    with asyncio.Runner(loop_factory=lambda: SimulatedEventLoop(clock)) as runner:
        runner.run(serve())


JOBS = st.lists(st.integers(1, 60) | st.just(NO_ROOM), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    callers=st.lists(st.lists(JOBS, min_size=1, max_size=4), min_size=1, max_size=12),
    step_tokens=st.integers(20, 300),
    step_seconds=st.sampled_from([inf, 0.1]),
    speed=st.sampled_from([97.3, 1013.7, 30011.9]),
    overhead=st.sampled_from([0.0, 0.0137, 0.113]),
    chunk=st.sampled_from([0, 7, 20]),
)
def test_both_drivers_take_the_same_decisions(
    callers: list[list[list[int]]], step_tokens: int, step_seconds: float, speed: float, overhead: float, chunk: int
) -> None:
    """The same steps at the same times, collected in the same order, with the same outcomes, also after failures, and
    where pieces of long texts wait for room."""
    options = {"step_tokens": step_tokens, "queued_tokens": 10**9, "step_seconds": step_seconds, "cache_bytes": 100}
    runs = []
    for drive in (run_synchronously, run_asynchronously):
        clock, workload = Clock(), Workload(callers)
        engine = TimedEngine(clock, speed, overhead, chunk)
        drive(workload, engine, clock, options)
        runs.append((engine, workload))
    (engine, workload), (other_engine, other_workload) = runs
    assert engine.events == other_engine.events
    assert workload.outcomes == other_workload.outcomes
    assert len(workload.outcomes) == sum(map(len, callers))
    assert all(abs(time - other) < 1e-3 for time, other in zip(engine.times, other_engine.times, strict=True))


def test_the_next_step_is_launched_shortly_before_the_end_of_a_long_one() -> None:
    """Not at once, so that jobs that come meanwhile are in it; and not after the end, so that the device goes on."""
    clock = Clock()
    engine = TimedEngine(clock, speed=100.0, overhead=0.0)
    scheduler = Scheduler(engine, step_tokens=100, queued_tokens=10**9, clock=clock)
    scheduler.submit(job(1, *[10] * 10))
    list(until_idle(scheduler))
    for number in (2, 3, 4):
        scheduler.submit(job(number, *[10] * 10))
    advance(scheduler)
    action = scheduler.next_action()
    assert isinstance(action, Wait)
    assert abs(action.seconds - (1.0 - LEAD_SECONDS)) < 1e-6
    list(until_idle(scheduler))
    assert [round(time, 2) for time in engine.times] == [0.0, 1.0, 1.98, 2.98]


def test_a_job_that_is_set_aside_leaves_the_loop_idle() -> None:
    """The synchronous driver ends instead of waiting for a job that nobody brings back."""
    clock = Clock()
    scheduler = Scheduler(TimedEngine(clock, 100.0, 0.0), step_tokens=100, queued_tokens=1000, clock=clock)
    scheduler.submit(job(1, 10))
    scheduler.set_aside(1)
    assert list(until_idle(scheduler)) == []
    assert scheduler.next_action() == Idle()
    scheduler.bring_back(1)
    assert [ended.id for ended in until_idle(scheduler)] == [1]
