"""Room for keys and values: never more than there is, first come first served, and all of it comes back."""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.fair_queue import FairQueue
from shared.jobs import Priority
from support.synchronous_engine import cut

CAPACITY = 40
"""Tokens that the device keeps in these tests; no sequence has more."""


@dataclass
class Waiting:
    """What the model of these tests knows of a job: units that wait from `position` on, and the room that it has."""

    costs: list[int]
    room: list[int]
    position: int = 0
    aside: bool = False
    taken: int = 0
    """Tokens of the sequences that began, or that were admitted from the line, and that have not ended."""


@dataclass
class Witness:
    """A queue, and by its side everything that room promises, told again in the plainest way."""

    queue: FairQueue[int]
    jobs: dict[int, Waiting] = field(default_factory=dict)
    under_way: deque[dict[int, int]] = field(default_factory=deque)
    """Tokens that each job gives back once a step was computed, by step."""
    line: list[int] = field(default_factory=list)

    def add_job(self, job: int, lengths: list[int], chunk: int, key: str, priority: Priority) -> None:
        costs, room = cut(lengths, chunk)
        self.jobs[job] = Waiting(costs=costs, room=room or [0] * len(costs))
        self.queue.add_job(job, costs, room, key=key, priority=priority)
        self.check()

    def remove_job(self, job: int) -> None:
        """Cancelled, late or failed: what it had is free at once, also for its steps that are under way."""
        self.queue.remove_job(job)
        self.jobs.pop(job, None)
        self.check(left=job)

    def set_aside(self, job: int) -> None:
        self.queue.set_aside(job)
        if job in self.jobs:
            self.jobs[job].aside = True
        self.check(left=job)

    def bring_back(self, job: int) -> None:
        self.queue.bring_back(job)
        if job in self.jobs:
            self.jobs[job].aside = False
        self.check()

    def launch_step(self, budget: int) -> None:
        returned = Counter[int]()
        for job, units in self.queue.next_step(budget).items():
            waiting = self.jobs[job]
            assert not waiting.aside
            assert job not in self.line
            assert units.start == waiting.position
            waiting.position = units.stop
            returned[job] = -sum(min(0, waiting.room[unit]) for unit in units)
        self.under_way.append(returned)
        self.check()

    def collect_step(self) -> None:
        """As the scheduler does: a job that ended meanwhile gives back nothing more."""
        if self.under_way:
            for job, tokens in self.under_way.popleft().items():
                if job in self.jobs:
                    if tokens:
                        self.queue.give_back_room(job, tokens)
                    self.jobs[job].taken -= tokens
                    if self.jobs[job].position == len(self.jobs[job].costs) and not self._launched(job):
                        self.queue.remove_job(job)
                        del self.jobs[job]
            self.check()

    def _launched(self, job: int) -> bool:
        return any(job in step for step in self.under_way)

    def check(self, left: int | None = None) -> None:
        """`left`: a job that may have left the line from its middle, or come back to its head."""
        queue, before = self.queue, [job for job in self.line if job != left]
        self.line = list(queue.room._line)
        others = [job for job in self.line if job != left]
        stayed = [job for job in others if job in before]
        # All keep their order, newcomers stand behind them, and only those that are set aside were passed.
        assert stayed == [job for job in before if job in others] == others[: len(stayed)]
        admitted = [place for place, job in enumerate(before) if job in self.jobs and job not in others]
        passed = [job for job in before[: max(admitted, default=0)] if job in others]
        assert all(self.jobs[job].aside for job in passed)
        heeded = [job for job in self.line if not self.jobs[job].aside]
        held = {job: self._held(job) for job in self.jobs}
        assert queue.room._of_job == {job: tokens for job, tokens in held.items() if tokens}
        assert queue.room.taken == sum(held.values()) <= queue.room.capacity
        assert queue.room.waiting == len(heeded)
        if heeded:  # else it would have been admitted
            first = self.jobs[heeded[0]]
            assert queue.room.taken + first.room[first.position] > queue.room.capacity
        unserved = [job for job, waiting in self.jobs.items() if waiting.aside or job in self.line]
        tokens = {job: sum(waiting.costs[waiting.position :]) for job, waiting in self.jobs.items()}
        assert queue.tokens_unserved == sum(tokens[job] for job in unserved)
        assert queue.waiting_tokens == sum(tokens.values()) - queue.tokens_unserved

    def _held(self, job: int) -> int:
        """Room of the sequences of a job that began, and of the next one if it was admitted, less what ended."""
        waiting = self.jobs[job]
        begun = sum(max(0, room) for room in waiting.room[: waiting.position])
        returned = -sum(min(0, room) for room in waiting.room[: waiting.position])
        returned -= sum(step.get(job, 0) for step in self.under_way)
        entry = self.queue._jobs.get(job)
        admitted = waiting.room[waiting.position] if entry is not None and entry.has_room else 0
        return begun - returned + admitted


