"""Every accepted job is answered exactly once, whatever the engine does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_worker import watchdog
from gpu_worker.device.inline import Inline
from gpu_worker.loop import Outcome
from gpu_worker.scheduler import Scheduler
from gpu_worker.step.flight import OutOfMemory, Part
from gpu_worker.watchdog import DeviceLost
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    InputTooLarge,
    Internal,
    InvalidInput,
    Overloaded,
    SelvageError,
    WorkerUnavailable,
)
from shared.jobs import Encode, Job, JobResult
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind

WORK = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
MARK = 666


class FakeProgress:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.costs: Sequence[int] = job.tokens.lengths
        self.served: list[int] = []

    def result(self) -> JobResult:
        return JobResult(row_lengths=tuple(self.served))


class FakeFlight:
    """Arrives when it was computed; gives lengths to its jobs when it is collected."""

    def __init__(self, chosen: list[tuple[FakeProgress, Sequence[int]]], arrived: Future[None]) -> None:
        self.chosen, self.arrived = chosen, arrived

    def collect(self) -> None:
        self.arrived.result()
        for progress, costs in self.chosen:
            progress.served.extend(costs)


class FakeEngine:
    """Serves lengths; a step whose tokens pass `room` is out of memory, a sequence of length 13 is a bug."""

    def __init__(self, device: Executor, room: int = 10**9) -> None:
        self.device, self.room = device, room
        self.steps: list[list[tuple[int, int]]] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, job: Job) -> FakeProgress:
        if MARK in job.tokens.lengths:
            raise InvalidInput("refused at the door")
        return FakeProgress(job)

    def launch(self, parts: Sequence[Part]) -> FakeFlight:
        chosen = [(part.progress, part.progress.costs[part.start : part.stop]) for part in parts]
        return FakeFlight(chosen, self.device.submit(self.compute, chosen))

    def compute(self, chosen: list[tuple[FakeProgress, Sequence[int]]]) -> None:
        self.gate.wait()
        if sum(sum(costs) for _, costs in chosen) > self.room:
            raise OutOfMemory
        if any(13 in costs for _, costs in chosen):
            raise RuntimeError("a bug")
        self.steps.append([(progress.job.id, len(costs)) for progress, costs in chosen])


def job(identity: int, *lengths: int, remaining: float | None = None) -> Job:
    tokens = RaggedTokens.of([[0] * length for length in lengths])
    return Job(id=identity, work=WORK, tokens=tokens, remaining=remaining)


@pytest.fixture
def device() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@asynccontextmanager
async def scheduler(engine: FakeEngine, **options: Any) -> AsyncIterator[Scheduler]:
    with ThreadPoolExecutor(1) as host:
        made = Scheduler(engine, host, **{"step_tokens": 100, "queued_tokens": 10_000} | options)
        running = asyncio.create_task(made.run())
        yield made
        engine.gate.set()
        running.cancel()
        made.close()


def ask(running: Scheduler, asked: Job) -> asyncio.Future[Outcome]:
    """Raises what is known at once."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    running.submit(asked, future.set_result)
    return future


async def outcome(future: asyncio.Future[Outcome]) -> tuple[int, ...] | type[SelvageError]:
    told = await future
    return type(told) if isinstance(told, SelvageError) else told.row_lengths


async def test_jobs_of_any_size_are_answered(device: Executor) -> None:
    """One that fits into a step, one that takes many, one larger than a step by a single sequence."""
    engine = FakeEngine(device)
    async with scheduler(engine) as running:
        futures = [ask(running, job(1, 5)), ask(running, job(2, *[30] * 20)), ask(running, job(3, 500))]
        assert [await outcome(each) for each in futures] == [(5,), (30,) * 20, (500,)]
        assert running.load.queued_jobs == 0


