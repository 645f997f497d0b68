"""Runs a program that starts members, and stops them whatever ends it."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
BY_SIGTERM = 128 + signal.SIGTERM
"""The exit status by which shells tell it."""


@contextmanager
def told_by(*numbers: signal.Signals) -> Iterator[asyncio.Event]:
    """Is set by the first of these signals. Each further one cancels the task that asks, so that members it is stopping
    are killed."""
    told, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def heard() -> None:
        if told.is_set():
            task.cancel()
        told.set()

    for number in numbers:
        loop.add_signal_handler(number, heard)
    try:
        yield told
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
