"""Runs coroutines that end together. Standard library only."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def either(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Runs two coroutines until one ends, cancels the other, and raises what the ended one raised."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(task: asyncio.Task[Any], *endless: asyncio.Task[None]) -> None:
    """Waits until `task` has ended. Raises its error, or the error of an `endless` task that failed first."""
    await asyncio.wait([task, *endless], return_when=asyncio.FIRST_COMPLETED)
    for ended in (*endless, task):
        if ended.done():
            ended.result()


def unheeded(done: "asyncio.Future[Any]") -> None:
    """Retrieves the error of an abandoned future, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
