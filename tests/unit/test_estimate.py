"""When a job would be answered: which waits are refused, and what the refusal says."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Overloaded
from shared.estimate import MARGIN, UNREAD_MARGIN, Estimate

SECONDS = st.floats(0.001, 10_000)


@given(wait=SECONDS, takes=SECONDS, remaining=SECONDS, margin=st.sampled_from([MARGIN, UNREAD_MARGIN]))
def test_a_refusal_adds_up(wait: float, takes: float, remaining: float, margin: float) -> None:
    """The largest number that it names is beyond the deadline, but for rounding; and what fits its share is taken."""
    estimate = Estimate(wait=wait, takes=takes)
    if wait + takes <= margin * remaining:
        estimate.check(remaining, margin)
        return
    with pytest.raises(Overloaded) as refused:
        estimate.check(remaining, margin)
    *alone, needed, slower, deadline = map(float, re.findall(r"\d+\.\d", refused.value.message))
    assert alone in ([], [round(takes, 1)])
    assert max([*alone, needed]) <= slower
    assert slower >= deadline - 0.1


def test_a_job_that_nothing_is_ahead_of_is_tried() -> None:
    """However long it takes: the estimate of a single job may be wrong. Without a deadline nothing is too late."""
    Estimate(wait=0, takes=100).check(1.0)
    Estimate(wait=100, takes=100).check(None)
