"""An event loop whose seconds take no time: they pass when nothing else is to be done, and not while a machine is busy.

For what waits on the loop's own clock. Where threads or other processes work meanwhile, time would run away from them.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from shared import deadline

T = TypeVar("T")


class Clockwork(asyncio.SelectorEventLoop):
    """Goes to the next timer at once when nothing is ready."""

    tick = 0.0
    """Seconds that each round of callbacks takes."""

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
            self._now += seconds + self.tick
        return ready


class Ticking(Clockwork):
    """Lets a nanosecond pass in each round of callbacks.

    asyncio rings a timer up to a nanosecond early. Who looks at the clock then, and waits for the rest, would ring it
    again and again at the same moment.
    """

    tick = 1e-9


@contextmanager
def deadlines_by(clock: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Lets the deadlines of requests pass by an event loop's clock; they are made of the machine's otherwise."""
    virtual: Any = SimpleNamespace(monotonic=clock.time)
    with patch.object(deadline, "time", virtual):
        yield


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on such a loop of its own, deadlines included."""
    with asyncio.Runner(loop_factory=Ticking) as runner, deadlines_by(runner.get_loop()):
        return runner.run(work)
