"""A limit for the silence of another process, counted while this one runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEPS = 10


@asynccontextmanager
async def silence_limit(seconds: float) -> AsyncIterator[None]:
    """Ends its block after so many seconds, as asyncio.timeout does, except that a pause of this process counts little.

    A machine that stands still for long, or a process that is stopped, hears nothing meanwhile though the other one
    may be well. So the time passes in steps, and a pause of any length is part of one step. Raises TimeoutError.
    """
    loop, left = asyncio.get_running_loop(), STEPS
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def pass_step() -> None:
            nonlocal left, timer
            left -= 1
            if left:
                timer = loop.call_later(seconds / STEPS, pass_step)
            else:
                limit.reschedule(loop.time())

        timer = loop.call_later(seconds / STEPS, pass_step)
        try:
            yield
        finally:
            timer.cancel()
