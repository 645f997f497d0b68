"""What the scheduler answers, when, and whom it refuses; at most two steps are under way.

What fails in one leaves the other's answers.
"""

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from gpu_worker.schedule.scheduler import LEAD_SECONDS, Idle, Launch, Scheduler, Wait
from gpu_worker.schedule.steps import EndedJob
from harness.synchronous_driver import advance, until_idle
from shared.errors import DeadlineExceeded, InputTooLarge, Internal, Overloaded
from shared.jobs import Job, JobResult, Priority
from shared.tasks import Inline
from support.synchronous_engine import FakeEngine, FakeFlight, job, shown
from support.timed_device import Device


def served(engine: FakeEngine, *jobs: Job, step_tokens: int = 100) -> list[EndedJob]:
    scheduler = Scheduler(engine, step_tokens=step_tokens, queued_tokens=10**9)
    for submitted in jobs:
        scheduler.submit(submitted)
    return list(until_idle(scheduler))


def test_the_next_step_is_launched_before_the_last_is_collected() -> None:
    """Whenever work waits; never three are under way, and answers come in order."""
    engine = FakeEngine()
    answers = served(engine, *(job(number, 100) for number in range(1, 6)))
    assert [answer.id for answer in answers] == [1, 2, 3, 4, 5]
    launches = [engine.events.index(("launch", number)) for number in range(1, 6)]
    collects = [engine.events.index(("collect", number)) for number in range(1, 6)]
    assert all(launches[number + 1] < collects[number] for number in range(4))
    assert all(collects[number] < launches[number + 2] for number in range(3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=8), min_size=1, max_size=8), st.integers(20, 150))
def test_every_job_is_answered_once_and_whole(lengths: list[list[int]], step_tokens: int) -> None:
    """However jobs are cut into steps; two steps at most are under way."""
    engine = FakeEngine()
    answers = served(engine, *(job(number, *sizes) for number, sizes in enumerate(lengths)), step_tokens=step_tokens)
    assert sorted(map(shown, answers)) == [(number, tuple(sizes)) for number, sizes in enumerate(lengths)]
    under_way = 0
    for event, _ in engine.events:
        under_way += 1 if event == "launch" else -1
        assert 0 <= under_way <= 2


def test_out_of_memory_in_the_next_step_leaves_the_last_one_answered() -> None:
    engine = FakeEngine(failing=10)
    answers = served(engine, job(1, 100), job(2, 13, 87), job(3, 100))
    assert sorted(map(shown, answers)) == [(1, (100,)), (2, InputTooLarge), (3, (100,))]


