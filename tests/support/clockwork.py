"""Tests on an event loop whose seconds take no time, for what waits on the loop's own clock.

They pass when nothing else is to be done, and not while a machine is busy. Where threads or other processes work
meanwhile, time would run away from them.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_no_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test on such a loop of its own; it takes no fixture that belongs to another loop."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=Clockwork) as runner:
            runner.run(test(*arguments, **options))

    return run


class Clockwork(asyncio.SelectorEventLoop):
    """Goes to the next timer at once when nothing is ready."""

    def __init__(self) -> None:
        selector: Any = selectors.DefaultSelector()
        super().__init__(selector)
        self._now = 0.0
        self._ready_files: Callable[[float], list[Any]] = selector.select
        selector.select = self._select

    def time(self) -> float:
        return self._now

    def _select(self, seconds: float | None = None) -> list[Any]:
        ready = self._ready_files(0)
        if not ready:
            assert seconds is not None, "it waits for what nothing brings about"
            self._now += seconds
        return ready
