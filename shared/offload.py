"""Work that would keep the event loop too long goes to a thread. Standard library only."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

THREAD_BYTES = 1024 * 1024
"""Copying or parsing fewer bytes takes about as long as handing the work to a thread."""

T = TypeVar("T")
R = TypeVar("R")


async def offload(threads: Executor, size: int, work: Callable[[T], R], argument: T) -> R:
    """Runs `work(argument)`, in a thread where it handles more than a mebibyte."""
    if size <= THREAD_BYTES:
        return work(argument)
    return await asyncio.get_running_loop().run_in_executor(threads, work, argument)
