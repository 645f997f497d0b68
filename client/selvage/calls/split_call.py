"""One call of a client, split into requests: what to send next, and when to try again. No I/O and no threads.

The transport takes attempts and sends them, records replies and failures, and stops when the call is done.
"""

import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from selvage.errors import DeadlineExceeded, InvalidInput, Overloaded, SelvageError, Unavailable
from selvage.messages.inputs import InputPart, Operation

FIRST, LONGEST = 0.1, 5.0
"""Seconds before the second try, doubled for each further one up to the longest."""
SPREAD = 0.25
"""Largest share by which a wait is longer, at random: callers that were refused together then return one by one."""
HALVED = {
    "",
    "texts",
    "tokenized",
    "documents",
    "queries",
    "queries.data",
    "documents.data",
    "query_texts",
    "explain",
    "spans",
}
"""Fields at fault in a LIMIT_EXCEEDED that a request with fewer entries may avoid."""
PART = "part_of_list"
"""Field at fault where a model scores documents beside each other, so that a list must stay whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A request to send now.

    `seconds`: its deadline, None for none. `failures`: how often its part failed before. `replies`: how many replies of
    its stream or call had come when it was sent.
    """

    part: InputPart
    message: Any
    seconds: float | None
    failures: int
    replies: int


def pause_after(failures: int) -> float:
    """Seconds before the next try after so many failures in a row, where the service does not say how long."""
    return min(FIRST * 2.0 ** min(failures - 1, 16), LONGEST)


class RetryPolicy:
    """Allows up to `most` more tries for each part of an input."""

    def __init__(self, most: int, chance: Callable[[], float] = random.random) -> None:
        """`chance`: a random number from 0 to 1."""
        self._most, self._chance = most, chance

    def wait(self, error: SelvageError, failures: int) -> float | None:
        """Seconds until the next try after so many `failures`; None where there is to be none.

        Unavailable may pass by itself, Overloaded where the service says when. Nothing else does.
        """
        passes = isinstance(error, Unavailable) or (isinstance(error, Overloaded) and error.retry_after is not None)
        if failures > self._most or not passes:
            return None
        seconds = pause_after(failures) if error.retry_after is None else error.retry_after
        return seconds * (1 + SPREAD * self._chance())


@dataclass(slots=True)
class Pace:
    """What the operations of one stream know of each other.

    `in_progress`: how many requests are under way. `replies`: how many were answered. `resume`: the time before which
    nothing is sent: a service that is overloaded refuses other parts too. `most`: how many requests the service takes
    at a time, as far as is known: as many as were under way when it refused one as overload, and one more for as many
    replies.
    """

    in_progress: int = 0
    replies: int = 0
    resume: float = -math.inf
    most: float = math.inf


class SplitCall:
    """An operation in progress. The operation itself keeps the replies, which come in any order."""

    def __init__(
        self,
        operation: Operation[Any],
        *,
        seconds: float,
        retries: RetryPolicy,
        pace: Pace | None = None,
        show_progress: Callable[[int], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: for the whole call, may be infinite. `pace`: that of the stream it belongs to. `show_progress`:
        called with the number of new results.

        Raises InvalidInput where `seconds` is negative or not a number.
        """
        if not seconds >= 0:
            raise InvalidInput(f"timeout is {seconds}, must be at least 0", field="timeout")
        self._operation, self._retries, self._show_progress, self._clock = operation, retries, show_progress, clock
        self._pace, self._seconds = pace or Pace(), seconds
        self._deadline = clock() + seconds
        self._parts = operation.parts()
        self._again: deque[tuple[InputPart, int]] = deque()
        self._in_progress = 0
        self._all_begun = self._undivided = self._paused = False

    @property
    def done(self) -> bool:
        """Whether every part has its reply."""
        return self._all_begun and not self._again and not self._in_progress

    def next_attempt(self) -> Attempt | None:
        """The request to send now; None where nothing is left, or everything has to wait. Raises DeadlineExceeded."""
        self._paused = self._clock() < self._pace.resume
        if self._paused:
            return None
        following = self._next_part()
        if following is None:
            return None
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded(f"not done within {self._seconds:g} s")
        self._in_progress += 1
        self._pace.in_progress += 1
        part, failures = following
        message = self._operation.message(part)
        seconds = None if math.isinf(remaining) else remaining
        return Attempt(part=part, message=message, seconds=seconds, failures=failures, replies=self._pace.replies)

    def wait_seconds(self) -> float | None:
        """Seconds until `next_attempt` may have a request, after it had none.

        None: not before a request in progress ends.
        """
        return max(0.0, self._pace.resume - self._clock()) if self._paused else None

    def record_reply(self, attempt: Attempt, reply: Any) -> None:
        """Stores the reply to an attempt."""
        self.record_end()
        self._pace.replies += 1
        self._pace.most += 1 / self._pace.most
        self._operation.add_reply(attempt.part, reply)
        self._show_progress(attempt.part.size)

    def record_failure(self, attempt: Attempt, error: SelvageError) -> None:
        """Plans another attempt, two halves of the part, or all in one. Raises the error where none would help.

        Nothing at all is sent until the wait after a refusal is over. A part that is refused as overload beside others
        of this call, or stream, may want the room that these have, however long they take: that counts as no failure
        where one of them is under way, or was answered since this part was sent.
        """
        self.record_end()
        whole = attempt.part.indivisible or attempt.part.whole_columns
        if self._undivided and not whole:  # what it would have brought comes with the whole list
            return
        if error.field == PART and not whole and (parts := list(self._operation.undivided())):
            self._parts, self._undivided, self._all_begun = iter(parts), True, False
            self._again.clear()
            return
        halves = attempt.part.halves() if _too_much(error) else []
        if halves:
            self._again.extendleft((half, 0) for half in reversed(halves))
            return
        error = error.shifted(self._operation.offsets(attempt.part))
        if isinstance(error, Overloaded):
            self._pace.most = max(1.0, self._pace.in_progress)
        beside_others = bool(self._pace.in_progress) or self._pace.replies > attempt.replies
        failures = attempt.failures + (not (beside_others and isinstance(error, Overloaded)))
        wait = self._retries.wait(error, failures)
        if wait is None or self._clock() + wait >= self._deadline:
            raise error
        self._pace.resume = max(self._pace.resume, self._clock() + wait)
        self._again.appendleft((attempt.part, failures))

    def record_end(self) -> None:
        """Counts an attempt as no longer under way: it was cancelled, or the caller records more of its end."""
        self._in_progress -= 1
        self._pace.in_progress -= 1

    def _next_part(self) -> tuple[InputPart, int] | None:
        """The next part to send, with its failures so far."""
        if self._again:
            return self._again.popleft()
        part = next(self._parts, None)
        if part is None:
            self._all_begun = True
            return None
        return part, 0


def _too_much(error: SelvageError) -> bool:
    """Whether a request with fewer entries may succeed: not where one entry alone is too large, which is named then."""
    if error.reason == "RESULT_TOO_LARGE":
        return not error.field
    return error.reason == "LIMIT_EXCEEDED" and error.field in HALVED
