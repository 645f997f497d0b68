"""The simulation against what can be said without it: times that add up, and capacities that nothing exceeds."""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.load.loops import Call
from benchmarks.scale.simulation import LEAST_SHARE, Offered, Scale, fair_shares, least_share, simulate
from benchmarks.scale.timed_engine import StepTime
from benchmarks.scale.virtual_link import Pipe
from benchmarks.scale.virtual_time import in_virtual_time

SCALE = Scale(
    workers=1,
    frontends=1,
    time=StepTime(speed=4000.0, overhead=0.01),
    step_tokens=1024,
    latency=0.001,
    request_seconds=0.002,
    refusal_seconds=0.001,
)
OFFERED = Offered(rate=1.0, tokens=128, seconds=10.0, warmup=2.0, deadline=2.0)
KEYS = "greedy:3,modest,modester,modestest"


def run(scale: Scale = SCALE, times: float = 1.0, offered: Offered = OFFERED) -> dict[str, float]:
    return in_virtual_time(simulate(scale, replace(offered, rate=times * scale.capacity(offered.tokens))))


def test_a_lone_request_takes_what_its_parts_add_up_to() -> None:
    """Four messages, the frontend's core, and a step of its tokens."""
    figures = run(times=0.01, offered=replace(OFFERED, seconds=20.0))
    assert figures["p50 ms"] == pytest.approx(4 * 1 + 2 + 10 + 128 / 4, abs=0.1)


def test_the_capacity_is_that_of_full_steps_or_of_the_frontends() -> None:
    """Eight texts of 128 tokens in 0.266 s."""
    assert SCALE.capacity(128) == pytest.approx(8 / 0.266)
    assert replace(SCALE, workers=3).capacity(128) == pytest.approx(24 / 0.266)
    assert replace(SCALE, workers=3, request_seconds=0.1).capacity(128) == pytest.approx(10)


def test_no_load_is_answered_beyond_the_capacity() -> None:
    """Half of it is answered wholly, three times it nearly in full and with refusals."""
    half, thrice = run(times=0.5), run(times=3.0)
    capacity = SCALE.capacity(128)
    assert half["goodput/s"] == half["requests/s"] == pytest.approx(0.5 * capacity, rel=0.2)
    assert "refused/s" not in half
    assert 0.85 * capacity < thrice["goodput/s"] < 1.05 * capacity
    assert thrice["refused/s"] > capacity
    assert thrice["p99 ms"] <= 2000


def test_where_frontends_are_too_few_more_of_them_help() -> None:
    """One bears five requests a second here, a worker thirty."""
    slow = replace(SCALE, request_seconds=0.2, refusal_seconds=0.0)
    rate = 20.0
    loaded = replace(OFFERED, deadline=0.0)

    def answered(frontends: int) -> float:
        scale = replace(slow, frontends=frontends)
        return in_virtual_time(simulate(scale, replace(loaded, rate=rate)))["p50 ms"]

    one, eight = answered(1), answered(8)
    assert one > 5000
    assert eight < 1000


def test_workers_are_all_used() -> None:
    """Three answer three times what one does, whichever frontend a request comes to."""
    figures = run(replace(SCALE, workers=3, frontends=2), times=0.9)
    assert figures["goodput/s"] > 2.4 * SCALE.capacity(128)


def test_many_frontends_make_a_load_little_slower() -> None:
    """At half of what the workers can do each hears of the others' requests late, and nearly all find a free worker."""
    four = replace(SCALE, workers=4)
    one, many = (run(replace(four, frontends=frontends), times=0.5) for frontends in (1, 16))
    assert many["p50 ms"] < 1.5 * one["p50 ms"]
    assert many["goodput/s"] == pytest.approx(one["goodput/s"], rel=0.02)


def test_many_frontends_choose_the_fast_one_of_idle_workers() -> None:
    """At a tenth of what it alone can do, beside three that take four times as long: nearly all have its time."""
    fast, slow = StepTime(speed=40_000.0, overhead=0.002), StepTime(speed=10_000.0, overhead=0.008)
    scale = replace(SCALE, workers=4, frontends=16, time=fast, slow=slow)
    figures = run(scale, times=0.1 / 4)
    assert figures["p50 ms"] == pytest.approx(1e3 * scale.lone_seconds(128), abs=0.5)
    assert figures["p99 ms"] < 1e3 * (scale.lone_seconds(128) + slow.seconds(128))


def test_a_greedy_caller_takes_little_from_the_others() -> None:
    """One of four keys asks for half of twice the capacity. Deadlines are long beside a step, so that the queue decides
    and not admission."""
    figures = run(times=2.0, offered=replace(OFFERED, keys=KEYS, seconds=40.0, warmup=15.0, deadline=10.0))
    assert figures[LEAST_SHARE] > 70


def test_many_small_requests_are_refused_in_time_rather_than_late() -> None:
    """More jobs wait than an express step takes: none is let in as if it went ahead of the others."""
    fast = replace(SCALE, frontends=2, time=StepTime(speed=40_000.0, overhead=0.001))
    figures = run(fast, times=2.0, offered=replace(OFFERED, keys=KEYS, seconds=4.0))
    assert figures["goodput/s"] > 0.9 * fast.capacity(128)
    assert figures[LEAST_SHARE] > 80
    assert figures.get("expired/s", 0.0) < 0.02 * fast.capacity(128)


def test_a_lost_worker_fails_nobody_while_the_other_has_room() -> None:
    """Clients try again; what it had is computed by the other."""
    two = replace(SCALE, workers=2, frontends=2)
    figures = run(two, times=0.3, offered=replace(OFFERED, loses=True))
    assert "failed/s" not in figures
    assert figures["goodput/s"] == pytest.approx(0.3 * two.capacity(128), rel=0.25)


def test_a_lost_worker_takes_its_share() -> None:
    """At nearly all that two can do, one of them is missed in the second half."""
    two = replace(SCALE, workers=2, frontends=2)
    lost = run(two, times=0.95, offered=replace(OFFERED, loses=True))
    assert lost["goodput/s"] < 0.85 * run(two, times=0.95)["goodput/s"]


def test_shares_are_max_min_fair() -> None:
    """Who asks for less than an even share gets it, and the rest is divided among the others."""
    small, large, huge = (("selvage-key", "a"),), (("selvage-key", "b"),), (("selvage-key", "c"),)
    assert fair_shares({huge: 100, small: 10, large: 100}, 90.0) == {small: 10, large: 40, huge: 40}


def test_a_starved_key_shows() -> None:
    """The least of all shares is told, not the mean."""
    keys = [(("selvage-key", name),) for name in "ab"]
    calls = [
        Call(due=0.0, ended=1.0, status="OK" if key == keys[0] else "RESOURCE_EXHAUSTED", request=0, sender=key)
        for key in keys
        for _ in range(4)
    ]
    assert least_share(calls) == 0


def test_messages_keep_their_order() -> None:
    """Also those of the same moment."""

    async def read() -> tuple[list[bytes], float]:
        pipe, messages = Pipe(0.5), [bytes([number]) for number in range(100)]
        for message in messages:
            pipe.put(message)
        got = [await pipe.get() for _ in messages]
        assert got == messages
        return got, asyncio.get_running_loop().time()

    assert in_virtual_time(read())[1] == pytest.approx(0.5, abs=1e-3)
