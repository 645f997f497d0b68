"""How fast steps are, by those that ended; long jobs expect the pace that short ones leave them that keep coming, so
few are accepted that would be late."""

import random
from collections import Counter

import pytest

from gpu_worker.schedule.load import FRESH_STEPS, Pace, StepBudget
from harness.synchronous_driver import advance, until_idle
from shared.errors import DeadlineExceeded, Overloaded
from shared.jobs import JobResult
from support.synchronous_engine import job
from support.timed_device import Device

LONG, SHORT_TOKENS, LONG_DEADLINE = [64] * 80, 16, 25.0


def test_jobs_alone_leave_others_their_pace() -> None:
    """Single small jobs take ten times what their tokens take in a full step; beside long work they are accepted."""
    device = Device(speed=100_000.0, overhead=0.01)
    scheduler = device.scheduler(step_tokens=2048)
    scheduler.submit(job(0, *[64] * 100))
    list(until_idle(scheduler))
    for number in range(1, 60):
        scheduler.submit(job(number, 16, remaining=0.5))
        list(until_idle(scheduler))
    scheduler.submit(job(100, *[64] * 100, remaining=0.5))
    scheduler.submit(job(101, 16, remaining=0.5))
    assert {each.id: type(each.outcome) for each in until_idle(scheduler)} == {100: JobResult, 101: JobResult}


def endings_of_long_jobs(short_share: float, long_share: float, seconds: int) -> tuple[Counter[type], float]:
    """How long jobs of 5,120 tokens end in so many seconds beside short ones, where they ask for such shares of the
    device; and the longest time that one took, as a share of its deadline."""
    device, endings, longest = Device(speed=1000.0), Counter[type](), 0.0
    draws = {"short": random.Random(1), "long": random.Random(2)}
    scheduler = device.scheduler(step_tokens=512)
    dues, shares = {"short": 0.0, "long": 0.0}, {"short": short_share, "long": long_share}
    begun, number = dict[int, float](), 0
    while device.now < seconds:
        for kind, due in dues.items():
            while due <= device.now:
                number += 1
                tokens = [SHORT_TOKENS] if kind == "short" else LONG
                try:
                    scheduler.submit(job(number, *tokens, remaining=LONG_DEADLINE))
                    begun |= {number: device.now} if kind == "long" else {}
                except Overloaded:
                    endings[Overloaded] += kind == "long"
                due += draws[kind].expovariate(shares[kind] * 1000.0 / sum(tokens))
            dues[kind] = due
        ended = advance(scheduler)
        for each in ended:
            if each.id in begun:
                endings[type(each.outcome)] += 1
                longest = max(longest, (device.now - begun[each.id]) / LONG_DEADLINE)
        if not ended and not scheduler.queued[1]:
            device.now = min(dues.values())
    return endings, longest


def test_few_long_jobs_are_accepted_and_late_beside_a_stream_of_short_ones() -> None:
    """Short jobs take six tenths of the device, long ones ask for as much again. What is left is mostly used."""
    endings, _ = endings_of_long_jobs(0.6, 0.6, 400)
    accepted = endings[JobResult] + endings[DeadlineExceeded]
    assert endings[DeadlineExceeded] <= 0.1 * accepted
    assert endings[JobResult] * sum(LONG) >= 0.25 * 400 * 1000


def test_what_could_be_answered_in_time_is_hardly_refused() -> None:
    """Where all ask for eight tenths of the device, nine in ten long jobs are answered, and hardly any is late; the
    slowest takes nearly all the time that it has, so estimates leave no more than that unused."""
    endings, longest = endings_of_long_jobs(0.3, 0.5, 1000)
    assert endings[DeadlineExceeded] <= 0.03 * endings.total()
    assert endings[JobResult] >= 0.9 * endings.total()
    assert longest >= 0.8


def test_what_a_step_did_not_compute_makes_no_longer_steps() -> None:
    """The next one may share no tokens, and must end in time as well; jobs are promised the speed that they get."""
    budget = StepBudget(step_tokens=8192, step_seconds=1.0)
    for _ in range(300):
        budget.learn(2048, 1.0, spared=0, computed=1000)
        assert budget.tokens == 1000
    assert budget.speed == pytest.approx(2048)


def learn(pace: Pace, tokens: int, seconds: float) -> None:
    """A step that shows how fast steps can be, and that shares no tokens."""
    pace.learn(tokens, seconds, full=True, computed=tokens)


def test_what_was_slow_once_is_tried_again() -> None:
    """By what smaller steps show, once it is long ago."""
    pace = Pace()
    learn(pace, 1000, 100.0)
    for _ in range(FRESH_STEPS - 1):
        learn(pace, 500, 0.05)
    assert pace.speed(1000) == 10
    learn(pace, 500, 0.05)
    assert round(pace.speed(1000)) == 10_000


def test_what_looks_fast_for_once_is_no_measure() -> None:
    """Nor are small steps, which may hold no sequence at all; nor is a processor that is busy for a while."""
    pace = Pace()
    assert pace.quick == 0
    for _ in range(40):
        learn(pace, 256, 0.5)
        learn(pace, 2, 0.001)
    learn(pace, 256, 0.001)
    assert pace.quick == 512
    for _ in range(100):
        learn(pace, 256, 2.0)
        pace.learn(150, 0.01, full=False, computed=150)
    for _ in range(100):
        learn(pace, 256, 0.5)
    assert pace.quick == 512
