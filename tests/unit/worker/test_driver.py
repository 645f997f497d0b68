"""Every accepted job is answered exactly once, whatever the engine does, and where the device stalls or hangs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gpu_worker.link.attachment import JOBS_IN_A_ROW
from gpu_worker.schedule import driver
from gpu_worker.schedule.driver import DeviceLost, Driver
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import EndedStep, JobOutcome
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    Internal,
    InvalidInput,
    WorkerUnavailable,
)
from shared.jobs import Classify, JobResult
from shared.link_codec import jobs_to_pb
from shared.tasks import Inline
from support.held_jobs import MODEL, attached
from support.references import eventually
from support.threaded_engine import MARK, FakeEngine, FakeFlight, FakeProgress, ask, job, outcome, running_driver


async def test_jobs_of_a_message_to_an_idle_worker_are_one_step() -> None:
    engine, count = FakeEngine(Inline()), 4 * JOBS_IN_A_ROW
    jobs = [replace(job(number, 1), work=Classify()) for number in range(1, count + 1)]
    async with running_driver(engine, step_tokens=10 * count) as running:
        for _ in range(5):
            await asyncio.sleep(0)  # the driver has nothing to do and waits
        attachment = attached(running)
        message = jobs_to_pb(jobs, MODEL)
        await attachment.receive(message, message.ByteSize())
        await eventually(lambda: running.idle)
        assert [len(step) for step in engine.steps] == [count]


async def test_a_bug_fails_its_own_job_only(device: Executor) -> None:
    engine = FakeEngine(device)
    engine.gate.clear()
    async with running_driver(engine) as running:
        futures = [ask(running, job(1, 5, 6)), ask(running, job(2, 7, 13)), ask(running, job(3, 8))]
        engine.gate.set()
        assert [await outcome(future) for future in futures] == [(5, 6), Internal, (8,)]


async def test_a_passed_deadline_is_an_error_and_frees_the_queue(device: Executor) -> None:
    engine = FakeEngine(device)
    async with running_driver(engine) as running:
        assert await outcome(ask(running, job(1, 5, remaining=0.0))) is DeadlineExceeded
        assert engine.steps == []
        assert running.load.queued_tokens == 0


async def test_cancelled_jobs_are_not_computed(device: Executor) -> None:
    """What waits of them leaves the queue at once."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with running_driver(engine) as running:
        first = ask(running, job(1, 50))
        await asyncio.sleep(0)
        second = ask(running, job(2, *[50] * 10))
        running.cancel([2, 77])
        engine.gate.set()
        assert await outcome(first) == (50,)
        assert not second.done()
        assert running.load.queued_tokens == 0
        assert [identity for step in engine.steps for identity, _ in step] == [1]


async def test_a_held_id_and_a_refused_job_lose_nothing(device: Executor) -> None:
    async with running_driver(FakeEngine(device)) as running:
        first = ask(running, job(1, 5))
        with pytest.raises(InvalidInput):
            ask(running, job(1, 6))
        with pytest.raises(InvalidInput):
            ask(running, job(2, MARK))
        assert await outcome(first) == (5,)


async def test_draining_answers_what_is_held_and_takes_no_more(device: Executor) -> None:
    """No accepted job is lost."""
    engine = FakeEngine(device)
    async with running_driver(engine) as running:
        futures = [ask(running, job(identity, *[40] * 10)) for identity in range(5)]
        running.refuse_jobs()
        with pytest.raises(GivenBack):
            ask(running, job(99, 1))
        assert [await outcome(future) for future in futures] == [(40,) * 10] * 5


