"""A job that is set aside keeps the room of its text, but others wait for it no longer than a bound; by a clock of the
tests' own."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.device.inline import Inline
from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.room import MOST_SECONDS
from gpu_worker.schedule.scheduler import Idle, Scheduler
from gpu_worker.schedule.steps import EndedJob
from shared.errors import Overloaded
from support.clockwork import in_no_time
from support.synchronous_engine import FakeEngine, job, shown
from support.threaded_engine import ask, outcome

CAPACITY, CHUNK = 64, 8


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A loop, its clock, and what ended so far."""

    def __init__(self) -> None:
        self.clock, self.ended = Clock(), list[tuple[int, object]]()
        engine = FakeEngine(chunk=CHUNK)
        self.loop = Scheduler(engine, step_tokens=16, queued_tokens=10**6, cache_bytes=CAPACITY, clock=self.clock)

    def begin_and_set_aside(self, identity: int, length: int) -> None:
        """A job whose first piece is computed, and then nobody reads."""
        queued = self.loop.queued[0]
        self.loop.submit(job(identity, length))
        while self.loop.queued[0] == queued + length:  # none of it is in a step yet
            self._add(self.loop.advance())
        while self.loop.older_step is not None:
            self._add(self.loop.end_step(self.loop.collect_step()))
        self.loop.set_aside(identity)

    def compute(self) -> None:
        """All that may be computed; it takes no time."""
        self._add(list(self.loop.until_idle()))

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self._add(self.loop.drop_expired())

    def _add(self, ended: list[EndedJob]) -> None:
        self.ended += map(shown, ended)


def test_a_slow_reader_keeps_others_from_room_for_half_a_minute_at_most() -> None:
    """Then its job ends with an error that says why and what helps, and the next in line begins."""
    stage = Stage()
    stage.begin_and_set_aside(1, CAPACITY)
    stage.loop.submit(job(2, 40))
    stage.compute()
    stage.pass_time(MOST_SECONDS - 0.5)
    assert (stage.ended, stage.loop.seconds_to_deadline) == ([], 0.5)
    stage.clock.now += 0.25
    assert stage.loop.seconds_to_deadline == 0.25
    stage.clock.now += 0.25
    [ended] = stage.loop.drop_expired()
    assert (ended.id, type(ended.outcome)) == (1, Overloaded)
    assert isinstance(ended.outcome, Overloaded)
    assert "30 s" in ended.outcome.message
    assert "--cache-megabytes" in ended.outcome.message
    assert ended.outcome.retry_after is None  # another try would compute the whole text anew, for the same reader
    stage.compute()
    assert stage.ended == [(2, (8, 8, 8, 8, 8))]
    assert (stage.loop.room.taken, stage.loop.seconds_to_deadline) == (0, float("inf"))


def test_where_nobody_waits_a_slow_reader_has_all_the_time() -> None:
    """Neither before others come nor after they have gone do its seconds count."""
    stage = Stage()
    stage.begin_and_set_aside(1, CAPACITY)
    stage.pass_time(1000.0)
    assert stage.loop.seconds_to_deadline == float("inf")
    stage.loop.submit(job(2, 40))
    stage.compute()
    stage.pass_time(MOST_SECONDS - 1)
    assert stage.loop.cancel(2)
    stage.pass_time(1000.0)
    stage.loop.bring_back(1)
    stage.compute()
    assert stage.ended == [(1, (8,) * 8)]


def test_where_there_is_room_beside_it_a_slow_reader_has_all_the_time() -> None:
    """Others wait for each other, not for it."""
    stage = Stage()
    stage.begin_and_set_aside(1, 20)
    for identity in (2, 3):
        stage.loop.submit(job(identity, 40))
    stage.loop.advance()
    stage.loop.set_aside(3)  # nobody computes for it, and it has no room
    stage.pass_time(1000.0)
    stage.compute()
    stage.loop.bring_back(3)
    stage.compute()
    assert [identity for identity, _ in stage.ended] == [2, 3]
    stage.loop.bring_back(1)
    stage.compute()
    assert stage.ended[-1] == (1, (8, 8, 4))