def try_random_jobs(chance: random.Random, count: int) -> None:
    """Jobs that come, go, are set aside, brought back and served, until nothing of them is left."""
    witness = Witness(queue=FairQueue[int](quantum=chance.choice([1, 8, 16]), room=CAPACITY))
    chunk, number = chance.choice([1, 4, 7, 16]), 0
    while number < count or witness.jobs:
        known = chance.choice(list(witness.jobs)) if witness.jobs else -1
        match chance.randrange(12):
            case 0 | 1 | 2 | 3 if number < count and len(witness.jobs) < 30:
                number += 1
                lengths = [chance.randint(1, chance.choice([3, CAPACITY])) for _ in range(chance.randint(1, 4))]
                witness.add_job(number + 1000, lengths, chunk, chance.choice("abc"), chance.choice(list(Priority)))
            case 4:
                witness.remove_job(known)
            case 5:
                witness.set_aside(known)
            case 6 | 7:
                witness.bring_back(known)
            case 8 | 9 if len(witness.under_way) < 2:
                witness.launch_step(chance.choice([8, 30, 100]))
            case _:
                witness.collect_step()
    assert (witness.queue.room.taken, witness.queue.room.waiting, witness.queue.room._of_job) == (0, 0, {})
    assert (witness.queue.waiting_tokens, witness.queue.tokens_unserved) == (0, 0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_room_is_what_counting_gives(seed: int, count: int) -> None:
    """Never more than there is, in the order of the line, whatever comes and goes."""
    try_random_jobs(random.Random(seed), count)


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_random_jobs_leave_no_room_taken(count: int) -> None:
    try_random_jobs(random.Random(count), count)


def test_a_long_text_is_not_kept_waiting_by_shorter_ones() -> None:
    queue = FairQueue[int](quantum=16, room=CAPACITY)
    under_way = deque[dict[int, range]]()
    costs, room = cut([CAPACITY], 8)
    for number in range(60):
        queue.add_job(number, *cut([10], 8), key=str(number % 3))
        if number == 10:
            queue.add_job(1000, costs, room)
        under_way.append(queue.next_step(16))
        if 1000 in under_way[-1]:
            return
        if len(under_way) == 2:
            for job, units in under_way.popleft().items():
                queue.give_back_room(job, 10 if units.stop == 2 else 0)
    raise AssertionError("it was never served")


def test_room_is_given_to_whoever_waits_when_one_ahead_leaves() -> None:
    """A job that is cancelled or set aside in line stands in nobody's way."""
    for leave in (FairQueue.remove_job, FairQueue.set_aside):
        queue = FairQueue[int](quantum=64, room=CAPACITY)
        for job, length in ((1, 30), (2, 40), (3, 10)):
            queue.add_job(job, *cut([length], 8))
        assert set(queue.next_step(8)) == {1}
        assert set(queue.next_step(100)) == {1}
        assert (queue.room.waiting, queue.waiting_tokens) == (2, 0)
        leave(queue, 2)
        assert (queue.room.waiting, queue.waiting_tokens, queue.room.taken) == (0, 10, 40)
        assert set(queue.next_step(100)) == {3}
        queue.bring_back(2)
        assert queue.next_step(100) == {}
        queue.remove_job(1)
        queue.remove_job(3)
        assert set(queue.next_step(100)) == ({2} if leave is FairQueue.set_aside else set())


def test_a_job_that_is_set_aside_before_its_sequence_begins_gives_its_room_to_the_line() -> None:
    """One that is set aside within its sequence keeps what it needs to go on."""
    queue = FairQueue[int](quantum=64, room=CAPACITY)
    for job in (1, 2, 3):
        queue.add_job(job, *cut([30], 8))
    assert set(queue.next_step(8)) == {1}
    queue.next_step(8)  # the others join the line
    queue.set_aside(1)
    assert (queue.next_step(8), queue.room.taken, queue.room.waiting) == ({}, 30, 2)
    queue.remove_job(1)
    assert (queue.room.taken, queue.room.waiting) == (30, 1)  # the second job was admitted
    queue.set_aside(2)
    assert (queue.room.taken, queue.room.waiting) == (30, 0)  # and now the third
    assert set(queue.next_step(100)) == {3}
    queue.bring_back(2)
    assert queue.next_step(100) == {}
    queue.give_back_room(3, 30)
    assert queue.next_step(100) == {2: range(4)}


def test_a_job_that_is_set_aside_again_and_again_keeps_its_place_in_the_line() -> None:
    """While others come all the time; so it is with all jobs of a frontend that reads in gulps."""
    queue = FairQueue[int](quantum=64, room=CAPACITY)
    queue.add_job(0, *cut([30], 8))
    assert set(queue.next_step(100)) == {0}
    queue.add_job(1, *cut([CAPACITY], 8))
    served = [0]
    for number in range(2, 20):
        queue.add_job(number, *cut([30], 8))
        queue.next_step(100)
        queue.set_aside(1)
        queue.bring_back(1)
        queue.give_back_room(served[-1], 30)
        served += queue.next_step(100)
        if 1 in served:
            break
    assert served == [0, 1]
