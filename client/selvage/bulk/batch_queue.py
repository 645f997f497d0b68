"""What waits, what is under way through which stream, what is done. The job puts windows on it, targets take batches.

Everything that happens to a batch is decided here: an answer, a refusal that passes, a text that is at fault, a stream
that ends. So a batch is answered once, wherever it was sent. Threads share it; it starts none and does no I/O.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.bulk.failures import Failed
from selvage.bulk.row_blocks import Window, batches
from selvage.errors import (
    DeadlineExceeded,
    InputTooLarge,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    Unavailable,
)

FIRST, LONGEST = 0.1, 5.0
"""Seconds to wait where the service does not say; twice as long each time."""
OF_SOME_TEXT = (InputTooLarge, ResultTooLarge, LimitExceeded, Overloaded)
"""Errors of a batch for one or all of its texts that do not say which."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts that are sent together: rows of a window at `places`."""

    id: int
    window: Window
    places: Sequence[int]

    @property
    def texts(self) -> list[str]:
        return [self.window.rows[place].text for place in self.places]


@dataclass(slots=True)
class Session:
    """One open stream: what was sent through it and has no whole answer; `resume`: when it may be sent more."""

    under_way: dict[int, Batch] = field(default_factory=dict)
    resume: float = 0.0
    ended: bool = False


class Board:
    """`answered` texts have an outcome."""

    def __init__(
        self,
        *,
        batch_size: int,
        letters: int,
        in_flight: int,
        patience: float,
        has_ids: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`letters`: of a batch; `in_flight`: batches of one stream; `patience`: seconds without any answer."""
        self._batch_size, self._letters, self._in_flight = batch_size, letters, in_flight
        self._patience, self._has_ids, self._clock = patience, has_ids, clock
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()
        self._windows: deque[Window] = deque()
        self._next_id = 0
        self._closed = False
        self._failure: Exception | None = None
        self._silent_since: float | None = None
        self.answered = 0

    @property
    def open(self) -> float:
        """Full windows that were added and not taken back; one that is half full counts half."""
        return sum(window.share for window in self._windows)

    def add(self, window: Window) -> None:
        """More to do."""
        with self._changed:
            if not self._windows:
                self._silent_since = None  # nobody was asked meanwhile
            window.left = len(window.rows)
            self._windows.append(window)
            for places in batches(window, most=self._batch_size, letters=self._letters):
                self._waiting.append(self._batch(window, places))
            self._changed.notify_all()

    def oldest(self, seconds: float) -> Window | None:
        """`finished` of the window that was added first; for who alone takes windows back."""
        return self.finished(self._windows[0], seconds)

    def finished(self, window: Window, seconds: float | None = None) -> Window | None:
        """Takes a window back once every row of it has an outcome; None if that is not so in time.

        Raises what has ended the work.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not window.left, timeout=seconds)
            if self._failure is not None:
                raise self._failure
            if window.left:
                return None
            self._windows.remove(window)
            return window

    def close(self) -> None:
        """Nothing more will be done: whoever waits for work goes home."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Ends the work; the first error counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def has_work(self, rest: float = 0.0) -> bool:
        """Waits so many seconds, then until there is something to send; False where nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, timeout=rest) if rest else None
            self._changed.wait_for(lambda: self._over or self._waiting)
            return not self._over

    def take(self, session: Session) -> Batch | None:
        """Waits for the next batch that a stream is to send; None: no more through this one."""
        with self._changed:
            while not (session.ended or self._over):
                pause = session.resume - self._clock()
                if pause <= 0 and self._waiting and len(session.under_way) < self._in_flight:
                    batch = self._waiting.popleft()
                    session.under_way[batch.id] = batch
                    return batch
                self._changed.wait(pause if pause > 0 else None)
            return None

    def put(self, session: Session, identity: int, start: int, values: dict[str, Sequence[Any]], *, more: bool) -> None:
        """Values of a batch's texts from `start` on; `more`: others of it are to come."""
        with self._changed:
            batch = session.under_way[identity]
            count = len(values["tokens"])
            batch.window.put(batch.places[start : start + count], values)
            self._silent_since = None
            if not more:
                del session.under_way[identity]
                self._done(batch.window, len(batch.places))

    def refused(self, session: Session, identity: int, error: SelvageError, *, whole: bool) -> None:
        """A batch has failed; `whole`: nothing of it was answered before."""
        with self._changed:
            batch = session.under_way.pop(identity)
            wait = _passes(error)
            if wait is not None:
                self._waiting.appendleft(batch)
                session.resume = max(session.resume, self._clock() + wait)
                self._silence(error)
            else:
                self._blame(batch, error, _place(error) if whole else None)
            self._changed.notify_all()

    def lost(self, session: Session, error: SelvageError) -> None:
        """A stream has ended: what has no whole answer goes into another one."""
        with self._changed:
            session.ended = True
            self._waiting.extendleft(reversed(session.under_way.values()))
            session.under_way.clear()
            self._silence(error)
            self._changed.notify_all()

    @property
    def _over(self) -> bool:
        return self._closed or self._failure is not None

    def _batch(self, window: Window, places: Sequence[int]) -> Batch:
        self._next_id += 1
        return Batch(self._next_id, window, places)

    def _done(self, window: Window, count: int) -> None:
        window.left -= count
        self.answered += count
        self._changed.notify_all()

    def _blame(self, batch: Batch, error: SelvageError, place: int | None) -> None:
        """Finds the text at fault, by its name or by halves; the others are sent again."""
        if place is None and not (isinstance(error, OF_SOME_TEXT) and error.field.partition("[")[0] in ("", "texts")):
            self._failure = self._failure or Failed(f"the service refuses this: {error}")
            return
        if place is None and len(batch.places) > 1:
            middle = len(batch.places) // 2
            parts = [batch.places[:middle], batch.places[middle:]]
        else:
            place = place or 0
            reason = str(error).replace(error.field, "the text", 1) if error.field else str(error)
            batch.window.refuse(batch.places[place], f"{error.reason}: {reason}", has_id=self._has_ids)
            self._silent_since = None
            self._done(batch.window, 1)
            parts = [[*batch.places[:place], *batch.places[place + 1 :]]]
        self._waiting.extendleft(self._batch(batch.window, part) for part in reversed(parts) if part)

    def _silence(self, error: SelvageError) -> None:
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > self._patience:
            told = f"--patience: no target has answered for {self._patience:g} s; the last one says: {error}"
            self._failure = self._failure or Failed(told)


def _passes(error: SelvageError) -> float | None:
    """Seconds until another try; None where none helps."""
    if isinstance(error, Unavailable | DeadlineExceeded):
        return FIRST if error.retry_after is None else error.retry_after
    return error.retry_after if isinstance(error, Overloaded) else None


def _place(error: SelvageError) -> int | None:
    """Of the text that an error names."""
    name, _, rest = error.field.partition("[")
    number = rest.partition("]")[0]
    return int(number) if isinstance(error, InvalidInput) and name == "texts" and number.isdecimal() else None
