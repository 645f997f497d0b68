"""Who is refused on arrival, why, and when to try again: all by one estimate."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.schedule.load import QueueAdmission
from shared.errors import Overloaded
from shared.estimate import LENIENCE
from shared.jobs import Priority
from shared.load import SHORT, Backlog, Load
from support.synchronous_engine import job

WAITING = st.lists(st.integers(1, 20_000), max_size=8)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Jobs of several priorities that wait, each of a key of its own, and steps under way."""
    backlogs = {}
    for priority in Priority:
        waiting = draw(WAITING)
        long = [tokens for tokens in waiting if tokens >= SHORT]
        if waiting:
            backlogs[priority] = Backlog(
                keys=len(waiting),
                jobs=len(waiting),
                tokens=sum(waiting),
                long_jobs=len(long),
                long_tokens=sum(long),
            )
    aside = draw(st.sampled_from([0, 0, 5000]))
    return Load(
        queued_tokens=aside + sum(backlog.tokens for backlog in backlogs.values()),
        tokens_per_second=draw(st.sampled_from([0.0, 50.0, 10_000.0])),
        backlogs=backlogs,
        turn=256,
        busy=draw(st.sampled_from([0.0, 0.2, 5.0])),
        express_tokens=draw(st.sampled_from([0, 100])),
        step_tokens=draw(st.sampled_from([512, 4096])),
        coming=(0.0, draw(st.sampled_from([0.0, 40.0, 9000.0])), 0.0),
    )


@given(
    loads(),
    st.integers(1, 6000),
    st.sampled_from([10**9, 3000]),
    st.sampled_from([inf, 0.1, 3.0]),
    st.sampled_from([None, 0.5, 20.0]),
)
def test_the_reason_is_the_first_limit_that_the_estimate_exceeds(
    load: Load, cost: int, queued: int, limit: float, remaining: float | None
) -> None:
    """Each is counted once, and every refusal tells the wait."""
    admission = QueueAdmission(queued_tokens=queued, queue_seconds=limit)
    estimate = load.estimate(cost, Priority.DEFAULT, 0)
    exceeded = {
        "queued_tokens": load.queued_tokens > 0 and load.queued_tokens + cost > queued,
        "queue_seconds": estimate.wait > LENIENCE * limit,
        "deadline": not estimate.in_time(remaining),
    }
    reason = next((reason for reason, is_exceeded in exceeded.items() if is_exceeded), None)
    asked = job(1, cost, remaining=remaining)
    if reason is None:
        admission.check_job(asked, cost, load, of_key=0)
        assert not admission.refused
        return
    with pytest.raises(Overloaded) as refused:
        admission.check_job(asked, cost, load, of_key=0)
    assert (admission.refused, refused.value.retry_after) == ({reason: 1}, estimate.retry_after)
