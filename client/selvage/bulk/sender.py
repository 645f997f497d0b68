"""Texts -> vectors, by all targets together: what the command and clusters share.

Texts are cut into messages; a message is one `embed` of a client, and several of each target are under way. This file
decides what happens to a message: a reply, an error that passes, a text at fault. So each text has one outcome,
whichever target it was sent to. It does no I/O but by its clients.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selvage.bulk import Failed
from selvage.bulk.arrow_columns import vector_table
from selvage.calls.split_call import pause_after
from selvage.calls.streamed_call import BATCH_LETTERS, BATCH_SECONDS
from selvage.errors import (
    Cancelled,
    DeadlineExceeded,
    InputTooLarge,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    Unavailable,
)
from selvage.messages.inputs import ENTRY_LETTERS, checked_text, runs
from selvage.results import Embeddings, ModelCard

IN_FLIGHT = 32
"""Messages under way to each target unless told otherwise."""
EMPTY = "EMPTY"
"""The reason of a row whose text is null, or has no letter."""
FIRST_SECONDS, CARD_SECONDS = 2.0, 10.0
"""Deadlines of the first and of later requests for a card: where nothing answers at all, this is told soon."""
CLOSE_SECONDS = 5.0
"""Longest wait for calls in progress to end when a sender is closed."""
PASSING = (Unavailable, DeadlineExceeded, Overloaded, Cancelled)
UNEXPLAINED, MOST_UNEXPLAINED = ("INTERNAL", "UNKNOWN"), 5
"""Statuses of `Unavailable` that may come of a broken connection or of the message itself; and how often a message is
sent that fails with them."""
SOME_TEXT_AT_FAULT = (InputTooLarge, ResultTooLarge, LimitExceeded, Overloaded)
"""Errors of a message that one or all of its texts cause, and that do not say which."""


@dataclass(slots=True, eq=False)
class Target:
    """A `Client` that does not try again by itself, or an `Engine`, and its `name` in messages.

    `under_way`: messages that were sent and not answered; `limit`: most of them, fewer once it refused more. `resume`:
    the time from which messages may be sent; `failures`: how often it failed in a row; `checked`: whether its model is
    known to be the right one, which is asked again after each failure; `checking`: whether it is being asked.
    """

    name: str
    client: Any
    under_way: int = 0
    limit: float = math.inf
    resume: float = 0.0
    failures: int = 0
    checked: bool = False
    checking: bool = False


class Work:
    """The texts of some rows. `reasons`: of each row, why it has no vector; None where it has one."""

    def __init__(self, values: Sequence[Any], column: str, *, keep_empty: bool) -> None:
        """`values`: a string of each row, null, or what stands there instead. `column`: what messages call it."""
        self.reasons: list[str | None] = [None] * len(values)
        self.texts: dict[int, str] = {}
        for row, value in enumerate(values):
            text = "" if value is None else value
            if fault := _fault(column, text):
                self.reasons[row] = fault
            elif keep_empty or (text and not text.isspace()):
                self.texts[row] = text
            else:
                self.reasons[row] = EMPTY
        self.unanswered = len(self.texts)
        self._replies: list[tuple[Sequence[int], Embeddings]] = []

    def record(self, rows: Sequence[int], embeddings: Embeddings) -> None:
        """Stores the vectors of some rows."""
        self._replies.append((rows, embeddings))
        self.unanswered -= len(rows)

    def refuse(self, row: int, reason: str) -> None:
        """Records that a row gets no vector."""
        self.reasons[row] = reason
        self.unanswered -= 1

    def rows_with_vectors(self) -> list[int]:
        """The rows that have vectors, in order."""
        return [row for row, reason in enumerate(self.reasons) if reason is None]

    def bad_rows(self) -> list[int]:
        """The rows whose texts are at fault, in order."""
        return [row for row, reason in enumerate(self.reasons) if reason not in (None, EMPTY)]

    def table(self) -> Any:
        """The pyarrow.Table of the rows that have vectors, in order; None where no row has one. See `vector_table`."""
        if not self._replies:
            return None
        rows = [row for some, _ in self._replies for row in some]
        order = sorted(range(len(rows)), key=rows.__getitem__)
        return vector_table([embeddings for _, embeddings in self._replies], order)


@dataclass(slots=True)
class _Message:
    """Some rows of a work. `unexplained`: how often they failed with one of these statuses."""

    work: Work
    rows: Sequence[int]
    unexplained: int = 0


class Sender:
    """Sends the texts of any number of `Work` at a time to `target_count` targets. `answered`: how many texts have an
    outcome."""

    def __init__(
        self,
        targets: Sequence[Target],
        options: Mapping[str, Any],
        *,
        fingerprint: str,
        message_texts: int,
        in_flight: int,
        patience: float,
    ) -> None:
        """`options`: those of `Client.embed`, whose `output` is a list. `fingerprint`: that of the model that all
        targets must have. `message_texts`: most texts of a message. `in_flight`: most messages under way to each
        target. `patience`: longest time in seconds without any answer.
        """
        self._targets, self._options, self._fingerprint = targets, options, fingerprint
        self._message_texts, self._in_flight, self._patience = message_texts, in_flight, patience
        self._lock = threading.Lock()
        self._sendable, self._answered = threading.Condition(self._lock), threading.Condition(self._lock)
        self._waiting: deque[_Message] = deque()
        self._under_way = 0
        self._last_answer = 0.0
        self._failure: Exception | None = None
        self._closed = False
        self.answered, self.target_count = 0, len(targets)
        self._threads = [
            threading.Thread(target=self._run, args=(target,), daemon=True, name=f"selvage-{target.name}")
            for target in targets
            for _ in range(in_flight)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work) -> None:
        """Begins to embed the texts of `work`."""
        with self._lock:
            if not self._under_way:
                self._last_answer = time.monotonic()  # nothing was asked before
            self._under_way += work.unanswered
            self._waiting.extend(_Message(work, rows) for rows in messages(work.texts, most=self._message_texts))
            self._sendable.notify_all()

    def wait(self, work: Work, seconds: float | None = None) -> bool:
        """Waits up to `seconds` until every text has an outcome; returns whether it has.

        Raises Failed where no target answers, or where the service refuses more than a text.
        """
        with self._lock:
            self._answered.wait_for(lambda: self._failure or not work.unanswered, timeout=seconds)
            if self._failure is not None:
                raise self._failure
            return not work.unanswered

    def close(self) -> None:
        """Ends calls in progress, and the clients."""
        with self._lock:
            self._closed = True
            self._sendable.notify_all()
        for target in self._targets:
            target.client.close()
        end = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, target: Target) -> None:
        try:
            while (turn := self._next_message(target)) is not None:
                self._send(target, *turn)
        except Exception as error:
            with self._lock:
                self._fail(error)

    def _next_message(self, target: Target) -> tuple[_Message, bool] | None:
        """The next message for a target, once the target may be asked, and whether to check its model before.

        None at the end. One thread checks the model; the others wait, so that no message waits with them.
        """
        with self._lock:
            while not (self._closed or self._failure):
                pause = target.resume - time.monotonic()
                if self._waiting and pause <= 0 and not target.checking and target.under_way < target.limit:
                    target.checking = not target.checked
                    target.under_way += 1
                    return self._waiting.popleft(), target.checking
                self._sendable.wait(pause if self._waiting and pause > 0 else None)
            return None

    def _send(self, target: Target, message: _Message, checks: bool) -> None:
        try:
            if checks:
                self._check_model(target)
                checks = False
            texts = [message.work.texts[row] for row in message.rows]
            embeddings = target.client.embed(texts, timeout=BATCH_SECONDS, **self._options)
        except SelvageError as error:
            with self._lock:
                target.under_way -= 1
                if checks:  # the card was refused, not the message
                    target.checking = False
                elif isinstance(error, Unavailable) and error.code.name in UNEXPLAINED:
                    message.unexplained += 1
                told_no_time = isinstance(error, Overloaded) and error.retry_after is None
                passes = isinstance(error, PASSING) and not told_no_time
                if passes and message.unexplained < MOST_UNEXPLAINED:
                    self._give_back(target, message, error)
                else:
                    self._refuse_text(target, message, error)
                self._sendable.notify_all()
            return
        with self._lock:
            message.work.record(message.rows, embeddings)
            self._count(message.work, len(message.rows))
            target.under_way -= 1
            target.failures = 0
            if target.limit < self._in_flight:
                target.limit += 1 / target.limit
                self._sendable.notify_all()

    def _check_model(self, target: Target) -> None:
        """Raises Failed where a target has another model than the work was begun with, and SelvageError."""
        fingerprint = target.client.model(timeout=CARD_SECONDS).fingerprint
        if fingerprint != self._fingerprint:
            raise Failed(
                f"{target.name}: its model has the fingerprint {fingerprint[:16]}, "
                f"the work was begun with {self._fingerprint[:16]}"
            )
        with self._lock:
            target.checked, target.checking = True, False
            self._sendable.notify_all()

    def _give_back(self, target: Target, message: _Message, error: SelvageError) -> None:
        """Has another target, or the same one later, send a message.

        A service that is overloaded has answered. It gets as many messages as it did not refuse, and one more after so
        many answers; it is left alone for as long as it says where it has none.
        """
        now = time.monotonic()
        self._waiting.appendleft(message)
        if isinstance(error, Overloaded):
            self._last_answer = now
            target.limit = max(1.0, min(target.limit, target.under_way))
            waits = not target.under_way
        else:
            target.checked = False
            waits = now >= target.resume  # else another message of the same moment has counted
        if waits:
            target.failures += 1
            pause = pause_after(target.failures) if error.retry_after is None else error.retry_after
            target.resume = now + pause
        if now - self._last_answer > self._patience:
            self._fail(
                Failed(f"no target has answered for {self._patience:g} s (patience); the last one says: {error}")
            )

    def _refuse_text(self, target: Target, message: _Message, error: SelvageError) -> None:
        """Refuses the text at fault, which the error names or halving the message finds; sends the others again."""
        name, _, rest = error.field.partition("[")
        number, rows = rest.partition("]")[0], message.rows
        if isinstance(error, InvalidInput) and name == "texts" and number.isdecimal():
            place = int(number)
        elif not isinstance(error, SOME_TEXT_AT_FAULT) or name not in ("", "texts"):
            self._fail(Failed(f"{target.name} refuses this: {error}"))
            return
        elif len(rows) > 1:
            middle = len(rows) // 2
            self._waiting.extendleft(_Message(message.work, half) for half in (rows[middle:], rows[:middle]))
            return
        else:
            place = 0
        reason = str(error).replace(error.field, "the text", 1) if error.field else str(error)
        message.work.refuse(rows[place], f"{error.reason}: {reason}")
        self._count(message.work, 1)
        if remaining := [*rows[:place], *rows[place + 1 :]]:
            self._waiting.appendleft(_Message(message.work, remaining))

    def _count(self, work: Work, texts: int) -> None:
        """Counts texts that have an outcome now."""
        self.answered += texts
        self._under_way -= texts
        self._last_answer = time.monotonic()
        if not work.unanswered:
            self._answered.notify_all()

    def _fail(self, error: Exception) -> None:
        """Ends the work with an error; the first one counts."""
        self._failure = self._failure or error
        self._answered.notify_all()
        self._sendable.notify_all()


def messages(texts: Mapping[int, str], *, most: int, letters: int = BATCH_LETTERS) -> list[list[int]]:
    """The rows of each message: at most `most` rows and `letters`, unless a single text has more.

    The longest come first, so that texts of a message are alike in length.
    """
    rows = sorted(texts, key=lambda row: len(texts[row]), reverse=True)
    sizes = (len(texts[row]) + ENTRY_LETTERS for row in rows)
    return [rows[start:stop] for start, stop in runs(sizes, most=most, room=letters) if stop > start]


def card_of(targets: Sequence[Target], patience: float, tell: Callable[[str], None]) -> ModelCard:
    """The card of the model, from the first target that sends it. Raises Failed after `patience` seconds.

    `tell`: takes a line for people, for whom it waits and why, as soon as it has to wait.
    """
    start, tries, seconds = time.monotonic(), 0, FIRST_SECONDS
    while True:
        for target in targets:
            try:
                card: ModelCard = target.client.model(timeout=seconds)
                return card
            except PASSING as passing:
                error: SelvageError = passing
            except SelvageError as refused:
                raise Failed(f"{target.name}: {refused}") from refused
        left = start + patience - time.monotonic()
        if left <= 0:
            raise Failed(f"no target answers; {target.name} says: {error}")
        if not tries:
            tell(f"waiting up to {patience:g} s for {', '.join(target.name for target in targets)}: {error}")
        tries, seconds = tries + 1, CARD_SECONDS
        time.sleep(min(pause_after(tries), left))


def _fault(column: str, text: Any) -> str:
    """Why a value cannot be sent as a text; empty where it can."""
    if isinstance(text, UnicodeDecodeError):
        return f"column {column!r} is not valid UTF-8 at byte {text.start}"
    if not isinstance(text, str):
        return f"column {column!r} is of type {type(text).__name__}, not a string"
    try:
        checked_text(text, f"column {column!r}")
    except InvalidInput as error:
        return str(error)
    return ""
