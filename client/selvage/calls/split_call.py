"""One call of a client in parts: what to send next, what came of it, when to try again. No I/O and no threads.

Both clients drive it alike: take attempts and send them, report replies and errors, and stop when it is done.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from selvage.calls.retries import RetryPolicy
from selvage.errors import DeadlineExceeded, InvalidInput, SelvageError
from selvage.messages.parts import InputPart

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
HALVED = {"", "texts", "tokenized", "documents", "queries", "queries.data", "documents.data", "query_texts", "explain"}
"""Fields of a LIMIT_EXCEEDED that fewer entries would mend."""


class Operation(Protocol[R_co]):
    """What a method of the client asks for: messages of parts, and a result of their replies.

    `seconds`: for all of it; None: the client's own. `progress`: whether to show how far it is.
    """

    seconds: float | None
    progress: bool

    @property
    def size(self) -> int:
        """Results of all parts."""

    def parts(self) -> Iterator[InputPart]:
        """They cover the input, each place once."""

    def message(self, part: InputPart) -> Any:
        """The request for a part."""

    def take(self, part: InputPart, reply: Any) -> None:
        """Keeps what a reply holds; replies come in any order."""

    def result(self) -> R_co:
        """Of all replies."""

    def places(self, part: InputPart) -> Mapping[str, int]:
        """By the name of a list in the request: the place in the input of its first entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A part to send now. `seconds`: how long its call may take, None for as long as the service lets it."""

    part: InputPart
    message: Any
    seconds: float | None
    failures: int


class CallSteps(Generic[R]):
    """An operation on its way. Answers are kept by the operation, in any order."""

    def __init__(
        self,
        operation: Operation[R],
        *,
        seconds: float,
        retries: RetryPolicy,
        told: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds` for the whole, which may be infinite; `told` hears of each part how many results it brought.

        Raises InvalidInput where `seconds` are no time.
        """
        if not seconds >= 0:
            raise InvalidInput(f"timeout is {seconds}, must be at least 0", field="timeout")
        self._operation, self._retries, self._told, self._clock = operation, retries, told, clock
        self._seconds = seconds
        self._deadline = clock() + seconds
        self._parts = operation.parts()
        self._again: deque[tuple[InputPart, int]] = deque()
        self._under_way = 0
        self._all_begun = False
        self._resume, self._paused = -math.inf, False

    @property
    def done(self) -> bool:
        """Whether every part has been answered."""
        return self._all_begun and not self._again and not self._under_way

    def next(self) -> Attempt | None:
        """What to send now; None where nothing is left, or all have to wait. Raises DeadlineExceeded."""
        self._paused = self._clock() < self._resume
        if self._paused:
            return None
        found = self._next_part()
        if found is None:
            return None
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise DeadlineExceeded(f"not done within {self._seconds:g} s")
        self._under_way += 1
        part, failures = found
        message = self._operation.message(part)
        seconds = None if math.isinf(remaining) else remaining
        return Attempt(part=part, message=message, seconds=seconds, failures=failures)

    def pause(self) -> float | None:
        """After `next` had nothing: seconds until it may have more; None: not before something under way ends."""
        return max(0.0, self._resume - self._clock()) if self._paused else None

    def answered(self, attempt: Attempt, reply: Any) -> None:
        """The reply to an attempt."""
        self._under_way -= 1
        self._operation.take(attempt.part, reply)
        self._told(attempt.part.size)

    def failed(self, attempt: Attempt, error: SelvageError) -> None:
        """Plans another try, or two halves. Raises the error where neither helps.

        After a refusal nothing at all is sent until its wait is over: who is overloaded by one part is so by all.
        """
        self._under_way -= 1
        halves = attempt.part.halves() if _too_much(error) else []
        if halves:
            self._again.extendleft((half, 0) for half in reversed(halves))
            return
        error = error.shifted(self._operation.places(attempt.part))
        wait = self._retries.wait(error, attempt.failures + 1)
        if wait is None or self._clock() + wait >= self._deadline:
            raise error
        self._resume = max(self._resume, self._clock() + wait)
        self._again.appendleft((attempt.part, attempt.failures + 1))

    def result(self) -> R:
        """Once it is done."""
        return self._operation.result()

    def _next_part(self) -> tuple[InputPart, int] | None:
        if self._again:
            return self._again.popleft()
        part = next(self._parts, None)
        if part is None:
            self._all_begun = True
            return None
        return part, 0


def _too_much(error: SelvageError) -> bool:
    """Whether fewer entries in a request would do."""
    return error.reason == "RESULT_TOO_LARGE" or (error.reason == "LIMIT_EXCEEDED" and error.field in HALVED)