def test_a_reader_that_reads_a_little_now_and_then_gains_no_time() -> None:
    """The seconds of all its pauses count together, and the time between them does not."""
    stage = Stage()
    stage.begin_and_set_aside(1, CAPACITY)
    stage.loop.submit(job(2, 40))
    stage.compute()
    for _ in range(int(MOST_SECONDS) - 1):
        stage.pass_time(1.0)
        stage.loop.bring_back(1)
        stage.pass_time(5.0)
        stage.loop.set_aside(1)
    stage.pass_time(0.9)
    assert stage.ended == []
    stage.pass_time(0.1)
    assert stage.ended == [(1, Overloaded)]


def test_no_more_slow_readers_end_than_must() -> None:
    """The one that has kept others waiting the longest; beside the other one there is room."""
    stage = Stage()
    stage.begin_and_set_aside(1, 20)
    stage.begin_and_set_aside(2, 28)
    stage.loop.submit(job(3, 40))
    stage.compute()
    stage.loop.bring_back(1)
    stage.pass_time(3.0)
    stage.loop.set_aside(1)
    stage.pass_time(MOST_SECONDS - 3.0)
    assert stage.ended == [(2, Overloaded)]
    stage.compute()
    stage.pass_time(1000.0)
    stage.loop.bring_back(1)
    stage.compute()
    assert [identity for identity, _ in stage.ended] == [2, 3, 1]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 1 << 32), st.integers(1, 6))
def test_the_wait_for_slow_readers_has_a_bound(seed: int, readers: int) -> None:
    """Whatever they read now and then: half a minute for each of them that keeps room. All else here takes no time."""
    chance, stage, kept = random.Random(seed), Stage(), Counter[int]()
    slow = range(1, readers + 1)
    for identity in slow:
        stage.loop.submit(job(identity, chance.randint(CHUNK + 1, CAPACITY)))
    victim = readers + 1
    stage.loop.submit(job(victim, CAPACITY))
    opened = {identity: open_job for identity in slow if (open_job := stage.loop._jobs.of(identity))}
    while victim not in [identity for identity, _ in stage.ended]:
        aside = set[int]()
        for identity in slow:
            stage.loop.bring_back(identity)
            if chance.random() < 0.1 and not isinstance(stage.loop.next_action(), Idle):
                stage._add(stage.loop.advance())
            if chance.random() < 0.98:
                stage.loop.set_aside(identity)
                aside.add(identity)
        stage.compute()
        if victim not in dict(stage.ended):  # then it waits for these readers, and for nobody else
            kept.update(identity for identity in aside if stage.loop.room.room_of(opened[identity]))
            assert kept
            stage.pass_time(1.0)
        assert max(kept.values(), default=0) <= MOST_SECONDS
        assert stage.clock.now <= readers * MOST_SECONDS
    assert dict(stage.ended)[victim] == (8,) * 8


@in_no_time
async def test_the_driver_ends_a_slow_reader_by_its_own_timer() -> None:
    """Nothing else happens that would wake it: nothing is under way, and nobody comes or goes."""
    event_loop = asyncio.get_running_loop()
    options = {"step_tokens": 16, "queued_tokens": 10**6, "cache_bytes": CAPACITY, "clock": event_loop.time}
    driver = Driver(FakeEngine(chunk=CHUNK), Inline(), **options)  # type: ignore[arg-type]
    serving = asyncio.create_task(driver.run())
    first = ask(driver, job(1, CAPACITY))
    for _ in range(100):  # turns of the event loop, of which a few are enough
        if driver._scheduler.room.taken:
            break
        await asyncio.sleep(0)
    assert driver._scheduler.room.taken
    second = ask(driver, job(2, 40))
    driver.set_aside([1])
    begin = event_loop.time()
    assert await outcome(first) is Overloaded
    assert event_loop.time() - begin == pytest.approx(MOST_SECONDS, abs=0.1)
    assert await outcome(second) == (8,) * 5
    serving.cancel()
