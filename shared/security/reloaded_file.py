"""Files that are read again when they change. Standard library only."""

import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

LOOK_SECONDS = 1.0
"""Seconds between two checks of a file."""
MOST_BYTES = 16 * 1024 * 1024
"""Longest file that is read: keys and certificates are far shorter."""

T = TypeVar("T")


class Fresh(Generic[T]):
    """A value read from files, which are read again when one of them has changed.

    If they can no longer be read or parsed, the previous value stays and `on_error` is called once.
    """

    def __init__(
        self,
        paths: Sequence[str],
        read: Callable[[Sequence[bytes]], T],
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the files. `read` parses their contents. Raises its ValueError, or OSError."""
        self._paths, self._read, self._on_error, self._clock = paths, read, on_error, clock
        self._looked = clock()
        self._seen = _state(paths)
        self._value = read(_contents(paths))

    @property
    def value(self) -> T:
        """The value of the files as they were at most a second ago."""
        self.renew()
        return self._value

    def renew(self) -> bool:
        """Reads changed files again; returns whether `value` is new."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        state = _state(self._paths)
        if state == self._seen:
            return False
        try:
            value = self._read(_contents(self._paths))
        except Exception as error:  # whatever is wrong with the files, calls go on with what was there
            self._seen = state
            self._on_error(error)
            return False
        if _state(self._paths) != state:
            return False  # still being written: the next check reads it
        self._seen, self._value = state, value
        return True


def _contents(paths: Sequence[str]) -> list[bytes]:
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        contents.append(content)
    return contents


def _state(paths: Sequence[str]) -> Hashable:
    """A state that differs once a file has changed; the error if a file cannot be read."""
    try:
        stats = [os.stat(path) for path in paths]
    except OSError as error:
        return str(error)
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)
