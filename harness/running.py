"""Runs a program that starts processes, and stops them however it ends."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
BY_SIGTERM = 128 + signal.SIGTERM
"""The exit status of a process that SIGTERM ended, as shells report it."""


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[asyncio.Event]:
    """Yields an event that the first of these signals sets.

    Each further signal cancels the current task, so that processes which it is stopping are killed.
    """
    signalled, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def on_signal() -> None:
        if signalled.is_set():
            task.cancel()
        signalled.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield signalled
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but SIGTERM cancels `main` as Ctrl-C does, so that it can stop what it started.

    Raises SystemExit with 143 after that.
    """

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise SystemExit(BY_SIGTERM) from None
