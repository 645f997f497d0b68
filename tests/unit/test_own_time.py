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


@in_no_time
async def test_undisturbed_it_is_the_time_of_the_clock() -> None:
    """For both ways to wait; what comes in time ends the limit."""
    clock = asyncio.get_running_loop().time
    for wait in (never, tasks.sleep):
        began = clock()
        await wait(5.0)
        assert clock() - began == pytest.approx(5.0)
    async with tasks.limit(5.0):
        await asyncio.sleep(4.9)
    await asyncio.sleep(10)
    async with tasks.limit(5.0), tasks.limit(1.0):
        await asyncio.sleep(0.9)


@pytest.mark.parametrize("wait", [never, tasks.sleep])
async def test_a_pause_takes_one_step(wait: Any) -> None:
    """However long it is: what is due meanwhile comes one step after the other."""
    waiting: asyncio.Task[None] = asyncio.create_task(wait(0.5))
    await asyncio.sleep(0)
    time.sleep(0.7)  # noqa: ASYNC251 - nothing of the loop runs
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    await waiting
