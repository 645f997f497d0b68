"""Outlier detection: who is suspected, and how long a worker is set aside. Times are told, so nothing waits."""

from frontend_service.workers.link import FAILURES, FIRST_ASIDE, LONGEST_ASIDE, OutlierDetection


def test_failures_in_a_row_make_a_suspect_until_a_job_is_answered() -> None:
    worker = OutlierDetection()
    for _ in range(FAILURES - 1):
        worker.failed()
    worker.answered()
    for _ in range(FAILURES - 1):
        worker.failed()
    assert not worker.suspected
    worker.failed()
    assert worker.suspected
    worker.set_aside(0.0)
    assert worker.suspected
    worker.answered()
    assert not worker.suspected


def test_a_worker_that_is_never_good_is_set_aside_for_twice_as_long_each_time() -> None:
    worker, now, pauses = OutlierDetection(), 100.0, list[float]()
    for _ in range(9):
        pauses.append(worker.set_aside(now))
        assert worker.is_aside(now + pauses[-1] - 0.01)
        now += pauses[-1]
        assert not worker.is_aside(now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (pauses[0], pauses[-1]) == (FIRST_ASIDE, LONGEST_ASIDE)


def test_time_that_it_serves_makes_the_next_pause_shorter() -> None:
    worker = OutlierDetection()
    assert [worker.set_aside(now) for now in (0.0, 1.0, 3.0)] == [1, 2, 4]
    assert worker.set_aside(7.0 + 5.0) == 3
    assert worker.set_aside(15.0 + 1000.0) == FIRST_ASIDE


def test_jobs_that_fail_together_set_it_aside_once() -> None:
    """All that were under way when the first of them proved its fault."""
    worker = OutlierDetection()
    assert [worker.set_aside(now) for now in (0.0, 0.1, 0.9)] == [1, 0, 0]
    assert not worker.is_aside(1.0)
