"""What the scheduler does by its clock: whom it refuses, how large steps are, and what it tells of them."""

from collections.abc import Sequence

import pytest

from gpu_worker.schedule.interface import JobSlice
from gpu_worker.schedule.scheduler import LOAD_SECONDS, Idle, Scheduler
from harness.synchronous_driver import advance, until_idle
from shared.errors import DeadlineExceeded, Internal, Overloaded
from shared.jobs import JobResult, Priority
from shared.load import Load
from support.synchronous_engine import FakeFlight, job, shown
from support.timed_device import Device


def test_waiting_behind_the_older_step_is_no_computing() -> None:
    """Times and speed count from when the device was free."""
    loop = Device(speed=100.0).loop()
    for each in (1, 2, 3):
        loop.submit(job(each, 100))
    outcomes = [answer.outcome for answer in until_idle(loop)]
    assert all(isinstance(outcome, JobResult) for outcome in outcomes)
    times = [(outcome.queue, outcome.compute) for outcome in outcomes if isinstance(outcome, JobResult)]
    assert times == [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)]


def test_a_job_that_would_be_late_is_refused() -> None:
    """What is under way, what goes before it and itself count; who has more time, or a higher class, is taken."""
    loop = Device().warm_loop()
    loop.submit(job(1, *[10] * 50))
    with pytest.raises(Overloaded, match=r"needs 0\.2 s, up to 6\.2 s .*, 7\.8 s if .* deadline is in 3\.0 s") as late:
        loop.submit(job(2, 20, remaining=3.0))
    assert late.value.retry_after == pytest.approx(6.0, abs=0.05)
    loop.submit(job(3, 20, remaining=10.0))
    loop.submit(job(4, 20, remaining=4.0, priority=Priority.INTERACTIVE))
    assert loop.refused == {"deadline": 1}


def test_a_slow_but_honest_load_is_taken() -> None:
    """Seventeen calls that come together, and the last is answered after 22 of its 30 seconds: none is refused."""
    device = Device()
    loop = device.warm_loop()
    for number in range(17):
        loop.submit(job(number, *[10] * 13, remaining=30.0))
    assert [shown(answer)[1] for answer in until_idle(loop) if answer.id >= 0] == [(10,) * 13] * 17
    assert loop.refused == {}


def test_its_own_size_alone_refuses_no_job() -> None:
    """An idle worker takes it, whatever it predicts; it may be wrong."""
    device = Device()
    loop = device.loop(queued_tokens=10, queue_seconds=0.001)
    loop.submit(job(1, 100))
    list(until_idle(loop))
    loop.submit(job(2, *[10] * 50, remaining=1.0))
    assert [shown(answer) for answer in until_idle(loop)] == [(2, DeadlineExceeded)]


def test_a_job_that_would_wait_too_long_is_refused() -> None:
    """Though it has no deadline. Its own size does not count, nor does what goes after it."""
    loop = Device().warm_loop(queue_seconds=10.0)
    loop.submit(job(1, *[10] * 1000))
    with pytest.raises(Overloaded, match=r"it would wait up to 1\d\d\.\d s, the limit is 10 s") as refused:
        loop.submit(job(2, *[10] * 1000))
    assert refused.value.retry_after == 60.0
    loop.submit(job(3, *[10] * 10))
    loop.submit(job(4, *[10] * 100, priority=Priority.INTERACTIVE))
    assert loop.refused == {"queue_seconds": 1}


def test_too_many_tokens_are_refused() -> None:
    """Those of jobs that are set aside count, since they take up room."""
    loop = Device().loop(queued_tokens=100)
    loop.submit(job(1, 60))
    loop.set_aside(1)
    assert (loop.load.queued_tokens, loop.load.backlogs, loop.next_action()) == (60, {}, Idle())
    with pytest.raises(Overloaded, match="60 tokens wait, this job costs 50, the limit is 100") as refused:
        loop.submit(job(2, 50))
    assert (refused.value.retry_after, loop.refused) == (1.0, {"queued_tokens": 1})
    loop.bring_back(1)
    assert [shown(answer) for answer in until_idle(loop)] == [(1, (60,))]


