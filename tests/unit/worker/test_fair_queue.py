"""Which sequences make a step, and what waits; jobs in line for room count in what waits."""

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.fair_queue import FairQueue
from shared.jobs import Priority
from shared.load import Backlog
from support.synchronous_engine import cut

CHANCE = st.randoms(use_true_random=False)
*_, BULK = Priority
CAPACITY = 100


def counted(waits: dict[int, tuple[Priority, str, int, bool]]) -> dict[Priority, Backlog]:
    """Backlogs of jobs, counted anew, by priority, key, tokens that wait, and whether they are long."""
    backlogs = {}
    for priority in {each for each, *_ in waits.values()}:
        of_priority = [(key, tokens, is_long) for other, key, tokens, is_long in waits.values() if other is priority]
        backlogs[priority] = Backlog(
            keys=len({key for key, *_ in of_priority}),
            jobs=len(of_priority),
            tokens=sum(tokens for _, tokens, _ in of_priority),
            long_jobs=sum(is_long for *_, is_long in of_priority),
            long_tokens=sum(tokens for _, tokens, is_long in of_priority if is_long),
        )
    return backlogs


@dataclass
class Waiting:
    """A job as these tests know it: `costs` and `room` of the units that were not served, and how many were."""

    priority: Priority
    key: str
    costs: list[int]
    room: list[int]
    total: int
    aside: bool = False
    served: int = 0

    @property
    def tokens(self) -> int:
        return sum(self.costs)


@settings(max_examples=40, deadline=None)
@given(CHANCE, st.booleans(), st.sampled_from([20, 100]), st.sampled_from([1, 16, 50]))
def test_what_is_kept_is_what_counting_gives(chance: random.Random, cuts: bool, budget: int, quantum: int) -> None:
    """Whatever came, went, was served, stood in line or was set aside; and all are served in the end, each unit once
    and in its order. No step passes its budget, unless one unit alone does."""
    queue, jobs = FairQueue[int](quantum=quantum, short=200, room=CAPACITY), dict[int, Waiting]()

    def serve() -> None:
        step = queue.next_step(budget, express_pays=lambda _: chance.random() < 0.5)
        cost = sum(sum(jobs[job].costs[: len(units)]) for job, units in step.items())
        assert cost <= budget or sum(map(len, step.values())) == 1
        for job, units in step.items():
            waiting, count = jobs[job], len(units)
            assert units == range(waiting.served, waiting.served + count)
            assert count
            assert not waiting.aside
            queue.give_back_room(job, -sum(room for room in waiting.room[:count] if room < 0))
            waiting.costs, waiting.room = waiting.costs[count:], waiting.room[count:]
            waiting.served += count
            if not waiting.costs:
                del jobs[job]

    for number in range(150):
        known = chance.choice(list(jobs)) if jobs else -1
        match chance.randrange(6):
            case 0 | 1:
                lengths = [chance.randint(1, 40) for _ in range(chance.randint(1, 20))]
                costs, room = cut(lengths, 8) if cuts else (lengths, [])
                priority, key = chance.choice(list(Priority)), chance.choice("abc")
                jobs[number] = Waiting(priority, key, costs, room, sum(costs))
                queue.add_job(number, costs, room, key=key, priority=priority)
            case 2:
                queue.remove_job(known)
                jobs.pop(known, None)
            case 3 | 4 as action:
                (queue.set_aside if action == 3 else queue.bring_back)(known)
                if known in jobs:
                    jobs[known].aside = action == 3
            case _:
                serve()
        waits = {job: waiting for job, waiting in jobs.items() if not waiting.aside}
        assert queue.waiting_tokens + queue.tokens_unserved == sum(waiting.tokens for waiting in jobs.values())
        small = [each for of_class in queue._classes for each in of_class.small.values()]
        assert {each.job: each.tokens for each in small}.items() <= {job: waits[job].tokens for job in waits}.items()
        assert {each.job for each in small} >= {
            job for job, waiting in waits.items() if waiting.tokens == waiting.total <= quantum and not waiting.room
        }
        assert queue.backlogs() == counted(
            {job: (each.priority, each.key, each.tokens, each.total >= 200) for job, each in waits.items()}
        )
        for key in "abc":
            of_key = [each.tokens for each in waits.values() if (each.key, each.priority) == (key, BULK)]
            assert queue.tokens_of_key(BULK, key) == sum(of_key)
    for job, waiting in jobs.items():
        waiting.aside = False
        queue.bring_back(job)
    for _ in range(4000):
        if jobs:
            serve()
    assert not jobs
    assert (queue.waiting_tokens, queue.room.taken, queue.room.waiting, queue.backlogs()) == (0, 0, 0, {})


def test_of_equal_standing_the_earliest_deadline_goes_first() -> None:
    """Across keys and within one; then the first to arrive."""
    queue = FairQueue[int](quantum=64)
    for job, (key, deadline) in enumerate([("a", 9.0), ("a", 3.0), ("b", 5.0), ("c", 1.0), ("b", 5.0)]):
        queue.add_job(job, [10], key=key, deadline=deadline)
    assert [next(iter(queue.next_step(1))) for _ in range(5)] == [3, 1, 2, 4, 0]


def test_a_job_that_is_set_aside_waits_for_nobody() -> None:
    """It is served once it is brought back, and does not catch up on what it let pass."""
    queue = FairQueue[int](quantum=16)
    queue.add_job(1, [16] * 100, key="a")
    queue.set_aside(1)
    queue.set_aside(1)
    assert (queue.waiting_tokens, queue.tokens_unserved, queue.next_step(64)) == (0, 1600, {})
    queue.add_job(2, [16] * 100, key="b")
    for _ in range(5):
        assert set(queue.next_step(64)) == {2}
    queue.bring_back(1)
    queue.bring_back(2)
    for _ in range(5):
        assert {job: len(units) for job, units in queue.next_step(64).items()} == {1: 2, 2: 2}
    queue.set_aside(1)
    queue.remove_job(1)
    assert (queue.waiting_tokens, queue.tokens_unserved) == (70 * 16, 0)


ROOM = 40
"""Tokens that the device keeps in these tests; no sequence has more."""


def test_room_is_given_to_whoever_waits_when_one_ahead_leaves() -> None:
    """A job that is cancelled or set aside in line stands in nobody's way."""
    for leave in (FairQueue.remove_job, FairQueue.set_aside):
        queue = FairQueue[int](quantum=64, room=ROOM)
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
    queue = FairQueue[int](quantum=64, room=ROOM)
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
    queue = FairQueue[int](quantum=64, room=ROOM)
    queue.add_job(0, *cut([30], 8))
    assert set(queue.next_step(100)) == {0}
    queue.add_job(1, *cut([ROOM], 8))
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
