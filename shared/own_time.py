"""Waiting for what another process does, counted in the time in which this one runs.

A machine that stands still for long, or a process that is stopped, hears and does nothing meanwhile, though all others
may be well. So the time passes in steps, and a pause of any length is part of one step.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEPS = 10


@asynccontextmanager
async def limit(seconds: float) -> AsyncIterator[None]:
    """Ends its block after so many seconds, as asyncio.timeout does. Raises TimeoutError."""
    loop, left = asyncio.get_running_loop(), STEPS
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as ending:

        def pass_step() -> None:
            nonlocal left, timer
            left -= 1
            if left:
                timer = loop.call_later(seconds / STEPS, pass_step)
            else:
                ending.reschedule(loop.time())

        timer = loop.call_later(seconds / STEPS, pass_step)
        try:
            yield
        finally:
            timer.cancel()


async def sleep(seconds: float) -> None:
    """Returns after so many seconds, as asyncio.sleep does."""
    for _ in range(STEPS):
        await asyncio.sleep(seconds / STEPS)
