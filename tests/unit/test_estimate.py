"""When a job would be answered: which waits are refused, and what the refusal says."""

import re
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.load import LONGEST_RETRY, MARGIN, UNREAD_MARGIN, Estimate

SECONDS = st.floats(0.001, 10_000)


@given(wait=SECONDS, takes=SECONDS, remaining=SECONDS, margin=st.sampled_from([MARGIN, UNREAD_MARGIN]))
def test_a_refusal_adds_up(wait: float, takes: float, remaining: float, margin: float) -> None:
    """The largest number that it names is beyond the deadline, but for rounding; and what fits its share is taken."""
    refusal = Estimate(wait=wait, takes=takes).refusal(remaining, margin=margin)
    if wait + takes <= margin * remaining:
        assert refusal is None
        return
    assert refusal is not None
    reason, error = refusal
    *alone, needed, slower, deadline = map(float, re.findall(r"\d+\.\d", error.message))
    assert alone in ([], [round(takes, 1)])
    assert max([*alone, needed]) <= slower
    assert slower >= deadline - 0.1
    assert reason == "deadline"


def test_a_job_that_nothing_is_ahead_of_is_tried() -> None:
    """However long it takes: the estimate of a single job may be wrong. Without a deadline nothing is too late."""
    assert Estimate(wait=0, takes=100).refusal(1.0, limit=1.0) is None
    assert Estimate(wait=100, takes=100).refusal(None) is None


@pytest.mark.parametrize(("limit", "lenience", "refused"), [(inf, 1.0, False), (10.0, 1.05, False), (10.0, 1.0, True)])
def test_a_wait_beyond_the_limit_is_refused_by_the_limit(limit: float, lenience: float, refused: bool) -> None:
    """Without a deadline too; what the job itself takes does not count, and the text names the limit itself."""
    refusal = Estimate(wait=10.2, takes=100).refusal(None, limit=limit, lenience=lenience)
    assert (refusal is not None) is refused
    assert refusal is None or (refusal[0], refusal[1].message) == (
        "queue_seconds",
        "it would wait up to 10.2 s, the limit is 10 s",
    )


@pytest.mark.parametrize(("wait", "told"), [(0.01, 0.1), (6.04, 6.0), (3600.0, LONGEST_RETRY), (0.0, 1.0)])
def test_who_is_refused_is_told_the_wait(wait: float, told: float) -> None:
    """In tenths of a second, within bounds; a second where nothing is known."""
    assert Estimate(wait=wait, takes=100).retry_after == told
