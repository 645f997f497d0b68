"""Small jobs in steps of their own, ahead of long work."""

from collections import Counter

import pytest

from gpu_worker.schedule.fair_queue import MOST_JOBS, FairQueue, never
from harness.synchronous_driver import advance
from shared.jobs import Priority
from support.synchronous_engine import job
from support.timed_device import Device

INTERACTIVE, DEFAULT, BULK = Priority


def always(tokens: int) -> bool:
    return True


def with_long_job(priority: Priority = DEFAULT) -> FairQueue[int]:
    """Job 0 is a hundred units of 16 tokens; a turn is 32 tokens."""
    queue = FairQueue[int](quantum=32, short=64)
    queue.add_job(0, [16] * 100, priority=priority)
    return queue


def test_small_jobs_are_served_alone_in_every_second_step() -> None:
    """All that wait, of any key; what comes meanwhile shares the next step with the long job."""
    queue = with_long_job()
    queue.add_job(1, [8, 8], key="a")
    queue.add_job(2, [16], key="b")
    assert queue.next_step(256, express_pays=always) == {1: range(2), 2: range(1)}
    queue.add_job(3, [16])
    step = queue.next_step(256, express_pays=always)
    assert (step[0], step[3]) == (range(15), range(1))
    queue.add_job(4, [16])
    assert queue.next_step(256, express_pays=always) == {4: range(1)}


def test_without_other_work_all_share_a_step() -> None:
    queue = FairQueue[int](quantum=32)
    for number in range(5):
        queue.add_job(number, [30])
    assert len(queue.next_step(256, express_pays=always)) == 5


@pytest.mark.parametrize("costs", [[33], [16, 17]])
def test_a_job_of_more_than_a_turn_is_not_small(costs: list[int]) -> None:
    queue = with_long_job()
    queue.add_job(1, costs)
    assert 0 in queue.next_step(256, express_pays=always)


@pytest.mark.parametrize(("budget", "costs"), [(256, [12] * 3), (64, [12] * 2)])
def test_too_many_small_jobs_share_a_step_with_others(budget: int, costs: list[int]) -> None:
    """More than a turn in all, or than a quarter of a step."""
    queue = with_long_job()
    for number, cost in enumerate(costs, 1):
        queue.add_job(number, [cost])
    assert 0 in queue.next_step(budget, express_pays=always)


def test_a_larger_one_leaves_the_smaller_ones_their_step() -> None:
    """A job of 20 tokens fits into no quarter of this step; one of 16 does."""
    queue = with_long_job()
    queue.add_job(1, [20])
    queue.add_job(2, [16])
    assert queue.next_step(64, express_pays=always) == {2: range(1)}


def test_what_is_told_is_what_would_pay() -> None:
    """And no more than what is left beside the small jobs that wait."""
    queue = with_long_job()
    assert queue.express_tokens(256, always) == 32
    assert queue.express_tokens(256, lambda tokens: tokens <= 16) == 16
    assert queue.express_tokens(256, never) == 0
    queue.add_job(1, [10])
    assert queue.express_tokens(256, always) == 22
    assert queue.express_tokens(256, lambda tokens: tokens <= 8) == 0
    queue = FairQueue[int](quantum=32, chunk=20)
    assert queue.express_tokens(256, always) == 0  # nothing is there to be ahead of
    queue.add_job(0, [100])
    assert queue.express_tokens(256, always) == 20


def test_no_express_step_is_told_to_a_job_that_would_be_one_too_many() -> None:
    queue = FairQueue[int](quantum=128, short=64)
    queue.add_job(0, [16] * 100)
    for number in range(1, MOST_JOBS):
        queue.add_job(number, [1])
    assert queue.express_tokens(512, always) == 128 - (MOST_JOBS - 1)
    for number in (MOST_JOBS, MOST_JOBS + 1):
        queue.add_job(number, [1])
        assert queue.express_tokens(512, always) == 0
    assert 0 in queue.next_step(512, express_pays=always)


def test_small_jobs_of_a_class_that_is_left_out_take_nothing_from_what_is_told() -> None:
    """Those of a class below the one where long work waits; those of a class above it do."""
    queue = with_long_job()
    for number in range(1, MOST_JOBS + 1):
        queue.add_job(number, [1], priority=BULK)
    assert queue.express_tokens(256, always) == 32
    queue.add_job(100, [10], priority=INTERACTIVE)
    assert queue.express_tokens(256, always) == 22
    queue.add_job(101, [22])
    assert set(queue.next_step(256, express_pays=always)) == {100, 101}


def test_a_small_job_is_not_ahead_of_long_work_of_a_higher_class() -> None:
    queue = with_long_job(INTERACTIVE)
    queue.add_job(1, [16])
    assert 0 in queue.next_step(256, express_pays=always)
    queue.add_job(2, [16], priority=INTERACTIVE)
    assert queue.next_step(256, express_pays=always) == {2: range(1)}


@pytest.mark.parametrize("keys", [2, 19])
def test_who_is_served_out_of_turn_pays_for_it_and_gets_its_turns(keys: int) -> None:
    """A key whose small jobs are more than its share gets no more than others, and its long job is not left out."""
    queue, served, expressed = FairQueue[int](quantum=256), Counter[str](), 0
    for number in range(1, keys):
        queue.add_job(number, [128] * 100_000, key=f"other {number}")
    queue.add_job(0, [128] * 100_000, key="own")
    small = 1000
    for _ in range(2000):
        if small not in queue._jobs:
            small += 1
            queue.add_job(small, [100], key="own")
        chosen = queue.next_step(2048, express_pays=always)
        expressed += set(chosen) == {small}
        for number, units in chosen.items():
            tokens = 100 if number >= 1000 else 128 * len(units)
            served["own" if number == 0 or number >= 1000 else "others"] += tokens
        served["own, long"] += 128 * len(chosen.get(0, ()))
    assert expressed > 100
    assert served["own"] == pytest.approx(served["others"] / (keys - 1), rel=0.1)
    assert served["own, long"] > 0


@pytest.mark.parametrize(("overhead", "alone"), [(0.01, True), (0.5, False)])
def test_a_call_beside_a_long_text_is_alone_where_a_small_step_costs_little(overhead: float, alone: bool) -> None:
    """A caller of 16 tokens who asks again at once, beside a text in pieces of 125 tokens, in steps of 1,000."""
    device = Device(speed=1000.0, overhead=overhead)
    scheduler = device.scheduler(step_tokens=1000)
    scheduler.submit(job(0, *[125] * 400))
    calls = 0
    while len(device.steps) < 40:
        ended = {ended_job.id for ended_job in advance(scheduler)}
        if calls == 0 or calls in ended:
            calls += 1
            scheduler.submit(job(calls, 16))
    assert (device.steps.count(16) > 10) is alone
    assert device.steps.count(16) <= len(device.steps) / 2


def test_the_loop_promises_no_express_step_to_a_text_that_is_cut() -> None:
    """It needs room, and waits in line for it."""
    assert Device().scheduler(step_tokens=1000).load.express_tokens == 0  # nothing is known yet
    promised = []
    for chunk in (100.0, 20.0):
        scheduler = Device(speed=1000.0).scheduler(step_tokens=1000, chunk_tokens=chunk)
        scheduler.submit(job(1, *[100] * 100))
        while not scheduler.load.tokens_per_second:
            advance(scheduler)
        promised.append(scheduler.load.express_tokens)
    assert promised == [100, 20]
