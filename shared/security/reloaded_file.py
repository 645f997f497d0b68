"""Files that are read again when they change. Standard library only."""

import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

LOOK_SECONDS = 1.0
"""Between two looks at a file."""

T = TypeVar("T")


class Fresh(Generic[T]):
    """What a few files together mean: read at first, and again once one of them has changed.

    Files that cannot be read any more, or make no sense, leave what was there; `on_error` is told so once.
    """

    def __init__(
        self,
        paths: Sequence[str],
        read: Callable[[Sequence[bytes]], T],
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` raises ValueError for what makes no sense; for what is there now this does so too, or OSError."""
        self._paths, self._read, self._on_error, self._clock = paths, read, on_error, clock
        self._looked = clock()
        self._seen = _state(paths)
        self._value = read(_contents(paths))

    @property
    def value(self) -> T:
        """By what the files are now, or were a second ago."""
        self.renew()
        return self._value

    def renew(self) -> bool:
        """Whether `value` is new since the last look."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        state = _state(self._paths)
        if state == self._seen:
            return False
        try:
            value = self._read(_contents(self._paths))
        except (OSError, ValueError) as error:
            self._seen = state
            self._on_error(error)
            return False
        if _state(self._paths) != state:
            return False  # still being written; what is there is looked at next time
        self._seen, self._value = state, value
        return True


def _contents(paths: Sequence[str]) -> list[bytes]:
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            contents.append(file.read())
    return contents


def _state(paths: Sequence[str]) -> Hashable:
    """What differs once a file is another; of one that cannot be read, why."""
    try:
        found = [os.stat(path) for path in paths]
    except OSError as error:
        return str(error)
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
