"""Coroutines that end together, work that goes to threads, and waiting in a process's own time. Standard library only.

Waiting for what another process does is counted in the time in which this one runs (`limit`, `until_stuck`, `sleep`). A
machine that stands still for long, or a process that is stopped, hears and does nothing meanwhile, though all others
may be well. So the time passes in steps, and a pause of any length is part of one step.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar


async def either(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines until one ends, cancels the others, and raises what the ended one raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
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


async def until_stuck(seconds: float, waits_for: Callable[[], object]) -> None:
    """Returns once a process has waited for the same thing for so many seconds, a tenth more at most.

    `waits_for`: what is waited for now, as something that is equal for as long as that is the same; None: nothing is.
    A timer for each wait would cost more than the wait.
    """
    before, steps = None, 0
    while steps < STEPS:
        await asyncio.sleep(seconds / STEPS)
        now = waits_for()
        steps = steps + 1 if now is not None and now == before else 0
        before = now


async def sleep(seconds: float) -> None:
    """Returns after so many seconds, as asyncio.sleep does."""
    for _ in range(STEPS):
        await asyncio.sleep(seconds / STEPS)