async def test_a_bug_fails_its_own_job_only(device: Executor) -> None:
    """Its batch mates are computed again without it."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with scheduler(engine) as running:
        futures = [ask(running, job(1, 5, 6)), ask(running, job(2, 7, 13)), ask(running, job(3, 8))]
        engine.gate.set()
        assert [await outcome(each) for each in futures] == [(5, 6), Internal, (8,)]


async def test_memory_is_found_by_cutting(device: Executor) -> None:
    """A step that does not fit is cut until it does; a sequence that never fits fails alone."""
    engine = FakeEngine(device, room=20)
    engine.gate.clear()
    async with scheduler(engine) as running:
        futures = [ask(running, job(1, 9, 9, 9, 9)), ask(running, job(2, 10, 30)), ask(running, job(3, 20))]
        engine.gate.set()
        assert [await outcome(each) for each in futures] == [(9, 9, 9, 9), InputTooLarge, (20,)]


async def test_a_passed_deadline_is_an_error_and_frees_the_queue(device: Executor) -> None:
    """Without being computed."""
    engine = FakeEngine(device)
    async with scheduler(engine) as running:
        assert await outcome(ask(running, job(1, 5, remaining=0.0))) is DeadlineExceeded
        assert engine.steps == []
        assert running.load.queued_tokens == 0


async def test_cancelled_jobs_are_not_computed(device: Executor) -> None:
    """What waits of them leaves the queue at once."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with scheduler(engine) as running:
        first = ask(running, job(1, 50))
        await asyncio.sleep(0)
        second = ask(running, job(2, *[50] * 10))
        running.cancel([2, 77])
        engine.gate.set()
        assert await outcome(first) == (50,)
        assert not second.done()
        assert running.load.queued_tokens == 0
        assert [identity for step in engine.steps for identity, _ in step] == [1]


async def test_overload_is_refused_but_one_job_is_always_taken(device: Executor) -> None:
    """A job larger than the whole queue runs when nothing waits."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with scheduler(engine, queued_tokens=100) as running:
        big = ask(running, job(1, *[50] * 40))
        with pytest.raises(Overloaded) as refused:
            ask(running, job(2, 60))
        assert refused.value.retry_after is not None
        engine.gate.set()
        assert await outcome(big) == (50,) * 40


async def test_a_held_id_and_a_refused_job_lose_nothing(device: Executor) -> None:
    """The first job of that id is answered."""
    async with scheduler(FakeEngine(device)) as running:
        first = ask(running, job(1, 5))
        with pytest.raises(InvalidInput):
            ask(running, job(1, 6))
        with pytest.raises(InvalidInput):
            ask(running, job(2, MARK))
        assert await outcome(first) == (5,)


async def test_draining_answers_what_is_held_and_takes_no_more(device: Executor) -> None:
    """No accepted job is lost."""
    engine = FakeEngine(device)
    async with scheduler(engine) as running:
        futures = [ask(running, job(identity, *[40] * 10)) for identity in range(5)]
        running.refuse()
        with pytest.raises(GivenBack):
            ask(running, job(99, 1))
        assert [await outcome(each) for each in futures] == [(40,) * 10] * 5


async def test_a_result_that_cannot_be_made_fails_its_own_job(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any exception there; the others go on."""
    engine = FakeEngine(device)

    def fail(progress: FakeProgress) -> JobResult:
        if progress.job.id == 1:
            raise MemoryError
        return JobResult(row_lengths=tuple(progress.served))

    monkeypatch.setattr(FakeProgress, "result", fail)
    async with scheduler(engine) as running:
        futures = [ask(running, job(identity, 5)) for identity in (1, 2)]
        assert [await outcome(each) for each in futures] == [Internal, (5,)]


