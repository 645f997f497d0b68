"""Work that would keep the event loop too long goes to a thread, or where there is none, to the caller's.

Standard library only.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

THREAD_BYTES = 1024 * 1024
"""Copying or parsing fewer bytes takes about as long as handing the work to a thread."""

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


async def offload(threads: Executor, size: int, work: Callable[[T], R], argument: T) -> R:
    """Runs `work(argument)`, in a thread where it handles more than a mebibyte."""
    if size <= THREAD_BYTES:
        return work(argument)
    return await asyncio.get_running_loop().run_in_executor(threads, work, argument)


class Inline(Executor):
    """An executor without a thread, for tests, and for code that drives the scheduler by itself."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> "Future[T]":
        """Runs the call; its error is the future's."""
        future: Future[T] = Future()
        try:
            future.set_result(work(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future
