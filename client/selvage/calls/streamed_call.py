"""Texts without end through EmbedStream: what to send, what has come, in which order to give it. No I/O.

Both clients drive it alike: add texts while it wants some, send what it says, report replies and the end of a stream,
and hand on what is ready.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.calls.retries import RetryPolicy
from selvage.errors import InvalidInput, SelvageError, from_stream
from selvage.messages.embedding import Template, one_of
from selvage.messages.inputs import ENTRY_LETTERS, ID_LETTERS, Inputs
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse

LETTERS = 32 * 1024
"""Of one batch: of these, as many as the service answers at once come to a few steps of a worker."""
WINDOW = 32
"""Batches that were begun and not yet handed on; nothing more is read from the caller until one is."""


@dataclass(slots=True)
class _Batch:
    """`found`: by the place in the batch of their first text, results that have come so far."""

    start: int
    inputs: Inputs
    failures: int = 0
    answered: bool = False
    found: dict[int, list[Any]] = field(default_factory=dict)


class Streaming:
    """One `embed_stream`, over as many streams as it takes."""

    def __init__(
        self,
        source: Any,
        template: Template,
        output: str,
        retries: RetryPolicy,
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: the texts, which a client iterates over; `most`: of one batch."""
        self.source = source
        self._template, self._output, self._retries, self._most, self._clock = template, output, retries, most, clock
        self._gathered: list[Any] = []
        self._letters = self._texts = self._next_id = self._losses = 0
        self._batches: dict[int, _Batch] = {}
        self._unsent: deque[int] = deque()
        self._ended = False
        self._resume = clock()

    @property
    def wants(self) -> bool:
        """Whether another text is to be added."""
        return not self._ended and len(self._batches) < WINDOW

    @property
    def done(self) -> bool:
        """Whether every text's result has been handed on."""
        return self._ended and not self._batches

    def add(self, text: str | Sequence[int]) -> None:
        """The next text, or its token ids. Raises InvalidInput where it is neither."""
        if not hasattr(text, "__len__"):
            place = self._texts + len(self._gathered)
            raise InvalidInput(f"texts[{place}] is of type {type(text).__name__}", field=f"texts[{place}]")
        self._gathered.append(text)
        self._letters += len(text) * (1 if isinstance(text, str) else ID_LETTERS) + ENTRY_LETTERS
        if len(self._gathered) >= self._most or self._letters >= LETTERS:
            self._close_batch()

    def finish(self) -> None:
        """No further text comes."""
        self._close_batch()
        self._ended = True

    def next(self) -> EmbedStreamRequest | None:
        """What to send now through the stream that is open."""
        if not self._unsent or self.pause() is not None:
            return None
        identity = self._unsent.popleft()
        inputs = self._batches[identity].inputs
        return EmbedStreamRequest(id=identity, request=self._template.request(inputs, slice(0, len(inputs))))

    def pause(self) -> float | None:
        """Seconds until `next` may have something, where it has nothing because of a refusal."""
        wait = self._resume - self._clock()
        return wait if wait > 0 and self._unsent else None

    def patience(self) -> float | None:
        """Seconds to listen before looking again: none while texts are wanted or all is done; None: until something
        comes."""
        if self.wants or self.done:
            return 0.0
        return max(0.0, self._resume - self._clock()) if self._unsent else None

    def received(self, reply: EmbedStreamResponse, request_id: str) -> None:
        """A reply, or a part of one. Raises the error of a batch that no other try helps."""
        batch = self._batches[reply.id]
        if reply.WhichOneof("outcome") == "error":
            batch.found.clear()
            batch.failures += 1
            error = from_stream(reply.error, request_id).shifted({"texts": batch.start, "tokenized": batch.start})
            self._wait(error, batch.failures)
            self._unsent.appendleft(reply.id)
            return
        batch.found[reply.start] = one_of(reply.response, self._output)
        if not reply.more:
            batch.answered, self._losses = True, 0

    def lost(self, error: SelvageError) -> None:
        """The stream has ended: what has no whole reply goes into another one. Raises where that will not help."""
        unanswered = [identity for identity, batch in self._batches.items() if not batch.answered]
        if not unanswered:
            return
        self._losses += 1
        for identity in unanswered:
            self._batches[identity].found.clear()
        self._unsent = deque(unanswered)
        self._wait(error, self._losses)

    def ready(self) -> Iterator[Any]:
        """Results that have come, in the order of the texts."""
        while self._batches:
            first = next(iter(self._batches))
            if not self._batches[first].answered:
                return
            found = self._batches.pop(first).found
            for start in sorted(found):
                yield from found[start]

    def _wait(self, error: SelvageError, failures: int) -> None:
        wait = self._retries.wait(error, failures)
        if wait is None:
            raise error
        self._resume = max(self._resume, self._clock() + wait)

    def _close_batch(self) -> None:
        if not self._gathered:
            return
        try:
            inputs = Inputs.of(self._gathered)
        except InvalidInput as error:
            raise error.shifted({"texts": self._texts}) from None
        self._batches[self._next_id] = _Batch(start=self._texts, inputs=inputs)
        self._unsent.append(self._next_id)
        self._texts += len(self._gathered)
        self._next_id, self._letters, self._gathered = self._next_id + 1, 0, []
