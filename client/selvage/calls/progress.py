"""How far a call is, on standard error: by tqdm where it is installed, else on a line that is overwritten."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

EVERY = 0.1
"""Seconds between two updates of the line, so that they cost nothing."""


@contextmanager
def progress_shown(total: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of new results and shows it; silent unless `wanted`."""
    if not wanted:
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        line = ProgressLine(total)
        try:
            yield line.add_results
        finally:
            line.end()
        return
    with tqdm(total=total) as bar:
        yield bar.update


class ProgressLine:
    """A line such as `1,024 of 4,096 (25 %), 2,300 a second`."""

    def __init__(self, total: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._out = sys.stderr if out is None else out
        self._done, self._start, self._shown = 0, clock(), -EVERY

    def add_results(self, count: int) -> None:
        """Counts new results, and shows the count now and then."""
        self._done += count
        if self._clock() - self._start - self._shown >= EVERY:
            self._shown = self._clock() - self._start
            self._write()

    def end(self) -> None:
        """Shows the final count and leaves the line."""
        self._write()
        self._out.write("\n")
        self._out.flush()

    def _write(self) -> None:
        seconds = max(self._clock() - self._start, 1e-9)
        share = 100 * self._done // max(self._total, 1)
        self._out.write(f"\r{self._done:,} of {self._total:,} ({share} %), {self._done / seconds:,.0f} a second")
        self._out.flush()
