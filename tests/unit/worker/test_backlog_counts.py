"""Jobs that wait for room count in what a new job has to expect, so that overload by long texts is refused at once."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.fair_queue import FairQueue
from shared.jobs import Priority
from shared.load import Backlog, Load

CAPACITY = 100
LONG = ([10] * 10, [100, *[0] * 8, -100])
"""A text of 100 tokens in pieces of 10: its costs and its room, which is all that there is."""


def test_a_new_long_text_expects_those_in_line() -> None:
    """Five texts wait for room, each ten seconds long; one more would wait for all of them."""
    queue = FairQueue[int](quantum=10, room=CAPACITY)
    for job in range(6):
        queue.add_job(job, *LONG, key=f"key {job}")
    assert set(queue.next_step(80)) == {0}
    assert (queue.room.waiting, queue.waiting_tokens) == (5, 20)
    load = Load(tokens_per_second=10, backlogs=queue.backlogs(), turn=10)
    assert load.estimate(100, Priority.DEFAULT).wait == (20 + 5 * 100) / 10


def test_a_short_text_expects_no_more_than_its_share_of_them() -> None:
    """It would have its turns beside them if they were served, so it hardly waits for them in line."""
    queue = FairQueue[int](quantum=10, room=CAPACITY, short=50)
    for job in range(200):
        queue.add_job(job, *LONG, key="long texts")
    queue.next_step(80)
    assert queue.room.waiting == 199
    load = Load(tokens_per_second=10, backlogs=queue.backlogs(), turn=10, short=50)
    assert queue.backlogs()[Priority.DEFAULT].tokens == 199 * 100 + 20
    assert load.estimate(5, Priority.DEFAULT).wait < 20
    of_key = queue.tokens_of_key(Priority.DEFAULT, "long texts")
    assert load.estimate(5, Priority.DEFAULT, of_key).wait < 20


def counted(jobs: dict[int, tuple[str, Priority, list[int]]]) -> dict[Priority, Backlog]:
    """Backlogs of jobs, none of them long, counted anew."""
    backlogs = {}
    for priority in {priority for _, priority, _ in jobs.values()}:
        left = [(key, sum(costs)) for key, other, costs in jobs.values() if other is priority]
        backlogs[priority] = Backlog(
            keys=len({key for key, _ in left}), jobs=len(left), tokens=sum(tokens for _, tokens in left)
        )
    return backlogs


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_waits_is_counted_whether_in_line_or_not(chance: random.Random) -> None:
    """Whatever came, went, was served, stood in line or was set aside; and all are served in the end."""
    queue = FairQueue[int](quantum=8, room=CAPACITY)
    jobs: dict[int, tuple[str, Priority, list[int]]] = {}
    rooms: dict[int, list[int]] = {}
    aside: set[int] = set()

    def serve() -> None:
        for job, units in queue.next_step(30).items():
            assert job not in aside
            key, priority, costs = jobs[job]
            jobs[job] = (key, priority, costs[len(units) :])
            queue.give_back_room(job, -sum(min(0, room) for room in rooms[job][units.start : units.stop]))
            if not jobs[job][2]:
                del jobs[job]

    for number in range(120):
        known = chance.choice(list(jobs)) if jobs else -1
        match chance.randrange(7):
            case 0 | 1:
                pieces, texts = chance.randint(1, 5), chance.randint(1, 3)
                length = 5 * pieces
                room = [0] * pieces
                room[0] += length
                room[-1] -= length
                jobs[number] = (chance.choice("abc"), chance.choice(list(Priority)), [5] * pieces * texts)
                rooms[number] = room * texts
                key, priority, costs = jobs[number]
                queue.add_job(number, costs, rooms[number], key=key, priority=priority)
            case 2:
                queue.remove_job(known)
                jobs.pop(known, None)
            case 3:
                queue.set_aside(known)
                aside.add(known)
            case 4:
                queue.bring_back(known)
                aside.discard(known)
            case _:
                serve()
        waiting = {job: entry for job, entry in jobs.items() if job not in aside}
        assert queue.backlogs() == counted(waiting)
        for key in "abc":
            expected = sum(
                sum(costs) for own, priority, costs in waiting.values() if (own, priority) == (key, Priority.BULK)
            )
            assert queue.tokens_of_key(Priority.BULK, key) == expected
    for job in aside:
        queue.bring_back(job)
    aside.clear()
    for _ in range(2000):
        serve()
    assert not jobs
    assert (queue.room.taken, queue.room.waiting, queue.backlogs()) == (0, 0, {})
