"""Runs a program that starts processes, and stops them however it ends."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


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
    """`asyncio.run`, but SIGTERM and SIGINT (Ctrl-C) cancel `main`, so that it can stop what it started.

    Raises SystemExit after that, with the status that shells report for a process which the signal ended: 143 or 130.
    """
    received: list[signal.Signals] = []

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, cancel, number)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise SystemExit(128 + (received[0] if received else signal.SIGTERM)) from None
