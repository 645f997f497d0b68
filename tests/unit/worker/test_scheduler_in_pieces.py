"""The scheduler with long texts in pieces: room comes back at once however a job ends, and nobody waits for ever."""

import asyncio
import random
from concurrent.futures import Executor
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.scheduler import Collect, Idle, Launch, Scheduler
from gpu_worker.schedule.steps import EndedJob, JobOutcome
from harness.synchronous_driver import until_idle
from shared.errors import DeadlineExceeded, InputTooLarge, Internal, Overloaded, WorkerUnavailable
from shared.jobs import JobResult
from support import threaded_engine
from support.references import eventually
from support.synchronous_engine import FakeEngine, cut, job, shown
from support.threaded_engine import running_driver

CAPACITY, CHUNK = 64, 8


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def scheduler_of(engine: FakeEngine, clock: Clock) -> Scheduler:
    return Scheduler(engine, step_tokens=16, queued_tokens=10**6, cache_bytes=CAPACITY, clock=clock)


def launch(scheduler: Scheduler) -> None:
    planned = scheduler.plan_step()
    assert planned is not None
    scheduler.launch_step(planned)


@pytest.mark.parametrize("under_way", [0, 1, 2])
@pytest.mark.parametrize("end", ["cancelled", "late", "dropped"])
def test_a_job_that_ends_in_the_middle_gives_back_its_room_at_once(end: str, under_way: int) -> None:
    """Whatever of it is under way; the job that waits for room goes on, and late steps give nothing back twice."""
    clock, engine = Clock(), FakeEngine(chunk=CHUNK)
    scheduler = scheduler_of(engine, clock)
    scheduler.submit(job(1, CAPACITY, remaining=5.0))
    for _ in range(under_way):
        launch(scheduler)
    if not under_way:
        launch(scheduler)
        scheduler.end_step(scheduler.collect_step())
    scheduler.submit(job(2, 40))
    assert scheduler.room.taken == CAPACITY
    if end == "cancelled":
        scheduler.cancel(1)
    elif end == "late":
        clock.now = 6.0
        assert [shown(ended) for ended in scheduler.drop_expired()] == [(1, DeadlineExceeded)]
    else:
        assert len(scheduler.drop_all(WorkerUnavailable("shutting down"))) == 2
    assert scheduler.room.taken == 0
    rest = [shown(ended) for ended in until_idle(scheduler)]
    assert rest == ([] if end == "dropped" else [(2, (8, 8, 8, 8, 8))])
    assert (scheduler.room.taken, scheduler.room.waiting, scheduler.queued) == (0, 0, (0, 0))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_every_job_is_answered_and_all_room_comes_back(seed: int, count: int) -> None:
    """Jobs that come, are cancelled, set aside, late, out of memory, or answered with all of their pieces in order.

    Now and then a frontend is lost, all of whose jobs are cancelled, or a drain has lasted too long and ends all jobs.
    """
    chance = random.Random(seed)
    clock, engine = Clock(), FakeEngine(failing=chance.choice([0, 3]), chunk=chance.choice([5, 8, 13]))
    scheduler = scheduler_of(engine, clock)
    lengths_of: dict[int, list[int]] = {}
    frontend_of: dict[int, str] = {}
    number = 0
    while number < count or lengths_of:
        known = chance.choice(list(lengths_of)) if lengths_of else -1
        ended: list[EndedJob] = []
        match chance.randrange(12):
            case 0 | 1 if number < count:
                number += 1
                lengths = [chance.randint(1, chance.choice([4, CAPACITY])) for _ in range(chance.randint(1, 3))]
                remaining = chance.choice([None, None, 100.0])
                with suppress(Overloaded):  # an answer in time is not to be expected
                    scheduler.submit(job(number, *lengths, remaining=remaining, key=chance.choice("ab")))
                    lengths_of[number], frontend_of[number] = lengths, chance.choice("xyz")
            case 2 if known >= 0:
                scheduler.cancel(known)
                del lengths_of[known]
            case 3:
                scheduler.set_aside(known)
            case 4 | 5:
                scheduler.bring_back(known)
            case 6:
                clock.now += 1.0
                ended = scheduler.drop_expired()
            case 7 if chance.random() < 0.05:
                for lost in [known for known in lengths_of if frontend_of[known] == "x"]:
                    scheduler.cancel(lost)
                    del lengths_of[lost]
            case 7 if chance.random() < 0.05:
                ended = scheduler.drop_all(WorkerUnavailable("shutting down"))
                assert scheduler.room.taken == 0
            case _:
                ended = step(scheduler)
        for answer in ended:
            lengths = lengths_of.pop(answer.id)
            if isinstance(answer.outcome, JobResult):
                assert list(answer.outcome.row_lengths) == cut(lengths, engine.chunk)[0]
            elif not isinstance(answer.outcome, WorkerUnavailable):
                assert isinstance(answer.outcome, DeadlineExceeded | InputTooLarge | Overloaded)
        assert scheduler.room.taken <= CAPACITY
        assert scheduler.queued[1] == len(lengths_of)
    while not isinstance(scheduler.next_action(), Idle):  # steps of jobs that ended
        assert step(scheduler) == []
    assert (scheduler.room.taken, scheduler.room.waiting, scheduler.queued) == (0, 0, (0, 0))