async def test_a_result_that_cannot_be_made_fails_its_own_job(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(device)

    def fail(progress: FakeProgress) -> JobResult:
        if progress.job.id == 1:
            raise MemoryError
        return JobResult(row_lengths=tuple(progress.served))

    monkeypatch.setattr(FakeProgress, "result", fail)
    async with running_driver(engine) as running:
        futures = [ask(running, job(identity, 5)) for identity in (1, 2)]
        assert [await outcome(future) for future in futures] == [Internal, (5,)]


async def test_a_job_may_be_cancelled_while_its_step_is_collected(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another thread: nobody gets its outcome; the job beside it, and a new one of the same id, get their own."""
    collecting, go_on, collect = threading.Event(), threading.Event(), FakeFlight.collect

    def slowly(self: FakeFlight) -> None:
        collecting.set()
        go_on.wait()
        collect(self)

    monkeypatch.setattr(FakeFlight, "collect", slowly)
    async with running_driver(FakeEngine(device), step_tokens=10_000) as running:
        cancelled, beside = ask(running, job(1, *[10] * 200)), ask(running, job(2, *[10] * 200))
        await asyncio.to_thread(collecting.wait)
        running.cancel([1])
        again = ask(running, job(1, 7))
        go_on.set()
        assert await outcome(beside) == (10,) * 200
        assert await outcome(again) == (7,)
        assert not cancelled.done()


async def test_closing_fails_what_is_still_held(device: Executor) -> None:
    engine = FakeEngine(device)
    engine.gate.clear()
    async with running_driver(engine) as running:
        future = ask(running, job(1, 5))
        running.close()
        assert await outcome(future) is WorkerUnavailable
        engine.gate.set()


async def test_calls_come_in_between_two_steps() -> None:
    """However short steps are: a loop that never lets go would leave cancels and new jobs waiting."""
    engine = FakeEngine(Inline())
    async with running_driver(engine) as running:
        future, turns = ask(running, job(1, *[50] * 200)), 0
        while not future.done():
            await asyncio.sleep(0)
            turns += 1
        assert await outcome(future) == (50,) * 200
        assert turns > len(engine.steps)


async def test_steps_are_counted_from_when_somebody_counts(device: Executor) -> None:
    """Each with its tokens, sequences and seconds; one of which a part was run again is not: its time tells nothing."""
    async with running_driver(FakeEngine(device)) as running:
        assert await outcome(ask(running, job(1, 5))) == (5,)
        seen = list[EndedStep]()
        running.on_step = seen.append
        assert await outcome(ask(running, job(2, *[10] * 15))) == (10,) * 15
        assert await outcome(ask(running, job(3, 13))) is Internal
        assert [(step.tokens, step.units, step.seconds > 0) for step in seen] == [(100, 10, True), (50, 5, True)]


class Broken(FakeEngine):
    """Fails at every step from some moment on, as CUDA does after some errors."""

    def __init__(self, device: Executor) -> None:
        super().__init__(device)
        self.broken = False

    def compute(self, chosen: list[tuple[FakeProgress, Sequence[int]]]) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        super().compute(chosen)


async def test_a_device_that_fails_at_everything_is_lost(device: Executor) -> None:
    """The job that met it gets Internal; then the loop ends, so that the process can be started again."""
    engine = Broken(device)
    with ThreadPoolExecutor(1) as host:
        lone = Driver(Scheduler(engine, step_tokens=100, queued_tokens=10_000), host, device_check=job(99, 1))
        running = asyncio.create_task(lone.run())
        assert await outcome(ask(lone, job(1, 5))) == (5,)
        engine.broken = True
        assert await outcome(ask(lone, job(2, 5))) is Internal
        with pytest.raises(DeviceLost):
            await running


async def test_a_job_that_fails_alone_loses_no_device(device: Executor) -> None:
    engine = FakeEngine(device)
    async with running_driver(engine, device_check=job(99, 1)) as running:
        assert await outcome(ask(running, job(1, 13))) is Internal
        assert await outcome(ask(running, job(2, 5))) == (5,)
        assert any(identity == 99 for step in engine.steps for identity, _ in step)


@asynccontextmanager
async def watched_step(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FakeEngine, Driver, asyncio.Queue[bool], asyncio.Future[JobOutcome]]]:
    """A step of 5 tokens that hangs, the outcome of its job, and what the watch tells; late after half a second, since
    a busy machine may keep an honest step for a tenth."""
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine, stalls = FakeEngine(device), asyncio.Queue[bool]()
    async with running_driver(engine) as running:
        watching = asyncio.create_task(running.watch(stalls.put))
        engine.gate.clear()
        hanging = ask(running, job(1, 5))
        await eventually(lambda: running._scheduler.step_running is not None)
        yield engine, running, stalls, hanging
        engine.gate.set()
        watching.cancel()


async def test_a_stalled_step_is_told_and_serving_goes_on_after_it(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are unavailable at once, new ones too; once it has ended, jobs are served again."""
    async with watched_step(device, monkeypatch) as (engine, running, stalls, hanging):
        assert await stalls.get() is True
        assert await outcome(hanging) is WorkerUnavailable
        assert "a step of 5 tokens" in running.load.stalled
        with pytest.raises(GivenBack, match="stalled"):
            ask(running, job(2, 5))
        engine.gate.set()
        assert await stalls.get() is False
        assert await outcome(ask(running, job(3, 5))) == (5,)


async def test_a_step_that_never_ends_is_given_up(device: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(driver, "LOST_SECONDS", 0.1)
    monkeypatch.setattr(driver, "WATCH_SECONDS", 0.01)
    engine = FakeEngine(device)
    async with running_driver(engine) as running:
        engine.gate.clear()
        ask(running, job(1, 5))
        with pytest.raises(DeviceLost, match="a step of 5 tokens"):
            await running.watch(_nobody)


async def _nobody(stalls: bool) -> None:
    """Is told nothing."""


@pytest.mark.parametrize(
    ("seconds", "tokens", "speed", "late"),
    [(4.9, 10, 1000.0, False), (5.1, 10, 1000.0, True), (19, 2000, 1000.0, False), (21, 2000, 1000.0, True)],
)
def test_a_step_is_late_at_ten_times_what_its_tokens_predict(
    seconds: float, tokens: int, speed: float, late: bool
) -> None:
    assert (driver.overdue(seconds, tokens, speed) > 0) is late


@pytest.mark.parametrize("cores", [0, 1, 64])
def test_what_a_step_computes_while_no_look_is_possible_is_its_own(cores: int) -> None:
    """A thread that holds the interpreter's lock for eight seconds takes as many of a processor. A process that is
    stopped takes none, however many cores it had before."""
    for computed, left in [(cores * 0.5 + 8, 9.0), (cores * 0.5, 1.0)]:
        pauses = driver.Pauses()
        assert pauses.left_out_of(0.5, slept=0.5, planned=0.5, computed=cores * 0.5) == 0.5
        assert pauses.left_out_of(9.0, slept=8.5, planned=0.5, computed=computed) == pytest.approx(left)


async def test_a_step_that_keeps_all_others_from_running_is_late(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes, so its seconds are no pause of the process."""
    async with watched_step(device, monkeypatch) as (_, _, stalls, hanging):
        end = time.process_time() + 1.0
        while time.process_time() < end:
            """Computes, and lets nothing else run."""
        assert await stalls.get() is True
        assert await outcome(hanging) is WorkerUnavailable


async def test_a_pause_of_the_process_is_no_stalled_step(device: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine stands still: the job is answered, and nobody is told of a stall."""
    async with watched_step(device, monkeypatch) as (engine, _, stalls, paused):
        for _ in range(2):
            time.sleep(0.7)  # noqa: ASYNC251 - nothing of the loop runs
            await asyncio.sleep(0.02)
        engine.gate.set()
        assert await outcome(paused) == (5,)
        assert stalls.empty()
