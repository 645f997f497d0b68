"""Who is refused on arrival, and what is expected of a job: the early answers are those of the whole estimate."""

from math import inf

from hypothesis import example, given
from hypothesis import strategies as st

from gpu_worker.queue.admission import QueueAdmission, QueueLimits
from shared.errors import Overloaded
from shared.estimate import LENIENCE, Estimate
from shared.jobs import Priority
from shared.load import Backlog, Load, bucket
from support.synchronous_engine import job

WAITING = st.lists(st.integers(1, 20_000), max_size=8)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Jobs of several priorities that wait, each of a key of its own, and steps under way."""
    backlogs = {}
    for priority in Priority:
        waiting = draw(WAITING)
        jobs = [0] * (1 + max(map(bucket, waiting), default=0))
        for tokens in waiting:
            jobs[bucket(tokens)] += 1
        if waiting:
            backlogs[priority] = Backlog(keys=len(waiting), tokens=sum(waiting), jobs=tuple(jobs))
    aside = draw(st.sampled_from([0, 0, 5000]))
    return Load(
        queued_tokens=aside + sum(backlog.tokens for backlog in backlogs.values()),
        tokens_per_second=draw(st.sampled_from([0.0, 50.0, 10_000.0])),
        backlogs=backlogs,
        turn=256,
        busy=draw(st.sampled_from([0.0, 0.2, 5.0])),
        express_tokens=draw(st.sampled_from([0, 100])),
        step_tokens=draw(st.sampled_from([512, 4096])),
        slowdowns={(Priority.DEFAULT, False): 2.0},
    )


JUST_A_STEP = Load(
    queued_tokens=489,
    tokens_per_second=50.0,
    backlogs={Priority.DEFAULT: Backlog(keys=1, tokens=489, jobs=(0,) * 8 + (1,))},
    turn=256,
    step_tokens=512,
)
"""With 23 tokens more it is a step, to the bit."""


def whole_estimate(load: Load, cost: int, limit: float, remaining: float | None) -> float | None:
    """Seconds that are expected of a job, 0 where it is answered within a full step's time; None: it is refused."""
    speed = load.tokens_per_second
    if not speed or not (load.queued_tokens or load.busy):
        return 0.0
    if load.queue_seconds(cost, Priority.DEFAULT, 0) > LENIENCE * limit:
        return None
    slowdown = load.slowdown(cost, Priority.DEFAULT)
    estimate = Estimate(wait=load.wait(cost, Priority.DEFAULT, 0), takes=cost / speed, slowdown=slowdown)
    if not estimate.in_time(remaining):
        return None
    return estimate.seconds if estimate.seconds * speed >= load.step_tokens else 0.0


@given(
    loads(),
    st.integers(1, 6000),
    st.sampled_from([10**9, 3000]),
    st.sampled_from([inf, 0.1, 3.0]),
    st.sampled_from([None, 0.5, 20.0]),
)
@example(JUST_A_STEP, 23, 10**9, inf, None)
def test_what_is_answered_early_is_what_the_whole_estimate_says(
    load: Load, cost: int, queued: int, limit: float, remaining: float | None
) -> None:
    admission = QueueAdmission(QueueLimits(queued_tokens=queued, queue_seconds=limit))
    at_once = admission.accepts_at_once(
        job(1, cost, remaining=remaining),
        cost,
        queued_tokens=load.queued_tokens,
        busy=load.busy,
        tokens_per_second=load.tokens_per_second,
        step_tokens=load.step_tokens,
        slowdown=2.0,
    )
    try:
        found: float | None = admission.check_job(job(1, cost, remaining=remaining), cost, load, of_key=0)
    except Overloaded:
        found = None
    fits = not load.queued_tokens or load.queued_tokens + cost <= queued
    assert found == (whole_estimate(load, cost, limit, remaining) if fits else None)
    assert not at_once or found == 0.0
