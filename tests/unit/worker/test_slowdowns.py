"""Long jobs are told how long they take while short ones keep coming, so few are accepted that would be late."""

import random
from collections import Counter

import pytest

from gpu_worker.loop.slowdowns import HALF_LIFE, LATEST, MOST, Slowdowns
from shared.errors import DeadlineExceeded, Overloaded
from shared.jobs import JobResult, Priority
from support.synchronous_engine import job
from support.timed_device import Device

LONG, SHORT_TOKENS, LONG_DEADLINE = [64] * 80, 16, 25.0


def test_a_slowdown_is_what_nine_in_ten_of_the_latest_jobs_kept_to() -> None:
    """By kind; none below 1, none without end, and half of it is forgotten in time."""
    slowdowns = Slowdowns()
    assert slowdowns.factors(now=0.0) == {}
    kind, quick, endless = (Priority.BULK, True), (Priority.BULK, False), (Priority.DEFAULT, True)
    for number in range(1, 101):
        slowdowns.learn(kind, expected=2.0, taken=2.0 * (number % 10), now=1.0)
        slowdowns.learn(quick, expected=1.0, taken=0.5, now=1.0)
        slowdowns.learn(endless, expected=1.0, taken=1000.0, now=1.0)
    assert slowdowns.factors(now=1.0) == {kind: 8.0, endless: MOST}
    assert slowdowns.factors(now=1.0 + HALF_LIFE)[kind] == 4.5
    for _ in range(LATEST):
        slowdowns.learn(kind, expected=2.0, taken=1.0, now=2.0)
    assert slowdowns.factors(now=2.0) == {endless: MOST}


def test_jobs_alone_are_not_slowed_down_by_what_a_step_costs() -> None:
    """Single small jobs take ten times what their tokens take in a full step; beside long work they are accepted."""
    device = Device(speed=100_000.0, overhead=0.01)
    loop = device.loop(step_tokens=2048)
    loop.submit(job(0, *[64] * 100))
    list(loop.until_idle())
    for number in range(1, 60):
        loop.submit(job(number, 16, remaining=0.5))
        list(loop.until_idle())
    assert loop.load.slowdowns == {}
    loop.submit(job(100, *[64] * 100))
    loop.submit(job(101, 16, remaining=0.5))
    assert {each.id: type(each.outcome) for each in loop.until_idle()} == {100: JobResult, 101: JobResult}


@pytest.mark.parametrize("late", [True, False])
def test_what_a_frontend_cancels_late_counts(late: bool) -> None:
    """It cancels a call at its deadline, before the worker finds it late; whoever cancels early tells nothing."""
    device = Device(speed=1000.0)
    loop = device.loop(step_tokens=512)
    loop.submit(job(0, *[64] * 80))
    list(loop.until_idle())
    for number in (1, 2):
        loop.submit(job(number, *[64] * 80))
        loop.advance()
    device.now += 100.0 if late else 1.0
    loop.cancel(2)
    assert bool(loop.load.slowdowns) is late


def endings_of_long_jobs(short_share: float, long_share: float) -> tuple[Counter[type], float]:
    """How long jobs of 5,120 tokens end in a thousand seconds beside short ones, where they ask for such shares of the
    device; and the longest time that one took, as a share of its deadline."""
    device, endings, longest = Device(speed=1000.0), Counter[type](), 0.0
    draws = {"short": random.Random(1), "long": random.Random(2)}
    loop = device.loop(step_tokens=512)
    dues, shares = {"short": 0.0, "long": 0.0}, {"short": short_share, "long": long_share}
    begun, number = dict[int, float](), 0
    while device.now < 1000:
        for kind, due in dues.items():
            while due <= device.now:
                number += 1
                tokens = [SHORT_TOKENS] if kind == "short" else LONG
                try:
                    loop.submit(job(number, *tokens, remaining=LONG_DEADLINE))
                    begun |= {number: device.now} if kind == "long" else {}
                except Overloaded:
                    endings[Overloaded] += kind == "long"
                due += draws[kind].expovariate(shares[kind] * 1000.0 / sum(tokens))
            dues[kind] = due
        ended = loop.advance()
        for each in ended:
            if each.id in begun:
                endings[type(each.outcome)] += 1
                longest = max(longest, (device.now - begun[each.id]) / LONG_DEADLINE)
        if not ended and not loop.queued[1]:
            device.now = min(dues.values())
    return endings, longest


@pytest.mark.parametrize("learns", [True, False])
def test_few_long_jobs_are_accepted_and_late_beside_a_stream_of_short_ones(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short jobs take six tenths of the device, long ones ask for as much again."""
    if not learns:
        monkeypatch.setattr(Slowdowns, "factors", lambda self, now: {})
    endings, _ = endings_of_long_jobs(0.6, 0.6)
    accepted = endings[JobResult] + endings[DeadlineExceeded]
    assert (endings[DeadlineExceeded] <= 0.1 * accepted) is learns
    assert (endings[JobResult] * sum(LONG) >= 0.25 * 1000 * 1000) is learns


def test_what_could_be_answered_in_time_is_hardly_refused() -> None:
    """Where all ask for eight tenths of the device, nine in ten long jobs are answered, and none is late; the slowest
    takes nearly all the time that it has, so estimates leave no more than that unused."""
    endings, longest = endings_of_long_jobs(0.3, 0.5)
    assert endings[DeadlineExceeded] == 0
    assert endings[JobResult] >= 0.9 * endings.total()
    assert 0.8 <= longest <= 1.0
