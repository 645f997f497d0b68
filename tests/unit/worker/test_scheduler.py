"""Two steps at most are under way, in order, and what fails in one leaves the other's answers."""

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from gpu_worker.schedule.scheduler import Idle, Launch, Scheduler, Wait
from gpu_worker.schedule.steps import EndedJob
from harness.synchronous_driver import advance, until_idle
from shared.errors import InputTooLarge, Internal
from shared.jobs import Job
from shared.offload import Inline
from support.synchronous_engine import FakeEngine, FakeFlight, job, shown


def served(engine: FakeEngine, *jobs: Job, step_tokens: int = 100) -> list[EndedJob]:
    loop = Scheduler(engine, step_tokens=step_tokens, queued_tokens=10**9)
    for each in jobs:
        loop.submit(each)
    return list(until_idle(loop))


def test_the_next_step_is_launched_before_the_last_is_collected() -> None:
    """Whenever work waits; never three are under way, and answers come in order."""
    engine = FakeEngine()
    answers = served(engine, *(job(each, 100) for each in range(1, 6)))
    assert [answer.id for answer in answers] == [1, 2, 3, 4, 5]
    launches = [engine.events.index(("launch", each)) for each in range(1, 6)]
    collects = [engine.events.index(("collect", each)) for each in range(1, 6)]
    assert all(launches[each + 1] < collects[each] for each in range(4))
    assert all(collects[each] < launches[each + 2] for each in range(3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), min_size=1, max_size=8), st.integers(20, 150))
def test_every_job_is_answered_once_and_whole(lengths: list[list[int]], step_tokens: int) -> None:
    """However jobs are cut into steps; two steps at most are under way."""
    engine = FakeEngine()
    answers = served(engine, *(job(each, *own) for each, own in enumerate(lengths)), step_tokens=step_tokens)
    assert sorted(map(shown, answers)) == [(each, tuple(own)) for each, own in enumerate(lengths)]
    under_way = 0
    for event, _ in engine.events:
        under_way += 1 if event == "launch" else -1
        assert 0 <= under_way <= 2


def test_out_of_memory_in_the_next_step_leaves_the_last_one_answered() -> None:
    """And itself fails its own job only."""
    engine = FakeEngine(failing=10)
    answers = served(engine, job(1, 100), job(2, 13, 87), job(3, 100))
    assert sorted(map(shown, answers)) == [(1, (100,)), (2, InputTooLarge), (3, (100,))]


def test_a_step_behind_a_failed_one_is_run_again() -> None:
    """It may have missed rows that the failed one should have left: its own result counts for nothing."""
    engine = FakeEngine(failing=1)
    answers = served(engine, job(1, 13, 87, 50, 50, 100))
    assert list(map(shown, answers)) == [(1, (13, 87, 50, 50, 100))]


def test_a_step_that_cannot_be_launched_fails_its_jobs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug of ours on the host, which is told with its trace; the others go on."""
    engine = FakeEngine()
    honest = engine.launch

    def broken(parts: Sequence[JobSlice]) -> FakeFlight:
        if any(part.job.job.id == 2 for part in parts):
            raise RuntimeError("a bug")
        return honest(parts)

    engine.launch = broken
    loop = Scheduler(engine, step_tokens=300, queued_tokens=1000)
    for each in (1, 2, 3):
        loop.submit(job(each, 50))
    assert sorted(map(shown, until_idle(loop))) == [(1, (50,)), (2, Internal), (3, (50,))]
    printed = capsys.readouterr().err
    assert (printed.count("step failed"), printed.count("RuntimeError: a bug")) == (2, 2)


@pytest.mark.parametrize(("waits", "worth"), [(0, False), (60, False), (99, False), (100, True), (200, True)])
def test_a_step_is_launched_early_once_it_is_whole(waits: int, worth: bool) -> None:
    """Less would leave out what comes while the other is computed: requests would be computed one by one."""
    loop = Scheduler(FakeEngine(), step_tokens=100, queued_tokens=1000)
    assert loop.next_action() == Idle()
    loop.submit(job(1, 60))
    assert loop.next_action() == Launch()
    assert advance(loop) == []
    assert loop.older_step is not None
    loop.older_step.handle.arrived = Future()  # it has not arrived
    if waits:
        loop.submit(job(2, *[1] * waits))
    assert loop.next_action() == (Launch() if worth else Wait(inf))


def test_one_failure_does_not_end_batching() -> None:
    """Only steps that go on with the failed job are run again, and nothing is launched behind one that will be."""
    engine = FakeEngine(failing=1)
    jobs = [job(1, 13, *[10] * 60), *(job(each, *[10] * 20) for each in range(2, 12))]
    answers = served(engine, *jobs)
    assert sorted(map(shown, answers)) == [(each.id, tuple(each.tokens.lengths)) for each in jobs]
    steps = -(-sum(sum(each.tokens.lengths) for each in jobs) // 100)
    assert engine.launched <= steps + 40


def test_what_a_failed_step_held_is_free_before_it_is_run_again() -> None:
    """Its frames would keep its tensors, whose memory the retry needs."""

    class Tensors:
        pass

    kept: list[weakref.ref[Tensors]] = []
    engine = FakeEngine()
    honest = engine.launch

    def failing() -> None:
        tensors = Tensors()
        kept.append(weakref.ref(tensors))
        raise OutOfMemory

    def launch(parts: Sequence[JobSlice]) -> FakeFlight:
        if not kept:
            future: Future[None] = Inline().submit(failing)
            flight = honest(parts)
            flight.collect = future.result
            return flight
        assert kept[0]() is None
        return honest(parts)

    engine.launch = launch
    assert list(map(shown, served(engine, job(1, 10), job(2, 20)))) == [(1, (10,)), (2, (20,))]