async def test_an_id_can_be_used_again_while_its_cancelled_job_ends(device: Executor) -> None:
    """The second job is answered; the first one's last step does not touch it."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with scheduler(engine) as running:
        ask(running, job(1, 50))
        await asyncio.sleep(0)
        running.cancel([1])
        second = ask(running, job(1, 7))
        engine.gate.set()
        assert await asyncio.wait_for(outcome(second), 10) == (7,)


async def test_closing_fails_what_is_still_held(device: Executor) -> None:
    """Rather than leaving callers waiting."""
    engine = FakeEngine(device)
    engine.gate.clear()
    async with scheduler(engine) as running:
        future = ask(running, job(1, 5))
        running.close()
        assert await outcome(future) is WorkerUnavailable
        engine.gate.set()


async def test_calls_come_in_between_two_steps() -> None:
    """However short steps are: a loop that never lets go would leave cancels and new jobs waiting."""
    engine = FakeEngine(Inline())
    async with scheduler(engine) as running:
        future, turns = ask(running, job(1, *[50] * 200)), 0
        while not future.done():
            await asyncio.sleep(0)
            turns += 1
        assert await outcome(future) == (50,) * 200
        assert turns > len(engine.steps)


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
        made = Scheduler(engine, host, step_tokens=100, queued_tokens=10_000, probe=job(99, 1))
        running = asyncio.create_task(made.run())
        assert await outcome(ask(made, job(1, 5))) == (5,)
        engine.broken = True
        assert await outcome(ask(made, job(2, 5))) is Internal
        with pytest.raises(DeviceLost):
            await asyncio.wait_for(running, 20)


async def test_a_job_that_fails_alone_loses_no_device(device: Executor) -> None:
    """The probe that follows it succeeds."""
    engine = FakeEngine(device)
    async with scheduler(engine, probe=job(99, 1)) as running:
        assert await outcome(ask(running, job(1, 13))) is Internal
        assert await outcome(ask(running, job(2, 5))) == (5,)
        assert any(identity == 99 for step in engine.steps for identity, _ in step)


async def test_a_stalled_step_is_told_and_serving_goes_on_after_it(
    device: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are unavailable at once, new ones too; once it has ended, jobs are served again."""
    monkeypatch.setattr(watchdog, "LEAST_SECONDS", 0.5)  # a busy machine may keep an honest step for a tenth
    monkeypatch.setattr("gpu_worker.scheduler.WATCH_SECONDS", 0.01)
    engine, told = FakeEngine(device), asyncio.Queue[bool]()
    async with scheduler(engine) as running:
        watching = asyncio.create_task(running.watch(told.put))
        engine.gate.clear()
        hanging = ask(running, job(1, 5))
        assert await asyncio.wait_for(told.get(), 10) is True
        assert await outcome(hanging) is WorkerUnavailable
        assert "a step of 5 tokens" in running.load.stalled
        with pytest.raises(GivenBack, match="stalled"):
            ask(running, job(2, 5))
        engine.gate.set()
        assert await asyncio.wait_for(told.get(), 10) is False
        assert await outcome(ask(running, job(3, 5))) == (5,)
        watching.cancel()


async def test_a_step_that_never_ends_is_given_up(device: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch ends, and with it the process."""
    monkeypatch.setattr(watchdog, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr("gpu_worker.scheduler.LOST_SECONDS", 0.1)
    monkeypatch.setattr("gpu_worker.scheduler.WATCH_SECONDS", 0.01)
    engine = FakeEngine(device)
    async with scheduler(engine) as running:
        engine.gate.clear()
        ask(running, job(1, 5))
        with pytest.raises(DeviceLost, match="a step of 5 tokens"):
            await asyncio.wait_for(running.watch(_nobody), 10)


async def _nobody(stalls: bool) -> None:
    """Is told nothing."""


@pytest.mark.parametrize(
    ("seconds", "tokens", "speed", "late"),
    [(4.9, 10, 1000.0, False), (5.1, 10, 1000.0, True), (19, 2000, 1000.0, False), (21, 2000, 1000.0, True)],
)
def test_a_step_is_late_at_ten_times_what_its_tokens_predict(
    seconds: float, tokens: int, speed: float, late: bool
) -> None:
    """And not before five seconds."""
    assert (watchdog.overdue(seconds, tokens, speed) > 0) is late
