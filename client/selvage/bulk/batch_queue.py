"""Batches of texts that wait, are sent, or have their results. The job adds blocks of rows; targets take batches.

This file decides everything that happens to a batch: a result, a refusal that passes, a text at fault, a stream that
ends. So each batch is answered once, wherever it was sent. Threads share the queue; it starts none and does no I/O.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.bulk.failures import Failed
from selvage.bulk.row_blocks import RowBlock, batches
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
"""Seconds before the second try, doubled for each further one up to the longest; where the service says no time."""
SOME_TEXT_AT_FAULT = (InputTooLarge, ResultTooLarge, LimitExceeded, Overloaded)
"""Errors of a batch that one or all of its texts cause, and that do not say which."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts that are sent together: the rows of a block at `places`."""

    id: int
    block: RowBlock
    places: Sequence[int]

    @property
    def texts(self) -> list[str]:
        return [self.block.rows[place].text for place in self.places]


@dataclass(slots=True)
class OpenStream:
    """One stream to a service.

    `unanswered`: the batches that were sent through it and have no whole reply, by their id. `resume`: the time of the
    queue's clock from which more may be sent. `ended`: nothing more is sent.
    """

    unanswered: dict[int, Batch] = field(default_factory=dict)
    resume: float = 0.0
    ended: bool = False


