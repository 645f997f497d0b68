"""What each class, key and job gets of the steps, and the bound of its wait."""

import random
from collections import Counter, deque
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule import priority_class as classes
from gpu_worker.schedule.fair_queue import EXPRESS_SHARE, FairQueue
from shared.jobs import Priority
from shared.load import SHORT_SHARE, WEIGHTS
from support.synchronous_engine import cut

ROOM = 100
"""Tokens that the device keeps in these tests; no sequence has more."""
INTERACTIVE, DEFAULT, BULK = Priority


def waiting_jobs(queue: FairQueue[int]) -> int:
    return sum(backlog.jobs for backlog in queue.backlogs().values())


def bound(tokens: int, jobs: int, keys: int, weight: int, turn: int, short: int, budget: int) -> float:
    """Most tokens that the worker serves before a job of so many `tokens` is done, whatever else comes.

    `jobs`: the most of its key that wait at once; `keys`: the most of its class; `weight`: that of its class. `turn`:
    the larger of a quantum and the largest unit; `short`: a job of as many tokens is long; `budget`: tokens of a step.
    What is wasted: the ends of steps into which the next unit does not fit, and express steps, of which there may be
    one before each other step.
    """
    total, waste = sum(WEIGHTS.values()), budget / (budget - turn) if turn <= budget / 2 else 2
    waste *= 1 + min(turn, budget // EXPRESS_SHARE) / budget
    key = (SHORT_SHARE + 1) * jobs * (tokens + (6 + log(jobs)) * max(turn, short))
    return total / weight * (keys * (key + (6 + log(keys)) * max(turn, short)) + 2 * turn) * waste + total * turn


def served_within_its_bound(seed: int, quantum: int, short: int, sizes: tuple[int, int, int]) -> None:
    """`sizes`: most tokens of a piece, of a sequence and of a step. Longer sequences than a piece wait for room, and
    what has room goes first."""
    (chunk, longest, budget), chance = sizes, random.Random(seed)
    queue, number, in_pieces = FairQueue[int](quantum=quantum, short=short, room=ROOM), 0, longest > chunk
    own_share, new_keys, express = chance.random(), not in_pieces and chance.random() < 0.5, chance.random() < 0.5
    under_way = deque[dict[int, int]]()
    rooms: dict[int, list[int]] = {}

    def add(job: int, counts: list[int], priority: Priority, key: str) -> tuple[int, int]:
        """Tokens and units of a job of one of so many sequences."""
        lengths = [chance.randint(1, chance.choice([min(10, longest), longest])) for _ in range(chance.choice(counts))]
        costs, rooms[job] = cut(lengths, chunk)
        queue.add_job(job, costs, rooms[job], key=key, priority=priority)
        return sum(lengths), len(costs)

    def arrive(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            key = "own" if chance.random() < own_share else str(number if new_keys else number % 5)
            add(number, [1, 1, 3] if in_pieces else [1, 1, 1, 10], chance.choice(list(Priority)), key)

    def serve() -> tuple[int, int]:
        """Tokens that a step took, and units of job 0 in it; room comes back when the step before was computed."""
        waiting = queue.waiting_tokens + queue.tokens_unserved
        step = queue.next_step(budget, express_pays=lambda _: express)
        returned = {job: -sum(min(0, rooms[job][unit]) for unit in units if rooms[job]) for job, units in step.items()}
        under_way.append(returned)
        if len(under_way) == 2:
            for job, tokens in under_way.popleft().items():
                queue.give_back_room(job, tokens)
        return waiting - queue.waiting_tokens - queue.tokens_unserved, len(step.get(0, ()))

    arrive(chance.randint(0, 40))
    for _ in range(chance.randint(0, 3)):
        serve()
    priority = chance.choice(list(Priority))
    tokens, left = add(0, [1, 3] if in_pieces else [1, 5, 20], priority, "own")
    taken, jobs, keys, segments, ahead, stood, idle = 0, 1, 6 if in_pieces else 1, 1, 0, False, 0
    before: set[int] = set()
    while left:
        arrive(max(0, min(chance.randint(0, 6), 50 - waiting_jobs(queue))))
        waits = queue.backlogs()
        if in_pieces:
            jobs = max(jobs, queue.room.waiting + waiting_jobs(queue))
        else:
            jobs, keys = max(jobs, waits[priority].jobs), max(keys, waits[priority].keys)
        cost, units = serve()
        taken, left, idle = taken + cost, left - units, 0 if cost else idle + 1
        assert idle <= 2  # all wait for room; what is under way gives some back
        line, holders = list(queue.room._line), set(queue.room._of_job)
        if 0 in line and not stood:  # it may have come and gone in one step, and then it waited for nobody
            before = {*line[: line.index(0)], *holders}
            ahead, segments = ahead + len(before), segments + 1
        stood = 0 in line
        assert not stood or before.issuperset(holders)  # nobody who came later has room
        terms = (jobs, keys), (max(quantum, min(chunk, longest)), short, budget)
        alone = bound(tokens, *terms[0], WEIGHTS[priority], *terms[1])
        others = bound(ROOM, *terms[0], min(WEIGHTS.values()), *terms[1])
        assert taken <= segments * (alone + budget) + ahead * (others + budget)
    assert queue.room.taken <= ROOM


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pieces", [False, True])
def test_every_job_is_served_within_its_bound(pieces: bool, examples: int) -> None:
    """Under any stream: short and long jobs in every step, of its own key, of old or new keys, of any class; and one in
    which long texts wait for room, up to two steps under way."""
    whole = st.tuples(st.just(60), st.integers(1, 60), st.sampled_from([8, 64, 256]))
    cuts = st.tuples(st.sampled_from([4, 16]), st.just(ROOM), st.sampled_from([16, 64, 256]))
    quanta, shorts = st.sampled_from([1, 8, 16] if pieces else [1, 4, 16]), st.sampled_from([1, 64, 256])
    drawn = given(st.integers(0, 1 << 32), quanta, shorts, cuts if pieces else whole)(served_within_its_bound)
    settings(max_examples=examples, deadline=None)(drawn)()


def tokens_until(queue: FairQueue[int], job: int) -> int:
    """Taken by all until nothing of a job waits, while whoever was served asks again: 64 callers of 64 tokens."""
    served = 0
    for caller in range(64):
        queue.add_job(caller, [64])
    while job in queue._jobs:
        for served_job, units in queue.next_step(512).items():
            served += 64 * len(units)
            if served_job < 64_000:
                queue.add_job(served_job + 64, [64])
    return served


@pytest.mark.parametrize("ahead", [0, 64])
def test_a_rerank_among_callers_of_its_key_is_served_in_its_turn(ahead: int) -> None:
    """Whole, after those that came before it and no others; but for a step."""
    queue = FairQueue[int](quantum=64)
    for caller in range(64, 64 + ahead):
        queue.add_job(caller, [64])
    queue.add_job(64_000, [64] * 20)
    assert tokens_until(queue, 64_000) <= (ahead + 20) * 64 + 512


def test_a_long_job_among_callers_of_its_key_gets_its_part() -> None:
    queue = FairQueue[int](quantum=64)
    queue.add_job(64_000, [64] * 100)
    assert tokens_until(queue, 64_000) == pytest.approx((SHORT_SHARE + 1) * 100 * 64, rel=0.1)


def test_an_interactive_job_is_in_the_very_next_step() -> None:
    """Before all that waits of lower classes; also if one comes with every step, while these keep their share."""
    queue = FairQueue[int](quantum=32)
    for job in range(1, 100):
        queue.add_job(job, [16] * 1000, key=str(job), priority=BULK if job % 2 else DEFAULT)
    for step in range(1000, 1200):
        if step > 1100 or step % 5 == 0:
            queue.add_job(step, [16] * 8, priority=INTERACTIVE)
            chosen = queue.next_step(256)
            assert chosen[step] == range(8)
            assert step > 1100 or next(iter(chosen)) == step
        else:
            queue.next_step(256)


@pytest.mark.parametrize(("low", "high"), [(BULK, INTERACTIVE), (DEFAULT, INTERACTIVE), (BULK, DEFAULT)])
def test_a_lower_class_keeps_its_share(low: Priority, high: Priority) -> None:
    queue, served = FairQueue[int](quantum=32), Counter[int]()
    queue.add_job(0, [16] * 100_000, priority=low)
    queue.add_job(1, [16] * 100_000, priority=high)
    for _ in range(3000):
        for job, units in queue.next_step(256).items():
            served[job] += len(units)
    assert served[0] / served[1] == pytest.approx(WEIGHTS[low] / WEIGHTS[high], rel=0.1)


def test_a_key_that_comes_back_gains_nothing() -> None:
    """One that asks again whenever it was served gets its share and no more."""
    queue, served = FairQueue[int](quantum=32), Counter[bool]()
    queue.add_job(0, [16] * 5000, key="waits")
    queue.add_job(1, [160], key="returns")
    for _ in range(200):
        for job, units in queue.next_step(256).items():
            served[job == 0] += 160 if job else 16 * len(units)
            if job:
                queue.add_job(job + 1, [160], key="returns")
    assert 0.6 * served[True] <= served[False] <= served[True] + 320


def test_keys_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are ahead of the others only while they are few; none once nothing waits."""
    monkeypatch.setattr(classes, "REMEMBERED", 3)
    queue = FairQueue[int](quantum=1)
    named = queue._classes[DEFAULT - 1]._keys_by_name
    for job in range(20):
        queue.add_job(job, [10_000], key=str(job))
    most = 0
    while queue.waiting_tokens:
        queue.next_step(1)
        most = max(most, len(named) - waiting_jobs(queue))
    assert (most, len(named)) == (3, 0)
