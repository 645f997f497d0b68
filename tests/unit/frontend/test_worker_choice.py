"""Which worker a frontend chooses by reports that other frontends hear too."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from frontend_service.workers.fleet import WorkerChoice
from shared.errors import Overloaded
from shared.jobs import Classify, Job, Priority, RaggedTokens
from shared.load import MARGIN, Estimate, Load


@dataclass(eq=False)
class FakeLink:
    """A link whose worker a job waits for so long, that was not heard of for so long, that takes so long for the job,
    and to which others lately sent so much."""

    seconds: float
    unheard_seconds: float = 0.0
    takes: float = 0.01
    others: float = 1.0

    def estimate(self, tokens: int, priority: Priority, key: str) -> Estimate:
        return Estimate(wait=self.seconds, takes=self.takes)


def chosen(*links: FakeLink, remaining: float | None = None, draw: Callable[[], float] | None = None) -> FakeLink:
    job = Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1]]), remaining=remaining)
    candidates: Any = links
    best: Any = WorkerChoice(draw or random.Random(1).random).best(candidates, job)[0]
    return best


def test_a_lone_frontend_knows_what_waits() -> None:
    """Nobody else sends anything, so the shortest wait is the shortest, by however little, and however old the reports:
    another frontend may be attached and send nothing."""
    near, far = FakeLink(0.100, 2.0, others=0.0), FakeLink(0.101, 2.0, others=0.0)
    assert all(chosen(far, near, draw=lambda: 1.0) is near for _ in range(10))


def test_of_idle_workers_the_fast_one_is_chosen() -> None:
    """Where others send little, however long ago the two told that they have nothing to do, and whatever is drawn."""
    for others in (0.0, 0.15):
        unheard = Load().unheard(1.0)
        fast = FakeLink(0.0, unheard, takes=0.005, others=others)
        slow = FakeLink(0.0, unheard, takes=0.020, others=0.0)
        draw = random.Random(1).random
        assert all(chosen(slow, fast, draw=draw) is fast for _ in range(200))


def test_frontends_that_hear_the_same_choose_differently() -> None:
    """Workers that others may have sent work are equally good while their waits differ by less."""
    links, draw = [FakeLink(0.0, 0.1) for _ in range(4)], random.Random(1).random
    times = Counter(links.index(chosen(*links, draw=draw)) for _ in range(400))
    assert min(times[place] for place in range(4)) > 60


def test_the_older_a_report_the_less_it_is_worth() -> None:
    """A worker that was busy a moment ago may be the better one where the other has not been heard of for long."""
    busy, unheard = FakeLink(0.2, 0.0), FakeLink(0.0, 1.0)
    draw = random.Random(1).random
    times = Counter(chosen(busy, unheard, draw=draw) is busy for _ in range(400))
    assert times[True] > times[False] > 40


def test_whose_queue_is_longer_than_what_may_have_come_elsewhere_is_not_chosen() -> None:
    busy, free, draw = FakeLink(0.5, 0.1), FakeLink(0.2, 0.1), random.Random(1).random
    assert all(chosen(busy, free, draw=draw) is free for _ in range(200))


def test_no_draw_leads_to_a_worker_that_would_be_late() -> None:
    """Nor is a job refused while one worker would be in time."""
    late, in_time, draw = FakeLink(MARGIN, 2.0), FakeLink(MARGIN - 0.1, 2.0), random.Random(1).random
    assert all(chosen(late, in_time, remaining=1.0, draw=draw) is in_time for _ in range(200))


def test_what_all_would_end_late_is_refused_and_counted() -> None:
    """The refusal tells the wait where it is shortest."""
    choice, job = WorkerChoice(), Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1]]), remaining=1.0)
    candidates: Any = [FakeLink(3.0, 0.1), FakeLink(2.0, 0.1)]
    with pytest.raises(Overloaded, match=r"up to 2\.0 s"):
        choice.best(candidates, job)
    assert choice.refused["deadline"] == 1
