"""Seconds in which a process stands still are not counted, but for a part of one step."""

import asyncio
import time
from typing import Any

import pytest

from shared import tasks
from support.clockwork import in_no_time


async def never(seconds: float) -> None:
    """Waits for what does not come."""
    with pytest.raises(TimeoutError):
        async with tasks.limit(seconds):
            await asyncio.Event().wait()


async def stuck(seconds: float) -> None:
    """Waits for one thing all the time."""
    await tasks.until_stuck(seconds, lambda: "it")


@in_no_time
async def test_undisturbed_it_is_the_time_of_the_clock() -> None:
    """For all ways to wait; what comes in time ends the limit."""
    clock = asyncio.get_running_loop().time
    for wait, seconds in ((never, 5.0), (tasks.sleep, 5.0), (stuck, 5.5)):
        began = clock()
        await wait(5.0)
        assert clock() - began == pytest.approx(seconds)
    async with tasks.limit(5.0):
        await asyncio.sleep(4.9)
    await asyncio.sleep(10)
    async with tasks.limit(5.0), tasks.limit(1.0):
        await asyncio.sleep(0.9)


@in_no_time
async def test_what_comes_or_is_not_waited_for_is_not_stuck() -> None:
    waits_for: list[object] = [1]
    stuck = asyncio.create_task(tasks.until_stuck(5.0, lambda: waits_for[0]))
    for thing in (2, None, 3):
        await asyncio.sleep(4.9)
        waits_for[0] = thing
    await asyncio.sleep(4.9)
    waits_for[0] = None
    await asyncio.sleep(100)
    assert not stuck.done()
    waits_for[0] = 4
    await stuck


@pytest.mark.parametrize("wait", [never, tasks.sleep, stuck])
async def test_a_pause_takes_one_step(wait: Any) -> None:
    """However long it is: what is due meanwhile comes one step after the other."""
    waiting: asyncio.Task[None] = asyncio.create_task(wait(0.5))
    await asyncio.sleep(0)
    time.sleep(0.7)  # noqa: ASYNC251 - nothing of the loop runs
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    await waiting
