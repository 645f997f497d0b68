"""How far the command is, on standard error: a line that is overwritten, on terminals alone; and lines that stay."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

EVERY = 0.2
"""Seconds between two updates of the line."""


class Meter:
    """A line such as `12,345 texts, 2,300 a second, 25 %, 0:03:10 left`."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = sys.stderr if out is None else out
        self._clock, self._shown = clock, float("-inf")
        self._wanted = self._out.isatty()
        self._width = 0
        self.start = clock()
        self._skipped: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the first text was read; before that, since the meter was made."""
        return max(self._clock() - self.start, 1e-9)

    def begin(self, fraction: float) -> None:
        """Starts the time where the first text was read; `fraction` of the input before it was finished earlier."""
        if self._skipped is None:
            self._skipped, self.start = fraction, self._clock()

    def show(self, texts: int, fraction: float) -> None:
        """Shows now and then that `texts` are done and a `fraction` of the input, from 0 to 1, has been read.

        Before `begin` it shows how much of the input has been skipped.
        """
        if not self._wanted or self._clock() - self._shown < EVERY:
            return
        self._shown = self._clock()
        if self._skipped is None:
            self._write(f"reading past rows that are finished or not for this command, {fraction:.0%}")
            return
        done = fraction - self._skipped
        left = f", {clock_time(self.seconds * (1 - fraction) / done)} left" if done > 0 else ""
        self._write(f"{texts:,} texts, {texts / self.seconds:,.0f} a second, {fraction:.0%}{left}")

    def tell(self, line: str) -> None:
        """Tells something in a line that stays, on a terminal or not."""
        self.end()
        print(line, file=self._out, flush=True)

    def end(self) -> None:
        """Clears the line."""
        if self._wanted:
            self._write("")
            self._out.write("\r")
            self._out.flush()

    def _write(self, line: str) -> None:
        self._out.write("\r" + line.ljust(self._width))
        self._out.flush()
        self._width = len(line)


def clock_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 0:03:10."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