def test_a_step_that_cannot_be_launched_fails_its_jobs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug of ours on the host, which is told with its trace; the others go on."""
    engine = FakeEngine()
    honest = engine.launch

    def broken(parts: Sequence[JobSlice]) -> FakeFlight:
        if any(part.job.job.id == 2 for part in parts):
            raise RuntimeError("a bug")
        return honest(parts)

    engine.launch = broken
    scheduler = Scheduler(engine, step_tokens=300, queued_tokens=1000)
    for number in (1, 2, 3):
        scheduler.submit(job(number, 50))
    assert sorted(map(shown, until_idle(scheduler))) == [(1, (50,)), (2, Internal), (3, (50,))]
    printed = capsys.readouterr().err
    assert (printed.count("step failed"), printed.count("RuntimeError: a bug")) == (2, 2)


@pytest.mark.parametrize(("waits", "worth"), [(0, False), (60, False), (99, False), (100, True), (200, True)])
def test_a_step_is_launched_early_once_it_is_whole(waits: int, worth: bool) -> None:
    """Less would leave out what comes while the other is computed: requests would be computed one by one."""
    scheduler = Scheduler(FakeEngine(), step_tokens=100, queued_tokens=1000)
    assert scheduler.next_action() == Idle()
    scheduler.submit(job(1, 60))
    assert scheduler.next_action() == Launch()
    assert advance(scheduler) == []
    assert scheduler.older_step is not None
    scheduler.older_step.handle.arrived = Future()  # it has not arrived
    if waits:
        scheduler.submit(job(2, *[1] * waits))
    assert scheduler.next_action() == (Launch() if worth else Wait(inf))


def test_the_next_step_is_launched_shortly_before_the_end_of_a_long_one() -> None:
    """Not at once, so that jobs that come meanwhile are in it; and not after the end, so that the device goes on."""
    device = Device(speed=100.0)
    scheduler = device.warm_scheduler()
    assert scheduler.older_step is not None
    scheduler.older_step.handle.arrived = Future()
    scheduler.submit(job(1, *[10] * 10))
    action = scheduler.next_action()
    assert isinstance(action, Wait)
    assert action.seconds == pytest.approx(1.0 - LEAD_SECONDS)
    device.now += action.seconds + 1e-9
    assert scheduler.next_action() == Launch()


def test_one_failure_does_not_end_batching() -> None:
    """Only steps that go on with the failed job are run again, and nothing is launched behind one that will be."""
    engine = FakeEngine(failing=1)
    jobs = [job(1, 13, *[10] * 60), *(job(number, *[10] * 20) for number in range(2, 12))]
    answers = served(engine, *jobs)
    assert sorted(map(shown, answers)) == [(submitted.id, tuple(submitted.tokens.lengths)) for submitted in jobs]
    steps = -(-sum(sum(submitted.tokens.lengths) for submitted in jobs) // 100)
    assert engine.launched <= steps + 40


def test_what_a_failed_step_held_is_free_before_it_is_run_again() -> None:
    """Its frames would keep its tensors, whose memory the retry needs."""

    class Tensors:
        pass

    held: list[weakref.ref[Tensors]] = []
    engine = FakeEngine()
    honest = engine.launch

    def failing() -> None:
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        raise OutOfMemory

    def launch(parts: Sequence[JobSlice]) -> FakeFlight:
        if not held:
            future: Future[None] = Inline().submit(failing)
            flight = honest(parts)
            flight.collect = future.result
            return flight
        assert held[0]() is None
        return honest(parts)

    engine.launch = launch
    assert list(map(shown, served(engine, job(1, 10), job(2, 20)))) == [(1, (10,)), (2, (20,))]


def test_waiting_behind_the_older_step_is_no_computing() -> None:
    """Times and speed count from when the device was free."""
    scheduler = Device(speed=100.0).scheduler()
    for number in (1, 2, 3):
        scheduler.submit(job(number, 100))
    outcomes = [answer.outcome for answer in until_idle(scheduler)]
    assert all(isinstance(outcome, JobResult) for outcome in outcomes)
    times = [(outcome.queue, outcome.compute) for outcome in outcomes if isinstance(outcome, JobResult)]
    assert times == [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)]


def test_a_job_that_would_be_late_is_refused() -> None:
    """What is under way, what goes before it and itself count; who has more time, or a higher class, is taken."""
    scheduler = Device().warm_scheduler()
    scheduler.submit(job(1, *[10] * 50))
    with pytest.raises(Overloaded, match=r"needs 0\.2 s, up to 6\.2 s .*, 7\.8 s if .* deadline is in 3\.0 s") as late:
        scheduler.submit(job(2, 20, remaining=3.0))
    assert late.value.retry_after == pytest.approx(6.0, abs=0.05)
    scheduler.submit(job(3, 20, remaining=10.0))
    scheduler.submit(job(4, 20, remaining=4.0, priority=Priority.INTERACTIVE))
    assert scheduler.refused == {"deadline": 1}


def test_its_own_size_alone_refuses_no_job() -> None:
    """An idle worker takes it, whatever it predicts; it may be wrong."""
    device = Device()
    scheduler = device.scheduler(queued_tokens=10, queue_seconds=0.001)
    scheduler.submit(job(1, 100))
    list(until_idle(scheduler))
    scheduler.submit(job(2, *[10] * 50, remaining=1.0))
    assert [shown(answer) for answer in until_idle(scheduler)] == [(2, DeadlineExceeded)]


def test_a_job_that_would_wait_too_long_is_refused() -> None:
    """Though it has no deadline. Its own size does not count, nor does what goes after it."""
    scheduler = Device().warm_scheduler(queue_seconds=10.0)
    scheduler.submit(job(1, *[10] * 1000))
    with pytest.raises(Overloaded, match=r"it would wait up to 1\d\d\.\d s, the limit is 10 s") as refused:
        scheduler.submit(job(2, *[10] * 1000))
    assert refused.value.retry_after == 60.0
    scheduler.submit(job(3, *[10] * 10))
    scheduler.submit(job(4, *[10] * 100, priority=Priority.INTERACTIVE))
    assert scheduler.refused == {"queue_seconds": 1}


def test_too_many_tokens_are_refused() -> None:
    """Those of jobs that are set aside count, since they take up room."""
    scheduler = Device().scheduler(queued_tokens=100)
    scheduler.submit(job(1, 60))
    scheduler.set_aside(1)
    assert (scheduler.load.queued_tokens, scheduler.load.backlogs, scheduler.next_action()) == (60, {}, Idle())
    with pytest.raises(Overloaded, match="60 tokens wait, this job costs 50, the limit is 100") as refused:
        scheduler.submit(job(2, 50))
    assert (refused.value.retry_after, scheduler.refused) == (1.0, {"queued_tokens": 1})
    scheduler.bring_back(1)
    assert [shown(answer) for answer in until_idle(scheduler)] == [(1, (60,))]


def test_a_job_that_is_cancelled_before_it_is_computed_is_counted() -> None:
    """One that is under way, or answered, is not."""
    scheduler = Device().scheduler()
    for number in (1, 2):
        scheduler.submit(job(number, 100))
    advance(scheduler)
    for number in (1, 2, 2):
        scheduler.cancel(number)
    assert scheduler.cancelled_waiting == 1


@pytest.mark.parametrize("overhead", [0.0, 0.2])
def test_a_step_is_bounded_in_time(overhead: float) -> None:
    """Once the speed is known, whatever a step costs by itself; single requests in between make steps no shorter."""
    device = Device(speed=1000.0, overhead=overhead)
    scheduler = device.scheduler(step_tokens=5000, step_seconds=1.0)
    for number in range(50):
        scheduler.submit(job(number, 10))
        list(until_idle(scheduler))
    before = len(device.steps)
    scheduler.submit(job(100, *[10] * 5000))
    list(until_idle(scheduler))
    seconds = [overhead + tokens / 1000.0 for tokens in device.steps[before:]]
    assert max(seconds) <= 1.3
    assert all(second >= 0.7 for second in seconds[-20:-1])


def test_a_loop_tells_its_budget() -> None:
    """The most tokens of a step; a bounded one begins with few, and follows the speed."""
    assert Device().scheduler(step_tokens=5000).budget == 5000
    scheduler = Device(speed=1000.0).scheduler(step_tokens=5000, step_seconds=1.0)
    assert scheduler.budget == 256
    scheduler.submit(job(1, 250))
    list(until_idle(scheduler))
    assert scheduler.budget == 1000


def test_jobs_are_planned_by_their_class_key_and_deadline() -> None:
    scheduler = Device().scheduler(step_tokens=10)
    scheduler.submit(job(1, 10, priority=Priority.BULK))
    scheduler.submit(job(2, *[10] * 10, key="a"))
    scheduler.submit(job(3, 10, key="b"))
    scheduler.submit(job(4, 10, key="c", remaining=1000.0))
    scheduler.submit(job(5, 10, priority=Priority.INTERACTIVE))
    order = [answer.id for answer in until_idle(scheduler)]
    assert order[:2] == [5, 4]
    assert order.index(3) < order.index(2)


def test_deadlines_of_answered_jobs_do_not_pile_up() -> None:
    """A day each; only jobs that are held count."""
    scheduler = Device().scheduler(queued_tokens=10**9)
    for number in range(1000):
        scheduler.submit(job(number, 1, remaining=86_400.0))
        list(until_idle(scheduler))
    assert len(scheduler._deadlines) < 100


def test_a_step_that_failed_tells_nothing_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took no time at all; later jobs would be promised the impossible."""
    device = Device()
    scheduler = device.scheduler()
    scheduler.submit(job(1, 100))
    list(until_idle(scheduler))
    before = scheduler.load.tokens_per_second

    def broken(parts: Sequence[JobSlice]) -> FakeFlight:
        raise RuntimeError("a bug")

    monkeypatch.setattr(device.engine, "launch", broken)
    scheduler.submit(job(2, 100))
    assert [shown(answer) for answer in until_idle(scheduler)] == [(2, Internal)]
    assert scheduler.load.tokens_per_second == before


def test_jobs_that_came_since_a_load_was_made_count() -> None:
    """Jobs that come together are admitted by one load."""
    scheduler = Device().warm_scheduler(queued_tokens=250)
    for number in range(25):
        scheduler.submit(job(number, 10))
    with pytest.raises(Overloaded, match="250 tokens wait, this job costs 10, the limit is 250"):
        scheduler.submit(job(25, 10))
