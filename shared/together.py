"""Coroutines that live and die together. Standard library only."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def either(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Returns when the first of them ends, raises what it raised, and cancels the other."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(task: asyncio.Task[Any], *endless: asyncio.Task[None]) -> None:
    """Until the task has ended. Raises what it raised, or what ended one of those that never end by themselves."""
    await asyncio.wait([task, *endless], return_when=asyncio.FIRST_COMPLETED)
    for each in (*endless, task):
        if each.done():
            each.result()
