"""Long jobs are told how long they take while short ones keep coming, so few are accepted that would be late."""

import random
from collections import Counter

import pytest

from gpu_worker.queue.slowdowns import MOST, Slowdowns
from shared.errors import DeadlineExceeded, Overloaded
from shared.jobs import JobResult, Priority
from support.synchronous_engine import job
from support.timed_device import Device

LONG, SHORT_TOKENS, LONG_DEADLINE = [64] * 80, 16, 15.0


def test_a_slowdown_is_what_the_latest_jobs_took_over_what_was_expected() -> None:
    """By kind; none below 1, none without end."""
    slowdowns = Slowdowns()
    assert slowdowns.factors() == {}
    kind, other, endless = (Priority.BULK, True), (Priority.BULK, False), (Priority.DEFAULT, True)
    for _ in range(1000):
        slowdowns.learn(kind, expected=1.0, taken=9.0)
        slowdowns.learn(other, expected=1.0, taken=0.5)
        slowdowns.learn(endless, expected=1.0, taken=1000.0)
    assert slowdowns.factors() == {kind: pytest.approx(9.0), endless: MOST}
    for _ in range(100):
        slowdowns.learn(kind, expected=1.0, taken=2.0)
    assert slowdowns.factors()[kind] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("learns", [True, False])
def test_few_long_jobs_are_accepted_and_late_beside_a_stream_of_short_ones(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short jobs take six tenths of the device, long ones of 5,120 tokens ask for as much again; a thousand seconds."""
    if not learns:
        monkeypatch.setattr(Slowdowns, "factors", lambda self: {})
    device, draw, endings = Device(speed=1000.0), random.Random(1), Counter[type]()
    loop = device.loop(step_tokens=512)
    dues = {"short": 0.0, "long": 0.0}
    longs, number = set[int](), 0
    while device.now < 1000:
        for kind, due in dues.items():
            while due <= device.now:
                number += 1
                tokens = [SHORT_TOKENS] if kind == "short" else LONG
                try:
                    loop.submit(job(number, *tokens, remaining=LONG_DEADLINE))
                    longs |= {number} if kind == "long" else set()
                except Overloaded:
                    endings[Overloaded] += kind == "long"
                due += draw.expovariate(600.0 / sum(tokens))
            dues[kind] = due
        ended = loop.advance()
        endings.update(type(each.outcome) for each in ended if each.id in longs)
        if not ended and not loop.queued[1]:
            device.now = min(dues.values())
    accepted = endings[JobResult] + endings[DeadlineExceeded]
    assert (endings[DeadlineExceeded] <= 0.1 * accepted) is learns
    assert (endings[JobResult] * sum(LONG) >= 0.3 * 1000 * 1000) is learns