class BatchQueue:
    """The batches of all blocks of rows that are in progress. `answered_texts`: how many texts have an outcome."""

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
        """`batch_size`, `letters`: most texts and letters of a batch. `in_flight`: most batches that one stream sends
        ahead of their replies. `patience`: longest time in seconds without any reply. `has_ids`: rows have ids."""
        self._batch_size, self._letters, self._in_flight = batch_size, letters, in_flight
        self._patience, self._has_ids, self._clock = patience, has_ids, clock
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()
        self._blocks: deque[RowBlock] = deque()
        self._next_id = 0
        self._closed = False
        self._failure: Exception | None = None
        self._silent_since: float | None = None
        self.answered_texts = 0

    @property
    def open_blocks(self) -> float:
        """Number of full blocks that were added and not taken back; a block that is half full counts half."""
        return sum(block.fullness for block in self._blocks)

    def add_block(self, block: RowBlock) -> None:
        """Adds the batches of a block of rows."""
        with self._changed:
            if not self._blocks:
                self._silent_since = None  # nothing was sent while the queue was empty
            block.unanswered = len(block.rows)
            self._blocks.append(block)
            for places in batches(block, most=self._batch_size, letters=self._letters):
                self._waiting.append(self._batch(block, places))
            self._changed.notify_all()

    def take_oldest_block(self, seconds: float) -> RowBlock | None:
        """Does `take_block` for the block that was added first. Only for a caller that alone takes blocks."""
        return self.take_block(self._blocks[0], seconds)

    def take_block(self, block: RowBlock, seconds: float | None = None) -> RowBlock | None:
        """Removes and returns a block once every row of it has an outcome; None where this takes over `seconds`.

        Raises the error that has ended the work.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not block.unanswered, timeout=seconds)
            if self._failure is not None:
                raise self._failure
            if block.unanswered:
                return None
            self._blocks.remove(block)
            return block

    def close(self) -> None:
        """Ends the work without an error: threads that wait for batches get none."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Ends the work with an error; the first one counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def wait_for_work(self, pause: float = 0.0) -> bool:
        """Waits for `pause` seconds, then until a batch waits to be sent; False where the work has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._over, timeout=pause) if pause else None
            self._changed.wait_for(lambda: self._over or self._waiting)
            return not self._over

    def next_batch(self, stream: OpenStream) -> Batch | None:
        """Waits for the next batch that a stream is to send; None: it is to send no more."""
        with self._changed:
            while not (stream.ended or self._over):
                pause = stream.resume - self._clock()
                if pause <= 0 and self._waiting and len(stream.unanswered) < self._in_flight:
                    batch = self._waiting.popleft()
                    stream.unanswered[batch.id] = batch
                    return batch
                self._changed.wait(pause if pause > 0 else None)
            return None

    def record_values(
        self, stream: OpenStream, batch_id: int, start: int, values: dict[str, Sequence[Any]], *, more: bool
    ) -> None:
        """Stores the values of a batch's texts from `start` on; `more`: values of other texts of it are to come."""
        with self._changed:
            batch = stream.unanswered[batch_id]
            count = len(values["tokens"])
            batch.block.set_values(batch.places[start : start + count], values)
            self._silent_since = None
            if not more:
                del stream.unanswered[batch_id]
                self._count_outcomes(batch.block, len(batch.places))

    def record_refusal(self, stream: OpenStream, batch_id: int, error: SelvageError, *, whole: bool) -> None:
        """Plans what follows the error of a batch; `whole`: none of its texts had values before the error."""
        with self._changed:
            batch = stream.unanswered.pop(batch_id)
            wait = _retry_seconds(error)
            if wait is not None:
                self._waiting.appendleft(batch)
                stream.resume = max(stream.resume, self._clock() + wait)
                self._check_patience(error)
            else:
                self._refuse_text(batch, error, _place_at_fault(error) if whole else None)
            self._changed.notify_all()

    def record_stream_end(self, stream: OpenStream, error: SelvageError, *, counts: bool = True) -> None:
        """Puts the batches of a stream that has ended back, in front, for another stream.

        `counts`: whether the end counts against the patience: not where a service serves as many streams as it may.
        """
        with self._changed:
            stream.ended = True
            self._waiting.extendleft(reversed(stream.unanswered.values()))
            stream.unanswered.clear()
            if counts:
                self._check_patience(error)
            self._changed.notify_all()

    @property
    def _over(self) -> bool:
        return self._closed or self._failure is not None

    def _batch(self, block: RowBlock, places: Sequence[int]) -> Batch:
        self._next_id += 1
        return Batch(self._next_id, block, places)

    def _count_outcomes(self, block: RowBlock, count: int) -> None:
        block.unanswered -= count
        self.answered_texts += count
        self._changed.notify_all()

    def _refuse_text(self, batch: Batch, error: SelvageError, place: int | None) -> None:
        """Refuses the text at fault, which the error names or halving the batch finds; the others are sent again."""
        names_texts = error.field.partition("[")[0] in ("", "texts")
        if place is None and not (isinstance(error, SOME_TEXT_AT_FAULT) and names_texts):
            self._failure = self._failure or Failed(f"the service refuses this: {error}")
            return
        if place is None and len(batch.places) > 1:
            middle = len(batch.places) // 2
            remaining = [batch.places[:middle], batch.places[middle:]]
        else:
            place = place or 0
            reason = str(error).replace(error.field, "the text", 1) if error.field else str(error)
            batch.block.refuse_row(batch.places[place], f"{error.reason}: {reason}", has_id=self._has_ids)
            self._silent_since = None
            self._count_outcomes(batch.block, 1)
            remaining = [[*batch.places[:place], *batch.places[place + 1 :]]]
        self._waiting.extendleft(self._batch(batch.block, places) for places in reversed(remaining) if places)

    def _check_patience(self, error: SelvageError) -> None:
        """Fails the work where no target has answered for too long."""
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > self._patience:
            silence = f"--patience: no target has answered for {self._patience:g} s; the last one says: {error}"
            self._failure = self._failure or Failed(silence)


def _retry_seconds(error: SelvageError) -> float | None:
    """Seconds until another try; None where no try would help."""
    if isinstance(error, Unavailable | DeadlineExceeded):
        return FIRST if error.retry_after is None else error.retry_after
    return error.retry_after if isinstance(error, Overloaded) else None


def _place_at_fault(error: SelvageError) -> int | None:
    """The place in the batch of the text that an error names; None where it names none."""
    name, _, rest = error.field.partition("[")
    number = rest.partition("]")[0]
    return int(number) if isinstance(error, InvalidInput) and name == "texts" and number.isdecimal() else None