def test_a_job_that_is_cancelled_before_it_is_computed_is_counted() -> None:
    """One that is under way, or answered, is not."""
    loop = Device().loop()
    for each in (1, 2):
        loop.submit(job(each, 100))
    advance(loop)
    for each in (1, 2, 2):
        loop.cancel(each)
    assert loop.cancelled_waiting == 1


@pytest.mark.parametrize("overhead", [0.0, 0.2])
def test_a_step_is_bounded_in_time(overhead: float) -> None:
    """Once the speed is known, whatever a step costs by itself; single requests in between make steps no shorter."""
    device = Device(speed=1000.0, overhead=overhead)
    loop = device.loop(step_tokens=5000, step_seconds=1.0)
    for each in range(50):
        loop.submit(job(each, 10))
        list(until_idle(loop))
    before = len(device.steps)
    loop.submit(job(100, *[10] * 5000))
    list(until_idle(loop))
    seconds = [overhead + tokens / 1000.0 for tokens in device.steps[before:]]
    assert max(seconds) <= 1.3
    assert all(each >= 0.7 for each in seconds[-20:-1])


def test_a_slow_device_computes_small_steps_but_not_tiny_ones() -> None:
    """A step has costs of its own."""
    device = Device(speed=10.0)
    loop = device.loop(step_tokens=5000, step_seconds=0.1)
    loop.submit(job(1, *[8] * 500))
    list(until_idle(loop))
    assert set(device.steps[:-1]) == {256}


def test_a_loop_tells_its_budget() -> None:
    """The most tokens of a step; a bounded one begins with few, and follows the speed."""
    assert Device().loop(step_tokens=5000).budget == 5000
    loop = Device(speed=1000.0).loop(step_tokens=5000, step_seconds=1.0)
    assert loop.budget == 256
    loop.submit(job(1, 250))
    list(until_idle(loop))
    assert loop.budget == 1000


def test_jobs_are_planned_by_their_class_key_and_deadline() -> None:
    """As they say."""
    loop = Device().loop(step_tokens=10)
    loop.submit(job(1, 10, priority=Priority.BULK))
    loop.submit(job(2, *[10] * 10, key="a"))
    loop.submit(job(3, 10, key="b"))
    loop.submit(job(4, 10, key="c", remaining=1000.0))
    loop.submit(job(5, 10, priority=Priority.INTERACTIVE))
    order = [answer.id for answer in until_idle(loop)]
    assert order[:2] == [5, 4]
    assert order.index(3) < order.index(2)


def test_deadlines_of_answered_jobs_do_not_pile_up() -> None:
    """A day each; only jobs that are held count."""
    loop = Device().loop(queued_tokens=10**9)
    for number in range(1000):
        loop.submit(job(number, 1, remaining=86_400.0))
        list(until_idle(loop))
    assert len(loop._deadlines) < 100


def test_a_step_that_failed_tells_nothing_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took no time at all; later jobs would be promised the impossible."""
    device = Device()
    loop = device.loop()
    loop.submit(job(1, 100))
    list(until_idle(loop))
    before = loop.load.tokens_per_second

    def broken(parts: Sequence[JobSlice]) -> FakeFlight:
        raise RuntimeError("a bug")

    monkeypatch.setattr(device.engine, "launch", broken)
    loop.submit(job(2, 100))
    assert [shown(answer) for answer in until_idle(loop)] == [(2, Internal)]
    assert loop.load.tokens_per_second == before


def test_jobs_that_come_together_are_admitted_by_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came since it was made count. After a step's tokens, after a while, and once one is planned, another
    one is made."""
    device = Device()
    loop, made, load = device.warm_loop(queued_tokens=250), list[float](), Scheduler.load

    def counted(scheduler: Scheduler) -> Load:
        made.append(device.now)
        return load.fget(scheduler)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(Scheduler, "load", property(counted))
    for number in range(11):
        loop.submit(job(number, 10))
    assert len(made) == 1
    loop.submit(job(11, 10))
    assert len(made) == 2
    device.now += 2 * LOAD_SECONDS
    for number in range(12, 25):
        loop.submit(job(number, 10))
    with pytest.raises(Overloaded, match="250 tokens wait, this job costs 10, the limit is 250"):
        loop.submit(job(25, 10))
    before = len(made)
    list(until_idle(loop))
    for number in range(30, 35):
        loop.submit(job(number, 10))
    assert (before, len(made)) == (4, 5)
