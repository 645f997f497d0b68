"""How fast steps are, by their size; who is refused on arrival, why, and when to try again."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.schedule.load import FRESH_STEPS, Pace, StepBudget, refusal
from shared.jobs import Priority
from shared.load import LENIENCE, SHORT, Backlog, Load
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
    estimate = load.estimate(cost, Priority.DEFAULT, 0)
    exceeded = {
        "queued_tokens": load.queued_tokens > 0 and load.queued_tokens + cost > queued,
        "queue_seconds": estimate.wait > LENIENCE * limit,
        "deadline": not estimate.in_time(remaining),
    }
    reason = next((reason for reason, is_exceeded in exceeded.items() if is_exceeded), None)
    asked = job(1, cost, remaining=remaining)
    refused = refusal(asked, cost, load, queued_tokens=queued, queue_seconds=limit, of_key=0, since=0)
    assert (refused and (refused[0], refused[1].retry_after)) == (reason and (reason, estimate.retry_after))


def test_what_a_step_did_not_compute_makes_no_longer_steps() -> None:
    """The next one may share no tokens, and must end in time as well; jobs are promised the speed that they get."""
    budget = StepBudget(step_tokens=8192, step_seconds=1.0)
    for _ in range(300):
        budget.learn(2048, 1.0, spared=0, computed=1000)
        assert budget.tokens == 1000
    assert budget.speed == pytest.approx(2048)


@pytest.mark.parametrize(
    ("speed", "tokens"),
    [(100_000, 8192), (10_000, 2000), (3000, 600), (2560, 512), (900, 512), (600, 360), (400, 256), (20, 256)],
)
def test_a_slow_models_step_has_what_makes_it_efficient(speed: int, tokens: int) -> None:
    """Up to three times the bound for 512 tokens, and 256 in any case; what a fast model computes within it."""
    budget = StepBudget(step_tokens=8192, step_seconds=0.2)
    for _ in range(300):
        budget.learn(512, 512 / speed, spared=0, computed=512)
    assert budget.tokens == tokens


def learn(pace: Pace, tokens: int, seconds: float) -> None:
    """A step that shows how fast steps can be, and that shares no tokens."""
    pace.learn(tokens, seconds, full=True, computed=tokens)


def test_small_steps_do_not_make_full_ones_look_slow() -> None:
    pace = Pace()
    assert pace.speed(1000) == 0
    learn(pace, 1000, 0.1)
    for _ in range(10 * FRESH_STEPS):
        learn(pace, 10, 0.05)
    assert (pace.speed(1000), pace.speed(10)) == (10_000, 200)


def test_what_was_slow_once_is_tried_again() -> None:
    """By what smaller steps show, once it is long ago."""
    pace = Pace()
    learn(pace, 1000, 100.0)
    for _ in range(FRESH_STEPS - 1):
        learn(pace, 500, 0.05)
    assert pace.speed(1000) == 10
    learn(pace, 500, 0.05)
    assert round(pace.speed(1000)) == 10_000


def test_what_a_small_step_costs_is_told_in_full_steps() -> None:
    """Ten tokens take 5 ms in a step of a thousand that takes 500, and 30 ms in a step of their own."""
    pace = Pace()
    assert pace.extra_share(10, 1000) == inf
    learn(pace, 1000, 0.5)
    assert pace.extra_share(10, 1000) == 0  # by all that is known
    learn(pace, 10, 0.03)
    assert pace.extra_share(10, 1000) == pytest.approx(0.05)
    for _ in range(FRESH_STEPS):
        learn(pace, 1000, 0.5)
    assert pace.extra_share(10, 1000) == 0  # once may have been chance: it is tried again


def test_what_looks_fast_for_once_is_no_measure() -> None:
    """Nor are small steps, which may hold no sequence at all; nor is a processor that is busy for a while."""
    pace = Pace()
    assert pace.quick == 0
    for _ in range(40):
        learn(pace, 256, 0.5)
        learn(pace, 2, 0.001)
    learn(pace, 256, 0.001)
    assert pace.quick == 512
    for _ in range(100):
        learn(pace, 256, 2.0)
        pace.learn(150, 0.01, full=False, computed=150)
    for _ in range(100):
        learn(pace, 256, 0.5)
    assert pace.quick == 512


def test_a_small_step_without_sequences_makes_no_full_one_look_fast() -> None:
    pace = Pace()
    learn(pace, 22, 0.002)
    assert pace.speed(512) == 11_000
    learn(pace, 256, 0.5)
    assert (pace.speed(512), pace.speed(22)) == (512, 11_000)


def test_of_sizes_that_never_ended_a_smaller_one_tells() -> None:
    pace = Pace()
    learn(pace, 100, 0.1)
    assert (pace.speed(10), pace.speed(100), pace.speed(10_000)) == (1000, 1000, 1000)
