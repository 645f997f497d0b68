"""What a new job has to expect, from the load that the worker tells."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.schedule.fair_queue import FairQueue, Pays, never
from shared.jobs import Priority
from shared.load import REPORT_SECONDS, SHORT, Backlog, Estimate, Load

NEW = -1


def load_of(queue: FairQueue[int], turn: int, short: int = SHORT, step: int = 0, pays: Pays = never) -> Load:
    """At a token a second, so that a wait is as many tokens."""
    return Load(
        tokens_per_second=1.0,
        queued_tokens=queue.waiting_tokens,
        backlogs=queue.backlogs(),
        turn=turn,
        short=short,
        express_tokens=queue.express_tokens(step, pays),
        step_tokens=step,
    )


def served_before(
    queue: FairQueue[int], costs: list[int], key: str, priority: Priority, budget: int, pays: Pays = never
) -> int:
    """Tokens of others that are taken before the step that ends a new job, if nothing else comes."""
    queue.add_job(NEW, costs, key=key, priority=priority)
    others = left = 0
    while left < len(costs):
        before = queue.waiting_tokens
        own = queue.next_step(budget, express_pays=pays).get(NEW)
        if own is not None and own.stop == len(costs):
            return others
        taken = sum(costs[own.start : own.stop]) if own is not None else 0
        others += before - queue.waiting_tokens - taken
    return others


@settings(max_examples=30, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([1, 16, 64]),
    st.sampled_from([1, 16, 100]),
    st.sampled_from([1, 64, 512]),
)
def test_no_more_is_served_ahead_than_told(chance: random.Random, quantum: int, longest: int, short: int) -> None:
    """Of any backlog, whatever was served of it before, with sequences of up to an eighth of a step."""
    queue, turn, number = FairQueue[int](quantum=quantum, short=short), max(quantum, longest), 0

    def costs(counts: list[int]) -> list[int]:
        return [chance.choice([longest, chance.randint(1, longest)]) for _ in range(chance.choice(counts))]

    def key() -> str:
        return str(chance.randint(0, keys))

    keys, pays = chance.choice([0, 3, 60]), chance.choice([never, lambda tokens: True])
    for _ in range(chance.randint(1, 8)):
        for _ in range(chance.randint(0, 20)):
            queue.add_job(number, costs([1, 1, 5, 100]), key=key(), priority=chance.choice(list(Priority)))
            number += 1
        for _ in range(chance.randint(0, 5)):
            queue.next_step(8 * turn, express_pays=pays)
    new, own_key, priority = costs([1, 1, 10, 100]), key(), chance.choice(list(Priority))
    load = load_of(queue, turn, short, 8 * turn, pays)
    told = load.estimate(sum(new), priority, queue.tokens_of_key(priority, own_key)).wait
    assert served_before(queue, new, own_key, priority, 8 * turn, pays) <= told
    assert load.estimate(1, priority).wait <= load.drained_in


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("length", [16, 64, 200])
def test_a_big_job_that_waits_makes_no_small_one_look_late(length: int, keyed: bool) -> None:
    """64 small jobs and one of a million tokens: a 65th small one is told at most four times what is ahead of it."""
    queue = FairQueue[int](quantum=256)
    queue.add_job(0, [100] * 10_000, key="big" if keyed else "")
    for job in range(1, 65):
        queue.add_job(job, [length], key=str(job) if keyed else "")
    own = "new" if keyed else ""
    told = load_of(queue, 256).estimate(length, Priority.DEFAULT, queue.tokens_of_key(Priority.DEFAULT, own)).wait
    ahead = served_before(queue, [length], own, Priority.DEFAULT, budget=256)
    assert ahead <= told <= 4 * ahead


def test_a_small_job_is_told_to_go_ahead_of_long_work() -> None:
    """Of its own and lower classes; behind that of a higher class it waits."""
    queue = FairQueue[int](quantum=256)
    for job in range(10):
        queue.add_job(job, [100] * 40)
    load = load_of(queue, 256, step=2048, pays=lambda tokens: True)
    assert load.express_tokens == 256
    assert load.estimate(256, Priority.DEFAULT, 40_000).wait == 2048 + 256
    assert load.estimate(5000, Priority.DEFAULT, 40_000).wait == 40_000
    assert load.estimate(16, Priority.BULK).wait == 40_000
    queue.add_job(10, [200])
    assert load_of(queue, 256, step=2048, pays=lambda tokens: True).express_tokens == 56
    assert load_of(queue, 256, step=2048).express_tokens == 0


def test_the_wait_is_what_is_ahead_by_the_speed() -> None:
    """None while the speed is unknown, and none while nothing waits."""
    queue = FairQueue[int](quantum=256)
    assert Load(tokens_per_second=10.0).estimate(100, Priority.DEFAULT) == Estimate(takes=10.0)
    queue.add_job(1, [100])
    backlogs = queue.backlogs()
    assert Load(backlogs=backlogs).estimate(100, Priority.DEFAULT) == Estimate()
    load = Load(backlogs=backlogs, tokens_per_second=10.0)
    assert load.estimate(100, Priority.DEFAULT) == Estimate(wait=10.0, takes=10.0)
    assert load.estimate(100, Priority.DEFAULT, more=50) == Estimate(wait=15.0, takes=10.0)


def test_a_job_has_the_pace_that_those_who_keep_coming_leave() -> None:
    """Short jobs of higher priorities go before it, and before a long one those of its own; lower ones do not.

    Long jobs keep their share, whatever comes."""
    load = Load(tokens_per_second=800.0, coming=(100.0, 200.0, 400.0))
    long, short = SHORT, SHORT - 1
    assert [load.pace(short, priority) for priority in Priority] == [800, 700, 500]
    assert [load.pace(long, priority) for priority in Priority] == [700, 500, 100]
    assert Load(tokens_per_second=800.0, coming=(900.0, 0.0, 0.0)).pace(long, Priority.BULK) == 100


def test_a_key_that_waits_lets_others_have_their_share_of_what_keeps_coming() -> None:
    """They go first until they were served as much; a key of which nothing waits has nobody to let go first."""
    backlogs = {Priority.DEFAULT: Backlog(keys=2, jobs=40, tokens=20_000)}
    load = Load(tokens_per_second=1000.0, backlogs=backlogs, turn=10, coming=(0.0, 800.0, 0.0))

    def wait(key_tokens: int, keys: int = 2) -> float:
        known = {Priority.DEFAULT: replace(backlogs[Priority.DEFAULT], keys=keys)}
        return replace(load, backlogs=known).estimate(16, Priority.DEFAULT, key_tokens).wait

    assert wait(15_000) == pytest.approx(20 / (1 - 0.8 / 4))
    assert 20 < wait(10_000) < 20.1
    assert wait(20_000, keys=1) == 20
    assert wait(0) < 1
    flooded = replace(load, coming=(0.0, 5000.0, 0.0))
    assert 30 < flooded.estimate(16, Priority.DEFAULT, 15_000).wait < 30.1


def test_a_load_in_tokens_of_texts_is_as_long() -> None:
    """Where texts share tokens, they have more than they cost: all counts grow, and no wait changes."""
    backlogs = {Priority.DEFAULT: Backlog(keys=1, jobs=1, tokens=9000, long_jobs=1, long_tokens=9000)}
    load = Load(queued_tokens=9000, tokens_per_second=900.0, backlogs=backlogs, coming=(90.0, 180.0, 0.0))
    told = load.in_texts(2.0)
    assert told.estimate(10_000, Priority.BULK) == load.estimate(5000, Priority.BULK)
    assert (told.queued_tokens, load.in_texts(1.0)) == (18_000, load)


def test_a_worker_that_had_no_work_would_have_told_of_its_first_job() -> None:
    """However long ago it last told that it had none."""
    assert Load().unheard(0.9) == REPORT_SECONDS
    assert Load().unheard(REPORT_SECONDS / 2) == REPORT_SECONDS / 2
    assert Load(queued_jobs=1).unheard(0.9) == 0.9
