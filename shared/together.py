"""Two coroutines that live and die together. Standard library only."""

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
