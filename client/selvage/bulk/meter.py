"""How far the command is, on standard error: one line that is written over, and nothing where nobody watches."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

EVERY = 0.2
"""Seconds between two lines."""


class Meter:
    """`12,345 texts, 2,300 a second, 25 %, 0:03:10 left`."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = sys.stderr if out is None else out
        self._clock, self._shown = clock, float("-inf")
        self._wanted = self._out.isatty()
        self._width = 0
        self.start = clock()
        self._skipped: float | None = None

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return max(self._clock() - self.start, 1e-9)

    def begin(self, share: float) -> None:
        """The first text was read; what was finished before is a `share` of the input, from 0 to 1."""
        self._skipped, self.start = share, self._clock()

    def tell(self, texts: int, share: float) -> None:
        """`texts` have been done, the input up to `share`; before `begin`, what was finished is passed."""
        if not self._wanted or self._clock() - self._shown < EVERY:
            return
        self._shown = self._clock()
        if self._skipped is None:
            self._write(f"reading past rows that are finished or not for this command, {share:.0%}")
            return
        done = share - self._skipped
        left = f", {clock_time(self.seconds * (1 - share) / done)} left" if done > 0 else ""
        self._write(f"{texts:,} texts, {texts / self.seconds:,.0f} a second, {share:.0%}{left}")

    def end(self) -> None:
        """The line makes room."""
        if self._wanted:
            self._write("")
            self._out.write("\r")
            self._out.flush()

    def _write(self, line: str) -> None:
        self._out.write("\r" + line.ljust(self._width))
        self._out.flush()
        self._width = len(line)


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
