"""Which sequences make a step."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.planning import FairQueue

COSTS = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(st.lists(COSTS, min_size=1, max_size=8), st.integers(1, 200), st.integers(1, 50))
def test_every_sequence_is_served_once_in_its_order(jobs: list[list[int]], budget: int, quantum: int) -> None:
    """And no step passes its budget, unless one sequence alone does."""
    queue = FairQueue(quantum=quantum)
    for job, costs in enumerate(jobs):
        queue.add(job, costs)
    served: Counter[int] = Counter()
    while len(queue):
        shares = queue.next_step(budget)
        assert shares
        cost = 0
        for share in shares:
            assert share.start == served[share.job]
            assert share.stop > share.start
            served[share.job] = share.stop
            cost += sum(jobs[share.job][share.start : share.stop])
        alone = len(shares) == 1 and shares[0].stop - shares[0].start == 1
        assert cost <= budget or alone
    assert served == Counter({job: len(costs) for job, costs in enumerate(jobs)})
    assert queue.next_step(budget) == []


@given(st.integers(1, 10))
def test_a_small_job_is_in_the_next_step_however_much_waits(big_jobs: int) -> None:
    """It never waits for big ones that came before it."""
    queue = FairQueue(quantum=16)
    for job in range(big_jobs):
        queue.add(job, [16] * 1000)
    for _ in range(5):
        queue.next_step(256)
    queue.add(99, [16])
    assert 99 in {share.job for share in queue.next_step(256)}


def test_big_jobs_share_evenly() -> None:
    """Three equal jobs progress together."""
    queue = FairQueue(quantum=32)
    for job in range(3):
        queue.add(job, [16] * 300)
    served: Counter[int] = Counter()
    for _ in range(20):
        for share in queue.next_step(256):
            served[share.job] += share.stop - share.start
    assert max(served.values()) - min(served.values()) <= 4


def test_no_job_starves_under_a_stream_of_small_ones() -> None:
    """A big job goes on while two small ones arrive with every step."""
    queue = FairQueue(quantum=32)
    queue.add(0, [16] * 100)
    progress = 0
    for step in range(60):
        queue.add(1000 + 2 * step, [100])
        queue.add(1001 + 2 * step, [100])
        progress += sum(share.stop - share.start for share in queue.next_step(256) if share.job == 0)
    assert progress == 100


def test_a_removed_job_is_not_served() -> None:
    """What waits of it is forgotten."""
    queue = FairQueue(quantum=8)
    queue.add(1, [5] * 10)
    queue.next_step(10)
    queue.remove(1)
    queue.remove(1)
    assert (queue.waiting, len(queue), queue.next_step(100)) == (0, 0, [])
