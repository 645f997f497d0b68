"""How fast steps are, by their size; who is refused on arrival, why, and when to try again."""

from math import inf

import pytest

from gpu_worker.schedule.load import FRESH_STEPS, Pace, StepBudget


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
