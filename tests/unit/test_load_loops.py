"""Closed and open loops on fakes, with a clock that only the test moves."""

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.loops import Window, closed_loop, open_loop, poisson_gaps
from benchmarks.load.outcome import Outcome
from benchmarks.load.tally import OK, Reply, Tally


class Leap(selectors.DefaultSelector):
    """Does not wait: time leaps to the next thing that is due."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, for nothing that is due"
        self.now += timeout
        return super().select(0)


def in_fake_time(coroutine: Coroutine[Any, Any, None]) -> float:
    """Runs it to its end; returns how long that took by the fake clock, which starts at 1,000."""
    selector = Leap()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
    return selector.now - 1000.0


class FakeTarget:
    """Answers after `seconds(now)`; counts what came and how much of it was under way at once."""

    def __init__(self, seconds: Callable[[float], float], status: Callable[[int], str] = lambda index: OK) -> None:
        self._seconds, self._status = seconds, status
        self.came: Counter[int] = Counter()
        self.under_way = self.most = 0

    async def call(self, index: int, lane: int) -> Reply:
        self.came[index] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self._seconds(asyncio.get_running_loop().time()))
        self.under_way -= 1
        return Reply(status=self._status(index), body=b"12")


def endless(requests: int) -> Iterator[int]:
    return cycle(range(requests))


@given(st.integers(1, 9), st.integers(1, 60))
def test_a_closed_loop_never_has_more_than_its_clients_under_way(clients: int, requests: int) -> None:
    """As many as clients where there are enough requests, and every request once."""
    target, tally = FakeTarget(lambda now: 0.1), Tally(["all"] * requests)
    window = Window(begin=1000.0, start=1000.0)
    in_fake_time(closed_loop(target, iter(range(requests)), tally, range(clients), window))
    assert target.most == min(clients, requests)
    assert target.came == tally.answers == Counter(range(requests))


def test_a_closed_loop_counts_by_the_time_of_the_answer() -> None:
    """What was answered in the warm-up or after the window is sent and awaited, but does not count."""
    target, tally = FakeTarget(lambda now: 0.4), Tally(["all"] * 3)
    window = Window(begin=1000.0, start=1001.0, stop=1003.0)
    took = in_fake_time(closed_loop(target, endless(3), tally, [0, 1], window))
    assert took == pytest.approx(3.2)
    assert tally.answers.total() == 2 * 5  # at 1.2, 1.6, 2.0, 2.4 and 2.8
    assert tally.outside == 2 * 3  # at 0.4, 0.8 and 3.2
    assert tally.calls == target.came.total() == 16
    assert (tally.before, tally.last) == pytest.approx((1000.8, 1002.8))


def test_a_closed_loop_hides_a_stall_and_an_open_one_does_not() -> None:
    """A server that stalls for two of ten seconds: one client sends once in the stall, 100 a second are due."""

    def stalling(now: float) -> float:
        return max(0.001, 1006.0 - now if 1004.0 <= now < 1006.0 else 0.0)

    window = Window(begin=1000.0, start=1000.0, stop=1010.0)
    closed, opened_ = Tally(["all"]), Tally(["all"])
    in_fake_time(closed_loop(FakeTarget(stalling), endless(1), closed, [0], window))
    in_fake_time(open_loop(FakeTarget(stalling), endless(1), opened_, poisson_gaps(100.0, "1"), window))
    assert closed.latencies["all"].milliseconds()["p99.9"] < 2
    felt = opened_.latencies["all"].milliseconds()
    assert felt["p50"] < 2
    assert felt["p95"] > 1000
    assert felt["p99"] > 1800


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    """A generator that is held up itself for a second sends late, and says so in both figures."""

    async def held_up() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(1000.5, lambda: setattr(loop._selector, "now", 1001.5))  # type: ignore[attr-defined]
        await open_loop(target, iter(range(20)), tally, cycle([0.1]), Window(begin=1000.0, start=1000.0))

    target, tally = FakeTarget(lambda now: 0.001), Tally(["all"] * 20)
    in_fake_time(held_up())
    assert tally.answers == Counter(range(20))
    assert tally.lateness.milliseconds()["max"] == pytest.approx(1000, rel=0.11)
    assert tally.latencies["all"].milliseconds()["max"] == pytest.approx(1001, rel=0.11)
    assert tally.lateness.milliseconds()["p50"] < 1


def test_an_open_loop_waits_for_every_answer_that_counts() -> None:
    """Whatever was due in the window counts, though it is answered after it; what was due before does not."""
    target, tally = FakeTarget(lambda now: 5.0), Tally(["all"])
    window = Window(begin=1000.0, start=1001.0, stop=1003.0)
    took = in_fake_time(open_loop(target, endless(1), tally, cycle([0.25]), window))
    assert tally.answers.total() == 8
    assert tally.outside == 3
    assert took == pytest.approx(7.75)


def test_poisson_gaps_have_the_rate_and_the_spread_of_their_name() -> None:
    """Mean and standard deviation are both 1 / rate; the seed decides."""
    gaps = list(islice(poisson_gaps(50.0, "7"), 20_000))
    assert np.mean(gaps) == pytest.approx(0.02, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.02, rel=0.03)
    assert gaps == list(islice(poisson_gaps(50.0, "7"), 20_000))


def test_errors_count_by_status_and_flatter_no_latency() -> None:
    """Refusals are errors of their kind, have no latency, and cost no token."""
    statuses = ["OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]
    target, tally = FakeTarget(lambda now: 0.1, lambda index: statuses[index]), Tally(["all"] * 4)
    in_fake_time(closed_loop(target, iter(range(4)), tally, [0, 1], Window(begin=1000.0, start=1000.0)))
    assert tally.errors == {"UNAVAILABLE": 2, "RESOURCE_EXHAUSTED": 1}
    assert tally.answers == {0: 1}
    assert len(tally.latencies["all"]) == 1
    outcome = Outcome(seconds=2.0, window=2.0, tally=tally, tokens=dict.fromkeys(range(4), 10), cpu_seconds={})
    assert (outcome.requests, outcome.total_tokens, outcome.figures()["tokens_per_second"]) == (1, 10, 5)
