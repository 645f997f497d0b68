"""What the check of the simulation takes from a lone client: a lone request is simulated as it was measured."""

from dataclasses import replace

import pytest

from benchmarks.scale.simulation import Offered, Scale, simulate
from benchmarks.scale.timed_engine import StepTime
from benchmarks.scale.virtual_time import in_virtual_time
from benchmarks.scaling_check import LIST_TEXTS, LIST_TOKENS, TOKENS, Lone, as_fast, calibrated

SCALE = Scale(
    workers=1,
    frontends=1,
    time=StepTime(speed=4000.0, overhead=0.01),
    step_tokens=2048,
    latency=0.001,
    request_seconds=0.002,
    refusal_seconds=0.001,
)


def lone_milliseconds(scale: Scale, tokens: int, texts: int) -> float:
    """The latency of requests that hardly ever meet."""
    seconds = 40 * scale.lone_seconds(tokens)
    offered = Offered(rate=20 / seconds, tokens=tokens, texts=texts, seconds=seconds, warmup=0.0, deadline=0.0)
    return in_virtual_time(simulate(scale, offered))["p50 ms"]


def test_messages_take_what_is_left_of_a_lone_request() -> None:
    """Beside the frontend's core and the step, whose time is set."""
    measured = Lone(whole=0.060, frontend=0.004)
    scale = calibrated(SCALE, measured)
    assert scale.latency == pytest.approx((0.060 - 0.004 - 0.010 - 0.032) / 4)
    assert lone_milliseconds(scale, TOKENS, 1) == pytest.approx(60, abs=0.1)


def test_a_faster_machine_than_the_step_has_no_latency() -> None:
    """Timers may be early by a hair; nothing comes before it was sent."""
    assert calibrated(SCALE, Lone(whole=0.030, frontend=0.004)).latency == 0


def test_a_refusal_takes_no_more_than_half_of_a_request() -> None:
    assert calibrated(replace(SCALE, refusal_seconds=0.003), Lone(whole=0.060, frontend=0.004)).refusal_seconds == 0.002


def test_a_real_worker_is_as_fast_as_its_lone_requests() -> None:
    """The messages take what they take elsewhere; the rest is its step."""
    scale = as_fast(SCALE, Lone(whole=0.200, frontend=0.007))
    assert scale.time.seconds(LIST_TOKENS) == pytest.approx(0.200 - 0.007 - 4 * 0.001)
    assert lone_milliseconds(scale, LIST_TOKENS, LIST_TEXTS) == pytest.approx(200, rel=0.01)
