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
def cancelled_by(*numbers: signal.Signals) -> Iterator[None]:
    """These signals cancel the task that asks, each time that they come: one that stops members already kills them."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but SIGTERM cancels `main` as Ctrl-C does, so that it can stop what it started.

    Raises SystemExit with 143 after that.
    """

    async def cancellable() -> T:
        with cancelled_by(signal.SIGTERM):
            return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise SystemExit(BY_SIGTERM) from None
