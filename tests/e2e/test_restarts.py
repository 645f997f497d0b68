"""Workers that are killed and services that are restarted one after the other, while callers go on asking.

Clients ask again by gRPC's own retries, a service config (`harness.stack.RETRIES`) with

    "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"]}

An answer of ours that is UNAVAILABLE says when to ask again (grpc-retry-pushback-ms), and gRPC waits for that long.
"""

from itertools import cycle, islice

import pytest

from harness.member import ServiceProcess
from harness.stack import stack
from support.random_models import random_model
from support.references import eventually
from support.scraping import scrape
from support.traffic import Traffic, traffic

TINY = "tiny-bert"
METRICS = {"metrics": "127.0.0.1:0"}
BETWEEN = 20
"""Right answers between two restarts, at least."""
LOST = 0.01
"""Of all calls, at most: those that five tries did not save."""


def print_outcomes(name: str, running: Traffic, further: str = "") -> None:
    """Seen with `pytest -s`, and where the test fails."""
    counts = f"{running.ended} calls, {dict(running.outcomes)}, {len(running.wrong)} wrong, {len(running.hung)} hung"
    print(f"\n{name}: {counts}{further}")


async def unavailable(frontend: ServiceProcess) -> int:
    """Tries that a frontend answered with UNAVAILABLE."""
    return int((await scrape(frontend)).total("grpc_server_handled_total", grpc_code="Unavailable"))


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
async def test_of_two_workers_one_is_killed_again_and_again(kills: int) -> None:
    """Each time the other serves: no wrong answer, none hangs, and retries save all but a few."""
    async with (
        stack(random_model(TINY), workers=2, frontend=METRICS) as pair,
        pair.balanced_channel(retries=True) as channel,
        traffic(channel) as running,
    ):
        await eventually(lambda: sum("worker ready" in line for line in pair.frontends[0].log) == 2)
        for number in range(kills):
            await running.more(BETWEEN)
            victim, other = pair.workers[number % 2], pair.workers[1 - number % 2]
            await other.wait_ready()
            await victim.kill()
            await victim.restart()
        await pair.workers[1 - kills % 2].wait_ready()
        await running.more(BETWEEN)
        tries = await unavailable(pair.frontends[0])
    lost = running.outcomes["UNAVAILABLE"]
    print_outcomes(f"{kills} kills", running, f"; {tries} tries were UNAVAILABLE, {lost} calls stayed so")
    assert (running.wrong, running.hung) == ([], [])
    assert set(running.outcomes) <= {"OK", "UNAVAILABLE"}
    assert tries or kills == 1  # else nothing was ever under way when a worker died
    assert lost <= max(1, LOST * running.ended)


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.slow)])
async def test_rolling_restarts_lose_no_call(restarts: int) -> None:
    """Two frontends and two workers are told to stop one after the other, and come back on their addresses."""
    async with (
        stack(random_model(TINY), workers=2, frontends=2) as pair,
        pair.balanced_channel(retries=True) as channel,
        traffic(channel) as running,
    ):
        turns = cycle(each for both in zip(pair.workers, pair.frontends, strict=True) for each in both)
        for member in islice(turns, restarts):
            await running.more(BETWEEN)
            assert await member.stop() == 0
            await member.restart()
            await member.wait_ready()
        await running.more(BETWEEN)
    print_outcomes(f"{restarts} restarts", running)
    assert (running.wrong, running.hung) == ([], [])
    assert set(running.outcomes) == {"OK"}
