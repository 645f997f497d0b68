"""From which part of a step's tokens on texts share their beginnings, by the times of steps."""

from math import inf

import pytest

from gpu_worker.device.timing import PAYS
from gpu_worker.model.encoder.sharing_times import LEAST_SHARE, SharingTimes

TOKENS = (100, 1000, 10_000)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (10_000, 1 - PAYS / 2),  # each token takes twice as long
        (40_000, 1 - PAYS / 2),  # longer than any that was measured
        (5500, 1 - PAYS / 2),
        (1000, inf),  # the shortest step that shares takes longer than this one
        (1, inf),
    ],
)
def test_a_slower_form_needs_more_shared_tokens(tokens: int, expected: float) -> None:
    times = SharingTimes(tokens=TOKENS, whole=(1.0, 10.0, 100.0), sharing=(20.0, 20.0, 200.0))
    assert times.least_spared(tokens, PAYS) == pytest.approx(expected)


def test_a_form_that_is_as_fast_needs_what_pays() -> None:
    """Launches take the same time up to 1,000 tokens, so a step of so many gains nothing."""
    times = SharingTimes(tokens=TOKENS, whole=(5.0, 5.0, 50.0), sharing=(5.0, 5.0, 50.0))
    assert times.least_spared(10_000, PAYS) == LEAST_SHARE > 1 - PAYS
    assert times.least_spared(1000, PAYS) == inf


def test_a_short_step_that_was_disturbed_is_no_slower_than_a_longer_one() -> None:
    times = SharingTimes(tokens=TOKENS, whole=(1.0, 10.0, 100.0), sharing=(1.0, 40.0, 30.0))
    assert times.least_spared(10_000, PAYS) == LEAST_SHARE
