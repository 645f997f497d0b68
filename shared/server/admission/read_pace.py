"""The pace at which large requests of one caller are read while others ask. Knows no gRPC and no HTTP."""

import asyncio
from dataclasses import dataclass

from shared.server.admission.reads import LARGE_REQUEST

RECENT = 1.0
"""Seconds for which a caller counts as asking after it asked."""
LOOK = 0.05
"""Most seconds between two looks whether a caller still has to wait."""


@dataclass(slots=True)
class _Pace:
    """The pace of one caller, by the loop's clock.

    `ready`: when its next request may be read; `gap`: seconds from its latest large request to that; `others`: when
    another caller asked last.
    """

    ready: float = 0.0
    gap: float = 0.0
    others: float = 0.0


class ReadPace:
    """Lets a caller wait after a large request, as long as others ask.

    To receive, put together and parse 60 MB takes up to half a second of a core, much of it with Python's lock. Whoever
    sends such requests in a row would take most of the process from callers of small ones. A size is known only once a
    request has been read, so the next one of that caller waits, whatever its size.
    """

    def __init__(self, rate: float) -> None:
        """`rate`: bytes a second of a caller's large requests while others ask; infinite: nobody waits."""
        self._rate = rate
        self._paces: dict[str, _Pace] = {}  # of callers that sent a large request lately

    async def wait(self, caller: str) -> float:
        """Waits until a request of the caller may be read. Returns the turn, which `arrived` is given."""
        clock = asyncio.get_running_loop().time
        if not self._paces:
            return 0.0
        now = clock()
        for other, pace in self._paces.items():
            if other != caller:
                pace.others = now
        pace_of_caller = self._paces.get(caller)
        if pace_of_caller is None:
            return 0.0
        while now < min(pace_of_caller.ready, pace_of_caller.others + RECENT):
            await asyncio.sleep(min(LOOK, min(pace_of_caller.ready, pace_of_caller.others + RECENT) - now))
            now = clock()
        pace_of_caller.ready = now + pace_of_caller.gap  # whoever waits beside it goes on waiting
        return pace_of_caller.ready

    def arrived(self, caller: str, size: int, turn: float) -> None:
        """Counts a request of the caller that has been read."""
        pace, now = self._paces.get(caller), asyncio.get_running_loop().time()
        if size >= LARGE_REQUEST and self._rate < float("inf"):
            if pace is None:
                self._paces = {name: other for name, other in self._paces.items() if other.ready + RECENT > now}
                pace = self._paces[caller] = _Pace(others=now)
            pace.gap = size / self._rate
            pace.ready = now + pace.gap
        elif pace is not None and pace.ready == turn:  # it was small: the next one need not wait for it
            pace.ready = now