def step(scheduler: Scheduler) -> list[EndedJob]:
    """Carries out an action. Where all that waits must wait for room, the next action is no launch: nothing spins."""
    match scheduler.next_action():
        case Launch():
            planned = scheduler.plan_step()
            if planned is None:
                assert not isinstance(scheduler.next_action(), Launch)
                assert scheduler.room.waiting
            else:
                scheduler.launch_step(planned)
        case Collect():
            return list(scheduler.end_step(scheduler.collect_step()).jobs)
    return []


async def begin_and_set_aside(
    running: Driver, engine: threaded_engine.FakeEngine, remaining: float | None = None
) -> asyncio.Future[JobOutcome]:
    """A job of all room, which is set aside once a step of it was computed; then nothing is under way."""
    future: asyncio.Future[JobOutcome] = asyncio.get_running_loop().create_future()
    engine.gate.clear()
    running.submit(threaded_engine.job(1, CAPACITY, remaining=remaining), future.set_result)
    await eventually(lambda: running._scheduler.room.taken > 0)
    running.set_aside([1])
    engine.gate.set()
    await eventually(lambda: running._scheduler.older_step is None)
    return future


@pytest.mark.parametrize("remaining", [None, 1.0], ids=["cancelled", "late"])
async def test_the_driver_wakes_when_room_comes_back(device: Executor, remaining: float | None) -> None:
    """From a job that is cancelled or late. Nothing is under way, so that no step's end would wake it."""
    engine = threaded_engine.FakeEngine(device, chunk=CHUNK)
    async with running_driver(engine, cache_bytes=CAPACITY, step_tokens=16) as running:
        first = await begin_and_set_aside(running, engine, remaining)
        second = threaded_engine.ask(running, threaded_engine.job(2, 40))
        await eventually(lambda: running._scheduler.room.waiting == 1 or first.done())
        if remaining is None:
            running.cancel([1])
        else:
            assert await threaded_engine.outcome(first) is DeadlineExceeded
        assert await threaded_engine.outcome(second) == (8, 8, 8, 8, 8)
        assert running._scheduler.room.taken == 0


async def test_the_driver_wakes_when_the_first_in_line_is_set_aside(device: Executor) -> None:
    engine = threaded_engine.FakeEngine(device, chunk=CHUNK)
    async with running_driver(engine, cache_bytes=CAPACITY + 30, step_tokens=16) as running:
        first = await begin_and_set_aside(running, engine)
        second, third = (
            threaded_engine.ask(running, threaded_engine.job(number, size)) for number, size in ((2, 60), (3, 20))
        )
        await eventually(lambda: running._scheduler.room.waiting == 2)
        running.set_aside([2])
        assert await threaded_engine.outcome(third) == (8, 8, 4)
        running.bring_back([1, 2])
        assert await threaded_engine.outcome(second) == (8,) * 7 + (4,)
        await first
        assert running._scheduler.room.taken == 0


@pytest.mark.parametrize("seed", range(4))
async def test_the_asynchronous_driver_answers_every_job(device: Executor, seed: int) -> None:
    """While jobs are cancelled, set aside and brought back."""
    chance, engine = random.Random(seed), threaded_engine.FakeEngine(device, chunk=CHUNK)
    async with running_driver(engine, cache_bytes=CAPACITY, step_tokens=16) as running:
        futures = {}
        for number in range(1, 120):
            lengths = [chance.randint(1, chance.choice([4, CAPACITY])) for _ in range(chance.randint(1, 3))]
            futures[number] = lengths, threaded_engine.ask(running, threaded_engine.job(number, *lengths))
            known = chance.choice(list(futures))
            match chance.randrange(4):
                case 0:
                    running.cancel([known])
                    if not futures[known][1].done():
                        del futures[known]
                case 1:
                    running.set_aside([known])
                case 2:
                    running.bring_back([known])
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        running.bring_back(list(futures))
        for lengths, future in futures.values():
            outcome = await threaded_engine.outcome(future)
            assert outcome == tuple(cut(lengths, CHUNK)[0])
        await eventually(lambda: running._scheduler.older_step is None)
        assert (running._scheduler.room.taken, running._scheduler.room.waiting) == (0, 0)


async def test_a_bug_in_a_piece_fails_its_own_job(device: Executor) -> None:
    async with running_driver(threaded_engine.FakeEngine(device, chunk=20), cache_bytes=CAPACITY) as running:
        futures = [
            threaded_engine.ask(running, threaded_engine.job(number, size)) for number, size in ((1, 53), (2, 60))
        ]
        outcomes = [await threaded_engine.outcome(future) for future in futures]
        assert outcomes == [Internal, (20, 20, 20)]
        assert running._scheduler.room.taken == 0


def test_a_piece_is_late_by_its_whole_text() -> None:
    """Its tokens attend to all that came before; where texts end, their outputs are no brief work."""
    scheduler = Scheduler(FakeEngine(chunk=512), step_tokens=512, queued_tokens=10_000)
    scheduler.submit(job(1, 5000))
    extents, brief = [], []
    while (planned := scheduler.plan_step()) is not None:
        brief.append(planned.brief)
        scheduler.launch_step(planned)
        assert scheduler.step_running is not None
        extents.append(scheduler.step_running[1])
        scheduler.end_step(scheduler.collect_step())
    assert extents == [512, *[5512] * 8, 5000 + 5000 % 512]
    assert brief == [*[True] * 9, False]
